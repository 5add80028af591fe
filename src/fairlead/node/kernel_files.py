"""Strict parsing of the kernel's cgroup and pressure files. Called by the sensor.

A file that is truncated, empty, huge or not what the kernel writes gives None (signal missing),
never a zero and never an exception: rubbish must not look like an idle container.
"""

from pathlib import Path
from typing import NamedTuple

FILE_BYTES_MAX = 4096
_COUNTER_MAX = 2**63 - 1
_US_PER_NS = 1000
_PRESSURE_FIELDS = 5  # some avg10= avg60= avg300= total=


class CpuStat(NamedTuple):
    """The bandwidth counters of one cgroup; `usage_us` only where cpu.stat carries it (v2)."""

    periods: int
    throttled_periods: int
    throttled_us: int
    usage_us: int | None


class Quota(NamedTuple):
    """A bandwidth limit as the kernel keeps it; `quota_us` None means unlimited.

    `burst_us` is how much of what it saved in earlier periods a cgroup may use in one.
    """

    quota_us: int | None
    period_us: int
    burst_us: int = 0

    @property
    def millicores(self) -> int | None:
        return None if self.quota_us is None else self.quota_us * 1000 // self.period_us


class StallTime(NamedTuple):
    """Stall time since boot; `full_us` is None where the kernel does not account it."""

    some_us: int
    full_us: int | None


def whole_number(text: bytes) -> int | None:
    """ASCII digits and nothing else: `int()` would take `1_000`, signs and other scripts."""
    if not text.isdigit() or len(text) > 19:
        return None
    value = int(text)
    return value if value <= _COUNTER_MAX else None


def counter(data: bytes) -> int | None:
    return whole_number(data[:-1]) if data.endswith(b"\n") else None


def cpu_stat_v1(data: bytes) -> CpuStat | None:
    """cpu.stat of a v1 hierarchy: throttled_time in nanoseconds, no usage."""
    match _table(data):
        case {b"nr_periods": periods, b"nr_throttled": throttled, b"throttled_time": throttled_ns}:
            return CpuStat(periods, throttled, throttled_ns // _US_PER_NS, None)
    return None


def cpu_stat_v2(data: bytes) -> CpuStat | None:
    """cpu.stat of the unified hierarchy: microseconds, usage included."""
    table = _table(data) or {}
    bandwidth = [table.get(key) for key in (b"nr_periods", b"nr_throttled", b"throttled_usec")]
    known = [value for value in bandwidth if value is not None]
    # None of them: no limit was ever set, and the kernel leaves them out.
    if b"usage_usec" not in table or len(known) not in (0, 3):
        return None
    periods, throttled, throttled_us = known or (0, 0, 0)
    return CpuStat(periods, throttled, throttled_us, table[b"usage_usec"])


def quota_v1(quota: bytes, period: bytes) -> Quota | None:
    """cpu.cfs_quota_us and cpu.cfs_period_us; -1 means unlimited."""
    return _quota(None if quota == b"-1\n" else counter(quota) or 0, counter(period))


def quota_v2(data: bytes) -> Quota | None:
    parts = data[:-1].split(b" ") if data.endswith(b"\n") else []
    if len(parts) != 2:
        return None
    amount = None if parts[0] == b"max" else whole_number(parts[0]) or 0
    return _quota(amount, whole_number(parts[1]))


def _quota(amount_us: int | None, period_us: int | None) -> Quota | None:
    """None: unlimited. A quota or a period of 0 is none of the kernel's."""
    return Quota(amount_us, period_us) if period_us and amount_us != 0 else None


def pressure(data: bytes) -> StallTime | None:
    """A PSI file: the `total` counters; the averages refresh too slowly to steer by."""
    totals: dict[bytes, int] = {}
    if not data.endswith(b"\n") or len(data) > FILE_BYTES_MAX:
        return None
    for line in data[:-1].split(b"\n"):
        words = line.split(b" ")
        if len(words) != _PRESSURE_FIELDS or not words[4].startswith(b"total="):
            return None
        value = whole_number(words[4].removeprefix(b"total="))
        if value is None or words[0] in totals:
            return None
        totals[words[0]] = value
    some = totals.get(b"some")
    return None if some is None else StallTime(some, totals.get(b"full"))


def read_node_pressure(path: Path = Path("/proc/pressure/cpu")) -> StallTime | None:
    """The node's CPU pressure; None where the kernel does not keep it."""
    try:
        return pressure(path.read_bytes())
    except OSError:
        return None


def _table(data: bytes) -> dict[bytes, int] | None:
    """Lines of `key number`, complete to the last newline."""
    if not data.endswith(b"\n") or len(data) > FILE_BYTES_MAX:
        return None
    table: dict[bytes, int] = {}
    for line in data[:-1].split(b"\n"):
        key, space, number = line.partition(b" ")
        value = whole_number(number)
        if not space or value is None or key in table:
            return None
        table[key] = value
    return table


# -- weights --------------------------------------------------------------------------------------


class WeightFile(NamedTuple):
    """A guarantee as the kernel keeps it: a version's file, its weight of one core, its bounds.

    A core is worth the kernel's own default weight, so that a guarantee means the same beside
    cgroups whose weight was never set. Weights only count among siblings.
    """

    name: str
    per_core: int
    least: int
    most: int

    def weight(self, millicores: int) -> int:
        """Rounded up, so that reading it back gives the same guarantee where a weight is that fine;
        v2 knows steps of 10 millicores only."""
        return min(max(-(-millicores * self.per_core // 1000), self.least), self.most)

    def millicores(self, weight: int) -> int:
        return weight * 1000 // self.per_core

    def read(self, data: bytes) -> int | None:
        """The weight in a file; None where it is none of the kernel's."""
        weight = counter(data)
        return weight if weight is not None and self.least <= weight <= self.most else None


WEIGHTS = {
    1: WeightFile("cpu.shares", 1024, 2, 262_144),
    2: WeightFile("cpu.weight", 100, 1, 10_000),
}
