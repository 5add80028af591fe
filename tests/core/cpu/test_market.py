"""Clearing: the check table of the specification, the labels, the prices, the bounds."""

from fractions import Fraction

import pytest

from fairlead.core.cpu import CpuMode, Headroom, Plan, Pod, Policy, Snapshot, clear
from fairlead.core.cpu import market as market_module
from fairlead.core.invariant import InvariantBroken

NO_ROOM = Headroom(0.0, 0.0, 0.0, 0.0)


def pod(uid: str, low: int, need: int, **fields: object) -> Pod:
    """A pod whose need is exactly `need` (full demand, maximum at the need)."""
    return Pod(uid, low, need, 1.0, **fields)  # type: ignore[arg-type]


def cleared(capacity: int, *pods: Pod, policy: str = "demand-capped", **fields: object) -> Plan:
    return clear(Snapshot(capacity, pods, Policy(policy), **fields))  # type: ignore[arg-type]


def test_overloaded_minimums_are_scaled() -> None:
    """C 1000, mins 800/600 -> 571/429."""
    plan = cleared(1000, pod("a", 800, 2000), pod("b", 600, 2000))
    assert plan.mode is CpuMode.OVERLOADED
    assert plan.allocations == {"a": 571, "b": 429}


def test_overloaded_nobody_starves() -> None:
    """C 100, mins 1000 and nine of 50 -> ten of 10."""
    plan = cleared(100, pod("a", 1000, 1000), *(pod(f"b{i}", 50, 50) for i in range(9)))
    assert plan.mode is CpuMode.OVERLOADED
    assert set(plan.allocations.values()) == {10}


def test_nash_shares_the_surplus_by_weight() -> None:
    """Mins 100/100, needs 900/900, weights 3:1, C 1000 -> 700/300 at a price of 1/200."""
    pods = pod("a", 100, 900, weight=3), pod("b", 100, 900, weight=1)
    plan = cleared(1000, *pods, policy="nash")
    assert plan.allocations == {"a": 700, "b": 300}
    assert plan.shadow_price == 1 / 200


def test_market_shares_the_surplus_by_bid() -> None:
    """Mins 400/100, bids 1:1, C 1000, max 2000 -> 650/350: (x - m)/bid is constant, not x/bid."""
    pods = pod("a", 400, 2000, weight=1), pod("b", 100, 2000, weight=1)
    assert cleared(1000, *pods, policy="market").allocations == {"a": 650, "b": 350}


def test_leftovers_go_to_the_lower_uids() -> None:
    """Seven pods of min 100, need 701 on 3000: Σ 3000, each 428 or 429, the lower uids 429."""
    plan = cleared(3000, *(pod(f"p{i}", 100, 701) for i in range(7)))
    assert list(plan.allocations.values()) == [429] * 4 + [428] * 3


def test_contract_example() -> None:
    """The worked example of the contract: 100 + 400, 17.5 % headroom, 587."""
    plan = cleared(1000, Pod("a", 100, 900, 0.5, weight=100))
    assert plan == Plan(
        mode=CpuMode.UNCONGESTED,
        capacity_millicores=1000,
        total_min=100,
        total_need=587,
        shadow_price=0.0,
        needs={"a": 587},
        allocations={"a": 587},
        reduction_ratio={"a": 0.0},
        reasons={"a": plan.reasons["a"]},
    )
    assert [str(reason) for reason in plan.reasons["a"]] == ["demand-driven"]


def test_demand_capped_rewards_overclaiming_and_nash_does_not() -> None:
    """C 800, mins 100: needs 500/500 -> 400/400; claiming 900 -> 500/300; nash stays."""
    honest = cleared(800, pod("a", 100, 500), pod("b", 100, 500))
    greedy = cleared(800, pod("a", 100, 900), pod("b", 100, 500))
    nash = cleared(800, pod("a", 100, 900), pod("b", 100, 500), policy="nash")
    assert honest.allocations == {"a": 400, "b": 400}
    assert greedy.allocations == {"a": 500, "b": 300}
    assert nash.allocations == {"a": 400, "b": 400}


def test_no_pods_is_uncongested() -> None:
    """An empty node has nothing to divide."""
    for policy in Policy:
        plan = cleared(0, policy=policy)
        assert (plan.mode, plan.allocations, plan.shadow_price) == (CpuMode.UNCONGESTED, {}, 0.0)


@pytest.mark.parametrize(
    ("previous", "need", "label"),
    [
        (None, 1001, "congested"),
        ("uncongested", 1000, "uncongested"),
        ("congested", 1000, "congested"),
        ("congested", 951, "congested"),
        ("congested", 950, "uncongested"),
        ("overloaded", 990, "uncongested"),
        (None, 990, "uncongested"),
    ],
)
@pytest.mark.parametrize("policy", ["demand-capped", "nash", "market"])
def test_hysteresis_holds_the_label_only(
    previous: str | None, need: int, label: str, policy: str
) -> None:
    """Inside the band a congested label stays, but everybody gets the whole need all the same."""
    before = CpuMode(previous) if previous else None
    plan = cleared(1000, pod("a", 100, need), policy=policy, previous_mode=before)
    assert plan.mode == label
    assert plan.allocations == {"a": min(need, 1000)}
    if need <= 1000:
        assert plan.shadow_price == 0


def test_prices() -> None:
    """lambda is 1/t; null at t = 0, when overloaded, and congested under demand-capped."""
    tight = pod("a", 100, 900), pod("b", 100, 900)
    assert cleared(200, *tight, policy="nash").shadow_price is None
    assert cleared(200, *tight, policy="market").shadow_price is None
    assert cleared(100, *tight, policy="nash").shadow_price is None
    assert cleared(1000, *tight).shadow_price is None
    assert cleared(1000, *tight, policy="market").shadow_price == 200 / 800
    assert cleared(1800, *tight, policy="market").shadow_price == 0.0
    assert cleared(5000, *tight, policy="market").shadow_price == 0.0


def test_a_price_beyond_a_double_is_null() -> None:
    """Weights near the end of the range: the grants are exact, the price cannot be written."""
    pods = pod("a", 0, 10, weight=1.7e308), pod("b", 0, 10, weight=1.7e308)
    plan = cleared(1, *pods, policy="nash")
    assert plan.allocations == {"a": 1, "b": 0}
    assert plan.shadow_price is None


def test_nash_weightless_pods_share_what_is_left() -> None:
    """Weight 0 waits until the others are satisfied, then shares equally."""
    pods = (
        pod("a", 100, 300, weight=5),
        pod("b", 100, 900, weight=0),
        pod("c", 100, 160, weight=0),
    )
    assert cleared(400, *pods, policy="nash").allocations == {"a": 200, "b": 100, "c": 100}
    plan = cleared(601, *pods, policy="nash")
    assert plan.allocations == {"a": 300, "b": 151, "c": 150}
    assert plan.shadow_price == 0.0


def test_market_falls_back_to_weights_then_to_equality() -> None:
    """Nobody bids: by weight; nobody has a weight: equally."""
    idle = [Pod(uid, 100, 2000, 0.0, weight=w) for uid, w in (("a", 3), ("b", 1))]
    assert cleared(1000, *idle, policy="market").allocations == {"a": 700, "b": 300}
    zero = [Pod(uid, 100, 2000, 0.0, weight=0) for uid in ("a", "b")]
    equal = cleared(1001, *zero, policy="market")
    assert equal.allocations == {"a": 501, "b": 500}
    assert equal.shadow_price == 1 / 400.5


def test_market_leaves_the_rest_unused_when_every_bidder_is_capped() -> None:
    """A pod that does not bid gets its minimum, however much is left."""
    pods = Pod("a", 100, 300, 1.0), Pod("b", 100, 900, 0.0)
    plan = cleared(1000, *pods, policy="market")
    assert plan.allocations == {"a": 300, "b": 100}
    assert plan.shadow_price == 0.0


def test_fractional_weights_are_exact() -> None:
    """Thirds and tenths as doubles still add up, at any magnitude."""
    pods = [pod(f"p{i}", 0, 10**12, weight=w) for i, w in enumerate((0.1, 1 / 3, 1e-9))]
    plan = cleared(10**12, *pods, policy="nash")
    assert sum(plan.allocations.values()) == 10**12
    exact = Fraction(0.1) / (Fraction(0.1) + Fraction(1 / 3) + Fraction(1e-9)) * 10**12
    assert plan.allocations["p0"] in (int(exact), int(exact) + 1)


def test_bounds_are_kept() -> None:
    """An upper bound holds even when there is plenty; what it frees goes to the others' need."""
    held = pod("a", 100, 900, lower_millicores=250, upper_millicores=250)
    plan = cleared(1000, held, pod("b", 100, 900))
    assert plan.allocations == {"a": 250, "b": 750}
    assert plan.needs == {"a": 900, "b": 900}


@pytest.mark.parametrize("policy", Policy)
def test_a_bound_that_does_not_bind_changes_nothing(policy: Policy) -> None:
    """Bounds are constraints, not new minimums: shares rise from the minimum all the same."""
    free = cleared(1000, pod("a", 100, 900), pod("b", 100, 700), policy=policy)
    x = free.allocations["a"]
    loose = pod("a", 100, 900, lower_millicores=x, upper_millicores=x + 1)
    assert cleared(1000, loose, pod("b", 100, 700), policy=policy).allocations == free.allocations


def test_weightless_pods_rise_from_the_minimum_too() -> None:
    """Under nash, a lower bound counts towards the equal share; it is not added to it."""
    pods = (
        pod("a", 0, 100, weight=1),
        pod("b", 0, 900, weight=0, lower_millicores=200),
        pod("c", 0, 900, weight=0),
    )
    assert cleared(700, *pods, policy="nash").allocations == {"a": 100, "b": 300, "c": 300}


def test_a_lower_bound_given_up_in_overload_is_said() -> None:
    """Not even the minimums fit: whoever had a lower bound above its grant is told."""
    plan = cleared(100, pod("a", 100, 900, lower_millicores=300), pod("b", 100, 900))
    assert plan.mode is CpuMode.OVERLOADED
    assert [len(plan.reasons[uid]) for uid in ("a", "b")] == [2, 1]


def test_bids_are_exact_products() -> None:
    """100 x 0.7 is a hair below 140 x 0.5 in doubles; the leftover follows the larger bid."""
    pods = (Pod("a", 0, 900, 0.7, weight=100), Pod("b", 0, 900, 0.5, weight=140))
    assert cleared(101, *pods, policy="market").allocations == {"a": 50, "b": 51}


def test_a_bound_below_the_minimum_counts_as_the_minimum() -> None:
    """Where a step bound would fall below the minimum, the minimum wins."""
    plan = cleared(1000, pod("a", 300, 900, lower_millicores=50, upper_millicores=80))
    assert plan.allocations == {"a": 300}


def test_an_upper_bound_beats_a_lower_one() -> None:
    """Contradictory bounds: the ceiling wins, as it does for min and max."""
    plan = cleared(1000, pod("a", 100, 900, lower_millicores=700, upper_millicores=400))
    assert plan.allocations == {"a": 400}


def test_lower_bounds_that_do_not_fit_are_relaxed() -> None:
    """l := m + (l - m)*s with Σ = C, and only pods whose bound moved say so."""
    plan = cleared(
        1000,
        pod("a", 100, 900, lower_millicores=900),
        pod("b", 100, 900, lower_millicores=500),
        pod("c", 100, 900),
    )
    assert plan.allocations == {"a": 567, "b": 333, "c": 100}
    relaxed = [uid for uid, reasons in plan.reasons.items() if "guardrail-relaxed" in reasons]
    assert relaxed == ["a", "b"]


def test_relaxing_that_moves_nothing_is_not_a_reason() -> None:
    """A bound that rounding gives back in full was not relaxed."""
    pods = [pod(f"p{i}", 0, 10, lower_millicores=1) for i in range(3)]
    plan = cleared(2, *pods)
    assert plan.allocations == {"p0": 1, "p1": 1, "p2": 0}
    assert [len(plan.reasons[uid]) for uid in ("p0", "p1", "p2")] == [1, 1, 2]


def test_reduction_ratio_is_literal() -> None:
    """(need - x)/(need - m): 0.5 when half the surplus is cut, 0 when need = m."""
    plan = cleared(600, pod("a", 100, 900), pod("b", 100, 100))
    assert plan.reduction_ratio == {"a": 0.5, "b": 0.0}


def test_uids_compare_by_code_point() -> None:
    """U+FFFD sorts before U+1F600, although UTF-16 would say otherwise."""
    pods = pod("\U0001f600", 0, 10), pod("\ufffd", 0, 10)
    assert cleared(1, *pods).allocations == {"\ufffd": 1, "\U0001f600": 0}


@pytest.mark.interpreted
def test_a_broken_promise_stops_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """`require` is always on: arithmetic that lost a millicore does not get out."""
    lossy = lambda total, claims: [c.low for c in claims]  # noqa: E731
    monkeypatch.setattr(market_module, "fill_grants", lossy)
    with pytest.raises(InvariantBroken, match="handed out whole"):
        cleared(1000, pod("a", 100, 900), pod("b", 100, 900))
