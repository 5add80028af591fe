"""What cannot be removed, because something runs on it, is paid by it, or waits for it."""

from fairlead.engine.gpu.dependencies import later_run
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.state import Stored
from fairlead.engine.gpu.values import Refused
from fairlead.schema.objects import BudgetSpec


def refuse_in_use(projection: Projection, stored: Stored) -> None:
    """What pays for, is, or carries something that runs stays."""
    if stored.kind == "Budget":
        refuse_used_payers(projection, stored.name, keeping=set())
        _refuse_needed(projection, stored.name)
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
    spec = projection.objects["Budget", budget].spec
    for envelope in spec.envelopes if isinstance(spec, BudgetSpec) else ():
        account = projection.accounts.get(budget, envelope.name)
        if envelope.name not in keeping and account is not None and account.leases:
            raise Refused(
                "EnvelopeInUse", f"envelope {budget}/{envelope.name} pays for open leases"
            )


def _refuse_needed(projection: Projection, budget: str) -> None:
    """The only budget of an owner whose runs wait: without it they would wait for ever."""
    owner = projection.budgets[budget].owner
    others = (one.owner for name, one in projection.budgets.items() if name != budget)
    if owner in others:
        return
    for run in sorted(projection.live):
        if projection.is_pending(run) and projection.run_spec(run).owner == owner:
            raise Refused(
                "BudgetNeeded",
                f"run {run!r} waits for it, and owner {owner!r} has no other; cancel the run first",
            )
