"""What cannot be removed, because something runs on it, is paid by it, or waits for it."""

from collections.abc import Mapping

from fairlead.core.gpu import Budget
from fairlead.engine.gpu.dependencies import later_run
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.state import Phase, Stored
from fairlead.engine.gpu.values import Refused
from fairlead.schema.objects import BudgetSpec


def refuse_in_use(projection: Projection, stored: Stored) -> None:
    """What pays for, is, or carries something that runs stays."""
    if stored.kind == "Budget":
        refuse_used_payers(projection, stored.name, keeping=set())
        others = {name: one for name, one in projection.budgets.items() if name != stored.name}
        refuse_needed(projection, stored.name, others)
    elif stored.kind == "Run" and projection.runs[stored.name].leases:
        raise Refused("RunActive", f"run {stored.name!r} is running; cancel it first")
    elif stored.kind == "Run" and (later := later_run(projection, stored.name)):
        raise Refused("RunNeeded", f"run {later!r} starts after it; cancel that one first")
    elif stored.kind == "Run" and projection.waits_for_time(stored.name):
        by = projection.reserved[stored.name]
        raise Refused(
            "RunReserved", f"run {stored.name!r} is reserved; delete reservation {by!r} first"
        )
    elif stored.kind == "Node" and projection.taken.get(stored.name):
        raise Refused("DeviceInUse", f"node {stored.name!r} has leased devices; drain it first")


def refuse_used_payers(projection: Projection, budget: str, *, keeping: set[str]) -> None:
    spec = projection.objects["Budget"][budget].spec
    for envelope in spec.envelopes if isinstance(spec, BudgetSpec) else ():
        account = projection.accounts.get(budget, envelope.name)
        if envelope.name not in keeping and account is not None and account.leases:
            raise Refused(
                "EnvelopeInUse", f"envelope {budget}/{envelope.name} pays for open leases"
            )


def refuse_needed(projection: Projection, name: str, budgets: Mapping[str, Budget]) -> None:
    """The last envelopes of a flavor that an owner has, while its runs wait for that flavor: they
    would wait for ever. `budgets`: as they would be."""
    before = projection.budgets[name]
    left = {
        envelope.flavor
        for budget in budgets.values()
        if budget.owner == before.owner
        for envelope in budget.envelopes
    }
    lost = {envelope.flavor for envelope in before.envelopes} - left
    for run, state in sorted(projection.live.items()) if lost else ():
        spec = projection.run_spec(run)
        waits = state.phase is Phase.PENDING and not state.stopping
        if waits and spec.owner == before.owner and spec.flavor in lost:
            raise Refused(
                "BudgetNeeded",
                f"run {run!r} waits for it, and owner {spec.owner!r} has no other of flavor "
                f"{spec.flavor!r}; cancel the run first",
            )
