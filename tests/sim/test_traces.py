"""Wants over time: each kind of trace draws the curve that its name promises."""

from math import pi, sin
from typing import Any

import pytest

from fairlead.sim.clock import Entropy
from fairlead.sim.node import build_want, peak
from tests.sim.scenarios import pod, scenario


def levels(trace: dict[str, Any], *times_s: float, seed: int = 1) -> list[int]:
    parts = scenario(pod("a", trace)).pods[0].want
    want = build_want(parts, Entropy(seed), "a")
    return [want(round(time_s * 1000)) for time_s in times_s]


def every_period(trace: dict[str, Any], seconds: int, seed: int = 1) -> list[int]:
    return levels(trace, *(tick / 10 for tick in range(seconds * 10)), seed=seed)


CONSTANT = {"kind": "constant", "millicores": 300}
STEPS = {"kind": "steps", "every_s": 10, "millicores": [1, 2, 3]}
RAMP = {"kind": "ramp", "start_millicores": 100, "end_millicores": 500, "ramp_s": 10, "from_s": 5}
POINTS = {
    "kind": "points",
    "points": [{"at_s": 2, "millicores": 10}, {"at_s": 4, "millicores": 20}],
}


@pytest.mark.parametrize(
    ("trace", "times", "expected"),
    [
        (CONSTANT, (0, 5), [300, 300]),
        ({**CONSTANT, "from_s": 2, "until_s": 4}, (1, 2, 3.9, 4), [0, 300, 300, 0]),
        (STEPS, (0, 10, 29, 30), [1, 2, 3, 1]),
        (RAMP, (4, 5, 10, 15, 99), [0, 100, 300, 500, 500]),
        (POINTS, (1, 2, 3, 4, 9), [0, 10, 10, 20, 20]),
        ({**POINTS, "linear": True}, (1, 2, 3, 4, 9), [0, 10, 15, 20, 20]),
    ],
)
def test_fixed_traces(trace: dict[str, Any], times: tuple[float, ...], expected: list[int]) -> None:
    """No chance involved."""
    assert levels(trace, *times) == expected


def test_the_wave_is_a_sine() -> None:
    """Integer arithmetic, and never further than 0.2 % of the swing from the real curve."""
    trace = {"kind": "sine", "low_millicores": 1000, "high_millicores": 3000, "period_s": 60}
    for second in range(120):
        exact = 2000 + 1000 * sin(2 * pi * second / 60)
        assert abs(levels(trace, second)[0] - exact) <= 4


def test_bursts_are_on_as_long_as_their_means_say() -> None:
    """Two levels only; on 1/4 of the time within a few points over two hours."""
    two = {"high_millicores": 900, "low_millicores": 100}
    trace = {"kind": "bursty", **two, "on_s": 5, "off_s": 15}
    drawn = every_period(trace, 7200)
    assert set(drawn) == {100, 900}
    assert 0.2 < drawn.count(900) / len(drawn) < 0.3
    assert drawn != every_period(trace, 7200, seed=2)


def test_spikes_come_at_their_rate_and_add_up() -> None:
    """12 a minute of 1 s each: 20 % of the time on average, overlaps double."""
    drawn = every_period({"kind": "spikes", "millicores": 500, "per_minute": 12}, 7200)
    assert 0.17 < sum(drawn) / len(drawn) / 500 < 0.23
    assert {0, 500, 1000} <= set(drawn)


def test_traces_add_up_and_the_peak_bounds_them() -> None:
    """A pod's want is the sum of its traces."""
    parts = (
        scenario(
            pod(
                "a",
                {"kind": "constant", "millicores": 300},
                {"kind": "sine", "low_millicores": 0, "high_millicores": 700, "period_s": 20},
            )
        )
        .pods[0]
        .want
    )
    want = build_want(parts, Entropy(1), "a")
    drawn = [want(tick * 100) for tick in range(400)]
    assert min(drawn) == 300
    assert max(drawn) <= peak(parts) == 1000
