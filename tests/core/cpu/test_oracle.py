"""The core agrees with an implementation that shares nothing with it but the specification."""

import random

import pytest

from fairlead.core.canonical import canonical
from fairlead.core.cpu import Policy, allocate, clear
from fairlead.schema.cpu import from_plan, from_snapshot
from tests.core.cpu import cases, oracle

SAMPLE = 700  # `make soak` compares 100 000 per policy


def compare(policy: Policy, count: int, seed: int) -> None:
    """Canonical bytes of both results, case by case."""
    for case in range(count):
        snapshot = cases.random_snapshot(random.Random(f"{seed}/{policy}/{case}"), policy)
        ours = from_plan(clear(snapshot))
        theirs = oracle.decide(from_snapshot(snapshot))
        assert canonical(ours) == canonical(theirs), f"case {case}"


@pytest.mark.parametrize("policy", Policy)
def test_same_bytes_as_the_independent_implementation(policy: Policy) -> None:
    """Grants, needs, modes, prices, ratios and reasons on random and hostile clearings."""
    compare(policy, SAMPLE, seed=7)


def compare_nodes(policy: Policy, count: int, seed: int) -> None:
    """The same for `cpu.allocate`: bounds, grants, split, writes and memory."""
    for case in range(count):
        snapshot = cases.random_node(random.Random(f"{seed}/{policy}/{case}"), policy)
        ours = from_plan(allocate(snapshot))
        theirs = oracle.allocate(from_snapshot(snapshot))
        assert canonical(ours) == canonical(theirs), f"case {case}"


@pytest.mark.parametrize("policy", Policy)
def test_allocate_gives_the_bytes_of_the_independent_implementation(policy: Policy) -> None:
    """Whole decisions on random and hostile nodes, memories and guardrails."""
    compare_nodes(policy, SAMPLE, seed=11)
