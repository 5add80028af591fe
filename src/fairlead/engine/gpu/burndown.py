"""How the hours of each envelope go down over its period, by day; in short periods finer."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from fairlead.core.gpu import Budget, Envelope
from fairlead.core.gpu.usage import DAY_MS, FOREVER
from fairlead.core.invariant import known
from fairlead.core.units import HOUR_MS
from fairlead.engine.gpu.committer import Committer
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.reports import Reports
from fairlead.engine.gpu.state import LeaseFact
from fairlead.engine.gpu.values import View
from fairlead.schema.times import format_time, hours

UNLIMITED_DAYS = 30
"""What is shown of an envelope whose period has no start."""
FINE_MS = 2 * DAY_MS
"""Periods up to here are shown by leases: charges by day would be one or two points."""
FINE_POINTS = 48
Key = tuple[str, str]
Point = tuple[int, int]
"""(time in milliseconds, GPU-milliseconds used since the start of the period)."""


class BurnDownPoint(View):
    """GPU-hours used since the start of the period."""

    time: str
    used_gpu_hours: float


class BurnDownRow(View):
    """The period of one envelope. `runs_out`: when its hours are used up at the present rate,
    where that is within the period."""

    budget: str
    owner: str
    envelope: str
    flavor: str
    gpus: int
    period_start: str
    period_end: str | None
    now: str
    limit_gpu_hours: float | None
    used_gpu_hours: float
    held_gpu_hours: float
    runs_out: str | None
    points: list[BurnDownPoint]


class BurnDown:
    """Reads accounts, charges and leases."""

    def __init__(self, committer: Committer, reports: Reports) -> None:
        self._committer, self._reports = committer, reports

    def series(self, budget: str | None = None) -> list[BurnDownRow]:
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

            def points(key: Key, start_ms: int, end_ms: int | None) -> Iterator[Point]:
                if end_ms is not None and end_ms - start_ms <= FINE_MS and _all_kept(projection):
                    return _steps(by_payer[key], start_ms, now_ms)
                return _days(by_day[key], start_ms, now_ms)

            return [_row(projection, *each, now_ms, points) for each in wanted]

    def _by_day(self) -> dict[Key, dict[int, int]]:
        found: dict[Key, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        for charge in self._reports.charges():
            found[charge["budget"], charge["envelope"]][charge["day"]] += charge["used_ms"]
        return found


def _row(
    projection: Projection,
    budget: Budget,
    envelope: Envelope,
    now_ms: int,
    points: Callable[[Key, int, int | None], Iterator[Point]],
) -> BurnDownRow:
    key = (budget.name, envelope.name)
    account = known(projection.accounts.get(*key), "an envelope has an account")
    used, period = account.usage(now_ms), account.period
    start_ms, end_ms = period.start_ms, None if period.end_ms == FOREVER.end_ms else period.end_ms
    if period.start_ms == FOREVER.start_ms:
        start_ms = now_ms - now_ms % DAY_MS - (UNLIMITED_DAYS - 1) * DAY_MS
    limit_ms, runs_out_ms = envelope.max_hours_ms, None
    if limit_ms is not None and used.gpus:
        runs_out_ms = now_ms + max(0, limit_ms - used.used_ms) // used.gpus
        if end_ms is not None and runs_out_ms >= end_ms:
            runs_out_ms = None
    return BurnDownRow(
        budget=budget.name,
        owner=budget.owner,
        envelope=envelope.name,
        flavor=envelope.flavor,
        gpus=used.gpus,
        period_start=format_time(start_ms),
        period_end=None if end_ms is None else format_time(end_ms),
        now=format_time(now_ms),
        limit_gpu_hours=None if limit_ms is None else limit_ms / HOUR_MS,
        used_gpu_hours=hours(used.used_ms),
        held_gpu_hours=hours(used.held_ms),
        runs_out=None if runs_out_ms is None else format_time(runs_out_ms),
        points=[
            BurnDownPoint(format_time(time_ms), used_ms / HOUR_MS)
            for time_ms, used_ms in points(key, start_ms, end_ms)
        ],
    )


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
