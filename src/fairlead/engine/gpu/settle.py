"""Endings and funding over time: the entries that close leases, demote them and restore them."""

from collections.abc import Iterable, Iterator
from typing import Any

from fairlead.core.gpu.funding import demotions, restorations
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.state import LeaseFact, Phase
from fairlead.engine.gpu.values import SYSTEM
from fairlead.ports.ledger import Draft


def close_lease(
    projection: Projection,
    lease: LeaseFact,
    *,
    end_ms: int,
    reason: str,
    now_ms: int,
    author: str = SYSTEM,
    outcome: int | None = None,
) -> Iterator[Draft]:
    """A lease ends: what it used is posted, what it still held is void.

    `outcome` is the resolve that decided it, where one did.
    """
    end_ms = max(end_ms, lease.start_ms)
    charge = projection.accounts.of_lease(lease.id).quote(lease.id, end_ms)

    def draft(kind: str, effect: str, body: dict[str, Any]) -> Draft:
        return Draft(
            kind=kind,
            time_ms=now_ms,
            author=author,
            plan_id=lease.id,
            effect=effect,
            body={"lease": lease.id, **body},
        )

    payer = {"budget": lease.budget, "envelope": lease.envelope}
    cited = {} if outcome is None else {"outcome": outcome}
    closed = {"run": lease.run, "end_ms": end_ms, "reason": reason, **cited}
    yield draft("lease.close", "close", closed)
    yield draft(
        "charge.post",
        "post",
        {
            **payer,
            "payer": lease.payer,
            "owner": lease.owner,
            "borrowed": lease.borrowed,
            "used_ms": charge.used_ms,
            "overdraft_ms": charge.overdraft_ms,
            "parts": [
                {"day": part.day, "used_ms": part.used_ms, "overdraft_ms": part.overdraft_ms}
                for part in charge.parts
            ],
        },
    )
    if charge.void_ms:
        yield draft("charge.void", "void", {**payer, "gpu_ms": charge.void_ms})


def end_run(
    projection: Projection,
    run: str,
    *,
    end_ms: int,
    now_ms: int,
    phase: Phase,
    reason: str,
    message: str,
    lease_reason: str,
    author: str = SYSTEM,
    **facts: Any,
) -> list[Draft]:
    """All leases of a run close, and it is in another phase; ended, or waiting again.

    Leases that an outcome has cut close with its reason and cite it, whatever ends the run.
    """
    state = projection.runs[run]
    cut = {} if state.cut is None else state.cut.leases
    outcome = None if state.cut is None else state.cut.outcome
    drafts = [
        draft
        for lease in sorted(state.leases.values(), key=lambda each: each.id)
        for draft in close_lease(
            projection,
            lease,
            end_ms=end_ms,
            reason=cut.get(lease.id, lease_reason),
            now_ms=now_ms,
            author=author,
            outcome=outcome if lease.id in cut else None,
        )
    ]
    body = {
        "run": run,
        "phase": phase.value,
        "reason": reason,
        "message": message,
        "ended_ms": end_ms,
        **facts,
    }
    drafts.append(
        Draft(
            kind="run.phase",
            time_ms=now_ms,
            author=author,
            body=body,
            plan_id=state.job,
            effect=None if state.job is None else "end",
        )
    )
    return drafts


def refunding(
    projection: Projection, budgets: Iterable[str], at_ms: int, now_ms: int
) -> list[Draft]:
    """Leases that lost their funding by `at_ms`, and those that have it again."""
    drafts: list[Draft] = []
    for name in sorted(budgets):
        budget = projection.budgets[name]
        if not projection.accounts.has_leases(budget):
            continue
        lost = demotions(budget, projection.accounts, at_ms)
        for each in lost:
            cap = f"{each.kind} {each.budget}/{each.name}"
            what = "is out of hours" if each.hours else "allows fewer GPUs"
            body = {
                "lease": each.lease,
                "run": projection.leases[each.lease].run,
                "at_ms": each.at_ms,
                "kind": each.kind,
                "budget": each.budget,
                "name": each.name,
                "hours": each.hours,
                "message": f"{cap} {what}",
            }
            drafts.append(_draft("lease.unfunded", now_ms, body))
        if lost:
            continue  # who was just demoted is not restored in the same breath
        for lease in restorations(budget, projection.accounts, at_ms):
            body = {"lease": lease, "run": projection.leases[lease].run, "at_ms": at_ms}
            drafts.append(_draft("lease.funded", now_ms, body))
    return drafts


def _draft(kind: str, now_ms: int, body: dict[str, Any]) -> Draft:
    return Draft(kind=kind, time_ms=now_ms, author=SYSTEM, body=body)
