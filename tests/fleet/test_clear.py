"""Clearing a fleet: the promise of bit equality, case by case, and the fallback that keeps it."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from fairlead.core.cpu import CpuMode, Pod, Policy, Snapshot, clear
from fairlead.core.invariant import InvariantBroken
from fairlead.fleet import FleetSnapshot, clear_fleet, table
from fairlead.fleet import clear as fleet_clear
from fairlead.fleet.fill import FillPlan
from tests.fleet.fleets import both_ways, everyday_fleet, hostile_fleet, one

HUGE = 10**12


@pytest.mark.parametrize("policy", Policy)
def test_hostile_fleets_are_bit_equal(policy: Policy) -> None:
    """Sizes to 10^12, absurd weights, bounds, no signals, 0 to 40 pods: every bit as in core."""
    plan = both_ways(hostile_fleet(random.Random(f"hostile {policy}"), policy, 1_500))
    assert set(plan.mode.tolist()) == {0, 1, 2}, "all modes are met"


@pytest.mark.parametrize("policy", Policy)
def test_everyday_fleets_are_bit_equal_and_hardly_fall_back(policy: Policy) -> None:
    """Guardrails, priorities, 55 to 110 pods: every bit as in core, under 1 % handed back."""
    plan = both_ways(everyday_fleet(random.Random(f"everyday {policy}"), policy, 150, 110))
    assert plan.fallbacks <= 1


def test_policies_may_be_mixed() -> None:
    """One call, nodes of all three policies, sizes from none to hundreds of pods."""
    rng = random.Random("mixed")
    fleet = [
        snapshot
        for policy in Policy
        for pods in (0, 1, 5, 40, 300)
        for snapshot in everyday_fleet(rng, policy, 3, pods)
    ]
    rng.shuffle(fleet)
    both_ways(fleet)


@pytest.mark.parametrize("policy", Policy)
def test_sizes_of_a_trillion_do_not_overflow(policy: Policy) -> None:
    """Products of 10^12 and 10^12 pass int64; the answer is exact all the same."""
    pods = tuple(
        Pod(f"p{i}", 10**11 + i, HUGE - i, 0.9 - i / 100, weight=float(HUGE - 7 * i))
        for i in range(30)
    )
    for capacity in (HUGE, HUGE - 1, 10**11):
        both_ways([Snapshot(capacity, pods[:count], policy) for count in (1, 2, 9, 30)])


@pytest.mark.parametrize("policy", Policy)
def test_empty_nodes_are_uncongested(policy: Policy) -> None:
    """No pods: nothing to hand out, nothing scarce, with or without other nodes around."""
    empty = Snapshot(1000, (), policy, previous_mode=CpuMode.CONGESTED)
    both_ways([])
    assert one(both_ways([empty])).mode is CpuMode.UNCONGESTED
    both_ways([empty, Snapshot(500, (Pod("a", 100, 900, 0.7),), policy), empty])


@pytest.mark.parametrize("policy", Policy)
@pytest.mark.parametrize("capacity", [0, 5, 100, 101, 350, 900, 2000])
def test_a_single_pod(policy: Policy, capacity: int) -> None:
    """Alone on a node, with an awkward weight: its share is a whole number, and known to be."""
    pod = Pod("a", 100, 900, 0.7, weight=1 / 3)
    assert both_ways([Snapshot(capacity, (pod,), policy)]).fallbacks == 0


@pytest.mark.parametrize("policy", Policy)
def test_replicas_tie_by_uid(policy: Policy) -> None:
    """Equal pods of awkward bids: leftovers go to the lower uids, without asking core."""
    pods = tuple(Pod(f"p{i}", 100, 701, 0.3, weight=0.1) for i in range(7))
    plan = both_ways([Snapshot(capacity, pods, policy) for capacity in range(700, 4_000, 37)])
    assert plan.fallbacks == 0


def test_zero_weights_share_what_others_leave() -> None:
    """Under nash weight 0 comes last; under market no weight at all means equally."""
    pods = tuple(Pod(f"p{i}", 100, 900, 1.0, weight=float(i > 3)) for i in range(6))
    idle = tuple(replace(pod, weight=0.0) for pod in pods)
    silent = tuple(replace(pod, demand=0.0) for pod in pods)
    fleet = [
        Snapshot(capacity, choice, policy)
        for policy in Policy
        for choice in (pods, idle, silent)
        for capacity in (600, 1_000, 2_200, 2_203, 4_999, 5_400, 9_000)
    ]
    both_ways(fleet)


def test_lower_bounds_that_do_not_fit_are_relaxed() -> None:
    """Σ lower bounds above capacity, minimums below: lowered as core lowers them, and said so."""
    pods = tuple(Pod(f"p{i}", 100, 900, 0.5, lower_millicores=400 + i) for i in range(9))
    plan = both_ways(
        [Snapshot(capacity, pods, policy) for capacity in (901, 2_000, 3_600) for policy in Policy]
    )
    assert "guardrail-relaxed" in plan.node(0).reasons["p0"]


def test_bounds_on_both_sides_of_the_level() -> None:
    """Some held up, some stopped, the level in between, or on a plateau where nobody rises."""
    held = tuple(Pod(f"h{i}", 10, 5_000, 0.9, lower_millicores=2_000 + i) for i in range(5))
    stopped = tuple(Pod(f"s{i}", 10, 5_000, 0.9, upper_millicores=300 + i) for i in range(5))
    total = sum(2_000 + i for i in range(5)) + sum(300 + i for i in range(5))
    fleet = [
        Snapshot(capacity, held + stopped, policy)
        for policy in Policy
        for capacity in (total - 700, total - 1, total, total + 1, total + 5_000)
    ]
    both_ways(fleet)


def test_hysteresis_moves_the_label_only() -> None:
    """Inside the band a congested label stays, per node, and the grants are the needs."""
    pods = (Pod("a", 100, 500, 1.0), Pod("b", 100, 480, 1.0))
    fleet = [Snapshot(1000, pods, previous_mode=mode) for mode in (None, *CpuMode)]
    modes = [plan.mode for plan in both_ways(fleet).to_plans()]
    assert modes.count(CpuMode.CONGESTED) == 1


def test_idle_pods_leave_dust_not_fallbacks() -> None:
    """Demands that decayed to 1e-100 beside one busy pod: core's answer without core's help."""
    busy = Pod("busy", 100, 4_000, 0.9)
    dust = tuple(Pod(f"idle{i}", 100, 4_000, 0.9 ** (2_000 + 200 * i)) for i in range(5))
    plan = both_ways([Snapshot(c, (busy, *dust), Policy.MARKET) for c in range(700, 1_900, 7)])
    assert plan.fallbacks == 0


def test_shares_too_close_to_call_are_cleared_by_core_and_counted() -> None:
    """Bids in the ratio 1:2:3 with 106 bits each: whole shares, which no rounding can prove."""
    pods = tuple(Pod(f"p{i}", 100, 4_000, 0.3, weight=i * 0.7) for i in (1, 2, 4))
    tight = Snapshot(1_000, pods, Policy.MARKET)
    easy = Snapshot(1_003, pods, Policy.MARKET)
    plan = both_ways([easy, tight, easy])
    assert plan.fallback.tolist() == [False, True, False]
    assert plan.fallbacks == 1


def test_remainders_too_close_to_call_are_cleared_by_core() -> None:
    """Odd multiples of one long bid over an odd multiple of their sum's half: all fractions 1/2.

    The keys differ only by rounding noise, or by the last bit of one demand.
    """
    fleet = []
    for rounds in range(40):
        for nudge in (0.3, math.nextafter(0.3, 1)):
            weights = [k * (1 + 2.0**-30) for k in (7, 1, 5, 3)]
            pods = tuple(Pod(f"p{i}", 0, 10**6, 0.3, weight=w) for i, w in enumerate(weights))
            pods = (replace(pods[0], demand=nudge), *pods[1:])
            fleet.append(Snapshot(16 * (3 * rounds + 1) + 8, pods, Policy.MARKET))
    plan = both_ways(fleet)
    assert plan.fallbacks > 20


def test_dust_decides_ties() -> None:
    """Two equal fractions, and a bid of 1e-100 that takes a little more from the larger claim."""
    heavy, light = Pod("a", 0, 10**6, 1.0, weight=3.0), Pod("b", 0, 10**6, 1.0, weight=1.0)
    dust = Pod("c", 0, 10**6, 1e-100, weight=1.0)
    without, with_dust = (
        Snapshot(42, pods, Policy.MARKET) for pods in ((heavy, light), (heavy, light, dust))
    )
    plan = both_ways([without, with_dust])
    assert plan.fallback.tolist() == [False, True]
    assert [node.allocations["a"] for node in plan.to_plans()] == [32, 31]


def test_weights_beyond_every_range_fall_back() -> None:
    """1e300 beside 5e-324, and products that vanish: not sure, so core decides."""
    pods = Pod("a", 10, 900, 0.5, weight=1e300), Pod("b", 10, 900, 5e-324, weight=1e-9)
    plan = both_ways([Snapshot(500, pods, policy) for policy in (Policy.MARKET, Policy.NASH)])
    assert plan.fallbacks == 2
    alone = Pod("a", 4, 24, 0.47, weight=1e308)
    assert both_ways([Snapshot(22, (alone,), Policy.MARKET)]).fallbacks == 1


def test_a_node_too_large_for_a_table_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """More pods than the proofs allow: cleared by core, counted, the others unharmed."""
    monkeypatch.setattr(table, "PODS_MAX", 20)
    fleet = everyday_fleet(random.Random("large"), Policy.NASH, 20, 30)
    plan = both_ways(fleet)
    assert plan.fallback.tolist() == [len(snapshot.pods) > 20 for snapshot in fleet]


@pytest.mark.parametrize("cells", [1, 64, 1_000])
def test_tables_of_any_size_agree(cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """How a fleet is cut into tables changes nothing."""
    monkeypatch.setattr(table, "CELLS_MAX", cells)
    rng = random.Random("cells")
    both_ways([node for size in (1, 3, 20) for node in everyday_fleet(rng, Policy.NASH, 9, size)])


@pytest.mark.parametrize("policy", Policy)
def test_sums_beyond_the_doubles_are_cleared_by_core(policy: Policy) -> None:
    """10 000 pods of 10^12: their sum is no double any more, so core decides."""
    pods = tuple(Pod(f"p{i:05d}", 1, HUGE - i, 0.5) for i in range(10_000))
    small = Snapshot(30_000, pods[:9], policy)
    plan = both_ways([Snapshot(HUGE, pods, policy), small])
    assert plan.fallback.tolist() == [True, False]


def test_the_snapshot_is_left_alone() -> None:
    """Clearing writes into its own columns: twice the same columns give twice the same plan."""
    fleet = FleetSnapshot.from_snapshots(everyday_fleet(random.Random(7), Policy.MARKET, 9, 30))
    first, again = clear_fleet(fleet), clear_fleet(fleet)
    assert np.array_equal(first.allocations, again.allocations)
    assert np.array_equal(first.shadow_price, again.shadow_price, equal_nan=True)


def test_a_broken_promise_stops_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The invariants are always on: a grant above the capacity is a bug, not a result."""
    snapshot = Snapshot(1_000, tuple(Pod(f"p{i}", 100, 900, 1.0) for i in range(3)))
    monkeypatch.setattr(
        fleet_clear,
        "fill",
        lambda fills, unpriced: FillPlan(
            fills.most, np.zeros(unpriced), np.ones(unpriced, dtype=bool)
        ),
    )
    with pytest.raises(InvariantBroken, match="INV-2"):
        clear_fleet(FleetSnapshot.from_snapshots([snapshot]))
    assert sum(clear(snapshot).allocations.values()) == 1_000
