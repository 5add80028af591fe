"""Properties of a clearing, named after the invariants of the CPU governor."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.cpu import Policy, clear
from tests.core.cpu import cases

SAMPLE = 1_500  # `make soak` judges 100 000 per policy

snapshots = st.builds(
    lambda seed, policy: cases.random_snapshot(random.Random(seed), policy),
    st.integers(0, 2**64),
    st.sampled_from(Policy),
)


@pytest.mark.parametrize("policy", Policy)
def test_every_invariant_on_random_clearings(policy: Policy) -> None:
    """Σx ≤ C, x ≤ max, m ≤ x ≤ u, INV-3, exact sums, order, KKT, monotone; all modes are met."""
    modes = cases.run_cases(policy, SAMPLE, seed=20260101)
    assert min(modes.values()) > SAMPLE // 20


@given(snapshots)
def test_deterministic(snapshot: cases.Snapshot) -> None:
    """INV-5: the same snapshot gives the same plan."""
    assert clear(snapshot) == clear(snapshot)


@given(snapshots, st.randoms(use_true_random=False))
def test_permutation_invariant(snapshot: cases.Snapshot, rng: random.Random) -> None:
    """The order of the pods never matters."""
    cases.judge_order(snapshot, clear(snapshot), rng)


@given(snapshots)
def test_nash_is_strategy_proof_in_reported_need(snapshot: cases.Snapshot) -> None:
    """Claiming a larger maximum never moves a pod's grant closer to its true need under nash."""
    pods = [p for p in snapshot.pods if p.signal_ok and not p.lower_millicores and p.demand == 1]
    if not pods or snapshot.policy is not Policy.NASH:
        return
    liar = pods[0]
    honest = clear(snapshot).allocations[liar.uid]
    claim = min(liar.max_millicores * 2 + 7, 10**12)
    lie = cases.replace(liar, max_millicores=claim)
    lied = cases.replace(snapshot, pods=(*(p for p in snapshot.pods if p is not liar), lie))
    if clear(snapshot).mode != "overloaded":
        assert min(clear(lied).allocations[liar.uid], liar.max_millicores) <= honest + 1
