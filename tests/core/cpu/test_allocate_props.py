"""Promises of `allocate` on random and hostile nodes, judged from the outside."""

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.cpu import NodePlan, NodeSnapshot, Policy, WritePhase, allocate, clear
from fairlead.core.cpu.allocate import GovernedPod, bounded
from tests.core.cpu import cases

nodes = st.builds(
    lambda seed, policy: cases.random_node(random.Random(seed), policy),
    st.integers(0, 2**64),
    st.sampled_from(Policy),
)


def in_force(snapshot: NodeSnapshot, plan: NodePlan) -> NodeSnapshot:
    """The node after the plan was applied whole, in the cooldown of every pod."""
    pods = tuple(
        replace(
            pod,
            adopted=True,
            changed_ms=snapshot.now_ms,
            containers=tuple(
                replace(container, current_millicores=plan.split[pod.uid][container.name])
                for container in pod.containers
            ),
        )
        for pod in snapshot.pods
    )
    return replace(snapshot, pods=pods, guardrails=replace(snapshot.guardrails, cooldown_ms=1))


@given(nodes)
def test_the_grants_fit_the_capacity_inside_the_bounds(snapshot: NodeSnapshot) -> None:
    """Every promise of a clearing holds for the bounded one, whatever the guardrails are."""
    plan = allocate(snapshot)
    claims = snapshot.claims(plan.memory)
    inside = bounded(claims, plan.bounds)
    guarded = clear(inside)
    cases.judge(inside, guarded)
    assert plan.allocations == guarded.allocations
    assert sum(plan.allocations.values()) <= snapshot.capacity_millicores
    free = clear(claims)
    assert (plan.mode, plan.shadow_price) == (free.mode, free.shadow_price)


@given(nodes)
def test_a_split_sums_to_its_grant(snapshot: NodeSnapshot) -> None:
    """To the millicore, except where the user's own limits together are below the grant."""
    plan = allocate(snapshot)
    for pod in snapshot.pods:
        parts, grant = plan.split[pod.uid], plan.allocations[pod.uid]
        kept = pod.current_millicores == grant and parts == {
            c.name: c.current_millicores for c in pod.containers
        }
        caps = [
            grant if c.original_limit_millicores is None else c.original_limit_millicores
            for c in pod.containers
        ]
        assert parts.keys() == {c.name for c in pod.containers}
        assert sum(parts.values()) == min(grant, sum(caps)) or (
            kept and sum(parts.values()) == grant
        )


@given(nodes)
def test_the_order_of_pods_and_containers_never_matters(snapshot: NodeSnapshot) -> None:
    """Shuffled pods of shuffled containers give the same plan."""
    rng = random.Random(1)

    def shuffled(pod: GovernedPod) -> GovernedPod:
        return replace(pod, containers=tuple(rng.sample(pod.containers, len(pod.containers))))

    pods = rng.sample([shuffled(pod) for pod in snapshot.pods], len(snapshot.pods))
    assert allocate(replace(snapshot, pods=tuple(pods))) == allocate(snapshot)


@given(nodes)
def test_decreases_come_first_and_the_writes_end_in_the_split(snapshot: NodeSnapshot) -> None:
    """Phases are in order, no limit is written twice, and what is written is what was split."""
    plan = allocate(snapshot)
    order = list(WritePhase)
    phases = [order.index(write.phase) for write in plan.writes]
    assert phases == sorted(phases)
    limits = {(p.uid, c.name): c.current_millicores for p in snapshot.pods for c in p.containers}
    adopted = {pod.uid: pod.adopted for pod in snapshot.pods}
    for write in plan.writes:
        assert limits[write.uid, write.container] == write.before
        falls = write.before is None or write.after < write.before
        assert falls == (write.phase is not WritePhase.INCREASE)
        assert adopted[write.uid] or write.phase is not WritePhase.DECREASE
        limits[write.uid, write.container] = write.after
    assert len({(write.uid, write.container) for write in plan.writes}) == len(plan.writes)
    expected = {
        (uid, name): part for uid, parts in plan.split.items() for name, part in parts.items()
    }
    assert limits == expected


@given(nodes)
def test_nothing_is_written_again_in_the_cooldown(snapshot: NodeSnapshot) -> None:
    """A plan that was applied whole is stable: the next decision has nothing to write."""
    plan = allocate(snapshot)
    again = allocate(in_force(snapshot, plan))
    assert again.writes == ()
    assert again.split == plan.split
