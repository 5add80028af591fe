"""The way of one request: which envelopes could pay, in which order, through which gates.

Every cap becomes a gate in the walk's own unit: how many more GPUs it lets through, for as long as
the request lasts. An envelope stands behind its own caps, its budget's aggregate caps and, for a
sponsor's, the lending sub-caps, the ACL and what the run may borrow.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from fairlead.core.gpu.family import ORDER, Families, Kin, Tier
from fairlead.core.gpu.model import (
    AggregateCap,
    Budget,
    Envelope,
    Lending,
    Request,
    Sharing,
)
from fairlead.core.gpu.usage import Key, Usage, aggregate


@dataclass(frozen=True, slots=True)
class Binding:
    """A cap that limited the walk. Hour caps are in GPU-milliseconds; `used` is before the plan."""

    kind: str
    budget: str | None
    name: str
    limit: int | None
    used: int
    hours: bool = False


@dataclass(frozen=True, slots=True)
class Gate:
    """A cap and the GPUs it lets through before any line of the plan has passed."""

    cap: Binding
    gpus: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """An envelope that could pay, its place in the cover order, and the gates before it."""

    tier: Tier
    budget: Budget
    envelope: Envelope
    gates: tuple[int, ...]
    """Indexes into the route's gates."""


@dataclass(frozen=True, slots=True)
class Route:
    """Candidates in cover order, and every gate on the way to them once."""

    candidates: tuple[Candidate, ...]
    gates: tuple[Gate, ...]


class Book:
    """Budgets and their usage, indexed for covering many requests."""

    def __init__(self, budgets: Iterable[Budget], usage: Mapping[Key, Usage]) -> None:
        self.budgets = sorted(budgets, key=lambda budget: budget.name)
        self.usage = usage
        self.families = Families(self.budgets)
        self.by_owner: dict[str, list[Budget]] = {}
        for budget in self.budgets:
            self.by_owner.setdefault(budget.owner, []).append(budget)

    def used(self, budget: str, envelope: str) -> Usage:
        """One envelope's usage."""
        return self.usage.get((budget, envelope), _NO_USAGE)


_NO_USAGE = Usage()


def find_route(book: Book, request: Request, now_ms: int) -> Route:
    """Every open envelope of the flavor that family or listed sponsors have, in cover order."""
    return _route(book, request, now_ms, wanted=None)


def find_start(book: Book, request: Request, now_ms: int) -> Route:
    """The route as far as the request is covered in full; all of it where it is not.

    Most requests are covered by their own few envelopes: of a family's hundred, the usage and the
    caps of the other ninety need not be worked out (measured: a third of the time).
    """
    return _route(book, request, now_ms, wanted=request.gpus)


def _route(book: Book, request: Request, now_ms: int, *, wanted: int | None) -> Route:
    ranked = sorted(_reachable(book, request, now_ms), key=lambda each: each[0])
    gates = _Gates(book, request)
    candidates: list[Candidate] = []
    left: list[int] = []
    for _, tier, budget, envelope in ranked:
        before = gates.before(tier, budget, envelope)
        candidates.append(Candidate(tier, budget, envelope, before))
        if wanted is None:
            continue
        left += [gate.gpus for gate in gates.found[len(left) :]]
        gpus = min(wanted, *(left[gate] for gate in before))
        for gate in before:
            left[gate] -= gpus
        wanted -= gpus
        if not wanted:
            break
    return Route(tuple(candidates), tuple(gates.found))


_Rank = tuple[int, int, str, str, str]


def _reachable(
    book: Book, request: Request, now_ms: int
) -> Iterator[tuple[_Rank, Tier, Budget, Envelope]]:
    turn = {owner: place for place, owner in reversed(list(enumerate(request.sponsors)))}
    for owner, kin in book.families.kin(request.owner, request.sponsors).items():
        for budget in book.by_owner.get(owner, ()):
            for envelope in budget.envelopes:
                if envelope.flavor != request.flavor or not envelope.is_open(now_ms):
                    continue
                if _shut(kin, envelope):
                    continue
                tier = kin.here if envelope.serves(request.location) else kin.elsewhere
                place = turn[owner] if tier.borrows else 0
                rank = (ORDER[tier], place, owner, budget.name, envelope.name)
                yield rank, tier, budget, envelope


def _shut(kin: Kin, envelope: Envelope) -> bool:
    """Family use of another's envelope needs `sharing: family`; sponsors have their ACLs."""
    if kin.here in (Tier.OWN, Tier.SPONSOR):
        return False
    return envelope.sharing is not Sharing.FAMILY


class _Gates:
    """The gates of a route, each worked out once: an aggregate cap has many members."""

    def __init__(self, book: Book, request: Request) -> None:
        self._book, self._request = book, request
        self.found: list[Gate] = []
        self._known: dict[tuple[str, str, str], tuple[int, ...]] = {}
        self._borrowing: tuple[int, ...] | None = None

    def before(self, tier: Tier, budget: Budget, envelope: Envelope) -> tuple[int, ...]:
        """Indexes of the gates before an envelope."""
        request, at = self._request, (budget.name, envelope.name)
        used = self._book.used(*at)
        own = (envelope.gpus, envelope.max_hours_ms)
        indexes = self._add(_pair(request, ("envelope", *at), own, used))
        for cap in budget.aggregate_caps:
            if cap.flavor == request.flavor and envelope.name in cap.envelopes:
                indexes += self._aggregate(budget.name, cap)
        if tier.borrows:
            indexes += self._lent(at, envelope.lending, used)
        return indexes

    def _add(self, gates: Iterable[Gate]) -> tuple[int, ...]:
        first = len(self.found)
        self.found.extend(gates)
        return tuple(range(first, len(self.found)))

    def _aggregate(self, budget: str, cap: AggregateCap) -> tuple[int, ...]:
        at = ("aggregate", budget, cap.name)
        known = self._known.get(at)
        if known is None:
            used = aggregate(self._book.usage, budget, cap.envelopes)
            limits = (cap.max_gpus, cap.max_hours_ms)
            known = self._known[at] = self._add(_pair(self._request, at, limits, used))
        return known

    def _lent(self, at: tuple[str, str], lending: Lending, used: Usage) -> tuple[int, ...]:
        lent = Usage(used.lent_gpus, used.lent_used_ms, used.lent_held_ms)
        limits = (lending.max_gpus, lending.max_hours_ms)
        indexes = self._add(_pair(self._request, ("lending", *at), limits, lent))
        if not lending.admits(self._request.owner):
            indexes += self._add([Gate(Binding("acl", *at, None, 0), 0)])
        if self._borrowing is None:
            self._borrowing = self._add(_borrowing(self._request))
        return indexes + self._borrowing


def _pair(
    request: Request, at: tuple[str, str, str], limits: tuple[int | None, int | None], used: Usage
) -> list[Gate]:
    """The gates of one cap: on GPUs at once and on hours, where it has them."""
    limit_gpus, limit_ms = limits
    gates = []
    if limit_gpus is not None:
        gates.append(Gate(Binding(*at, limit_gpus, used.gpus), max(0, limit_gpus - used.gpus)))
    if limit_ms is not None:
        spent_ms = used.used_ms + used.held_ms
        passing = _paid(limit_ms - spent_ms, request)
        gates.append(Gate(Binding(*at, limit_ms, spent_ms, hours=True), passing))
    return gates


def _paid(left_ms: int, request: Request) -> int:
    """How many GPUs the hours left pay for, for as long as the request lasts."""
    if request.duration_ms:
        return max(0, left_ms // request.duration_ms)
    # A run without a duration holds nothing, but something must be left. One of no length at all
    # needs nothing, not even that; an overdrawn cap still lets nobody in.
    enough = left_ms > 0 if request.duration_ms is None else left_ms >= 0
    return request.gpus if enough else 0


def _borrowing(request: Request) -> Iterator[Gate]:
    if not request.allow_borrow:
        yield Gate(Binding("borrow", None, "allow_borrow", 0, 0), 0)
    limit = request.max_borrow_gpus
    if limit is not None:
        yield Gate(Binding("borrow", None, "max_borrow_gpus", limit, 0), limit)
