"""What each device of each node does now, and what it did and will do: leases over time."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

from fairlead.engine.gpu.admission import RunAdmission
from fairlead.engine.gpu.committer import Committer
from fairlead.engine.gpu.projection import Projection, node_spec, reservation_spec, starts_ms
from fairlead.engine.gpu.state import LeaseFact, Stored, parse_slot
from fairlead.engine.gpu.values import View
from fairlead.schema.objects import NodeSpec, foreign_of, max_runtime_ms
from fairlead.schema.times import format_time, parse_duration

BARS_MAX = 2_000
DeviceState = Literal["leased", "idle", "cordoned", "quarantined", "foreign"]
"""What a device does. `foreign`: others than Fairlead hold so many of a node's free devices."""
STATES: tuple[DeviceState, ...] = get_args(DeviceState)


class DeviceRow(View):
    """One device, and the lease that it has."""

    device: int
    state: DeviceState
    run: str | None
    owner: str | None
    role: str | None
    borrowed: bool | None
    funded: bool | None
    since: str | None


class NodeDevices(View):
    """One node with its devices."""

    node: str
    flavor: str
    location: dict[str, str]
    cordoned: bool
    virtual: bool
    slots: list[DeviceRow]


class NodePage(View):
    """Nodes by name; `nodes` and `devices` count all that match."""

    items: list[NodeDevices]
    nodes: int
    devices: dict[str, int]
    next: str | None


class TimelineNode(View):
    """A row of the timeline."""

    node: str
    devices: int


class TimelineSlot(View):
    """One device of a lease."""

    node: str
    device: int


class TimelineLease(View):
    """A lease on the nodes of the page. `there`: its run is not deleted."""

    lease: str
    run: str
    owner: str
    role: str
    budget: str
    envelope: str
    borrowed: bool
    slots: list[TimelineSlot]
    start: str
    end: str | None
    expected_end: str | None
    reason: str | None
    there: bool


class PlannedRun(View):
    """A run that is expected to start; `end` by its own estimate."""

    run: str
    owner: str
    flavor: str
    gpus: int
    start: str
    end: str | None


class PlannedReservation(PlannedRun):
    """A reservation whose run is still to be started by it."""

    reservation: str
    state: str
    reason: str


class QueueForecast(PlannedRun):
    """The earliest start of one of the first runs in the queue."""

    lacks: str
    position: int | None


class Timeline(View):
    """`left_out` older leases do not fit the answer; those that ended before `known_since` are
    not kept by name."""

    since: str
    until: str
    now: str
    nodes: list[TimelineNode]
    next: str | None
    leases: list[TimelineLease]
    left_out: int
    known_since: str | None
    reservations: list[PlannedReservation]
    forecast: list[QueueForecast]


P = TypeVar("P", bound=PlannedRun)
_NO_LEASE = (None,) * 6


@dataclass(frozen=True, slots=True)
class NodeFilter:
    """Which nodes are shown, by name; the page goes on behind `after`."""

    flavor: str | None = None
    text: str = ""
    """A part of the name, in any case of letters."""
    limit: int = 100
    after: str = ""


class DeviceMap:
    """Nodes page by page, with their devices or with the leases of a stretch of time."""

    def __init__(self, committer: Committer, admission: RunAdmission) -> None:
        self._committer, self._admission = committer, admission

    def devices(self, wanted: NodeFilter) -> NodePage:
        with self._committer.current() as projection:
            dirty = Counter(parse_slot(slot)[0] for slot in projection.withheld)
            totals, shown, nodes = Counter[str](), list[Stored](), 0
            for stored in _matching(projection, wanted):
                totals.update(_totals(projection, stored, dirty[stored.name]))
                nodes += 1
                if stored.name > wanted.after and len(shown) <= wanted.limit:
                    shown.append(stored)
            return NodePage(
                items=[_node(projection, stored) for stored in shown[: wanted.limit]],
                nodes=nodes,
                devices={state: totals[state] for state in STATES},
                next=_next(shown, wanted.limit),
            )

    def timeline(self, since_ms: int, until_ms: int, wanted: NodeFilter) -> Timeline:
        """Leases on a page of nodes; reservations, and starts that the queue expects."""
        with self._committer.current() as projection:
            matching = (row for row in _matching(projection, wanted) if row.name > wanted.after)
            shown = [row for _, row in zip(range(wanted.limit + 1), matching, strict=False)]
            names = {stored.name for stored in shown[: wanted.limit]}
            leases = [
                lease
                for lease in (*projection.closed, *projection.leases.values())
                if lease.start_ms < until_ms
                and (lease.end_ms is None or lease.end_ms > since_ms)
                and not names.isdisjoint(lease.nodes)
            ]
            leases.sort(key=lambda lease: (lease.start_ms, lease.id))
            closed = projection.closed
            full = len(closed) == closed.maxlen
            return Timeline(
                since=format_time(since_ms),
                until=format_time(until_ms),
                now=format_time(self._committer.now()),
                nodes=[
                    TimelineNode(row.name, node_spec(row).devices) for row in shown[: wanted.limit]
                ],
                next=_next(shown, wanted.limit),
                leases=[_bar(projection, lease, names) for lease in leases[-BARS_MAX:]],
                left_out=max(0, len(leases) - BARS_MAX),
                known_since=format_time(closed[0].end_ms or 0) if full else None,
                reservations=_reservations(projection, since_ms, until_ms, wanted.flavor),
                forecast=list(self._forecast(projection, until_ms, wanted.flavor)),
            )

    def _forecast(
        self, projection: Projection, until_ms: int, flavor: str | None
    ) -> Iterator[QueueForecast]:
        """The first runs of the queue, at the earliest start that they were promised."""
        heads = self._admission.heads
        for run in sorted(set(heads.runs())):
            own = projection.run_spec(run).flavor if projection.is_pending(run) else None
            if own is None or flavor not in (None, own):
                continue
            promised = heads.promised(run, own)
            if promised is None or promised.start_ms >= until_ms:
                continue
            position = self._admission.positions().get(run)
            more = {"lacks": promised.lacks, "position": position}
            yield _planned(QueueForecast, projection, run, promised.start_ms, **more)


def _matching(projection: Projection, wanted: NodeFilter) -> Iterator[Stored]:
    text = wanted.text.casefold()
    for stored in projection.of_kind("Node"):
        if wanted.flavor in (None, node_spec(stored).flavor) and text in stored.name.casefold():
            yield stored


def _next(shown: list[Stored], limit: int) -> str | None:
    return shown[limit - 1].name if len(shown) > limit else None


def _totals(projection: Projection, stored: Stored, dirty: int) -> dict[str, int]:
    spec, leased = node_spec(stored), len(projection.taken.get(stored.name, ()))
    free = max(0, spec.devices - leased - dirty)
    foreign = min(free, foreign_of(spec))
    free -= foreign
    rest = {"cordoned": free} if spec.cordoned else {"idle": free}
    return {"leased": leased, "quarantined": dirty, "foreign": foreign, **rest}


def _node(projection: Projection, stored: Stored) -> NodeDevices:
    spec, taken = node_spec(stored), projection.taken.get(stored.name, {})
    free = list(_free(projection, stored, spec))
    foreign = set(free[max(0, len(free) - foreign_of(spec)) :])
    slots = []
    for ordinal in sorted({*range(spec.devices), *taken}):
        if ordinal in taken:
            slots.append(_leased(projection, ordinal, projection.leases[taken[ordinal]]))
            continue
        state: DeviceState = "cordoned" if spec.cordoned else "idle"
        state = "foreign" if ordinal in foreign else state
        state = state if ordinal in free else "quarantined"
        slots.append(DeviceRow(ordinal, state, *_NO_LEASE))
    virtual = spec.virtual is True
    return NodeDevices(stored.name, spec.flavor, spec.location, spec.cordoned, virtual, slots)


def _free(projection: Projection, stored: Stored, spec: NodeSpec) -> Iterator[int]:
    taken, withheld = projection.taken.get(stored.name, {}), projection.withheld
    for ordinal in range(spec.devices):
        if ordinal not in taken and f"{stored.name}#{ordinal}" not in withheld:
            yield ordinal


def _leased(projection: Projection, ordinal: int, lease: LeaseFact) -> DeviceRow:
    funded, since = projection.is_funded(lease.id), format_time(lease.start_ms)
    about = (lease.run, lease.owner, lease.role, lease.borrowed)
    return DeviceRow(ordinal, "leased", *about, funded, since)


def _bar(projection: Projection, lease: LeaseFact, names: Iterable[str]) -> TimelineLease:
    slots = (parse_slot(slot) for slot in lease.slots)
    ends_ms = lease.expected_end_ms
    return TimelineLease(
        lease=lease.id,
        run=lease.run,
        owner=lease.owner,
        role=lease.role,
        budget=lease.budget,
        envelope=lease.envelope,
        borrowed=lease.borrowed,
        slots=[TimelineSlot(node, ordinal) for node, ordinal in slots if node in names],
        start=format_time(lease.start_ms),
        end=None if lease.end_ms is None else format_time(lease.end_ms),
        expected_end=None if ends_ms is None else format_time(ends_ms),
        reason=lease.end_reason,
        there=lease.run in projection.runs,
    )


def _planned(shape: type[P], projection: Projection, run: str, start_ms: int, **more: Any) -> P:
    spec = projection.run_spec(run)
    length_ms = max_runtime_ms(spec)
    if spec.duration is not None:
        length_ms = parse_duration(spec.duration, "duration")
    start = format_time(start_ms)
    end = None if length_ms is None else format_time(start_ms + length_ms)
    return shape(run, spec.owner, spec.flavor, spec.gpus, start, end, **more)


def _reservations(
    projection: Projection, since_ms: int, until_ms: int, flavor: str | None
) -> list[PlannedReservation]:
    """Those whose runs are still to be started by them, by their time."""
    found = []
    for stored in projection.of_kind("Reservation"):
        state, start_ms = projection.resolver.reservations[stored.name], starts_ms(stored)
        run = reservation_spec(stored).run
        if not state.waits or start_ms >= until_ms or projection.get("Run", run) is None:
            continue
        more = {"reservation": stored.name, "state": state.state, "reason": state.reason}
        shown = _planned(PlannedReservation, projection, run, max(start_ms, since_ms), **more)
        if flavor in (None, shown.flavor):
            found.append((start_ms, stored.name, shown))
    return [row for *_, row in sorted(found, key=lambda row: row[:2])]
