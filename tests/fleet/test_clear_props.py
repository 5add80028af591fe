"""Properties of a fleet's clearing, on small fleets that shrink to readable counterexamples."""

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.cpu import CpuMode, Pod, Policy, Snapshot
from fairlead.fleet import FleetSnapshot, clear_fleet
from tests.fleet.fleets import both_ways

sizes = st.one_of(st.integers(0, 30), st.integers(0, 5_000), st.integers(0, 10**12))
maybe_sizes = st.none() | sizes
# Few different values, so that ties and whole shares are common.
demands = st.sampled_from((0.0, 0.1, 0.3, 0.5, 0.7, 1.0)) | st.floats(0, 1)
weights = st.none() | st.sampled_from((0.0, 0.1, 1.0, 2.0, 3.0)) | st.floats(0, 1e6)
pods = st.builds(
    Pod,
    uid=st.text(min_size=1, max_size=3),
    min_millicores=sizes,
    max_millicores=sizes,
    demand=demands,
    weight=weights,
    usage_millicores=maybe_sizes,
    current_millicores=maybe_sizes,
    headroom_misses=st.integers(0, 5),
    signal_ok=st.booleans(),
    lower_millicores=maybe_sizes,
    upper_millicores=maybe_sizes,
)
snapshots = st.builds(
    Snapshot,
    capacity_millicores=sizes,
    pods=st.lists(pods, max_size=8, unique_by=lambda pod: pod.uid).map(tuple),
    policy=st.sampled_from(Policy),
    previous_mode=st.none() | st.sampled_from(CpuMode),
    hysteresis_band=st.floats(0, 1),
)


@given(st.lists(snapshots, max_size=6))
def test_bit_equal_to_core(fleet: list[Snapshot]) -> None:
    """Whatever core accepts, the fleet path answers with the same bits."""
    both_ways(fleet)


@given(st.lists(pods, min_size=2, max_size=8, unique_by=lambda pod: pod.uid), st.data())
def test_bit_equal_where_capacity_binds(members: list[Pod], data: st.DataObject) -> None:
    """The same with the capacity between Σ minimums and Σ maximums, where policies differ."""
    low = min(sum(pod.floor_millicores for pod in members), 10**12)
    high = min(sum(pod.max_millicores for pod in members), 10**12)
    capacity = data.draw(st.integers(low, high))
    both_ways([Snapshot(capacity, tuple(members), policy) for policy in Policy])


@given(st.lists(snapshots, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_order_of_pods_and_nodes_never_matters(fleet: list[Snapshot], rng: random.Random) -> None:
    """Shuffle the pods of every node and the nodes of the fleet: each node's plan stays."""
    plans = clear_fleet(FleetSnapshot.from_snapshots(fleet)).to_plans()
    order = rng.sample(range(len(fleet)), len(fleet))
    shuffled = [
        replace(fleet[index], pods=tuple(rng.sample(fleet[index].pods, len(fleet[index].pods))))
        for index in order
    ]
    again = clear_fleet(FleetSnapshot.from_snapshots(shuffled)).to_plans()
    assert again == [plans[index] for index in order]
