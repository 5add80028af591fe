"""Our demand signal beside MBCAS's, on real cgroups: `python -m bench.cpu_signal`.

For one busy thread, two busy threads and an open-loop service, the limit is swept from far too low
to ample. The true shortage is known: 1 - limit/want, where a busy thread wants a core and the
service what it uses without a limit. Once it falls behind, a service has a backlog and wants its
whole thread, so both truths are drawn. Our reading is `core.cpu.signal`'s shortage; MBCAS reads
clip((throttled / usage) / 0.1). Writes bench/results/cpu_signal.json and
docs/images/demand-signal.png.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from bench.cpu.peers import mbcas_demand
from bench.cpu.processes import start_pods
from bench.cpu.scenarios import BenchPod, Load, Scenario, batch, service
from bench.cpu.tree import BenchTree, bench_tree
from bench.timing import ROOT, write_results
from fairlead.core.cpu import Counters
from fairlead.core.cpu.signal import read_signal

PICTURE = ROOT / "docs" / "images" / "demand-signal.png"
SHORTAGES = (0.0, 0.03, 0.06, 0.09, 0.15, 0.25, 0.35, 0.5, 0.65, 0.8, 0.9)
# A service needs room above its mean: these limits are above it.
ROOMY = (-1.0, -0.6, -0.4, -0.2, -0.1)
SETTLE_S, WINDOW_S = 0.6, 1.0
OURS, THEIRS, TRUTH = "#1f6feb", "#d0342c", "#8a8f98"


def cases() -> dict[str, tuple[Scenario, float | None]]:
    """Workload and its want in millicores (None: measure it without a limit)."""
    spinning = BenchPod("two", 100, {"": Load("adversary", 2000, {"processes": 2})})
    return {
        "one busy thread": (_only(batch("one", 1000, 100, busy=True)), 1000.0),
        "two busy threads": (_only(spinning), 2000.0),
        "open-loop service": (_only(service("web", 300)), None),
    }


def _only(pod: BenchPod) -> Scenario:
    return Scenario(pod.name, pod.name, (pod,), ())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cpu_signal", description=__doc__)
    parser.add_argument("--windows", type=int, default=5, help="readings per limit")
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("bench.cpu_signal writes cgroups: run it as root")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    result: dict[str, Any] = {}
    with bench_tree("fairlead-bench-signal") as tree:
        for name, (scenario, want) in cases().items():
            result[name] = _sweep(tree, scenario, want, options.windows)
            print(name, json.dumps(result[name]["points"]), sep="\n", flush=True)
    result_document = {"cases": result, "largest_error": _largest_error(result)}
    write_results("cpu_signal", result_document)
    _draw(result)


def _sweep(tree: BenchTree, scenario: Scenario, want: float | None, windows: int) -> dict[str, Any]:
    """Readings at every limit. The service starts afresh each time, without an old backlog."""
    pod = scenario.pods[0]
    path = f"{scenario.name}/{pod.name}"
    tree.add(scenario.name, request_millicores=1000)
    tree.add(path, request_millicores=1000)
    shortages = SHORTAGES
    if want is None:
        want = median(seen["used"] for seen in _read(tree, scenario, None, windows))
        shortages = ROOMY + SHORTAGES
    points = []
    for shortage in shortages:
        limit = max(10, round(want * (1 - shortage)))
        seen = _read(tree, scenario, limit, windows)
        points.append(
            {
                "true_shortage": round(1 - limit / want, 4),
                "limit_millicores": limit,
                "ours": [round(reading["ours"], 4) for reading in seen],
                "mbcas": [round(reading["mbcas"], 4) for reading in seen],
                "want_millicores": [reading["want"] for reading in seen],
                "throttled_ratio": [round(reading["throttled"], 2) for reading in seen],
            }
        )
    return {"want_millicores": round(want), "points": points}


def _read(
    tree: BenchTree, scenario: Scenario, limit: int | None, windows: int
) -> list[dict[str, float]]:
    path = f"{scenario.name}/{scenario.pods[0].name}"
    tree.unlimit()
    seen = []
    with tempfile.TemporaryDirectory() as place:
        until_s = 1.0 + SETTLE_S + windows * WINDOW_S
        with start_pods(tree, scenario, Path(place), seed=3, until_s=until_s) as running:
            running.go(time.monotonic())
            tree.limit(path, limit)
            time.sleep(SETTLE_S)
            files = tree.files.container(path)
            before = files.counters()
            for _ in range(windows):
                time.sleep(WINDOW_S)
                after = files.counters()
                seen.append(_reading(before, after))
                before = after
            files.close()
    return seen


def _reading(before: Counters | None, after: Counters | None) -> dict[str, float]:
    reading = read_signal(before, after)
    if before is None or after is None or reading is None:
        sys.exit("the counters could not be read")
    held, used = after.throttled_us - before.throttled_us, after.usage_us - before.usage_us
    return {
        "ours": reading.shortage,
        "mbcas": mbcas_demand(held, used),
        "used": reading.usage_millicores,
        "want": reading.want_millicores,
        "throttled": reading.throttled_ratio,
    }


def _largest_error(result: dict[str, Any]) -> dict[str, float]:
    """How far the median reading lies from the truth, at worst."""
    return {
        name: round(max(abs(median(p["ours"]) - p["true_shortage"]) for p in case["points"]), 4)
        for name, case in result.items()
        if case["points"][0]["true_shortage"] >= 0  # a backlog has no single truth
    }


def _draw(result: dict[str, Any]) -> None:
    mpl.use("Agg")
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, grid = plt.subplots(1, len(result), figsize=(11, 3.5), sharey=True)
    for axes, (name, case) in zip(grid, result.items(), strict=True):
        _draw_case(axes, case)
        axes.set_title(f"{name}, wants {case['want_millicores']}m")
        axes.set_xlabel("true shortage, %")
    grid[-1].set_xlabel("true shortage against its mean, % (left of 0: room)")
    grid[0].set_ylabel("reading, %")
    handles, labels = grid[-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=4, frameon=False)
    figure.subplots_adjust(bottom=0.25, wspace=0.08)
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURE, dpi=110, bbox_inches="tight")


def _draw_case(axes: Axes, case: dict[str, Any]) -> None:
    points = case["points"]
    truth = [point["true_shortage"] * 100 for point in points]
    axes.plot(truth, [max(0, t) for t in truth], color=TRUTH, lw=1, ls="--", label="the truth")
    behind = [point for point in points if point["true_shortage"] >= 0]
    if len(behind) < len(points):
        whole = [100 - point["limit_millicores"] / 10 for point in behind]
        axes.plot(
            [point["true_shortage"] * 100 for point in behind],
            whole,
            color=TRUTH,
            lw=1,
            ls=":",
            label="the truth with a backlog: a whole thread",
        )
    for key, colour, label in (
        ("mbcas", THEIRS, "MBCAS: clip((throttled/usage)/0.1)"),
        ("ours", OURS, "fairlead: shortage"),
    ):
        middle = [median(point[key]) * 100 for point in points]
        axes.plot(truth, middle, "o-", color=colour, ms=4, lw=1.4, label=label)
        for at, point in zip(truth, points, strict=True):
            spread = [min(point[key]) * 100, max(point[key]) * 100]
            axes.plot([at, at], spread, color=colour, lw=0.8, alpha=0.6)


if __name__ == "__main__":
    main()
