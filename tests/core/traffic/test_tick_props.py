"""Properties of every tick, on random lives of groups: hostile signals, comings and goings."""

import os
import random
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.canonical import canonical
from fairlead.core.reasons import TrafficReason
from fairlead.core.traffic import AdmissionMode, Regime, Snapshot, TickPlan, tick
from fairlead.core.traffic.slots import hand_over, slew, step_limit, target_slots
from fairlead.schema.border import read_document
from fairlead.schema.traffic import TickDocument, from_plan, from_snapshot, to_snapshot
from tests.core.traffic.groups import Group
from tests.core.traffic.walks import walk

ROOT = Path(__file__).resolve().parents[3]
LIVES = 60
TICKS = 60
seeds = pytest.mark.parametrize("seed", range(LIVES))


def before(snapshot: Snapshot) -> dict[str, int]:
    """Slots in force before the tick."""
    memories = () if snapshot.state is None else snapshot.state.backends
    return {memory.id: memory.slots for memory in memories}


@seeds
def test_every_tick_keeps_its_promises(seed: int) -> None:
    """Σ slots, slew, never away from the target, doors, regimes and reasons."""
    was: TickPlan | None = None
    for snapshot, plan in walk(random.Random(seed), TICKS):
        check_slots(snapshot, plan)
        check_reasons(plan, was)
        check_door(plan, was)
        was = plan


def check_slots(snapshot: Snapshot, plan: TickPlan) -> None:
    total = snapshot.config.s_total if snapshot.backends else 0
    assert sum(plan.slots.values()) == sum(plan.target.values()) == total
    assert min(plan.slots.values(), default=0) >= 0
    routable = [b.id for b in snapshot.backends if not b.isolated]
    assert sum(plan.weights.values()) == pytest.approx(1.0 if routable else 0.0)
    for b in snapshot.backends:
        if b.isolated and routable:
            assert plan.slots[b.id] == plan.weights[b.id] == plan.target[b.id] == 0
    if snapshot.state is None or plan.bypass:
        return
    crisis = plan.regime is Regime.CRISIS
    limit = step_limit(snapshot.config, crisis=crisis, halvings=0)
    old = before(snapshot)
    for name, slots in plan.slots.items():
        moved, gap = slots - old.get(name, 0), plan.target[name] - old.get(name, 0)
        assert abs(moved) <= limit
        assert moved == 0 or (moved > 0) == (gap > 0)
        assert abs(moved) <= abs(gap)


def check_reasons(plan: TickPlan, was: TickPlan | None) -> None:
    order = [list(TrafficReason).index(reason) for reason in plan.reasons]
    assert order == sorted(order)
    assert 1 <= len(set(plan.reasons)) == len(plan.reasons) <= 2
    if was is not None and any(plan.slots[n] != was.slots.get(n, 0) for n in plan.slots):
        assert TrafficReason.STEADY not in plan.reasons
        assert plan.applied
    assert not {TrafficReason.FAILSAFE, TrafficReason.FULL} & set(plan.reasons)


def check_door(plan: TickPlan, was: TickPlan | None) -> None:
    mode, last = plan.admission.mode, AdmissionMode.NORMAL if was is None else was.admission.mode
    assert mode.level >= last.level - 1
    if mode.level < last.level and was is not None and not plan.bypass:
        assert plan.slots == was.slots or set(plan.slots) != set(was.slots)
    assert (mode is AdmissionMode.HARD) == (plan.regime is Regime.CRISIS)
    assert (mode is AdmissionMode.NORMAL) == (plan.regime is Regime.LAMINAR)
    assert (plan.admission.rate_per_s is None) == (mode is AdmissionMode.NORMAL)


@seeds
def test_a_state_through_json_changes_nothing(seed: int) -> None:
    """Every tick is the same from its recorded document, byte for byte."""
    for snapshot, plan in walk(random.Random(seed), 25):
        document = canonical(from_snapshot(snapshot))
        again = tick(to_snapshot(read_document(document, TickDocument)))
        assert canonical(from_plan(again)) == canonical(from_plan(plan))


@seeds
def test_the_order_of_the_lists_never_matters(seed: int) -> None:
    """Backends, nodes and resources in any order give the same bytes."""
    rng = random.Random(f"order {seed}")
    for snapshot, plan in walk(random.Random(seed), 25):
        nodes = [replace(n, resources=n.resources[::-1]) for n in snapshot.nodes]
        shuffled = replace(
            snapshot,
            backends=tuple(rng.sample(snapshot.backends, len(snapshot.backends))),
            nodes=tuple(nodes[::-1]),
        )
        assert repr(tick(shuffled)) == repr(plan)


@pytest.mark.parametrize("seed", range(5))
def test_noise_does_not_make_the_door_flap(seed: int) -> None:
    """Retries that flicker around their threshold: at most two transitions in a minute."""
    rng = random.Random(seed)
    group, modes = Group("a", "b", "c", "d"), []
    for _ in range(5 * 60):
        group.retry_index = rng.uniform(0.3, 0.7)
        group.every(p95_ms=rng.uniform(30, 60), requests=rng.randint(100, 300))
        modes.append(group.step().admission.mode)
    assert sum(a != b for a, b in pairwise(modes)) <= 2


@pytest.mark.parametrize("seed", range(5))
def test_noise_moves_few_slots(seed: int) -> None:
    """Latencies that flicker by a tenth stay inside the gate."""
    rng = random.Random(seed)
    group = Group("a", "b", "c", "d")
    group.follow = True
    applied = 0
    for _ in range(5 * 60):
        for name in group.backends:
            group.set(name, p95_ms=rng.uniform(38, 42))
        applied += group.step().applied
    assert applied <= 3


shares = st.lists(st.integers(0, 1_000), min_size=1, max_size=12)


@given(shares, shares, st.integers(1, 300))
def test_slew_keeps_the_sum_and_never_overshoots(
    old: list[int], new: list[int], limit: int
) -> None:
    """For any two divisions of the same total."""
    size = min(len(old), len(new))
    slots = target_slots(256, divided(old[:size]))
    target = target_slots(256, divided(new[:size]))
    after = slew(slots, target, limit)
    assert sum(after) == sum(slots)
    for s, t, a in zip(slots, target, after, strict=True):
        assert min(s, t) <= a <= max(s, t)
        assert abs(a - s) <= limit
    if slots != target:
        assert after != slots


@given(shares, shares, st.integers(0, 11))
def test_handing_over_moves_only_what_is_freed(old: list[int], new: list[int], who: int) -> None:
    """Nobody but the freed loses, nobody gains beyond its target."""
    size = min(len(old), len(new))
    freed = [index == who % size for index in range(size)]
    weights = [0 if free else weight for weight, free in zip(new[:size], freed, strict=True)]
    if not any(weights):
        return
    slots, target = target_slots(256, divided(old[:size])), target_slots(256, divided(weights))
    after = hand_over(slots, target, freed)
    assert sum(after) == sum(slots)
    for s, t, a, free in zip(slots, target, after, freed, strict=True):
        assert a == 0 if free else s <= a <= max(s, t)


def divided(weights: list[int]) -> list[float]:
    total = sum(weights)
    return [w / total for w in weights] if total else [1 / len(weights)] * len(weights)


@given(st.lists(st.floats(1e-9, 1.0), min_size=1, max_size=20), st.integers(1, 2_000))
def test_targets_add_up_and_are_within_one_slot(parts: list[float], total: int) -> None:
    """Largest remainder: Σ = S, nobody a whole slot off."""
    whole = sum(parts)
    wanted = [part / whole for part in parts]
    target = target_slots(total, wanted)
    assert sum(target) == total
    for share, slots in zip(wanted, target, strict=True):
        assert abs(slots - share * total) < 1 + 1e-6


SCRIPT = """
import random
from fairlead.core.canonical import digest
from fairlead.schema.traffic import from_plan
from tests.core.traffic.walks import walk
print(digest([from_plan(plan) for _, plan in walk(random.Random("fixed"), 40)]))
"""


def test_the_same_life_gives_the_same_bytes_in_every_process() -> None:
    """No hash seed, no clock, no chance."""
    digests = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "77")
    }
    assert len(digests) == 1
