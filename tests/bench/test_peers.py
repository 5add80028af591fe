"""The peers' rules do what their descriptions say: samples in, limits out."""

import pytest
from bench.cpu.peers import (
    Captain,
    ContainerSeen,
    DecayedHistogram,
    Mbcas,
    PodSeen,
    Static,
    VpaLike,
    mbcas_demand,
    percentile,
)

from fairlead.core.cpu import Counters


def counters(
    second: float, usage_ms: float, *, throttled: int = 0, held_ms: float = 0.0
) -> Counters:
    """Readings of a container that has used so much since it began."""
    return Counters(
        int(second * 1e6), int(usage_ms * 1000), int(second * 10), throttled, int(held_ms * 1000)
    )


def pod(name: str, seen: Counters, limit: int | None, *, request: int = 100) -> PodSeen:
    return PodSeen(name, request, seen, (ContainerSeen(name, seen, limit),))


def test_static_limits_are_written_once() -> None:
    """First call: all of them. Ever after: none."""
    rule = Static({"a": 300})
    seen = [pod("a", counters(0, 0), None)]
    assert [rule.decide(0, seen), rule.decide(1, seen)] == [{"a": 300}, {}]


def test_percentile_is_a_value_that_was_seen() -> None:
    """Nearest rank; nothing seen is zero."""
    assert percentile(range(100), 0.95) == 95
    assert percentile([], 0.5) == 0


def test_a_decayed_histogram_forgets_by_half_lives() -> None:
    """Ten half-lives later a thousand old samples weigh less than one new one."""
    histogram = DecayedHistogram(half_life_s=10)
    for _ in range(1000):
        histogram.add(0, 800)
    assert 800 <= histogram.percentile(0.9) < 850
    histogram.add(100, 100)
    histogram.add(101, 100)
    assert 100 <= histogram.percentile(0.5) < 115


def test_vpa_recommends_p90_times_115_and_at_least_25() -> None:
    """From its history alone, before it has seen anything itself."""
    rule = VpaLike(600, {"a": [100.0] * 85 + [400.0] * 15, "b": [0.0] * 50})
    seen = [pod("a", counters(0, 0), None), pod("b", counters(0, 0), None)]
    limits = rule.decide(0, seen)
    assert limits["a"] == pytest.approx(400 * 1.15, rel=0.06)
    assert limits["b"] == 25


@pytest.mark.parametrize(
    ("throttled_us", "usage_us", "expected"),
    [(0, 1000, 0.0), (50, 1000, 0.5), (100, 1000, 1.0), (900, 100, 1.0), (5, 0, 1.0), (0, 0, 0.0)],
)
def test_the_mbcas_signal_saturates(throttled_us: int, usage_us: int, expected: float) -> None:
    """9 % short and 90 % short read the same."""
    assert mbcas_demand(throttled_us, usage_us) == pytest.approx(expected)


def drive_mbcas(*, seconds: int, held_ms: float, limit: int | None) -> dict[int, dict[str, int]]:
    """Writes by second, the limit following them."""
    rule, writes = Mbcas(1000), {}
    for second in range(seconds):
        seen = counters(second, second * 200, throttled=second * 10, held_ms=second * held_ms)
        wrote = rule.decide(second, [pod("a", seen, limit)])
        if wrote:
            writes[second] = wrote
            limit = wrote["a"]
    return writes


def test_mbcas_clears_every_five_seconds_and_cools_down_for_ten() -> None:
    """A saturated signal takes the limit up by at most ×1.5 at a time, never sooner than 10 s."""
    writes = drive_mbcas(seconds=31, held_ms=800, limit=200)
    assert list(writes) == [5, 15, 25]
    assert [wrote["a"] for wrote in writes.values()] == [300, 450, 675]


def test_mbcas_leaves_small_differences_alone() -> None:
    """Usage 200 gives a need of 260: within 10 % of 270."""
    assert drive_mbcas(seconds=31, held_ms=0, limit=270) == {}


def test_mbcas_is_blind_to_containers_of_a_pod() -> None:
    """The pod's own cgroup never throttles, so only its usage counts; containers share equally."""
    rule = Mbcas(1000)
    limits: dict[str, int] = {}
    for second in range(6):
        inside = counters(second, second * 100, throttled=second * 10, held_ms=second * 500)
        own = counters(second, second * 200)
        containers = (ContainerSeen("a/x", inside, None), ContainerSeen("a/y", inside, None))
        limits |= rule.decide(second, [PodSeen("a", 100, own, containers)])
    assert limits == {"a/x": 130, "a/y": 130}


def drive_captain(usage: list[float], throttled: list[bool], limit: int) -> list[int]:
    """The limit after each 100 ms."""
    rule, total, count, limits = Captain(2000), 0.0, 0, []
    for index, (used, late) in enumerate(zip(usage, throttled, strict=True)):
        total, count = total + used / 10, count + late
        seen = counters(index / 10, total, throttled=count)
        wrote = rule.decide(index / 10, [pod("a", seen, limit)])
        limit = wrote.get("a", limit)
        limits.append(limit)
    return limits


def test_captain_grows_by_the_excess_over_three_times_the_target() -> None:
    """All periods throttled: ×(1 + 1 - 3·0.04) once a second."""
    limits = drive_captain([100.0] * 11, [False] + [True] * 10, 100)
    assert limits[-1] == pytest.approx(188, abs=1)


def test_captain_shrinks_to_the_recent_peak_but_at_most_by_half() -> None:
    """Quiet at 100m under 1000m: halved thrice, then the peak itself, and there it stays."""
    limits = drive_captain([100.0] * 61, [False] * 61, 1000)
    assert sorted(set(limits), reverse=True) == [1000, 500, 250, 125, 100]


def test_captain_rolls_a_cut_back_when_throttling_returns() -> None:
    """Two throttled periods right after a cut restore the old quota plus what was cut."""
    throttled = [False] * 11 + [True, True]
    limits = drive_captain([100.0] * 13, throttled, 400)
    assert limits[10] == 200
    assert limits[-1] == 600
