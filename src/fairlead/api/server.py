"""The server: one process on a Unix socket and, unless told otherwise, on loopback."""

import asyncio
import contextlib
import os
import signal
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from fairlead.api.app import build
from fairlead.api.gate import Gate, loopback_names
from fairlead.api.service import Service
from fairlead.api.turns import Turns
from fairlead.ports.faults import PermanentFault

_CREDENTIALS = struct.Struct("3i")
STOP_S = 5


@dataclass(frozen=True, slots=True)
class Listen:
    """Where to listen. `port` None: on the Unix socket alone; 0: on any free port."""

    socket: Path
    port: int | None
    mode: int = 0o666
    """Of the socket: everybody may knock, the peer's credentials decide what for."""
    group: int | None = None
    """To whom the socket belongs besides its owner; with a mode of 0660, to nobody else."""


class _Peer(H11Protocol):
    """Tells the application who is at the other end of a Unix socket; the kernel vouches for it."""

    def connection_made(self, transport: Any) -> None:
        peer = transport.get_extra_info("socket")
        if peer is not None and peer.family == socket.AF_UNIX:
            data = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            self.app_state = {**self.app_state, "peer_uid": _CREDENTIALS.unpack(data)[1]}
        super().connection_made(transport)


class _Server(uvicorn.Server):
    """Without uvicorn's own signals, which would end the process by the signal again."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class ControlServer:
    """Serves until a signal, or `stop`."""

    def __init__(self, service: Service, listen: Listen) -> None:
        self.service, self._listen = service, listen
        self._sockets = [_unix(listen)]
        self.port: int | None = None
        if listen.port is not None:
            self._sockets.append(_loopback(listen.port))
            self.port = self._sockets[-1].getsockname()[1]
        self._bug: BaseException | None = None
        hosts, origins = loopback_names(self.port or 0)
        app = build(service, Gate(service.access, hosts, origins), self._on_bug)
        config = uvicorn.Config(
            app,
            http=_Peer,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=STOP_S,
            h11_max_incomplete_event_size=65536,
            proxy_headers=False,
            limit_concurrency=1000,
        )
        self._server = _Server(config)
        self._turns = Turns(service, self._on_bug)

    def run(self, *, signals: bool = True) -> None:
        """Serve; returns when everything is down. A broken invariant is raised at the end."""
        try:
            asyncio.run(self._serve(signals=signals))
        finally:
            with contextlib.suppress(FileNotFoundError):
                self._listen.socket.unlink()
            for each in self._sockets:
                each.close()
        if self._bug is not None:
            raise self._bug

    def stop(self) -> None:
        """From any thread: take no more requests, end the open ones."""
        self._server.should_exit = True
        self.service.bell.ring(0, close=True)

    async def _serve(self, *, signals: bool) -> None:
        loop = asyncio.get_running_loop()
        self.service.bell.attach(loop)
        if signals:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self.stop)
        self._turns.start()
        try:
            await self._server.serve(sockets=self._sockets)
        finally:
            await loop.run_in_executor(None, self._turns.stop)

    def _on_bug(self, error: BaseException) -> None:
        self._bug = self._bug or error
        self.stop()


def _unix(listen: Listen) -> socket.socket:
    """A socket in place of one that nobody answers on; a live server's is left alone."""
    path = str(listen.socket)
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if listen.socket.exists():
            if not listen.socket.is_socket():
                raise PermanentFault(f"{path} is there, and is no socket")
            with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
                if probe.connect_ex(path) == 0:
                    raise PermanentFault(f"a server is running on {path} already")
            listen.socket.unlink()
        found.bind(path)
        # Before it listens: until then nobody can connect, whatever the mode.
        if listen.group is not None:
            os.chown(path, -1, listen.group)
        os.chmod(path, listen.mode)
        found.listen(128)
    except OSError as error:
        found.close()
        # A path that is too long is Python's own error, without a number.
        why = error.strerror or f"{error} (choose a shorter one with --socket)"
        raise PermanentFault(f"cannot listen on {path}: {why}") from error
    return found


def _loopback(port: int) -> socket.socket:
    # Named as TCP, because asyncio turns off Nagle's wait only then: 44 ms a request otherwise.
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind(("127.0.0.1", port))
        found.listen(128)
    except OSError as error:
        found.close()
        raise PermanentFault(
            f"cannot listen on 127.0.0.1:{port}: {error.strerror} (choose another with --port)"
        ) from error
    return found
