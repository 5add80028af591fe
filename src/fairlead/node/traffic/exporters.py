"""Other machines through their node exporters: the same vitals, scraped."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from urllib.parse import urlsplit

from fairlead.core.traffic import Resource, StallTotals
from fairlead.node.traffic.exposition import BadExposition, Sample, gauge, samples
from fairlead.node.traffic.outreach import Ask, NoAnswer, Outreach, get
from fairlead.node.traffic.scrape import STALE_ROUNDS
from fairlead.node.traffic.vitals import Vitals
from fairlead.ports.traffic import CpuTimes, NodeReading
from fairlead.schema.selector import Selector

_STALLS = {
    "cpu_some": "node_pressure_cpu_waiting_seconds_total",
    "mem_some": "node_pressure_memory_waiting_seconds_total",
    "mem_full": "node_pressure_memory_stalled_seconds_total",
    "io_some": "node_pressure_io_waiting_seconds_total",
    "io_full": "node_pressure_io_stalled_seconds_total",
}
_MEMORY = ("node_memory_MemTotal_bytes", "node_memory_MemAvailable_bytes")
_PAIRS = {
    "fds": ("node_filefd_maximum", "node_filefd_allocated"),
    "conntrack": ("node_nf_conntrack_entries_limit", "node_nf_conntrack_entries"),
    "pids": ("node_processes_max_threads", "node_processes_threads"),
}
_CPU = "node_cpu_seconds_total"
_NAMES = {*_STALLS.values(), *_MEMORY, _CPU, *(name for pair in _PAIRS.values() for name in pair)}
_US_PER_S = 1_000_000


@dataclass(frozen=True, slots=True)
class RemoteNode:
    """A machine and where its exporter answers."""

    name: str
    url: str
    every_ms: int = 1_000
    timeout_ms: int = 800


class Machines:
    """The `NodeSensor` port: this machine, if it is watched, and others by their exporters."""

    def __init__(
        self,
        local: Vitals | None,
        remote: Sequence[RemoteNode],
        outreach: Outreach,
        clock_ms: Callable[[], int],
    ) -> None:
        self._local, self._clock_ms = local, clock_ms
        self._remote = {node.name: node for node in remote}
        self._lock = threading.Lock()
        self._readings: dict[str, tuple[int, NodeReading]] = {}
        self._tasks: list[Future[None]] = [
            outreach.repeat(node.every_ms, self._asking(node), phase=node.name) for node in remote
        ]

    def read(self, now_ms: int) -> Sequence[NodeReading]:
        """This machine now, the others as they last answered."""
        found = [] if self._local is None else self._local.read(now_ms)
        with self._lock:
            return found + [
                reading
                for name, (at_ms, reading) in self._readings.items()
                if now_ms - at_ms <= STALE_ROUNDS * self._remote[name].every_ms
            ]

    def _asking(self, node: RemoteNode) -> Ask:
        parts = urlsplit(node.url)
        host, port = parts.hostname or "", parts.port or 80
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")

        async def ask() -> None:
            try:
                status, body = await get(host, port, path, timeout_ms=node.timeout_ms)
                found = samples(body, _NAMES) if status == 200 else []
            except (NoAnswer, BadExposition):
                return
            now_ms = self._clock_ms()
            with self._lock:
                self._readings[node.name] = (now_ms, as_reading(node.name, now_ms, found))

        return ask


def as_reading(name: str, now_ms: int, found: Sequence[Sample]) -> NodeReading:
    """A node exporter's samples as vitals."""
    stalled = {
        kind: round(total * _US_PER_S)
        for kind, metric in _STALLS.items()
        if (total := gauge(found, Selector(metric))) is not None
    }
    totals = StallTotals(now_ms * 1000, stalled) if stalled else None
    total, iowait = (gauge(found, Selector(_CPU, labels)) for labels in ((), (("mode", "iowait"),)))
    cpu = None if total is None or iowait is None else CpuTimes(now_ms, total, iowait)
    return NodeReading(name, totals, tuple(_resources(found)), cpu)


def _resources(found: Sequence[Sample]) -> Iterator[Resource]:
    total, free = (gauge(found, Selector(name)) for name in _MEMORY)
    if total is not None and free is not None:
        yield Resource("memory", total, max(0.0, total - free))
    for name, (limit_name, used_name) in _PAIRS.items():
        limit, used = (gauge(found, Selector(each)) for each in (limit_name, used_name))
        if limit is not None and used is not None:
            yield Resource(name, limit, used)
