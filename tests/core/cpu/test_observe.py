"""`observe`: samples in, memory out; nothing but the samples and the memory decides."""

import random
from dataclasses import replace

import msgspec
import pytest

from fairlead.core.cpu import (
    Actuation,
    ContainerSighting,
    Counters,
    CpuConfig,
    CpuMemory,
    CpuMode,
    LimitWrite,
    Misses,
    NodeSample,
    PodMemory,
    PodSighting,
    Policy,
    Smoothing,
    WritePhase,
    WriteResult,
    WrittenLimit,
    allocate,
    applied,
    left_out,
    node_snapshot,
    observe,
    settle,
)
from fairlead.core.cpu.allocate import Container, GovernedPod
from fairlead.core.cpu.observe import ContainerMemory, CpuWindow, Smoothed
from fairlead.core.units import OutOfRange

CONFIG = CpuConfig(node_millicores=4000)


def sample(rng: random.Random, second: int) -> NodeSample:
    """Three pods of one or two containers, some blind, some reset, one opted out now and then."""
    pods = []
    for uid, names in (("a", ("",)), ("b", ("app", "log")), ("c", ("",))):
        containers = []
        for name in names:
            used = second * rng.randrange(100_000, 900_000)
            counters = Counters(second * 1_000_000, used, second * 10, second, second * 1000)
            blind = rng.random() < 0.2
            containers.append(ContainerSighting(name, 800, None if blind else counters))
        outside = uid == "c" and rng.random() < 0.3
        pods.append(PodSighting(uid, 100, tuple(containers), opted_out=outside, started_ms=0))
    return NodeSample(second * 1000, tuple(pods))


def test_a_life_gives_the_same_bytes_also_through_json() -> None:
    """The memory goes through a record between any two samples and changes nothing."""
    rng = random.Random(7)
    one = other = CpuMemory()
    for second in range(1, 200):
        seen = sample(rng, second)
        one = observe(one, seen, CONFIG)
        other = observe(other, seen, CONFIG)
        assert msgspec.json.encode(one) == msgspec.json.encode(other)
        other = msgspec.json.decode(msgspec.json.encode(other), type=CpuMemory)
    assert node_snapshot(one, 200_000, CONFIG) == node_snapshot(other, 200_000, CONFIG)


def test_a_container_that_was_never_read_has_no_base() -> None:
    """Blind at first sight: the first counters are the base, the second ones a reading."""
    memory = CpuMemory()
    for second, counters in enumerate((None, Counters(1, 0, 0, 0, 0), Counters(2, 1, 0, 0, 0))):
        seen = ContainerSighting("", 800, counters)
        memory = observe(
            memory, NodeSample(second * 1000, (PodSighting("a", 100, (seen,)),)), CONFIG
        )
        assert memory.windows["a"].readings == (1 if second == 2 else 0)
        assert bool(memory.counters("a")) == (counters is not None)


def test_a_limit_of_a_pod_that_has_left_changes_nothing() -> None:
    """It went with the pod, or with the container."""
    memory = observe(CpuMemory(), sample(random.Random(1), 1), CONFIG)
    for uid, container in (("gone", ""), ("a", "gone")):
        assert applied(memory, 1000, WrittenLimit(uid, container, 500)) is memory
    touched = applied(memory, 1000, WrittenLimit("b", "log", 500)).pods["b"]
    assert (touched.touched, touched.changed_ms, touched.current_millicores) == (True, 1000, 1300)


def one_pod(second: int, **limits: int | None) -> NodeSample:
    """One pod; a container whose limit is -1 cannot be read, neither limit nor counters."""
    counters = Counters(second * 1_000_000, second * 100_000, 0, 0, 0)
    containers = (
        ContainerSighting(name, None if limit == -1 else limit, None if limit == -1 else counters)
        for name, limit in limits.items()
    )
    return NodeSample(second * 1000, (PodSighting("a", 100, tuple(containers)),))


def test_a_limit_that_cannot_be_read_is_not_taken_for_none_at_all() -> None:
    """A pod is taken up once its own limits are known; later the last known limit counts."""
    memory = observe(CpuMemory(), one_pod(1, app=-1), CONFIG)
    assert memory.pods == {}
    memory = observe(memory, one_pod(2, app=800), CONFIG)
    memory = observe(memory, one_pod(3, app=-1), CONFIG)
    pod = memory.pods["a"]
    assert (pod.original_limit_millicores, pod.current_millicores) == (800, 800)
    assert memory.windows["a"].readings == 0
    memory = observe(memory, one_pod(4, app=None), CONFIG)
    assert memory.pods["a"].current_millicores is None, "its limit was lifted"


def test_a_container_is_taken_up_once_its_limit_is_known() -> None:
    """Until then its pod is not measured: it would look smaller than it is."""
    memory = observe(observe(CpuMemory(), one_pod(1, app=800), CONFIG), one_pod(2, app=800), CONFIG)
    memory = observe(memory, one_pod(3, app=800, log=-1), CONFIG)
    assert (list(memory.pods["a"].containers), memory.windows["a"].readings) == (["app"], 1)
    pod = observe(memory, one_pod(4, app=800, log=200), CONFIG).pods["a"]
    assert pod.containers["log"].original_limit_millicores == 200
    assert pod.current_millicores == 1000


@pytest.mark.parametrize(("sample_ms", "clear_ms"), [(0, 5000), (5001, 5000)])
def test_a_node_is_sampled_at_least_as_often_as_it_is_cleared(
    sample_ms: int, clear_ms: int
) -> None:
    with pytest.raises(OutOfRange) as refused:
        CpuConfig(4000, sample_ms=sample_ms, clear_ms=clear_ms)
    assert str(refused.value) == "sample_ms: must be at least 1 and at most clear_ms"
    for least in (1, 5000):
        assert CpuConfig(4000, sample_ms=least, clear_ms=5000).sample_ms == least
    with pytest.raises(OutOfRange, match="node_millicores"):
        CpuConfig(-1)


LIFE = PodMemory(
    "web",
    100,
    900,
    200.0,
    800,
    5000,
    "id",
    700,
    adopted=True,
    changed_ms=6000,
    demand=Smoothed(0.4, ((7000, 0.5), (9000, 0.4))),
    throttling=0.25,
    misses=2,
    missed_ms=8000,
    containers={"app": ContainerMemory(800, 700, Smoothed(300.0, ((9000, 310.7),)))},
    latency_millicores=150,
)


def test_times_out_of_the_future_become_now() -> None:
    """After the clock was set back, no cooldown and no peak lasts until it is there again."""
    assert LIFE.not_after(9000) == LIFE
    assert LIFE.not_after(4000) == replace(
        LIFE,
        started_ms=4000,
        changed_ms=4000,
        missed_ms=4000,
        demand=Smoothed(0.4, ((4000, 0.5), (4000, 0.4))),
        containers={"app": ContainerMemory(800, 700, Smoothed(300.0, ((4000, 310.7),)))},
    )
    never = replace(LIFE, changed_ms=None, missed_ms=None)
    assert (never.not_after(4000).changed_ms, never.not_after(4000).missed_ms) == (None, None)


def test_a_snapshot_has_all_that_is_remembered_of_a_pod() -> None:
    """Its mean use since the last decision; a signal that was blind all the time is none."""
    for readings, blind, used, good in ((2, 1, 150, True), (2, 2, 150, False), (0, 0, None, False)):
        memory = CpuMemory(pods={"web": LIFE}, windows={"web": CpuWindow(301, readings, {}, blind)})
        (pod,) = node_snapshot(memory, 9000, CONFIG).pods
        assert pod == GovernedPod(
            "web",
            100,
            900,
            0.5,
            5000,
            (Container("app", 310, 700, 800),),
            weight=200.0,
            usage_millicores=used,
            headroom_misses=2,
            signal_ok=good,
            changed_ms=6000,
            adopted=True,
            missed_ms=8000,
            throttling=0.25,
            latency_millicores=150,
        )


def test_a_plan_that_is_recorded_is_gone_on_from() -> None:
    """Its label and misses; what was read before it counts no more, but for the counters."""
    counters = {"app": Counters(1, 2, 3, 4, 5)}
    window = CpuWindow(301, 2, counters, 1)
    other = replace(LIFE, uid="other")
    memory = CpuMemory(None, 40, {"web": LIFE, "other": other}, {"web": window})
    misses = {"web": Misses(3, 9000), "other": Misses(2, 8000)}
    found = settle(memory, CpuMode.CONGESTED, misses)
    assert found.pods == {"web": replace(LIFE, misses=3, missed_ms=9000), "other": other}
    assert found.pods["other"] is other
    assert found.windows == {"web": CpuWindow(0, 0, counters)}
    assert (found.mode, found.reserved_millicores) == (CpuMode.CONGESTED, 40)


def test_a_pod_is_frozen_at_first_sight() -> None:
    """Its bounds, weight and begin: those of its user, as it was found."""
    part = ContainerSighting("app", 800, None, 300)
    sighting = PodSighting("web", 200, (part,), priority=10_000, started_ms=5000, identity="id")
    for config, now in ((CONFIG, 800), (replace(CONFIG, actuate=Actuation.WEIGHTS), 300)):
        found = PodMemory.at_first_sight(sighting, 9000, config)
        assert found == PodMemory("web", 200, 800, 400.0, 800, 5000, "id", now)
    assert (
        PodMemory.at_first_sight(sighting._replace(started_ms=None), 9000, CONFIG).started_ms
        == 9000
    )
    free = sighting._replace(containers=(part._replace(limit_millicores=None),))
    assert PodMemory.at_first_sight(free, 9000, CONFIG).max_millicores == 3600
    with pytest.raises(OutOfRange, match="uid: must be a string"):
        PodMemory.at_first_sight(sighting._replace(uid=7), 9000, CONFIG)  # type: ignore[arg-type]


def test_pods_that_are_opted_out_are_reserved_together_and_pass_no_other_over() -> None:
    """So are those that cannot be read at first sight: the ones behind them are governed."""
    part = ContainerSighting("", 300, Counters(1, 0, 0, 0, 0))
    blind = ContainerSighting("", None, None)
    rows = (
        PodSighting("a", 100, (part,), opted_out=True),
        PodSighting("b", 100, (part,), opted_out=True),
        PodSighting("c", 100, (blind,)),
        PodSighting("d", 100, (part,)),
    )
    kept = CpuMemory(CpuMode.CONGESTED)
    found = observe(kept, NodeSample(1000, rows), CONFIG)
    assert (found.mode, found.reserved_millicores, list(found.pods)) == (
        CpuMode.CONGESTED,
        600,
        ["d"],
    )


@pytest.mark.parametrize(
    ("touched", "after", "actuate", "left"),
    [
        (True, 1000, Actuation.LIMITS, None),
        (True, 1001, Actuation.LIMITS, WriteResult.NO_ROOM),
        (False, 300, Actuation.LIMITS, None),
        (False, 301, Actuation.LIMITS, WriteResult.NO_ROOM),
        (False, 500, Actuation.WEIGHTS, None),
        (False, 501, Actuation.WEIGHTS, WriteResult.NO_ROOM),
    ],
)
def test_a_limit_is_written_into_the_room_that_is_left(
    touched: bool, after: int, actuate: Actuation, left: WriteResult | None
) -> None:
    """What is in force counts. A newcomer's other limits count with its first one."""
    none = Smoothed(None, ())
    parts = {"app": ContainerMemory(None, 700, none), "log": ContainerMemory(None, 200, none)}
    parts["new"] = ContainerMemory(None, None, none)
    pod = replace(LIFE, containers=parts, touched=touched)
    rest = 300 if touched else 1200
    other = replace(LIFE, uid="o", touched=True, containers={"": ContainerMemory(None, rest, none)})
    memory = CpuMemory(pods={"web": pod, "o": other})
    plan = replace(allocate(node_snapshot(memory, 9000, CONFIG)), capacity_millicores=1700)
    if touched:
        plan = replace(plan, capacity_millicores=1500)
    write = LimitWrite("web", "app", 700, after, WritePhase.INCREASE)
    assert left_out(memory, plan, write, decrease_failed=False, actuate=actuate) is left
    failed = left_out(memory, plan, write, decrease_failed=True, actuate=actuate)
    assert failed is WriteResult.DECREASE_FAILED
    lower = replace(write, phase=WritePhase.DECREASE)
    assert left_out(memory, plan, lower, decrease_failed=True, actuate=actuate) is None


def test_a_sample_goes_into_the_mean_and_its_peaks() -> None:
    half = Smoothing(up=0.5, down=0.25, hold_ms=1000)
    seen = Smoothed(None, ()).add(1000, 0.4, half)
    assert seen == Smoothed(0.4, ((1000, 0.4),))
    seen = seen.add(2000, 0.8, half)
    assert seen == Smoothed(pytest.approx(0.6), ((2000, pytest.approx(0.6)),))
    seen = seen.add(2500, 0.2, half)
    assert seen.mean == pytest.approx(0.5)
    assert [at_ms for at_ms, _ in seen.peaks] == [2000, 2500]


def test_what_is_known_of_a_pod_stays_when_it_is_sampled() -> None:
    """But for its limit in force and what was read: half of its periods throttled, smoothed."""
    before = Counters(1_000_000, 0, 0, 0, 0)
    window = CpuWindow(100, 1, {"app": before})
    memory = CpuMemory(CpuMode.CONGESTED, 0, {"web": LIFE}, {"web": window})
    counters = Counters(2_000_000, 300_000, 10, 5, 100_000)
    part = ContainerSighting("app", 650, counters)
    sighting = PodSighting("web", 200, (part,), identity="id")
    found = observe(memory, NodeSample(9500, (sighting,)), CONFIG)
    pod = found.pods["web"]
    assert pod == replace(
        LIFE,
        current_millicores=650,
        demand=pod.demand,
        throttling=0.5,
        containers=pod.containers,
        latency_millicores=None,
    )
    assert pod.demand.mean == pytest.approx(0.4 - 0.1 * (0.4 - 233 / 800))
    assert pod.containers["app"].current_millicores == 650
    assert found.windows == {"web": CpuWindow(400, 2, {"app": counters}, 0)}
    calm = observe(
        found,
        NodeSample(
            9600,
            (
                sighting._replace(
                    containers=(
                        part._replace(counters=Counters(3_000_000, 600_000, 20, 5, 100_000)),
                    )
                ),
            ),
        ),
        CONFIG,
    )
    assert calm.pods["web"].throttling == pytest.approx(0.45)
    blind = observe(
        found,
        NodeSample(9600, (sighting._replace(containers=(part._replace(counters=None),)),)),
        CONFIG,
    )
    assert blind.windows["web"] == CpuWindow(400, 2, {"app": counters}, 0)


def test_throttling_is_smoothed_as_the_node_is_configured() -> None:
    """Half of the way from a quarter to a half."""
    window = CpuWindow(0, 0, {"app": Counters(1_000_000, 0, 0, 0, 0)})
    memory = CpuMemory(pods={"web": LIFE}, windows={"web": window})
    part = ContainerSighting("app", 700, Counters(2_000_000, 300_000, 10, 5, 100_000))
    sample = NodeSample(9500, (PodSighting("web", 200, (part,), identity="id"),))
    config = replace(CONFIG, smoothing=Smoothing(up=0.5))
    assert observe(memory, sample, config).pods["web"].throttling == 0.375


@pytest.mark.parametrize(
    ("bound", "current", "raised"), [(150, 700, 175), (None, 700, 780), (None, None, 120)]
)
def test_a_missed_latency_target_raises_the_last_bound(
    bound: int | None, current: int | None, raised: int
) -> None:
    """At first the limit in force; without a limit the minimum. Threads wait 5 ms, not 2."""
    life = replace(LIFE, latency_millicores=bound, current_millicores=current)
    window = CpuWindow(0, 0, {"app": Counters(1_000_000, 0, 0, 0, 0, 0, 0)})
    memory = CpuMemory(pods={"web": life}, windows={"web": window})
    part = ContainerSighting("app", current, Counters(2_000_000, 300_000, 0, 0, 0, 50_000, 10))
    sighting = PodSighting("web", 200, (part,), identity="id", latency_target_ms=2)
    found = observe(memory, NodeSample(9500, (sighting,)), CONFIG)
    assert found.pods["web"].latency_millicores == raised


def test_a_container_that_is_new_and_cannot_be_read_hides_none_behind_it() -> None:
    counters = Counters(2_000_000, 300_000, 10, 5, 100_000)
    parts = (ContainerSighting("new", None, None), ContainerSighting("app", 650, counters))
    memory = CpuMemory(pods={"web": LIFE})
    sample = NodeSample(9500, (PodSighting("web", 200, parts, identity="id"),))
    assert list(observe(memory, sample, CONFIG).pods["web"].containers) == ["app"]


def test_nothing_is_known_of_a_pod_that_was_never_seen() -> None:
    assert CpuMemory().counters("gone") == {}
    memory = CpuMemory(pods={"web": LIFE})
    part = ContainerSighting("app", 650, Counters(2_000_000, 300_000, 10, 5, 100_000))
    sample = NodeSample(9500, (PodSighting("web", 200, (part,), identity="id"),))
    assert observe(memory, sample, CONFIG).windows["web"].readings == 0


def test_opted_out_pods_take_their_part_of_the_capacity() -> None:
    """Never more than there is."""
    config = replace(CONFIG, policy=Policy.NASH)
    for reserved, left in ((0, 3600), (600, 3000), (3600, 0), (5000, 0)):
        found = node_snapshot(CpuMemory(None, reserved), 9000, config)
        assert (found.capacity_millicores, found.policy) == (left, Policy.NASH)


def test_a_snapshot_says_how_scarce_the_node_was() -> None:
    for mode in (None, CpuMode.CONGESTED):
        assert node_snapshot(CpuMemory(mode), 9000, CONFIG).previous_mode is mode


def test_a_first_limit_of_a_container_takes_all_of_its_room() -> None:
    none = Smoothed(None, ())
    pod = replace(LIFE, touched=True, containers={"app": ContainerMemory(None, None, none)})
    memory = CpuMemory(pods={"web": pod})
    plan = replace(allocate(node_snapshot(memory, 9000, CONFIG)), capacity_millicores=500)
    for after, left in ((500, None), (501, WriteResult.NO_ROOM)):
        write = LimitWrite("web", "app", None, after, WritePhase.INCREASE)
        assert left_out(memory, plan, write, decrease_failed=False) is left


def test_a_limit_that_changes_no_sum_is_no_change_of_the_pod() -> None:
    """A pod is ours once all of its limits are known."""
    none = Smoothed(None, ())
    parts = {"app": ContainerMemory(None, 700, none), "log": ContainerMemory(None, None, none)}
    memory = CpuMemory(pods={"web": replace(LIFE, containers=parts, adopted=False)})
    memory = replace(memory, pods={"web": replace(memory.pods["web"], current_millicores=None)})
    some = applied(memory, 9000, WrittenLimit("web", "app", 600)).pods["web"]
    assert (some.adopted, some.touched, some.changed_ms) == (False, True, 6000)
    whole = applied(memory, 9000, WrittenLimit("web", "log", 100))
    pod = whole.pods["web"]
    assert (pod.adopted, pod.current_millicores, pod.changed_ms) == (True, 800, 9000)
    same = applied(whole, 9500, WrittenLimit("web", "log", 100)).pods["web"]
    assert (same.changed_ms, same.current_millicores) == (9000, 800)
