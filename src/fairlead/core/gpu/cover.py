"""Cover: which envelopes pay for a request, all or nothing, and if none can, why not.

Every cap becomes a gate in the walk's own unit: how many more GPUs it lets through, for as long as
the request lasts. An envelope stands behind its own caps, its budget's aggregate caps and, for a
sponsor's, the lending sub-caps, the ACL and what the run may borrow. One greedy walk in cover
order, no backtracking. What an earlier line of the same plan takes counts against every cap, so two
envelopes of 8 under a cap of 10 give 8 + 2 and never 16.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

from fairlead.core.gpu.family import OWN, SPONSOR, Families, Tier
from fairlead.core.gpu.model import AggregateCap, Budget, Envelope, Lending, Request, Sharing
from fairlead.core.gpu.usage import Key, Usage, aggregate
from fairlead.core.invariant import require
from fairlead.core.reasons import CoverRefusal

# Named tuples, not dataclasses: a refused request makes three hundred of them, and a frozen
# dataclass takes four times as long to make (measured: half of such a decision's time).


class Binding(NamedTuple):
    """A cap that limited the walk. Hour caps are in GPU-milliseconds; `used` is before the plan."""

    kind: str
    budget: str | None
    name: str
    limit: int | None
    used: int
    hours: bool = False


class Gate(NamedTuple):
    """A cap and the GPUs it lets through before any line of the plan has passed."""

    cap: Binding
    gpus: int


class Candidate(NamedTuple):
    """An envelope that could pay, its place in the cover order, and the gates before it."""

    tier: Tier
    budget: Budget
    envelope: Envelope
    gates: tuple[int, ...]
    """Indexes into the route's gates."""


class Route(NamedTuple):
    """Candidates in cover order, and every gate on the way to them once."""

    candidates: tuple[Candidate, ...]
    gates: tuple[Gate, ...]


class Line(NamedTuple):
    """One envelope's part of a plan."""

    budget: str
    envelope: str
    owner: str
    gpus: int
    tier: Tier

    @property
    def borrowed(self) -> bool:
        return self.tier.borrows


class Walk:
    """A greedy walk: what was granted, and the gates that let nothing more through, in order."""

    __slots__ = ("binding", "gpus", "left", "lines", "wanted")

    def __init__(self, wanted: int, rooms: Sequence[int] = ()) -> None:
        self.wanted, self.left = wanted, list(rooms)
        self.lines: list[Line] = []
        self.binding: dict[int, None] = {}
        self.gpus = 0

    def visit(self, candidate: Candidate) -> None:
        """Take from an envelope what all its gates let through."""
        left, gates = self.left, candidate.gates
        gpus = self.wanted - self.gpus
        for gate in gates:
            if left[gate] < gpus:  # noqa: PLR1730 - `min` takes three times as long
                gpus = left[gate]
        for gate in gates:
            rest = left[gate] = left[gate] - gpus
            if not rest:
                self.binding[gate] = None
        if gpus:
            budget, envelope = candidate.budget, candidate.envelope
            line = Line(budget.name, envelope.name, budget.owner, gpus, candidate.tier)
            self.lines.append(line)
            self.gpus += gpus


def take(route: Route, rooms: Sequence[int], wanted: int) -> Walk:
    """Walk the candidates until all that is wanted is granted; a room per gate."""
    walk = Walk(wanted, rooms)
    for candidate in route.candidates:
        if walk.gpus == wanted:
            break
        walk.visit(candidate)
    return walk


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
        self.claims: Mapping[Key, Usage] = {}
        """What counts as used, too, for requests of other owners than the envelope's."""
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
        return self._payers.get((owner, flavor), ())

    def used(self, budget: str, envelope: str) -> Usage:
        return self.usage.get((budget, envelope), _NO_USAGE)


_NO_USAGE = Usage()
_NO_CLAIMS: Mapping[Key, Usage] = {}


def find_route(
    book: Book, request: Request, now_ms: int, *, whole: bool = False
) -> tuple[Route, Walk]:
    """Every open envelope of the flavor that family or listed sponsors have, in cover order.

    Walked on the way, and no further than the request is covered in full (unless the `whole` route
    is asked for): most are covered by their own few envelopes, and of a family's hundred the usage
    and the caps of the other ninety need not be worked out (measured: a third of the time). A walk
    that falls short saw them all.
    """
    gates, walk = _Gates(book, request), Walk(request.gpus)
    candidates: list[Candidate] = []
    # Ranks differ, because a budget's envelopes have names of their own: nothing else is compared.
    for _, tier, payer, lent in sorted(_reachable(book, request, now_ms), key=itemgetter(0)):
        candidate = Candidate(tier, payer.budget, payer.envelope, gates.before(payer, lent=lent))
        candidates.append(candidate)
        walk.left += [gate.gpus for gate in gates.found[len(walk.left) :]]
        walk.visit(candidate)
        if walk.gpus == request.gpus and not whole:
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
        envelope = payer.envelope
        budget, name = payer.budget.name, envelope.name
        used = self._book.used(budget, name)
        claims = self._claims(payer.budget)
        if claims:
            used = used.with_more(claims.get((budget, name), _NO_USAGE))
        indexes = self._pair("envelope", budget, name, (envelope.gpus, envelope.max_hours_ms), used)
        for cap in payer.caps:
            indexes += self._aggregate(budget, cap, claims)
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

    def _claims(self, budget: Budget) -> Mapping[Key, Usage]:
        own = budget.owner == self._request.owner
        return _NO_CLAIMS if own else self._book.claims

    def _aggregate(
        self, budget: str, cap: AggregateCap, claims: Mapping[Key, Usage]
    ) -> tuple[int, ...]:
        known = self._known.get((budget, cap.name))
        if known is None:
            used = aggregate(self._book.usage, budget, cap.envelopes)
            if claims:
                used = used.with_more(aggregate(claims, budget, cap.envelopes))
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
    # needs nothing, not even that; an overdrawn cap still lets nothing through.
    enough = left_ms > 0 if request.duration_ms is None else left_ms >= 0
    return request.gpus if enough else 0


def _borrowing(request: Request) -> Iterator[Gate]:
    if not request.allow_borrow:
        yield Gate(Binding("borrow", None, "allow_borrow", 0, 0), 0)
    limit = request.max_borrow_gpus
    if limit is not None:
        yield Gate(Binding("borrow", None, "max_borrow_gpus", limit, 0), limit)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not covered: the first single relaxation that would have covered it."""

    code: CoverRefusal
    shortfall_gpus: int
    binding: tuple[Binding, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Who pays how many GPUs, in cover order; or a refusal, and then nothing is granted."""

    gpus: int
    lines: tuple[Line, ...]
    refusal: Refusal | None = None

    @property
    def funded(self) -> bool:
        return self.refusal is None


# What a refusal can be about, in the order in which it is asked: would the request be covered
# without these caps? Borrowing means both `allow_borrow` and its limit, hours all caps on hours.
_Concerns = Callable[[Binding], bool]
RELAXATIONS: tuple[tuple[CoverRefusal, _Concerns], ...] = (
    (CoverRefusal.BORROW_LIMIT_EXCEEDED, lambda cap: cap.kind == "borrow"),
    (CoverRefusal.ACL_DENIED, lambda cap: cap.kind == "acl"),
    (CoverRefusal.INTEGRAL_CAP_EXCEEDED, lambda cap: cap.hours),
)


def cover(book: Book, request: Request, now_ms: int) -> Plan:
    return plan_on(*find_route(book, request, now_ms), request)


def could_cover(book: Book, request: Request, now_ms: int) -> bool:
    """Whether a request would be covered if no lease took GPUs of envelopes; hours that are used
    or promised stay so."""
    idle = copy(book)
    idle.usage = {
        key: usage._replace(gpus=0, lent_gpus=0) for key, usage in sorted(book.usage.items())
    }
    return cover(idle, request, now_ms).funded


def plan_on(route: Route, walk: Walk, request: Request) -> Plan:
    enough = request.enough_gpus
    if walk.gpus < enough:
        return Plan(0, (), _refusal(route, request, walk))
    width = request.gpus
    if request.step_gpus is not None:
        width = enough + (walk.gpus - enough) // request.step_gpus * request.step_gpus
    lines = _narrowed(walk.lines, width)
    require(sum(line.gpus for line in lines) == width, "a plan grants exactly its width")
    return Plan(width, lines)


def _narrowed(lines: Iterable[Line], width: int) -> tuple[Line, ...]:
    """The plan of the same walk for a smaller request: its first `width` GPUs."""
    kept, left = [], width
    for line in lines:
        gpus = min(line.gpus, left)
        if gpus:
            kept.append(line._replace(gpus=gpus))
        left -= gpus
    return tuple(kept)


def _refusal(route: Route, request: Request, walk: Walk) -> Refusal:
    shortfall = request.enough_gpus - walk.gpus
    if not route.candidates:
        return Refusal(CoverRefusal.NO_ENVELOPE, shortfall, ())
    binding = [route.gates[gate].cap for gate in walk.binding]
    for code, concerns in RELAXATIONS:
        if not any(concerns(cap) for cap in binding):
            continue  # none of them stood in the way, so the walk would be the same
        rooms = [request.gpus if concerns(gate.cap) else gate.gpus for gate in route.gates]
        if take(route, rooms, request.enough_gpus).gpus == request.enough_gpus:
            return Refusal(code, shortfall, tuple(cap for cap in binding if concerns(cap)))
    return Refusal(CoverRefusal.CONCURRENCY_CAP_EXCEEDED, shortfall, tuple(binding))
