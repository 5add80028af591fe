"""One tick, as the contract settles it: a test per detail, in the page's order."""

from dataclasses import replace
from typing import Any

import pytest

from fairlead.core.traffic import AdmissionMode, Config, Node, Pressure, Regime, Snapshot, tick
from fairlead.core.traffic.tick import agent_reasons, moving_term
from tests.core.traffic.groups import Group, backend, reasons


def test_the_contracts_example() -> None:
    """One healthy backend: all slots, a monopoly, steady."""
    plan = tick(Snapshot(now_ms=1_000, group="web", backends=(backend("b1", queue=3),)))
    assert (plan.slots, plan.weights, plan.target) == ({"b1": 256}, {"b1": 1.0}, {"b1": 256})
    assert plan.pressure["b1"].total == pytest.approx(0.43)
    assert plan.conductance == pytest.approx(1 / 0.43)
    assert (plan.admission.mode, plan.admission.rate_per_s, plan.admission.burst) == (
        AdmissionMode.NORMAL,
        None,
        None,
    )
    assert (plan.regime, plan.ttf_s, plan.stall, plan.skew) == (Regime.LAMINAR, None, False, None)
    assert (plan.applied, plan.scale_hint, plan.bypass) == (True, True, ())
    assert reasons(plan) == ["monopoly", "steady"]


def test_the_first_tick_applies_its_targets_and_its_triggers_count() -> None:
    """No slew, no waiting; the first placement is not a move."""
    group = Group("a", "b")
    group.set("b", p95_ms=400)
    plan = group.step()
    assert plan.slots == plan.target == {"a": 233, "b": 23}
    assert plan.applied
    assert reasons(plan) == ["skew"]
    stormy = Group("a", "b")
    stormy.retry_index = 2.0
    assert stormy.step().admission.mode == "hard"


def test_steady_is_said_alone() -> None:
    """Nothing moves and nothing is wrong."""
    group = Group("a", "b")
    group.step()
    plan = group.step()
    assert (reasons(plan), plan.applied) == (["steady"], False)


def test_slots_wait_for_the_hold_then_step_every_tick() -> None:
    """Four slots per tick from one second after the change until it is back under delta_w."""
    group = Group("a", "b", "c", "d")
    group.follow = True
    group.run(1_000)
    group.set("a", p95_ms=400)
    slots = [group.step().slots["a"] for _ in range(24)]
    assert slots[:5] == [64] * 5
    assert slots[5:18] == [60, 56, 52, 48, 44, 40, 36, 32, 28, 24, 20, 16, 12]
    assert slots[18:] == [12] * 6


@pytest.mark.parametrize("count", [4, 6, 10, 50])
def test_a_backend_turned_slow_is_at_five_percent_within_eight_seconds(count: int) -> None:
    """The contract's bound, from the tick alone, whether the requests follow or not."""
    for follow in (True, False):
        group = Group(*(f"b{index:02d}" for index in range(count)))
        group.follow = follow
        group.run(2_000)
        group.set("b00", p95_ms=400)
        assert group.run(8_000).slots["b00"] <= 0.05 * 256


def test_a_move_is_never_steady_and_names_its_term() -> None:
    """The one term that moved the slots most."""
    for change, reason in (
        ({"p95_ms": 400}, "pressure.latency"),
        ({"queue": 600}, "pressure.queue"),
        ({"error_rate": 0.04}, "pressure.errors"),
    ):
        group = Group("a", "b", "c", "d")
        group.every(requests=10)
        group.step()
        group.set("a", **(change if "error_rate" not in change else change | {"requests": 40}))
        plan = group.run(1_400)
        assert plan.applied
        assert reasons(plan)[-1] == reason


@pytest.mark.parametrize("count", range(2, 9))
def test_a_newborn_among_equals_is_named_by_the_largest_term(count: int) -> None:
    """No term differs, so none moved it: a mean that rounds away from equals is no difference."""
    group = Group(*(f"b{index}" for index in range(count)))
    group.every(requests=4, queue=10, p95_ms=60)
    group.step()
    group.backends["new"] = replace(group.backends["b0"], id="new")
    plan = group.run(1_400)
    assert plan.applied
    assert reasons(plan) == ["pressure.latency"]


def test_isolation_bypasses_hold_and_slew_and_moves_only_what_it_frees() -> None:
    """In the very tick, labelled."""
    group = Group("a", "b", "c", "d")
    group.run(400)
    group.set("a", isolated=True)
    plan = group.step()
    assert plan.slots == {"a": 0, "b": 86, "c": 85, "d": 85}
    assert (plan.bypass, plan.weights["a"], plan.applied) == (("a",), 0.0, True)
    assert reasons(plan) == ["skew", "isolation"]
    group.every(requests=0)
    assert reasons(group.step()) == ["isolation"]
    assert group.step().bypass == ()


def test_removal_bypasses_too() -> None:
    """The removed id is in `bypass` and in nothing else; the tick is not steady."""
    group = Group("a", "b", "c")
    group.run(400)
    del group.backends["b"]
    plan = group.step()
    assert plan.slots == {"a": 128, "c": 128}
    assert (plan.bypass, reasons(plan)) == (("b",), ["pressure.latency"])


def test_freed_slots_go_to_backends_below_target_only() -> None:
    """Who has more than its target keeps it, and steps down as ever."""
    group = Group("a", "b", "c")
    group.run(400)
    group.set("b", p95_ms=400)
    group.set("c", isolated=True)
    plan = group.step()
    assert plan.target["b"] < 85
    assert plan.slots == {"a": 171, "b": 85, "c": 0}


def test_in_the_tick_of_a_bypass_only_the_freed_slots_move() -> None:
    """Mid-slew too: nobody else loses any; the next tick steps on."""
    group = Group("a", "b", "c")
    group.every(requests=10)
    group.run(400)
    group.set("b", p95_ms=400)
    group.run(1_400)
    before = group.plan.slots  # type: ignore[union-attr]
    group.set("c", isolated=True)
    plan = group.step()
    assert plan.bypass == ("c",)
    assert plan.slots == {"a": before["a"] + before["c"], "b": before["b"], "c": 0}
    assert group.step().slots["b"] == before["b"] - 4


def test_joins_and_returns_wait_and_slew() -> None:
    """Nothing for a second, then a few at a time."""
    group = Group("a", "b", "c")
    group.follow = True
    group.run(400)
    group.backends["d"] = backend("d")
    plan = group.step()
    assert (plan.slots["d"], plan.applied, plan.bypass) == (0, False, ())
    assert group.run(1_000).slots["d"] == 4
    group.set("a", isolated=True)
    group.step()
    group.set("a", isolated=False)
    assert group.step().slots["a"] == 0


def test_signal_missing_for_one_is_the_worst_and_said() -> None:
    """A single blind backend is imputed."""
    group = Group("a", "b", "c")
    group.set("b", p95_ms=80)
    group.set("c", p95_ms=None)
    plan = group.step()
    assert plan.pressure["c"].latency == 0.8
    assert "signal_missing.latency" in reasons(plan)
    errors = Group("a", "b")
    errors.set("b", error_rate=None)
    assert reasons(errors.step()) == ["signal_missing.errors"]
    queue = Group("a", "b")
    queue.set("b", queue=None)
    assert reasons(queue.step()) == ["signal_missing.queue"]


def test_signal_missing_for_all_is_left_out_and_said() -> None:
    """W_L, W_E or W_Q is 0 for the group."""
    for field, reason in (("p95_ms", "latency"), ("error_rate", "errors"), ("queue", "queue")):
        group = Group("a", "b")
        group.every(**{field: None})
        plan = group.step()
        assert reasons(plan) == [f"signal_missing.{reason}"]
        assert plan.slots == {"a": 128, "b": 128}


def test_blind_freezes_the_slots_mid_slew_and_is_at_least_soft() -> None:
    """Weights as they were, admission soft, one reason instead of two."""
    group = Group("a", "b", "c", "d")
    group.every(requests=10)
    group.run(400)
    group.set("a", p95_ms=400)
    moving = group.run(1_400)
    group.every(p95_ms=None, error_rate=None)
    plan = group.step()
    assert (plan.slots, plan.weights) == (moving.slots, moving.weights)
    assert (plan.admission.mode, reasons(plan)) == ("soft", ["signal_missing.both"])
    group.every(queue=None)
    assert reasons(group.step()) == ["signal_missing.queue", "signal_missing.both"]
    group.every(p95_ms=40, error_rate=0, queue=0)
    assert group.step().slots != moving.slots


def test_blind_removal_still_hands_over_by_the_held_weights() -> None:
    """Freed slots cannot stay with somebody who is gone."""
    group = Group("a", "b", "c")
    group.set("b", p95_ms=80)
    group.run(400)
    group.every(p95_ms=None, error_rate=None)
    del group.backends["c"]
    plan = group.step()
    assert plan.weights == pytest.approx({"a": 2 / 3, "b": 1 / 3})
    assert plan.slots == {"a": 171, "b": 85}


def test_blind_from_the_start_there_is_nothing_to_hold() -> None:
    """What is known (the queue) decides the first placement."""
    group = Group("a", "b")
    group.every(p95_ms=None, error_rate=None)
    group.set("b", queue=100)
    plan = group.step()
    assert plan.slots == {"a": 233, "b": 23}


def test_a_backend_without_requests_keeps_its_rate_for_five_seconds() -> None:
    """Then there is no evidence against it."""
    group = Group("a", "b")
    group.set("b", error_rate=0.5)
    group.step()
    group.set("b", error_rate=0.0, requests=0)
    assert group.run(5_000).pressure["b"].error == 60.0
    assert group.step().pressure["b"].error == 0.0


def test_equal_or_backward_time_is_no_time() -> None:
    """Accepted, and nothing elapses; the next later tick counts from there."""
    group = Group("a", "b")
    group.every(requests=10)
    group.step()
    group.set("a", p95_ms=400)
    assert not group.step().applied
    for elapsed in (0, 0, -5_000, 0):
        assert not group.step(elapsed).applied
    assert group.run(800).applied is False
    assert group.step().applied


def test_the_groups_clock_adds_up_what_time_went_on() -> None:
    """Not a millisecond where it stood still or went back."""
    group = Group("a", "b")
    group.step()
    clock = [group.step(ms).state.clock_ms for ms in (200, 0, -5_000, 200)]
    assert clock == [200, 200, 200, 400]


def test_a_clock_at_the_end_of_its_range_stands_still() -> None:
    """Jumping to and fro over all of time adds up to more than JSON can carry."""
    group = Group("a", "b")
    group.node(memory=5.0)
    group.now_ms = 0
    group.step()
    for _ in range(3):
        plan = group.step(2**53 - 1)
        group.step(1 - 2**53)
    assert plan.state.clock_ms == 2**53 - 1


def test_crisis_moves_four_times_as_fast() -> None:
    """Exactly in crisis."""
    group = Group("a", "b", "c", "d")
    group.every(requests=10)
    group.step()
    group.set("a", p95_ms=400)
    group.run(1_000)
    group.retry_index = 2.0
    plan = group.step()
    assert (plan.regime, plan.slots["a"]) == ("crisis", 48)
    group.retry_index = 0.5
    assert group.step().slots["a"] == 32


def test_the_guard_holds_a_step_away_from_where_the_requests_are() -> None:
    """Requests already match the weights; the slots are behind and moving them predicts worse."""
    group = Group("a", "b")
    group.set("a", p95_ms=400)
    group.step()
    group.set("a", p95_ms=40)
    plan = group.run(1_400)
    assert (plan.applied, reasons(plan)) == (False, ["guard_hold"])
    assert plan.state.guard.halvings == 2
    group.every(requests=10)  # fewer than 50 together: no skew, no guard
    assert group.step().applied


def test_full_steps_return_within_forty_quiet_seconds() -> None:
    """Halved from 15 slots to 1, and back once nothing gets worse."""
    group = Group("a", "b", s_total=1_000)
    group.set("a", p95_ms=400)
    group.step()
    group.set("a", p95_ms=40)
    assert group.run(4_000).state.guard.halvings == 3
    group.every(requests=10)
    plan = group.run(40_200)
    assert plan.state.guard.halvings == 0


def test_skew_above_a_fifth_is_said() -> None:
    """By request shares."""
    group = Group("a", "b")
    group.set("a", requests=800)
    plan = group.step()
    assert plan.skew == pytest.approx(0.3)
    assert reasons(plan) == ["skew"]


def test_warm_up_scales_the_target_but_not_the_weights() -> None:
    """age/30 s; the gate goes by the scaled shares."""
    group = Group("a", "b", "c")
    group.set("c", age_ms=15_000)
    plan = group.step()
    assert plan.weights["c"] == pytest.approx(1 / 3)
    assert plan.target["c"] == plan.slots["c"] == 51
    group.every(requests=10)
    assert not group.run(3_000).applied
    group.every(age_ms=0)
    assert group.step().target == {"a": 86, "b": 85, "c": 85}


def test_all_isolated_is_a_drip_to_the_least_bad() -> None:
    """All slots to the lowest P, weights 0, hard."""
    group = Group("a", "b")
    group.every(requests=5_000)
    group.run(400)
    group.set("a", isolated=True, p95_ms=50)
    group.set("b", isolated=True)
    plan = group.step()
    assert (plan.slots, plan.target) == ({"a": 0, "b": 256}, {"a": 0, "b": 256})
    assert plan.weights == {"a": 0.0, "b": 0.0}
    assert (plan.admission.mode, plan.admission.rate_per_s) == ("hard", 100.0)
    assert plan.bypass == ("a",)
    assert reasons(plan) == ["all_isolated", "skew"]


def test_one_isolated_backend_is_no_monopoly() -> None:
    """It is a group of which all are isolated."""
    group = Group("a")
    group.set("a", isolated=True, requests=0)
    plan = group.step()
    assert (plan.slots, plan.scale_hint) == ({"a": 256}, False)
    assert reasons(plan) == ["all_isolated", "isolation"]


def test_after_nobody_was_routable_the_slots_jump_to_their_targets() -> None:
    """Parked slots do not slew."""
    group = Group("a", "b")
    group.every(isolated=True, requests=10)
    assert group.step().slots == {"a": 256, "b": 0}
    group.every(isolated=False)
    plan = group.step()
    assert (plan.slots, plan.bypass) == ({"a": 128, "b": 128}, ("a", "b"))


def test_one_routable_beside_isolated_ones_is_no_monopoly() -> None:
    """The others may come back."""
    group = Group("a", "b")
    group.set("b", isolated=True)
    plan = group.step()
    assert (plan.slots, plan.scale_hint) == ({"a": 256, "b": 0}, False)
    assert "monopoly" not in reasons(plan)


def test_no_backends_is_denied() -> None:
    """Hard, no slots; the first ones to come are placed at once."""
    group = Group("a")
    group.step()
    group.backends.clear()
    plan = group.step()
    assert (plan.slots, plan.bypass, plan.conductance) == ({}, ("a",), 0.0)
    assert (plan.admission.mode, plan.admission.rate_per_s, plan.admission.burst) == ("hard", 1, 1)
    assert reasons(plan) == ["no_backends", "conductance"]
    group.backends = {name: backend(name) for name in "bc"}
    plan = group.step()
    assert (plan.slots, plan.bypass) == ({"b": 128, "c": 128}, ("b", "c"))


def test_isolated_backends_give_no_errors_reason() -> None:
    """They carry nothing; a routable one that fails does, and it does not restrict admission."""
    group = Group("a", "b", "c")
    group.set("c", isolated=True, error_rate=1.0)
    assert "errors" not in reasons(group.step())
    failing = Group("a", "b", "c")
    failing.set("c", error_rate=0.06)
    plan = failing.step()
    assert reasons(plan)[0] == "errors"
    assert plan.admission.mode == "normal"


def test_errors_hold_where_they_are_imputed_and_where_the_penalty_is_nothing() -> None:
    """E > eta, whatever K_E is."""
    group = Group("a", "b", "c", k_e=0)
    group.set("a", isolated=True, error_rate=0.9)
    group.set("b", error_rate=None)
    assert reasons(group.step())[0] == "errors"


def test_another_number_of_slots_keeps_the_shares() -> None:
    """A changed s_total is a move, and never steady."""
    group = Group("a", "b")
    group.step()
    smaller = Group("a", "b", s_total=100)
    smaller.now_ms, smaller.plan = group.now_ms, group.plan
    plan = smaller.step()
    assert plan.slots == {"a": 50, "b": 50}
    assert plan.applied
    assert "steady" not in reasons(plan)


def test_a_monopoly_that_loses_its_partner_moved() -> None:
    """Slots moved, so it is not steady."""
    group = Group("a", "b")
    group.step()
    del group.backends["b"]
    assert reasons(group.step()) == ["pressure.latency", "monopoly"]


def test_at_most_two_reasons_by_priority() -> None:
    """Three hold; the two most urgent are said."""
    group = Group("a", "b")
    group.retry_index = 0.7
    group.node(memory=1_000.0)
    group.set("b", error_rate=0.5)
    assert reasons(group.step()) == ["ttf", "retry_storm"]


def test_what_is_just_at_its_threshold_is_no_reason() -> None:
    """120 s to the end of the memory, a skew of a fifth, an error in twenty."""
    group = Group("a", "b", alpha=1.0, derivative_window_ms=1_000)
    group.node(memory=879.0)
    group.step()
    group.node(memory=880.0)
    plan = group.step(1_000)
    assert (plan.ttf_s, reasons(plan)) == (120.0, ["steady"])
    skewed = Group("a", "b")
    skewed.set("a", requests=70)
    skewed.set("b", requests=30)
    plan = skewed.step()
    assert (plan.skew, reasons(plan)) == (0.2, ["steady"])
    failing = Group("a", "b", g_min=0.0)
    failing.every(error_rate=0.05)
    assert reasons(failing.step()) == ["steady"]


# --- a second witness


def slow(*latencies_ms: float, **config: Any) -> Group:
    """Backends a, b and so on, that take so long."""
    group = Group(*"abc"[: len(latencies_ms)], **config)
    for name, p95_ms in zip(group.backends, latencies_ms, strict=True):
        group.set(name, p95_ms=p95_ms)
    return group


def mode(group: Group, *, confirm: bool = True) -> str:
    """Admission after the next tick."""
    return tick(replace(group.snapshot(), confirm=confirm)).admission.mode.value


@pytest.mark.parametrize(
    ("latencies_ms", "confirmed"),
    [
        pytest.param((300, 800), "normal", id="without the slow one enough flows"),
        pytest.param((400, 400), "soft", id="whichever is left out"),
        pytest.param((300, 800, 800), "soft", id="one alone would do, any two do not"),
        pytest.param((400,), "soft", id="there is no other"),
    ],
)
def test_low_conductance_is_confirmed_without_any_one(
    latencies_ms: tuple[float, ...], confirmed: str
) -> None:
    """Where that is asked for."""
    assert mode(slow(*latencies_ms)) == confirmed
    assert mode(slow(*latencies_ms), confirm=False) == "soft"


def test_a_conductance_of_just_g_min_is_enough() -> None:
    """Of all backends, and of all but one."""
    plan = slow(400, 400, g_min=0.25).step()
    assert (plan.conductance, plan.admission.mode, reasons(plan)) == (0.25, "normal", ["steady"])
    assert mode(slow(400, 800, g_min=0.25)) == "normal"


@pytest.mark.parametrize(
    ("worse", "missing", "config"),
    [
        pytest.param({"p95_ms": 800}, {"p95_ms": None}, {}, id="latency"),
        pytest.param({"queue": 500}, {"queue": None}, {}, id="queue"),
        pytest.param({"error_rate": 0.04}, {"error_rate": None}, {}, id="errors"),
        pytest.param({"node": "ill"}, {"node": None}, {"w_io": 1.0}, id="layers"),
    ],
)
def test_what_is_missing_is_not_taken_from_the_one_that_is_left_out(
    worse: dict[str, Any], missing: dict[str, Any], config: dict[str, Any]
) -> None:
    """Without b, what c does not show is a's; what c showed before does not count."""
    group = Group("a", "b", "c", g_min=0.0, **config)
    group.nodes = {name: Node(name, iowait_ratio=io) for name, io in (("ill", 0.5), ("well", 0.0))}
    group.every(p95_ms=300, node="well")
    group.set("b", **worse)
    group.set("c", **worse)
    group.step()
    group.config = Config(**config)
    assert mode(group) == "soft"
    group.set("c", **missing)
    assert mode(group, confirm=False) == "soft"
    assert mode(group) == "normal"


def test_a_machine_under_one_of_several_backends_is_confirmed() -> None:
    """One whose memory is used up restricts admission by itself only where nobody asks."""
    group, alone = Group("a", "b"), Group("a")
    for each in (group, alone):
        each.node(memory=1_000.0)
        each.set("a", node="n1")
    assert mode(group, confirm=False) == "hard"
    assert mode(group) == "normal"
    assert mode(alone) == "hard"


# --- reasons


@pytest.mark.parametrize(
    ("full", "stale", "said"),
    [
        (False, False, ["steady"]),
        (True, False, ["full"]),
        (False, True, ["failsafe", "steady"]),
        (True, True, ["failsafe", "full"]),
    ],
)
def test_what_only_the_agent_knows_is_said_first(full: bool, stale: bool, said: list[str]) -> None:
    plan = Group("a", "b").step()
    assert list(agent_reasons(plan, full=full, stale=stale)) == said


def test_a_full_group_is_said_beside_one_other_reason_while_admission_is_open() -> None:
    """Where admission is restricted it is no news."""
    group = Group("a", "b")
    group.set("a", requests=800)
    assert list(agent_reasons(group.step(), full=True, stale=False)) == ["full", "skew"]
    group.retry_index = 0.5
    plan = group.step()
    assert agent_reasons(plan, full=True, stale=False) == plan.reasons


def term(changes: list[int], **terms: tuple[float, ...]) -> str:
    """What moved the slots of backends with these terms; a term that is not named is 0."""
    nothing = (0.0,) * len(changes)
    names = ("queue", "latency", "error", "penalty")
    rows = zip(*(terms.get(name, nothing) for name in names), strict=True)
    return moving_term([Pressure(1.0, *row) for row in rows], changes).value


def test_the_term_that_moved_the_slots_most_is_named() -> None:
    """By how much it differs from the mean at those that moved, not by how large it is."""
    errors = {"error": (0.0, 18.0), "penalty": (0.0, 10.0)}
    assert term([5, -5], latency=(1.0, 16.0), **errors) == "pressure.errors"
    large, uneven = (10.0, 10.5, 10.25), (0.0, 2.0, 1.0)
    assert term([5, -5, 0], latency=large, queue=uneven) == "pressure.queue"
    assert term([1, -1], latency=(0.5, 1.0)) == "pressure.latency"


def test_where_no_term_differs_at_those_that_moved_the_largest_is_named() -> None:
    found = term([1, -1, 0, 0], latency=(2.0, 2.0, 1.0, 3.0), error=(5.0, 5.0, 5.0, 5.0))
    assert found == "pressure.errors"
