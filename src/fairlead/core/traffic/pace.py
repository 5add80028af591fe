"""When a group may go without a decision for a moment: nothing is open, and nothing has happened.

    if rests(decision):                      # and once its plan is in force, in every tick:
        waited = look(sighting_of_that_decision, sighting_of_now, theta)
        if may_wait(waited): ...             # no decision; what was seen is recorded with the next

Every group is looked at in every tick; a decision costs some thirty times as much as a look. A
group whose slots rest, whose admission is open and in which all backends serve is decided on once
in `CALM_MS`. One that gets fewer requests than a rate of errors is judged by is decided on once in
`IDLE_MS`, the window of its latencies. Whatever the signals of a tick react to (an error, a failed
connect, requests that pile up in one backend, latencies that double, a rejection, a command, a
stall of a machine) ends the wait in the tick in which it is seen.
"""

from collections.abc import Mapping
from math import ceil

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
    Waited,
)
from fairlead.core.traffic.state import AdmissionMode

CALM_MS, IDLE_MS, REQUESTS_MIN = 1_000, 5_000, 20
STAY_MS, SLOWER, STALLED = 200, 2.0, 1.0
"""What ends a wait: requests that stay for longer than a tick in a backend that holds some of them,
latencies so many times as high as at the decision, a machine at its threshold."""
_MOST = 1_000_000.0
_RESTING = frozenset(
    {TrafficReason.STEADY, TrafficReason.MONOPOLY, TrafficReason.SIGNAL_MISSING_LATENCY}
)
"""Reasons of a group that rests. One that gets no requests has no latency."""


def rests(decision: GroupDecision) -> bool:
    """Whether a decision leaves nothing open that the next tick would go on with."""
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


def may_wait(waited: Waited) -> bool:
    """Whether a group whose last decision rests, and is in force, may go without another one."""
    most_ms = IDLE_MS if waited.requests < REQUESTS_MIN else CALM_MS
    return (
        waited.since_ms < most_ms
        and waited.failures == 0
        and waited.events == 0
        and waited.stay_ms <= STAY_MS
        and waited.slower < SLOWER
        and waited.stalled <= STALLED
    )


def merge(before: Waited | None, now: Waited) -> Waited:
    """Both together: no value is less than it was in one of them."""
    if before is None:
        return now
    return Waited(
        before.looks + now.looks,
        max(before.since_ms, now.since_ms),
        max(before.requests, now.requests),
        max(before.failures, now.failures),
        max(before.events, now.events),
        max(before.stay_ms, now.stay_ms),
        max(before.slower, now.slower),
        max(before.stalled, now.stalled),
    )


def look(before: Sighting, now: Sighting, theta: Theta) -> Waited:
    """One look at a group, by what was seen at its last decision and is seen now."""
    seen, was, since_ms = now.seen, before.seen, now.now_ms - before.now_ms
    events = len(now.probed) + len(now.commands) + sum(not check.ok for check in now.checked)
    events += now.early + (now.members != before.members) + (now.covered != before.covered)
    events += before.readings.keys() != now.readings.keys()
    stalled = _stalled(before.nodes, now.nodes, theta)
    if seen is None or was is None or seen.backends.keys() != was.backends.keys():
        return Waited(1, since_ms, 0, 0, events + 1, 0, 0.0, stalled)
    requests = seen.admitted - was.admitted
    events += seen.liveness is not Liveness.NORMAL
    events += seen.epoch != was.epoch
    events += requests < 0 or since_ms < 0
    return Waited(
        1,
        since_ms,
        requests,
        _failures(was, seen) + _reported_failures(before.readings, now.readings),
        events,
        _stay_ms(was, seen, now.readings, since_ms),
        _slower(before, now),
        stalled,
    )


def _failures(before: GroupSeen, now: GroupSeen) -> int:
    changed = abs(now.refused_soft - before.refused_soft)
    changed += abs(now.refused_hard - before.refused_hard)
    for name, seen in now.backends.items():
        was = before.backends[name]
        if seen.errors != was.errors:
            changed += _change(was.errors, seen.errors)
        if seen.connect_failures != was.connect_failures:
            changed += _change(was.connect_failures, seen.connect_failures)
    return changed


def _reported_failures(before: Mapping[str, Reading], now: Mapping[str, Reading]) -> int:
    changed = 0
    for name, reading in now.items():
        was = before.get(name)
        if was is not None:
            changed += _change(was.errors, reading.errors)
            changed += _change(was.retries, reading.retries)
    return changed


def _change(before: int | None, now: int | None) -> int:
    """How much was counted; one that vanishes, or is there for the first time, is a change."""
    if before is None or now is None:
        return int(before is not now)
    return abs(now - before)


def _stay_ms(
    before: GroupSeen, now: GroupSeen, readings: Mapping[str, Reading], since_ms: int
) -> int:
    """The longest of those backends that hold some requests, rounded up. One that has served
    nothing since then has kept them for too long."""
    longest = 0.0
    for name, seen in now.backends.items():
        inside, reading = _inside(seen), readings.get(name)
        held = float(inside) if reading is None else max(float(inside), reading.queue or 0.0)
        if held >= HELD_MIN:
            was = before.backends[name]
            served = seen.admitted - inside - was.admitted + _inside(was)
            longest = max(longest, held * since_ms / served if served > 0 else _MOST)
    return ceil(min(longest, _MOST))


def _inside(seen: BackendSeen) -> int:
    return (seen.open or 0) + (seen.queue or 0)


def _slower(before: Sighting, now: Sighting) -> float:
    """0 where there are no latencies; the first ones are news."""
    worst = _worst_ms(now)
    if worst == 0.0:
        return 0.0
    was = _worst_ms(before)
    return min(worst / was, _MOST) if was > 0.0 else _MOST


def _worst_ms(sighting: Sighting) -> float:
    worst = 0.0
    for seen in () if sighting.seen is None else sighting.seen.backends.values():
        worst = max(worst, seen.p95_ms or 0.0)
    for reading in sighting.readings.values():
        worst = max(worst, reading.p95_ms or 0.0)
    return worst


def _stalled(
    before: tuple[NodeReading, ...] | None, now: tuple[NodeReading, ...] | None, theta: Theta
) -> float:
    """By the machine that stalled most. What runs out is extrapolated over seconds and can wait;
    machines that come, go or fall silent are news."""
    if before is None or now is None:
        return 0.0 if before is now else _MOST
    known = {node.id: node.totals for node in before}
    if len(known) != len(now):
        return _MOST
    most = 0.0
    for node in now:
        last = known.get(node.id)
        if (last is None) is not (node.totals is None):
            return _MOST
        if last is None or node.totals is None:
            continue
        passed_us = node.totals.time_us - last.time_us
        for kind in STALLING:
            more_us = node.totals.stalled_us.get(kind, 0) - last.stalled_us.get(kind, 0)
            more_us = min(more_us, passed_us)  # both are read one after the other
            allowed_us = getattr(theta, kind) * passed_us
            if more_us > 0:
                most = max(most, min(more_us / allowed_us, _MOST) if allowed_us > 0 else _MOST)
    return most
