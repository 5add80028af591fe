"""`gpu.fund`: the cover that the control plane asks for, with recorded totals instead of leases.

The control plane keeps running totals, so its input to cover is usage per envelope, not a list of
leases. This document is that input for one request: the budgets that it can reach, what they have
used and hold, and what is asked. The output is `gpu.cover`'s, so an entry replays byte for byte.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from fairlead.core import gpu
from fairlead.core.units import INTEGER_MAX
from fairlead.schema.border import BadInput
from fairlead.schema.gpu import BudgetDocument, Gpus, GpusOrNone, Name, Time, from_plan, to_budgets
from fairlead.schema.times import format_time, parse_time

Amount = Annotated[int, Meta(ge=0, le=INTEGER_MAX)]


class UsageDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One envelope's totals: GPUs, and GPU-milliseconds of its current period."""

    budget: Name
    envelope: Name
    gpus: Amount
    used_ms: Amount
    held_ms: Amount
    lent_gpus: Amount
    lent_used_ms: Amount
    lent_held_ms: Amount


class FundRequestDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What a run asks for; the duration is in milliseconds, exactly as it was held."""

    owner: Name
    flavor: Name
    gpus: Gpus
    min_gpus: Gpus | None
    step_gpus: Gpus | None
    location: dict[str, str]
    duration_ms: Amount | None
    allow_borrow: bool
    max_borrow_gpus: GpusOrNone | None
    sponsors: list[Name]


class FundDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Input of `gpu.fund`. An envelope without a usage line has used nothing."""

    now: Time
    budgets: list[BudgetDocument]
    usage: list[UsageDocument]
    request: FundRequestDocument


def decide_fund(document: FundDocument) -> dict[str, Any]:
    """The whole contract: documents in, result document out."""
    budgets = to_budgets(document.budgets)
    payers = {(budget.name, e.name) for budget in budgets for e in budget.envelopes}
    usage: dict[tuple[str, str], gpu.Usage] = {}
    for i, line in enumerate(document.usage):
        key = (line.budget, line.envelope)
        if key not in payers:
            raise BadInput(f"usage[{i}].envelope", f"is no envelope of {line.budget!r}")
        if key in usage:
            raise BadInput(f"usage[{i}].envelope", "is given twice")
        usage[key] = gpu.Usage(
            line.gpus,
            line.used_ms,
            line.held_ms,
            line.lent_gpus,
            line.lent_used_ms,
            line.lent_held_ms,
        )
    request, now_ms = _request(document.request), parse_time(document.now, "now")
    return fund(gpu.Book(budgets, usage), request, now_ms)


def fund(book: gpu.Book, request: gpu.Request, now_ms: int) -> dict[str, Any]:
    """Cover and, when that is refused, the smallest remedy, as a result document."""
    return from_plan(*gpu.cover_or_remedy(book, request, now_ms))


def _request(document: FundRequestDocument) -> gpu.Request:
    low, step = document.min_gpus, document.step_gpus
    if (low is None) != (step is None):
        raise BadInput("request.min_gpus", "must be given with step_gpus")
    if (
        low is not None
        and step is not None
        and (low > document.gpus or (document.gpus - low) % step)
    ):
        raise BadInput("request.gpus", f"must be {low} plus a multiple of {step}")
    return gpu.Request(
        owner=document.owner,
        flavor=document.flavor,
        gpus=document.gpus,
        location=document.location,
        min_gpus=low,
        step_gpus=step,
        duration_ms=document.duration_ms,
        allow_borrow=document.allow_borrow,
        max_borrow_gpus=document.max_borrow_gpus,
        sponsors=tuple(document.sponsors),
    )


def fund_document(
    now_ms: int,
    budgets: Iterable[BudgetDocument],
    usage: Mapping[tuple[str, str], gpu.Usage],
    request: gpu.Request,
) -> dict[str, Any]:
    """The document of one decision, as plain data; envelopes that used nothing are left out."""
    lines = [
        UsageDocument(
            budget,
            envelope,
            used.gpus,
            used.used_ms,
            used.held_ms,
            used.lent_gpus,
            used.lent_used_ms,
            used.lent_held_ms,
        )
        for (budget, envelope), used in sorted(usage.items())
        if used != gpu.Usage()
    ]
    asked = FundRequestDocument(
        request.owner,
        request.flavor,
        request.gpus,
        request.min_gpus,
        request.step_gpus,
        dict(request.location),
        request.duration_ms,
        request.allow_borrow,
        request.max_borrow_gpus,
        list(request.sponsors),
    )
    document = FundDocument(format_time(now_ms), list(budgets), lines, asked)
    return dict(msgspec.to_builtins(document))
