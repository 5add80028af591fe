"""What a manifest would lead to if it were applied now: for plans and dry runs."""

from fairlead.core.gpu import Recall
from fairlead.core.gpu.funding import Demotion, demotions
from fairlead.engine.gpu.backfill import QueueHeads
from fairlead.engine.gpu.entries import Document
from fairlead.engine.gpu.overdraw import overdraft_of
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.recall import recall_of
from fairlead.engine.gpu.starting import ask
from fairlead.schema.funding import from_plan
from fairlead.schema.gpu import STYLE
from fairlead.schema.objects import (
    BudgetManifest,
    Manifest,
    ReservationManifest,
    RunManifest,
    to_budget,
)


def preview(
    projection: Projection, manifest: Manifest, now_ms: int, heads: QueueHeads | None = None
) -> Document:
    """What a manifest would lead to if it were applied now. `heads`: runs of the queue that a start
    may not delay, and owners that come first on their own envelopes."""
    name = manifest.metadata.name
    if isinstance(manifest, RunManifest):
        devices = None if heads is None else heads.devices(manifest.spec.flavor, now_ms)
        claims = None if heads is None else heads.claims
        found = ask(projection, manifest.spec, now_ms, devices, claims).found
        place = None if found.placement is None else STYLE.from_core(found.placement)
        starts = found.starts and not (heads and heads.delays(name, manifest.spec, found, now_ms))
        shown = {**from_plan(found.plan, found.remedy), "placement": place, "starts": starts}
        return {**shown, **_unpaid(projection, manifest, now_ms, funded=found.plan.funded)}
    if isinstance(manifest, BudgetManifest):
        # As it was before a period ended that is not settled yet: a look must not end it.
        end_ms = projection.accounts.rolls_over(now_ms)
        at_ms = now_ms if end_ms is None else end_ms - 1
        lost = demotions(to_budget(name, manifest.spec), projection.accounts, at_ms)
        return {"unfunded": [_unfunded(projection, demotion) for demotion in lost]}
    if isinstance(manifest, ReservationManifest):
        return {"due": manifest.spec.earliest_start}
    return {"leases": sorted(set(projection.taken.get(name, {}).values()))}


def _unpaid(
    projection: Projection, manifest: RunManifest, now_ms: int, *, funded: bool
) -> Document:
    """How a run that no budget pays for would start: counts only, since leases are others'."""
    recall, payer = Recall(), None
    if not funded:
        recall = recall_of(projection, manifest.spec, now_ms)
        payer = overdraft_of(projection, manifest.metadata.name, manifest.spec, now_ms)
    counts = {"leases": len(recall.leases), "gpus": recall.gpus}
    return {
        "recall": counts if recall.leases else None,
        "overdraft": None if payer is None else STYLE.from_core(payer),
    }


def _unfunded(projection: Projection, lost: Demotion) -> Document:
    """A lease that a budget would pay for no longer, and the cap that it is over."""
    lease = projection.leases[lost.lease]
    facts = {"lease": lease.id, "run": lease.run, "owner": lease.owner, "gpus": lease.gpus}
    return {**facts, "cap": lost.kind, "name": lost.name, "hours": lost.hours}
