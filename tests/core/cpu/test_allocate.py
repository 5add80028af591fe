"""`allocate`: guardrails as bounds, grants split over containers, writes in a safe order."""

from dataclasses import replace
from typing import Any

import pytest

from fairlead.core.cpu import (
    CpuMode,
    Guardrails,
    Headroom,
    LimitWrite,
    Misses,
    NodePlan,
    NodeSnapshot,
    Pod,
    Policy,
    Snapshot,
    WritePhase,
    allocate,
    clear,
)
from fairlead.core.cpu.allocate import Bound, Container, GovernedPod, split_grant
from fairlead.core.reasons import BoundReason
from fairlead.core.units import SIZE_MAX, OutOfRange
from fairlead.schema.border import BadInput
from fairlead.schema.kinds import KINDS

NOW = 1_000_000


def pod(
    uid: str, low: int, high: int, demand: float, current: int | None = None, **fields: Any
) -> GovernedPod:
    """An old, adopted pod of one container, unless the fields say otherwise."""
    fields = {"first_seen_ms": 0, "adopted": True, **fields}
    return GovernedPod(uid, low, high, demand, containers=(Container("", 0, current),), **fields)


def node(capacity: int, *pods: GovernedPod, **fields: Any) -> NodePlan:
    return allocate(NodeSnapshot(capacity, NOW, pods, **fields))


def grant(*arguments: Any, capacity: int = 10_000, **fields: Any) -> int:
    return node(capacity, pod("a", *arguments, **fields)).allocations["a"]


def test_a_step_is_at_most_twofold() -> None:
    """Up to twice, down to half, never more than 2000m at a time."""
    assert grant(100, 9000, 1.0, 300) == 600
    assert grant(100, 9000, 0.0, 1001) == 501
    assert grant(100, 9000, 1.0, 3000) == 5000
    assert grant(100, 9000, 0.0, 8000) == 6000
    plan = node(10_000, pod("a", 100, 9000, 1.0, 3000))
    assert plan.bounds["a"] == Bound(1500, 5000, (BoundReason.STEP,))


def test_a_step_ends_at_the_largest_size() -> None:
    rails = Guardrails(step_millicores=SIZE_MAX)
    large = pod("a", 0, SIZE_MAX, 1.0, SIZE_MAX - SIZE_MAX // 10)
    plan = node(SIZE_MAX, large, guardrails=rails)
    assert plan.bounds["a"].upper_millicores == plan.allocations["a"] == SIZE_MAX


def test_cooldown_holds() -> None:
    """Within 10 s of a change nothing moves."""
    assert grant(100, 9000, 1.0, 300, changed_ms=NOW - 9_999) == 300
    assert grant(100, 9000, 1.0, 300, changed_ms=NOW - 10_000) == 600
    held = node(10_000, pod("a", 100, 9000, 1.0, 300, changed_ms=NOW - 9_999))
    assert held.bounds["a"] == Bound(300, 300, (BoundReason.COOLDOWN,))
    assert held.writes == ()


def test_dead_band_holds() -> None:
    """A target within 2 % is not worth a write."""
    need = clear(Snapshot(10_000, (Pod("a", 100, 900, 0.5),))).allocations["a"]
    near = need + need // 60
    assert grant(100, 900, 0.5, near) == near
    assert grant(100, 900, 0.5, need + need // 40) == need
    plan = node(10_000, pod("a", 100, 900, 0.5, near))
    assert plan.bounds["a"] == Bound(near, near, (BoundReason.DEAD_BAND,))


def test_grace_never_lowers_a_young_pod() -> None:
    """Start-up says little about the steady need: raise, do not cut."""
    young = {"first_seen_ms": NOW - 44_999}
    assert grant(100, 9000, 0.0, 1000, **young) == 1000
    assert grant(100, 9000, 1.0, 1000, **young) == 2000
    plan = node(10_000, pod("a", 100, 9000, 0.0, 1000, **young))
    assert plan.bounds["a"] == Bound(1000, 2000, (BoundReason.STEP, BoundReason.GRACE))


def test_grace_takes_only_what_nobody_needs() -> None:
    """An idle newcomer with a large limit does not starve the pods that were there."""
    pods = (
        pod("new", 100, 6000, 0.0, 6000, first_seen_ms=NOW - 1000, adopted=False),
        pod("old", 100, 4000, 0.6, 2000, changed_ms=0),
    )
    assert node(9000, *pods).allocations["new"] == 6000
    tight = node(4000, *pods)
    need = tight.needs["old"]
    assert need > 2500
    assert tight.allocations["old"] == need
    assert sum(tight.allocations.values()) == 4000


def test_a_newly_found_pod_keeps_its_limit_while_nobody_needs_it() -> None:
    """However old: its first cut comes only when the capacity is wanted, and then at once."""
    assert grant(100, 6000, 0.0, 6000, adopted=False) == 6000
    assert grant(100, 6000, 0.0, 6000, adopted=False, capacity=3000) == 3000
    assert grant(100, 6000, 1.0, 300, adopted=False) == 6000
    assert grant(0, 6000, 0.0, 1, adopted=False) == 1
    as_it_needs = node(10_000, pod("a", 100, 6000, 1.0, 6000, adopted=False))
    assert as_it_needs.bounds["a"] == Bound(None, None, (BoundReason.NEWCOMER,))


@pytest.mark.parametrize(
    ("capacity", "high", "lower", "upper"), [(1000, 4000, 100, 100), (1700, 900, 350, 800)]
)
def test_a_lower_bound_is_kept_as_far_as_what_is_lent_allows(
    capacity: int, high: int, lower: int, upper: int
) -> None:
    """Each gets half and lacks the rest of its need; a step of the first ends at 350m."""
    pods = (pod("a", 100, high, 1.0, 700), pod("b", 100, high, 1.0))
    assert node(capacity, *pods, lend=True).bounds == {
        "a": Bound(lower, upper, (BoundReason.STEP, BoundReason.LENDING)),
        "b": Bound(None, upper, (BoundReason.UNLIMITED, BoundReason.LENDING)),
    }


def test_unknown_pods_are_free_to_move() -> None:
    """A pod that is new or has no limit goes straight to its need."""
    assert grant(100, 9000, 1.0, 300, adopted=False) == 9000
    assert grant(100, 9000, 1.0) == 9000
    plan = node(20_000, pod("a", 100, 9000, 1.0, 300, adopted=False), pod("b", 100, 9000, 1.0))
    assert plan.bounds == {
        "a": Bound(None, None, (BoundReason.NEWCOMER,)),
        "b": Bound(None, None, (BoundReason.UNLIMITED,)),
    }


def test_the_minimum_beats_the_step() -> None:
    """A pod below its minimum is lifted to it at once, whatever the step says."""
    assert grant(500, 9000, 1.0, 10) == 500
    assert grant(500, 9000, 1.0, 0) == 500


def test_an_idle_guardrail_does_not_bend_the_shares() -> None:
    """At the fair division, lower bounds that do not bind leave it alone."""
    pods = (
        pod("a", 100, 900, 1.0, 700, weight=3),
        pod("b", 100, 900, 1.0, 250, weight=1),
        pod("c", 100, 900, 1.0, 100, weight=0),
    )
    free = clear(Snapshot(1100, tuple(each.claimant(0) for each in pods), Policy.NASH))
    plan = node(1100, *pods, policy=Policy.NASH)
    assert plan.allocations == free.allocations == {"a": 700, "b": 300, "c": 100}


def test_those_who_cannot_fall_faster_are_paid_by_the_others() -> None:
    """A pod pinned to its step takes from the rest, and the sum is still the capacity."""
    plan = node(2500, pod("big", 100, 4000, 0.2, 3000), pod("new", 100, 4000, 1.0, 1000))
    assert plan.allocations == {"big": 1500, "new": 1000}


def test_scarcity_is_that_of_the_clearing_without_guardrails() -> None:
    """Pinned pods fit while their needs do not: the node counts as congested all the same."""
    pods = [pod(uid, 100, 4000, 1.0, 500, changed_ms=NOW) for uid in "ab"]
    plan = node(4000, *pods, policy=Policy.NASH)
    assert plan.mode is CpuMode.CONGESTED
    assert plan.shadow_price
    assert plan.allocations == {"a": 500, "b": 500}


def test_misses_are_counted_where_the_node_is_not_scarce() -> None:
    """Throttling after the cooldown is a miss, up to the number that fills the headroom."""
    throttled = pod("a", 100, 900, 0.5, 300, changed_ms=0, throttling=0.9)
    assert node(1000, throttled).memory == {"a": Misses(1, NOW)}
    full = replace(throttled, headroom_misses=8)
    assert node(1000, full).memory == {"a": Misses(8, NOW)}
    for mode in (CpuMode.CONGESTED, CpuMode.OVERLOADED):
        scarce = node(1000, replace(throttled, headroom_misses=2), previous_mode=mode)
        assert scarce.memory == {"a": Misses(2, None)}
    more = node(1000, throttled).needs["a"]
    assert more > node(1000, replace(throttled, throttling=None)).needs["a"]


def of_two(current: tuple[int | None, int | None], **fields: Any) -> GovernedPod:
    """A pod of an app that wants 600m and a sidecar that wants 200m."""
    containers = (Container("app", 600, current[0]), Container("sidecar", 200, current[1]))
    return GovernedPod("a", 100, 900, 0.5, 0, containers, **fields)


def test_a_split_is_kept_while_the_grant_stays_and_it_is_not_far_off() -> None:
    """Moving a few millicores between two containers is not worth two writes."""
    adopted = {"adopted": True, "changed_ms": NOW}
    near, far = of_two((460, 140), **adopted), of_two((300, 300), **adopted)
    assert node(1000, near).split == {"a": {"app": 460, "sidecar": 140}}
    assert node(1000, near).writes == ()
    assert node(1000, far).split == {"a": {"app": 450, "sidecar": 150}}
    assert node(1000, near, guardrails=Guardrails(split_band=0.0)).writes != ()
    just = node(1000, of_two((480, 120), **adopted), guardrails=Guardrails(split_band=0.25))
    assert just.split == {"a": {"app": 480, "sidecar": 120}}, "a quarter of 120m off"


def test_a_container_with_a_limit_of_nothing_is_not_far_off() -> None:
    parts = (Container("app", 600, 460), Container("off", 0, 0, 0), Container("sidecar", 200, 140))
    kept = GovernedPod("a", 100, 900, 0.5, 0, parts, adopted=True, changed_ms=NOW)
    assert node(1000, kept).split == {"a": {"app": 460, "off": 0, "sidecar": 140}}


def test_a_grant_is_split_by_needs_down_to_a_millicore() -> None:
    assert split_grant(100, {"app": 1, "sidecar": 3}) == {"app": 25, "sidecar": 75}


def test_decreases_then_newcomers_then_increases() -> None:
    """A newcomer counts from its first write, so even one that falls waits for the decreases."""
    plan = node(
        2000,
        of_two((200, 400), adopted=True),
        pod("b", 100, 900, 0.0, 600, adopted=False),
        pod("c", 100, 900, 0.0, 300),
        pod("d", 100, 900, 0.0, None),
        guardrails=Guardrails(dead_band=1.0),
    )
    assert plan.writes == (
        LimitWrite("a", "sidecar", 400, 150, WritePhase.DECREASE),
        LimitWrite("d", "", None, 110, WritePhase.DECREASE),
        LimitWrite("a", "app", 200, 450, WritePhase.INCREASE),
        LimitWrite("b", "", 600, 600, WritePhase.INCREASE),
    )
    cut = node(600, of_two((None, 400)), pod("c", 100, 900, 1.0, 100))
    assert [write.phase for write in cut.writes] == [
        WritePhase.NEWCOMER,
        WritePhase.NEWCOMER,
        WritePhase.INCREASE,
    ]


def test_a_pod_without_containers_is_decided_and_nothing_is_written() -> None:
    """Its grant is there for a reader; no limit of its own is known."""
    plan = node(1000, GovernedPod("a", 100, 900, 0.5, 0, ()))
    assert plan.allocations == {"a": 587}
    assert plan.split == {"a": {}}
    assert plan.writes == ()


@pytest.mark.parametrize(
    "fields",
    [
        {"step_ratio": 0.5},
        {"step_ratio": 1e300},
        {"cooldown_ms": -1},
        {"dead_band": 1.5},
        {"split_band": -0.1},
        {"step_millicores": True},
    ],
)
def test_guardrails_check_themselves(fields: dict[str, float]) -> None:
    """A step below 1, a negative time, a band beyond 1."""
    with pytest.raises(ValueError, match=next(iter(fields))):
        Guardrails(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields",
    [
        {"uid": ""},
        {"demand": 2},
        {"first_seen_ms": 0.5},
        {"changed_ms": 2**60},
        {"missed_ms": "now"},
        {"adopted": 1},
        {"throttling": 1.5},
    ],
)
def test_pods_check_themselves(fields: dict[str, Any]) -> None:
    """By field: what `clear` checks, times, flags and ratios."""
    values = {"uid": "a", "min_millicores": 1, "max_millicores": 2, "demand": 0, "containers": ()}
    with pytest.raises(OutOfRange) as refused:
        GovernedPod(**{**values, "first_seen_ms": 0, **fields})
    assert refused.value.field == next(iter(fields))


CLEAR = '{"capacity_millicores":1,"pods":[%s]}'
ALLOCATE = '{"capacity_millicores":1,"now_ms":0,"pods":[%s]}'
CLAIM = '"min_millicores":1,"max_millicores":2,"demand":0'
NAMED = '{"uid":"a",' + CLAIM + ',"first_seen_ms":0,"containers":[%s]}'


def refusal(text: str) -> str:
    kind = "cpu.allocate" if "now_ms" in text else "cpu.clear"
    with pytest.raises(BadInput) as refused:
        KINDS[kind].run(text.encode())
    return str(refused.value)


def test_an_empty_name_is_refused_with_its_path() -> None:
    """A uid never; a container's only where the pod's own cgroup is its one container."""
    empty = '{"uid":"",' + CLAIM
    expected = 'pods[0].uid: must be a non-empty string, got ""'
    assert refusal(CLEAR % (empty + "}")) == expected
    assert refusal(ALLOCATE % (empty + ',"first_seen_ms":0,"containers":[]}')) == expected
    one = '{"name":"","want_millicores":1}'
    KINDS["cpu.allocate"].run((ALLOCATE % (NAMED % one)).encode())
    several = NAMED % (one + ',{"name":"b","want_millicores":1}')
    assert refusal(ALLOCATE % several).startswith("pods[0].containers[0].name: must be a non-empty")
    with pytest.raises(OutOfRange, match="uid: must be a non-empty string"):
        Pod("", 1, 2, 0.0)


def test_names_that_repeat_are_refused_with_both_paths() -> None:
    """Pods of one node, containers of one pod."""
    twice = '{"name":"b","want_millicores":1},{"name":"b","want_millicores":1}'
    assert refusal(ALLOCATE % (NAMED % twice)) == (
        "pods[0].containers[1].name: repeats containers[0].name, 'b'"
    )
    pods = NAMED % "" + "," + NAMED % ""
    assert refusal(ALLOCATE % pods) == "pods[1].uid: repeats pods[0].uid, 'a'"
    assert refusal('{"capacity_millicores":1,"now_ms":9007199254740992,"pods":[]}') == (
        "now_ms: must be an integer between -9007199254740991 and 9007199254740991, "
        "got 9007199254740992"
    )


def test_a_clearing_gets_all_that_the_snapshot_says() -> None:
    headroom = Headroom(0.5, 0.0, 0.0, 0.5)
    given = NodeSnapshot(
        1000, NOW, (pod("a", 100, 900, 0.5),), Policy.NASH, CpuMode.CONGESTED, 0.125, headroom
    )
    pods = (given.pods[0].claimant(3),)
    assert given.claims({"a": Misses(3, None)}) == Snapshot(
        1000, pods, Policy.NASH, CpuMode.CONGESTED, 0.125, headroom
    )


def test_containers_and_nodes_refuse_what_their_units_do_not_allow() -> None:
    with pytest.raises(OutOfRange, match="want_millicores"):
        Container("", -1)
    with pytest.raises(OutOfRange, match="capacity_millicores"):
        NodeSnapshot(-1, NOW, ())


def test_the_ends_of_the_dead_band_and_the_grace() -> None:
    """A target that is what is in force is no step; the grace is over when it has lasted."""
    rails = Guardrails(dead_band=0.0)
    exact = node(10_000, pod("a", 100, 900, 1.0, 900), guardrails=rails)
    assert exact.bounds["a"].reasons == (BoundReason.DEAD_BAND,)
    for age_ms, kept in ((rails.grace_ms - 1, True), (rails.grace_ms, False)):
        plan = node(10_000, pod("a", 100, 900, 0.0, 800, first_seen_ms=NOW - age_ms))
        assert (BoundReason.GRACE in plan.bounds["a"].reasons) is kept


@pytest.mark.parametrize(
    ("current", "changed_ms", "asked", "bound"),
    [
        (300, NOW - 1, 500, (500, 500, "cooldown", "latency-target")),
        (300, None, 500, (500, 600, "step", "latency-target")),
        (300, None, 700, (700, 700, "step", "latency-target")),
        (300, None, 150, (150, 600, "step")),
        (None, None, 500, (500, None, "unlimited", "latency-target")),
        (None, None, 1, (1, None, "unlimited", "latency-target")),
    ],
)
def test_a_latency_target_raises_the_bounds(
    current: int | None, changed_ms: int | None, asked: int, bound: tuple[object, ...]
) -> None:
    """Both, where the upper one lies below it; a lower bound that is higher is enough."""
    asking = pod("a", 0, 900, 1.0, current, changed_ms=changed_ms, latency_millicores=asked)
    found = node(10_000, asking).bounds["a"]
    lower, upper, *reasons = bound
    assert (found.lower_millicores, found.upper_millicores) == (lower, upper)
    assert [str(reason) for reason in found.reasons] == reasons
