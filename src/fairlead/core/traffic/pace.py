"""When a group may go without a decision for a moment: nothing is open, and nothing has happened.

    waits = is_settled(decision) and may_wait(sighting_of_that_decision, sighting_of_now, theta)

Every group is looked at in every tick; a decision costs some thirty times as much as a look. A
group whose slots rest, whose admission is open and in which all backends serve is decided on once
in `CALM_MS`, one that gets no requests at all once in `IDLE_MS`. Whatever the signals of a tick
react to (an error, a failed connect, a few requests in one backend, a rejection, a command, a stall
of a machine) ends the wait in the tick in which it is seen, so nothing is noticed later than it
would be.
"""

from collections.abc import Mapping

from fairlead.core.reasons import TrafficReason
from fairlead.core.traffic.config import Theta
from fairlead.core.traffic.counters import HELD_MIN
from fairlead.core.traffic.govern import GroupDecision
from fairlead.core.traffic.nodes import STALLING
from fairlead.core.traffic.sighting import (
    BackendSeen,
    GroupSeen,
    Liveness,
    NodeReading,
    Reading,
    Sighting,
)
from fairlead.core.traffic.state import AdmissionMode

CALM_MS, IDLE_MS = 1_000, 5_000
_RESTING = frozenset(
    {TrafficReason.STEADY, TrafficReason.MONOPOLY, TrafficReason.SIGNAL_MISSING_LATENCY}
)
"""Reasons of a group that rests. One that gets no requests has no latency."""


def is_settled(decision: GroupDecision) -> bool:
    """Whether a decision left nothing open that the next tick would go on with."""
    plan, observed = decision.plan, decision.observed
    return (
        plan.admission.mode is AdmissionMode.NORMAL
        and plan.state.gate.since_ms is None
        and not plan.applied
        and not plan.stall
        and not observed.isolated
        and not observed.full
        and _RESTING.issuperset(plan.reasons)
    )


def may_wait(before: Sighting, now: Sighting, theta: Theta) -> bool:
    """Whether a group of which the last decision is settled may wait, by what was seen then and is
    seen now."""
    seen, seen_before = now.seen, before.seen
    if now.early or now.probed or now.commands or any(not check.ok for check in now.checked):
        return False
    if seen is None or seen_before is None:
        return False
    most_ms = IDLE_MS if seen == seen_before else CALM_MS
    return (
        now.now_ms - before.now_ms < most_ms
        and now.members == before.members
        and now.covered == before.covered
        and _same_group(seen_before, seen)
        and _quiet_readings(before.readings, now.readings)
        and _quiet_nodes(before.nodes, now.nodes, theta)
    )


def _same_group(before: GroupSeen, now: GroupSeen) -> bool:
    return (
        now.liveness is Liveness.NORMAL
        and now.epoch == before.epoch
        and now.refused_soft == before.refused_soft
        and now.refused_hard == before.refused_hard
        and all(_quiet(before.backends.get(name), seen) for name, seen in now.backends.items())
    )


def _quiet(before: BackendSeen | None, now: BackendSeen) -> bool:
    return (
        before is not None
        and now.errors == before.errors
        and now.connect_failures == before.connect_failures
        and (now.open or 0) + (now.queue or 0) < HELD_MIN
    )


def _quiet_readings(before: Mapping[str, Reading], now: Mapping[str, Reading]) -> bool:
    return before.keys() == now.keys() and all(
        reading.errors == before[name].errors
        and reading.retries == before[name].retries
        and (reading.queue or 0) < HELD_MIN
        for name, reading in now.items()
    )


def _quiet_nodes(
    before: tuple[NodeReading, ...] | None, now: tuple[NodeReading, ...] | None, theta: Theta
) -> bool:
    """No machine has stalled for more than its threshold since then. What runs out is extrapolated
    over seconds and can wait."""
    if before is None or now is None:
        return before is now
    known = {node.id: node.totals for node in before}
    for node in now:
        last = known.get(node.id)
        if (last is None) is not (node.totals is None):
            return False
        if last is None or node.totals is None:
            continue
        passed_us = node.totals.time_us - last.time_us
        for kind in STALLING:
            more_us = node.totals.stalled_us.get(kind, 0) - last.stalled_us.get(kind, 0)
            if more_us > getattr(theta, kind) * passed_us:
                return False
    return len(known) == len(now)
