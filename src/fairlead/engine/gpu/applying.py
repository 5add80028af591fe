"""What applying manifests is made of: who may, what the other objects forbid, what is recorded.

Several manifests are judged together, against the objects as all of them would leave them; so
their order never matters, and either all of them stand or none does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fairlead.core.canonical import digest
from fairlead.core.gpu import Budget, cycle_in
from fairlead.core.gpu.funding import Demotion, demotions
from fairlead.engine.gpu import checkpoint
from fairlead.engine.gpu.admit import consider
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.state import Phase, Stored
from fairlead.engine.gpu.values import Author, Conflict, Denied, Forbidden, Refused
from fairlead.ports.executor import RESERVED_ENV
from fairlead.ports.ledger import Draft, Entry
from fairlead.schema.border import BadInput
from fairlead.schema.objects import (
    RUN_MUTABLE,
    BudgetManifest,
    Manifest,
    NodeManifest,
    ReservationManifest,
    RunManifest,
    spec_document,
    to_budget,
)
from fairlead.schema.place import from_placement
from fairlead.schema.specs import BudgetSpec

Change = Literal["created", "configured", "unchanged"]


@dataclass(frozen=True, slots=True)
class Wish:
    """One manifest of a batch; `path` is what errors about it begin with."""

    given: Manifest
    path: str = ""
    expected_version: int | None = None

    @property
    def key(self) -> tuple[str, str]:
        """What it is about."""
        return self.given.kind, self.given.metadata.name


def located(path: str, error: BadInput) -> BadInput:
    """The same refusal, with where in a batch it is."""
    if not path:
        return error
    inside = "" if error.path == "$" else f".{error.path}"
    return BadInput(f"{path}{inside}", error.message)


@dataclass(frozen=True, slots=True)
class Step:
    """What one manifest comes to; no draft: it says what is so already."""

    change: Change
    draft: Draft | None


def judge(
    projection: Projection, wishes: Sequence[Wish], author: Author, now_ms: int
) -> list[Step]:
    """What each manifest of a batch comes to; raises for the first that cannot be."""
    _refuse_repeated(wishes)
    budgets = _budgets_after(projection, wishes)
    runs = {wish.key[1]: wish.given for wish in wishes if isinstance(wish.given, RunManifest)}
    steps = []
    for wish in wishes:
        before = projection.get(*wish.key)
        try:
            may_apply(projection, author, wish.given, runs)
            _check_version(wish, before)
            _check(projection, wish.given, before, budgets)
        except BadInput as error:
            raise located(wish.path, error) from None
        except Denied as denied:
            denied.path = wish.path or None
            raise
        draft = _draft(projection, wish.given, before, author, now_ms)
        change: Change = "unchanged"
        if draft is not None:
            change = "created" if before is None else "configured"
        steps.append(Step(change, draft))
    return steps


def may_apply(
    projection: Projection, author: Author, given: Manifest, runs: Mapping[str, RunManifest]
) -> None:
    """Budgets and nodes are the operator's: a tenant that could edit its budget has none.

    `runs` are those of the same batch: a reservation is its run's owner's.
    """
    if isinstance(given, RunManifest | ReservationManifest):
        owner = _owner_of(projection, given, runs)
        if not author.may_act_for(owner):
            raise Forbidden(f"{author.user} may not act for owner {owner!r}")
    elif not author.admin:
        raise Forbidden(f"{author.user} may not change a {given.kind}")
    before = projection.get(given.kind, given.metadata.name)
    if before is not None:
        may_touch(projection, author, before)


def _owner_of(
    projection: Projection,
    given: RunManifest | ReservationManifest,
    runs: Mapping[str, RunManifest],
) -> str:
    if isinstance(given, RunManifest):
        return given.spec.owner
    name = given.spec.run
    if name in runs:
        return runs[name].spec.owner
    if name not in projection.runs:
        raise BadInput("spec.run", f"names no run, {name!r}")
    return projection.run_spec(name).owner


def may_touch(projection: Projection, author: Author, stored: Stored) -> None:
    """Whether an object that is there is this author's to change."""
    owner = projection.owner_of(stored) if stored.kind in ("Run", "Reservation") else None
    if not (author.admin or (owner is not None and author.may_act_for(owner))):
        raise Forbidden(f"{author.user} may not touch {stored.kind} {stored.name!r}")


def refuse_in_use(projection: Projection, stored: Stored) -> None:
    """What pays for, is, or carries something that runs stays."""
    if stored.kind == "Budget":
        _refuse_used_payers(projection, stored.name, keeping=set())
    elif stored.kind == "Run" and projection.runs[stored.name].leases:
        raise Refused("RunActive", f"run {stored.name!r} is running; cancel it first")
    elif stored.kind == "Run" and projection.waits_for_time(stored.name):
        raise Refused("RunReserved", f"run {stored.name!r} is reserved; delete that first")
    elif stored.kind == "Node" and projection.taken.get(stored.name):
        raise Refused("DeviceInUse", f"node {stored.name!r} has leased devices; drain it first")


def preview(projection: Projection, given: Manifest, now_ms: int) -> dict[str, Any]:
    """What a manifest would lead to if it were applied now."""
    name = given.metadata.name
    if isinstance(given, RunManifest):
        verdict = consider(projection, given.spec, now_ms)
        place = None if verdict.placement is None else from_placement(verdict.placement)
        return {**verdict.output, "placement": place, "starts": verdict.starts}
    if isinstance(given, BudgetManifest):
        # As it was before a period ended that is not settled yet: a look must not end it.
        end_ms = projection.accounts.rolls_over(now_ms)
        at_ms = now_ms if end_ms is None else end_ms - 1
        lost = demotions(to_budget(name, given.spec), projection.accounts, at_ms)
        return {"unfunded": [_hit(projection, each) for each in lost]}
    if isinstance(given, ReservationManifest):
        return {"due": given.spec.earliest_start}
    return {"leases": sorted(set(projection.taken.get(name, {}).values()))}


def _hit(projection: Projection, lost: Demotion) -> dict[str, Any]:
    """A lease that a budget would pay for no longer, and the cap that it is over."""
    lease = projection.leases[lost.lease]
    return {
        "lease": lease.id,
        "run": lease.run,
        "owner": lease.owner,
        "gpus": lease.gpus,
        "cap": lost.kind,
        "name": lost.name,
        "hours": lost.hours,
    }


def imagined(projection: Projection, steps: Sequence[Step]) -> Projection:
    """A copy of the projection in which a batch was applied; the original is left alone."""
    copy = checkpoint.restore(checkpoint.export(projection))
    for step in steps:
        if step.draft is not None:
            draft = step.draft
            copy.apply(
                Entry(
                    seq=copy.seq + 1,
                    kind=draft.kind,
                    time_ms=draft.time_ms,
                    author=draft.author,
                    body=draft.body,
                    plan_id=None,
                    effect=None,
                    input_digest=None,
                    version=1,
                    reasons=(),
                    data=b"",
                )
            )
    return copy


def _refuse_repeated(wishes: Sequence[Wish]) -> None:
    seen = set()
    for wish in wishes:
        if wish.key in seen:
            kind, name = wish.key
            repeated = BadInput("metadata.name", f"repeats {kind} {name!r}")
            raise located(wish.path, repeated)
        seen.add(wish.key)


def _budgets_after(projection: Projection, wishes: Sequence[Wish]) -> Mapping[str, Budget]:
    return {
        **projection.budgets,
        **{
            wish.given.metadata.name: to_budget(wish.given.metadata.name, wish.given.spec)
            for wish in wishes
            if isinstance(wish.given, BudgetManifest)
        },
    }


def _check_version(wish: Wish, before: Stored | None) -> None:
    expected, (kind, name) = wish.expected_version, wish.key
    if expected is not None and expected != (before.version if before else 0):
        raise Conflict(f"{kind} {name!r} is not in version {expected} any more")


def _check(
    projection: Projection, given: Manifest, before: Stored | None, budgets: Mapping[str, Budget]
) -> None:
    """What depends on the other objects."""
    name = given.metadata.name
    if isinstance(given, BudgetManifest):
        circle = cycle_in(budgets.values())
        if circle:
            raise BadInput("spec.parents", f"form a circle: {' > '.join(circle)}")
        if before is not None:
            kept = {envelope.name for envelope in given.spec.envelopes}
            _refuse_used_payers(projection, name, keeping=kept)
    elif isinstance(given, RunManifest) and before is None:
        _check_variables(given)
    elif isinstance(given, RunManifest) and before is not None:
        for key, value in spec_document(given.spec).items():
            if key not in RUN_MUTABLE and before.document[key] != value:
                raise BadInput(f"spec.{key}", "cannot be changed; delete the run and submit anew")
    elif isinstance(given, ReservationManifest):
        _check_reservation(projection, given, before)
    elif isinstance(given, NodeManifest) and before is not None:
        taken = projection.taken.get(name, {})
        if taken and (
            given.spec.devices <= max(taken) or given.spec.flavor != before.document["flavor"]
        ):
            raise Refused("DeviceInUse", f"node {name!r} has leased devices; drain it first")


def _check_variables(given: RunManifest) -> None:
    """What the lease decides is refused here, not after admission by the executor."""
    for where, names in (("env", given.spec.env), ("secretEnv", given.spec.secret_env)):
        for name in sorted(names):
            if name.startswith(RESERVED_ENV):
                raise BadInput(f"spec.{where}.{name}", "is set by Fairlead from the lease")


def _check_reservation(
    projection: Projection, given: ReservationManifest, before: Stored | None
) -> None:
    """One reservation per run, made before the run starts; only its time can be changed."""
    run, name = given.spec.run, given.metadata.name
    if before is not None:
        if before.document["run"] != run:
            raise BadInput("spec.run", "cannot be changed; delete the reservation and make another")
        if not projection.resolver.reservations[name].waits:
            raise Refused("ReservationOver", f"reservation {name!r} was activated already")
        return
    other = projection.reserved.get(run)
    if other is not None and projection.resolver.reservations[other].state != "Released":
        raise Refused("RunReserved", f"run {run!r} is reserved already, by {other!r}")
    state = projection.runs.get(run)
    if state is not None and state.phase is not Phase.PENDING:
        raise Refused("NotPending", f"run {run!r} is {state.phase.value}")


def _refuse_used_payers(projection: Projection, budget: str, *, keeping: set[str]) -> None:
    spec = projection.objects["Budget", budget].spec
    for envelope in spec.envelopes if isinstance(spec, BudgetSpec) else ():
        account = projection.accounts.get(budget, envelope.name)
        if envelope.name not in keeping and account is not None and account.leases:
            raise Refused(
                "EnvelopeInUse", f"envelope {budget}/{envelope.name} pays for open leases"
            )


def _draft(
    projection: Projection, given: Manifest, before: Stored | None, author: Author, now_ms: int
) -> Draft | None:
    document, labels = spec_document(given.spec), given.metadata.labels
    if before and (before.document, before.labels) == (document, labels):
        return None
    kind, name = given.kind, given.metadata.name
    if before is None:
        uid, generation = digest([kind, name, now_ms, projection.seq])[:32], 1
    else:
        uid = before.uid
        generation = before.generation + int(before.document != document)
    body = {
        "kind": kind,
        "name": name,
        "uid": uid,
        "generation": generation,
        "labels": labels,
        "spec": document,
    }
    return Draft(kind="object.applied", time_ms=now_ms, author=author.user, body=body)
