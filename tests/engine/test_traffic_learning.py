"""What the agent learns of a group where the operator set nothing: its budget, what is usual."""

import pytest

from fairlead.core.traffic import AdmissionMode, Config
from fairlead.core.traffic import AdmissionMode as PlaneMode
from fairlead.engine.traffic import GroupGovernor, GroupRules, Sighted
from fairlead.engine.traffic_budget import CUT, Budget
from fairlead.engine.traffic_reference import LEAST, LatencyReference, QueueReference
from fairlead.ports.dataplane import BackendSeen, GroupSeen, Liveness
from fairlead.schema.traffic import from_snapshot


class Door:
    """A group that serves so many a second, and its budget."""

    def __init__(self) -> None:
        self.clock_ms, self.served = 0, 0
        self.budget = Budget(Config(), window_ms=5_000)

    def go(
        self,
        seconds: float,
        per_s: int,
        mode: AdmissionMode = AdmissionMode.NORMAL,
        *,
        triggered: bool = False,
    ) -> float:
        for _ in range(round(seconds * 5)):
            self.clock_ms += 200
            self.served += per_s // 5
            self.budget.advance(self.clock_ms, self.served, mode=mode, triggered=triggered)
        return self.budget.rate


def test_before_anything_was_served_the_default_holds() -> None:
    """Nothing is known: nothing is changed."""
    door = Door()
    assert door.go(20, 0) == Config().bucket_rate
    door.budget.advance(door.clock_ms + 200, None, mode=AdmissionMode.NORMAL, triggered=False)
    assert door.budget.rate == Config().bucket_rate


def test_soft_starts_below_what_was_served_and_is_cut_once_per_window() -> None:
    """85 %, then 85 % of that every 5 s while the trigger lasts; calm grows it again."""
    door = Door()
    assert door.go(10, 400) == pytest.approx(400)
    assert door.go(0.2, 400, AdmissionMode.SOFT, triggered=True) == pytest.approx(400 * CUT)
    assert door.go(4, 400, AdmissionMode.SOFT, triggered=True) == pytest.approx(400 * CUT)
    assert door.go(1.2, 400, AdmissionMode.SOFT, triggered=True) == pytest.approx(400 * CUT**2)
    low = door.budget.rate
    assert low * 1.3 < door.go(5, 300, AdmissionMode.SOFT) < low * 1.5
    assert door.go(10, 500) == pytest.approx(500, rel=0.1)  # in steps


def test_the_budget_has_a_floor() -> None:
    """A quarter of what was served when the door was open: of what it lets in now there would be no
    end. If less does not help either, it is not the load.
    """
    door = Door()
    door.go(10, 400)
    for _ in range(3_600):
        door.go(1, round(door.budget.rate), AdmissionMode.SOFT, triggered=True)
    assert door.budget.rate == pytest.approx(100)


def test_hard_leaves_the_budget_alone() -> None:
    """What a drip serves says nothing about what can be served."""
    door = Door()
    door.go(10, 400)
    assert door.go(120, 0, AdmissionMode.HARD, triggered=True) == pytest.approx(400)
    assert door.go(0.2, 0, AdmissionMode.SOFT) == pytest.approx(400 * CUT)


def test_a_quiet_hour_does_not_make_a_small_group() -> None:
    """Little came, which is not the same as little can; ten minutes later it is forgotten."""
    door = Door()
    door.go(10, 400)
    assert door.go(120, 5) == pytest.approx(400)
    assert door.go(600, 5) == pytest.approx(5)
    assert door.go(10, 200) == pytest.approx(200)


def test_counters_that_begin_again_are_no_negative_budget() -> None:
    """A plane was restarted."""
    door = Door()
    door.go(10, 400)
    door.served = 0
    assert door.go(5, 400) == pytest.approx(400)


def test_small_changes_of_what_is_served_change_nothing() -> None:
    """A steady group keeps its table."""
    door = Door()
    door.go(10, 400)
    assert door.go(20, 430) == pytest.approx(400)
    assert door.go(20, 370) == pytest.approx(400)


def test_the_parameters_stay_in_their_ranges() -> None:
    """A budget of nothing is still a parameter that the tick takes."""
    budget = Budget(Config(drip_rate_min=0), window_ms=5_000)
    budget.rate = 0.0
    laid = budget.laid_over(Config())
    assert (laid.bucket_rate, laid.bucket_burst) == (0.1, 1.0)


def test_the_reference_is_twice_the_usual_queue() -> None:
    """After ten looks, between 4 and the configured one, every ten seconds at most."""
    reference, clock_ms, seen = QueueReference(Config()), 0, []
    for _ in range(200):
        clock_ms += 200
        seen.append(reference.advance(clock_ms, [3.0, 5.0, 100.0], AdmissionMode.NORMAL))
    assert seen[0] == Config().q_ref
    assert seen[-1] == 10.0
    assert len(set(seen)) == 2


@pytest.mark.parametrize(("queue", "found"), [(0.0, LEAST), (1e6, Config().q_ref)])
def test_the_reference_has_its_limits(queue: float, found: float) -> None:
    """Neither a silent group nor an endless queue moves it out of reason."""
    reference = QueueReference(Config())
    for tick in range(200):
        reference.advance(tick * 200, [queue], AdmissionMode.NORMAL)
    assert reference.value == found


def learn(
    reference: QueueReference | LatencyReference,
    seconds: int,
    value: float,
    mode: AdmissionMode,
    from_s: int,
) -> float | None:
    """So many seconds of ticks from a time on."""
    for tick in range(seconds * 5):
        reference.advance(from_s * 1_000 + tick * 200, [value], mode)
    return reference.value


def test_a_closed_door_teaches_nothing_unless_it_does_not_help() -> None:
    """What piles up in its first half minute is not usual. What is still there then is."""
    reference = QueueReference(Config())
    assert learn(reference, 60, 3.0, AdmissionMode.NORMAL, 0) == 6.0
    assert learn(reference, 30, 20.0, AdmissionMode.SOFT, 60) == 6.0
    assert learn(reference, 90, 20.0, AdmissionMode.HARD, 90) == 6.0
    assert learn(reference, 60, 20.0, AdmissionMode.SOFT, 180) == 40.0


def test_a_service_that_takes_its_time_has_a_reference_of_its_own() -> None:
    """Unknown for ten looks, then what is usual; a service that is faster keeps the default."""
    reference = LatencyReference(Config())
    assert learn(reference, 8, 400.0, AdmissionMode.NORMAL, 0) is None
    assert learn(reference, 10, 400.0, AdmissionMode.NORMAL, 8) == 400.0
    assert learn(reference, 30, 1_600.0, AdmissionMode.SOFT, 18) == 400.0
    assert learn(reference, 90, 40.0, AdmissionMode.NORMAL, 48) == Config().l_ref_ms


def test_until_the_usual_latency_is_known_it_closes_no_door() -> None:
    """A healthy group of 400 ms, without an objective: never anything but open."""
    governor = GroupGovernor("web", GroupRules(Config(), own_latency=True))
    references = set()
    for tick in range(100):
        seen = {
            id: BackendSeen(queue=1, open=1, p95_ms=400.0, successes=tick, errors=0, admitted=tick)
            for id in ("a", "b")
        }
        snapshot = governor.observe(
            Sighted(
                now_ms=1_000 + tick * 200,
                members=dict.fromkeys(seen),
                seen=GroupSeen(1, Liveness.NORMAL, PlaneMode.NORMAL, 2 * tick, 0, 0, seen),
            )
        )
        plan = governor.decide(snapshot)
        governor.settle(plan, applied=True)
        references.add((snapshot.config.g_min, snapshot.config.l_ref_ms))
        assert plan.admission.mode is AdmissionMode.NORMAL
    assert references == {(0.0, 100.0), (0.3, 400.0)}
    after = GroupGovernor("web", GroupRules(Config(), own_latency=True))
    after.resume(None, from_snapshot(snapshot)["config"])
    assert after._usual_latency.value == 400.0
