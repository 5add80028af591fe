"""From a decision to closed leases: who is told what, when the grace is over, what is recorded.

run.cut        what an outcome takes from a run, in clear; one entry per run
lease.close    spares at once; groups of a shrunk run after it was told and had its grace; all
               of a drawn gang when its process is gone. Each cites the outcome
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fairlead.core.gpu import Action
from fairlead.core.gpu.place import Gang, Node, Placement, place
from fairlead.core.reasons import CutKind
from fairlead.engine.gpu.projection import Projection, parse_slot
from fairlead.engine.gpu.resolver.names import Names
from fairlead.engine.gpu.settle import close_lease, end_run
from fairlead.engine.gpu.state import Cut, LeaseFact, Phase, RunState
from fairlead.engine.gpu.values import SYSTEM, Refused
from fairlead.ports.ledger import Draft
from fairlead.schema.objects import grace_ms
from fairlead.schema.specs import RunSpec

PREEMPT = CutKind.RANDOM_PREEMPT.value
DROP, SHRINK = CutKind.DROP_SPARE.value, CutKind.SHRINK.value


def name_open_leases(projection: Projection, names: Names, flavor: str) -> None:
    """After a restart: whose the pseudonyms of an outcome are, worked out again."""
    for name, state in projection.runs.items():
        if state.leases and projection.run_spec(name).flavor == flavor:
            for lease in state.leases.values():
                names.lease(lease)


def clear_actions(
    projection: Projection, names: Names, actions: Iterable[Action]
) -> list[tuple[LeaseFact, Action]]:
    """The actions on leases that are still open; what ended by itself needs no cut."""
    found = []
    for action in actions:
        mine = projection.leases.get(names.leases.get(action.lease, ""))
        if mine is not None:
            found.append((mine, action))
    return found


def cut_drafts(
    projection: Projection,
    outcome: int,
    actions: Iterable[tuple[LeaseFact, Action]],
    *,
    default_grace_ms: int,
    now_ms: int,
) -> list[Draft]:
    """One entry for every run that loses something, in order of name."""
    by_run: dict[str, list[tuple[LeaseFact, Action]]] = {}
    for lease, action in actions:
        by_run.setdefault(lease.run, []).append((lease, action))
    drafts = []
    for run, mine in sorted(by_run.items()):
        drawn = [each.draw for _, each in mine if each.kind is CutKind.RANDOM_PREEMPT]
        kinds = {lease.id: action.kind.value for lease, action in mine}
        drafts.append(
            _cut(
                run,
                outcome,
                kinds,
                draw=drawn[0] if drawn else None,
                preempts=bool(drawn),
                grace=grace_ms(projection.run_spec(run), default_grace_ms),
                now_ms=now_ms,
            )
        )
    return drafts


def _cut(
    run: str,
    outcome: int | None,
    leases: dict[str, str],
    *,
    draw: int | None,
    preempts: bool,
    grace: int,
    now_ms: int,
    author: str = SYSTEM,
) -> Draft:
    body: dict[str, Any] = {
        "run": run,
        "outcome": outcome,
        "leases": leases,
        "preempts": preempts,
        "draw": draw,
        "grace_ms": grace,
        "reason": PREEMPT if preempts else max(leases.values()),
    }
    return Draft(kind="run.cut", time_ms=now_ms, author=author, body=body)


def shrink_draft(
    projection: Projection, run: str, width: int, *, default_grace_ms: int, now_ms: int, author: str
) -> Draft:
    """An owner's own wish to go on with fewer groups: from the highest number down."""
    spec, state = projection.run_spec(run), projection.runs[run]
    refused = _cannot_shrink(spec, state, width)
    if refused is not None:
        raise Refused("CannotShrink", f"run {run!r} cannot shrink to {width}: {refused}")
    taken: dict[str, str] = {}
    left = state.width
    for group in sorted({lease.group for lease in state.leases.values()}, reverse=True):
        if left <= width:
            break
        mine = [lease for lease in state.leases.values() if lease.group == group]
        left -= sum(lease.gpus for lease in mine if lease.is_active)
        taken |= {lease.id: SHRINK for lease in sorted(mine, key=lambda each: each.id)}
    if left != width:
        raise Refused(
            "CannotShrink",
            f"run {run!r} cannot shrink to {width}: its groups are whole, the next width is {left}",
        )
    grace = grace_ms(spec, default_grace_ms)
    return _cut(
        run, None, taken, draw=None, preempts=False, grace=grace, now_ms=now_ms, author=author
    )


def _cannot_shrink(spec: RunSpec, state: RunState, width: int) -> str | None:
    steps = spec.malleable
    if steps is None:
        return "it is not malleable"
    if state.phase is not Phase.RUNNING or state.stopping or state.cut is not None:
        return "it is not running, or is giving way already"
    if not steps.min_gpus <= width < state.width:
        return f"its width is {state.width}, and may be {steps.min_gpus} at least"
    if (state.width - width) % steps.step_gpus:
        return f"it shrinks by steps of {steps.step_gpus}"
    return None


def due_drafts(
    projection: Projection,
    *,
    now_ms: int,
    has_process: Callable[[str], bool],
    told: Callable[[str, Cut], bool],
) -> Iterator[Draft]:
    """Leases whose time has come. A process is told first, and has its grace."""
    for run, state in sorted(projection.live.items()):
        cut = state.cut
        if cut is None or state.phase is not Phase.RUNNING:
            continue
        process = has_process(run)
        if cut.preempts:
            if not process:
                yield from preempted(projection, run, end_ms=now_ms, now_ms=now_ms)
            continue
        ready = not process or (now_ms >= cut.due_ms and told(run, cut))
        for name, kind in sorted(cut.leases.items()):
            if kind == DROP or ready:
                yield from close_lease(
                    projection,
                    projection.leases[name],
                    end_ms=now_ms,
                    reason=kind,
                    now_ms=now_ms,
                    outcome=cut.outcome,
                )


def preempted(
    projection: Projection, run: str, *, end_ms: int, now_ms: int, **facts: Any
) -> list[Draft]:
    """A drawn gang is gone whole: it waits again, with the outcome that took its GPUs."""
    cut = projection.runs[run].cut
    outcome = None if cut is None else cut.outcome
    return end_run(
        projection,
        run,
        end_ms=end_ms,
        now_ms=now_ms,
        phase=Phase.PENDING,
        reason="Preempted",
        message=f"gave way in outcome {outcome}; it starts again when there is room",
        lease_reason=PREEMPT,
        outcome=outcome,
        **facts,
    )


def place_after(projection: Projection, gang: Gang, ending: Iterable[LeaseFact]) -> Placement:
    """Where a gang goes once these leases are closed."""
    freed: dict[str, list[int]] = {}
    for lease in ending:
        for slot in lease.slots:
            node, ordinal = parse_slot(slot)
            freed.setdefault(node, []).append(ordinal)
    nodes = [
        Node(
            node.name,
            node.flavor,
            node.location,
            tuple(sorted((*node.free, *freed.get(node.name, ())))),
            node.cordoned,
        )
        for node in projection.nodes()
    ]
    return place(nodes, gang)


def kept_devices(state: RunState) -> tuple[str, ...]:
    """The devices that a run goes on with, active ones by group and slot."""
    gone = set() if state.cut is None else state.cut.leases.keys()
    leases = sorted(state.leases.values(), key=lambda each: (each.group, each.seq))
    return tuple(
        slot for each in leases if each.is_active and each.id not in gone for slot in each.slots
    )
