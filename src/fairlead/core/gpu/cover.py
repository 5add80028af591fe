"""Cover: which envelopes pay for a request, all or nothing, and if none can, why not.

One greedy walk in cover order, no backtracking. What an earlier line of the same plan takes counts
against every cap, so two envelopes of 8 under a cap of 10 give 8 + 2 and never 16.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fairlead.core.gpu.family import ORDER, Families, Kin, Tier
from fairlead.core.gpu.model import AggregateCap, Budget, Envelope, Request, Sharing
from fairlead.core.gpu.usage import Key, Usage, aggregate
from fairlead.core.invariant import require
from fairlead.core.reasons import CoverRefusal


@dataclass(frozen=True, slots=True)
class Line:
    """One envelope's part of a plan."""

    budget: str
    envelope: str
    owner: str
    gpus: int
    tier: Tier

    @property
    def borrowed(self) -> bool:
        """Whether it is a loan from a sponsor."""
        return self.tier.borrows


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
        """Whether the request is covered."""
        return self.refusal is None


@dataclass(frozen=True, slots=True)
class Relaxed:
    """Caps left out of a walk, to find out which one stood in the way."""

    borrow: bool = False
    acl: bool = False
    hours: bool = False


NOTHING_RELAXED = Relaxed()


@dataclass(frozen=True, slots=True)
class Candidate:
    """An envelope that could pay, its place in the cover order, and the caps over it."""

    tier: Tier
    rank: tuple[int, int, str, str, str]
    budget: Budget
    envelope: Envelope
    caps: tuple[AggregateCap, ...]


@dataclass(slots=True)
class Walk:
    """A greedy walk: what was granted, and the caps that said no."""

    lines: list[Line] = field(default_factory=list)
    binding: list[Binding] = field(default_factory=list)
    gpus: int = 0


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


def cover(book: Book, request: Request, now_ms: int) -> Plan:
    """Cover a request, or refuse it with the reason."""
    candidates = reachable(book, request, now_ms)
    walk = take(book, request, candidates)
    enough = request.enough_gpus
    if walk.gpus >= enough:
        width = request.gpus
        if request.step_gpus is not None:
            width = enough + (walk.gpus - enough) // request.step_gpus * request.step_gpus
        lines = _narrowed(walk.lines, width)
        require(sum(line.gpus for line in lines) == width, "a plan grants exactly its width")
        return Plan(width, lines)
    code = _refusal_code(book, request, candidates)
    return Plan(0, (), Refusal(code, enough - walk.gpus, _relevant(walk.binding, code)))


def _narrowed(lines: Iterable[Line], width: int) -> tuple[Line, ...]:
    """The plan of the same walk for a smaller request: its first `width` GPUs."""
    kept, left = [], width
    for line in lines:
        gpus = min(line.gpus, left)
        if gpus:
            kept.append(Line(line.budget, line.envelope, line.owner, gpus, line.tier))
        left -= gpus
    return tuple(kept)


def reachable(book: Book, request: Request, now_ms: int) -> list[Candidate]:
    """Every open envelope of the flavor that family or listed sponsors have, in cover order."""
    sponsor_rank = {owner: rank for rank, owner in reversed(list(enumerate(request.sponsors)))}
    found = []
    for owner, kin in book.families.kin(request.owner, request.sponsors).items():
        for budget in book.by_owner.get(owner, ()):
            for envelope in budget.envelopes:
                if envelope.flavor != request.flavor or not envelope.is_open(now_ms):
                    continue
                if _shut(kin, envelope):
                    continue
                tier = kin.here if envelope.serves(request.location) else kin.elsewhere
                place = sponsor_rank[owner] if tier.borrows else 0
                rank = (ORDER[tier], place, owner, budget.name, envelope.name)
                caps = tuple(
                    cap
                    for cap in budget.aggregate_caps
                    if cap.flavor == request.flavor and envelope.name in cap.envelopes
                )
                found.append(Candidate(tier, rank, budget, envelope, caps))
    return sorted(found, key=lambda candidate: candidate.rank)


def _shut(kin: Kin, envelope: Envelope) -> bool:
    """Family use of another's envelope needs `sharing: family`; sponsors have their ACLs."""
    if kin.here in (Tier.OWN, Tier.SPONSOR):
        return False
    return envelope.sharing is not Sharing.FAMILY


def take(
    book: Book, request: Request, candidates: Iterable[Candidate],
    relaxed: Relaxed = NOTHING_RELAXED,
) -> Walk:  # fmt: skip
    """Walk the candidates, taking from each what all its caps allow."""
    walk, meter = Walk(), _Meter(book, request, relaxed)
    for candidate in candidates:
        left = request.gpus - walk.gpus
        if not left:
            break
        gpus, binding = meter.allowed(candidate, left)
        walk.binding.extend(entry for entry in binding if entry not in walk.binding)
        if gpus:
            meter.grant(candidate, gpus)
            walk.gpus += gpus
            walk.lines.append(
                Line(
                    candidate.budget.name, candidate.envelope.name, candidate.budget.owner, gpus,
                    candidate.tier,
                )
            )  # fmt: skip
    return walk


class _Meter:
    """What each cap has left during one walk."""

    def __init__(self, book: Book, request: Request, relaxed: Relaxed) -> None:
        self._book, self._request, self._relaxed = book, request, relaxed
        self._granted: dict[Key, int] = {}
        self._borrowed = 0

    def grant(self, candidate: Candidate, gpus: int) -> None:
        """Count a line of the plan against its caps."""
        key = (candidate.budget.name, candidate.envelope.name)
        self._granted[key] = self._granted.get(key, 0) + gpus
        if candidate.tier.borrows:
            self._borrowed += gpus

    def allowed(self, candidate: Candidate, wanted: int) -> tuple[int, list[Binding]]:
        """How many GPUs all caps together allow, and the caps that allow no more."""
        gates = list(self._gates(candidate))
        allowed = min([wanted, *(gpus for gpus, _ in gates)])
        if allowed == wanted:
            return wanted, []
        return allowed, [binding for gpus, binding in gates if gpus == allowed]

    def _gates(self, candidate: Candidate) -> Iterable[tuple[int, Binding]]:
        budget, envelope = candidate.budget.name, candidate.envelope
        used = self._book.used(budget, envelope.name)
        taken = self._granted.get((budget, envelope.name), 0)
        own = Binding("envelope", budget, envelope.name, envelope.gpus, used.gpus)
        yield self._gpus_left(own, taken), own
        if envelope.max_hours_ms is not None:
            spent = used.used_ms + used.held_ms
            own = Binding("envelope", budget, envelope.name, envelope.max_hours_ms, spent, True)
            yield self._hours_left(own, taken), own
        for cap in candidate.caps:
            yield from self._aggregate_gates(budget, cap)
        if candidate.tier.borrows:
            yield from self._loan_gates(candidate, used, taken)

    def _aggregate_gates(self, budget: str, cap: AggregateCap) -> Iterable[tuple[int, Binding]]:
        whole = aggregate(self._book.usage, budget, cap.envelopes)
        taken = sum(self._granted.get((budget, name), 0) for name in cap.envelopes)
        if cap.max_gpus is not None:
            gate = Binding("aggregate", budget, cap.name, cap.max_gpus, whole.gpus)
            yield self._gpus_left(gate, taken), gate
        if cap.max_hours_ms is not None:
            spent = whole.used_ms + whole.held_ms
            gate = Binding("aggregate", budget, cap.name, cap.max_hours_ms, spent, True)
            yield self._hours_left(gate, taken), gate

    def _loan_gates(
        self, candidate: Candidate, used: Usage, taken: int
    ) -> Iterable[tuple[int, Binding]]:
        request, lending = self._request, candidate.envelope.lending
        budget, name = candidate.budget.name, candidate.envelope.name
        if lending.max_gpus is not None:
            gate = Binding("lending", budget, name, lending.max_gpus, used.lent_gpus)
            yield self._gpus_left(gate, taken), gate
        if lending.max_hours_ms is not None:
            spent = used.lent_used_ms + used.lent_held_ms
            gate = Binding("lending", budget, name, lending.max_hours_ms, spent, True)
            yield self._hours_left(gate, taken), gate
        if not self._relaxed.acl and not lending.admits(request.owner):
            yield 0, Binding("acl", budget, name, None, 0)
        if self._relaxed.borrow:
            return
        if not request.allow_borrow:
            yield 0, Binding("borrow", None, "allow_borrow", 0, 0)
        elif request.max_borrow_gpus is not None:
            gate = Binding("borrow", None, "max_borrow_gpus", request.max_borrow_gpus, 0)
            yield max(0, request.max_borrow_gpus - self._borrowed), gate

    @staticmethod
    def _gpus_left(gate: Binding, taken: int) -> int:
        return max(0, (gate.limit or 0) - gate.used - taken)

    def _hours_left(self, gate: Binding, taken: int) -> int:
        """How many GPUs the hours left pay for, for as long as the request lasts."""
        everything, duration = self._request.gpus, self._request.duration_ms
        if self._relaxed.hours:
            return everything
        left = (gate.limit or 0) - gate.used - taken * (duration or 0)
        if duration is None:
            # A run without a duration holds nothing, but somebody must have hours left.
            return everything if left > 0 else 0
        if duration == 0:
            return everything if left >= 0 else 0
        return max(0, left // duration)


def _refusal_code(
    book: Book, request: Request, candidates: list[Candidate]
) -> CoverRefusal:  # fmt: skip
    if not candidates:
        return CoverRefusal.NO_ENVELOPE
    for code, relaxed in (
        (CoverRefusal.BORROW_LIMIT_EXCEEDED, Relaxed(borrow=True)),
        (CoverRefusal.ACL_DENIED, Relaxed(acl=True)),
        (CoverRefusal.INTEGRAL_CAP_EXCEEDED, Relaxed(hours=True)),
    ):
        if take(book, request, candidates, relaxed).gpus >= request.enough_gpus:
            return code
    return CoverRefusal.CONCURRENCY_CAP_EXCEEDED


_KINDS = {
    CoverRefusal.BORROW_LIMIT_EXCEEDED: lambda b: b.kind == "borrow",
    CoverRefusal.ACL_DENIED: lambda b: b.kind == "acl",
    CoverRefusal.INTEGRAL_CAP_EXCEEDED: lambda b: b.hours,
}


def _relevant(binding: list[Binding], code: CoverRefusal) -> tuple[Binding, ...]:
    """The caps that the refusal is about; all that bound when it is not about one kind."""
    about = _KINDS.get(code)
    chosen = [entry for entry in binding if about(entry)] if about else binding
    return tuple(chosen or binding)
