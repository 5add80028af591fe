"""Growth: a run gets back what an outcome took from it, as soon as that is paid for and placed.

Whole groups under their old numbers, the lowest first, by whole steps; never more than it had. Its
other leases stay as they are and its process runs on: it is told its new width as it was told the
smaller one. Asked after everybody who waits, because they wait for less than this run has. What an
owner gave up of its own accord stays given up, and an attempt that fails is not recorded.
"""

from dataclasses import replace
from math import lcm

from fairlead.core.gpu import Request, cover
from fairlead.engine.gpu.admit import (
    Verdict,
    consider,
    cover_draft,
    lease_drafts,
    lease_facts,
    place_draft,
)
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.state import Phase, RunState
from fairlead.engine.gpu.values import SYSTEM
from fairlead.ports.ledger import Draft
from fairlead.schema.objects import to_gang, to_request, with_spares
from fairlead.schema.specs import RunSpec


def may_grow(state: RunState) -> bool:
    """Whether a run lacks what an outcome took, and could have it back now."""
    settled = state.phase is Phase.RUNNING and state.cut is None
    return state.grows_to > 0 and settled and not (state.stopping or state.paused)


def growth(projection: Projection, name: str, now_ms: int) -> list[Draft]:
    """The entries by which a run grows, as wide as it can; none where it cannot."""
    spec, state = projection.run_spec(name), projection.runs[name]
    free = projection.free_gpus(spec.flavor)
    for request in _requests(spec, state, now_ms):
        if (request.min_gpus or request.gpus) > free:
            continue
        # The search for a remedy, which nobody asked for, costs ten times the cover.
        if not cover(projection.book(now_ms), request, now_ms).funded:
            continue
        verdict = consider(projection, spec, now_ms, request)
        if verdict.starts:
            return _grown(projection, name, verdict, now_ms)
    return []


def _requests(spec: RunSpec, state: RunState, now_ms: int) -> list[Request]:
    """What to ask for: everything, where its last group is a smaller one; else as much as goes."""
    steps, group = spec.malleable, spec.group_gpus
    lacking = state.grows_to - state.width
    ends = [lease.expected_end_ms for lease in state.leases.values()]
    until_ms = ends[0] if ends else None
    left_ms = None if until_ms is None else until_ms - now_ms
    if steps is None or group is None or lacking <= 0 or (left_ms is not None and left_ms <= 0):
        return []
    whole = to_request(spec)
    borrowed = sum(lease.gpus for lease in state.leases.values() if lease.borrowed)
    limit = whole.max_borrow_gpus
    unit = lcm(group, steps.step_gpus)
    base = replace(
        whole,
        duration_ms=left_ms,
        max_borrow_gpus=None if limit is None else max(0, limit - borrowed),
    )

    def elastic(gpus: int) -> Request:
        least = with_spares(spec, unit)
        return replace(base, gpus=with_spares(spec, gpus), min_gpus=least, step_gpus=least)

    found = []
    if lacking % unit:
        gpus = with_spares(spec, lacking)
        found.append(replace(base, gpus=gpus, min_gpus=None, step_gpus=None))
    if lacking >= unit:
        found.append(elastic(lacking // unit * unit))
    return found


def _grown(projection: Projection, name: str, verdict: Verdict, now_ms: int) -> list[Draft]:
    spec, state = projection.run_spec(name), projection.runs[name]
    job, numbers = state.job or "", _lacking(spec, state)
    plan = f"{job}.{state.numbered}"
    drafts = [
        cover_draft(projection, name, verdict, now_ms, plan_id=plan),
        place_draft(projection, name, verdict, now_ms, plan_id=plan),
    ]
    width = state.width
    for number, lease in enumerate(lease_facts(name, spec, verdict, job, now_ms)):
        born = replace(
            lease, id=f"{job}.{state.numbered + number}", group=numbers[lease.group], reason="Grow"
        )
        width += born.gpus if born.is_active else 0
        drafts += lease_drafts(projection, born, job, now_ms)
    body = {"run": name, "width": width, "message": f"there is room again: {width} GPUs"}
    drafts.append(
        Draft(
            kind="run.grown", time_ms=now_ms, author=SYSTEM, body=body, plan_id=plan, effect="grown"
        )
    )
    return drafts


def _lacking(spec: RunSpec, state: RunState) -> list[int]:
    """The numbers of the groups that are gone, the lowest first."""
    groups = to_gang(spec, state.grows_to, elsewhere=False).groups()
    there = {lease.group for lease in state.leases.values() if lease.is_active}
    return [number for number in range(len(groups)) if number not in there]
