"""Weights, targets, slew, bypass, gate, skew and guard: sections 4, 5 and 8 of the equations."""

from fractions import Fraction

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
from fairlead.core.traffic.state import HALVINGS_MAX, BackendMemory, Guard, State, StepGate

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


def test_weights_that_nobody_left_are_held_bit_by_bit() -> None:
    """A third and two thirds of 0.1 steps add up to a hair more than 1, and stay as they are."""
    kept = [0.1, 0.2, 0.3, 0.4 + 2.0**-40]
    memories = [BackendMemory(name, 0, weight) for name, weight in zip("abcd", kept, strict=True)]
    backends = [Backend(name) for name in "abcd"]
    assert held_weights(backends, memories, [0.25] * 4) == kept
    gone = [*backends[:3], Backend("d", isolated=True)]
    assert held_weights(gone, memories, [1.0, 0, 0, 0]) == pytest.approx([1 / 6, 2 / 6, 3 / 6, 0.0])


def test_where_only_an_isolated_one_is_new_weights_are_kept_bit_by_bit() -> None:
    """They need not add up to 1 exactly."""
    weights = [0.1, 0.2, 0.3, 0.4 + 2.0**-40, 0.0]
    backends = [*(Backend(name) for name in "abcd"), Backend("new", isolated=True, age_ms=0)]
    assert warm_shares(weights, backends, 30_000) == weights


def state(slots: dict[str, int], *, parked: bool = False) -> State:
    memories = tuple(BackendMemory(name, count) for name, count in slots.items())
    whole = sum(slots.values())
    return State(now_ms=0, clock_ms=0, samples=1, s_total=whole, parked=parked, backends=memories)


@pytest.mark.parametrize(
    ("held", "target", "placed", "bypass"),
    [
        pytest.param(
            {"a": 200, "b": 56}, [("a", 100), ("b", 156)], [200, 56], (), id="nobody comes or goes"
        ),
        pytest.param(
            {"a": 200, "b": 56},
            [("a", 100), ("b", 100), ("new", 56)],
            [200, 56, 0],
            (),
            id="a newcomer waits for the slew",
        ),
        pytest.param(
            {"a": 156, "b": 99, "gone": 1},
            [("a", 156), ("b", 100)],
            [156, 100],
            ("gone",),
            id="the only slot of one that left",
        ),
        pytest.param(
            {"a": 255, "b": 1},
            [("a", 256), ("b!", 0)],
            [256, 0],
            ("b",),
            id="the only slot of one that is isolated",
        ),
        pytest.param(
            {"a": 200, "b": 56, "c": 0},
            [("a", 100), ("b!", 0), ("c", 156)],
            [200, 0, 56],
            ("b",),
            id="to those below their targets, and not to those above",
        ),
        pytest.param(
            {"a": 256, "b": 0, "gone": 0},
            [("a", 128), ("b", 128)],
            [256, 0],
            (),
            id="one that left without slots frees none",
        ),
        pytest.param(
            {"a": 200, "b": 56, "gone": 0},
            [("a", 256), ("b!", 0)],
            [256, 0],
            ("b",),
            id="one that left takes none of what another frees",
        ),
        pytest.param(
            {"a": 256, "b": 0},
            [("a", 128), ("b", 64), ("new!", 0), ("old", 64)],
            [256, 0, 0, 0],
            (),
            id="an isolated newcomer frees none",
        ),
    ],
)
def test_only_what_is_freed_does_not_wait(
    held: dict[str, int], target: list[tuple[str, int]], placed: list[int], bypass: tuple[str, ...]
) -> None:
    """Slots of backends that left or are isolated (!) go at once; the rest is for the slew."""
    backends = [Backend(name.rstrip("!"), isolated=name.endswith("!")) for name, _ in target]
    found = place(backends, [count for _, count in target], state(held), Config())
    assert found == (placed, bypass)


@pytest.mark.parametrize(
    ("held", "target", "bypass"),
    [
        pytest.param({"a": 256, "b": 0}, [0, 256], ("a", "b"), id="a loses, b returns"),
        pytest.param({"a": 128, "b": 128}, [128, 128], (), id="nobody loses or returns"),
        pytest.param({"a": 255, "b": 1}, [254, 2], ("a", "b"), id="by a single slot"),
        pytest.param({"a": 255, "b": 0, "gone": 1}, [255, 1], ("b", "gone"), id="one that left"),
        pytest.param({"a": 256}, [255, 1], ("a", "b"), id="one that came"),
    ],
)
def test_who_comes_back_after_nobody_was_routable_does_not_wait(
    held: dict[str, int], target: list[int], bypass: tuple[str, ...]
) -> None:
    """The target is taken at once, and says for whom."""
    found = place([A, B], target, state(held, parked=True), Config())
    assert found == (target, bypass)


def test_only_gaps_of_others_take_what_is_freed() -> None:
    """One that is freed has no gap, whatever its target says."""
    assert hand_over([100, 100, 56], [160, 128, 128], [True, False, False]) == [0, 128, 128]


def test_request_shares_of_more_than_doubles_can_count_are_rounded_once() -> None:
    """Above 2^53 requests the total itself is not a double any more."""
    counts = [999_999_999_800, *[10**12 - 1] * 9_099]
    backends = [Backend(str(index), requests=count) for index, count in enumerate(counts)]
    assert sum(counts) > 2**53
    share = float(Fraction(counts[0], sum(counts)))
    weights = [0.0, *[1 / 9_100] * 9_099]
    assert observed_skew(backends, weights, Config()) == share


def test_the_guard_is_never_halved_more_than_it_can_regrow() -> None:
    """Eight halvings, and a step that may still be halved."""
    held = guarded_step(
        [64, 192],
        [128, 128],
        weights=[0.5, 0.5],
        skew=0.0,
        guard=Guard(HALVINGS_MAX, 5_000),
        crisis=False,
        clock_ms=9_000,
        config=Config(delta_max=10_000),
    )
    assert held == ([64, 192], Guard(HALVINGS_MAX, 9_000), True)


def test_a_step_that_is_worse_by_just_epsilon_is_taken() -> None:
    """From a skew of 0.25 by a quarter of all slots: allowed are exactly so many."""
    after = guarded_step(
        [128, 128],
        [64, 192],
        weights=[0.5, 0.5],
        skew=0.0,
        guard=Guard(),
        crisis=False,
        clock_ms=9_000,
        config=Config(delta_max=64, epsilon_skew=0.25),
    )
    assert after == ([64, 192], Guard(), False)
