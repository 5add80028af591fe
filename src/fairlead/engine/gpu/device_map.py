"""What each device of each node does now, and what it did and will do: leases over time.

A border: rows are documents, as the API shows them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fairlead.engine.gpu.admission import RunAdmission
from fairlead.engine.gpu.committer import Committer
from fairlead.engine.gpu.entries import Document
from fairlead.engine.gpu.projection import Projection, node_spec, reservation_spec, starts_ms
from fairlead.engine.gpu.state import LeaseFact, Stored, parse_slot
from fairlead.schema.objects import NodeSpec, foreign_of, max_runtime_ms
from fairlead.schema.times import format_time, parse_duration

BARS_MAX = 2_000
STATES = ("leased", "idle", "cordoned", "quarantined", "foreign")
"""What a device does. `foreign`: others than Fairlead hold so many of a node's free devices."""


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

    def devices(self, wanted: NodeFilter) -> Document:
        with self._committer.current() as projection:
            dirty = Counter(parse_slot(slot)[0] for slot in projection.withheld)
            totals, shown, nodes = Counter[str](), list[Stored](), 0
            for stored in _matching(projection, wanted):
                totals.update(_totals(projection, stored, dirty[stored.name]))
                nodes += 1
                if stored.name > wanted.after and len(shown) <= wanted.limit:
                    shown.append(stored)
            return {
                "items": [_node(projection, stored) for stored in shown[: wanted.limit]],
                "nodes": nodes,
                "devices": {state: totals[state] for state in STATES},
                "next": _next(shown, wanted.limit),
            }

    def timeline(self, since_ms: int, until_ms: int, wanted: NodeFilter) -> Document:
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
            return {
                "since": format_time(since_ms),
                "until": format_time(until_ms),
                "now": format_time(self._committer.now()),
                "nodes": [
                    {"node": row.name, "devices": node_spec(row).devices}
                    for row in shown[: wanted.limit]
                ],
                "next": _next(shown, wanted.limit),
                "leases": [_bar(projection, lease, names) for lease in leases[-BARS_MAX:]],
                "left_out": max(0, len(leases) - BARS_MAX),
                "known_since": format_time(closed[0].end_ms or 0) if full else None,
                "reservations": list(_reservations(projection, since_ms, until_ms, wanted.flavor)),
                "forecast": list(self._forecast(projection, until_ms, wanted.flavor)),
            }

    def _forecast(
        self, projection: Projection, until_ms: int, flavor: str | None
    ) -> Iterator[Document]:
        """The first runs of the queue, at the earliest start that they were promised."""
        heads = self._admission.heads
        for run in sorted(set(heads.runs())):
            own = projection.run_spec(run).flavor if projection.is_pending(run) else None
            if own is None or flavor not in (None, own):
                continue
            promised = heads.promised(run, own)
            if promised is None or promised.start_ms >= until_ms:
                continue
            yield {
                **_planned(projection, run, promised.start_ms),
                "lacks": promised.lacks,
                "position": self._admission.positions().get(run),
            }


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


def _node(projection: Projection, stored: Stored) -> Document:
    spec, taken = node_spec(stored), projection.taken.get(stored.name, {})
    free = list(_free(projection, stored, spec))
    foreign = set(free[max(0, len(free) - foreign_of(spec)) :])
    slots = []
    for ordinal in sorted({*range(spec.devices), *taken}):
        if ordinal in taken:
            slots.append(_leased(projection, ordinal, projection.leases[taken[ordinal]]))
            continue
        state = "cordoned" if spec.cordoned else "idle"
        state = "foreign" if ordinal in foreign else state
        state = state if ordinal in free else "quarantined"
        slots.append({**_EMPTY, "device": ordinal, "state": state})
    return {
        "node": stored.name,
        "flavor": spec.flavor,
        "location": spec.location,
        "cordoned": spec.cordoned,
        "virtual": spec.virtual is True,
        "slots": slots,
    }


_EMPTY: Document = dict.fromkeys(("run", "owner", "role", "borrowed", "funded", "since"))


def _free(projection: Projection, stored: Stored, spec: NodeSpec) -> Iterator[int]:
    taken, withheld = projection.taken.get(stored.name, {}), projection.withheld
    for ordinal in range(spec.devices):
        if ordinal not in taken and f"{stored.name}#{ordinal}" not in withheld:
            yield ordinal


def _leased(projection: Projection, ordinal: int, lease: LeaseFact) -> Document:
    return {
        "device": ordinal,
        "state": "leased",
        "run": lease.run,
        "owner": lease.owner,
        "role": lease.role,
        "borrowed": lease.borrowed,
        "funded": projection.is_funded(lease.id),
        "since": format_time(lease.start_ms),
    }


def _bar(projection: Projection, lease: LeaseFact, names: Iterable[str]) -> Document:
    slots = (parse_slot(slot) for slot in lease.slots)
    ends_ms = lease.expected_end_ms
    return {
        "lease": lease.id,
        "run": lease.run,
        "owner": lease.owner,
        "role": lease.role,
        "budget": lease.budget,
        "envelope": lease.envelope,
        "borrowed": lease.borrowed,
        "slots": [{"node": node, "device": ordinal} for node, ordinal in slots if node in names],
        "start": format_time(lease.start_ms),
        "end": None if lease.end_ms is None else format_time(lease.end_ms),
        "expected_end": None if ends_ms is None else format_time(ends_ms),
        "reason": lease.end_reason,
        "there": ("Run", lease.run) in projection.objects,
    }


def _planned(projection: Projection, run: str, start_ms: int) -> Document:
    spec = projection.run_spec(run)
    length_ms = max_runtime_ms(spec)
    if spec.duration is not None:
        length_ms = parse_duration(spec.duration, "duration")
    return {
        "run": run,
        "owner": spec.owner,
        "flavor": spec.flavor,
        "gpus": spec.gpus,
        "start": format_time(start_ms),
        "end": None if length_ms is None else format_time(start_ms + length_ms),
    }


def _reservations(
    projection: Projection, since_ms: int, until_ms: int, flavor: str | None
) -> Iterator[Document]:
    """Those whose runs are still to be started by them, by their time."""
    found = []
    for stored in projection.of_kind("Reservation"):
        state, start_ms = projection.resolver.reservations[stored.name], starts_ms(stored)
        run = reservation_spec(stored).run
        if not state.waits or start_ms >= until_ms or projection.get("Run", run) is None:
            continue
        planned = _planned(projection, run, max(start_ms, since_ms))
        if flavor in (None, planned["flavor"]):
            row = {"reservation": stored.name, **planned, "state": state.state}
            found.append((start_ms, stored.name, {**row, "reason": state.reason}))
    yield from (row for *_, row in sorted(found, key=lambda row: row[:2]))
