"""How the hours of each envelope go down over its period: charges by day, in short periods finer.

A border: rows are documents, as the API shows them.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from fairlead.core.gpu import Budget, Envelope
from fairlead.core.gpu.usage import DAY_MS, FOREVER
from fairlead.core.invariant import known
from fairlead.core.units import HOUR_MS
from fairlead.engine.gpu.committer import Committer
from fairlead.engine.gpu.entries import Document
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.reports import Reports
from fairlead.engine.gpu.state import LeaseFact
from fairlead.schema.times import format_time, hours

UNLIMITED_DAYS = 30
"""What is shown of an envelope whose period has no start."""
FINE_MS = 2 * DAY_MS
"""Periods up to here are shown by leases: charges by day would be one or two points."""
FINE_POINTS = 48
Key = tuple[str, str]
Point = tuple[int, int]
"""(time in milliseconds, GPU-milliseconds used since the start of the period)."""


class BurnDown:
    """Reads accounts, charges and leases."""

    def __init__(self, committer: Committer, reports: Reports) -> None:
        self._committer, self._reports = committer, reports

    def series(self, budget: str | None = None) -> list[Document]:
        """A row for every envelope, of one budget or of all."""
        with self._committer.current() as projection:
            now_ms = self._committer.now()
            wanted = [
                (owner, envelope)
                for name, owner in sorted(projection.budgets.items())
                if budget in (None, name)
                for envelope in owner.envelopes
            ]
            by_day, by_payer = self._by_day(), _by_payer(projection)
            rows = []
            for owner, envelope in wanted:
                key = (owner.name, envelope.name)
                row = _row(projection, owner, envelope, now_ms)
                start_ms, end_ms = row["start_ms"], row["end_ms"]
                points = _days(by_day[key], start_ms, now_ms)
                if end_ms is not None and end_ms - start_ms <= FINE_MS and _all_kept(projection):
                    points = _steps(by_payer[key], start_ms, now_ms)
                rows.append(_document(row, points))
            return rows

    def _by_day(self) -> dict[Key, dict[int, int]]:
        found: dict[Key, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        for charge in self._reports.charges():
            found[charge["budget"], charge["envelope"]][charge["day"]] += charge["used_ms"]
        return found


def _row(projection: Projection, budget: Budget, envelope: Envelope, now_ms: int) -> Document:
    found = projection.accounts.get(budget.name, envelope.name)
    account = known(found, "an envelope has an account")
    used, period = account.usage(now_ms), account.period
    start_ms, end_ms = period.start_ms, None if period.end_ms == FOREVER.end_ms else period.end_ms
    if period.start_ms == FOREVER.start_ms:
        start_ms = now_ms - now_ms % DAY_MS - (UNLIMITED_DAYS - 1) * DAY_MS
    limit_ms, runs_out_ms = envelope.max_hours_ms, None
    if limit_ms is not None and used.gpus:
        runs_out_ms = now_ms + max(0, limit_ms - used.used_ms) // used.gpus
        if end_ms is not None and runs_out_ms >= end_ms:
            runs_out_ms = None
    return {
        "budget": budget.name,
        "owner": budget.owner,
        "envelope": envelope.name,
        "flavor": envelope.flavor,
        "start_ms": start_ms,
        "end_ms": end_ms,
        "now_ms": now_ms,
        "limit_ms": limit_ms,
        "used_ms": used.used_ms,
        "held_ms": used.held_ms,
        "gpus": used.gpus,
        "runs_out_ms": runs_out_ms,
    }


def _document(row: Document, points: Iterable[Point]) -> Document:
    limit_ms, end_ms, out_ms = row["limit_ms"], row["end_ms"], row["runs_out_ms"]
    return {
        **{name: row[name] for name in ("budget", "owner", "envelope", "flavor", "gpus")},
        "period_start": format_time(row["start_ms"]),
        "period_end": None if end_ms is None else format_time(end_ms),
        "now": format_time(row["now_ms"]),
        "limit_gpu_hours": None if limit_ms is None else limit_ms / HOUR_MS,
        "used_gpu_hours": hours(row["used_ms"]),
        "held_gpu_hours": hours(row["held_ms"]),
        "runs_out": None if out_ms is None else format_time(out_ms),
        "points": [
            {"time": format_time(time_ms), "used_gpu_hours": used_ms / HOUR_MS}
            for time_ms, used_ms in points
        ],
    }


def _days(charges: dict[int, int], start_ms: int, now_ms: int) -> Iterator[Point]:
    """The sum at the end of each UTC day; today's at the present."""
    used_ms = 0
    yield start_ms, 0
    for day in range(start_ms // DAY_MS, now_ms // DAY_MS + 1):
        used_ms += charges.get(day, 0)
        yield min((day + 1) * DAY_MS, now_ms), used_ms


def _all_kept(projection: Projection) -> bool:
    """Whether no ended lease was dropped: then leases and charges say the same."""
    return len(projection.closed) != projection.closed.maxlen


def _by_payer(projection: Projection) -> dict[Key, list[LeaseFact]]:
    found: dict[Key, list[LeaseFact]] = defaultdict(list)
    for lease in (*projection.closed, *projection.leases.values()):
        found[lease.budget, lease.envelope].append(lease)
    return found


def _steps(leases: Iterable[LeaseFact], start_ms: int, now_ms: int) -> Iterator[Point]:
    """The sum at equal steps: the devices in use between two changes, times the time between."""
    changes: dict[int, int] = defaultdict(int)
    for lease in leases:
        end_ms = now_ms if lease.end_ms is None else min(lease.end_ms, now_ms)
        if end_ms > start_ms:
            changes[max(lease.start_ms, start_ms)] += lease.gpus
            changes[end_ms] -= lease.gpus
    step_ms = max(1, (now_ms - start_ms) // FINE_POINTS)
    marks = [*range(start_ms, now_ms, step_ms)][: FINE_POINTS + 1]
    for at_ms in (*marks, now_ms):
        changes[at_ms] += 0
    used_ms = gpus = 0
    before_ms, shown = start_ms, {*marks, now_ms}
    for at_ms, more in sorted(changes.items()):
        used_ms += gpus * (at_ms - before_ms)
        gpus, before_ms = gpus + more, at_ms
        if at_ms in shown:
            yield at_ms, used_ms
