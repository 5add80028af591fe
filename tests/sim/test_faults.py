"""Fault points: each one reaches the governor the way the real thing would, and is survived."""

from typing import Any

import pytest

from fairlead.core.reasons import CpuReason
from fairlead.schema.scenario import FaultPoint
from fairlead.sim import Simulation, play
from fairlead.sim.agent import Faults
from fairlead.sim.clock import Entropy
from tests.sim.scenarios import BUSY, pod, scenario


def world_with(*faults: dict[str, Any], seconds: int = 60) -> Simulation:
    world = Simulation(scenario(*BUSY, faults=list(faults)), seed=3, policy=None)
    world.advance(seconds * 1000)
    return world


def reasons_of(world: Simulation, uid: str) -> list[tuple[int, tuple[CpuReason, ...]]]:
    return [(made.time_ms, made.plan.reasons[uid]) for made in world.record.decisions]


def test_a_blind_sensor_holds_the_grant_and_says_so() -> None:
    """No reading in a whole window: the signal is missing, the grant stays, others go on."""
    world = world_with({"point": "sensor.missing", "at_s": [20], "duration_s": 16, "pods": ["web"]})
    for time_ms, reasons in reasons_of(world, "web"):
        blind = 25_000 <= time_ms <= 35_000
        assert (CpuReason.SIGNAL_MISSING_HOLD in reasons) == blind, time_ms
    assert all(CpuReason.DEMAND_DRIVEN in reasons for _, reasons in reasons_of(world, "api"))


@pytest.mark.parametrize("point", ["sensor.missing", "sensor.reset", "sensor.garbage"])
def test_one_bad_sample_does_not_lose_the_signal(point: str) -> None:
    """The window of a clear has five samples; one of them is not worth a fallback."""
    world = world_with({"point": point, "at_s": [17], "duration_s": 0})
    assert world.faults.fired == {point: 3}
    for uid in ("web", "api", "cron"):
        assert all(
            not reasons[0].startswith("signal-missing") for _, reasons in reasons_of(world, uid)
        )


def test_slow_limits_arrive_late_and_keep_the_promise() -> None:
    """Writes of 700 ms: the agent misses samples, the limits never pass the capacity."""
    slow = {"point": "actuator.slow", "probability": 1.0, "delay_ms": 700}
    world = world_with(slow)
    steps = [frame.limits_total for frame in world.record.frames if frame.time_ms <= 8_000]
    assert len(set(steps)) > 2, "the newcomers are adopted one after the other"
    assert world.over_capacity_ms == 0


def test_a_failed_decrease_keeps_the_increases_waiting() -> None:
    """Nothing can be written for a while: limits stand still, then they move again."""
    world = world_with({"point": "actuator.fail", "at_s": [20], "duration_s": 20})
    frames = {frame.time_ms // 1000: frame for frame in world.record.frames}
    held = [tuple(each.limit for each in frames[second].pods) for second in range(20, 40)]
    assert len(set(held)) == 1
    assert tuple(each.limit for each in frames[60].pods) != held[0]
    assert world.over_capacity_ms == 0


def test_a_crash_keeps_the_limits_and_the_users_bounds() -> None:
    """While the agent is away nothing moves; when it is back a cut is not taken for the ceiling."""
    low, high = (
        {"kind": "constant", "millicores": 300, "until_s": 40},
        {"kind": "constant", "millicores": 1500, "from_s": 40},
    )
    faults = [{"point": "agent.crash", "at_s": [30], "duration_s": 12}]
    world = Simulation(
        scenario(pod("a", low, high), duration_s=120, faults=faults), seed=1, policy=None
    )
    world.advance(120_000)
    limits = {frame.time_ms // 1000: frame.pods[0].limit for frame in world.record.frames}
    assert len({limits[second] for second in range(30, 43)}) == 1
    cut = limits[30]
    assert cut is not None
    assert cut < 500
    assert limits[120] == 1800, "the capacity, below the user's own 2000m, and far above the cut"
    assert [made.time_ms for made in world.record.decisions if 30_000 < made.time_ms < 42_000] == []


def test_a_plan_that_was_recorded_and_not_applied_is_void() -> None:
    """The agent dies between the record and the apply; nothing is written, nothing re-decided."""
    document = scenario(
        *BUSY, faults=[{"point": "agent.crash", "probability": 0.03, "duration_s": 5}]
    )
    for seed in range(40):
        played = play(document, seed=seed)
        assert played.broken is None
        story = played.runs[0].events
        crashes = [line for line in story if "between the record and the apply" in line.text]
        if any(line.time_ms + 10_000 < 60_000 for line in crashes):  # it came back in time
            assert any(" is void: agent restarted" in line.text for line in story)
            return
    pytest.fail("no seed of 40 crashed between record and apply")


def test_rules_apply_where_and_when_they_say() -> None:
    """Pods, windows, given times with and without a length, and certain chances."""
    rules = scenario(
        pod("a"),
        pod("b"),
        faults=[
            {
                "point": "sensor.missing",
                "probability": 1.0,
                "pods": ["a"],
                "from_s": 5,
                "until_s": 10,
            },
            {"point": "sensor.reset", "at_s": [7], "duration_s": 0},
            {"point": "actuator.fail", "at_s": [7], "duration_s": 3},
        ],
    ).faults
    faults = Faults(rules, Entropy(1))

    def fired(point: FaultPoint, subject: str) -> list[int]:
        return [s for s in range(15) if faults.fires(point, subject, s * 1000) is not None]

    assert fired(FaultPoint.SENSOR_MISSING, "a") == [5, 6, 7, 8, 9]
    assert fired(FaultPoint.SENSOR_MISSING, "b") == []
    assert fired(FaultPoint.SENSOR_RESET, "a") == [7]
    assert fired(FaultPoint.SENSOR_RESET, "b") == [7], "once for each subject"
    assert fired(FaultPoint.ACTUATOR_FAIL, "b") == [7, 8, 9]
    assert faults.fired == {"sensor.missing": 5, "sensor.reset": 2, "actuator.fail": 3}


@pytest.mark.parametrize("seed", range(6))
def test_the_promises_hold_when_everything_goes_wrong(seed: int) -> None:
    """The bundled scenario of faults, shortened, under several seeds."""
    faults: list[dict[str, Any]] = [
        {"point": "sensor.missing", "probability": 0.1},
        {"point": "sensor.garbage", "probability": 0.05},
        {"point": "sensor.reset", "probability": 0.02},
        {"point": "actuator.slow", "probability": 0.3, "delay_ms": 1300},
        {"point": "actuator.fail", "probability": 0.15},
        {"point": "agent.crash", "probability": 0.02, "duration_s": 6},
    ]
    newcomers = (
        pod("late", arrive_s=21, leave_s=70),
        pod("free", limit_millicores=None, arrive_s=33),
    )
    outside = pod("outside", opted_out=True, limit_millicores=300, arrive_s=47)
    played = play(scenario(*BUSY, *newcomers, outside, faults=faults, duration_s=100), seed=seed)
    assert played.broken is None
    assert played.runs[0].node.seconds_over_capacity == 0
    assert len(played.runs[0].faults) >= 5
