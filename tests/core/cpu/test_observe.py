"""`observe`: samples in, memory out; nothing but the samples and the memory decides."""

import random

import msgspec

from fairlead.core.cpu import (
    ContainerSighting,
    Counters,
    CpuConfig,
    CpuMemory,
    NodeSample,
    PodSighting,
    WrittenLimit,
    applied,
    node_snapshot,
    observe,
)

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
