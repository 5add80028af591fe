"""What a node agent reports of a clearing."""

from collections.abc import Callable, Mapping

from fairlead.core.cpu import Actuation, CpuConfig, PodMemory
from fairlead.core.cpu.allocate import GovernedPod
from fairlead.engine.cpu import CpuGovernor, CpuTurn
from fairlead.schema.cpu import from_plan, from_snapshot
from fairlead.schema.reports import PODS_MAX, NodeMoment, NodeReport, PodReport, ReportedDecision

PROBLEMS_MAX = 20


def node_moment(turn: CpuTurn, governor: CpuGovernor) -> Callable[[], NodeMoment]:
    """How to make the moment of a turn, later and in another thread: what the governor remembers
    right after the turn are values that never change."""
    memory, limits_millicores = governor.pods, governor.adopted_millicores
    config = governor.config
    return lambda: _moment(turn, memory, config, limits_millicores)


def _moment(
    turn: CpuTurn, memory: Mapping[str, PodMemory], config: CpuConfig, limits_millicores: int
) -> NodeMoment:
    plan, pods = turn.plan, turn.snapshot.pods
    # Those that are cut most come first where a node has more than a report holds.
    shown = sorted(pods, key=lambda pod: (-plan.reduction_ratio[pod.uid], pod.uid))[:PODS_MAX]
    state = NodeReport(
        mode=plan.mode.value,
        policy=turn.snapshot.policy.value,
        node_millicores=config.node_millicores,
        capacity_millicores=plan.capacity_millicores,
        shadow_price=plan.shadow_price,
        need_millicores=plan.total_need,
        limits_millicores=limits_millicores,
        observed_only=turn.observed_only,
        problems=[
            f"{failure.write.uid}/{failure.write.container}: {failure.reason}"[:1000]
            for failure in turn.failures[:PROBLEMS_MAX]
        ],
        pods=[_pod(turn, memory.get(pod.uid), pod, config.actuate) for pod in shown],
        pods_left_out=len(pods) - len(shown),
    )
    return NodeMoment(turn.snapshot.now_ms, state, _decision(turn))


def _pod(
    turn: CpuTurn, memory: PodMemory | None, pod: GovernedPod, actuate: Actuation
) -> PodReport:
    plan, uid = turn.plan, pod.uid
    return PodReport(
        pod=uid[-253:],
        need_millicores=plan.needs[uid],
        allocation_millicores=plan.allocations[uid],
        limit_millicores=None if memory is None else memory.limit_in_force(actuate),
        usage_millicores=pod.usage_millicores,
        throttling=pod.throttling,
        min_millicores=pod.min_millicores,
        max_millicores=pod.max_millicores,
        reasons=[reason.value for reason in plan.reasons[uid]],
        bounds=[reason.value for reason in plan.bounds[uid].reasons],
    )


def _decision(turn: CpuTurn) -> ReportedDecision | None:
    if turn.sequence is None:
        return None
    note = "observe-only" if turn.observed_only else ""
    if turn.failures:
        note = f"{len(turn.failures)} writes failed"
    return ReportedDecision(
        number=turn.sequence,
        kind="cpu.allocate",
        version=1,
        input=from_snapshot(turn.snapshot),
        output=from_plan(turn.plan),
        applied=not turn.observed_only,
        note=note,
    )
