"""The entries by which leases open, close and are swapped. Reads the projection, writes nothing."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from msgspec import UNSET, structs

from fairlead.core import gpu
from fairlead.core.gpu.usage import split_hold
from fairlead.core.invariant import known
from fairlead.core.reasons import CutKind, EndCause, LimitReason, ResizeReason, RestartReason
from fairlead.engine.gpu import entries
from fairlead.engine.gpu.committer import Context
from fairlead.engine.gpu.entries import SYSTEM, NewEntry, RestartDecision
from fairlead.engine.gpu.projection import Projection, node_spec
from fairlead.engine.gpu.state import LeaseFact, Phase, RunState
from fairlead.schema.gpu import STYLE, from_restart
from fairlead.schema.objects import RunSpec, to_restarts

_USUAL = {EndCause.PREEMPTED: RestartReason.REQUEUES, EndCause.SUCCEEDED: RestartReason.POLICY}
"""What follows where no policy says otherwise; it is not recorded."""


def decide_restart(
    at: Context, run: str, cause: EndCause, exit_code: int | None = None, **backoff: Any
) -> tuple[gpu.Restart, list[NewEntry]]:
    """Whether a run starts again, and the entry that says so where a policy decided it. `backoff`:
    fields of a `RunFailure`, where it may restart on its devices."""
    spec, state = at.projection.run_spec(run), at.projection.runs[run]
    policy, restart_policy = to_restarts(spec)
    asked = gpu.RunFailure(policy, state.restarts, exit_code, cause, restart_policy, **backoff)
    found = gpu.restart(asked)
    if found.reason is _USUAL.get(cause) or (cause is EndCause.FAILED and not has_policy(spec)):
        return found, []
    made = at.entry(
        RestartDecision(run, from_restart(asked, found)),
        input=STYLE.from_core(asked),
        reasons=(found.reason.value,),
    )
    return found, [made]


def has_policy(spec: RunSpec) -> bool:
    return bool(spec.failure_policy or spec.restart_policy or spec.backoff_limit is not UNSET)


def open_lease(at: Context, body: entries.LeaseOpen, job: str) -> Iterator[NewEntry]:
    """A lease opens, and its hours are promised. The author is the control plane."""
    at = replace(at, author=SYSTEM)
    yield at.entry(body, job, f"open {body.lease}")
    if body.expected_end_ms is not None:
        found = at.projection.accounts.get(body.budget, body.envelope)
        account = known(found, "a payer has an account")
        parts = tuple(
            entries.HoldPart(from_ms, gpu_ms)
            for from_ms, gpu_ms in split_hold(body.to_lease(body.lease), account.envelope)
        )
        held_ms = sum(part.gpu_ms for part in parts)
        held = entries.ChargeHold(body.lease, body.budget, body.envelope, held_ms, parts)
        yield at.entry(held, job, f"hold {body.lease}")


def close_lease(
    at: Context, lease: LeaseFact, reason: str, *, end_ms: int, outcome: int | None = None
) -> Iterator[NewEntry]:
    """A lease ends: what it used is posted, what it still held is void.

    `outcome` is the resolve that decided it, where one did.
    """
    end_ms = max(end_ms, lease.start_ms)
    charge = at.projection.accounts.of_lease(lease.id).quote(lease.id, end_ms)
    cited = UNSET if outcome is None else outcome
    yield at.entry(
        entries.LeaseClose(lease.id, lease.run, end_ms, reason, cited), lease.id, "close"
    )
    posted = entries.ChargePost(
        lease=lease.id,
        budget=lease.budget,
        envelope=lease.envelope,
        payer=lease.payer,
        owner=lease.owner,
        borrowed=lease.borrowed,
        used_ms=charge.used_ms,
        overdraft_ms=charge.overdraft_ms,
        parts=charge.parts,
    )
    yield at.entry(posted, lease.id, "post")
    if charge.void_ms:
        void = entries.ChargeVoid(lease.id, lease.budget, lease.envelope, charge.void_ms)
        yield at.entry(void, lease.id, "void")


def end_run(
    at: Context, body: entries.RunPhase, lease_reason: str, *, end_ms: int
) -> list[NewEntry]:
    """All leases of a run close, and it is in another phase; ended, or waiting again.

    Leases that an outcome reclaims close with its reason and cite it, whatever ends the run.
    """
    state = at.projection.runs[body.run]
    reclaimed = {} if state.reclaim is None else state.reclaim.leases
    cited = None if state.reclaim is None else state.reclaim.outcome
    made: list[NewEntry] = []
    for lease in sorted(state.leases.values(), key=lambda lease: lease.id):
        reason = reclaimed.get(lease.id, lease_reason)
        outcome = cited if lease.id in reclaimed else None
        made += close_lease(at, lease, reason, end_ms=end_ms, outcome=outcome)
    body = structs.replace(body, ended_ms=end_ms)
    return [*made, at.entry(body, state.job, None if state.job is None else "end")]


def end_preempted(at: Context, run: str, *, end_ms: int, **exit: Any) -> list[NewEntry]:
    """A run gives back everything: it waits again, or has ended, as its restart policy says, and
    cites the outcome. `exit`: what is known of its process, as fields of `RunPhase`."""
    state = at.projection.runs[run]
    reclaim = state.reclaim
    outcome = None if reclaim is None else reclaim.outcome
    reason, cause, message = "Preempted", EndCause.PREEMPTED, f"preempted by outcome {outcome}"
    if reclaim is not None and outcome is None:
        over = next(iter(reclaim.leases.values()), "")
        reason = over if over in _OVER else state.reason
        cause, message = _OVER.get(over, (cause, _vacated(at, run, reason)))
    elif outcome is not None and (node := drained_node(at.projection, outcome)) is not None:
        message = f"{vacated(reason=DRAINED, nodes=[node])} (outcome {outcome})"
    found, made = decide_restart(at, run, cause)
    phase = Phase.PENDING if found.goes_on else Phase.FAILED
    message += "; it starts again when there is room" if found.goes_on else ""
    if cause is EndCause.PREEMPTED and not found.goes_on:
        message += "; its restart policy is Never"
    body = entries.RunPhase(run, phase.value, reason, message, outcome=outcome, **exit)
    if found.restarts != state.restarts:
        body = structs.replace(body, restarts=found.restarts)
    since_ms = gpu.protected_since_ms(cause, state.protected_from_ms)
    if found.goes_on and since_ms is not None:
        body = structs.replace(body, protected_since_ms=since_ms)
    return [*made, *end_run(at, body, CutKind.RANDOM_PREEMPT.value, end_ms=end_ms)]


DRAINED = "Drained"


def vacated(*, reason: str, nodes: Iterable[str]) -> str:
    """Why a run left its node, in a sentence."""
    names = ", ".join(nodes)
    which = f"node {names}" if names else "its node"
    return f"{which} {'was drained' if reason == DRAINED else 'failed'}"


def _vacated(at: Context, run: str, reason: str) -> str:
    leases = at.projection.runs[run].leases.values()
    return vacated(reason=reason, nodes=cordoned_nodes(at.projection, leases))


def cordoned_nodes(projection: Projection, leases: Iterable[LeaseFact]) -> list[str]:
    """Nodes of these leases that are out of service."""
    names = sorted({name for lease in leases for name in lease.nodes})
    stored = (projection.get("Node", name) for name in names)
    return [node.name for node in stored if node is not None and node_spec(node).cordoned]


def drained_node(projection: Projection, outcome: int) -> str | None:
    """The node that an outcome emptied; None: it was for something else, or is forgotten."""
    found = projection.resolver.outcomes.get(outcome)
    return found.node if found is not None and found.cause == "drain" else None


_OVER = {
    LimitReason.MAX_RUNTIME.value: (EndCause.MAX_RUNTIME, "its maxRuntime is over"),
    LimitReason.HOURS_USED.value: (EndCause.HOURS_USED, "the hours that pay for it are used up"),
    LimitReason.IDLE.value: (EndCause.IDLE, "its devices did nothing for its idleAfter"),
}
"""The limits by which a run is ended: the cause, and a sentence."""


def displaced(state: RunState, run: str, reason: str) -> entries.RunReclaimed:
    """A run whose node is out of service gives back everything, without a grace."""
    return entries.RunReclaimed(
        run=run,
        outcome=None,
        leases=dict.fromkeys(sorted(state.leases), "NodeFailed"),
        preempts=True,
        draw=None,
        grace_ms=0,
        reason=reason,
    )


# -- a run goes on with other devices -------------------------------------------------------------


def decide_resize(
    at: Context, run: str, change: gpu.Shrink | gpu.Swap
) -> tuple[gpu.Resize, NewEntry]:
    """Which leases of a run end and begin, and the entry of that decision."""
    state = at.projection.runs[run]
    leaving = {} if state.reclaim is None else state.reclaim.leases
    leases = tuple(
        gpu.RunLease(
            lease.id, gpu.Role(lease.role.lower()), lease.group, lease.slots, leaving.get(lease.id)
        )
        for _, lease in sorted(state.leases.items())
    )
    asked = gpu.ResizeRequest(change, leases)
    found = gpu.resize(asked)
    body = entries.ResizeDecision(run, STYLE.from_core(found))
    document, reasons = STYLE.from_core(asked), (found.reason.value,)
    return found, at.entry(body, input=document, reasons=reasons)


def swap(at: Context, run: str, node: str) -> tuple[bool, list[NewEntry]]:
    """Replace a node's devices by spares: whether that goes, and the entries that say so.

    A preempted gang is not mended.
    """
    state, job = at.projection.runs[run], at.projection.next_job(run)
    reclaim = state.reclaim
    if reclaim is not None and reclaim.preempts:
        return False, []
    found, decision = decide_resize(at, run, gpu.Swap(node))
    if found.reason is not ResizeReason.RESIZED:
        return False, [decision]
    made, kept = [decision], True
    for row in found.ended:
        outcome = None
        if reclaim is not None and row.lease in reclaim.leases:
            outcome = reclaim.outcome
        else:
            kept = False
        lease = state.leases[row.lease]
        made += close_lease(at, lease, row.reason, end_ms=at.now_ms, outcome=outcome)
    if kept:
        return True, made  # what it keeps is not on that node
    for number, new in enumerate(found.begun):
        terms = state.leases[new.of].terms()
        terms |= {"role": new.role.value.capitalize(), "slots": new.slots, "reason": "Swap"}
        terms |= {"lease": f"{job}.{number}", "start_ms": at.now_ms}
        made += open_lease(at, entries.LeaseOpen(**terms), job)
    body = entries.RunPhase(
        run=run,
        phase=Phase.RUNNING.value,
        reason="Swapped",
        job=job,
        message=f"spares took over from node {node}",
        paused=state.paused,
        stopping=state.stopping,
    )
    return True, [*made, at.entry(body, job, "phase")]
