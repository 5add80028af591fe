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
