"""The regression gate finds every stored ratio, and only what got worse by more than its spread."""

from typing import Any

import pytest
from bench.side_by_side import Comparison, Figures, compare

from tests.ratios import ratios_of, repeatable, worse


def report(**ratios: tuple[float, float, float]) -> dict[str, Any]:
    spreads = {
        name: dict(zip(("low", "median", "high"), values, strict=True))
        for name, values in ratios.items()
    }
    return {"lines": [{"policy": "nash", "pods_per_node": 110, "seconds": {"low": 1}, **spreads}]}


STORED = report(a_times_faster_than_b=(9.0, 10.0, 11.0), a_times_slower_than_c=(2.0, 2.1, 2.2))


def test_ratios_are_found_by_their_names() -> None:
    paths = [path for path, _ in ratios_of(STORED)]
    assert paths == ["nash 110 a_times_faster_than_b", "nash 110 a_times_slower_than_c"]


@pytest.mark.parametrize(
    ("faster", "slower", "count"),
    [
        ((9.0, 10.0, 11.0), (2.0, 2.1, 2.2), 0),
        ((6.0, 6.5, 7.1), (2.3, 2.4, 2.5), 0),  # worse, within the spread
        ((6.0, 6.5, 6.9), (2.0, 2.1, 2.2), 1),
        ((9.0, 10.0, 11.0), (2.5, 2.6, 2.7), 1),
        ((30.0, 31.0, 32.0), (1.0, 1.0, 1.0), 0),  # better
    ],
)
def test_worse_by_more_than_the_spread_fails(
    faster: tuple[float, float, float], slower: tuple[float, float, float], count: int
) -> None:
    fresh = report(a_times_faster_than_b=faster, a_times_slower_than_c=slower)
    assert len(worse(STORED, fresh)) == count


def test_a_ratio_of_another_size_is_not_compared() -> None:
    fresh = report(a_times_faster_than_b=(1.0, 1.0, 1.0))
    fresh["lines"][0]["pods_per_node"] = 10
    assert worse(STORED, fresh) == []


def test_more_is_better_or_worse_by_its_name() -> None:
    stored = report(a_times_better_than_b=(0.9, 1.0, 1.1), a_times_costlier_than_b=(0.9, 1.0, 1.1))
    fresh = report(a_times_better_than_b=(2.0, 2.0, 2.0), a_times_costlier_than_b=(0.1, 0.1, 0.1))
    assert worse(stored, fresh) == []
    assert len(worse(fresh, stored)) == 2


def test_stored_benchmarks_with_ratios_are_run_again() -> None:
    pages = repeatable()
    assert {"compiled", "cpu_clear", "cli", "traffic_agent"} <= set(pages)
    assert pages["cli"] == ("bench.cli", "--quick")


def test_ours_is_compared_with_the_best_peer_repetition_by_repetition() -> None:
    """The best of the peers by its median; a repetition that one side lacks is left out."""
    runs = [
        {"scenario": "slow", "arm": arm, "p99_ms": value}
        for arm, values in {"ours": (20.0, 30.0), "a": (10.0, 20.0, 5.0), "b": (50.0,)}.items()
        for value in values
    ]
    row = Comparison("slow", "p99_ms", ("a", "b", "c"), more_is_better=False, what="p99")
    assert compare(Figures(runs), ("ours", "other"), [row]) == [
        {
            "contest": "slow ours",
            "p99_times_worse_than_best_peer": {"median": 1.75, "low": 1.5, "high": 2.0},
        }
    ]
