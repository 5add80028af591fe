"""What a waiting run lacks, and the deficit that preemption would have to free.

`core.gpu.find_deficit` decides which scope is short of how much and who is a candidate; this module
makes its input from the projection. Leases end for a run that is funded and lacks devices; never
for one that lacks budget. A malleable run asks for its minimum, no more than it needs to start.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from fairlead.core import gpu
from fairlead.core.gpu.place import Gang, Placement, place
from fairlead.engine.gpu.admission import assess, gang_of, refusal
from fairlead.engine.gpu.entries import DeficitDecision, FundRefusal, NewEntry
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.state import LeaseFact, Phase, RunState, parse_slot
from fairlead.schema.gpu import STYLE, deficit_document

TRIALS = 24  # placements in search of the time when there is room


@dataclass(frozen=True, slots=True)
class Shortage:
    """A demand, what it was decided on, and the deficit."""

    demand: gpu.Demand
    holdings: gpu.Holdings
    deficit: gpu.Deficit


def shortage_of(projection: Projection, demand: gpu.Demand) -> Shortage:
    flavor = demand.gang.flavor if isinstance(demand, gpu.GangDemand) else demand.scope.flavor
    holdings = holdings_of(projection, flavor)
    return Shortage(demand, holdings, gpu.find_deficit(demand, holdings))


def deficit_decision(shortage: Shortage, cause: str, now_ms: int) -> NewEntry:
    return NewEntry(
        DeficitDecision(cause, STYLE.from_core(shortage.deficit)),
        now_ms,
        input=deficit_document(shortage.demand, shortage.holdings),
        reasons=(shortage.deficit.reason.value,),
    )


def holdings_of(projection: Projection, flavor: str) -> gpu.Holdings:
    """Nodes, runs and open leases of a flavor; those of others decide nothing."""
    runs, leases = [], []
    for name, state in projection.live.items():
        spec = projection.run_spec(name)
        if spec.flavor != flavor or not state.leases:
            continue
        steps = spec.malleable
        runs.append(
            gpu.HoldingRun(
                name,
                spec.owner,
                flavor,
                None if steps is None else gpu.Malleable(steps.min_gpus, steps.step_gpus),
                state.nominated,
                state.stopping or state.reclaim is not None or state.phase is not Phase.RUNNING,
            )
        )
        leases += [
            gpu.HeldLease(
                lease.id,
                name,
                gpu.Role.ACTIVE if lease.is_active else gpu.Role.SPARE,
                lease.group,
                lease.slots,
                projection.is_funded(lease.id),
                lease.budget,
                lease.envelope,
                _is_ending(state, lease),
            )
            for lease in state.leases.values()
        ]
    nodes = tuple(node for node in projection.nodes() if node.flavor == flavor)
    return gpu.Holdings(nodes, tuple(runs), tuple(leases))


def _is_ending(state: RunState, lease: LeaseFact) -> bool:
    if state.stopping or state.phase is not Phase.RUNNING:
        return True
    reclaim = state.reclaim
    return reclaim is not None and (reclaim.preempts or lease.id in reclaim.leases)


@dataclass(frozen=True, slots=True)
class RunNeed:
    """What a run is waiting for. At most one of refusal and gang is given; neither: it fits now."""

    starts: bool
    refusal: FundRefusal | None = None
    gang: Gang | None = None
    """What has to be placed, where it lacks devices only."""


def need_of(projection: Projection, run: str, now_ms: int) -> RunNeed:
    spec = projection.run_spec(run)
    assessed = assess(projection, spec, now_ms)
    if assessed.starts:
        return RunNeed(starts=True)
    assessed = gpu.at_least(projection.book(now_ms), assessed, now_ms)
    if not assessed.plan.funded:
        return RunNeed(starts=False, refusal=refusal(assessed))
    return RunNeed(starts=False, gang=gang_of(spec, assessed.plan))


def obstacle(projection: Projection, run: str, ending: list[LeaseFact], now_ms: int) -> str | None:
    """Why a run could not start even if these leases ended; None: it can, and it needs them.

    Asked in the step that records the draw: no run is preempted for one that will not start.
    """
    state = projection.runs.get(run)
    if state is None or state.phase is not Phase.PENDING or state.stopping:
        return "the run that it was for is gone"
    need = need_of(projection, run, now_ms)
    if need.starts:
        return "the run that it was for fits without preemption"
    if need.gang is None:
        return "the run that it was for is not funded any more"
    if not place_after(projection, need.gang, ending).placed:
        return "the run that it was for would not fit into what is freed"
    return None


def free_at(projection: Projection, gang: Gang, now_ms: int) -> int | None:
    """When the gang would fit if every lease ends when it is expected to; None: not foreseeable."""
    ends = [
        (lease.expected_end_ms, lease)
        for lease in projection.leases.values()
        if lease.expected_end_ms is not None
    ]
    times = sorted({end_ms for end_ms, _ in ends})

    def fits(until_ms: int) -> bool:
        gone = [lease for end_ms, lease in ends if end_ms <= until_ms]
        return place_after(projection, gang, gone).placed

    if place_after(projection, gang, ()).placed:
        return now_ms
    if not times or not fits(times[-1]):
        return None
    low, high = 0, len(times) - 1
    for _ in range(TRIALS):
        if low >= high:
            break
        middle = (low + high) // 2
        low, high = (low, middle) if fits(times[middle]) else (middle + 1, high)
    return max(now_ms, times[high])


def place_after(projection: Projection, gang: Gang, ending: Iterable[LeaseFact]) -> Placement:
    """Where a gang goes once these leases are closed."""
    freed: dict[str, list[int]] = {}
    for lease in ending:
        for slot in lease.slots:
            node, ordinal = parse_slot(slot)
            freed.setdefault(node, []).append(ordinal)
    nodes = [
        replace(node, free=tuple(sorted((*node.free, *freed.get(node.name, ())))))
        for node in projection.nodes()
    ]
    return place(nodes, gang)
