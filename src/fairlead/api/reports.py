"""Chargeback reports: GPU-hours used and paid by period, and devices that were idle.

Sums are whole GPU-milliseconds and become hours at the very end, so that the rows of a report add
up to the budgets' figures. Charges by day, owner and envelope are kept for good; those of a single
run are in its entries and go with them when they are archived.

Idle devices are what a node had less what was leased. A lease that touches a period is open or was
closed after the period began, so only closings since then are read.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from heapq import merge
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import msgspec

from fairlead.api.service import Service
from fairlead.api.shapes import By, Period, ReportRow
from fairlead.core.gpu import Recurrence, Window
from fairlead.core.gpu.usage import DAY_MS, calendar
from fairlead.core.invariant import known
from fairlead.engine.gpu import Refused
from fairlead.engine.gpu.entries import (
    Body,
    ChargePost,
    LeaseClose,
    LeaseOpen,
    ObjectApplied,
    ObjectDeleted,
    RunsUsed,
)
from fairlead.engine.gpu.state import parse_slot
from fairlead.ports.ledger import Archived, Entry, Ledger
from fairlead.schema.times import format_time, hours, parse_time

READ_AT_ONCE = 2_000
B = TypeVar("B", bound=Body)
_CALENDAR: dict[Period, Recurrence] = {
    "day": Recurrence.DAILY,
    "week": Recurrence.WEEKLY,
    "month": Recurrence.MONTHLY,
    "quarter": Recurrence.QUARTERLY,
}
# Columns to group by; charges that differ in the others are added up.
_GROUPS: dict[By, tuple[str, ...]] = {
    "owner": ("owner", "payer", "borrowed"),
    "budget": ("payer", "budget", "borrowed"),
    "envelope": ("owner", "payer", "budget", "envelope", "borrowed"),
    "run": ("owner", "run", "payer", "budget", "envelope", "borrowed"),
}
_BLANK: dict[str, Any] = dict.fromkeys(ReportRow.__struct_fields__) | {
    "gpu_hours": 0.0,
    "overdraft_gpu_hours": 0.0,
    "idle_gpus": 0,
    "idle_gpu_hours": 0.0,
    "read_gpu_hours": 0.0,
    "virtual": False,
}


def period_of(period: Period, time_ms: int) -> Window:
    """The UTC day, ISO week, month or quarter around a time."""
    return calendar(_CALENDAR[period], time_ms)


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
    return {**_BLANK, "kind": kind, "period": name, **edges, **values}


def usage_rows(
    service: Service, by: By, period: Period, start_ms: int, end_ms: int
) -> list[dict[str, Any]]:
    """Used and overdrawn GPU-hours of whole days, by period and group."""
    charges = _by_run(service, start_ms) if by == "run" else service.plane.reports.charges()
    keys, sums = _GROUPS[by], dict[_Group, dict[str, int]]()
    virtual = _virtual_days(service, start_ms)
    for row in (*charges, *_uses(service, start_ms)):
        day_ms = row["day"] * DAY_MS
        if not (day_ms + DAY_MS > start_ms and day_ms < end_ms):
            continue
        window = period_of(period, day_ms)
        group = (window.start_ms, *(row[key] for key in keys))
        if "used_ms" not in row and group not in sums:
            continue  # its charges are archived
        total = sums.setdefault(group, dict.fromkeys(_SUMS, 0))
        for name in _SUMS:
            total[name] += row.get(name, 0)
        names = _VIRTUAL if by == "run" else _VIRTUAL[:-1]
        total["virtual"] += tuple(row[name] for name in names) in virtual
    return [
        period_row(
            "usage",
            period,
            period_of(period, start),
            **dict(zip(keys, group, strict=True)),
            **_figures(total),
        )
        for (start, *group), total in sorted(sums.items())
    ]


_Group = tuple[Any, ...]
_SUMS = ("used_ms", "overdraft_ms", "read_ms", "busy_ms", "idle_ms", "virtual")
_VIRTUAL = ("day", "owner", "budget", "envelope", "borrowed", "run")


def _figures(total: dict[str, int]) -> dict[str, Any]:
    read_ms = total["read_ms"]
    percent = round(100 * total["busy_ms"] / read_ms, 1) if read_ms else None
    return {
        "gpu_hours": hours(total["used_ms"]),
        "overdraft_gpu_hours": hours(total["overdraft_ms"]),
        "read_gpu_hours": hours(read_ms),
        "utilisation_percent": percent,
        "leased_idle_gpu_hours": hours(total["idle_ms"]) if read_ms else None,
        "virtual": total["virtual"] > 0,
    }


def _uses(service: Service, start_ms: int) -> Iterable[dict[str, Any]]:
    """How busy leased devices were, as far as it was read and is kept."""
    # What is not recorded first: else it could be counted twice.
    latest = service.plane.reports.uses()
    for _, body in entries_of(service.ledger, RunsUsed, start_ms):
        yield from map(msgspec.structs.asdict, body.rows)
    yield from latest


def _virtual_days(service: Service, start_ms: int) -> set[_Group]:
    """What leases on virtual nodes were charged to, by day; with their runs, and without."""
    names = service.plane.reports.virtual_nodes()
    found: set[_Group] = set()
    if not names:
        return found
    now_ms = service.now_ms()
    for lease in _leases_since(service, start_ms, now_ms).values():
        if names.isdisjoint(parse_slot(slot)[0] for slot in lease.slots):
            continue
        for day in range(lease.since_ms // DAY_MS, lease.until_ms // DAY_MS + 1):
            group = (day, lease.owner, lease.budget, lease.envelope, lease.borrowed)
            found |= {group, (*group, lease.run)}
    return found


def _by_run(service: Service, start_ms: int) -> Iterable[dict[str, Any]]:
    """Charges posted since then, from the ledger; then those of open leases so far."""
    known_ms = known_since_ms(service.ledger)
    if service.ledger.archived_to() and start_ms < known_ms:
        raise Refused(
            "Archived",
            f"charges of single runs before {format_time(known_ms)} are archived; choose a later "
            "`since`, or group by owner, budget or envelope",
        )
    # Read first: a lease that closes meanwhile would be counted twice, so its charge is skipped.
    accruing = service.plane.reports.accruals()
    still_open = {row["lease"] for row in accruing}
    for _, body in entries_of(service.ledger, ChargePost, start_ms):
        if body.lease in still_open:
            continue
        charge = msgspec.structs.asdict(body)
        # The id of a lease is `run.uid.attempt.number`; entries of early versions have no payer.
        charge |= {"run": body.lease.rsplit(".", 3)[0], "payer": body.payer or body.budget}
        for part in body.parts:
            yield {**charge, **asdict(part)}
    yield from accruing


# --- idle devices


@dataclass(slots=True)
class _Devices:
    """A node's devices as steps in time, and when each of them was leased."""

    steps: list[tuple[int, int]] = field(default_factory=list)
    """(from when on, devices), in order of time."""
    busy: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def devices_at(self, time_ms: int) -> int:
        at = bisect_right(self.steps, (time_ms, 2**60))
        return self.steps[at - 1][1] if at else 0

    def idle_ms(self, start_ms: int, end_ms: int) -> int:
        """Device-milliseconds without a lease."""
        edges = sorted({start_ms, end_ms, *(at for at, _ in self.steps if start_ms < at < end_ms)})
        had = sum(self.devices_at(one) * (two - one) for one, two in pairwise(edges))
        used = sum(
            max(0, min(to, end_ms) - max(since, start_ms))
            for leased in self.busy.values()
            for since, to in leased
        )
        return max(0, had - used)

    def idle_at(self, end_ms: int, start_ms: int) -> list[int]:
        """Since when each device that is idle just before `end_ms` has been idle."""
        idle = []
        for ordinal in range(self.devices_at(end_ms - 1)):
            leased = [span for span in self.busy.get(ordinal, ()) if span[0] < end_ms]
            if any(to >= end_ms for _, to in leased):
                continue
            there = next((at for at, devices in self.steps if devices > ordinal), start_ms)
            idle.append(max([start_ms, there, *(to for _, to in leased)]))
        return idle


def idle_rows(service: Service, period: Period, start_ms: int, end_ms: int) -> list[dict[str, Any]]:
    """A row for every period and node with idle devices, up to now, as far back as is known."""
    now_ms = service.now_ms()
    start_ms, end_ms = max(start_ms, known_since_ms(service.ledger)), min(end_ms, now_ms)
    nodes, virtual = _nodes(service, start_ms), service.plane.reports.virtual_nodes()
    _add_leases(service, nodes, start_ms, now_ms)
    rows, at_ms = list[dict[str, Any]](), start_ms
    while at_ms < end_ms:
        window = period_of(period, at_ms)
        until_ms = min(window.end_ms, end_ms)
        for name, node in sorted(nodes.items()):
            idle_ms, idle = node.idle_ms(at_ms, until_ms), node.idle_at(until_ms, start_ms)
            since = format_time(min(idle)) if idle else None
            figures = {"idle_gpu_hours": hours(idle_ms), "idle_since": since}
            figures |= {"virtual": name in virtual}
            if idle_ms:
                row = period_row("idle", period, window, node=name, idle_gpus=len(idle), **figures)
                rows.append(row)
        at_ms = window.end_ms
    return rows


def _nodes(service: Service, start_ms: int) -> dict[str, _Devices]:
    changes: dict[str, list[tuple[int, int, int]]] = {}
    for entry, body in entries_of(service.ledger, ObjectApplied, start_ms):
        if body.kind == "Node":
            step = (entry.seq, entry.time_ms, body.spec["devices"])
            changes.setdefault(body.name, []).append(step)
    for entry, gone in entries_of(service.ledger, ObjectDeleted, start_ms):
        if gone.kind == "Node":
            changes.setdefault(gone.name, []).append((entry.seq, entry.time_ms, 0))
    nodes: dict[str, _Devices] = {}
    for node in service.plane.objects.list("Node"):
        created_ms = parse_time(node["metadata"]["creationTimestamp"], "creationTimestamp")
        if node["metadata"]["name"] not in changes:
            nodes[node["metadata"]["name"]] = _Devices([(created_ms, node["spec"]["devices"])])
    for steps in changes.values():
        steps.sort()
    before = _devices_before(service.ledger, {name: rows[0][0] for name, rows in changes.items()})
    for name, steps in changes.items():
        later = [(time_ms, devices) for _, time_ms, devices in steps]
        nodes[name] = _Devices([(0, before.get(name, 0)), *later])
    return nodes


_Change = tuple[Entry, ObjectApplied | ObjectDeleted]


def _devices_before(ledger: Ledger, changed: Mapping[str, int]) -> dict[str, int]:
    """The devices of nodes before their first change in the report, which has that entry's number.
    All entries before are read once, whatever the number of nodes."""
    found: dict[str, int] = {}
    kinds: tuple[Iterator[_Change], ...] = (
        entries_of(ledger, ObjectApplied),
        entries_of(ledger, ObjectDeleted),
    )
    for entry, body in merge(*kinds, key=lambda row: row[0].seq) if changed else ():
        if body.kind == "Node" and entry.seq < changed.get(body.name, 0):
            found[body.name] = 0 if isinstance(body, ObjectDeleted) else body.spec["devices"]
        elif entry.seq >= max(changed.values()):
            break
    return found


class _Lease(NamedTuple):
    """A lease that touches the report."""

    run: str
    owner: str
    budget: str
    envelope: str
    borrowed: bool
    slots: Sequence[str]
    since_ms: int
    until_ms: int


_TERMS = _Lease._fields[:6]


def _leases_since(service: Service, start_ms: int, now_ms: int) -> dict[str, _Lease]:
    # Open leases first: one that closes meanwhile is found again among the closed.
    taken: dict[str, _Lease] = {}
    for row in service.plane.reports.leases():
        since_ms = parse_time(row["start"], "start")
        terms = {name: row[name] for name in _TERMS}
        taken[row["lease"]] = _Lease(**terms, since_ms=since_ms, until_ms=now_ms)
    opened = {body.lease: body for _, body in entries_of(service.ledger, LeaseOpen, start_ms)}
    for _, closed in entries_of(service.ledger, LeaseClose, start_ms):
        body = opened.get(closed.lease) or _opening(service.ledger, closed.lease)
        if body is not None:
            terms = {name: getattr(body, name) for name in _TERMS}
            ended = _Lease(**terms, since_ms=body.start_ms, until_ms=closed.end_ms)
            taken[closed.lease] = ended
    return taken


def _add_leases(service: Service, nodes: dict[str, _Devices], start_ms: int, now_ms: int) -> None:
    for lease in _leases_since(service, start_ms, now_ms).values():
        for slot in lease.slots:
            name, ordinal = parse_slot(slot)
            if name in nodes:
                nodes[name].busy.setdefault(ordinal, []).append((lease.since_ms, lease.until_ms))


def _opening(ledger: Ledger, lease: str) -> LeaseOpen | None:
    """The opening of a lease older than the report; None where it is archived."""
    job = lease.rpartition(".")[0]
    try:
        entries = ledger.entries(0, READ_AT_ONCE, kind=LeaseOpen.ENTRY, plan_id=job)
    except Archived:
        return None
    bodies = (LeaseOpen.of(entry.body) for entry in entries)
    return next((body for body in bodies if body.lease == lease), None)


# --- entries by time


def entries_of(ledger: Ledger, kind: type[B], since_ms: int = 0) -> Iterator[tuple[Entry, B]]:
    """Entries of a kind recorded since a time, oldest first, page by page; and what they say."""
    after = seq_before(ledger, since_ms)
    while True:
        page = ledger.entries(after, READ_AT_ONCE, kind=kind.ENTRY)
        for entry in page:
            yield entry, kind.of(entry.body)
        if len(page) < READ_AT_ONCE:
            return
        after = page[-1].seq


def seq_before(ledger: Ledger, time_ms: int) -> int:
    """The last entry before a time, or the last archived one; a binary search."""
    low, high = ledger.archived_to(), ledger.head().head.size
    while low < high:
        middle = (low + high + 1) // 2
        if _time_ms(ledger, middle) < time_ms:
            low = middle
        else:
            high = middle - 1
    return low


def known_since_ms(ledger: Ledger) -> int:
    return _time_ms(ledger, ledger.archived_to() + 1)


def _time_ms(ledger: Ledger, seq: int) -> int:
    return known(ledger.entry(seq), "entries after the archive are kept").time_ms
