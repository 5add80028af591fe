"""What the two proxies share: names, addresses, processes, and the latencies in their logs."""

import contextlib
import functools
import os
import re
import select
import shutil
import signal
import socket
import subprocess
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec, Protocol, TypeVar

import msgspec

from fairlead.core.traffic.limits import LATENCY_WINDOW_MS, p95, restart_wait_ms, succeeded
from fairlead.core.traffic.sighting import BackendSeen, GroupSeen, Liveness
from fairlead.dataplane import tables
from fairlead.dataplane.tables import Active
from fairlead.host.clock import monotonic_ms
from fairlead.host.files import replace
from fairlead.host.http import HttpEndpoint
from fairlead.ports.dataplane import Backend, GroupRefused, Proto, RouteGroup
from fairlead.ports.faults import Fault, PermanentFault, TemporaryFault
from fairlead.schema.convert import decode_json

Place = Path | str
"""Of a proxy's own socket: its path, or host:port."""
Address = tuple[str, int]  # a virtual address and its port
SIDES, HASHED = ("a", "b"), "f"
"""Of a group: two copies, of which one serves and the next table is laid out on the other, and the
one that hashes flows when the agent is dead."""
COPIES = (*SIDES, HASHED)
REFUSED_STATUS = {"soft": 429, "hard": 503}
CONNECT_TIMEOUT_MS = 5_000
"""Linux sends a lost SYN again after 1 s and 3 s: two losses are no failure."""
IDLE_TIMEOUT_MS = 60_000  # what most proxies and load balancers allow a silent connection
_STOP_S = 20.0
_SAMPLES_MAX = 4_096  # per backend: enough for 800 successes per second, bounded for more
_UNSAFE = re.compile(r"[^A-Za-z0-9.-]")
_P = ParamSpec("_P")
_T = TypeVar("_T")


def escape(name: str) -> str:
    """Letters, digits, dots and dashes stay; every other byte becomes `_` and two hex digits: what
    is appended (`_a`, `_soft`) cannot make one group's name into another's."""
    return _UNSAFE.sub(lambda match: "".join(f"_{byte:02x}" for byte in match[0].encode()), name)


def address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def endpoint_of(place: Place) -> HttpEndpoint:
    """Where a proxy answers."""
    if str(place).startswith("/"):
        return HttpEndpoint("proxy", unix=str(place))
    host, _, port = str(place).rpartition(":")
    return HttpEndpoint(host.strip("[]"), int(port))


def other_side(side: str) -> str:
    return SIDES[side == SIDES[0]]


def check_free(groups: Sequence[RouteGroup], ours: Collection[Address]) -> None:
    """Refuse groups whose address this machine lacks or another process has; `ours` are our own."""
    for index, group in enumerate(groups):
        if (group.vip, group.port) in ours:
            continue
        family = socket.AF_INET6 if ":" in group.vip else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((group.vip, group.port))
                probe.listen()  # a listener elsewhere is found only now
            except OSError as error:
                raise GroupRefused(
                    group.name,
                    f"groups[{index}].vip: {group.vip} port {group.port}: {error.strerror}",
                ) from error


def as_fault(method: Callable[_P, _T]) -> Callable[_P, _T]:
    """Errors of the machine (a full disk, no memory for a process) as faults that may pass."""

    @functools.wraps(method)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return method(*args, **kwargs)
        except (OSError, subprocess.SubprocessError) as error:
            raise TemporaryFault(str(error)) from error

    return call


def replace_text(path: Path, text: str) -> None:
    """Put a new version in place, whole. It survives a kill; after a power cut nothing runs that
    would need it."""
    replace(path, text.encode(), durable=False)


def save(path: Path, value: object) -> None:
    """Keep a value for the next agent, like `replace_text`."""
    replace_text(path, msgspec.json.encode(value).decode())


def load(path: Path, kind: type[_T]) -> _T | None:
    """What was saved; None when it is lost or damaged, as a power cut may leave it."""
    try:
        return decode_json(path.read_bytes(), kind)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def kept_path(folder: Path, group: str) -> Path:
    """Where the table of a group that is in force is kept."""
    return folder / f"active-{escape(group)}.json"


def kept(folder: Path, group: str) -> Active | None:
    """The table that an agent before this one left in force."""
    return load(kept_path(folder, group), Active)


def gist(log: Path, *words: str) -> str:
    """What a proxy's own log says of a failure: the first lines with one of the words."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    found = [line for line in lines if any(word in line for word in words)]
    return " | ".join(found[:3]) or "no reason given"


def stop_process(pid: int | None, name: str) -> None:
    """Ask a process to end, and wait until it has; there may be none."""
    if pid is None:
        return
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGTERM)
            ended = select.poll()
            ended.register(descriptor, select.POLLIN)
            if not ended.poll(_STOP_S * 1000):
                raise TemporaryFault(f"{name} does not stop")
        finally:
            os.close(descriptor)


class RequestLog:
    """What a proxy's log shows of single requests: how long successes took, failures in a row. A
    backend's key is its group and its name, as the dataplane writes them."""

    def __init__(
        self,
        whole: str = "-",
        unreached: Callable[[str], bool] = lambda _: False,
        *,
        sided: bool = True,
    ) -> None:
        """`whole` is the proxy's mark of an unbroken reply, `unreached` tells its mark of a
        connection that failed or was refused; not `sided`: groups have no copies."""
        self._whole, self._unreached, self._sided = whole, unreached, sided
        self._rest = b""
        self._windows: dict[tuple[str, str], deque[tuple[int, float]]] = {}
        self._failures: dict[tuple[str, str], int] = {}
        self.heard: dict[str, bool] = {}
        """Groups that were fed a line since this was last emptied; whether all went well."""

    def catch_up(self, now_ms: int) -> None:
        """Read what was logged since the last time."""

    def feed(self, data: bytes, now_ms: int) -> None:
        """Read the lines that are complete with this data: the group's copy, backend, status, how
        it ended, how long it took, and what only tells it from others."""
        whole, _, self._rest = (self._rest + data).rpartition(b"\n")
        for line in whole.decode(errors="replace").split("\n"):
            fields = line.split()
            if len(fields) not in (5, 6):
                continue
            copy, backend, status, ended, took_ms = fields[:5]
            group, _, side = copy.rpartition("_") if self._sided else (copy, "", COPIES[0])
            ok = ended == self._whole and status.isdigit() and succeeded(int(status))
            self.heard[group] = ok and side in COPIES and self.heard.get(group, True)
            if side in COPIES:  # else a refusal of our own
                latency_ms = float(took_ms) if ok else None
                self.add(group, backend, now_ms, latency_ms, connected=not self._unreached(ended))

    def close(self) -> None:
        """Follow it no more: the rest of the last line will not come."""
        self._rest = b""

    def add(
        self, group: str, backend: str, now_ms: int, latency_ms: float | None, *, connected: bool
    ) -> None:
        """One request; without a latency it was no success. Only successes are kept: a backend that
        fails fast must not look fast."""
        key = (group, backend)
        self._failures[key] = 0 if connected else self._failures.get(key, 0) + 1
        if latency_ms is not None:
            window = self._windows.setdefault(key, deque(maxlen=_SAMPLES_MAX))
            window.append((now_ms, latency_ms))

    def keep(self, members: Collection[tuple[str, str]]) -> None:
        """Forget all other backends: the next one of a name begins afresh."""
        self._windows = {key: seen for key, seen in self._windows.items() if key in members}
        self._failures = {key: seen for key, seen in self._failures.items() if key in members}

    def signals(self, group: str, now_ms: int, backend: str) -> tuple[int, float | None]:
        """Failed connects in a row, and the p95 of successes."""
        key = (group, backend)
        failures, window = self._failures.get(key, 0), self._windows.get(key)
        if not window:
            return failures, None
        while window and now_ms - window[0][0] >= LATENCY_WINDOW_MS:
            window.popleft()
        return failures, p95([latency_ms for _, latency_ms in window])


@dataclass(slots=True)
class BackendCount:
    """One backend of a group, over all copies of the group."""

    admitted: int = 0
    connect_failures: int = 0
    successes: int = 0
    errors: int = 0
    open: int = 0
    queue: int | None = 0
    inside: tuple[int, ...] = ()
    """Requests in its server of each side, where sides have servers of their own."""


@dataclass(slots=True)
class GroupCount:
    """One group; backends by their name in the proxy. `admitted` is not the sum of theirs: they
    leave, what they were sent stays."""

    admitted: int = 0
    refused_soft: int = 0
    refused_hard: int = 0
    retries: int = 0
    backends: dict[str, BackendCount] = field(default_factory=dict)

    def seen(
        self,
        active: Active,
        liveness: Liveness,
        signals: Callable[[str], tuple[int, float | None]],
        names: Mapping[str, str],
    ) -> GroupSeen:
        """As the port has it; `names` are the backends' in the dataplane, by id."""
        backends = {}
        for id, name in names.items():
            failures, p95_ms = signals(name)
            counts = self.backends.get(name) or BackendCount()
            backends[id] = BackendSeen(
                admitted=counts.admitted,
                connect_failures=counts.connect_failures,
                consecutive_failures=failures,
                successes=counts.successes,
                errors=counts.errors,
                open=counts.open,
                queue=counts.queue,
                p95_ms=p95_ms,
                inside=counts.inside,
            )
        totals = (self.admitted, self.refused_soft, self.refused_hard)
        return tables.group_seen(active, liveness, totals, backends, retries=self.retries)


ProxyView = tuple[Mapping[str, GroupCount], Mapping[str, Active], Liveness]
"""Counters by escaped name, tables by name, and what the proxy thinks of the agent."""


class ProxyProcess(Protocol):
    """The proxy of one folder; it outlives its agent and is found again."""

    def alive(self) -> bool: ...
    def stop(self) -> None: ...


class ProxyFiles:
    """Where everything of a dataplane lives: every attribute is a path of ours."""

    def __init__(self, folder: Path, bytes_max: int) -> None:
        if len(str(folder).encode()) > bytes_max:
            raise PermanentFault(f"folder: too long for a socket's path: {folder}")
        self.folder = folder

    def more(self) -> list[Path]:
        """Files and folders that are no attributes."""
        return []

    def remove(self) -> None:
        """Take our files away, and the folder unless it has files of others."""
        named = [path for name, path in vars(self).items() if name != "folder"]
        for path in (*named, *self.more(), *self.folder.glob("*.draft-*")):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()


class ProxyDataplane(ABC):
    """What the two proxies do alike; each says how its own one is configured, asked and told."""

    name: str

    def __init__(self, files: ProxyFiles, process: ProxyProcess, log: RequestLog) -> None:
        self._files, self._process, self._log = files, process, log
        self._groups: dict[str, RouteGroup] = {}
        self._failed: tuple[int, str] | None = None  # when a restart failed, and why

    @abstractmethod
    def _install(self, groups: Sequence[RouteGroup]) -> None:
        """Have the proxy serve these groups and no others; those that stay keep their table."""

    @abstractmethod
    def _beat(self) -> None:
        """Say that the agent is alive; TemporaryFault where the proxy is not."""

    @abstractmethod
    def _look(self) -> ProxyView:
        """What the proxy shows now."""

    @abstractmethod
    def _host(self, backend: Backend) -> str:
        """A backend's name in the proxy."""

    @as_fault
    def configure(self, groups: Sequence[RouteGroup]) -> None:
        tables.check_groups(groups)
        for index, group in enumerate(groups):
            if group.proto is not Proto.TCP:
                problem = f"{group.proto} is not supported by {self.name}"
                raise GroupRefused(group.name, f"groups[{index}].proto: {problem}")
        self._install(groups)
        self._groups = {group.name: group for group in groups}
        self._log.keep({(escape(g.name), self._host(b)) for g in groups for b in g.backends})
        self._log.catch_up(monotonic_ms())
        self._beat()

    @as_fault
    def heartbeat(self) -> None:
        """A proxy that died is started again, but not in every tick."""
        try:
            self._beat()
            return
        except TemporaryFault:
            if not self._groups or self._process.alive():
                raise
        if self._failed is not None:
            failed_ms, problem = self._failed
            if wait_ms := restart_wait_ms(monotonic_ms() - failed_ms):
                raise TemporaryFault(problem, retry_after_ms=wait_ms)
        try:
            self.configure(list(self._groups.values()))
        except Fault as fault:
            self._failed = monotonic_ms(), f"the proxy died; restart failed: {fault}"
            raise

    @as_fault
    def read(self) -> Mapping[str, GroupSeen]:
        counted, active, alive = self._look()
        self._log.catch_up(monotonic_ms())
        return self._shown(self._groups, counted, active, alive)

    def _shown(
        self,
        groups: Iterable[str],
        counted: Mapping[str, GroupCount],
        active: Mapping[str, Active],
        alive: Liveness,
    ) -> dict[str, GroupSeen]:
        now_ms, seen = monotonic_ms(), {}
        for name in groups:
            key, names = escape(name), {b.id: self._host(b) for b in self._groups[name].backends}
            signals = functools.partial(self._log.signals, key, now_ms)
            seen[name] = counted[key].seen(active[name], alive, signals, names)
        return seen

    def detach(self) -> None:
        self._log.close()

    @as_fault
    def remove(self) -> None:
        self._log.close()
        self._process.stop()
        self._groups = {}
        self._files.remove()
