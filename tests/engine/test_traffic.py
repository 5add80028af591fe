"""The governor of one group: counters to signals, isolation and the way back, restarts."""

import json
from typing import Any

import pytest

from fairlead.core.traffic import Config, HealthRules
from fairlead.engine.traffic import BadTrafficState, GroupGovernor, GroupRules
from fairlead.engine.traffic_backoff import MOST_MS, Backoff
from fairlead.engine.traffic_signals import BackendMeters, Meter
from fairlead.engine.traffic_values import backend_of
from fairlead.ports.dataplane import BackendSeen
from fairlead.ports.traffic import Reading
from fairlead.schema.traffic_state import from_state
from tests.engine.traffic_worlds import TrafficWorld


def test_a_meter_counts_over_its_window() -> None:
    """Five seconds, not more; the first reading is the beginning, not a burst."""
    meter = Meter(5_000)
    assert meter.add(0, 1_000) == 0
    counted = [meter.add(at * 200, 1_000 + at * 10) for at in range(1, 60)]
    assert counted[0] == 10
    assert counted[-1] == 250


def test_a_meter_forgets_what_vanished_or_fell() -> None:
    """A missing counter is unknown; one that falls belongs to a new process."""
    meter = Meter(5_000)
    meter.add(0, 10)
    assert meter.add(200, None) is None
    assert meter.add(400, 50) == 0
    assert meter.add(600, 20) == 0
    assert meter.add(800, 25) == 5


def test_connects_that_fail_are_failures_on_every_plane() -> None:
    """Beside the errors that the plane or the application counts."""
    for covered, reading in (((), Reading()), (("requests", "errors"), Reading(100, 0))):
        meters = BackendMeters()
        meters.see(0, BackendSeen(0, 0, 0, 0, 0, 0, 0), Reading(0, 0), covered)
        seen = meters.see(200, BackendSeen(100, 10, 10, 90, 0, 0, 0), reading, covered)
        assert seen.failures == 10
        assert seen.error_rate == pytest.approx(0.1, abs=0.01)


def test_errors_before_the_first_good_answer_of_a_probe_are_forgotten() -> None:
    """And those after it are not; the next one begins anew only after a bad answer."""
    meters, both = BackendMeters(), ("requests", "errors")

    def rate(at_ms: int, requests: int, errors: int) -> float | None:
        return meters.see(at_ms, BackendSeen(), Reading(requests, errors), both).error_rate

    rate(0, 0, 0)
    assert rate(200, 10, 10) == 1.0
    meters.probed(None)
    assert rate(400, 11, 11) == 1.0
    meters.probed(20.0)
    assert rate(600, 12, 11) == 0.0
    assert rate(800, 14, 12) == 0.5
    meters.probed(20.0)
    assert rate(1_000, 14, 12) == 0.5
    meters.forget_probes()
    meters.probed(20.0)
    assert rate(1_200, 14, 12) == 0.0


def test_where_a_queue_cannot_be_seen_open_connections_are_none() -> None:
    """Idle connections wait for nothing."""
    meters = BackendMeters()
    assert meters.see(0, BackendSeen(1, open=7), Reading(), ()).queue is None
    assert meters.see(0, BackendSeen(1, open=7, queue=2), Reading(), ()).queue == 9.0


def test_retransmits_are_per_connection() -> None:
    """Nothing sent, nothing known."""
    meters = BackendMeters()
    assert meters.see(0, BackendSeen(0, retransmits=0), Reading(), ()).retrans_rate is None
    assert meters.see(200, BackendSeen(50, retransmits=5), Reading(), ()).retrans_rate == 0.1


def test_what_piled_up_and_how_fast_it_is_worked_off() -> None:
    """Per second of the time that is covered, from whoever counts; unknown at first."""
    meters = BackendMeters()
    assert meters.see(0, BackendSeen(successes=10), Reading(), ()).drain_per_s is None
    seen = meters.see(500, BackendSeen(successes=30, open=7, queue=2), Reading(), ())
    assert (seen.queue, seen.drain_per_s) == (9.0, 40.0)
    backend = backend_of("a", seen, None, isolated=False, age_ms=None)
    assert (backend.debt, backend.drain_per_s) == (9.0, 40.0)
    both, meters = ("requests", "errors"), BackendMeters()
    meters.see(0, BackendSeen(), Reading(0, 0), both)
    assert meters.see(1_000, BackendSeen(), Reading(50, 10), both).drain_per_s == 40.0
    assert meters.see(2_000, BackendSeen(), Reading(), both).drain_per_s is None


def test_returns_that_do_not_last_make_the_next_one_wait() -> None:
    """Twice as long each time, a minute at most; a return that lasts is forgiven."""
    backoff, clock = Backoff(), 0
    waits = []
    for _ in range(9):
        backoff.isolated("a", clock)
        began = clock
        while not backoff.may_probe("a", clock):
            clock += 100
        waits.append(clock - began)
        backoff.returned("a", clock)
        clock += 1_000
    assert waits[:4] == [0, 2_000, 4_000, 8_000]
    assert max(waits) == MOST_MS
    clock += 60_000
    backoff.isolated("a", clock)
    assert backoff.may_probe("a", clock)


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
    fresh.resume(from_state(world.governor.state), {})
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
    assert governor.tracked is None


def test_a_recorded_state_that_is_not_ours_is_refused() -> None:
    """With the path of what is wrong in it."""
    with pytest.raises(BadTrafficState, match="version"):
        GroupGovernor("web", GroupRules()).resume({"version": 99}, {})
    with pytest.raises(BadTrafficState, match="beta"):
        GroupGovernor("web", GroupRules()).resume(None, {"beta": 1})
