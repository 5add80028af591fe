"""A latency target: a lower bound that follows how long threads wait, inside Σ <= capacity."""

from itertools import pairwise

from fairlead.core.cpu import (
    Actuation,
    ContainerSighting,
    Counters,
    CpuConfig,
    CpuMemory,
    NodeSample,
    PodSighting,
    Policy,
    allocate,
    node_snapshot,
    observe,
)
from fairlead.core.cpu.latency import latency_bound
from fairlead.core.cpu.signal import delay_us

SECOND = 1_000_000
CONFIG = CpuConfig(node_millicores=1000, policy=Policy.NASH, actuate=Actuation.WEIGHTS)


def reading(at: int, waited_us: int | None, runs: int | None) -> Counters:
    return Counters(at * SECOND, at * 100_000, 0, 0, 0, waited_us, runs)


def next_bound(bound: int | None, waited_us: int | None, runs: int | None) -> int | None:
    pair = (reading(0, 0, 0), reading(1, waited_us, runs))
    return latency_bound(bound, [pair], target_ms=2, current_millicores=200, max_millicores=800)


def test_the_bound_rises_while_the_target_is_missed_and_falls_when_it_is_kept() -> None:
    """From what is in force, up to the maximum; between half the target and the target it stays."""
    assert next_bound(None, 5_000, 1) == 230
    assert next_bound(230, 5_000, 1) == 263
    assert next_bound(780, 5_000, 1) == 800
    assert next_bound(300, 1_500, 1) == 300
    assert next_bound(None, 1_500, 1) is None
    assert next_bound(300, 900, 1) == 294
    assert next_bound(11, 0, 1) is None


def test_the_target_is_kept_to_the_microsecond() -> None:
    """2 ms: above 2000 us it is missed; at 1000 us, half of it, the bound falls."""
    assert (next_bound(300, 2_000, 1), next_bound(300, 2_001, 1)) == (300, 340)
    assert (next_bound(300, 1_001, 1), next_bound(300, 1_000, 1)) == (300, 294)


def test_without_a_measurement_the_bound_stays() -> None:
    """Waits or runs that are missing on either side, runs that go backwards, no run at all."""
    for waited, runs in ((None, 1), (5_000, None), (5_000, 0), (-1, 1)):
        assert next_bound(300, waited, runs) == 300
    assert delay_us([(None, reading(1, 0, 0))]) is None
    assert delay_us([(reading(0, 0, 9), reading(1, 0, 8))]) is None
    two = [(reading(0, 0, 0), reading(1, 4_000, 1)), (reading(0, 0, 0), reading(1, 0, 3))]
    assert delay_us(two) == 1_000


def play(target_ms: int | None, *, others: int = 1) -> list[tuple[int, tuple[str, ...], int]]:
    """Ten seconds of a pod whose threads wait for 5 ms, beside busy ones: its allocation at each
    second, the reasons of its bound, and the sum of all."""
    memory, seen = CpuMemory(), []
    names = ["web", *(f"busy-{n}" for n in range(others))]
    for second in range(1, 11):
        pods = []
        for name in names:
            target = target_ms if name == "web" else None
            used = 50_000 if name == "web" else 900_000
            counters = Counters(
                second * SECOND, second * used, 0, 0, 0, second * 50_000, second * 10
            )
            part = ContainerSighting("", None, counters, 300)
            pods.append(
                PodSighting(name, 100, (part,), started_ms=-3_600_000, latency_target_ms=target)
            )
        memory = observe(memory, NodeSample(second * 1000, tuple(pods)), CONFIG)
        plan = allocate(node_snapshot(memory, second * 1000, CONFIG))
        bound = plan.bounds["web"]
        total = sum(plan.allocations.values())
        seen.append((plan.allocations["web"], tuple(bound.reasons), total))
    return seen


def test_a_pod_that_misses_its_target_gets_more_inside_the_capacity() -> None:
    """Its neighbour gets less; without a target nothing changes."""
    with_target, without = play(2), play(None)
    assert with_target[-1][0] > 2 * without[-1][0]
    assert all(before[0] <= after[0] for before, after in pairwise(with_target[1:]))
    assert "latency-target" in with_target[-1][1]
    assert not any("latency-target" in reasons for _, reasons, _ in without)
    assert all(total <= 900 for _, _, total in with_target)


def test_a_bound_that_does_not_fit_is_relaxed() -> None:
    """The minimums of the others come first."""
    allocation, reasons, total = play(1, others=7)[-1]
    assert total <= 900
    assert "latency-target" in reasons
    assert allocation <= 900 - 7 * 100
