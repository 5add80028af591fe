"""`gpu.cover` and `gpu.fund`: the envelopes that pay for a request, or what would help.

The control plane keeps running totals, so it asks with usage per envelope and not with a list of
leases: that is `gpu.fund`, whose output is `gpu.cover`'s, so that an entry replays byte for byte.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Annotated, Any

import msgspec

from fairlead.core import gpu
from fairlead.core.gpu.refund import OpenLease
from fairlead.core.reasons import CoverRefusal
from fairlead.core.units import INTEGER_MAX, Count, Name, OutOfRange, Time, Written, repeats
from fairlead.schema.derive import Fields, Style
from fairlead.schema.times import format_time, hours, parse_now


@dataclass(frozen=True, slots=True)
class CoverInput:
    """Input of `gpu.cover`."""

    now_ms: Annotated[int, Time(), Written("now")]
    budgets: tuple[gpu.Budget, ...]
    leases: tuple[gpu.Lease, ...]
    request: gpu.Request

    def faults(self) -> Iterator[OutOfRange]:
        """Budgets that do not fit together, and leases from the future or that nothing pays."""
        yield from budget_faults(self.budgets)
        yield from repeats("leases", "id", [lease.id for lease in self.leases])
        payers = {b.name: {envelope.name for envelope in b.envelopes} for b in self.budgets}
        for i, lease in enumerate(self.leases):
            for name, message in _lease_faults(lease, payers, self.now_ms):
                yield OutOfRange(f"leases[{i}].{name}", message)
        if sum(lease.gpus for lease in self.leases) + self.request.gpus > INTEGER_MAX:
            yield OutOfRange("leases", f"add up to more than {INTEGER_MAX} GPUs with the request")


def _lease_faults(
    lease: gpu.Lease, payers: Mapping[str, set[str]], now_ms: int
) -> Iterator[tuple[str, str]]:
    if lease.budget not in payers:
        yield "budget", f"names an unknown budget, {lease.budget!r}"
    elif lease.envelope not in payers[lease.budget]:
        yield "envelope", f"is no envelope of it: {lease.envelope!r}"
    if lease.start_ms > now_ms:
        yield "start_ms", "must not be after now"
    if lease.end_ms is not None and lease.end_ms > now_ms:
        yield "end_ms", "must not be after now"
    if lease.end_ms is not None and lease.end_ms < lease.start_ms:
        yield "end_ms", "must not be before its start"


def budget_faults(budgets: tuple[gpu.Budget, ...]) -> Iterator[OutOfRange]:
    """Names that come twice, and owners that are their own ancestors."""
    yield from repeats("budgets", "name", [budget.name for budget in budgets])
    circle = gpu.cycle_in(budgets)
    if circle:
        steps = set(pairwise(circle))
        index = next(
            i
            for i, budget in enumerate(budgets)
            if any((budget.owner, parent) in steps for parent in budget.parents)
        )
        yield OutOfRange(f"budgets[{index}].parents", f"form a circle: {' > '.join(circle)}")


@dataclass(frozen=True, slots=True)
class UsageLine:
    """One envelope's totals: GPUs, and GPU-milliseconds of its current period."""

    budget: Name
    envelope: Name
    gpus: Count
    used_ms: Count
    held_ms: Count
    lent_gpus: Count
    lent_used_ms: Count
    lent_held_ms: Count


@dataclass(frozen=True, slots=True)
class BookInput:
    """Budgets, their usage and a request. An envelope without a usage line has used nothing."""

    now_ms: Annotated[int, Time(), Written("now")]
    budgets: tuple[gpu.Budget, ...]
    usage: tuple[UsageLine, ...]
    request: gpu.Request

    def faults(self) -> Iterator[OutOfRange]:
        yield from budget_faults(self.budgets)
        payers = {(b.name, envelope.name) for b in self.budgets for envelope in b.envelopes}
        seen: set[tuple[str, str]] = set()
        for i, line in enumerate(self.usage):
            key = (line.budget, line.envelope)
            if key not in payers:
                yield OutOfRange(f"usage[{i}].envelope", f"is no envelope of {line.budget!r}")
            if key in seen:
                yield OutOfRange(f"usage[{i}].envelope", "is given twice")
            seen.add(key)

    @property
    def book(self) -> gpu.Book:
        usage = {
            (line.budget, line.envelope): gpu.Usage(
                *(getattr(line, field) for field in gpu.Usage._fields)
            )
            for line in self.usage
        }
        return gpu.Book(self.budgets, usage)


@dataclass(frozen=True, slots=True)
class FundInput(BookInput):
    """Input of `gpu.fund`. In version 2, waiting runs of other owners claim their envelopes."""

    claimants: tuple[gpu.Claimant, ...] = field(default=(), kw_only=True)

    @property
    def claimed_book(self) -> gpu.Book:
        return gpu.claimed(self.book, self.claimants, self.now_ms)


@dataclass(frozen=True, slots=True)
class RecallInput(BookInput):
    """Input of `gpu.recall`: that of `gpu.fund`, and the leases that could be recalled; in version
    2, the devices too."""

    leases: tuple[gpu.LentLease, ...]
    room: gpu.RecallRoom | None = None

    def faults(self) -> Iterator[OutOfRange]:
        yield from BookInput.faults(self)
        yield from repeats("leases", "id", [lease.id for lease in self.leases])
        if self.room is not None:
            yield from repeats("room.nodes", "name", [node.name for node in self.room.nodes])
            yield from self.room.shape.request_faults(self.request)
        own = {
            (budget.name, envelope.name)
            for budget in self.budgets
            for envelope in budget.envelopes
            if budget.owner == self.request.owner
        }
        for i, lease in enumerate(self.leases):
            if lease.key not in own:
                text = f"is no envelope of {self.request.owner!r}: {lease.envelope!r}"
                yield OutOfRange(f"leases[{i}].envelope", text)


OPTIONAL: Fields = {
    gpu.Envelope: {"recurrence", "enforcement"},
    gpu.Node: {"cordoned"},
    OpenLease: {"recalled", "overdraft"},
    gpu.OwnerPlace: {"priority"},
    gpu.RefundRequest: {"claims"},
    gpu.Claimant: {"runs"},
    FundInput: {"claimants"},
    RecallInput: {"room"},
}
COVER = Style(optional=OPTIONAL, computed={gpu.Line: {"borrowed"}})
FUND = Style(optional=OPTIONAL, plain={gpu.Request: {"duration_ms"}})


@COVER.derived(gpu.Line)
class LineDocument(msgspec.Struct):
    """One envelope's part of a plan."""


class BindingDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A cap that stood in the way; hour limits are in hours."""

    kind: str
    budget: str | None
    name: str
    limit: float | None
    used: float


class RemedyDocument(
    msgspec.Struct,
    forbid_unknown_fields=True,
    frozen=True,
    rename={"before": "from", "after": "to"},
):
    """One change that covers the request."""

    change: gpu.Change
    budget: str | None
    name: str
    before: Any
    after: Any


class RefusalDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Why a request is not covered, and what would help."""

    code: CoverRefusal
    message: str
    shortfall_gpus: int
    binding: list[BindingDocument]
    remedy: RemedyDocument | None


class CoverResult(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Output of `gpu.cover`."""

    funded: bool
    gpus: int
    plan: list[LineDocument]
    refusal: RefusalDocument | None


def decide_cover(document: Any) -> dict[str, Any]:
    """Find the envelopes that pay for a GPU request, or say what would."""
    parse_now(document.now_ms)
    given = COVER.to_core(CoverInput, document)
    book = gpu.Book(given.budgets, gpu.tally(given.budgets, given.leases, given.now_ms))
    plan, remedy = gpu.cover_or_remedy(book, given.request, given.now_ms)
    return from_plan(plan, remedy, written_hours(document.budgets))


def decide_fund(document: Any) -> dict[str, Any]:
    """The same from usage totals, as the control plane asks and records it."""
    given = FUND.to_core(FundInput, document)
    return from_plan(*gpu.cover_or_remedy(given.claimed_book, given.request, given.now_ms))


def fund_document(
    now_ms: int,
    budgets: Sequence[object],
    usage: Mapping[tuple[str, str], gpu.Usage],
    request: gpu.Request,
    claimants: Sequence[gpu.Claimant] = (),
) -> dict[str, Any]:
    """The input of one `gpu.fund`, as plain data; envelopes that used nothing are left out.

    Budgets come as plain data or canonical text: their hours are recorded as they were written.
    """
    lines = [UsageLine(*key, *used) for key, used in sorted(usage.items()) if any(used)]
    made = {
        "now": format_time(now_ms),
        "budgets": budgets,
        "usage": [FUND.from_core(line) for line in lines],
        "request": FUND.from_core(request),
    }
    if claimants:
        made["claimants"] = [FUND.from_core(claimant) for claimant in claimants]
    return made


WrittenHours = Mapping[tuple[str, str | None, str], float | None]
"""(kind, budget, name) -> an hour cap as the document has it, before it is cut to milliseconds."""


def written_hours(documents: Iterable[Any]) -> WrittenHours:
    """Every hour cap as it was written: a refusal quotes the document, not our reading of it."""
    written: dict[tuple[str, str | None, str], float | None] = {}
    for budget in documents:
        for envelope in budget.envelopes:
            at = (budget.name, envelope.name)
            written["envelope", *at] = envelope.max_hours_ms
            written["lending", *at] = envelope.lending.max_hours_ms
        for cap in budget.aggregate_caps:
            written["aggregate", budget.name, cap.name] = cap.max_hours_ms
    return written


def from_plan(
    plan: gpu.Plan, remedy: gpu.Remedy | None, written: WrittenHours = MappingProxyType({})
) -> dict[str, Any]:
    """The result document of a plan; hour caps are quoted as written, where that is known."""
    lines = [COVER.from_core(line) for line in plan.lines]
    refusal = None
    if plan.refusal is not None:
        change = None if remedy is None else _remedy(remedy, written)
        refusal = RefusalDocument(
            plan.refusal.code,
            _message(plan.refusal, change),
            plan.refusal.shortfall_gpus,
            [_binding(binding, written) for binding in plan.refusal.binding],
            change,
        )
    return {
        "funded": plan.funded,
        "gpus": plan.gpus,
        "plan": lines,
        "refusal": msgspec.to_builtins(refusal),
    }


def _binding(binding: gpu.Binding, written: WrittenHours) -> BindingDocument:
    limit: Any = binding.limit
    used: float = binding.used
    if binding.hours:
        limit = written.get((binding.kind, binding.budget, binding.name), limit / gpu.HOUR_MS)
        used = binding.used / gpu.HOUR_MS
    return BindingDocument(binding.kind, binding.budget, binding.name, limit, used)


def _remedy(remedy: gpu.Remedy, written: WrittenHours) -> RemedyDocument:
    before: Any = remedy.before
    after: Any = remedy.after
    kind, in_hours = remedy.change.caps
    if in_hours:
        before = written.get((kind, remedy.budget, remedy.name), before / gpu.HOUR_MS)
        after = hours(after)
    elif isinstance(after, tuple):
        before, after = list(before), list(after)
    return RemedyDocument(remedy.change, remedy.budget, remedy.name, before, after)


_SENTENCES = {
    CoverRefusal.BORROW_LIMIT_EXCEEDED: "the run may not borrow enough",
    CoverRefusal.ACL_DENIED: "no sponsor with room lends to this owner",
    CoverRefusal.INTEGRAL_CAP_EXCEEDED: "GPUs are free, but their hours are used up or promised",
    CoverRefusal.CONCURRENCY_CAP_EXCEEDED: "too many GPUs at once",
    CoverRefusal.NO_ENVELOPE: "no envelope of this flavor is reachable in an open window",
}


def _message(refusal: gpu.Refusal, remedy: RemedyDocument | None) -> str:
    """One sentence for people: what is short, and what would help."""
    text = f"{refusal.shortfall_gpus} GPUs short: {_SENTENCES[refusal.code]}"
    if remedy is None:
        return text
    target = f"{remedy.budget}/{remedy.name}" if remedy.budget else remedy.name
    change = f"{remedy.change} of {target} from {remedy.before} to {remedy.after}"
    return f"{text}; {change} would do"
