"""The smallest single change that would cover a refused request, found on the real walk.

Every answer was tried: the same `take` that refused the request accepts it after the change. Kinds
are tried in a fixed order; within a kind the smallest new value wins, ties by budget and name.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from fairlead.core.gpu.cover import Book, Candidate, reachable, take
from fairlead.core.gpu.model import AggregateCap, Envelope, Request
from fairlead.core.gpu.usage import aggregate


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
        """Whether its values are GPU-milliseconds."""
        return self in (Change.ENVELOPE_HOURS, Change.AGGREGATE_HOURS, Change.LENDING_HOURS)


Value = int | bool | tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change: which cap, from which value to which."""

    change: Change
    budget: str | None
    name: str
    before: Value
    after: Value


@dataclass(frozen=True, slots=True)
class _Knob:
    """A number that can be raised: its value, how far is surely enough, and how to try a value."""

    budget: str
    name: str
    before: int
    enough: int
    tried: Callable[[int], list[Candidate]]


def find_remedy(book: Book, request: Request, now_ms: int) -> Remedy | None:
    """The first kind of change that helps alone, with its smallest value; None when none does."""
    candidates = reachable(book, request, now_ms)

    def covers(changed: Iterable[Candidate], asked: Request = request) -> bool:
        return take(book, asked, changed).gpus >= request.enough_gpus

    for change in Change:
        if change is Change.LENDING_ACL:
            found = _acl(candidates, request, covers)
        elif change is Change.BORROW_LIMIT:
            found = _borrow(candidates, request, covers)
        else:
            found = _smallest(change, _knobs(change, book, request, candidates), covers)
        if found is not None:
            return found
    return None


def _smallest(
    change: Change, knobs: Iterable[_Knob], covers: Callable[[list[Candidate]], bool]
) -> Remedy | None:
    best: tuple[int, str, str] | None = None
    before = 0
    for knob in knobs:
        if not covers(knob.tried(knob.enough)):
            continue
        low, high = knob.before, knob.enough  # fails at low, covers at high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if covers(knob.tried(middle)) else (middle, high)
        if best is None or (high, knob.budget, knob.name) < best:
            best, before = (high, knob.budget, knob.name), knob.before
    if best is None:
        return None
    after, budget, name = best
    return Remedy(change, budget, name, before, after)


def _knobs(
    change: Change, book: Book, request: Request, candidates: list[Candidate]
) -> Iterator[_Knob]:
    """Every cap of one kind that could be raised above its value."""
    whole_ms = request.gpus * (request.duration_ms or 0) + 1
    for candidate in candidates:
        budget, envelope = candidate.budget.name, candidate.envelope
        used, lending = book.used(budget, envelope.name), candidate.envelope.lending
        lent_ms = used.lent_used_ms + used.lent_held_ms
        knob: tuple[int | None, int, Callable[[Envelope, int], Envelope]]
        if change is Change.ENVELOPE_CONCURRENCY:
            knob = (envelope.gpus, used.gpus + request.gpus, _set_gpus)
        elif change is Change.ENVELOPE_HOURS:
            knob = (envelope.max_hours_ms, used.used_ms + used.held_ms + whole_ms, _set_hours)
        elif change is Change.LENDING_CONCURRENCY and candidate.tier.borrows:
            knob = (lending.max_gpus, used.lent_gpus + request.gpus, _set_lent_gpus)
        elif change is Change.LENDING_HOURS and candidate.tier.borrows:
            knob = (lending.max_hours_ms, lent_ms + whole_ms, _set_lent_hours)
        else:
            continue
        before, enough, setter = knob
        if before is not None and enough > before:
            yield _Knob(
                budget, envelope.name, before, enough,
                _envelope_trial(candidates, candidate, setter),
            )  # fmt: skip
    if change in (Change.AGGREGATE_CONCURRENCY, Change.AGGREGATE_HOURS):
        yield from _aggregate_knobs(change, book, request, candidates, whole_ms)


def _aggregate_knobs(
    change: Change, book: Book, request: Request, candidates: list[Candidate], whole_ms: int
) -> Iterator[_Knob]:
    seen: set[tuple[str, str]] = set()
    for candidate in candidates:
        budget = candidate.budget.name
        for cap in candidate.caps:
            if (budget, cap.name) in seen:
                continue
            seen.add((budget, cap.name))
            used = aggregate(book.usage, budget, cap.envelopes)
            if change is Change.AGGREGATE_CONCURRENCY:
                before, enough = cap.max_gpus, used.gpus + request.gpus
            else:
                before, enough = cap.max_hours_ms, used.used_ms + used.held_ms + whole_ms
            if before is not None and enough > before:
                trial = _aggregate_trial(candidates, budget, cap, change)
                yield _Knob(budget, cap.name, before, enough, trial)


def _set_gpus(envelope: Envelope, value: int) -> Envelope:
    return replace(envelope, gpus=value)


def _set_hours(envelope: Envelope, value: int) -> Envelope:
    return replace(envelope, max_hours_ms=value)


def _set_lent_gpus(envelope: Envelope, value: int) -> Envelope:
    return replace(envelope, lending=replace(envelope.lending, max_gpus=value))


def _set_lent_hours(envelope: Envelope, value: int) -> Envelope:
    return replace(envelope, lending=replace(envelope.lending, max_hours_ms=value))


def _envelope_trial(
    candidates: list[Candidate], target: Candidate, setter: Callable[[Envelope, int], Envelope]
) -> Callable[[int], list[Candidate]]:
    def tried(value: int) -> list[Candidate]:
        return [
            replace(each, envelope=setter(each.envelope, value)) if each is target else each
            for each in candidates
        ]

    return tried


def _aggregate_trial(
    candidates: list[Candidate], budget: str, target: AggregateCap, change: Change
) -> Callable[[int], list[Candidate]]:
    def raised(cap: AggregateCap, value: int) -> AggregateCap:
        if cap.name != target.name:
            return cap
        if change is Change.AGGREGATE_CONCURRENCY:
            return replace(cap, max_gpus=value)
        return replace(cap, max_hours_ms=value)

    def tried(value: int) -> list[Candidate]:
        return [
            replace(each, caps=tuple(raised(cap, value) for cap in each.caps))
            if each.budget.name == budget
            else each
            for each in candidates
        ]

    return tried


def _acl(
    candidates: list[Candidate], request: Request, covers: Callable[[list[Candidate]], bool]
) -> Remedy | None:
    """Let one more envelope lend to the owner."""
    for target in sorted(candidates, key=lambda each: (each.budget.name, each.envelope.name)):
        lending = target.envelope.lending
        if not target.tier.borrows or lending.admits(request.owner):
            continue
        opened = replace(lending, allow=True, to=(*lending.to, request.owner))
        changed = replace(target, envelope=replace(target.envelope, lending=opened))
        if covers([changed if each is target else each for each in candidates]):
            name = target.envelope.name
            return Remedy(Change.LENDING_ACL, target.budget.name, name, lending.to, opened.to)
    return None


def _borrow(
    candidates: list[Candidate], request: Request,
    covers: Callable[[list[Candidate], Request], bool],
) -> Remedy | None:  # fmt: skip
    """Let the run borrow, or borrow more."""
    if not request.allow_borrow:
        if covers(candidates, replace(request, allow_borrow=True)):
            return Remedy(Change.BORROW_LIMIT, None, "allow_borrow", before=False, after=True)
        return None
    limit = request.max_borrow_gpus
    if limit is None or not covers(candidates, replace(request, max_borrow_gpus=None)):
        return None
    low, high = limit, request.gpus
    while high - low > 1:
        middle = (low + high) // 2
        enough = covers(candidates, replace(request, max_borrow_gpus=middle))
        low, high = (low, middle) if enough else (middle, high)
    return Remedy(Change.BORROW_LIMIT, None, "max_borrow_gpus", limit, high)
