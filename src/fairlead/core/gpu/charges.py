"""What one lease costs: its settlement by UTC day, and its hold cut at period ends."""

from collections.abc import Iterable
from dataclasses import dataclass

from fairlead.core.gpu.model import Envelope, Lease
from fairlead.core.gpu.usage import calendar

DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Part:
    """What a closed lease used in one UTC day, and how much of that was overdraft."""

    day: int
    used_ms: int
    overdraft_ms: int


@dataclass(frozen=True, slots=True)
class Charge:
    """The settlement of a lease, once: used is posted, void is promised no longer."""

    used_ms: int
    overdraft_ms: int
    void_ms: int
    parts: tuple[Part, ...]


def settle(
    lease: Lease, end_ms: int, spells: Iterable[tuple[int, int]], *, funded: bool = True
) -> Charge:
    """A lease's whole life as a charge, by UTC day; void only what was still promised."""
    used, over = _by_day(lease.start_ms, end_ms), dict[int, int]()
    for from_ms, to_ms in spells:
        for day, amount in _by_day(from_ms, min(to_ms, end_ms)).items():
            over[day] = over.get(day, 0) + amount
    parts = tuple(
        Part(day, lease.gpus * amount, lease.gpus * over.get(day, 0))
        for day, amount in sorted(used.items())
    )
    void = 0
    if funded and lease.expected_end_ms is not None:
        void = lease.gpus * max(0, lease.expected_end_ms - end_ms)
    overdraft = sum(part.overdraft_ms for part in parts)
    return Charge(lease.gpus * (end_ms - lease.start_ms), overdraft, void, parts)


def _by_day(start_ms: int, end_ms: int) -> dict[int, int]:
    """Milliseconds in each UTC day (days since 1970) of a stretch of time."""
    found = {}
    while start_ms < end_ms:
        day = start_ms // DAY_MS
        stop_ms = min(end_ms, (day + 1) * DAY_MS)
        found[day] = stop_ms - start_ms
        start_ms = stop_ms
    return found


def split_hold(lease: Lease, envelope: Envelope) -> list[tuple[int, int]]:
    """A lease's hold cut at period ends: (start, GPU-milliseconds) of each part."""
    parts: list[tuple[int, int]] = []
    start_ms, end_ms = lease.start_ms, lease.expected_end_ms
    while end_ms is not None and start_ms < end_ms:
        stop_ms = end_ms
        if envelope.recurrence is not None:
            stop_ms = min(end_ms, calendar(envelope.recurrence, start_ms).end_ms)
        parts.append((start_ms, lease.gpus * (stop_ms - start_ms)))
        start_ms = stop_ms
    return parts
