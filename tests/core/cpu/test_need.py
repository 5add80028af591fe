"""The need: the formula to the digit, its fallbacks, and the parameters of the market."""

import pytest

from fairlead.core.cpu import Headroom, Pod, pod_bounds
from fairlead.core.cpu.need import count_misses, estimate_need, pod_weight


@pytest.mark.parametrize(
    ("fields", "need", "reasons"),
    [
        ({"demand": 0.5}, 587, ["demand-driven"]),
        ({"demand": 0.0}, 110, ["demand-driven"]),
        ({"demand": 1.0}, 900, ["demand-driven"]),
        ({"demand": 0.0, "usage_millicores": 90}, 110, ["demand-driven"]),
        ({"demand": 0.0, "usage_millicores": 91}, 118, ["usage-fallback"]),
        ({"demand": 0.0, "usage_millicores": 10_000}, 900, ["usage-fallback"]),
        ({"demand": 0.1, "usage_millicores": 500}, 200, ["demand-driven"]),
        ({"demand": 0.5, "headroom_misses": 3}, 662, ["demand-driven"]),
        ({"demand": 0.5, "headroom_misses": 1000}, 750, ["demand-driven"]),
        (
            {"demand": 0.9, "signal_ok": False, "usage_millicores": 10},
            100,
            ["signal-missing.usage"],
        ),
        (
            {"demand": 0.9, "signal_ok": False, "usage_millicores": 400, "current_millicores": 7},
            520,
            ["signal-missing.usage"],
        ),
        (
            {"demand": 0.9, "signal_ok": False, "current_millicores": 333},
            333,
            ["signal-missing.hold"],
        ),
        (
            {"demand": 0.9, "signal_ok": False, "current_millicores": 5000},
            900,
            ["signal-missing.hold"],
        ),
        ({"demand": 0.9, "signal_ok": False}, 100, ["signal-missing.min"]),
    ],
)
def test_need_table(fields: dict[str, object], need: int, reasons: list[str]) -> None:
    """Pod with minimum 100 and maximum 900: need and reason for each kind of signal."""
    got = estimate_need(Pod("a", 100, 900, **fields))  # type: ignore[arg-type]
    assert (got.millicores, list(got.reasons)) == (need, reasons)


def test_the_ceiling_wins() -> None:
    """max < min: the minimum becomes the maximum, and the need says so."""
    got = estimate_need(Pod("a", 500, 200, 0.5))
    assert (got.millicores, list(got.reasons)) == (200, ["min-above-max", "demand-driven"])


def test_headroom_is_configurable() -> None:
    """The four factors are part of the snapshot."""
    assert estimate_need(Pod("a", 100, 900, 0.5), Headroom(0.0, 0.0, 0.0, 0.0)).millicores == 500
    with pytest.raises(ValueError, match="cap: must be between 0 and 1, got 2"):
        Headroom(cap=2)


def test_weight_defaults_to_the_minimum() -> None:
    """max(1, min) as written in the document, even where the ceiling wins."""
    assert Pod("a", 0, 900, 0.5).share_weight == 1
    assert Pod("a", 500, 200, 0.5).share_weight == 500


@pytest.mark.parametrize(
    ("request_millicores", "priority", "weight"),
    [(0, 0, 1), (250, 0, 250), (100, 10_000, 200), (100, 10**9, 1000), (100, -(10**9), 100)],
)
def test_priority_factor_is_clipped(request_millicores: int, priority: int, weight: float) -> None:
    """max(1, request) times 1 + priority/10000, clipped to [1, 10]."""
    assert pod_weight(request_millicores, priority) == weight


def test_bounds_come_from_what_the_user_asked() -> None:
    """min = max(baseline 100, request); max = the original limit, else the node."""
    assert pod_bounds(50, 800, capacity_millicores=4000) == (100, 800)
    assert pod_bounds(250, None, capacity_millicores=4000) == (250, 4000)
    with pytest.raises(ValueError, match="request_millicores"):
        pod_bounds(-1, None, capacity_millicores=4000)


def test_a_miss_is_counted_after_the_cooldown_only() -> None:
    """Demand still above 0.3 once the cooldown of an applied grant is over."""
    count = lambda **k: count_misses(2, missed_ms=0, cooldown_ms=10_000, **k)  # noqa: E731
    assert count(demand=0.31, applied_ms=0, now_ms=10_000) == (3, 10_000)
    assert count(demand=0.30, applied_ms=0, now_ms=10_000) == (2, 0)
    assert count(demand=0.31, applied_ms=1, now_ms=10_000) == (2, 0)
    assert count(demand=0.31, applied_ms=None, now_ms=10_000) == (2, 0)


def test_misses_decay_after_a_quiet_minute() -> None:
    """Headroom is not a ratchet: one miss is forgiven per quiet minute."""
    count = lambda misses, now, missed: count_misses(  # noqa: E731
        misses, demand=0.1, applied_ms=0, missed_ms=missed, now_ms=now, cooldown_ms=10_000
    )
    assert count(2, 59_999, 0) == (2, 0)
    assert count(2, 60_000, 0) == (1, 60_000)
    assert count(1, 119_999, 60_000) == (1, 60_000)
    assert count(0, 600_000, 0) == (0, 0)
    assert count(1, 600_000, None) == (1, None)


def test_a_minimum_that_is_the_maximum_is_not_above_it() -> None:
    assert list(estimate_need(Pod("a", 200, 200, 0.5)).reasons) == ["demand-driven"]


def test_without_a_priority_the_request_is_the_weight() -> None:
    assert pod_weight(250) == pod_weight(250, 0) == 250.0


def test_what_is_out_of_range_is_named() -> None:
    with pytest.raises(ValueError, match=r"^request_millicores: "):
        pod_weight(-1)
    with pytest.raises(ValueError, match=r"^request_millicores: "):
        pod_bounds(-1, None, capacity_millicores=1000)
    with pytest.raises(ValueError, match=r"^limit_millicores: "):
        pod_bounds(100, -1, capacity_millicores=1000)
