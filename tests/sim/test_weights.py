"""Guarantees in the simulator: the node is work-conserving, and the checkers see Σ guarantees."""

from dataclasses import replace

import pytest

from fairlead.sim import play
from fairlead.sim.checkers import NodeState, limits_fit, limits_only_to_contain
from tests.sim.scenarios import pod, scenario
from tests.sim.test_checkers import plan_of

BUSY = {"kind": "constant", "millicores": 900}
SWARM = {"kind": "constant", "millicores": 9000}
CALM = {"kind": "bursty", "low_millicores": 50, "high_millicores": 400, "on_s": 3, "off_s": 7}
PODS = (
    pod("web", CALM, limit_millicores=None),
    pod("batch", BUSY, limit_millicores=None),
    pod("limited", BUSY, limit_millicores=600),
    pod("swarm", SWARM, limit_millicores=None, leave_s=60),
)


@pytest.mark.parametrize("actuate", ["weights", "both"])
def test_the_guarantees_fit_in_every_instant(actuate: str) -> None:
    """Also with a failing actuator and an agent that dies between two writes; it replays."""
    faults = [
        {"point": "actuator.fail", "probability": 0.05},
        {"point": "agent.crash", "at_s": [33, 71], "duration_s": 5},
    ]
    played = play(
        scenario(
            *PODS,
            duration_s=120,
            node={"millicores": 2000},
            governor={"actuate": actuate},
            faults=faults,
        )
    )
    assert played.broken is None
    (run,) = played.runs
    assert run.node.seconds_over_capacity == 0
    limited = {frame.limit for at in run.frames for frame in at.pods if frame.uid == "batch"}
    assert limited == {None}, "one busy thread is never limited"
    swarm = {frame.limit for at in run.frames for frame in at.pods if frame.uid == "swarm"}
    assert (swarm == {None}) == (actuate == "weights")


def test_what_is_not_used_is_lent() -> None:
    """A busy pod beside idle ones gets the node by weight, and a limit's share by limits."""
    used = {}
    for actuate in ("limits", "weights"):
        played = play(
            scenario(
                pod("idle", {"kind": "constant", "millicores": 10}),
                pod("batch", {"kind": "constant", "millicores": 1900}, limit_millicores=None),
                node={"millicores": 2000},
                governor={"actuate": actuate},
                duration_s=120,
            )
        )
        assert played.broken is None
        batch = next(p for p in played.runs[0].pods if p.pod == "batch")
        used[actuate] = batch.used_core_s
    assert used["weights"] > 1.05 * used["limits"]


def test_the_checkers_can_fail() -> None:
    """Σ guarantees above the capacity, and a limit below what a pod is guaranteed."""
    sound = NodeState(
        limits={"a": 400, "b": 600},
        bounds={"a": (100, 800), "b": (100, 800)},
        capacity_millicores=1000,
        settled=plan_of(a=400, b=600),
        beside={"a": None, "b": 600},
    )
    assert limits_fit(sound) is None
    assert limits_only_to_contain(sound) is None
    assert limits_fit(replace(sound, limits={"a": 401, "b": 600})) == (
        "the guarantees add up to 1001m of 1000m"
    )
    assert limits_only_to_contain(replace(sound, beside={"b": 599})) == (
        "the limit of b is 599m, and it is guaranteed 600m"
    )
    assert limits_only_to_contain(replace(sound, beside={"b": 599}, settled=None)) is None
