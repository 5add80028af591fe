"""The page's lines about weights, targets and slots: slew, gate, bypass, warm-up, guard."""

import random
from itertools import pairwise
from typing import Any

import pytest

from tests.core.traffic import cases
from tests.core.traffic.play import Decide, Group, backend, group_of

FOUR = ("b1", "b2", "b3", "b4")


def slow(decide: Decide, **config: Any) -> Group:
    """Four equal backends, then b1 turns slow x10 (first tick with it: deviation begins)."""
    group = group_of(decide, 4, **config)
    group.tick()
    group.set("b1", p95_ms=400)
    return group


def test_weights_are_inverse_pressures(decide: Decide) -> None:
    """P 0.43 and 4.03: shares 4.03 to 0.43."""
    group = group_of(decide, 2)
    group.set("b2", p95_ms=400)
    assert group.tick()["weights"] == pytest.approx({"b1": 4.03 / 4.46, "b2": 0.43 / 4.46})


def test_targets_add_up_and_ties_go_by_id(decide: Decide) -> None:
    """256 among three equals: the lowest id has the odd slot, in any order of the input."""
    group = Group(decide, backend("b3"), backend("b1"), backend("b2"))
    assert group.tick()["target"] == {"b1": 86, "b2": 85, "b3": 85}
    assert group.last["slots"] == group.last["target"]


def test_the_first_tick_applies_its_targets_without_slew(decide: Decide) -> None:
    """And it is steady: the first placement is not a move."""
    group = group_of(decide, 2)
    group.set("b2", p95_ms=400)
    out = group.tick()
    assert out["slots"] == {"b1": 231, "b2": 25}
    assert out["applied"] is True
    assert "pressure" not in str(out["reasons"])


def test_a_step_waits_for_t_hold_and_then_moves_delta_max(decide: Decide) -> None:
    """Deviation since tick 1; one second later 4 of 256 per tick, sum fixed."""
    group = slow(decide)
    slots = [group.tick()["slots"]["b1"] for _ in range(8)]
    assert slots == [64, 64, 64, 64, 64, 60, 56, 52]
    assert group.last["applied"] is True
    assert group.last["reasons"][-1] == "pressure.latency" or group.last["reasons"][0] == "skew"


def test_a_break_of_the_deviation_starts_the_hold_again(decide: Decide) -> None:
    """0.8 s of deviation, one healthy tick, 0.8 s more: nothing moves."""
    group = slow(decide)
    for p95_ms, duration_ms in ((400, 800), (40, 200), (400, 1_000)):
        group.set("b1", p95_ms=p95_ms)
        assert group.run(duration_ms)["slots"]["b1"] == 64
    assert group.tick()["slots"]["b1"] == 60


def test_stepping_goes_on_until_back_under_delta_w(decide: Decide) -> None:
    """Once open, every tick; once within 2 %, no more."""
    group = slow(decide)
    group.run(1_000)
    seen = [group.tick()["slots"]["b1"] for _ in range(20)]
    assert all(a - b == 4 for a, b in pairwise(seen) if a - b)
    w, last = group.last["weights"]["b1"], seen[-1]
    assert abs(w - last / 256) <= 0.02
    assert seen[-1] == seen[-2] == seen[-3]


def test_small_deviations_never_move_slots(decide: Decide) -> None:
    """Within 2 % for ever: steady for ever."""
    group = group_of(decide, 4)
    group.tick()
    group.set("b1", p95_ms=42)
    out = group.run(5_000)
    assert out["slots"] == dict.fromkeys(FOUR, 64)
    assert out["target"]["b1"] < 64
    assert (out["applied"], out["reasons"]) == (False, ["steady"])


def test_a_backend_slow_by_ten_is_under_five_percent_within_eight_seconds(decide: Decide) -> None:
    """The contract's bound, with requests that follow the slots."""
    group = slow(decide)
    for _ in range(40):
        group.follow()
        group.tick()
    assert group.last["slots"]["b1"] <= 0.05 * 256


def test_delta_max_times_four_in_crisis_floored_after_the_factor(decide: Decide) -> None:
    """S = 100: 1.5625 a tick is 1, four times it is 6."""
    for retry_index, step in ((0.0, 1), (2.0, 6)):
        group = group_of(decide, 2, s_total=100)
        group.tick()
        group.set("b1", p95_ms=400)
        group.retry_index = retry_index
        group.run(1_000)
        assert group.tick()["slots"]["b1"] == 50 - step
        assert group.last["regime"] == ("crisis" if retry_index else "laminar")


def test_isolation_bypasses_gate_and_slew(decide: Decide) -> None:
    """All its slots in one tick, to the others, with its name in `bypass`."""
    group = group_of(decide, 4)
    group.tick()
    group.set("b2", isolated=True)
    out = group.tick()
    assert out["slots"] == {"b1": 86, "b2": 0, "b3": 85, "b4": 85}
    assert (out["weights"]["b2"], out["target"]["b2"]) == (0, 0)
    assert "b2" in out["bypass"]
    assert "isolation" in out["reasons"]
    assert group.tick()["bypass"] == []


def test_only_the_freed_slots_move_and_only_to_backends_under_target(decide: Decide) -> None:
    """b1 is over its target when b2 goes: it gets nothing, and loses nothing yet."""
    group = slow(decide)
    group.set("b2", isolated=True)
    out = group.tick()
    assert out["slots"] == {"b1": 64, "b2": 0, "b3": 96, "b4": 96}


def test_a_step_under_way_pauses_in_the_tick_of_a_bypass(decide: Decide) -> None:
    """Only the freed slots move in it; the next tick steps on."""
    group = slow(decide)
    before = group.run(1_400)["slots"]["b1"]
    group.set("b2", isolated=True)
    assert group.tick()["slots"]["b1"] == before < 64
    assert group.tick()["slots"]["b1"] == before - 4


def test_removal_bypasses_too(decide: Decide) -> None:
    """A backend that is no longer listed frees its slots at once; the move has a reason."""
    group = group_of(decide, 4)
    group.tick()
    del group.backends["b4"]
    out = group.tick()
    assert out["slots"] == {"b1": 86, "b2": 85, "b3": 85}
    assert "b4" in out["bypass"]
    assert "steady" not in out["reasons"]


def test_joins_and_returns_wait_and_slew(decide: Decide) -> None:
    """A warm newcomer and a returning backend come in by steps, after T_hold."""
    group = group_of(decide, 3)
    group.set("b3", isolated=True)
    group.tick()
    group.set("b3", isolated=False)
    group.backends["b4"] = backend("b4", age_ms=None)
    for _ in range(5):
        group.follow()
        group.tick()
        assert (group.last["slots"]["b3"], group.last["slots"]["b4"]) == (0, 0)
    group.follow()
    before, after = group.last["slots"], group.tick()["slots"]
    assert after["b3"] == after["b4"] == 4
    assert all(abs(after[name] - before[name]) <= 4 for name in after)


def test_all_isolated_is_hard_with_a_drip_to_the_least_bad(decide: Decide) -> None:
    """All slots to the lowest P, weights 0, 1 % of the requests per second."""
    group = group_of(decide, 3)
    group.tick()
    group.set(*group.backends, isolated=True)
    group.set("b2", p95_ms=20)
    out = group.tick()
    assert out["slots"] == {"b1": 0, "b2": 256, "b3": 0}
    assert set(out["weights"].values()) == {0}
    assert out["admission"]["mode"] == "hard"
    assert out["admission"]["rate_per_s"] == pytest.approx(6)
    assert out["reasons"][0] == "all_isolated"
    group.set(*group.backends, requests=3)
    assert group.tick()["admission"]["rate_per_s"] == 1


def test_after_nobody_was_routable_the_targets_hold_at_once(decide: Decide) -> None:
    """The first to return take everything without slew."""
    group = group_of(decide, 3)
    group.set(*group.backends, isolated=True)
    group.tick()
    group.set("b2", "b3", isolated=False)
    out = group.tick()
    assert out["slots"] == {"b1": 0, "b2": 128, "b3": 128}
    assert out["bypass"]


def test_no_backends_denies(decide: Decide) -> None:
    """Hard, empty slots, and back at once when somebody comes."""
    group = Group(decide)
    out = group.tick()
    assert (out["slots"], out["weights"], out["admission"]["mode"]) == ({}, {}, "hard")
    assert out["reasons"][0] == "no_backends"
    group.backends["b1"] = backend("b1")
    assert group.tick()["slots"] == {"b1": 256}


def test_one_backend_is_a_monopoly_and_one_routable_is_not(decide: Decide) -> None:
    """w = 1, guard off, scale hint; others that are isolated are still a group."""
    out = group_of(decide, 1).tick()
    assert (out["slots"], out["weights"], out["scale_hint"]) == ({"b1": 256}, {"b1": 1}, True)
    assert (out["reasons"], out["skew"]) == (["monopoly", "steady"], None)
    group = group_of(decide, 2)
    group.set("b2", isolated=True)
    out = group.tick()
    assert (out["slots"], out["scale_hint"]) == ({"b1": 256, "b2": 0}, False)
    assert "monopoly" not in out["reasons"]


def test_a_newborns_target_grows_with_its_age(decide: Decide) -> None:
    """At 15 of 30 s half a share, renormalised; `weights` unscaled."""
    group = group_of(decide, 2)
    group.set("b2", age_ms=15_000)
    out = group.tick()
    assert out["target"] == {"b1": 171, "b2": 85}
    assert out["weights"] == pytest.approx({"b1": 0.5, "b2": 0.5})


def test_all_newborn_is_nobody_newborn(decide: Decide) -> None:
    """And an unknown age is warm."""
    group = group_of(decide, 2)
    group.set("b1", age_ms=1_000)
    group.set("b2", age_ms=20_000)
    assert group.tick()["target"] == {"b1": 128, "b2": 128}
    group = group_of(decide, 2)
    group.set("b1", age_ms=None)
    group.set("b2", age_ms=0)
    assert group.tick()["target"] == {"b1": 256, "b2": 0}


def test_the_gate_judges_scaled_shares(decide: Decide) -> None:
    """A newborn at its scaled target is no deviation."""
    group = group_of(decide, 2)
    group.set("b2", age_ms=15_000)
    group.tick()
    assert group.run(3_000)["applied"] is False


def test_skew_is_undefined_under_fifty_requests(decide: Decide) -> None:
    """And from fifty it is the largest distance of a share from its weight."""
    group = group_of(decide, 2)
    group.set("b1", requests=49)
    group.set("b2", requests=0)
    assert group.tick()["skew"] is None
    group.set("b1", requests=50)
    assert group.tick()["skew"] == pytest.approx(0.5)
    assert group.last["reasons"] == ["skew"]


def test_the_guard_halves_or_holds_a_worsening_step(decide: Decide) -> None:
    """Requests already where the weights want them: the predicted skew is worse, so no step."""
    group = slow(decide)
    weights = group.tick()["weights"]
    for name in FOUR:
        group.set(name, requests=round(10_000 * weights[name]))
    out = group.run(3_000)
    assert out["slots"] == dict.fromkeys(FOUR, 64)
    assert out["reasons"] == ["guard_hold"]
    group.set(*FOUR, requests=10)
    assert group.tick()["slots"]["b1"] in (63, 62)  # guard off, but its bound is still small
    group.set(*FOUR, requests=10)
    before = group.run(10_000)["slots"]["b1"]
    assert before <= 13  # and whole again long before 40 quiet seconds


@pytest.mark.parametrize("seed", range(12))
def test_sum_slew_and_direction_on_random_worlds(decide: Decide, seed: int) -> None:
    """Σ = S exactly; without a bypass |Δs| ≤ Δmax, and never away from the target."""
    world = cases.World(random.Random(f"slew/{seed}"))
    state, slots = None, dict[str, int]()
    for _ in range(world.ticks):
        document = {**world.tick(slots), "state": state}
        config = document.get("config", {})
        out = decide(document)
        whole = config.get("s_total", 256)
        assert sum(out["slots"].values()) == (whole if document["backends"] else 0)
        base = config.get("delta_max") or max(1, whole / 64)
        factor = config.get("crisis_factor", 4) if out["regime"] == "crisis" else 1
        bound = int(base * factor)
        if sum(slots.values()) == whole and not out["bypass"]:
            for name, now in out["slots"].items():
                was, want = slots.get(name, 0), out["target"][name]
                assert abs(now - was) <= bound
                assert min(was, want) <= now <= max(was, want)
        assert out["reasons"]
        state, slots = out["state"], out["slots"]
