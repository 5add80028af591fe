"""What the agent knows, as a document: for `node status`, `node explain` and the metrics."""

from typing import Any

from fairlead.engine.cpu import CpuGovernor, CpuTurn


def status_document(turn: CpuTurn, governor: CpuGovernor) -> dict[str, Any]:
    """The last turn with what is known of every pod; plain data."""
    plan = turn.plan
    return {
        "version": 1,
        "time_ms": turn.snapshot.now_ms,
        "sequence": turn.sequence,
        "policy": turn.snapshot.policy.value,
        "mode": plan.mode.value,
        "node_millicores": governor.config.node_millicores,
        "capacity_millicores": plan.capacity_millicores,
        "limits_millicores": governor.adopted_millicores,
        "total_min": plan.total_min,
        "total_need": plan.total_need,
        "shadow_price": plan.shadow_price,
        "observed_only": turn.observed_only,
        "written": len(turn.written),
        "failures": [
            {
                "pod": failure.write.uid,
                "container": failure.write.container,
                "reason": failure.reason,
            }
            for failure in turn.failures
        ],
        "clear_ms": governor.config.clear_ms,
        "pods": [_pod(turn, governor, uid) for uid in sorted(plan.allocations)],
    }


def _pod(turn: CpuTurn, governor: CpuGovernor, uid: str) -> dict[str, Any]:
    plan, state = turn.plan, governor.pods[uid]
    seen = next(pod for pod in turn.snapshot.pods if pod.uid == uid)
    bound = plan.bounds[uid]
    return {
        "pod": uid,
        "need_millicores": plan.needs[uid],
        "grant_millicores": plan.allocations[uid],
        "limit_millicores": state.current_millicores,
        "usage_millicores": seen.usage_millicores,
        "demand": seen.demand,
        "throttling": state.throttling,
        "min_millicores": seen.min_millicores,
        "max_millicores": seen.max_millicores,
        "lower_millicores": bound.lower_millicores,
        "upper_millicores": bound.upper_millicores,
        "bound_reasons": list(bound.reasons),
        "original_limit_millicores": state.original_limit_millicores,
        "weight": seen.weight,
        "headroom_misses": plan.memory[uid].headroom_misses,
        "signal_ok": seen.signal_ok,
        "reduction_ratio": plan.reduction_ratio[uid],
        "reasons": list(plan.reasons[uid]),
        "containers": {
            name: container.current_millicores
            for name, container in sorted(state.containers.items())
        },
    }
