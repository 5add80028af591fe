"""The smallest single change that would cover a refused request, found on the real walk.

Kinds are tried in a fixed order; within a kind the smallest new value wins, ties by budget and
name. A change makes room at one gate of the route, so every kind is searched alike.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from fairlead.core.gpu.cover import Binding, Book, Plan, Route, Walk, find_route, plan_on, take
from fairlead.core.gpu.model import Request
from fairlead.core.invariant import require


class Change(StrEnum):
    """What can be changed, in the order in which it is tried."""

    ENVELOPE_CONCURRENCY = "envelope-concurrency"
    AGGREGATE_CONCURRENCY = "aggregate-concurrency"
    ENVELOPE_HOURS = "envelope-hours"
    AGGREGATE_HOURS = "aggregate-hours"
    LENDING_CONCURRENCY = "lending-concurrency"
    LENDING_HOURS = "lending-hours"
    LENDING_ACL = "lending-acl"
    BORROW_LIMIT = "borrow-limit"

    @property
    def in_hours(self) -> bool:
        return _CAPS[self][1]


# The caps that each change makes room under: their kind, and whether they are on hours.
_CAPS = {
    Change.ENVELOPE_CONCURRENCY: ("envelope", False),
    Change.AGGREGATE_CONCURRENCY: ("aggregate", False),
    Change.ENVELOPE_HOURS: ("envelope", True),
    Change.AGGREGATE_HOURS: ("aggregate", True),
    Change.LENDING_CONCURRENCY: ("lending", False),
    Change.LENDING_HOURS: ("lending", True),
    Change.LENDING_ACL: ("acl", False),
    Change.BORROW_LIMIT: ("borrow", False),
}

Value = int | bool | tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change: which cap, from which value to which."""

    change: Change
    budget: str | None
    name: str
    before: Value
    after: Value


def cover_or_remedy(book: Book, request: Request, now_ms: int) -> tuple[Plan, Remedy | None]:
    """The plan; where it is a refusal, also the smallest change that would cover the request."""
    route, walk = find_route(book, request, now_ms)
    plan = plan_on(route, walk, request)
    return plan, None if plan.funded else _search(route, walk, request)


def _search(route: Route, walk: Walk, request: Request) -> Remedy | None:
    enough = request.enough_gpus
    rooms = [gate.gpus for gate in route.gates]
    # More room at a gate that let all of the walk through changes nothing.
    dam = Dam(route, walk, enough)
    shut = [gate for gate in walk.binding if dam.may_help(gate)]
    for change in Change:
        best = min(_raised(change, route, request, shut), default=None)
        if best is not None:
            _, _, _, index, gpus = best
            rooms[index] = gpus
            require(take(route, rooms, enough).gpus == enough, "a remedy covers the request")
            return _remedy(change, route, request, index, gpus)
    return None


class Dam:
    """Shut gates that every candidate stands behind: all they let through is all there can be.

    Where the walk fell short, each candidate found a gate with nothing left, so there is such a
    set. It bounds what a change at one gate can bring at most, without walking again: with the
    gate gone, those behind it and no other one of the dam stand before their next gates. Most
    gates of a large family are ruled out so (measured: 23 ms of search become 1).
    """

    def __init__(self, route: Route, walk: Walk, enough: int) -> None:
        self._route, self._enough = route, enough
        behind: dict[int, list[int]] = {gate: [] for gate in walk.binding}
        for place, candidate in enumerate(route.candidates):
            for gate in candidate.gates:
                if gate in behind:
                    behind[gate].append(place)
        dam: set[int] = set()
        self._only: dict[int, list[int]] = {}
        """Of each gate of the dam: the candidates that stand behind no other one of it."""
        for candidate in route.candidates:
            if dam.isdisjoint(candidate.gates):
                shut = [gate for gate in candidate.gates if gate in behind]
                dam.add(max(shut, key=lambda gate: (len(behind[gate]), -gate)))
        for gate in dam:
            self._only[gate] = [
                place
                for place in behind[gate]
                if dam.isdisjoint(set(route.candidates[place].gates) - {gate})
            ]
        self._gpus = sum(route.gates[gate].gpus for gate in dam)

    def may_help(self, gate: int) -> bool:
        most, gates = self._gpus, self._route.gates
        if gate in self._only:
            most -= gates[gate].gpus
            for place in self._only[gate]:
                others = [
                    gates[other].gpus
                    for other in self._route.candidates[place].gates
                    if other != gate
                ]
                most += min(others, default=self._enough)
        return most >= self._enough


def _raised(
    change: Change, route: Route, request: Request, shut: Iterable[int]
) -> Iterator[tuple[int, str, str, int, int]]:
    """The new limit of each cap that helps, with its budget, its name, its gate and the room."""
    for index in shut:
        cap = route.gates[index].cap
        if (cap.kind, cap.hours) == _CAPS[change]:
            gpus = _least_room(route, index, request)
            if gpus is not None:
                yield _limit(cap, gpus, request), cap.budget or "", cap.name, index, gpus


def _limit(cap: Binding, gpus: int, request: Request) -> int:
    """The least limit that lets so many GPUs through; an open ACL has none, and compares as 0."""
    if cap.kind == "acl":
        return 0
    if not cap.hours:
        return cap.used + gpus
    return cap.used + (1 if request.duration_ms is None else gpus * request.duration_ms)


def _remedy(change: Change, route: Route, request: Request, index: int, gpus: int) -> Remedy:
    cap = route.gates[index].cap
    before: Value = cap.limit
    after: Value = _limit(cap, gpus, request)
    if change is Change.LENDING_ACL:
        lender = next(payer for payer in route.candidates if index in payer.gates)
        before = tuple(sorted(lender.envelope.lending.to))
        after = (*before, request.owner)
    elif _is_switch(cap):
        before, after = False, True
    return Remedy(change, cap.budget, cap.name, before, after)


def _is_switch(cap: Binding) -> bool:
    return cap.kind == "acl" or (cap.kind == "borrow" and cap.name == "allow_borrow")


def _least_room(route: Route, index: int, request: Request) -> int | None:
    """The least room at one gate, above what it has, with which the walk covers the request.

    More room can also harm: under caps on {a, b} and {a, c}, a GPU more from a is one less from
    both others. So the walk is followed upwards along its straight pieces, which takes a step or
    two per piece, and not bisected, which may jump over the place where the request is covered.
    """
    cap, enough = route.gates[index].cap, request.enough_gpus
    room = route.gates[index].gpus + 1
    if _is_switch(cap) or (cap.hours and not request.duration_ms):
        room = max(room, enough)  # these let everything through or nothing
    while room <= enough:  # a gate that lets all of it through binds nothing
        gpus, slope, reach = _glide(route, index, room, enough)
        if gpus >= enough:
            return room
        if slope > 0 and gpus + slope * reach >= enough:
            return room - (gpus - enough) // slope
        room += max(1, reach)
    return None


def _glide(route: Route, index: int, room: int, reach: int) -> tuple[int, int, int]:
    """Walk with `room` at one gate: GPUs granted, their slope over it, how far the slope holds.

    Each gate's room is carried with its slope. The narrowest gate decides, and among equals the
    one that will be narrower; the slope holds until another gate becomes the narrowest.
    """
    left = [(gate.gpus, 0) for gate in route.gates]
    left[index] = (room, 1)
    total, slope = 0, 0
    for candidate in route.candidates:
        ahead = [left[gate] for gate in candidate.gates]
        gpus, rise = min(ahead)
        for other, pace in ahead:
            if pace < rise:
                reach = min(reach, (other - gpus) // (rise - pace))
        for gate, (other, pace) in zip(candidate.gates, ahead, strict=True):
            left[gate] = (other - gpus, pace - rise)
        total, slope = total + gpus, slope + rise
    return total, slope, reach
