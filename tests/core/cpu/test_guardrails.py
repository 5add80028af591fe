"""Guardrails are bounds: movement is limited before clearing, and the sum still fits."""

import random
from dataclasses import replace

import pytest

from fairlead.core.cpu import Guardrails, Pod, PodHistory, Policy, Snapshot, clear, clear_guarded
from tests.core.cpu import cases

OLD = PodHistory(first_seen_ms=0, changed_ms=0)
NOW = 1_000_000


def grant(pod: Pod, history: PodHistory | None = OLD, capacity: int = 10_000) -> int:
    histories = {} if history is None else {pod.uid: history}
    guarded = clear_guarded(Snapshot(capacity, (pod,)), histories, Guardrails(), now_ms=NOW)
    return guarded.plan.allocations[pod.uid]


def test_a_step_is_at_most_twofold() -> None:
    """Up to twice, down to half, never more than 2000m at a time."""
    assert grant(Pod("a", 100, 9000, 1.0, current_millicores=300)) == 600
    assert grant(Pod("a", 100, 9000, 0.0, current_millicores=1001)) == 501
    assert grant(Pod("a", 100, 9000, 1.0, current_millicores=3000)) == 5000
    assert grant(Pod("a", 100, 9000, 0.0, current_millicores=8000)) == 6000


def test_cooldown_holds() -> None:
    """Within 10 s of a change nothing moves."""
    recent = PodHistory(first_seen_ms=0, changed_ms=NOW - 9_999)
    due = PodHistory(first_seen_ms=0, changed_ms=NOW - 10_000)
    assert grant(Pod("a", 100, 9000, 1.0, current_millicores=300), recent) == 300
    assert grant(Pod("a", 100, 9000, 1.0, current_millicores=300), due) == 600


def test_dead_band_holds() -> None:
    """A target within 2 % is not worth a write."""
    need = clear(Snapshot(10_000, (Pod("a", 100, 900, 0.5),))).allocations["a"]
    near = Pod("a", 100, 900, 0.5, current_millicores=need + need // 60)
    assert grant(near) == near.current_millicores
    assert grant(replace(near, current_millicores=need + need // 40)) == need


def test_grace_never_lowers_a_young_pod() -> None:
    """Start-up says little about the steady need: raise, do not cut."""
    young = PodHistory(first_seen_ms=NOW - 44_999)
    assert grant(Pod("a", 100, 9000, 0.0, current_millicores=1000), young) == 1000
    assert grant(Pod("a", 100, 9000, 1.0, current_millicores=1000), young) == 2000


def test_grace_takes_only_what_nobody_needs() -> None:
    """An idle newcomer with a large limit does not starve the pods that were there."""
    young = PodHistory(first_seen_ms=NOW - 1000, adopted=False)
    pods = (
        Pod("new", 100, 6000, 0.0, current_millicores=6000),
        Pod("old", 100, 4000, 0.6, current_millicores=2000),
    )
    histories = {"new": young, "old": OLD}
    roomy = clear_guarded(Snapshot(9000, pods), histories, Guardrails(), now_ms=NOW)
    assert roomy.plan.allocations["new"] == 6000
    tight = clear_guarded(Snapshot(4000, pods), histories, Guardrails(), now_ms=NOW)
    need = tight.free.allocations["old"]
    assert need > 2500
    assert tight.plan.allocations["old"] == need
    assert sum(tight.plan.allocations.values()) == 4000


def test_a_newly_found_pod_keeps_its_limit_while_nobody_needs_it() -> None:
    """However old: its first cut comes only when the capacity is wanted, and then at once."""
    found = PodHistory(first_seen_ms=0, adopted=False)
    assert grant(Pod("a", 100, 6000, 0.0, current_millicores=6000), found) == 6000
    assert grant(Pod("a", 100, 6000, 0.0, current_millicores=6000), found, capacity=3000) == 3000
    assert grant(Pod("a", 100, 6000, 1.0, current_millicores=300), found) == 6000


def test_unknown_pods_are_free_to_move() -> None:
    """A pod without history or current grant goes straight to its need."""
    assert grant(Pod("a", 100, 9000, 1.0, current_millicores=300), None) == 9000
    assert grant(Pod("a", 100, 9000, 1.0)) == 9000


def test_the_minimum_beats_the_step() -> None:
    """A pod below its minimum is lifted to it at once, whatever the step says."""
    assert grant(Pod("a", 500, 9000, 1.0, current_millicores=10)) == 500
    assert grant(Pod("a", 500, 9000, 1.0, current_millicores=0)) == 500


def test_an_idle_guardrail_does_not_bend_the_shares() -> None:
    """At the fair division, lower bounds that do not bind leave it alone."""
    pods = (
        Pod("a", 100, 900, 1.0, weight=3, current_millicores=700),
        Pod("b", 100, 900, 1.0, weight=1, current_millicores=250),
        Pod("c", 100, 900, 1.0, weight=0, current_millicores=100),
    )
    free = Snapshot(1100, pods, Policy.NASH)
    histories = {pod.uid: OLD for pod in pods}
    plan = clear_guarded(free, histories, Guardrails(), now_ms=NOW).plan
    assert plan.allocations == clear(free).allocations == {"a": 700, "b": 300, "c": 100}


def test_those_who_cannot_fall_faster_are_paid_by_the_others() -> None:
    """A pod pinned to its step takes from the rest, and the sum is still the capacity."""
    pods = (
        Pod("big", 100, 4000, 0.2, current_millicores=3000),
        Pod("new", 100, 4000, 1.0, current_millicores=1000),
    )
    histories = {pod.uid: OLD for pod in pods}
    guarded = clear_guarded(Snapshot(2500, pods), histories, Guardrails(), now_ms=NOW)
    bounded, plan = guarded.snapshot, guarded.plan
    assert plan.allocations == {"big": 1500, "new": 1000}
    assert clear(bounded) == plan


def test_guarded_clearings_keep_every_promise() -> None:
    """1 000 random worlds: Σ fits, bounds hold unless relaxed, and the record replays."""
    for case in range(1000):
        rng = random.Random(f"guardrails/{case}")
        snapshot = cases.random_snapshot(rng, rng.choice(list(Policy)))
        pods = tuple(
            replace(pod, lower_millicores=None, upper_millicores=None) for pod in snapshot.pods
        )
        snapshot = replace(snapshot, pods=pods)
        histories = {
            pod.uid: PodHistory(NOW - rng.randint(0, 90_000), NOW - rng.randint(0, 20_000))
            for pod in pods
            if rng.random() < 0.8
        }
        bounded, plan, free = clear_guarded(snapshot, histories, Guardrails(), now_ms=NOW)
        cases.judge(bounded, plan)
        assert free == clear(snapshot)
        assert clear(bounded) == plan


@pytest.mark.parametrize(
    "fields",
    [{"step_ratio": 0.5}, {"cooldown_ms": -1}, {"dead_band": 1.5}, {"step_millicores": True}],
)
def test_guardrails_check_themselves(fields: dict[str, float]) -> None:
    """A step below 1, a negative time, a band beyond 1."""
    with pytest.raises(ValueError, match=next(iter(fields))):
        Guardrails(**fields)  # type: ignore[arg-type]
