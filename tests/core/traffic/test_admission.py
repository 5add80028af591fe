"""AdmissionState, regimes, bucket and failsafe: sections 9 to 11 of the equations."""

import pytest

from fairlead.core.traffic import AdmissionMode, Config, Liveness, liveness
from fairlead.core.traffic.admission import (
    admission_of,
    admit,
    advance_admission,
    crisis_ahead,
    fnv1a,
    recovery_rate,
    relaxes,
    rendezvous,
    scramble,
    triggered_level,
)
from fairlead.core.traffic.limits import fallback_admission
from fairlead.core.traffic.model import Admission, Bucket, Pressure
from fairlead.core.traffic.pressure import conductance
from fairlead.core.traffic.state import AdmissionState, Regime
from tests.core.traffic.groups import Group, reasons

NORMAL, SOFT, HARD = AdmissionMode
CONFIG = Config()
RECOVERING = AdmissionState(SOFT, Regime.RECOVERY, 1_000, 10.0)


def level(**triggers: object) -> AdmissionMode:
    quiet = {"unroutable": False, "stall": False, "ttf_s": None, "retry_index": None}
    quiet["blind"] = False
    return triggered_level(CONFIG, **(quiet | triggers))  # type: ignore[arg-type]


def test_every_trigger_asks_for_its_level() -> None:
    """9.2: hard before soft before normal."""
    assert level() is NORMAL
    assert level(unroutable=True) is level(stall=True) is HARD
    assert [level(ttf_s=ttf) for ttf in (0.0, 19.9, 20.0, 119.9, 120.0)] == [
        HARD,
        HARD,
        SOFT,
        SOFT,
        NORMAL,
    ]
    assert [level(retry_index=index) for index in (0.49, 0.5, 1.99, 2.0)] == [
        NORMAL,
        SOFT,
        SOFT,
        HARD,
    ]
    assert level(blind=True) is SOFT


def advanced(admission: AdmissionState, to: AdmissionMode, clock_ms: int) -> AdmissionState:
    return advance_admission(admission, to, clock_ms, CONFIG, last_ms=clock_ms - 200)


def test_escalation_is_immediate() -> None:
    """From anywhere to anything stricter, and the regime follows."""
    assert advanced(AdmissionState(), SOFT, 0) == AdmissionState(SOFT, Regime.TRANSITION)
    assert advanced(AdmissionState(), HARD, 0) == AdmissionState(HARD, Regime.CRISIS)
    assert advanced(RECOVERING, HARD, 2_000) == AdmissionState(HARD, Regime.CRISIS)
    assert advanced(AdmissionState(), NORMAL, 0) == AdmissionState()


def test_calm_starts_when_the_trigger_ends_and_restarts_at_each_new_one() -> None:
    """Twenty seconds from the first calm tick."""
    admission = advanced(AdmissionState(SOFT, Regime.TRANSITION), NORMAL, 5_000)
    assert admission == AdmissionState(SOFT, Regime.TRANSITION, 5_000)
    assert advanced(admission, NORMAL, 24_999) == admission
    assert advanced(admission, SOFT, 24_999) == AdmissionState(SOFT, Regime.TRANSITION)
    assert advanced(admission, NORMAL, 25_000) == AdmissionState()


def test_each_level_counts_its_own_calm() -> None:
    """Hard is calm without a hard trigger; soft then counts afresh, once nothing triggers it."""
    hard = AdmissionState(HARD, Regime.CRISIS, 1_000)
    assert advanced(hard, SOFT, 20_999) == hard
    assert advanced(hard, SOFT, 21_000) == AdmissionState(SOFT, Regime.RECOVERY, None, 10.0)
    assert advanced(hard, NORMAL, 21_000) == AdmissionState(SOFT, Regime.RECOVERY, 21_000, 10.0)
    assert advanced(hard, HARD, 21_000) == AdmissionState(HARD, Regime.CRISIS)


def test_crisis_is_known_before_the_step() -> None:
    """A hard trigger, or hard that does not relax in this tick."""
    assert crisis_ahead(AdmissionState(), HARD, 0, CONFIG)
    assert not crisis_ahead(AdmissionState(), SOFT, 0, CONFIG)
    hard = AdmissionState(HARD, Regime.CRISIS, 1_000)
    assert crisis_ahead(hard, NORMAL, 20_999, CONFIG)
    assert not crisis_ahead(hard, NORMAL, 21_000, CONFIG)
    assert not relaxes(AdmissionState(), NORMAL, 10**6, CONFIG)


def test_calm_that_ends_in_a_trigger_relaxes_nothing() -> None:
    """However long it was."""
    calm = AdmissionState(SOFT, Regime.TRANSITION, 1_000)
    assert relaxes(calm, NORMAL, 21_000, CONFIG)
    assert not relaxes(calm, SOFT, 10**6, CONFIG)


def test_recovery_reopens_by_aimd() -> None:
    """10 % at first, 10 % more per calm second up to all of it, half at each new trigger."""
    assert recovery_rate(RECOVERING, 1_000, CONFIG) == 10.0
    assert recovery_rate(RECOVERING, 4_000, CONFIG) == 40.0
    assert recovery_rate(RECOVERING, 60_000, CONFIG) == 100.0
    triggered = advanced(RECOVERING, SOFT, 4_200)
    assert triggered == AdmissionState(SOFT, Regime.RECOVERY, None, 20.0)
    # The same trigger going on is no new one.
    assert advanced(triggered, SOFT, 4_400) == triggered
    assert recovery_rate(triggered, 9_000, CONFIG) == 20.0
    calm = advanced(triggered, NORMAL, 9_000)
    assert recovery_rate(calm, 10_000, CONFIG) == 30.0
    assert recovery_rate(AdmissionState(SOFT, Regime.TRANSITION, 1_000), 4_000, CONFIG) == 100.0


def test_the_door_as_a_plane_needs_it() -> None:
    """No bucket in normal, the bucket in soft, a drip in hard."""
    assert admission_of(AdmissionState(), 9, 0, CONFIG) == Admission(NORMAL, None, None)
    soft = AdmissionState(SOFT, Regime.TRANSITION)
    assert admission_of(soft, 9, 0, CONFIG) == Admission(SOFT, 100.0, 100.0)
    hard = AdmissionState(HARD, Regime.CRISIS)
    assert admission_of(hard, 99, 0, CONFIG) == Admission(HARD, 1.0, 1.0)
    assert admission_of(hard, 5_000, 0, CONFIG) == Admission(HARD, 50.0, 1.0)


def test_conductance_is_normalised_by_the_slots() -> None:
    """9.1: P_ref * sum (s/S)/P."""
    pressures = [Pressure(0.5, 0, 0, 0, 0), Pressure(2.0, 0, 0, 0, 0)]
    assert conductance([192, 64], pressures, CONFIG) == 0.75 / 0.5 + 0.25 / 2.0
    assert conductance([192, 64], pressures, Config(p_ref=2)) == 2 * 1.625
    assert conductance([], [], CONFIG) == 0.0


def test_low_conductance_is_soft() -> None:
    """Below G_min 0.3: everybody at 400 ms lets 0.25 through."""
    group = Group("a", "b")
    group.every(p95_ms=400)
    plan = group.step()
    assert (plan.conductance, plan.admission.mode, reasons(plan)) == (0.25, "soft", ["conductance"])


def test_modes_and_regimes_of_a_whole_crisis() -> None:
    """Laminar, transition, crisis, recovery, laminar, with a calm tick being steady."""
    group = Group("a", "b")
    seen = [(plan := group.step()).regime.value]
    for index, ms in ((0.5, 200), (2.0, 200), (0.0, 20_200), (0.0, 20_000)):
        group.retry_index = index
        plan = group.run(ms)
        seen.append(plan.regime.value)
    assert seen == ["laminar", "transition", "crisis", "recovery", "laminar"]
    assert reasons(plan) == ["steady"]


def test_a_retry_storm_says_so() -> None:
    """Retries per success, where they are known."""
    group = Group("a", "b")
    group.retry_index = 0.5
    assert reasons(group.step()) == ["retry_storm"]


def test_no_slots_move_in_the_tick_that_opens_the_door() -> None:
    """Two changes at once could not be told apart; the next tick steps on."""
    group = Group("a", "b", "c", "d", t_recover_min_ms=2_000)
    group.retry_index = 0.5
    group.step()
    group.retry_index = 0.0
    group.step()
    group.set("a", p95_ms=400)
    for _ in range(20):
        before = group.plan.slots  # type: ignore[union-attr]
        plan = group.step()
        if plan.admission.mode == "normal":
            break
    assert (plan.slots, plan.applied) == (before, False)
    assert group.step().applied


def test_conductance_on_unmoved_slots_cancels_a_relaxation() -> None:
    """The calm would end here, but without a step too little flows: the admission stays."""
    group = Group("a", "b", t_recover_min_ms=1_000, g_min=0.3)
    group.retry_index = 0.5
    group.step()
    group.retry_index = 0.0
    group.run(1_000)
    group.every(p95_ms=400)
    plan = group.step()
    assert (plan.admission.mode, reasons(plan)) == ("soft", ["conductance"])


def test_the_bucket_refills_caps_tests_and_subtracts() -> None:
    """10: starts full; time backwards refills nothing."""
    bucket, allowed = admit(None, now_us=0, rate_per_s=1.0, burst=2.0)
    assert (bucket, allowed) == (Bucket(1.0, 0), True)
    bucket, allowed = admit(bucket, now_us=0, rate_per_s=1.0, burst=2.0)
    assert (bucket, allowed) == (Bucket(0.0, 0), True)
    bucket, allowed = admit(bucket, now_us=999_999, rate_per_s=1.0, burst=2.0)
    assert not allowed
    bucket, allowed = admit(bucket, now_us=500_000, rate_per_s=1.0, burst=2.0)
    assert not allowed
    bucket, allowed = admit(bucket, now_us=99_000_000, rate_per_s=1.0, burst=2.0)
    assert (bucket.tokens, allowed) == (1.0, True)


def test_a_bucket_gains_its_rate_in_a_second_and_loses_nothing_to_who_is_refused() -> None:
    after, allowed = admit(Bucket(0.0, 0), now_us=1_000_000, rate_per_s=1.0, burst=2.0)
    assert (after, allowed) == (Bucket(0.0, 1_000_000), True)
    after, allowed = admit(Bucket(0.5, 7), now_us=7, rate_per_s=1.0, burst=2.0)
    assert (after, allowed) == (Bucket(0.5, 7), False)


def test_the_heartbeats_age_is_judged() -> None:
    """11: normal < 3 s <= hold < 15 s <= fallback."""
    assert [liveness(age) for age in (0, 2_999, 3_000, 14_999, 15_000)] == [
        Liveness.NORMAL,
        Liveness.NORMAL,
        Liveness.HOLD,
        Liveness.HOLD,
        Liveness.FALLBACK,
    ]


def test_a_dead_agent_never_leaves_a_closed_door() -> None:
    """Hard decays to soft with the stored budget, where there is one; nothing else changes."""
    drip, budget = Admission(HARD, 1.0, 1.0), Admission(SOFT, 80.0, 8.0)
    assert fallback_admission(drip, budget) == budget
    assert fallback_admission(drip, None) == Admission(SOFT, 1.0, 1.0)
    assert fallback_admission(Admission(), budget) == Admission()


def test_rendezvous_moves_only_the_flows_of_who_left() -> None:
    """A quarter, where modulo would move three; and nobody outside the group is ever chosen."""
    group = ["b1", "b2", "b3", "b4"]
    flows = [f"10.0.{i // 250}.{i % 250}:4{i}".encode() for i in range(2_000)]
    before = [rendezvous(flow, group) for flow in flows]
    after = [rendezvous(flow, group[:3]) for flow in flows]
    moved = [a for a, b in zip(before, after, strict=True) if a != b]
    assert set(moved) == {"b4"}
    for name in group:
        assert 0.2 < before.count(name) / len(flows) < 0.3
    assert [rendezvous(flow, group[::-1]) for flow in flows] == before
    assert rendezvous(b"flow", []) is None


def test_the_hash_is_fixed_for_good() -> None:
    """A plane in another language has to agree: FNV-1a's published values, splitmix64's first."""
    assert fnv1a(b"") == 0xCBF29CE484222325
    assert fnv1a(b"foobar") == 0x85944171F73967E8
    assert scramble(0) == 0xE220A8397B1DCDAF
    chosen = [rendezvous(f"10.0.0.{i}:40000".encode(), ["b3", "b1", "b2"]) for i in range(8)]
    assert chosen == ["b2", "b1", "b2", "b2", "b3", "b3", "b2", "b2"]


@pytest.mark.parametrize("mode", list(AdmissionMode))
def test_modes_are_ordered(mode: AdmissionMode) -> None:
    """normal < soft < hard."""
    assert mode.level == [NORMAL, SOFT, HARD].index(mode)
