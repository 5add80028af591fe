"""Weights, targets, slew, bypass, gate, skew and guard: sections 4, 5 and 8 of the equations."""

import pytest

from fairlead.core.traffic import Backend, Config, Pressure
from fairlead.core.traffic.slots import (
    Step,
    advance_gate,
    deviation,
    guarded_step,
    hand_over,
    held_weights,
    inverse_weights,
    observed_skew,
    place,
    regrow,
    slew,
    step_limit,
    target_slots,
    warm_shares,
)
from fairlead.core.traffic.state import BackendMemory, Guard, State, StepGate

A, B, OUT = Backend("a"), Backend("b"), Backend("c", isolated=True)


def of(*totals: float) -> list[Pressure]:
    return [Pressure(total, 0, 0, 0, 0) for total in totals]


def test_weights_are_inverse_to_pressure() -> None:
    """4.1: half the pressure, twice the share; the isolated have none."""
    assert inverse_weights([A, B], of(0.5, 1.0)) == pytest.approx([2 / 3, 1 / 3])
    assert inverse_weights([A, B, OUT], of(1.0, 1.0, 0.1)) == [0.5, 0.5, 0.0]
    assert inverse_weights([OUT], of(1.0)) == [0.0]


def test_held_weights_are_those_of_the_last_tick() -> None:
    """Scaled up only where somebody with a weight has gone; newcomers have none to hold."""
    memories = [BackendMemory("a", 0, 0.3), BackendMemory("b", 0, 0.7)]
    assert held_weights([A, B], memories, [0.5, 0.5]) == [0.3, 0.7]
    out = Backend("b", isolated=True)
    assert held_weights([A, out], memories, [1.0, 0.0]) == [1.0, 0.0]
    fresh = [BackendMemory("a"), BackendMemory("b")]
    assert held_weights([A, B], fresh, [0.4, 0.6]) == [0.4, 0.6]


def test_a_newborn_is_scaled_by_its_age() -> None:
    """age/T_warmup, renormalised; an unknown age is warm."""
    shares = warm_shares([0.5, 0.5], [A, Backend("b", age_ms=15_000)], 30_000)
    assert shares == pytest.approx([2 / 3, 1 / 3])
    assert warm_shares([0.5, 0.5], [A, Backend("b", age_ms=30_000)], 30_000) == [0.5, 0.5]


def test_where_all_are_newborn_nobody_is_spared() -> None:
    """Unscaled; isolated backends do not count as warm, and no warm-up means no scaling."""
    young = [Backend("a", age_ms=0), Backend("b", age_ms=100), OUT]
    assert warm_shares([0.2, 0.8, 0.0], young, 30_000) == [0.2, 0.8, 0.0]
    assert warm_shares([0.2, 0.8, 0.0], young, 0) == [0.2, 0.8, 0.0]
    assert warm_shares([], [], 30_000) == []


def test_held_weights_of_newborns_of_age_zero_are_not_scaled_to_nothing() -> None:
    """Somebody has to have the slots."""
    assert warm_shares([1.0, 0.0], [Backend("a", age_ms=0), B], 30_000) == [1.0, 0.0]


def test_targets_add_up_and_ties_go_by_id() -> None:
    """5.1: largest remainder."""
    assert target_slots(256, [1 / 3, 1 / 3, 1 / 3]) == [86, 85, 85]
    assert target_slots(256, [0.9, 0.1]) == [230, 26]
    assert target_slots(1, [0.5, 0.5]) == [1, 0]
    assert target_slots(256, [1.0, 0.0, 1e-300]) == [256, 0, 0]


def test_clipping_alone_would_break_the_sum() -> None:
    """5.2: the smaller side decides how much moves; six slots of a hundred would be lost."""
    assert slew([60, 20, 20], [20, 40, 40], 10) == [50, 25, 25]
    assert slew([40, 30, 30], [0, 50, 50], 3) == [37, 32, 31]
    assert slew([50, 50], [50, 50], 4) == [50, 50]


@pytest.mark.parametrize(
    ("config", "crisis", "halvings", "limit"),
    [
        (Config(), False, 0, 4),
        (Config(), True, 0, 16),
        (Config(), False, 1, 2),
        (Config(), False, 8, 1),
        (Config(s_total=100), False, 0, 1),
        (Config(s_total=100), True, 0, 6),  # floored after the factor: 1.5625*4 = 6.25
        (Config(s_total=10), True, 0, 4),
        (Config(delta_max=2.5), True, 0, 10),
        (Config(delta_max=2.5), True, 1, 5),
        (Config(delta_max=2.5), False, 0, 2),
    ],
)
def test_the_step_of_a_tick(config: Config, crisis: bool, halvings: int, limit: int) -> None:
    """max(1, S/64), times 4 exactly in crisis, halved by the guard, floored after the factors."""
    assert step_limit(config, crisis=crisis, halvings=halvings) == limit


def test_only_freed_slots_are_handed_over() -> None:
    """To those below their targets; who is above keeps what it has."""
    after = hand_over([100, 56, 100], [0, 120, 136], [True, False, False])
    assert after == [0, 120, 136]
    assert hand_over([40, 10, 206], [0, 100, 156], [True, False, False]) == [0, 50, 206]


def test_another_total_keeps_the_shares() -> None:
    """A group whose s_total was changed."""
    memories = (BackendMemory("a", 192), BackendMemory("b", 64))
    before = State(now_ms=0, clock_ms=0, samples=1, s_total=256, parked=False, backends=memories)
    assert place([A, B], [128, 128], before, Config()).slots == [192, 64]
    assert place([A, B], [50, 50], before, Config(s_total=100)).slots == [75, 25]


def test_the_gate_needs_an_unbroken_second_and_then_stays_open() -> None:
    """5.3, for the group: strictly above delta_w for T_hold, until it is back."""
    config = Config()
    gate = advance_gate(StepGate(), 0.02, 0, config)
    assert gate == StepGate()
    gate = advance_gate(gate, 0.03, 200, config)
    assert gate == StepGate(200, stepping=False)
    assert advance_gate(gate, 0.03, 1_199, config) == StepGate(200, stepping=False)
    gate = advance_gate(gate, 0.03, 1_200, config)
    assert gate == StepGate(200, stepping=True)
    assert advance_gate(gate, 0.0201, 1_400, config) == StepGate(200, stepping=True)
    assert advance_gate(gate, 0.02, 1_400, config) == StepGate()


def test_the_deviation_is_from_what_the_slots_say() -> None:
    """max |w - s/S|; nobody deviates from nothing."""
    assert deviation([0.5, 0.5], [64, 192], 256) == 0.25
    assert deviation([], [], 256) == 0.0


def test_skew_is_by_request_shares() -> None:
    """8.2; undefined below 50 requests, with unknown requests, and in a monopoly."""
    seen = [Backend("a", requests=90), Backend("b", requests=10)]
    assert observed_skew(seen, [0.5, 0.5], Config()) == 0.4
    at_the_edge = [Backend("a", requests=70), Backend("b", requests=30)]
    assert observed_skew(at_the_edge, [0.5, 0.5], Config()) == Config().skew_max
    few = [Backend("a", requests=40), Backend("b", requests=9)]
    assert observed_skew(few, [0.5, 0.5], Config()) is None
    assert observed_skew([*seen, A], [0.4, 0.4, 0.2], Config()) is None
    assert observed_skew([Backend("a", requests=90)], [1.0], Config()) is None
    assert deviation([0.5, 0.5], [64, 192], 256) == 0.25


def test_skew_where_nobody_is_routable_is_all_of_it() -> None:
    """The weights are 0: whatever is still served goes where it should not."""
    out = Backend("a", requests=90, isolated=True)
    assert observed_skew([out], [0.0], Config()) == 1.0


def step(slots: list[int], target: list[int], skew: float | None, guard: Guard) -> Step:
    return guarded_step(
        slots,
        target,
        weights=[t / 256 for t in target],
        skew=skew,
        guard=guard,
        crisis=False,
        clock_ms=9_000,
        config=Config(),
    )


def test_a_step_that_helps_is_not_guarded() -> None:
    """Also where the skew is undefined, or nothing moves."""
    assert step([64, 192], [128, 128], 0.3, Guard()) == ([68, 188], Guard(), False)
    assert step([64, 192], [128, 128], None, Guard()) == ([68, 188], Guard(), False)
    assert step([128, 128], [128, 128], 0.0, Guard()) == ([128, 128], Guard(), False)


def test_a_worsening_step_is_halved_and_held_if_that_does_not_help() -> None:
    """8.3: requests already go where they should, the slots are behind."""
    assert step([64, 192], [128, 128], 0.0, Guard()) == ([64, 192], Guard(1, 9_000), True)
    assert step([64, 192], [128, 128], 0.0, Guard(1, 5_000)) == ([64, 192], Guard(2, 9_000), True)
    # Δmax is 1 already: there is nothing to halve.
    assert step([64, 192], [128, 128], 0.0, Guard(2, 5_000)) == ([64, 192], Guard(2, 9_000), True)


def test_a_halved_step_that_helps_is_taken() -> None:
    """Towards a scaled target a smaller step can be the better one."""
    after = guarded_step(
        [128, 128],
        [64, 192],
        weights=[0.5, 0.5],
        skew=0.0,
        guard=Guard(),
        crisis=True,
        clock_ms=9_000,
        config=Config(epsilon_skew=0.04),
    )
    assert after == ([120, 136], Guard(1, 9_000), False)


def test_a_step_of_one_leaves_no_trace_in_the_guard() -> None:
    """Nothing was halved, so nothing has to grow back."""
    after = guarded_step(
        [64, 192],
        [128, 128],
        weights=[0.5, 0.5],
        skew=0.0,
        guard=Guard(),
        crisis=False,
        clock_ms=9_000,
        config=Config(delta_max=1),
    )
    assert after == ([64, 192], Guard(), True)


def test_the_guard_doubles_after_every_five_quiet_seconds() -> None:
    """And is gone within 40."""
    config = Config()
    assert regrow(Guard(2, 1_000), 5_999, config) == Guard(2, 1_000)
    assert regrow(Guard(2, 1_000), 6_000, config) == Guard(1, 6_000)
    assert regrow(Guard(2, 1_000), 11_000, config) == Guard()
    assert regrow(Guard(8, 1_000), 40_999, config) == Guard(1, 36_000)
    assert regrow(Guard(8, 1_000), 41_000, config) == Guard()
    assert regrow(Guard(), 41_000, config) == Guard()
