"""The checkers can fail: each is shown a broken world and names it, with the seed and the time."""

from dataclasses import replace
from typing import Any

import pytest

from fairlead.core.cpu import NodePlan, WritePhase
from fairlead.engine.cpu import CpuLoop
from fairlead.sim import Broken, Simulation, play
from fairlead.sim.checkers import (
    NodeState,
    applied_as_decided,
    limits_bounded,
    limits_fit,
    minimums_kept,
    reasons_given,
    replays,
)
from tests.sim.scenarios import BUSY, pod, scenario

GREEDY = (pod("a", {"kind": "constant", "millicores": 2000}), pod("b"))


def plan_of(capacity: int = 1000, **grants: int) -> NodePlan:
    """As much of a plan as the state checks look at."""
    reasons = dict.fromkeys(grants, ())
    return NodePlan(
        mode="uncongested",
        capacity_millicores=capacity,
        total_min=200,
        total_need=0,
        shadow_price=None,
        needs=grants,
        bounds={},
        allocations=grants,
        reduction_ratio={},
        reasons=reasons,
        split={uid: {"": grant} for uid, grant in grants.items()},
        writes=(),
        memory={},
    )  # type: ignore[arg-type]  # a mode in words will do


SOUND = NodeState(
    limits={"a": 400, "b": 600},
    bounds={"a": (100, 800), "b": (100, 800)},
    capacity_millicores=1000,
    settled=plan_of(a=400, b=600),
)


def test_a_sound_node_passes() -> None:
    """Or the checks below would prove nothing."""
    for check in (limits_fit, limits_bounded, minimums_kept, applied_as_decided):
        assert check(SOUND) is None


def test_each_standing_check_can_fail() -> None:
    """One broken thing each."""
    assert limits_fit(replace(SOUND, limits={"a": 401, "b": 600})) == (
        "the limits add up to 1001m of 1000m"
    )
    assert limits_bounded(replace(SOUND, limits={"a": 801})) == (
        "the limit of a is 801m, its maximum 800m"
    )
    assert limits_bounded(replace(SOUND, limits={"a": None})) is not None
    assert minimums_kept(replace(SOUND, limits={"a": 99, "b": 600})) == (
        "the limit of a is 99m, its minimum 100m, and the minimums fit"
    )
    assert applied_as_decided(replace(SOUND, limits={"a": 400, "b": 599})) == (
        "b was granted 600m and has 599m"
    )


def test_what_is_not_promised_is_not_judged() -> None:
    """Before the first complete apply, while a plan is on its way, when minimums do not fit."""
    wild = {"a": 700, "b": 800}
    assert limits_fit(replace(SOUND, limits=wild, capacity_millicores=None)) is None
    assert applied_as_decided(replace(SOUND, limits=wild, settled=None)) is None
    tight = replace(SOUND, limits={"a": 50, "b": 50}, settled=plan_of(100, a=50, b=50))
    assert minimums_kept(tight) is None


def test_decision_checks_can_fail() -> None:
    """A decision without a reason, and one whose record was changed by a millicore."""
    world = Simulation(scenario(*GREEDY), seed=1, policy=None)
    world.advance(5_000)
    made = world.record.decisions[0]
    assert reasons_given(made) is None
    assert replays(made) is None
    mute = replace(made.plan, reasons={**made.plan.reasons, "a": ()})
    assert reasons_given(replace(made, plan=mute)) == "the grant of a has no reason"
    grant = made.plan.allocations["a"]
    forged = made.result.replace(f'"a":{grant}'.encode(), f'"a":{grant + 1}'.encode())
    assert replays(replace(made, result=forged)) is not None
    assert replays(replace(made, same=False)) is not None


def test_a_broken_actuator_is_caught() -> None:
    """It doubles a limit: the run ends there, and says which seed shows it again."""
    faults = [{"point": "actuator.wrong", "at_s": [20], "duration_s": 30, "factor": 2}]
    played = play(scenario(*BUSY, faults=faults), seed=77)
    broken = played.broken
    assert broken is not None
    assert broken.seed == 77
    assert broken.time_ms >= 20_000
    assert "seed 77" in str(broken)
    again = play(scenario(*BUSY, faults=faults), seed=77).broken
    assert str(again) == str(broken)
    assert played.runs[0].node.seconds < 60


def turning(before: int, after: int) -> dict[str, object]:
    """A want that changes once, after half a minute."""
    points = [{"at_s": 0, "millicores": before}, {"at_s": 30, "millicores": after}]
    return {"kind": "points", "points": points}


SEESAW = (pod("a", turning(100, 1800)), pod("b", turning(1800, 100)))


class Reckless(CpuLoop):
    """A loop that writes increases before decreases."""

    def _apply(self, decision: int, plan: NodePlan, actuator: Any) -> Any:
        """Everything in the wrong order, in the phase that is not guarded; the next record shows
        the order that was right."""
        wrong = (replace(write, phase=WritePhase.DECREASE) for write in reversed(plan.writes))
        made = super()._apply(decision, replace(plan, writes=tuple(wrong)), actuator)
        self.governor._written.reverse()
        return made


def test_increases_before_decreases_are_caught() -> None:
    """The limits are judged between two writes, not only after the last."""
    world = Simulation(scenario(*SEESAW), seed=5, policy=None)
    assert world.agent.loop is not None
    world.agent.loop.__class__ = Reckless
    with pytest.raises(Broken, match=r"limits-fit: the limits add up to .* \(seed 5, at "):
        world.advance(60_000)


def test_the_real_order_passes_the_same_world() -> None:
    """The counterpart: nothing but the order was wrong above."""
    played = play(scenario(*SEESAW), seed=5)
    assert played.broken is None
    assert played.runs[0].node.seconds_over_capacity == 0
