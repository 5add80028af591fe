"""Random clearings and the judge of their promises, shared by the sampled tests and the soak."""

import random
from dataclasses import replace
from fractions import Fraction

from fairlead.core.cpu import (
    CpuMode,
    Guardrails,
    Headroom,
    NodeSnapshot,
    Plan,
    Pod,
    Policy,
    Snapshot,
    clear,
)
from fairlead.core.cpu.allocate import Container, GovernedPod
from fairlead.core.cpu.need import estimate_need

SIZES = (0, 1, 9, 10, 11, 50, 100, 101, 250, 999, 1000, 4000, 64_000, 10**9, 10**12)
DEMANDS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0, 5e-324, 1 - 2**-53)
WEIGHTS = (0.0, 1.0, 2.0, 3.0, 100.0, 0.1, 1 / 3, 1e-300, 1e300, 5e-324)


def random_snapshot(rng: random.Random, policy: Policy) -> Snapshot:
    """A clearing of 0 to 40 pods: everyday sizes mostly, hostile ones often enough."""
    hostile = rng.random() < 0.3
    pods = tuple(_pod(rng, index, hostile) for index in range(rng.choice((0, 1, 2, 3, 7, 12, 40))))
    return Snapshot(
        _capacity(rng, pods),
        pods,
        policy,
        rng.choice((None, *CpuMode)),
        rng.choice((0.05, 0.05, 0.0, 1.0, rng.random())),
        rng.choice((Headroom(), Headroom(0.0, 0.0, 0.0, 0.0), Headroom(1.0, 1.0, 1.0, 1.0))),
    )


def random_node(rng: random.Random, policy: Policy) -> NodeSnapshot:
    """The same pods under guardrails, with a memory and containers."""
    free, now_ms = random_snapshot(rng, policy), rng.choice((0, 10**6, 1_700_000_000_000))
    rails = Guardrails(
        cooldown_ms=rng.choice((0, 10_000)),
        step_ratio=rng.choice((1.0, 1.1, 2.0, 1000.0)),
        step_millicores=rng.choice((0, 50, 2_000, 10**12)),
        dead_band=rng.choice((0.0, 0.02, 1.0)),
        grace_ms=rng.choice((0, 45_000)),
        split_band=rng.choice((0.0, 0.10, 1.0)),
    )
    return NodeSnapshot(
        free.capacity_millicores,
        now_ms,
        tuple(_governed(rng, pod, now_ms) for pod in free.pods),
        policy,
        free.previous_mode,
        free.hysteresis_band,
        free.headroom,
        rails,
    )


def _governed(rng: random.Random, pod: Pod, now_ms: int) -> GovernedPod:
    ago = lambda: now_ms - rng.randint(0, 90_000)  # noqa: E731
    return GovernedPod(
        pod.uid,
        pod.min_millicores,
        pod.max_millicores,
        pod.demand,
        first_seen_ms=ago(),
        containers=_containers(rng, pod),
        weight=pod.weight,
        usage_millicores=pod.usage_millicores,
        headroom_misses=pod.headroom_misses,
        signal_ok=pod.signal_ok,
        changed_ms=rng.choice((None, ago(), now_ms - rng.randint(0, 20_000))),
        adopted=rng.random() < 0.7,
        missed_ms=rng.choice((None, ago())),
        throttling=rng.choice((None, 0.0, 0.3, 0.31, rng.random())),
    )


def _containers(rng: random.Random, pod: Pod) -> tuple[Container, ...]:
    count = rng.choice((0, 1, 1, 1, 2, 3))
    names = rng.sample(("app", "sidecar", "é", "\U0001f600"), count) if count > 1 else [""] * count
    limit = lambda: None if rng.random() < 0.1 else rng.randint(0, pod.max_millicores // count)  # noqa: E731
    wants = (0, 1, 200, pod.max_millicores)
    return tuple(Container(name, rng.choice(wants), limit(), limit()) for name in names)


def _size(rng: random.Random, hostile: bool) -> int:
    return rng.choice(SIZES) if hostile else rng.randint(0, 3000)


def _pod(rng: random.Random, index: int, hostile: bool) -> Pod:
    low, high = _size(rng, hostile), _size(rng, hostile)
    if rng.random() < 0.8:
        low, high = min(low, high), max(low, high)
    maybe = lambda: _size(rng, hostile) if rng.random() < 0.3 else None  # noqa: E731
    return Pod(
        # Equal prefixes, astral and plain characters: uids compare by code point.
        uid=rng.choice(("", "a", "Z", "é", "\ufffd", "\U0001f600")) + str(index),
        min_millicores=low,
        max_millicores=high,
        demand=rng.choice(DEMANDS) if hostile else rng.random(),
        weight=rng.choice(WEIGHTS) if hostile else rng.choice((None, rng.randint(0, 500) / 2)),
        usage_millicores=maybe(),
        current_millicores=maybe(),
        headroom_misses=rng.choice((0, 0, 1, 3, 100)),
        signal_ok=rng.random() < 0.9,
        lower_millicores=maybe(),
        upper_millicores=maybe(),
    )


def _capacity(rng: random.Random, pods: tuple[Pod, ...]) -> int:
    mins = sum(pod.floor_millicores for pod in pods)
    needs = sum(estimate_need(pod).millicores for pod in pods)
    pick = rng.random()
    if pick < 0.2:
        value = rng.randint(0, mins)
    elif pick < 0.7:
        value = rng.randint(mins, max(mins, needs))
    elif pick < 0.8:
        value = rng.choice((mins, needs, needs + 1, mins + 1))
    else:
        value = rng.choice(SIZES)
    return min(value, 10**12)


def judge(snapshot: Snapshot, plan: Plan) -> None:
    """Every invariant of the CPU governor, from the outside: only the contract's words are used."""
    capacity, total = snapshot.capacity_millicores, sum(plan.allocations.values())
    assert set(plan.allocations) == set(plan.needs) == {pod.uid for pod in snapshot.pods}
    assert total <= capacity, "INV-2"
    for pod in snapshot.pods:
        assert 0 <= plan.allocations[pod.uid] <= pod.max_millicores, "x <= max always"
        assert plan.reasons[pod.uid], "every pod has a reason"
    if plan.total_min > capacity:
        assert plan.mode is CpuMode.OVERLOADED
        assert total == capacity
        assert plan.shadow_price is None
        return
    assert plan.mode is not CpuMode.OVERLOADED
    wants = {pod.uid: _want(pod, plan) for pod in snapshot.pods}
    bounded = any(pod.lower_millicores or pod.upper_millicores is not None for pod in snapshot.pods)
    for pod in snapshot.pods:
        assert pod.floor_millicores <= plan.allocations[pod.uid], "m <= x when the minimums fit"
        if pod.upper_millicores is not None:
            top = max(pod.upper_millicores, pod.floor_millicores)
            assert plan.allocations[pod.uid] <= top, "no grant above an upper bound"
    if snapshot.policy is Policy.MARKET:
        return
    relaxed = any("guardrail-relaxed" in reasons for reasons in plan.reasons.values())
    if sum(wants.values()) <= capacity:
        assert plan.allocations == wants, "INV-3"
        assert plan.shadow_price == 0
    elif not relaxed:
        assert total == capacity, "a congested node is handed out whole"
        assert all(plan.allocations[uid] <= want for uid, want in wants.items()), "x <= u"
        assert plan.mode is CpuMode.CONGESTED
        if snapshot.policy is Policy.NASH and not bounded:
            judge_kkt(snapshot, plan)


def _want(pod: Pod, plan: Plan) -> int:
    """The need inside the guardrails' bounds (before any relaxing)."""
    high = pod.max_millicores
    if pod.upper_millicores is not None:
        high = min(high, max(pod.upper_millicores, pod.floor_millicores))
    low = min(max(pod.lower_millicores or 0, pod.floor_millicores), high)
    return min(max(plan.needs[pod.uid], low), high)


def judge_kkt(snapshot: Snapshot, plan: Plan) -> None:
    """Uncapped pods share one level t; capped ones would not pay it. Within one millicore."""
    if plan.shadow_price is None or plan.shadow_price == 0:
        return
    level = 1 / Fraction(plan.shadow_price)
    slack = 1 + level / 2**40  # the price is a double
    for pod in snapshot.pods:
        weight, grant = Fraction(pod.share_weight), plan.allocations[pod.uid]
        rise = weight * level
        if grant < plan.needs[pod.uid]:
            assert abs(grant - pod.floor_millicores - rise) <= slack + rise / 2**40
        else:
            assert grant - pod.floor_millicores <= rise + slack + rise / 2**40


def judge_order(snapshot: Snapshot, plan: Plan, rng: random.Random) -> None:
    """Input order never matters."""
    shuffled = list(snapshot.pods)
    rng.shuffle(shuffled)
    assert clear(replace(snapshot, pods=tuple(shuffled))) == plan


def judge_monotone(snapshot: Snapshot, plan: Plan) -> None:
    """More capacity never costs a pod more than the one millicore of rounding."""
    more = min(snapshot.capacity_millicores + 1 + snapshot.capacity_millicores // 7, 10**12)
    if plan.total_min > snapshot.capacity_millicores:
        return
    larger = clear(replace(snapshot, capacity_millicores=more))
    for uid, grant in plan.allocations.items():
        assert larger.allocations[uid] >= grant - 1


def run_cases(policy: Policy, count: int, seed: int) -> dict[str, int]:
    """Judge `count` random clearings; returns how many ended in each mode."""
    modes = dict.fromkeys((mode.value for mode in CpuMode), 0)
    for case in range(count):
        rng = random.Random(f"{seed}/{policy}/{case}")  # any failing case can be run alone
        snapshot = random_snapshot(rng, policy)
        plan = clear(snapshot)
        judge(snapshot, plan)
        judge_order(snapshot, plan, rng)
        judge_monotone(snapshot, plan)
        modes[plan.mode.value] += 1
    return modes
