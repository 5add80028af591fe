"""GPU-hours for chargeback: who used how much in which period, and who paid.

Sums are made in whole GPU-milliseconds and become hours at the very end, so that the rows of a
report add up to what the budgets say. Charges by day, owner and envelope are kept for good; what a
single run used stands in its entries, and goes with them when they are archived.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from fairlead.api.history import entries_of, known_since_ms
from fairlead.api.queries import By, Period
from fairlead.api.service import Service
from fairlead.core.gpu import Recurrence, Window
from fairlead.core.gpu.charges import DAY_MS
from fairlead.core.gpu.usage import calendar
from fairlead.engine.gpu import Refused
from fairlead.schema.times import format_time, hours

_CALENDAR: dict[Period, Recurrence] = {
    "day": Recurrence.DAILY,
    "week": Recurrence.WEEKLY,
    "month": Recurrence.MONTHLY,
    "quarter": Recurrence.QUARTERLY,
}
# What rows are told apart by; charges that differ in the rest only are added up.
_TOLD_APART: dict[By, tuple[str, ...]] = {
    "owner": ("owner", "payer", "borrowed"),
    "budget": ("payer", "budget", "borrowed"),
    "envelope": ("owner", "payer", "budget", "envelope", "borrowed"),
    "run": ("owner", "run", "payer", "budget", "envelope", "borrowed"),
}
_BLANK: dict[str, Any] = {
    "owner": None,
    "run": None,
    "payer": None,
    "budget": None,
    "envelope": None,
    "borrowed": None,
    "gpu_hours": 0.0,
    "overdraft_gpu_hours": 0.0,
    "node": None,
    "idle_gpus": 0,
    "idle_gpu_hours": 0.0,
    "idle_since": None,
}


def period_of(period: Period, time_ms: int) -> Window:
    """The UTC day, ISO week, month or quarter around a time."""
    return calendar(_CALENDAR[period], time_ms)


def periods(period: Period, start_ms: int, end_ms: int) -> Iterator[Window]:
    """All that a stretch of time touches, in order."""
    at_ms = start_ms
    while at_ms < end_ms:
        found = period_of(period, at_ms)
        yield found
        at_ms = found.end_ms


def period_row(kind: str, period: Period, window: Window, **values: Any) -> dict[str, Any]:
    """One row of a report: named `2026-01-05`, `2026-W02`, `2026-01` or `2026-Q1`."""
    first = datetime.fromisoformat(format_time(window.start_ms))
    name = {
        "day": f"{first:%Y-%m-%d}",
        "week": f"{first:%G-W%V}",
        "month": f"{first:%Y-%m}",
        "quarter": f"{first:%Y}-Q{(first.month + 2) // 3}",
    }[period]
    edges = {"start": format_time(window.start_ms), "end": format_time(window.end_ms)}
    return {"kind": kind, "period": name, **edges, **_BLANK, **values}


def usage_rows(
    service: Service, by: By, period: Period, start_ms: int, end_ms: int
) -> list[dict[str, Any]]:
    """Used and overdrawn GPU-hours of the days touched, by period and then by what was asked."""
    charges = _by_run(service, start_ms) if by == "run" else service.plane.reports.charges()
    keys, sums = _TOLD_APART[by], dict[tuple[Any, ...], list[int]]()
    for charge in charges:
        day_ms = charge["day"] * DAY_MS
        if not (day_ms + DAY_MS > start_ms and day_ms < end_ms):
            continue
        window = period_of(period, day_ms)
        told = tuple(charge[key] for key in keys)
        found = sums.setdefault((window.start_ms, *told), [0, 0])
        found[0] += charge["used_ms"]
        found[1] += charge["overdraft_ms"]
    return [
        period_row(
            "usage",
            period,
            period_of(period, start),
            **dict(zip(keys, told, strict=True)),
            gpu_hours=hours(used_ms),
            overdraft_gpu_hours=hours(overdraft_ms),
        )
        for (start, *told), (used_ms, overdraft_ms) in sorted(sums.items())
    ]


def _by_run(service: Service, start_ms: int) -> Iterable[dict[str, Any]]:
    """Charges that were posted since, from the ledger; then what open leases come to so far."""
    known_ms = known_since_ms(service.ledger)
    if service.ledger.archived_to() and start_ms < known_ms:
        raise Refused(
            "Archived",
            f"what single runs used before {format_time(known_ms)} was moved to an archive; ask "
            "since then, or by owner, budget or envelope",
        )
    # Before the walk: a lease that closes meanwhile is then counted twice, so it is passed over.
    accruing = service.plane.reports.accruals()
    still_open = {each["lease"] for each in accruing}
    for entry in entries_of(service.ledger, "charge.post", start_ms):
        body = entry.body
        if body["lease"] in still_open:
            continue
        for part in body["parts"]:
            yield {
                **part,
                "owner": body["owner"],
                "run": run_of(body["lease"]),
                "budget": body["budget"],
                "envelope": body["envelope"],
                "borrowed": body["borrowed"],
                "payer": body.get("payer", body["budget"]),
            }
    yield from accruing


def run_of(lease: str) -> str:
    """The run of a lease, whose id is `run.uid.attempt.number`."""
    return lease.rsplit(".", 3)[0]
