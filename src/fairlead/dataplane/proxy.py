"""What the two proxies share: names, addresses, restarts, and the latencies in their logs."""

import contextlib
import functools
import os
import re
import select
import socket
import subprocess
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import ParamSpec, TypeVar

from fairlead.core.traffic.limits import LATENCY_WINDOW_MS, p95, restart_wait_ms, succeeded
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
RETRY_MS = 1_000
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
    """The name that was escaped."""
    raw = _ESCAPE.sub(lambda match: chr(int(match[1], 16)), escaped)
    return raw.encode("latin-1").decode()


def address(host: str, port: int) -> str:
    """An address as both proxies write it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def other_side(side: str) -> str:
    """The copy that does not serve."""
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
            raise TemporaryFault(str(error), retry_after_ms=RETRY_MS) from error

    return call


def replace_text(path: Path, text: str) -> None:
    """Put a new version in place, whole. It survives a kill; after a power cut nothing runs that
    would need it."""
    replace(path, text.encode(), durable=False)


def drafts(folder: Path) -> list[Path]:
    """What a killed agent left of `replace_text`."""
    return sorted(folder.glob("*.draft-*"))


def wait_for_end(descriptor: int, timeout_s: float, name: str) -> None:
    """Wait until the process behind a pidfd has ended, and close it."""
    try:
        ended = select.poll()
        ended.register(descriptor, select.POLLIN)
        if not ended.poll(timeout_s * 1000):
            raise TemporaryFault(f"{name} does not stop", retry_after_ms=RETRY_MS)
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
            self._failed_ms, self._problem = (
                monotonic_ms(),
                f"the proxy died; restart failed: {fault}",
            )
            raise


class LatencyWindow:
    """Latencies of one backend's successes over the last seconds, the oldest forgotten first.

    Only successes are put in: a backend that fails fast must not look fast.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[int, float]] = deque(maxlen=_SAMPLES_MAX)

    def add(self, now_ms: int, latency_ms: float) -> None:
        """A success that took this long."""
        self._samples.append((now_ms, latency_ms))

    def p95(self, now_ms: int) -> float | None:
        """Of the window; None without successes."""
        while self._samples and now_ms - self._samples[0][0] >= LATENCY_WINDOW_MS:
            self._samples.popleft()
        return p95([latency for _, latency in self._samples])


class RequestLog:
    """What a proxy's log shows of single requests: how long successes took, failures in a row.

    A backend's key is its escaped group and its name in the log.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._windows: dict[tuple[str, str], LatencyWindow] = {}
        self._failures: dict[tuple[str, str], int] = {}

    def lines(self, data: bytes) -> Iterator[list[str]]:
        """The fields of every line that is complete with this data."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            fields = line.decode(errors="replace").split()
            if len(fields) == 5:
                yield fields

    def restart(self) -> None:
        """The rest of the last line will not come."""
        self._rest = b""

    def add(
        self,
        copy: str,
        backend: str,
        *,
        now_ms: int,
        connected: bool,
        status: str,
        took: str | None,
    ) -> None:
        """One request; `took` None: it did not end as it should."""
        group, _, side = copy.rpartition("_")
        if side not in (*SIDES, HASHED):
            return  # a refusal of our own
        key = (group, backend)
        self._failures[key] = 0 if connected else self._failures.get(key, 0) + 1
        if connected and took is not None and status.isdigit() and succeeded(int(status)):
            self._windows.setdefault(key, LatencyWindow()).add(now_ms, float(took))

    def p95(self, group: str, backend: str, now_ms: int) -> float | None:
        """Of a backend's successes."""
        window = self._windows.get((group, backend))
        return window.p95(now_ms) if window else None

    def failures(self, group: str, backend: str) -> int:
        """Connects to a backend that failed since the last that did not."""
        return self._failures.get((group, backend), 0)
