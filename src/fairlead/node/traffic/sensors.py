"""What the traffic agent sees: this machine, others by their node exporters, and the rest."""

import contextlib
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from fairlead.core.traffic import Resource, StallTotals
from fairlead.core.traffic.sighting import CpuTimes, NodeReading
from fairlead.host.http import NoReply, target_of
from fairlead.host.http_async import get
from fairlead.node.kernel_files import pressure
from fairlead.node.traffic.poller import Poller
from fairlead.node.traffic.probes import DnsService, DnsServices, NetworkProber
from fairlead.node.traffic.scrape import BadExposition, MetricSample, Scraper, gauge, samples
from fairlead.ports.dataplane import Backend
from fairlead.schema.dataplane import HTTP_PROXIES, DataplaneKind
from fairlead.schema.samples import Selector
from fairlead.schema.traffic_agent import (
    ProbeKind,
    RemoteNodeDocument,
    TrafficDocument,
    service_place,
)

_PRESSURE_FILES = {
    "pressure/cpu": ("cpu_some",),
    "pressure/memory": ("mem_some", "mem_full"),
    "pressure/io": ("io_some", "io_full"),
}
_CPU_LINE = re.compile(rb"cpu +(\d+(?: \d+){7})\b")
"""user, nice, system, idle, iowait, irq, softirq, steal."""
_IOWAIT = 4
_MEMORY_LINE = re.compile(rb"^(Mem\w+): +(\d+)\b", re.MULTILINE)
_TASKS = re.compile(rb"\S+ \S+ \S+ \d+/(\d+)\b")
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
_FILE_BYTES_MAX = 1 << 16  # of /proc/stat only the first line counts, and it is long


class LocalMachine:
    """This machine: /proc, and the file systems that are named.

    The kernel's averages of pressure move only every 2 s, so the counters of stalled microseconds
    are read, and differenced by the governor. What cannot be read is missing.
    """

    def __init__(
        self, name: str, *, disks: Sequence[Path] = (), proc: Path = Path("/proc")
    ) -> None:
        self.name = name
        self._disks, self._proc = tuple(disks), proc
        self._open: dict[str, int] = {}

    def read(self, now_ms: int) -> list[NodeReading]:
        # The first line of /proc/stat; guests' time is in that of users already.
        line = _CPU_LINE.match(self._bytes("stat"))
        ticks = [int(number) for number in line[1].split()] if line else []
        cpu = CpuTimes(now_ms, sum(ticks), ticks[_IOWAIT]) if ticks else None
        return [NodeReading(self.name, self._totals(now_ms), tuple(self._resources()), cpu)]

    def _totals(self, now_ms: int) -> StallTotals | None:
        """`cpu full` is left out: for a whole machine it is always 0."""
        stalled: dict[str, int] = {}
        for file, names in _PRESSURE_FILES.items():
            # As many names as the kinds that count: some, then full.
            for name, total in zip(names, pressure(self._bytes(file)) or (), strict=False):
                if total is not None:
                    stalled[name] = total
        return StallTotals(now_ms * 1000, stalled) if stalled else None

    def _resources(self) -> Iterator[Resource]:
        memory = dict(_MEMORY_LINE.findall(self._bytes("meminfo")))
        if b"MemTotal" in memory and b"MemAvailable" in memory:
            total, free = (int(memory[name]) * 1024 for name in (b"MemTotal", b"MemAvailable"))
            yield Resource("memory", total, max(0, total - free))
        descriptors = self._numbers("sys/fs/file-nr")
        if len(descriptors) == 3:
            yield Resource("fds", descriptors[2], descriptors[0])
        count = self._numbers("sys/net/netfilter/nf_conntrack_count")
        most = self._numbers("sys/net/netfilter/nf_conntrack_max")
        if count and most:
            yield Resource("conntrack", most[0], count[0])
        tasks, tasks_max = _TASKS.match(self._bytes("loadavg")), self._numbers("sys/kernel/pid_max")
        if tasks and tasks_max:
            yield Resource("pids", tasks_max[0], int(tasks[1]))
        for disk in self._disks:
            with contextlib.suppress(OSError):
                space = os.statvfs(disk)
                size, free = (n * space.f_frsize for n in (space.f_blocks, space.f_bavail))
                yield Resource(f"disk {disk}", size, max(0, size - free))

    def _numbers(self, name: str) -> list[int]:
        fields = self._bytes(name).split()
        return [int(field) for field in fields] if all(f.isdigit() for f in fields) else []

    def _bytes(self, name: str) -> bytes:
        """A file of the kernel, which writes it anew for each reader that begins at its start."""
        try:
            descriptor = self._open.get(name)
            if descriptor is None:
                descriptor = os.open(self._proc / name, os.O_RDONLY | os.O_CLOEXEC)
                self._open[name] = descriptor
            return os.pread(descriptor, _FILE_BYTES_MAX, 0)
        except OSError:
            self._close(name)
            return b""

    def _close(self, name: str) -> None:
        if (descriptor := self._open.pop(name, None)) is not None:
            os.close(descriptor)

    def close(self) -> None:
        for name in list(self._open):
            self._close(name)


class Machines:
    """The `NodeSensor` port: this machine, if it is watched, and others by their exporters."""

    def __init__(
        self,
        local: LocalMachine | None,
        remote: Sequence[RemoteNodeDocument],
        poller: Poller,
        clock_ms: Callable[[], int],
    ) -> None:
        self._local, self._clock_ms = local, clock_ms
        self._readings: dict[str, NodeReading] = {}
        for node in remote:
            poller.repeat(node.every_ms, partial(self._ask, node), phase=node.name)

    def read(self, now_ms: int) -> Sequence[NodeReading]:
        local = [] if self._local is None else self._local.read(now_ms)
        return [*local, *self._readings.copy().values()]

    def close(self) -> None:
        if self._local is not None:
            self._local.close()

    async def _ask(self, node: RemoteNodeDocument) -> None:
        url = urlsplit(node.url)
        try:
            status, body = await get(
                url.hostname or "", url.port or 80, target_of(url), timeout_ms=node.timeout_ms
            )
            read = samples(body, _NAMES) if status == 200 else []
        except (NoReply, BadExposition):
            return
        self._readings[node.name] = as_reading(node.name, self._clock_ms(), read)


def as_reading(name: str, now_ms: int, read: Sequence[MetricSample]) -> NodeReading:
    stalled = {
        kind: round(total * _US_PER_S)
        for kind, metric in _STALLS.items()
        if (total := gauge(read, Selector(metric))) is not None
    }
    totals = StallTotals(now_ms * 1000, stalled) if stalled else None
    total, iowait = (gauge(read, Selector(_CPU, labels)) for labels in ((), (("mode", "iowait"),)))
    cpu = None if total is None or iowait is None else CpuTimes(now_ms, total, iowait)
    return NodeReading(name, totals, tuple(_resources(read)), cpu, now_ms)


def _resources(read: Sequence[MetricSample]) -> Iterator[Resource]:
    total, free = (gauge(read, Selector(name)) for name in _MEMORY)
    if total is not None and free is not None:
        yield Resource("memory", total, max(0.0, total - free))
    for name, (limit_name, used_name) in _PAIRS.items():
        limit, used = (gauge(read, Selector(metric)) for metric in (limit_name, used_name))
        if limit is not None and used is not None:
            yield Resource(name, limit, used)


class NetworkSensors:
    """Everything that follows the groups when they change, behind one thread.

    `alarm` is called when something cannot wait for the next tick.
    """

    def __init__(self, document: TrafficDocument, name: str, clock_ms: Callable[[], int]) -> None:
        self.alarm: Callable[[], None] = lambda: None
        self._document = document
        self._poller = Poller()
        node, window_ms = document.node, document.window_ms
        local = LocalMachine(name, disks=[Path(disk) for disk in node.disks])
        self.signals = Scraper(self._poller, clock_ms, self._notify, window_ms=window_ms)
        self.prober = NetworkProber(self._poller)
        self.nodes = Machines(local if node.watch else None, document.nodes, self._poller, clock_ms)
        self._services = DnsServices(self._poller, every_ms=document.service_every_ms)
        try:
            self.follow(document)
        except BaseException:
            self.close()
            raise

    def follow(self, document: TrafficDocument) -> Callable[[], None]:
        """Go by these groups from the next `watch` on; machines stay as they were at the start.

        Returns what goes back to the groups before.
        """
        before, undo_services = self._document, self._services.follow(_services(document))
        self._document = document

        def undo() -> None:
            self._document = before
            undo_services()

        return undo

    def watch(self, members: Mapping[str, Sequence[Backend]]) -> None:
        groups = self._document.groups
        self.signals.watch(
            {
                group.name: group.scrape
                for group in groups
                if group.scrape and group.name in members
            },
            members,
        )
        # HTTP where the dataplane speaks it, a connection elsewhere, unless configured otherwise.
        speaks_http = self._document.plane.kind in HTTP_PROXIES
        default = ProbeKind.HTTP if speaks_http else ProbeKind.TCP
        self.prober.watch(
            {
                group.name: msgspec.structs.replace(group.probe, kind=group.probe.kind or default)
                for group in groups
            },
            {group.name: group.check for group in groups if group.check is not None},
            members,
        )

    def _notify(self) -> None:
        self.alarm()

    def members(self, group: str) -> Sequence[Backend] | None:
        """Backends that were looked up; None for a group whose backends are listed."""
        return self._services.members(group)

    def unseen(self, group: str) -> set[str]:
        """Backends of which the first check or scrape has no result yet."""
        return self.prober.unseen(group) | self.signals.unseen(group)

    def check(self) -> None:
        self._poller.check()

    def close(self) -> None:
        self._poller.close()
        self.nodes.close()


def _services(document: TrafficDocument) -> dict[str, DnsService]:
    """What to look up. The kernel's hooks cannot send a socket of one family to an address of the
    other, so with eBPF only addresses of the group's family are of use."""
    ebpf = document.plane.kind is DataplaneKind.EBPF
    families = {4: socket.AF_INET, 6: socket.AF_INET6}
    return {
        group.name: DnsService(
            *service_place(group.service),
            families[ip_address(group.vip).version] if ebpf else socket.AF_UNSPEC,
        )
        for group in document.groups
        if group.service is not None
    }
