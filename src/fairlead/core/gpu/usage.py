"""What leases have used and still hold, per envelope: exact rectangles in GPU-milliseconds.

`tally` walks leases and is what the contract and the tests use. A control plane keeps the same
`Usage` values as running totals, so that a headroom query never walks history.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from fairlead.core.gpu.model import Budget, Envelope, Lease, Recurrence, Window

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
FOREVER = Window(-(2**62), 2**62)

DAY_MS = 86_400_000

Key = tuple[str, str]
"""(budget, envelope)."""


class Usage(NamedTuple):
    """One envelope: GPUs in use, hours used in the period, hours held; the lent part of each.

    A tuple with names: one is made for every envelope that a request could reach.
    """

    gpus: int = 0
    used_ms: int = 0
    held_ms: int = 0
    lent_gpus: int = 0
    lent_used_ms: int = 0
    lent_held_ms: int = 0

    def with_more(self, more: "Usage") -> "Usage":
        return Usage(*[mine + other for mine, other in zip(self, more, strict=True)])

    def plus(self, lease: Lease, period: Window, now_ms: int) -> "Usage":
        ended = lease.end_ms is not None and lease.end_ms <= now_ms
        open_gpus = lease.gpus if lease.start_ms <= now_ms and not ended else 0
        end_ms = now_ms if lease.end_ms is None else min(lease.end_ms, now_ms)
        inside = min(end_ms, period.end_ms) - max(lease.start_ms, period.start_ms)
        used = lease.gpus * max(0, inside)
        held = 0
        if open_gpus and lease.expected_end_ms is not None:
            held = lease.gpus * max(0, lease.expected_end_ms - now_ms)
        lent = int(lease.borrowed)
        return Usage(
            self.gpus + open_gpus,
            self.used_ms + used,
            self.held_ms + held,
            self.lent_gpus + lent * open_gpus,
            self.lent_used_ms + lent * used,
            self.lent_held_ms + lent * held,
        )


def tally(budgets: Iterable[Budget], leases: Iterable[Lease], now_ms: int) -> dict[Key, Usage]:
    periods = {
        (budget.name, envelope.name): period_at(envelope, now_ms)
        for budget in budgets
        for envelope in budget.envelopes
    }
    totals = dict.fromkeys(periods, Usage())
    for lease in leases:
        key = (lease.budget, lease.envelope)
        totals[key] = totals[key].plus(lease, periods[key], now_ms)
    return totals


def period_at(envelope: Envelope, now_ms: int) -> Window:
    """The period that hour caps count in: the calendar's, cut to the window."""
    period = FOREVER if envelope.recurrence is None else calendar(envelope.recurrence, now_ms)
    window = envelope.window
    if window is None:
        return period
    return Window(max(period.start_ms, window.start_ms), min(period.end_ms, window.end_ms))


def calendar(recurrence: Recurrence, now_ms: int) -> Window:
    """The UTC day, ISO week, month or quarter around `now`."""
    now = _EPOCH + now_ms * _MS
    day = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if recurrence is Recurrence.DAILY:
        return _window(day, day + timedelta(days=1))
    if recurrence is Recurrence.WEEKLY:
        monday = day - timedelta(days=day.weekday())
        return _window(monday, monday + timedelta(days=7))
    months = 1 if recurrence is Recurrence.MONTHLY else 3
    first = day.replace(day=1, month=(day.month - 1) // months * months + 1)
    last = first.year * 12 + first.month - 1 + months
    return _window(first, first.replace(year=last // 12, month=last % 12 + 1))


def _window(start: datetime, end: datetime) -> Window:
    return Window((start - _EPOCH) // _MS, (end - _EPOCH) // _MS)


def aggregate(totals: Mapping[Key, Usage], budget: str, members: Iterable[str]) -> Usage:
    """The sum over several envelopes of one budget, each once and in its own period."""
    parts = [used for name in set(members) if (used := totals.get((budget, name))) is not None]
    return Usage(*map(sum, zip(*parts, strict=True)))


# -- what one lease costs: its settlement by UTC day, and its hold cut at period ends ----------


@dataclass(frozen=True, slots=True)
class ChargePart:
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
    parts: tuple[ChargePart, ...]


def settle(
    lease: Lease, end_ms: int, spells: Iterable[tuple[int, int]], *, funded: bool = True
) -> Charge:
    """A lease's whole life as a charge, by UTC day; void only what was still promised."""
    used, over = _by_day(lease.start_ms, end_ms), dict[int, int]()
    for from_ms, to_ms in spells:
        for day, amount in _by_day(from_ms, min(to_ms, end_ms)).items():
            over[day] = over.get(day, 0) + amount
    parts = tuple(
        ChargePart(day, lease.gpus * amount, lease.gpus * over.get(day, 0))
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
