"""The story of a run in sentences: what changed between two decisions, who gives way, and why.

Called by `sim.world` after each decision; the demo shows the lines, the report prints them.
"""

from collections.abc import Iterator

from fairlead.core.cpu import CpuMode, NodePlan, Policy
from fairlead.core.reasons import CpuReason
from fairlead.sim.record import Decision

LINES_MAX = 3
"""Per decision: enough to follow, few enough to read."""

WHY = {
    CpuReason.DEMAND_DRIVEN: "follows its demand",
    CpuReason.USAGE_FALLBACK: "shows no demand but usage near its minimum: usage decides",
    CpuReason.SIGNAL_MISSING_USAGE: "has no demand signal: usage decides",
    CpuReason.SIGNAL_MISSING_HOLD: "has no signal: its grant is held",
    CpuReason.SIGNAL_MISSING_MIN: "has no signal: it gets its minimum",
    CpuReason.MIN_ABOVE_MAX: "asks for more than its limit: the limit wins",
    CpuReason.GUARDRAIL_RELAXED: "its guardrails were relaxed to fit",
}
_CUT_BY = {
    Policy.DEMAND_CAPPED: "everybody's surplus is cut by one ratio",
    Policy.NASH: "shared by weight, nobody above its need",
    Policy.MARKET: "shared by bids",
}


def cores(millicores: int) -> str:
    """Millicores as people say them."""
    return f"{millicores / 1000:.2f}"


def tell(before: Decision | None, now: Decision) -> list[tuple[str, str]]:
    """(kind, sentence) pairs for what this decision changed; empty if nothing worth a line did."""
    lines = [*_mode(before.plan if before else None, now)]
    lines += _lost_signals(before.plan if before else None, now.plan)
    moves = _moves(now)
    falls = [move for move in moves if move[0] < 0]
    rises = [move for move in reversed(moves) if move[0] > 0]
    scarce = now.plan.mode is not CpuMode.UNCONGESTED
    if falls and (scarce or not rises):
        lines.append(("gives-way" if scarce else "returns", _fall(falls[0][1], now)))
    if rises:
        lines.append(("grows", _rise(rises[0][1], now.plan, rises[0][0])))
    return lines[:LINES_MAX]


def _mode(before: NodePlan | None, now: Decision) -> Iterator[tuple[str, str]]:
    plan = now.plan
    if before is not None and before.mode is plan.mode:
        return
    whole = cores(plan.capacity_millicores)
    if plan.mode is CpuMode.CONGESTED:
        text = f"needs {cores(plan.total_need)} of {whole} cores, {_CUT_BY[now.snapshot.policy]}"
    elif plan.mode is CpuMode.OVERLOADED:
        text = f"minimums {cores(plan.total_min)} of {whole} cores, even they are scaled down"
    else:
        text = f"needs {cores(plan.total_need)} of {whole} cores, everybody gets its need"
    yield f"mode.{plan.mode.value}", f"{plan.mode.value}: {text}"


def _lost_signals(before: NodePlan | None, plan: NodePlan) -> Iterator[tuple[str, str]]:
    for uid, reasons in plan.reasons.items():
        earlier = before.reasons.get(uid, ()) if before else ()
        for reason in reasons:
            if reason.startswith("signal-missing") and reason not in earlier:
                yield "signal", f"{uid} {WHY[reason]}"


def _moves(now: Decision) -> list[tuple[int, str]]:
    """(change of the grant, uid), the largest fall first; what is below 5 % is not worth a line."""
    moves = []
    for pod in now.snapshot.pods:
        current = pod.current_millicores
        if current is None:
            continue
        change = now.plan.allocations[pod.uid] - current
        if abs(change) * 20 > current:
            moves.append((change, pod.uid))
    return sorted(moves)


def _fall(uid: str, now: Decision) -> str:
    plan = now.plan
    current = next(p.current_millicores for p in now.snapshot.pods if p.uid == uid) or 0
    text = f"{uid} gives {cores(current)} → {cores(plan.allocations[uid])}"
    if plan.mode is CpuMode.OVERLOADED:
        return f"{text}: its minimum is scaled"
    cut = plan.reduction_ratio[uid]
    if cut > 0:
        return f"{text}: needs {cores(plan.needs[uid])}, {cut:.0%} of its surplus is cut"
    return f"{text}: {'; '.join(WHY[reason] for reason in plan.reasons[uid])}"


def _rise(uid: str, plan: NodePlan, change: int) -> str:
    grant = plan.allocations[uid]
    why = "; ".join(WHY[reason] for reason in plan.reasons[uid])
    return f"{uid} grows {cores(grant - change)} → {cores(grant)}: {why}"
