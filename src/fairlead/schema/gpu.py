"""Border types of the GPU governor: the `gpu.cover` contract as documents."""

from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from fairlead.core import gpu
from fairlead.core.reasons import CoverRefusal
from fairlead.core.units import INTEGER_MAX, SIZE_MAX
from fairlead.schema.border import BadInput
from fairlead.schema.times import cap_ms, duration_ms, hours, parse_now, parse_time

Name = Annotated[str, Meta(min_length=1)]
Gpus = Annotated[int, Meta(ge=1, le=SIZE_MAX)]
GpusOrNone = Annotated[int, Meta(ge=0, le=SIZE_MAX)]
Hours = Annotated[float, Meta(ge=0, le=SIZE_MAX)]
Time = Annotated[str, Meta(description="RFC 3339 with a zone, e.g. 2026-01-01T00:00:00Z")]


class WindowDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """start <= t < end."""

    start: Time
    end: Time


class LendingDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """To whom an envelope may be lent: exact owners, prefixes like `org:*`, or `*`."""

    allow: bool
    to: list[Name]
    max_concurrency: GpusOrNone | None
    max_gpu_hours: Hours | None


class EnvelopeDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A right to use some GPUs of one flavor."""

    name: Name
    flavor: Name
    location: dict[str, str]
    concurrency: Gpus
    max_gpu_hours: Hours | None
    window: WindowDocument | None
    sharing: gpu.Sharing
    lending: LendingDocument
    recurrence: gpu.Recurrence | None = None


class AggregateCapDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A cap over several envelopes of the same budget."""

    name: Name
    flavor: Name
    envelopes: list[Name]
    max_concurrency: GpusOrNone | None
    max_gpu_hours: Hours | None


class BudgetDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What an owner has; `parents` are owners."""

    name: Name
    owner: Name
    parents: list[Name]
    envelopes: list[EnvelopeDocument]
    aggregate_caps: list[AggregateCapDocument]


class LeaseDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """GPUs in use, paid by an envelope; `end` null means still open."""

    id: Name
    owner: Name
    budget: Name
    envelope: Name
    gpus: Gpus
    start: Time
    end: Time | None
    expected_end: Time | None
    borrowed: bool


class RequestDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What a run asks for."""

    owner: Name
    flavor: Name
    gpus: Gpus
    min_gpus: Gpus | None
    step_gpus: Gpus | None
    location: dict[str, str]
    duration_hours: Hours | None
    allow_borrow: bool
    max_borrow_gpus: GpusOrNone | None
    sponsors: list[Name]


class CoverDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Input of `gpu.cover`."""

    now: Time
    budgets: list[BudgetDocument]
    leases: list[LeaseDocument]
    request: RequestDocument


class LineDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One envelope's part of a plan."""

    budget: str
    envelope: str
    owner: str
    gpus: int
    tier: gpu.Tier
    borrowed: bool


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


def _cap(value: float | None) -> int | None:
    return None if value is None else cap_ms(value)


def to_budgets(documents: list[BudgetDocument]) -> list[gpu.Budget]:
    """Core's budgets, with names checked: unique, members known, parents acyclic."""
    budgets, seen = [], set()
    for i, document in enumerate(documents):
        path = f"budgets[{i}]"
        if document.name in seen:
            raise BadInput(f"{path}.name", f"repeats another budget's name, {document.name!r}")
        seen.add(document.name)
        budgets.append(_budget(document, path))
    circle = gpu.cycle_in(budgets)
    if circle:
        steps = set(pairwise(circle))
        index = next(
            i
            for i, budget in enumerate(budgets)
            if any((budget.owner, parent) in steps for parent in budget.parents)
        )
        raise BadInput(f"budgets[{index}].parents", f"form a circle: {' > '.join(circle)}")
    return budgets


def _budget(document: BudgetDocument, path: str) -> gpu.Budget:
    envelopes: dict[str, gpu.Envelope] = {}
    for i, envelope in enumerate(document.envelopes):
        if envelope.name in envelopes:
            raise BadInput(f"{path}.envelopes[{i}].name", f"repeats {envelope.name!r}")
        envelopes[envelope.name] = _envelope(envelope, f"{path}.envelopes[{i}]")
    caps, names = [], set()
    for i, cap in enumerate(document.aggregate_caps):
        where = f"{path}.aggregate_caps[{i}]"
        if cap.name in names:
            raise BadInput(f"{where}.name", f"repeats {cap.name!r}")
        names.add(cap.name)
        for j, member in enumerate(cap.envelopes):
            if member not in envelopes:
                raise BadInput(f"{where}.envelopes[{j}]", f"is no envelope of it: {member!r}")
        caps.append(
            gpu.AggregateCap(
                cap.name,
                cap.flavor,
                frozenset(cap.envelopes),
                cap.max_concurrency,
                _cap(cap.max_gpu_hours),
            )
        )
    return gpu.Budget(
        document.name,
        document.owner,
        tuple(document.parents),
        tuple(envelopes.values()),
        tuple(caps),
    )


def _envelope(document: EnvelopeDocument, path: str) -> gpu.Envelope:
    window = None
    if document.window is not None:
        start = parse_time(document.window.start, f"{path}.window.start")
        end = parse_time(document.window.end, f"{path}.window.end")
        if end <= start:
            raise BadInput(f"{path}.window.end", "must be after its start")
        window = gpu.Window(start, end)
    lending = document.lending
    return gpu.Envelope(
        name=document.name,
        flavor=document.flavor,
        gpus=document.concurrency,
        location=document.location,
        max_hours_ms=_cap(document.max_gpu_hours),
        window=window,
        recurrence=document.recurrence,
        sharing=document.sharing,
        lending=gpu.Lending(
            lending.allow, tuple(lending.to), lending.max_concurrency, _cap(lending.max_gpu_hours)
        ),
    )


Payers = Mapping[str, frozenset[str]]
"""The envelopes of each budget."""


def to_lease(document: LeaseDocument, path: str, now_ms: int, payers: Payers) -> gpu.Lease:
    """Core's lease; one that starts or ends after now, or that nobody pays, is refused."""
    if document.budget not in payers:
        raise BadInput(f"{path}.budget", f"names an unknown budget, {document.budget!r}")
    if document.envelope not in payers[document.budget]:
        raise BadInput(f"{path}.envelope", f"is no envelope of it: {document.envelope!r}")
    start = parse_time(document.start, f"{path}.start")
    if start > now_ms:
        raise BadInput(f"{path}.start", "must not be after now")
    end = None if document.end is None else parse_time(document.end, f"{path}.end")
    if end is not None and end > now_ms:
        raise BadInput(f"{path}.end", "must not be after now")
    if end is not None and end < start:
        raise BadInput(f"{path}.end", "must not be before its start")
    expected = document.expected_end
    until = None if expected is None else parse_time(expected, f"{path}.expected_end")
    return gpu.Lease(
        document.id,
        document.owner,
        document.budget,
        document.envelope,
        document.gpus,
        start,
        end,
        until,
        document.borrowed,
    )


def to_request(document: RequestDocument, path: str = "request") -> gpu.Request:
    """Core's request; a malleable width must be min + k*step."""
    low, step = document.min_gpus, document.step_gpus
    if (low is None) != (step is None):
        missing = "min_gpus" if low is None else "step_gpus"
        raise BadInput(f"{path}.{missing}", "must be given with the other: min_gpus and step_gpus")
    if low is not None and step is not None:
        if low > document.gpus:
            raise BadInput(f"{path}.min_gpus", f"must be at most gpus, {document.gpus}, got {low}")
        if (document.gpus - low) % step:
            raise BadInput(f"{path}.gpus", f"must be {low} plus a multiple of {step}")
    duration = document.duration_hours
    return gpu.Request(
        owner=document.owner,
        flavor=document.flavor,
        gpus=document.gpus,
        location=document.location,
        min_gpus=low,
        step_gpus=step,
        duration_ms=None if duration is None else duration_ms(duration),
        allow_borrow=document.allow_borrow,
        max_borrow_gpus=document.max_borrow_gpus,
        sponsors=tuple(document.sponsors),
    )


def decide_cover(document: CoverDocument) -> dict[str, Any]:
    """The whole contract: documents in, result document out."""
    now_ms = parse_now(document.now)
    budgets = to_budgets(document.budgets)
    payers = {b.name: frozenset(envelope.name for envelope in b.envelopes) for b in budgets}
    leases, ids = [], set()
    for i, lease in enumerate(document.leases):
        if lease.id in ids:
            raise BadInput(f"leases[{i}].id", f"repeats another lease's id, {lease.id!r}")
        ids.add(lease.id)
        leases.append(to_lease(lease, f"leases[{i}]", now_ms, payers))
    request = to_request(document.request)
    if sum(lease.gpus for lease in leases) + request.gpus > INTEGER_MAX:
        raise BadInput("leases", f"add up to more than {INTEGER_MAX} GPUs with the request")
    book = gpu.Book(budgets, gpu.tally(budgets, leases, now_ms))
    plan, remedy = gpu.cover_or_remedy(book, request, now_ms)
    return from_plan(plan, remedy, written_hours(document.budgets))


Written = Mapping[tuple[str, str | None, str], float | None]
"""(kind, budget, name) -> an hour cap as the document has it, before it is cut to milliseconds."""


def written_hours(documents: list[BudgetDocument]) -> Written:
    """Every hour cap as it was written: a refusal quotes the document, not our reading of it."""
    written: dict[tuple[str, str | None, str], float | None] = {}
    for budget in documents:
        for envelope in budget.envelopes:
            at = (budget.name, envelope.name)
            written["envelope", *at] = envelope.max_gpu_hours
            written["lending", *at] = envelope.lending.max_gpu_hours
        for cap in budget.aggregate_caps:
            written["aggregate", budget.name, cap.name] = cap.max_gpu_hours
    return written


def from_plan(
    plan: gpu.Plan, remedy: gpu.Remedy | None, written: Written = MappingProxyType({})
) -> dict[str, Any]:
    """The result document of a plan; hour caps are quoted as written, where that is known."""
    lines = [
        {
            "budget": line.budget,
            "envelope": line.envelope,
            "owner": line.owner,
            "gpus": line.gpus,
            "tier": line.tier.value,
            "borrowed": line.borrowed,
        }
        for line in plan.lines
    ]
    refusal = None
    if plan.refusal is not None:
        change = None if remedy is None else _remedy(remedy, written)
        refusal = {
            "code": plan.refusal.code.value,
            "message": _message(plan.refusal, change),
            "shortfall_gpus": plan.refusal.shortfall_gpus,
            "binding": [_binding(binding, written) for binding in plan.refusal.binding],
            "remedy": change,
        }
    return {"funded": plan.funded, "gpus": plan.gpus, "plan": lines, "refusal": refusal}


def _binding(binding: gpu.Binding, written: Written) -> dict[str, Any]:
    limit: Any = binding.limit
    used: float = binding.used
    if binding.hours:
        limit = written.get((binding.kind, binding.budget, binding.name), limit / gpu.HOUR_MS)
        used = binding.used / gpu.HOUR_MS
    return {
        "kind": binding.kind,
        "budget": binding.budget,
        "name": binding.name,
        "limit": limit,
        "used": used,
    }


def _remedy(remedy: gpu.Remedy, written: Written) -> dict[str, Any]:
    before: Any = remedy.before
    after: Any = remedy.after
    if remedy.change.in_hours:
        kind = remedy.change.removesuffix("-hours")
        before = written.get((kind, remedy.budget, remedy.name), before / gpu.HOUR_MS)
        after = hours(after)
    elif isinstance(after, tuple):
        before, after = list(before), list(after)
    return {
        "change": remedy.change.value,
        "budget": remedy.budget,
        "name": remedy.name,
        "from": before,
        "to": after,
    }


_SENTENCES = {
    CoverRefusal.BORROW_LIMIT_EXCEEDED: "the run may not borrow enough",
    CoverRefusal.ACL_DENIED: "no sponsor with room lends to this owner",
    CoverRefusal.INTEGRAL_CAP_EXCEEDED: "GPUs are free, but their hours are used up or promised",
    CoverRefusal.CONCURRENCY_CAP_EXCEEDED: "too many GPUs at once",
    CoverRefusal.NO_ENVELOPE: "no envelope of this flavor is reachable in an open window",
}


def _message(refusal: gpu.Refusal, remedy: dict[str, Any] | None) -> str:
    """One sentence for people: what is short, and what would help."""
    text = f"{refusal.shortfall_gpus} GPUs short: {_SENTENCES[refusal.code]}"
    if remedy is None:
        return text
    target = f"{remedy['budget']}/{remedy['name']}" if remedy["budget"] else remedy["name"]
    change = f"{remedy['change']} of {target} from {remedy['from']} to {remedy['to']}"
    return f"{text}; {change} would do"
