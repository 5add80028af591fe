"""What is published in `bench/results` is what was measured, and keeps what the docs say of it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench.cpu.promises import judge as judge_cpu
from bench.gpu_resolve import verdicts as resolve_verdicts
from bench.kube.promises import judge as judge_kube
from bench.lottery_shares import WAYS, exact_stake
from bench.lottery_shares import verdicts as shares_verdicts
from bench.traffic.promises import judge as judge_traffic

Judge = Callable[[list[dict[str, Any]], tuple[str, ...]], list[dict[str, Any]]]
ROOT = Path(__file__).parents[2]
RESULTS, PROMISES = ROOT / "bench" / "results", ROOT / "docs" / "promises.md"


def stored(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / name).read_text())
    return found


@pytest.mark.parametrize(
    ("name", "judge", "ours", "count"),
    [
        ("cpu.json", judge_cpu, {"nash"}, 8),
        ("traffic.json", judge_traffic, {"ours-haproxy", "ours-envoy", "ours-ebpf"}, 27),
    ],
)
def test_the_verdicts_follow_from_the_runs_and_are_kept(
    name: str, judge: Judge, ours: set[str], count: int
) -> None:
    """Judged again, they are the same: more workloads a second, all sooner, little memory."""
    document = stored(name)
    judged = tuple(dict.fromkeys(each["arm"] for each in document["promises"]))
    verdicts = judge(document["runs"], judged)
    assert [(v["promise"], v["arm"], v["passed"]) for v in verdicts] == [
        (v["promise"], v["arm"], v["passed"]) for v in document["promises"]
    ]
    found = [v for v in verdicts if v["arm"] in ours]
    assert len(found) >= count
    assert [v for v in found if not v["passed"]] == []


def test_a_sum_above_the_capacity_would_not_be_kept() -> None:
    """The judge says no where a run says no."""
    document = stored("cpu.json")
    runs = [{**run, "over_capacity_s": 1.0} for run in document["runs"]]
    broken = [v for v in judge_cpu(runs, ("nash",)) if not v["passed"]]
    assert any("capacity" in v["promise"] for v in broken)


def test_the_resolve_verdicts_are_kept() -> None:
    """Under a second, under three, and no worse than n log n, in both shapes."""
    report = stored("gpu_resolve.json")
    verdicts = resolve_verdicts(report)
    assert len(verdicts) == 6
    assert [v for v in verdicts if not v.startswith("kept")] == []
    calls: dict[str, list[float]] = {line["shape"]: [] for line in report["lines"]}
    for line in report["lines"]:
        calls[line["shape"]].append(line["calls_per_lease"])
    assert all(max(each) < 1.1 * min(each) for each in calls.values())


def test_under_stake_neither_splitting_nor_merging_pays() -> None:
    """As stored, and as computed again: losses are shares, and the lottery plays them."""
    report = stored("lottery_shares.json")
    assert set(shares_verdicts(report).values()) == {True}
    for row in report["rows"]:
        sizes, missing = WAYS[row["way"]]
        assert exact_stake(sizes, missing) == row["stake"]


def test_a_resolve_that_grows_too_fast_would_not_be_kept() -> None:
    """The judge says no where the measurement says no."""
    report = stored("gpu_resolve.json")
    report["growth_over_n_log_n"]["mixed"]["end_to_end"]["median"] = 1.01
    broken = [v for v in resolve_verdicts(report) if not v.startswith("kept")]
    assert broken == ["NOT kept: mixed, no worse than n log n"]


@pytest.mark.parametrize("name", ["cpu.md", "cpu-tradeoff.png", "traffic.md"])
def test_the_tables_and_pictures_are_there(name: str) -> None:
    """The README links them."""
    assert (RESULTS / name).stat().st_size > 1_000


def test_the_verdicts_beside_kueue_follow_from_the_runs() -> None:
    """Judged again, they are the same; `docs/promises.md` has their figures."""
    document = stored("kube.json")
    verdicts = judge_kube(document)
    assert verdicts == document["verdicts"]
    arm = "Fairlead, QPS 50; 15000 workloads"
    judged = {v["promise"]: v for v in verdicts if v["arm"] == arm}
    (row,) = [line for line in PROMISES.read_text().splitlines() if "python -m bench.kube" in line]
    factor = judged["at least 1.3 × Kueue's workloads/s"]["numbers"].rpartition("= ")[2]
    memory = judged["controller under 130 MiB"]["numbers"].partition(" ")[0]
    assert f"{factor} of the 1.3 times" in row
    assert f"{memory} MiB of 130" in row
    unlimited = [v for v in verdicts if v["arm"] == "Fairlead, no limit; 15000 workloads"]
    assert all(verdict["passed"] for verdict in unlimited), unlimited
    times = unlimited[0]["numbers"].rpartition("= ")[2]
    assert f"without a limit: {times} times" in row


def test_many_readers_on_one_core() -> None:
    """The stored run of `bench.api` keeps its goals: latency, also beside readers that take
    nothing, first paint, no event lost."""
    document = stored("api.json")
    load, goals = document["load"], document["goals"]
    assert load["milliseconds"]["p99"] < goals["p99_ms"] == 50
    for part in ("steady", "slow_readers"):
        assert load["parts"][part]["p99"] < 50, part
    assert load["slow_readers"] == 20
    assert load["per_s"] > 490
    assert (load["clients"], load["requests"]) == (200, 30_000)
    assert load["lost_or_repeated"] == goals["lost_or_repeated"] == 0
    assert document["first_paint_ms"]["runs"] == 10_000
    assert document["first_paint_ms"]["median"] < goals["first_paint_ms"] == 1000
