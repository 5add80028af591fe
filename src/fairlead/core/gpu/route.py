"""The way of one request: which envelopes could pay, in which order, through which gates.

Every cap becomes a gate in the walk's own unit: how many more GPUs it lets through, for as long as
the request lasts. An envelope stands behind its own caps, its budget's aggregate caps and, for a
sponsor's, the lending sub-caps, the ACL and what the run may borrow.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from fairlead.core.gpu.family import OWN, SPONSOR, Families, Tier
from fairlead.core.gpu.model import AggregateCap, Budget, Envelope, Lending, Request, Sharing
from fairlead.core.gpu.usage import Key, Usage, aggregate
from fairlead.core.gpu.walk import Binding, Candidate, Gate, Route, Walk


class Payer(NamedTuple):
    """An envelope with the aggregate caps that it counts against."""

    budget: Budget
    envelope: Envelope
    caps: tuple[AggregateCap, ...]


class Book:
    """Budgets and their usage, indexed for covering many requests."""

    def __init__(self, budgets: Iterable[Budget], usage: Mapping[Key, Usage]) -> None:
        self.budgets = sorted(budgets, key=lambda budget: budget.name)
        self.usage = usage
        self.families = Families(self.budgets)
        self.by_owner: dict[str, list[Budget]] = {}
        self._payers: dict[tuple[str, str], list[Payer]] = {}
        for budget in self.budgets:
            self.by_owner.setdefault(budget.owner, []).append(budget)
            # By name: what binds, and so a refusal, does not follow the order of the document.
            by_name = sorted(budget.aggregate_caps, key=lambda cap: cap.name)
            for envelope in budget.envelopes:
                caps = tuple(cap for cap in by_name if envelope.name in cap.envelopes)
                payers = self._payers.setdefault((budget.owner, envelope.flavor), [])
                payers.append(Payer(budget, envelope, caps))

    def payers(self, owner: str, flavor: str) -> Iterable[Payer]:
        """An owner's envelopes of a flavor."""
        return self._payers.get((owner, flavor), ())

    def used(self, budget: str, envelope: str) -> Usage:
        """One envelope's usage."""
        return self.usage.get((budget, envelope), _NO_USAGE)


_NO_USAGE = Usage()


def find_route(book: Book, request: Request, now_ms: int) -> tuple[Route, Walk]:
    """Every open envelope of the flavor that family or listed sponsors have, in cover order.

    Walked on the way, and no further than the request is covered in full: most are covered by
    their own few envelopes, and of a family's hundred the usage and the caps of the other ninety
    need not be worked out (measured: a third of the time). A walk that falls short saw them all.
    """
    gates, walk = _Gates(book, request), Walk(request.gpus)
    candidates: list[Candidate] = []
    # Ranks differ, because a budget's envelopes have names of their own: nothing else is compared.
    for _, tier, payer, lent in sorted(_reachable(book, request, now_ms), key=lambda each: each[0]):
        candidate = Candidate(tier, payer.budget, payer.envelope, gates.before(payer, lent=lent))
        candidates.append(candidate)
        walk.left += [gate.gpus for gate in gates.found[len(walk.left) :]]
        walk.visit(candidate)
        if walk.gpus == request.gpus:
            break
    return Route(tuple(candidates), tuple(gates.found)), walk


_Rank = tuple[int, int, str, str, str]


def _reachable(
    book: Book, request: Request, now_ms: int
) -> Iterator[tuple[_Rank, Tier, Payer, bool]]:
    """Rank, tier and payer; and whether it would be a loan."""
    turn = {owner: place for place, owner in reversed(list(enumerate(request.sponsors)))}
    for owner, kin in book.families.kin(request.owner, request.sponsors).items():
        lent = kin is SPONSOR
        place = turn[owner] if lent else 0
        # Family use of another's envelope needs `sharing: family`; sponsors have their ACLs.
        free = lent or kin is OWN
        for payer in book.payers(owner, request.flavor):
            envelope = payer.envelope
            if not (free or envelope.sharing is Sharing.FAMILY) or not envelope.is_open(now_ms):
                continue
            if envelope.serves(request.location):
                tier, order = kin.here, kin.here_order
            else:
                tier, order = kin.elsewhere, kin.elsewhere_order
            rank = (order, place, owner, payer.budget.name, envelope.name)
            yield rank, tier, payer, lent


class _Gates:
    """The gates of a route, each worked out once: an aggregate cap has many members."""

    def __init__(self, book: Book, request: Request) -> None:
        self._book, self._request = book, request
        self.found: list[Gate] = []
        self._known: dict[tuple[str, str], tuple[int, ...]] = {}
        self._borrowing: tuple[int, ...] | None = None

    def before(self, payer: Payer, *, lent: bool) -> tuple[int, ...]:
        """Indexes of the gates before an envelope."""
        envelope = payer.envelope
        budget, name = payer.budget.name, envelope.name
        used = self._book.used(budget, name)
        indexes = self._pair("envelope", budget, name, (envelope.gpus, envelope.max_hours_ms), used)
        for cap in payer.caps:
            indexes += self._aggregate(budget, cap)
        if lent:
            indexes += self._lent(budget, name, envelope.lending, used)
        return indexes

    def _pair(
        self, kind: str, budget: str, name: str, limits: tuple[int | None, int | None], used: Usage
    ) -> tuple[int, ...]:
        """The gates of one cap: on GPUs at once and on hours, where it has them."""
        limit_gpus, limit_ms = limits
        first, found = len(self.found), self.found
        if limit_gpus is not None:
            cap = Binding(kind, budget, name, limit_gpus, used.gpus)
            found.append(Gate(cap, max(0, limit_gpus - used.gpus)))
        if limit_ms is not None:
            spent_ms = used.used_ms + used.held_ms
            cap = Binding(kind, budget, name, limit_ms, spent_ms, hours=True)
            found.append(Gate(cap, _paid(limit_ms - spent_ms, self._request)))
        return tuple(range(first, len(found)))

    def _aggregate(self, budget: str, cap: AggregateCap) -> tuple[int, ...]:
        known = self._known.get((budget, cap.name))
        if known is None:
            used = aggregate(self._book.usage, budget, cap.envelopes)
            limits = (cap.max_gpus, cap.max_hours_ms)
            known = self._pair("aggregate", budget, cap.name, limits, used)
            self._known[budget, cap.name] = known
        return known

    def _lent(self, budget: str, name: str, lending: Lending, used: Usage) -> tuple[int, ...]:
        lent = Usage(used.lent_gpus, used.lent_used_ms, used.lent_held_ms)
        limits = (lending.max_gpus, lending.max_hours_ms)
        indexes = self._pair("lending", budget, name, limits, lent)
        if not lending.admits(self._request.owner):
            indexes += self._add([Gate(Binding("acl", budget, name, None, 0), 0)])
        if self._borrowing is None:
            self._borrowing = self._add(_borrowing(self._request))
        return indexes + self._borrowing

    def _add(self, gates: Iterable[Gate]) -> tuple[int, ...]:
        first = len(self.found)
        self.found.extend(gates)
        return tuple(range(first, len(self.found)))


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
