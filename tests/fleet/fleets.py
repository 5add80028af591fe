"""Fleets to clear both ways, and the judge that compares every bit."""

import random
from collections.abc import Sequence

from fairlead.core.cpu import CpuMode, Headroom, Plan, Pod, Policy, Snapshot, clear
from fairlead.fleet import FleetPlan, FleetSnapshot, clear_fleet
from tests.core.cpu import cases


def both_ways(snapshots: Sequence[Snapshot]) -> FleetPlan:
    """Clear the fleet in one call and node by node; every bit is the same."""
    plan = clear_fleet(FleetSnapshot.from_snapshots(snapshots))
    for snapshot, ours in zip(snapshots, plan.to_plans(), strict=True):
        theirs = clear(snapshot)
        # repr tells 0.0 from -0.0 and shows dictionaries in their order; == does not.
        assert repr(ours) == repr(theirs), f"{snapshot}\nfleet {ours}\ncore  {theirs}"
    return plan


def hostile_fleet(rng: random.Random, policy: Policy, nodes: int) -> list[Snapshot]:
    """Sizes to 10^12, weights from 5e-324 to 1e300, missing signals, bounds, max below min."""
    return [cases.random_snapshot(rng, policy) for _ in range(nodes)]


def everyday_fleet(rng: random.Random, policy: Policy, nodes: int, pods: int) -> list[Snapshot]:
    """Nodes as they are: up to `pods` pods, priorities, guardrails, some signals missing."""
    return [_node(rng, policy, rng.randint(pods // 2, pods)) for _ in range(nodes)]


def _node(rng: random.Random, policy: Policy, count: int) -> Snapshot:
    pods = tuple(_pod(rng, f"pod-{index:04d}") for index in range(count))
    minimums = sum(pod.min_millicores for pod in pods)
    return Snapshot(
        capacity_millicores=int(minimums * rng.choice((0.7, 1.05, 1.5, 2.0, 3.0, 8.0))),
        pods=pods,
        policy=policy,
        previous_mode=rng.choice((None, *CpuMode)),
        headroom=rng.choice((Headroom(), Headroom(0.2, 0.1, 0.05, 0.3))),
    )


def _pod(rng: random.Random, uid: str) -> Pod:
    low = rng.choice((50, 100, 250, rng.randint(10, 1000)))
    current = rng.randint(low, 4 * low)
    guarded = rng.random() < 0.2
    return Pod(
        uid,
        min_millicores=low,
        max_millicores=low * rng.randint(2, 8),
        demand=rng.choice((0.0, 1.0, rng.random(), rng.random())),
        weight=low * rng.choice((1, 1, 1 + 1 / 3, 10)),
        usage_millicores=rng.choice((None, rng.randint(0, 2 * low))),
        current_millicores=current,
        headroom_misses=rng.choice((0, 0, 2)),
        signal_ok=rng.random() < 0.97,
        lower_millicores=current // 2 if guarded else None,
        upper_millicores=current * 2 if guarded else None,
    )


def one(plan: FleetPlan) -> Plan:
    """The plan of a fleet of one node."""
    (only,) = plan.to_plans()
    return only
