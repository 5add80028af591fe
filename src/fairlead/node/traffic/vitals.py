"""This machine under the traffic governor: how long its tasks stand still, and what can run out.

The kernel's averages of pressure move only every 2 s, so the counters of stalled microseconds are
read, and differenced by the engine. What cannot be read is missing.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from fairlead.core.traffic import Resource, StallTotals
from fairlead.node.kernel_files import pressure
from fairlead.ports.traffic import CpuTimes, NodeReading

_KINDS = (
    ("cpu", "cpu", ("some",)),
    ("memory", "mem", ("some", "full")),
    ("io", "io", ("some", "full")),
)
_CPU_FIELDS, _IOWAIT = 8, 4
"""user, nice, system, idle, iowait, irq, softirq, steal."""


class Vitals:
    """Reads /proc, and the file systems that are asked for."""

    def __init__(
        self, name: str, *, disks: Sequence[Path] = (), proc: Path = Path("/proc")
    ) -> None:
        self.name = name
        self._disks, self._proc = tuple(disks), proc

    def read(self, now_ms: int) -> list[NodeReading]:
        """This machine, now."""
        return [
            NodeReading(
                self.name, self._totals(now_ms), tuple(self._resources()), self._cpu(now_ms)
            )
        ]

    def _cpu(self, now_ms: int) -> CpuTimes | None:
        """The first line of /proc/stat; guests' time is in that of users already."""
        label, *words = (self._bytes("stat") or b"\n").splitlines()[0].split() or [b""]
        numbers = words[:_CPU_FIELDS]
        if label != b"cpu" or len(numbers) < _CPU_FIELDS or not all(n.isdigit() for n in numbers):
            return None
        ticks = [int(number) for number in numbers]
        return CpuTimes(now_ms, sum(ticks), ticks[_IOWAIT])

    def _totals(self, now_ms: int) -> StallTotals | None:
        """`cpu full` is left out: for a whole machine the kernel says 0."""
        stalled: dict[str, int] = {}
        for file, short, kinds in _KINDS:
            data = self._bytes(f"pressure/{file}")
            found = None if data is None else pressure(data)
            if found is None:
                continue
            totals = {"some": found.some_us, "full": found.full_us}
            for kind in kinds:
                total = totals[kind]
                if total is not None:
                    stalled[f"{short}_{kind}"] = total
        return StallTotals(now_ms * 1000, stalled) if stalled else None

    def _resources(self) -> Iterator[Resource]:
        yield from self._memory()
        yield from self._descriptors()
        count = self._numbers("sys/net/netfilter/nf_conntrack_count")
        most = self._numbers("sys/net/netfilter/nf_conntrack_max")
        if count and most:
            yield Resource("conntrack", most[0], count[0])
        yield from self._tasks()
        for disk in self._disks:
            yield from _disk(disk)

    def _memory(self) -> Iterator[Resource]:
        table: dict[str, int] = {}
        for line in (self._bytes("meminfo") or b"").decode(errors="replace").splitlines():
            name, _, rest = line.partition(":")
            words = rest.split()
            if words and words[0].isdigit():
                table[name] = int(words[0]) * 1024
        total, free = table.get("MemTotal"), table.get("MemAvailable")
        if total and free is not None:
            yield Resource("memory", total, max(0, total - free))

    def _descriptors(self) -> Iterator[Resource]:
        numbers = self._numbers("sys/fs/file-nr")
        if len(numbers) == 3:
            yield Resource("fds", numbers[2], numbers[0])

    def _tasks(self) -> Iterator[Resource]:
        words = (self._bytes("loadavg") or b"").split()
        most = self._numbers("sys/kernel/pid_max")
        if len(words) > 3 and most:
            _, _, tasks = words[3].partition(b"/")
            if tasks.isdigit():
                yield Resource("pids", most[0], int(tasks))

    def _numbers(self, name: str) -> list[int]:
        words = (self._bytes(name) or b"").split()
        return [int(word) for word in words] if all(word.isdigit() for word in words) else []

    def _bytes(self, name: str) -> bytes | None:
        try:
            return (self._proc / name).read_bytes()
        except OSError:
            return None


def _disk(path: Path) -> Iterator[Resource]:
    try:
        found = os.statvfs(path)
    except OSError:
        return
    size = found.f_blocks * found.f_frsize
    yield Resource(f"disk {path}", size, max(0, size - found.f_bavail * found.f_frsize))
