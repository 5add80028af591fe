"""The regression gate finds every stored ratio, and only what got worse by more than its spread."""

from typing import Any

import pytest

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


def test_stored_benchmarks_with_ratios_are_run_again() -> None:
    assert {"compiled", "cpu_clear"} <= set(repeatable())
