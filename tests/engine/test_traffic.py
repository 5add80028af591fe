"""The governor of one group: isolation and the way back, restarts."""

import json
from pathlib import Path
from typing import Any

import pytest

from fairlead.core.traffic import Config, HealthRules
from fairlead.engine.traffic import KIND, BadTrafficState, GroupGovernor, GroupRules
from fairlead.ports.recorder import RecordEntry
from fairlead.recorder import FileRecorder, read
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


def slow_for_a_while(recorder: FileRecorder) -> TrafficWorld:
    """`b` turned slow and is isolated."""
    world = TrafficWorld(recorder=recorder)
    world.ticks(1)
    world.backends["b"].latency_ms = 400
    world.ticks(6)
    assert world.governor.isolated == {"b": "outlier"}
    return world


@pytest.mark.parametrize("applied", [True, False])
def test_a_quick_restart_goes_on_from_the_record_exactly(tmp_path: Path, applied: bool) -> None:
    """Everything that was remembered, whether the last plan was applied or not."""
    with FileRecorder(tmp_path, sync_each=False, segment_bytes=2**16) as recorder:
        world = slow_for_a_while(recorder)
        if not applied:
            world.plane.read = lambda: {}  # type: ignore[method-assign]
            world.tick()
        fresh = GroupGovernor("web", GroupRules())
        fresh.resume(recorder.tail(KIND), applied=applied)
        assert fresh.memory == world.governor.memory
        assert len(list(tmp_path.glob("segment-*"))) > 1
        world.loop = world.make_loop(fresh)
        assert world.tick().groups["web"].plan.slots == {"a": 256, "b": 0}
        entry = list(read(tmp_path))[-1]
    assert entry.input["memory"] is not None
    assert entry.input["applied"] is None


def test_isolation_survives_a_long_absence(tmp_path: Path) -> None:
    """The dataplane fell back: what was decided then is of no use, but health is."""
    with FileRecorder(tmp_path, sync_each=False) as recorder:
        world = slow_for_a_while(recorder)
    fresh = GroupGovernor("web", GroupRules())
    fresh.restore(json.loads(json.dumps(world.governor.export())))
    assert fresh.isolated == {"b": "outlier"}
    assert fresh.memory.clock_ms == world.governor.memory.clock_ms
    assert fresh.state is None
    assert fresh.memory.backends == ()


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


def test_a_record_that_is_not_ours_is_refused() -> None:
    """With the path of what is wrong in it; without entries nothing changes."""
    governor = GroupGovernor("web", GroupRules())
    governor.resume([], applied=True)
    assert governor.memory.now_ms is None
    entry = RecordEntry(1, 0, KIND, 1, {"group": "web"}, {}, "")
    with pytest.raises(BadTrafficState, match="is required"):
        governor.resume([entry], applied=True)
