"""The CPU governor as a state machine: sightings in, snapshots and changes out, state kept."""

import json
from typing import Any

import msgspec
import pytest

from fairlead.core.cpu import (
    ContainerSighting,
    Counters,
    CpuConfig,
    CpuMode,
    Guardrails,
    LimitWrite,
    NodePlan,
    NodeSnapshot,
    PodSighting,
    Policy,
    WritePhase,
)
from fairlead.engine.cpu import BadState, CpuGovernor

CONFIG = CpuConfig(
    node_millicores=1000, reserve=0.0, guardrails=Guardrails(cooldown_ms=0, grace_ms=0)
)
OLD_MS, LATER_MS = -3_600_000, 3_600_000


class Meter:
    """A pod's counters, moved by hand."""

    def __init__(self, uid: str, limit: int | None = 800, **fields: Any) -> None:
        self.uid, self.limit, self.fields = uid, limit, {"started_ms": OLD_MS, **fields}
        self.used_us = self.held_us = self.periods = self.throttled = 0

    def second(self, used: int, *, held: int = 0) -> None:
        """One second of use, in millicores; held time throttles every period of it."""
        self.used_us += used * 1000
        self.held_us += held * 1000
        self.periods += 10
        self.throttled += 10 if held else 0

    def sight(self, now_ms: int, *, blind: bool = False) -> PodSighting:
        read = Counters(now_ms * 1000, self.used_us, self.periods, self.throttled, self.held_us)
        container = ContainerSighting("", self.limit, None if blind else read)
        fields: dict[str, Any] = {"request_millicores": 100, **self.fields}
        return PodSighting(uid=self.uid, containers=(container,), **fields)


def observe(
    governor: CpuGovernor, *meters: Meter, seconds: int = 5, used: int = 300, start: int = 0
) -> int:
    """Sample once a second; returns the time after the last sample."""
    for second in range(start, start + seconds + 1):
        if second > start:
            for meter in meters:
                meter.second(used)
        governor.observe(second * 1000, [meter.sight(second * 1000) for meter in meters])
    return (start + seconds) * 1000


def decided(governor: CpuGovernor, now_ms: int) -> tuple[NodeSnapshot, NodePlan]:
    """A decision as the loop takes it: made, recorded somewhere, settled."""
    snapshot, plan, _ = governor.decide(now_ms)
    governor.settle(now_ms, plan)
    return snapshot, plan


def capacity(governor: CpuGovernor) -> int:
    """What may be handed out now."""
    return governor.decide(0)[0].capacity_millicores


def as_json(governor: CpuGovernor) -> dict[str, Any]:
    """What a governor keeps, as a file would hold it."""
    stored: dict[str, Any] = json.loads(msgspec.json.encode(governor.export()))
    return stored


def restored(governor: CpuGovernor) -> CpuGovernor:
    return CpuGovernor.restore(CONFIG, as_json(governor), now_ms=LATER_MS)


def test_the_users_bounds_are_frozen_at_first_sight() -> None:
    """Later limits are ours: the maximum stays what the user gave, or the whole capacity."""
    governor, a, free = CpuGovernor(CONFIG), Meter("a", 800), Meter("free", None)
    now = observe(governor, a, free)
    a.limit = free.limit = 150
    observe(governor, a, free, start=now // 1000)
    states = governor.pods
    assert (states["a"].min_millicores, states["a"].max_millicores) == (100, 800)
    assert states["a"].current_millicores == 150
    assert states["free"].max_millicores == 1000
    assert states["free"].original_limit_millicores is None


def test_a_new_pod_of_an_old_name_starts_afresh() -> None:
    """Its identity differs: the old one's ceiling would be wrong for it."""
    governor = CpuGovernor(CONFIG)
    observe(governor, Meter("a", 800, identity="1"))
    observe(governor, Meter("a", 300, identity="2"), start=6)
    assert governor.pods["a"].max_millicores == 300


def test_a_pod_that_left_is_forgotten_and_one_that_opted_out_takes_its_limit_along() -> None:
    """Capacity is the node less its reserve less the opted-out pods' limits, else requests."""
    config = CpuConfig(node_millicores=1000)
    governor, a = CpuGovernor(config), Meter("a")
    assert capacity(governor) == 900
    limited = Meter("x", 250, opted_out=True)
    unlimited = Meter("y", None, opted_out=True, request_millicores=120)
    now = observe(governor, a, limited, unlimited)
    assert capacity(governor) == 900 - 250 - 120
    assert list(governor.pods) == ["a"]
    snapshot, _ = decided(governor, now)
    assert [pod.uid for pod in snapshot.pods] == ["a"]
    governor.observe(now + 1000, [])
    assert governor.pods == {}
    assert capacity(governor) == 900
    governor.observe(now + 2000, [Meter("z", 5000, opted_out=True).sight(0)])
    assert capacity(governor) == 0, "never negative"


def test_a_window_without_a_reading_is_a_missing_signal() -> None:
    """One good reading per clear is enough; none, and the last demand is passed on as stale."""
    governor, a = CpuGovernor(CONFIG), Meter("a")
    now = observe(governor, a, used=450)
    pod = decided(governor, now)[0].pods[0]
    assert (pod.signal_ok, pod.usage_millicores, pod.demand) == (True, 450, 0.5)
    for second in range(6, 11):
        a.second(450)
        governor.observe(second * 1000, [a.sight(second * 1000, blind=second != 8)])
    assert decided(governor, 10_000)[0].pods[0].signal_ok
    for second in range(11, 16):
        governor.observe(second * 1000, [a.sight(second * 1000, blind=True)])
    pod = decided(governor, 15_000)[0].pods[0]
    assert (pod.signal_ok, pod.usage_millicores, pod.demand) == (False, None, 0.5)


def test_a_pod_seen_for_the_first_time_is_held() -> None:
    """One sample shows no rate: no signal yet, the grant stays what it was."""
    governor = CpuGovernor(CONFIG)
    governor.observe(0, [Meter("a", 640).sight(0)])
    _, plan = decided(governor, 0)
    assert plan.allocations == {"a": 640}
    assert plan.reasons["a"] == ("signal-missing.hold",)


def test_decreases_then_newcomers_then_increases() -> None:
    """A newcomer counts from its first write, so even one that falls waits for the decreases."""
    governor = CpuGovernor(CONFIG)
    a, b, new = Meter("a", 700), Meter("b", 800), Meter("new", 500)
    now = observe(governor, a, b)
    b.limit = 200
    for uid, limit in (("a", 700), ("b", 200)):
        governor.applied(LimitWrite(uid, "", limit, limit, WritePhase.INCREASE), limit)
    governor.observe(now, [each.sight(now) for each in (a, b, new)])
    _, plan = decided(governor, now)
    grants = dict(plan.allocations)
    assert grants["a"] < 700
    assert grants["b"] > 200
    assert plan.writes[0] == LimitWrite("a", "", 700, grants["a"], WritePhase.DECREASE)
    assert [(write.uid, write.phase) for write in plan.writes[1:]] == [
        ("new", WritePhase.NEWCOMER),
        ("b", WritePhase.INCREASE),
    ]
    for write in plan.writes:
        governor.applied(write, write.after)
    assert decided(governor, now)[1].writes == (), "what is in force is not written again"


def misses_after(seconds: int, *, used: int, held: int, others: int = 0) -> int:
    """Clear every five seconds, the plan applied as decided; returns the headroom misses."""
    governor, a, rest = CpuGovernor(CONFIG), Meter("a"), Meter("rest")
    for second in range(seconds + 1):
        if second:
            a.second(used, held=held)
            rest.second(others)
        governor.observe(second * 1000, [a.sight(second * 1000), rest.sight(second * 1000)])
        if second and second % 5 == 0:
            for write in decided(governor, second * 1000)[1].writes:
                governor.applied(write, write.after)
                {"a": a, "rest": rest}[write.uid].limit = write.after
    return governor.pods["a"].misses


def test_a_satisfied_pod_collects_no_misses() -> None:
    """It steadily uses more than a third of its range and was never throttled."""
    assert misses_after(120, used=500, held=0) == 0


def test_throttling_that_outlives_a_grant_is_a_miss_up_to_the_cap() -> None:
    """8 misses bring the headroom from 10 % to its cap of 50 %; more would be forgotten late."""
    assert CONFIG.headroom.misses_max == 8
    assert misses_after(20, used=200, held=100) > 0
    assert misses_after(300, used=200, held=100) == 8


def test_on_a_congested_node_nobody_collects_misses() -> None:
    """There is no headroom to be had: throttling is scarcity there."""
    assert misses_after(120, used=500, held=300, others=700) == 0


def test_the_state_survives_a_restart_through_json() -> None:
    """A restored governor decides what the old one would have decided."""
    governor, a, b = CpuGovernor(CONFIG), Meter("a"), Meter("b", 500)
    now = observe(governor, a, b, used=450)
    _, plan = decided(governor, now)
    for write in plan.writes:
        governor.applied(write, write.after)
    again = restored(governor)
    assert again.export() == governor.export()
    for each in (governor, again):
        meters = (Meter("a", plan.allocations["a"]), Meter("b", plan.allocations["b"]))
        observe(each, *meters, seconds=10, start=now // 1000, used=470)
    # The window is refilled from the same samples; only the first difference is missing.
    one, other = decided(governor, now + 10_000), decided(again, now + 10_000)
    assert one == other


GOOD_STATE = {"version": 2, "mode": None, "reserved_millicores": 0, "pods": []}


@pytest.mark.parametrize(
    "stored",
    [
        {},
        {"version": 1},
        {**GOOD_STATE, "mode": "calm"},
        {**GOOD_STATE, "pods": None},
        {**GOOD_STATE, "pods": [{}]},
        {**GOOD_STATE, "pods": [[]]},
        {**GOOD_STATE, "pods": [7]},
        {**GOOD_STATE, "reserved_millicores": None},
    ],
)
def test_a_state_that_is_not_ours_is_refused_whole(stored: dict[str, Any]) -> None:
    """Half a state believed would be worse than none."""
    with pytest.raises(BadState):
        CpuGovernor.restore(CONFIG, stored, now_ms=0)
    assert as_json(CpuGovernor.restore(CONFIG, GOOD_STATE, now_ms=0)) == GOOD_STATE


@pytest.mark.parametrize(
    "demand", [[0.5], [None, [["1", 0.5]]], [None, [[1, "0.5"]]], ["x", []], [0.5, [[1.5, 0.5]]]]
)
def test_a_held_peak_that_is_not_ours_is_refused(demand: list[Any]) -> None:
    """A time that is no integer, a value that is no number."""
    governor = CpuGovernor(CONFIG)
    observe(governor, Meter("a"), used=500)
    stored = as_json(governor)
    assert as_json(restored(governor)) == stored
    stored["pods"][0]["demand"] = demand
    with pytest.raises(BadState):
        CpuGovernor.restore(CONFIG, stored, now_ms=LATER_MS)


def test_a_clock_set_back_does_not_hold_a_peak_until_then() -> None:
    """Times after now count as now."""
    governor, a = CpuGovernor(CONFIG), Meter("a")
    observe(governor, a, used=500)
    again = CpuGovernor.restore(CONFIG, as_json(governor), now_ms=7)
    assert [at_ms for at_ms, _ in again.pods["a"].demand.peaks] == [7]


def test_mode_and_policy_are_passed_on() -> None:
    """The last label goes into the next snapshot; a new policy holds from the next clear."""
    governor, a, b = CpuGovernor(CONFIG), Meter("a"), Meter("b")
    now = observe(governor, a, b, used=700)
    snapshot, plan = decided(governor, now)
    assert (snapshot.previous_mode, plan.mode) == (None, CpuMode.CONGESTED)
    governor.config = CpuConfig(node_millicores=1000, reserve=0.0, policy=Policy.NASH)
    snapshot, _ = decided(governor, now)
    assert (snapshot.previous_mode, snapshot.policy) == (CpuMode.CONGESTED, Policy.NASH)


def test_a_configuration_out_of_range_is_refused() -> None:
    """At construction, by field."""
    for fields in (
        {"reserve": 1.5},
        {"sample_ms": 0},
        {"sample_ms": 6_000},
        {"node_millicores": -1},
    ):
        with pytest.raises(ValueError, match=next(iter(fields))):
            CpuConfig(**{"node_millicores": 1000, **fields})  # type: ignore[arg-type]
