"""Guarantees instead of limits: who is contained, and what is known where nothing is throttled."""

from dataclasses import replace

import pytest

from fairlead.core.cpu import (
    Actuation,
    ContainerSighting,
    Containment,
    Counters,
    CpuConfig,
    CpuMemory,
    CpuMode,
    NodePlan,
    NodeSample,
    PodSighting,
    Policy,
    WriteResult,
    WrittenLimit,
    allocate,
    applied,
    contain,
    contained,
    left_out,
    limits_millicores,
    node_snapshot,
    observe,
    settle,
)
from fairlead.core.cpu.actuate import is_greedy
from fairlead.core.cpu.signal import read_signal, waited_us
from fairlead.core.invariant import InvariantBroken

BOTH = CpuConfig(node_millicores=2000, policy=Policy.NASH, actuate=Actuation.BOTH)
SECOND = 1_000_000


class World:
    """One node whose pods use and wait as told, a second at a time."""

    def __init__(self, config: CpuConfig = BOTH) -> None:
        self.config, self.memory, self.second = config, CpuMemory(), 0
        self.totals: dict[str, tuple[int, int]] = {}

    def second_of(
        self, loads: dict[str, tuple[int, int | None]], limits: dict[str, int] | None = None
    ) -> None:
        """`loads`: millicores used, and millicores' worth of waiting (None: not measured)."""
        self.second += 1
        pods = []
        for uid, (used, waited) in sorted(loads.items()):
            use, wait = self.totals.get(uid, (0, 0))
            self.totals[uid] = use + used * 1000, wait + (waited or 0) * 1000
            use, wait = self.totals[uid]
            counters = Counters(
                self.second * SECOND, use, 0, 0, 0, None if waited is None else wait
            )
            limit = (limits or {}).get(uid)
            seen = ContainerSighting("", limit, counters, self._guarantee(uid))
            pods.append(PodSighting(uid, 200, (seen,), started_ms=-3_600_000))
        sample = NodeSample(self.second * 1000, tuple(pods))
        self.memory = observe(self.memory, sample, self.config)

    def _guarantee(self, uid: str) -> int:
        known = self.memory.pods.get(uid)
        return 1000 if known is None else known.current_millicores or 0

    def clear(self) -> tuple[NodePlan, tuple[Containment, ...]]:
        """Decide, and put everything in force."""
        now_ms = self.second * 1000
        snapshot = node_snapshot(self.memory, now_ms, self.config)
        plan = allocate(snapshot)
        limits = contain(self.memory, snapshot, plan, self.config)
        self.memory = settle(self.memory, plan.mode, plan.memory)
        for write in plan.writes:
            reason = left_out(
                self.memory, plan, write, decrease_failed=False, actuate=self.config.actuate
            )
            assert reason is None, write
            row = WrittenLimit(write.uid, write.container, write.after)
            self.memory = applied(self.memory, now_ms, row)
        for limit in limits:
            row = WrittenLimit(limit.uid, limit.container, limit.limit_millicores)
            self.memory = contained(self.memory, row)
        return plan, limits


ADVERSARY = {"web": (150, 0), "honest": (900, 100), "adversary": (900, 7000)}


def test_a_pod_that_wants_more_than_the_node_is_contained_at_its_share() -> None:
    """One busy thread is not, though it gets less than it wants. Its guarantee is its minimum."""
    world = World()
    for _ in range(5):
        world.second_of(ADVERSARY)
    limiting = replace(BOTH, actuate=Actuation.LIMITS)
    shares = allocate(node_snapshot(world.memory, 5000, limiting)).allocations
    plan, limits = world.clear()
    assert plan.mode is CpuMode.CONGESTED
    assert limits == (Containment("adversary", "", shares["adversary"]),)
    assert sum(shares.values()) == 1800
    assert limits_millicores(world.memory) == sum(plan.allocations.values()) <= 1800
    assert plan.allocations["adversary"] == 200
    assert world.memory.pods["adversary"].limit_beside_guarantees == limits[0].after
    assert [pod.uid for pod in world.memory.pods.values() if pod.is_contained] == ["adversary"]
    pod = world.memory.pods["adversary"]
    assert pod.limit_in_force(Actuation.BOTH) == limits[0].after
    assert pod.limit_in_force(Actuation.LIMITS) == pod.current_millicores == 200
    world.second_of(ADVERSARY)
    assert world.clear()[1] == (), "what is in force is not written again"


def test_a_contained_pod_is_let_go_when_the_needs_fit_again() -> None:
    """Not before the peak of its wants is forgotten."""
    world = World()
    for _ in range(5):
        world.second_of(ADVERSARY)
    world.clear()
    for _ in range(20):
        world.second_of({**ADVERSARY, "adversary": (10, 0)})
    # The part follows the guarantee, but there is still one.
    assert all(limit.after is not None for limit in world.clear()[1])
    for _ in range(120):
        world.second_of(dict.fromkeys(ADVERSARY, (10, 0)))
    world.clear()
    assert world.clear()[1] == () or world.memory.pods["adversary"].containers[""][3] is None
    assert world.memory.pods["adversary"].limit_beside_guarantees is None


def test_a_declared_limit_stays_in_force_and_bounds_what_contains_a_pod() -> None:
    """It is written once, so that its burst can be."""
    world = World()
    limits = {"web": 700, "adversary": 300}
    for _ in range(5):
        world.second_of(ADVERSARY, limits)
    plan, writes = world.clear()
    assert {write.uid: write.after for write in writes} == {"web": 700, "adversary": 300}
    assert plan.allocations["adversary"] <= 300


@pytest.mark.parametrize("actuate", [Actuation.LIMITS, Actuation.WEIGHTS])
def test_nothing_is_contained_by_other_means(actuate: Actuation) -> None:
    """`limits` limits every pod, `weights` none."""
    world = World(replace(BOTH, actuate=actuate))
    for _ in range(5):
        world.second_of(ADVERSARY, {"web": 700} if actuate is Actuation.WEIGHTS else None)
    snapshot = node_snapshot(world.memory, 5000, world.config)
    assert contain(world.memory, snapshot, allocate(snapshot), world.config) == ()


def test_guarantees_that_do_not_fit_stop_the_process() -> None:
    """Σ guarantees <= capacity is checked on every decision."""
    world = World()
    for _ in range(5):
        world.second_of(ADVERSARY)
    snapshot = node_snapshot(world.memory, 5000, world.config)
    plan = replace(allocate(snapshot), capacity_millicores=1)
    with pytest.raises(InvariantBroken, match="the guarantees fit the capacity"):
        contain(world.memory, snapshot, plan, world.config)


def test_waiting_threads_show_a_need_where_nothing_is_throttled() -> None:
    """With what they waited, the need is what they would use; without, nothing is known of it."""
    needs = {}
    for name, waited in (("waits", 400), ("calm", 0)):
        world = World()
        for _ in range(5):
            world.second_of({"web": (400, waited)})
        needs[name] = allocate(node_snapshot(world.memory, 5000, world.config)).needs["web"]
    assert needs["waits"] > 1.5 * needs["calm"]


def test_a_wait_that_is_not_measured_is_not_zero() -> None:
    """The usage is known, the demand is not: the need says so, and one lost reading costs one."""
    world = World()
    for _ in range(3):
        world.second_of({"web": (400, None)})
    plan = allocate(node_snapshot(world.memory, 3000, world.config))
    assert plan.reasons["web"] == ("signal-missing.usage",)
    assert plan.needs["web"] == 520
    assert world.memory.pods["web"].demand.mean is None
    for _ in range(3):
        world.second_of({"web": (400, 0)})
    plan = allocate(node_snapshot(world.memory, 6000, world.config))
    assert plan.reasons["web"] == ("demand-driven",)


def test_waits_are_differences_of_two_readings_that_have_them() -> None:
    """Missing on either side, running backwards or rubbish: not known."""
    first = Counters(0, 0, 0, 0, 0, 0)
    assert waited_us(first, Counters(SECOND, 0, 0, 0, 0, 500)) == 500
    assert waited_us(None, first) is None
    assert waited_us(first._replace(waited_us=None), first) is None
    assert waited_us(first, Counters(SECOND, 0, 0, 0, 0)) is None
    assert waited_us(first._replace(waited_us=9), Counters(SECOND, 0, 0, 0, 0, 8)) is None
    assert waited_us(first, Counters(1, 0, 0, 0, 0, SECOND)) is None
    # Throttled and waiting at once: some kernels count one time twice, so the larger one counts.
    both = read_signal(first, Counters(SECOND, SECOND // 2, 10, 5, SECOND // 2, SECOND // 4))
    assert both is not None
    assert both.want_millicores == 1000


def test_a_newcomers_own_weight_is_no_guarantee() -> None:
    """The first guarantee of a pod of several containers fits, whatever weights its user gave."""
    world = World(replace(BOTH, actuate=Actuation.WEIGHTS))
    counters = Counters(SECOND, 0, 0, 0, 0, 0)
    parts = tuple(ContainerSighting(name, None, counters, 1000) for name in ("app", "log"))
    sample = NodeSample(1000, (PodSighting("pod", 100, parts, started_ms=-3_600_000),))
    world.memory = observe(world.memory, sample, world.config)
    plan, _ = world.clear()
    assert len(plan.writes) == 2
    assert limits_millicores(world.memory) == plan.allocations["pod"]


def test_what_was_found_is_nothing_of_ours() -> None:
    """Once all is put back, the pod is a newcomer."""
    world = World()
    for _ in range(5):
        world.second_of(ADVERSARY)
    world.clear()
    pod = world.memory.pods["adversary"].as_found()
    assert (pod.adopted, pod.touched, pod.changed_ms) == (False, False, None)
    assert pod.limit_beside_guarantees is None


def test_a_container_that_has_left_is_not_contained() -> None:
    """Whether its pod has left, too, or not."""
    world = World()
    world.second_of({"web": (150, 0)})
    for uid, container in (("gone", ""), ("web", "gone")):
        row = WrittenLimit(uid, container, 100, WriteResult.WRITTEN)
        assert contained(world.memory, row) is world.memory


def test_nobody_is_contained_while_the_needs_fit() -> None:
    world = World()
    for _ in range(5):
        world.second_of(ADVERSARY)
    snapshot = node_snapshot(world.memory, 5000, world.config)
    plan = allocate(snapshot)
    assert contain(world.memory, snapshot, plan, world.config)
    calm = replace(plan, mode=CpuMode.UNCONGESTED)
    assert contain(world.memory, snapshot, calm, world.config) == ()


def test_a_pod_is_greedy_above_the_whole_node() -> None:
    """One that wants just all of it is not."""
    pod = World()
    pod.second_of({"web": (150, 0)})
    web = pod.memory.pods["web"]
    for wanted, greedy in ((2000.0, False), (2000.5, True)):
        want = web.containers[""].want._replace(peaks=((0, wanted),))
        assert want.value == wanted
        wanting = replace(web, containers={"": web.containers[""]._replace(want=want)})
        assert is_greedy(wanting, CpuMode.CONGESTED, BOTH) is greedy


def test_a_contained_pods_limit_is_no_less_than_its_guarantee() -> None:
    """What a latency target or a guardrail promises is above the pod's share, and is kept."""
    world = World()
    for _ in range(5):
        world.second_of(ADVERSARY)
    snapshot = node_snapshot(world.memory, 5000, world.config)
    plan = allocate(snapshot)
    (share,) = contain(world.memory, snapshot, plan, world.config)
    promised = (share.after or 0) + 1
    raised = replace(plan, split={**plan.split, "adversary": {"": promised}})
    held = contain(world.memory, snapshot, raised, world.config)
    assert held == (Containment("adversary", "", promised),)


def test_each_container_of_a_contained_pod_keeps_to_its_own_limit() -> None:
    """The share is split by what each wants, up to the limit that its user declared."""
    world = World()
    for second in range(1, 6):
        parts = []
        for name, limit in (("app", 1500), ("log", 100)):
            counters = Counters(second * SECOND, second * 450_000, 0, 0, 0, second * 3_000_000)
            parts.append(ContainerSighting(name, limit, counters, 500))
        busy = Counters(second * SECOND, second * 900_000, 0, 0, 0, second * 900_000)
        pods = (
            PodSighting("adversary", 200, tuple(parts), started_ms=-3_600_000),
            PodSighting("honest", 200, (ContainerSighting("", None, busy, 1000),)),
        )
        world.second = second
        world.memory = observe(world.memory, NodeSample(second * 1000, pods), world.config)
    _, limits = world.clear()
    found = {row.container: row.limit_millicores for row in limits if row.uid == "adversary"}
    assert found["log"] == 100
    assert found["app"] > 100


def test_a_pod_that_lacks_much_is_guaranteed_its_minimum_only() -> None:
    """It uses what the others leave; those that stay within their needs are not delayed by it."""
    world = World(replace(BOTH, actuate=Actuation.WEIGHTS))
    for _ in range(5):
        world.second_of({"web": (300, 0), "batch": (990, 5), "other": (990, 5)})
    plan, _ = world.clear()
    assert plan.mode is CpuMode.CONGESTED
    assert plan.allocations["web"] == plan.needs["web"]
    assert plan.allocations["batch"] == plan.allocations["other"] < plan.needs["batch"]
    lacks = replace(world.config, node_millicores=1300)
    tight = World(lacks)
    for _ in range(5):
        tight.second_of({"web": (300, 0), "batch": (990, 900), "other": (990, 900)})
    plan, _ = tight.clear()
    assert plan.allocations["batch"] == plan.allocations["other"] == 200
    assert "lending" in plan.bounds["batch"].reasons
    assert "lending" not in plan.bounds["web"].reasons
    assert plan.allocations["web"] == plan.needs["web"] > 300


def test_little_less_than_the_need_is_little_less_guaranteed() -> None:
    """What is lacking is taken off once more, so that nothing jumps; under `limits` never."""
    loads: dict[str, tuple[int, int | None]] = {"a": (880, 0), "b": (880, 0)}
    plans = {}
    for actuate in (Actuation.LIMITS, Actuation.WEIGHTS):
        world = World(replace(BOTH, actuate=actuate))
        for _ in range(5):
            world.second_of(loads)
        plans[actuate] = allocate(node_snapshot(world.memory, 5000, world.config))
    needs, limits = (getattr(plans[Actuation.LIMITS], name) for name in ("needs", "allocations"))
    for uid in loads:
        lack = needs[uid] - limits[uid]
        assert lack > 0
        assert plans[Actuation.WEIGHTS].allocations[uid] == limits[uid] - lack
