"""From a decision to closed leases: what a run gives back, and when its grace is over.

run.cut        what an outcome reclaims from a run, in clear names; one entry per run
lease.close    spares at once; groups of a shrunk run after it was notified and had its grace, or
               when their pods are gone; all of a preempted gang when its process is gone. Each
               cites the outcome
"""

from collections.abc import Iterable, Iterator

from fairlead.core import gpu
from fairlead.core.gpu import Action, GracePolicy
from fairlead.core.lottery import Pseudonyms
from fairlead.core.reasons import CutKind, ResizeReason
from fairlead.engine.gpu.committer import Context
from fairlead.engine.gpu.effects import Effects
from fairlead.engine.gpu.entries import NewEntry, RunReclaimed
from fairlead.engine.gpu.leases import close_lease, decide_resize, end_preempted
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.state import LeaseFact, Phase
from fairlead.engine.gpu.values import Refused
from fairlead.schema.objects import grace_ms

PREEMPT = CutKind.RANDOM_PREEMPT.value
DROP, SHRINK = CutKind.DROP_SPARE.value, CutKind.SHRINK.value


def clear_actions(
    projection: Projection, names: Pseudonyms, flavor: str, actions: Iterable[Action]
) -> list[tuple[LeaseFact, Action]]:
    """The actions on leases that are still open; what ended by itself needs none."""
    open_leases = {}
    for name, state in projection.live.items():
        spec = projection.run_spec(name)
        if spec.flavor == flavor:
            for lease in state.leases.values():
                open_leases[names.lease(spec.owner, lease.id)] = lease
    return [
        (open_leases[action.lease], action) for action in actions if action.lease in open_leases
    ]


def reclaims(
    at: Context, outcome: int, actions: Iterable[tuple[LeaseFact, Action]], grace: GracePolicy
) -> list[NewEntry]:
    """One entry for every run that loses something, in order of name."""
    by_run: dict[str, list[tuple[LeaseFact, Action]]] = {}
    for lease, action in actions:
        by_run.setdefault(lease.run, []).append((lease, action))
    made = []
    for run, losses in sorted(by_run.items()):
        drawn = [action.draw for _, action in losses if action.kind is CutKind.RANDOM_PREEMPT]
        kinds = {lease.id: action.kind.value for lease, action in losses}
        body = RunReclaimed(
            run=run,
            outcome=outcome,
            leases=kinds,
            preempts=bool(drawn),
            draw=drawn[0] if drawn else None,
            grace_ms=grace.of(grace_ms(at.projection.run_spec(run))),
            reason=PREEMPT if drawn else max(kinds.values()),
        )
        made.append(at.entry(body))
    return made


def shrink(at: Context, run: str, width: int, *, grace: GracePolicy) -> list[NewEntry]:
    """An owner's own request to go on with fewer groups."""
    spec, state = at.projection.run_spec(run), at.projection.runs[run]
    steps = spec.malleable
    running = state.phase is Phase.RUNNING and not state.stopping and state.reclaim is None
    if steps is None or not running:
        why = "it is not running, or is losing leases already"
        raise _cannot_shrink(run, width, "it is not malleable" if steps is None else why)
    change = gpu.Shrink(width, steps.min_gpus, steps.step_gpus)
    found, decision = decide_resize(at, run, change)
    if found.reason is not ResizeReason.RESIZED:
        why = _REFUSALS[found.reason]
        why = why.format(width=found.width, least=steps.min_gpus, step=steps.step_gpus)
        raise _cannot_shrink(run, width, why)
    body = RunReclaimed(
        run=run,
        outcome=None,
        leases={row.lease: row.reason for row in found.ended},
        preempts=False,
        draw=None,
        grace_ms=grace.of(grace_ms(spec)),
        reason=SHRINK,
    )
    return [decision, at.entry(body)]


_REFUSALS = {
    ResizeReason.WIDTH: "its width is {width}, and may be {least} at least",
    ResizeReason.STEP: "it shrinks by steps of {step}",
    ResizeReason.GROUPS: "its groups are whole, the next width is {width}",
}


def _cannot_shrink(run: str, width: int, why: str) -> Refused:
    return Refused("CannotShrink", f"run {run!r} cannot shrink to {width}: {why}")


def due_closures(projection: Projection, effects: Effects, now_ms: int) -> Iterator[NewEntry]:
    """Leases whose devices are free. A process is notified first, and has its grace."""
    at = Context(projection, now_ms)
    running = projection.running.items()
    reclaims = {run: state.reclaim for run, state in running if state.reclaim is not None}
    for run in sorted(reclaims):
        reclaim, process = reclaims[run], effects.has_process(run)
        if reclaim.preempts:
            if not process:
                yield from end_preempted(at, run, end_ms=now_ms)
            continue
        for name, kind in sorted(reclaim.leases.items()):
            lease, outcome = projection.leases[name], reclaim.outcome
            free = kind == DROP or not process
            if free or effects.has_released(run, reclaim, lease.slots, now_ms):
                yield from close_lease(at, lease, kind, end_ms=now_ms, outcome=outcome)
