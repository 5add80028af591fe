"""Reasons (section 13): the two most urgent conditions that hold now.

Reasons are conditions, not memories: admission that is still restricted after a past crisis is
steady once it is calm. A tick that moves slots is never steady; it names the term of the pressure
that moved them most.
"""

from collections.abc import Sequence

from fairlead.core.reasons import TrafficReason
from fairlead.core.traffic.model import Pressure, TickPlan
from fairlead.core.traffic.pressure import left_sum
from fairlead.core.traffic.state import AdmissionMode

TOP = 2
PRIORITY = tuple(TrafficReason)


def top_reasons(holding: set[TrafficReason]) -> tuple[TrafficReason, ...]:
    """The first two by priority; `steady` where nothing holds, or beside a mere monopoly."""
    if holding <= {TrafficReason.MONOPOLY}:
        holding = holding | {TrafficReason.STEADY}
    return tuple(reason for reason in PRIORITY if reason in holding)[:TOP]


def agent_reasons(plan: TickPlan, *, full: bool, stale: bool) -> tuple[TrafficReason, ...]:
    """The plan's reasons after what the agent alone knows: its heartbeat was found stale, or open
    admission rejected requests because too many were inside.
    """
    reasons = plan.reasons
    if full and plan.admission.mode is AdmissionMode.NORMAL:
        busy = (reason for reason in reasons if reason is not TrafficReason.STEADY)
        reasons = (TrafficReason.FULL, *busy)
    if stale:
        reasons = (TrafficReason.FAILSAFE, *reasons)
    return reasons[:TOP]


def missing_reasons(*, latency: bool, errors: bool, queue: bool, blind: bool) -> set[TrafficReason]:
    """Without latency and errors of any backend there is one reason, not two that hide it."""
    holding = {TrafficReason.SIGNAL_MISSING_QUEUE} if queue else set()
    if blind:
        return holding | {TrafficReason.SIGNAL_MISSING_BOTH}
    if latency:
        holding.add(TrafficReason.SIGNAL_MISSING_LATENCY)
    if errors:
        holding.add(TrafficReason.SIGNAL_MISSING_ERRORS)
    return holding


def moving_term(pressures: Sequence[Pressure], changes: Sequence[int]) -> TrafficReason:
    """The term that moved the slots most.

    Each changed slot counts as much as its backend's term differs from the group's mean: what is
    the same everywhere moves nothing. Where no term differs (a newborn joins its equals, a backend
    leaves), the largest term of the group is named.
    """
    terms = (
        (TrafficReason.PRESSURE_ERRORS, [p.error + p.penalty for p in pressures]),
        (TrafficReason.PRESSURE_LATENCY, [p.latency for p in pressures]),
        (TrafficReason.PRESSURE_QUEUE, [p.queue for p in pressures]),
    )
    best, most = TrafficReason.PRESSURE_ERRORS, (-1.0, -1.0)
    for reason, values in terms:
        total = left_sum(values)
        mean = total / max(len(values), 1)
        moved = 0.0
        if len(set(values)) > 1:  # the mean of equals may round away from them
            moved = left_sum(
                abs(change) * abs(value - mean)
                for change, value in zip(changes, values, strict=True)
            )
        if (moved, total) > most:
            best, most = reason, (moved, total)
    return best
