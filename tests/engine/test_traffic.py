"""The governor of one group: isolation and the way back, restarts."""

import json
from typing import Any

import pytest

from fairlead.core.traffic import Config, HealthRules
from fairlead.engine.traffic import BadTrafficState, GroupGovernor, GroupRules
from fairlead.schema.traffic_state import from_state
from tests.engine.traffic_worlds import TrafficWorld


def test_a_backend_that_is_only_sick_under_load_comes_back_ever_later() -> None:
    """Probes are fine, traffic is not: isolations are bounded, not one every few seconds."""
    world = TrafficWorld(health=HealthRules(outlier_ms=400), config=Config(warmup_ms=0))
    world.ticks(1)
    world.backends["b"].latency_ms = 400
    count = 0
    for _ in range(60 * 5):
        world.tick()
        for answer in world.eyes.answers:  # the probes see nothing of it
            object.__setattr__(answer, "latency_ms", 20.0)
    count = sum(t.after == "outlier" for t in world.eyes.told)
    assert 1 <= count <= 7


def unreachable_for_a_moment() -> TrafficWorld:
    """`b` could not be reached and was sent away for it; now it could be."""
    world = TrafficWorld()
    world.ticks(1)
    world.backends["b"].reachable = False
    world.ticks(2)
    assert world.governor.isolated == {"b": "connect-failures"}
    world.backends["b"].reachable = True
    return world


def test_failed_connects_before_a_return_are_forgiven() -> None:
    """The plane's counter stands still while nothing is sent; it must not send it away again."""
    world = unreachable_for_a_moment()
    world.ticks(15)
    assert not world.governor.isolated
    assert sum(t.after == "connect-failures" for t in world.eyes.told) == 1


def test_an_isolated_backend_is_judged_by_its_probes() -> None:
    """Slow answers keep it out however many succeed."""
    world = TrafficWorld()
    world.ticks(1)
    world.backends["b"].latency_ms = 400
    world.ticks(20)
    assert world.governor.isolated == {"b": "outlier"}
    world.backends["b"].latency_ms = 20
    world.ticks(4)
    assert not world.governor.isolated


def test_who_was_away_for_a_moment_is_still_warm() -> None:
    """Of the warm-up only as much is left as it was away; who was away for longer begins anew."""
    for away_s, spared_ms in ((0, 20_000), (60, 0)):
        world = TrafficWorld(health=HealthRules(outlier_ms=400))
        world.ticks(1)
        world.backends["b"].latency_ms = 400
        left_ms = world.now_ms
        while not world.governor.isolated:
            world.tick()
        world.ticks(away_s)
        world.backends["b"].latency_ms = 20
        while world.governor.isolated:
            made = world.tick()
        (age_ms,) = (b.age_ms for b in made.groups["web"].snapshot.backends if b.id == "b")
        assert age_ms is not None
        assert spared_ms <= age_ms <= max(0, 30_000 - (world.now_ms - left_ms) + 1_000)


def test_who_could_not_be_reached_is_cold() -> None:
    """It may have been started anew."""
    world = unreachable_for_a_moment()
    while world.governor.isolated:
        made = world.tick()
    assert [b.age_ms for b in made.groups["web"].snapshot.backends if b.id == "b"] == [0]


def test_answers_of_probes_that_come_too_late_are_nobodys() -> None:
    """It is back already: what it answered while it was away changes nothing."""
    world = TrafficWorld()
    world.ticks(1)
    world.eyes.asked = [("web", "b")]
    world.backends["b"].reachable = False
    world.serve()
    world.backends["b"].reachable = True
    world.tick()
    assert not world.governor.isolated


def test_isolation_and_ages_survive_a_restart() -> None:
    """What was sent away stays away, and what was warming up goes on warming up."""
    world = TrafficWorld()
    world.ticks(1)
    world.backends["b"].latency_ms = 400
    world.ticks(6)
    stored = json.loads(json.dumps(world.governor.export()))
    fresh = GroupGovernor("web", GroupRules())
    fresh.restore(stored)
    assert world.governor.state is not None
    fresh.resume(from_state(world.governor.state))
    assert fresh.isolated == world.governor.isolated == {"b": "outlier"}
    world.loop = world.make_loop(fresh)
    made = world.tick().groups["web"]
    assert made.plan.slots == {"a": 256, "b": 0}
    assert not made.flipped or made.plan.slots["b"] == 0


@pytest.mark.parametrize(
    "stored",
    [
        {},
        {"now_ms": "x", "clock_ms": 0, "healths": []},
        {"now_ms": 0, "clock_ms": 0, "healths": [{"id": 7}]},
        {"now_ms": 0, "clock_ms": 0, "healths": [{"id": "a", "cause": "whim"}]},
        {"now_ms": 0, "clock_ms": 0, "healths": [{"id": "a", "streak": "many"}]},
        {"now_ms": 0, "clock_ms": 0, "healths": None},
    ],
)
def test_a_state_that_is_not_ours_is_refused_whole(stored: Any) -> None:
    """Rather than half believed."""
    governor = GroupGovernor("web", GroupRules())
    with pytest.raises(BadTrafficState, match="web"):
        governor.restore(stored)
    assert governor.memory.healths is None


def test_a_recorded_state_that_is_not_ours_is_refused() -> None:
    """With the path of what is wrong in it."""
    with pytest.raises(BadTrafficState, match="version"):
        GroupGovernor("web", GroupRules()).resume({"version": 99})


def test_after_a_fallback_only_health_and_the_clock_are_restored() -> None:
    """What was learned and decided before it is of no use; an isolated backend stays isolated."""
    world = TrafficWorld()
    world.ticks(1)
    world.backends["b"].latency_ms = 400
    world.ticks(6)
    fresh = GroupGovernor("web", GroupRules())
    fresh.restore(world.governor.export(), stale=True)
    assert fresh.isolated == {"b": "outlier"}
    assert fresh.state is None
    assert fresh.memory.backends == ()
    fresh.resume(None)
    assert fresh.state is None
