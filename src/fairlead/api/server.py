"""The server: one process on a Unix socket and, by default, on loopback."""

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn

from fairlead.api.access import AccessGate, loopback_names
from fairlead.api.app import build
from fairlead.api.background import Background
from fairlead.api.connections import (
    ACCEPT_AT_ONCE,
    LISTEN_QUEUE,
    BoundedConnection,
    ConnectionLimits,
    Gatekeeper,
    descriptors,
)
from fairlead.api.rates import RequestRates
from fairlead.api.service import Service
from fairlead.ports.faults import PermanentFault

STOP_S = 5
_FIRST_FD = 3  # SD_LISTEN_FDS_START


@dataclass(frozen=True, slots=True)
class Listen:
    """Where to listen. `port` None: on the Unix socket alone; 0: on any free port."""

    socket: Path
    port: int | None
    mode: int = 0o666
    """Of the socket: every user may connect; the peer's credentials decide its rights."""
    group: int | None = None
    """Group of the socket; with mode 0660 only its members connect."""


def server_config(
    app: Any, connection: Callable[..., asyncio.Protocol], *, stop_s: int = STOP_S
) -> uvicorn.Config:
    """`connection`: makes the protocol of one that was accepted."""
    return uvicorn.Config(
        app,
        interface="asgi3",
        http=connection,  # type: ignore[arg-type]  # typed as a class, and only called
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",  # every client could write a warning for each bad request
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=stop_s,
        h11_max_incomplete_event_size=65536,
        proxy_headers=False,
        backlog=ACCEPT_AT_ONCE,
    )


class QuietServer(uvicorn.Server):
    """Without uvicorn's signal handlers: they raise the signal again at the end, and are for the
    main thread alone."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """The library accepts as many connections at once as it lets wait; more may wait."""
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(LISTEN_QUEUE)


class Listeners:
    """The open sockets of a server. Opened before anything else where the rights to do so are given
    up."""

    def __init__(self, listen: Listen) -> None:
        given = _from_systemd(listen.socket)
        self._path, self._inherited = listen.socket, given is not None
        self.sockets = [given or _unix(listen)]
        self.port: int | None = None
        if listen.port is not None:
            try:
                self.sockets.append(_loopback(listen.port))
            except PermanentFault:
                self.close()
                raise
            self.port = self.sockets[-1].getsockname()[1]

    def give(self, uid: int) -> None:
        """Let a user remove the Unix socket at the end."""
        if not self._inherited:
            os.chown(self._path, uid, -1, follow_symlinks=False)

    def close(self) -> None:
        if not self._inherited:
            with contextlib.suppress(FileNotFoundError, PermissionError):
                self._path.unlink()
        for listening in self.sockets:
            listening.close()


class ControlServer:
    """Serves until a signal, or `stop`."""

    def __init__(self, service: Service, listeners: Listeners) -> None:
        self.service, self._listeners = service, listeners
        self.port = listeners.port
        self._bug: BaseException | None = None
        hosts, origins = loopback_names(self.port or 0)
        rates = RequestRates(service.requests_per_s, time.monotonic)
        service.address = None if self.port is None else f"http://127.0.0.1:{self.port}"
        submission, sessions = service.submission, service.sessions
        gate = AccessGate(service.access, hosts, origins, submission, rates, sessions)
        app = build(service, gate, self.fail)
        limits = ConnectionLimits.within(descriptors())
        service.streams.most = limits.streams
        gatekeeper = Gatekeeper(limits, service.job_of, gate.is_admin, gate.is_bound)
        self._server = QuietServer(
            server_config(app, partial(BoundedConnection, gatekeeper=gatekeeper))
        )
        self._background = Background(service, self.fail)

    def run(self, *, signals: bool = True) -> None:
        """Serve until stopped. A broken invariant is raised at the end."""
        try:
            asyncio.run(self._serve(signals=signals))
        finally:
            self._listeners.close()
        if self._bug is not None:
            raise self._bug

    def fail(self, error: BaseException) -> None:
        """From any thread: stop, and raise this at the end."""
        self._bug = self._bug or error
        self.stop()

    def stop(self) -> None:
        """From any thread: stop accepting requests, end the open ones."""
        self._server.should_exit = True
        self.service.close()

    async def _serve(self, *, signals: bool) -> None:
        loop = asyncio.get_running_loop()
        self.service.attach(loop)
        if signals:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self.stop)
        self._background.start()
        try:
            await self._server.serve(sockets=self._listeners.sockets)
        finally:
            await loop.run_in_executor(None, self._background.stop)


def _from_systemd(path: Path) -> socket.socket | None:
    """The socket that systemd opened for us, by sd_listen_fds(3); it stays open when we end, so
    that no command is refused meanwhile. Its mode and group are the socket unit's."""
    count, pid = (os.environ.pop(name, "") for name in ("LISTEN_FDS", "LISTEN_PID"))
    if pid != str(os.getpid()) or not count.isdigit():
        return None
    for descriptor in range(_FIRST_FD, _FIRST_FD + int(count)):
        os.set_inheritable(descriptor, False)
        given = socket.socket(fileno=descriptor)
        if given.family == socket.AF_UNIX and given.getsockname() == str(path):
            return given
        given.detach()
    raise PermanentFault(f"systemd passed sockets, and none of them is {path}")


def _unix(listen: Listen) -> socket.socket:
    """Replaces the socket of a dead server; that of a live one is an error."""
    path = str(listen.socket)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if listen.socket.exists():
            if not listen.socket.is_socket():
                raise PermanentFault(f"{path} exists and is not a socket")
            with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
                if probe.connect_ex(path) == 0:
                    raise PermanentFault(f"a server is already running on {path}")
            listen.socket.unlink()
        listening.bind(path)
        # Before it listens: until then no client can connect, whatever the mode.
        if listen.group is not None:
            os.chown(path, -1, listen.group)
        os.chmod(path, listen.mode)
        listening.listen(128)
    except OSError as error:
        listening.close()
        # A path that is too long is Python's own error, without an errno.
        why = error.strerror or f"{error} (choose a shorter one with --socket)"
        raise PermanentFault(f"cannot listen on {path}: {why}") from error
    return listening


def _loopback(port: int) -> socket.socket:
    # Named as TCP, because asyncio turns off Nagle's wait only then: 44 ms a request otherwise.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise PermanentFault(
            f"cannot listen on 127.0.0.1:{port}: {error.strerror} (choose another with --port)"
        ) from error
    return listening
