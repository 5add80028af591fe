"""What side-by-side benchmarks share: repetitions are added to a page, and it says on what."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from bench.side_by_side import Sitting, circumstances, repeat, sit_down
from bench.traffic.scenarios import BESIDE_EXPERTS, BESIDE_PLAIN, SHORT, scenarios

OPTIONS = argparse.Namespace(seed=1, repetitions=2, go_on=True)
RUN_BESIDE_S = 4.5
"""To start an arm, its backends and the generator, and to end them, on a calm machine."""


class Named:
    """A scenario, as far as `repeat` looks at it."""

    def __init__(self, name: str) -> None:
        self.name = name


def sit(page: Path, source: str, chosen: Sequence[str], seconds: float) -> dict[str, Any]:
    """One sitting of two repetitions, and the page that it writes."""
    before = sit_down(page, OPTIONS, ())
    sitting = Sitting(before.earlier, source, f"commit-{source}", before.began_s - seconds)
    document: dict[str, Any] = {}
    for _, _, runs, drawn in repeat(
        [Named(name) for name in chosen],
        OPTIONS,
        sitting,
        arms=lambda _: ["x", "y"],
        attempt=lambda scenario, arm, number: (number, {"scenario": scenario.name, "arm": arm}),
        series=lambda number: {"of": number},
    ):
        now = {"seed": 1, "runs": list(runs), "series": dict(drawn)}
        document = sitting.joined(now, first=("series",))
        page.write_text(json.dumps(document))
    return document


def test_a_second_sitting_goes_on_from_the_first(tmp_path: Path) -> None:
    """Numbers, and with them seeds, go on; series stay those of the first repetition."""
    page = tmp_path / "page.json"
    first = sit(page, "s1", ["slow", "noisy"], 60)
    assert sorted(run["repetition"] for run in first["runs"]) == [0] * 4 + [1] * 4
    assert circumstances(first) == "one run of 1 min, seed 1, at commit-s1"
    second = sit(page, "s1", ["slow"], 60)
    assert sorted(r["repetition"] for r in second["runs"] if r["scenario"] == "slow") == [
        *[0, 0, 1, 1],
        *[2, 2, 3, 3],
    ]
    assert sum(run["scenario"] == "noisy" for run in second["runs"]) == 4
    assert second["series"] == first["series"]
    assert second["sources"] == {"s1": "commit-s1"}
    assert circumstances(second) == "2 sittings of together 2 min, seed 1, at commit-s1"


def test_repetitions_on_another_source_are_told_apart(tmp_path: Path) -> None:
    """By commit, with how many of each; those of a page of former days are of an unknown one."""
    page = tmp_path / "page.json"
    sit(page, "s1", ["slow"], 60)
    mixed = sit(page, "s2", ["slow"], 60)
    said = "by commit: 2 at commit-s1, 2 at commit-s2"
    assert circumstances(mixed) == f"2 sittings of together 2 min, seed 1, {said}"
    former = {"seed": 1, "wall_s": 60, "runs": [{"scenario": "slow", "repetition": 0}]}
    assert circumstances(former) == "one run of 1 min, seed 1, at an unknown commit"


def test_without_go_on_a_page_begins_anew(tmp_path: Path) -> None:
    """What was stored is not read."""
    page = tmp_path / "page.json"
    page.write_text("not JSON")
    fresh = sit_down(page, argparse.Namespace(go_on=False), ("core/traffic",))
    assert fresh.earlier == {}
    assert len(fresh.source) == 16


@pytest.mark.parametrize("seed", [1, 2])
def test_three_short_repetitions_beside_experts_take_half_an_hour(seed: int) -> None:
    """At most 35 minutes, with what starting and ending a run takes."""
    known, seconds = scenarios(seed, "short"), 0.0
    for name in SHORT:
        arms = len(BESIDE_EXPERTS) + (name in BESIDE_PLAIN)
        seconds += arms * (known[name].until_s + RUN_BESIDE_S)
        begin_s, end_s = known[name].window
        assert 0 < begin_s < end_s <= known[name].until_s
    assert 3 * seconds <= 35 * 60
