"""What the two proxies share: names, addresses, restarts, and the latencies in their logs."""

import contextlib
import functools
import os
import re
import select
import shutil
import socket
import subprocess
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import ParamSpec, TypeVar

from fairlead.core.traffic.limits import LATENCY_WINDOW_MS, p95, restart_wait_ms, succeeded
from fairlead.core.traffic.sighting import BackendSeen, GroupSeen, Liveness
from fairlead.dataplane.tables import Active, group_seen
from fairlead.host.clock import monotonic_ms
from fairlead.host.files import replace
from fairlead.ports.dataplane import RouteGroup
from fairlead.ports.faults import Fault, PermanentFault, TemporaryFault

Address = tuple[str, int]
"""A virtual address and its port."""
SIDES, HASHED = ("a", "b"), "f"
"""Of a group: two copies, of which one serves and the next table is laid out on the other, and the
one that hashes flows when the agent is dead."""
REFUSED_STATUS = {"soft": 429, "hard": 503}
CONNECT_TIMEOUT_MS = 5_000
"""Linux sends a lost SYN again after 1 s and 3 s: two losses are no failure."""
IDLE_TIMEOUT_MS = 60_000
"""What most proxies and load balancers allow a silent connection."""
_SAMPLES_MAX = 4_096  # per backend: enough for 800 successes per second, bounded for more
_UNSAFE = re.compile(r"[^A-Za-z0-9.-]")
_ESCAPE = re.compile(r"_([0-9a-f]{2})")
_P = ParamSpec("_P")
_T = TypeVar("_T")


def escape(name: str) -> str:
    """Letters, digits, dots and dashes stay; every other byte becomes `_` and two hex digits.

    So `_` is always followed by two hex digits, and what is appended (`_a`, `_soft`) cannot make
    one group's name into another's.
    """
    return _UNSAFE.sub(lambda match: "".join(f"_{byte:02x}" for byte in match[0].encode()), name)


def unescape(escaped: str) -> str:
    raw = _ESCAPE.sub(lambda match: chr(int(match[1], 16)), escaped)
    return raw.encode("latin-1").decode()


def address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


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
                raise PermanentFault(
                    f"groups[{index}].vip: {group.vip} port {group.port}: {error.strerror}"
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


def drafts(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.draft-*"))


def remove_files(folder: Path, ours: Sequence[Path]) -> None:
    """Take our files away, and the folder unless it has files of others."""
    for path in ours:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


def wait_for_end(descriptor: int, timeout_s: float, name: str) -> None:
    try:
        ended = select.poll()
        ended.register(descriptor, select.POLLIN)
        if not ended.poll(timeout_s * 1000):
            raise TemporaryFault(f"{name} does not stop")
    finally:
        os.close(descriptor)


class Restarts:
    """Starts a proxy that died again, but not in every tick."""

    def __init__(self) -> None:
        self._failed_ms: int | None = None
        self._problem = ""

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """Refuse for a while after an attempt that failed."""
        since_ms = None if self._failed_ms is None else monotonic_ms() - self._failed_ms
        wait_ms = restart_wait_ms(since_ms)
        if wait_ms:
            raise TemporaryFault(self._problem, retry_after_ms=wait_ms)
        try:
            yield
        except Fault as fault:
            self._failed_ms = monotonic_ms()
            self._problem = f"the proxy died; restart failed: {fault}"
            raise


class RequestLog:
    """What a proxy's log shows of single requests: how long successes took, failures in a row.

    A backend's key is its group and its name, as the dataplane writes them.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._windows: dict[tuple[str, str], deque[tuple[int, float]]] = {}
        self._failures: dict[tuple[str, str], int] = {}

    def feed(
        self, data: bytes, now_ms: int, *, whole: str, unreached: Callable[[str], bool]
    ) -> None:
        """Read the lines that are complete with this data: the group's copy, backend, status, how
        it ended and how long it took. `whole` is the end of an unbroken reply."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            fields = line.decode(errors="replace").split()
            if len(fields) != 5:
                continue
            copy, backend, status, ended, took_ms = fields
            group, _, side = copy.rpartition("_")
            if side in (*SIDES, HASHED):  # else a refusal of our own
                ok = ended == whole and status.isdigit() and succeeded(int(status))
                latency_ms = float(took_ms) if ok else None
                self.add(group, backend, now_ms, latency_ms, connected=not unreached(ended))

    def restart(self) -> None:
        """The rest of the last line will not come."""
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

    def p95(self, group: str, backend: str, now_ms: int) -> float | None:
        window = self._windows.get((group, backend), deque())
        while window and now_ms - window[0][0] >= LATENCY_WINDOW_MS:
            window.popleft()
        return p95([latency_ms for _, latency_ms in window])

    def failures(self, group: str, backend: str) -> int:
        return self._failures.get((group, backend), 0)


@dataclass(slots=True)
class BackendCount:
    """One backend of a group, over all copies of the group."""

    admitted: int = 0
    connect_failures: int = 0
    successes: int = 0
    errors: int = 0
    open: int = 0
    queue: int | None = 0


@dataclass(slots=True)
class GroupCount:
    """One group; backends by their name in the proxy. `admitted` is not the sum of theirs: they
    leave, what they were sent stays."""

    admitted: int = 0
    refused_soft: int = 0
    refused_hard: int = 0
    backends: dict[str, BackendCount] = field(default_factory=dict)

    def seen(
        self,
        active: Active,
        liveness: Liveness,
        log: RequestLog,
        now_ms: int,
        *,
        group: str,
        names: Mapping[str, str],
    ) -> GroupSeen:
        """As the port has it; `group` and `names` (by id) are the dataplane's in the log."""
        backends = {
            id: BackendSeen(
                **asdict(self.backends.get(name, BackendCount())),
                consecutive_failures=log.failures(group, name),
                p95_ms=log.p95(group, name, now_ms),
            )
            for id, name in names.items()
        }
        totals = (self.admitted, self.refused_soft, self.refused_hard)
        return group_seen(active, liveness, totals, backends)
