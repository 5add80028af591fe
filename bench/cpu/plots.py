"""The pictures of `bench.cpu`: allocation against harm, limits over time, the adversary's gain."""

from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from bench.cpu.scenarios import CAPACITY_MILLICORES, OURS, scenarios
from bench.side_by_side import Figures

PEER, OURS_COLOUR, USED, HELD = "#8a8f98", "#1f6feb", "#f0a02f", "#d0342c"
NAMES = {
    "static-p95": "static p95",
    "static-2x": "static 2×",
    "vpa-24h": "VPA 24 h",
    "vpa-10min": "VPA 10 min",
    "mbcas": "MBCAS",
    "captain": "Captain",
    "no-limits": "no limits",
    "static-weights": "static weights",
}
WATCHED = {
    "mixed-60": ("vpa-24h", "mbcas", "captain", "demand-capped", "nash"),
    "mixed-130": ("static-2x", "mbcas", "captain", "demand-capped", "nash"),
    "bursty": ("mbcas", "captain", "demand-capped", "nash"),
}


def draw_plots(document: dict[str, Any], where: Path) -> None:
    mpl.use("Agg")
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figures = Figures(document["runs"])
    if document.get("name", "cpu") != "cpu":
        _save(_weights(figures), where / f"{document['name']}.png")
        return
    ran = {run["scenario"] for run in document["runs"]}
    if {"mixed-60", "mixed-130"} & ran:
        _save(_trade_off(figures, ran), where / "cpu-tradeoff.png")
    for scenario in sorted(ran & WATCHED.keys()):
        picture = _over_time(document["series"], scenario)
        if picture is not None:
            _save(picture, where / f"cpu-{scenario}.png")
    if "adversary" in ran:
        _save(_adversary(figures), where / "cpu-adversary.png")


def _save(figure: plt.Figure, path: Path) -> None:
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)


def _trade_off(figures: Figures, ran: set[str]) -> plt.Figure:
    """Left: throttling against slack at 60 %. Right: the service's p99 against its allocation."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.4), gridspec_kw={"wspace": 0.3})
    if "mixed-60" in ran:
        for arm in figures.arms("mixed-60"):
            if arm != "no-limits":
                x = figures.of("mixed-60", arm, "slack") * 100
                y = figures.of("mixed-60", arm, "throttled_ratio") * 100
                _mark(left, arm, x, y)
        left.set(xlabel="slack, % of what is allocated", ylabel="throttled periods, %")
        left.set_title("60 % need: less of both is better")
        left.axhline(1, color=HELD, lw=0.8, ls=":")
        left.margins(x=0.14)
    if "mixed-130" in ran:
        for arm in figures.arms("mixed-130"):
            x = min(figures.of("mixed-130", arm, "mean_limit_millicores", "pods", "web"), 500)
            _mark(right, arm, x, figures.of("mixed-130", arm, "p99_ms"))
        right.set(xlabel="the service's mean limit, m (unlimited drawn at 500)", yscale="log")
        right.set_ylabel("the service's p99, ms")
        right.set_title("130 % need: lower and further left is better")
        right.margins(x=0.14)
        right.yaxis.set_major_formatter("{x:.0f}")
        right.yaxis.set_minor_formatter("")
        right.set_yticks([10, 20, 50, 100, 200])
    return figure


def _weights(figures: Figures) -> plt.Figure:
    """Left: p99 against batch work at 130 %. Right: p99 on the bursty mix, each repetition."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.4), gridspec_kw={"wspace": 0.5})
    for arm in figures.arms("mixed-130"):
        runs = figures.runs("mixed-130", arm)
        work = median(run["work"]["batch"] / run["seconds"] for run in runs)
        _mark(left, arm, work, figures.of("mixed-130", arm, "p99_ms"))
    left.set(xlabel="batch: units of work per second", ylabel="the service's p99, ms")
    left.set_yscale("log")
    left.yaxis.set_major_formatter("{x:.0f}")
    left.yaxis.set_minor_formatter("")
    left.set_yticks([10, 20, 50, 100])
    left.set_title("130 % need: lower and further right is better")
    left.margins(x=0.18)
    arms = figures.arms("bursty")
    for place, arm in enumerate(arms):
        values = figures.values("bursty", arm, "p99_ms")
        colour = PEER if arm in NAMES else OURS_COLOUR
        right.plot(values, [place] * len(values), "o", color=colour, ms=6, alpha=0.7)
        right.plot(median(values), place, "|", color=colour, ms=16, mew=2)
    right.set_yticks(range(len(arms)))
    right.set_yticklabels([NAMES.get(arm, f"fairlead {arm}") for arm in arms])
    right.set(xlabel="the service's p99, ms", xscale="log", title="bursty mix, each repetition")
    right.xaxis.set_major_formatter("{x:.0f}")
    right.xaxis.set_minor_formatter("")
    right.set_xticks([5, 10, 20, 50, 100])
    return figure


def _mark(axes: Axes, arm: str, x: float, y: float) -> None:
    ours = arm not in NAMES
    axes.plot(x, y, "o", color=OURS_COLOUR if ours else PEER, ms=8 if ours else 6)
    # Two that are nearly alike everywhere: their names go below and above.
    below = arm in ("vpa-10min", "demand-capped", "static-2x", "market", "nash-weights")
    axes.annotate(
        NAMES.get(arm, arm),
        (x, y),
        xytext=(6, -11 if below else 5),
        textcoords="offset points",
        color=OURS_COLOUR if ours else "#444",
        fontsize=8,
    )


def _over_time(series: dict[str, Any], scenario: str) -> plt.Figure | None:
    """Every pod (rows) under some arms (columns): limit, usage, and where it was throttled."""
    extra = [key.split("/")[1] for key in series if key.startswith(f"{scenario}/")]
    extra = [arm for arm in extra if arm not in NAMES and arm not in OURS]
    arms = [arm for arm in (*WATCHED[scenario], *extra) if f"{scenario}/{arm}" in series]
    if not arms:
        return None
    pods = [pod.name for pod in scenarios()[scenario].pods]
    figure, grid = plt.subplots(
        len(pods),
        len(arms),
        figsize=(3.1 * len(arms), 1.35 * len(pods)),
        sharex=True,
        sharey="row",
        squeeze=False,
    )
    for row, pod in enumerate(pods):
        for column, arm in enumerate(arms):
            _draw_pod(grid[row][column], series[f"{scenario}/{arm}"], pod)
        grid[row][0].set_ylabel(f"{pod}\nm")
    for column, arm in enumerate(arms):
        grid[0][column].set_title(NAMES.get(arm, f"fairlead {arm}"))
        grid[-1][column].set_xlabel("s")
    grid[0][-1].legend(loc="upper right", fontsize=7, frameon=False)
    return figure


def _draw_pod(axes: Axes, seen: dict[str, Any], pod: str) -> None:
    times, rows = seen["t"], seen["pods"][pod]
    used = [row[1] for row in rows]
    limits = [float("nan") if row[0] is None else row[0] for row in rows]
    axes.fill_between(times, used, step="pre", color=USED, alpha=0.55, lw=0, label="used")
    axes.step(times, limits, where="pre", color=OURS_COLOUR, lw=1.3, label="limit")
    late = [(at, row[1]) for at, row in zip(times, rows, strict=True) if row[2]]
    if late:
        axes.plot(*zip(*late, strict=True), ".", color=HELD, ms=3, label="throttled")
    axes.set_ylim(0, max(120, min(1.3 * max(used), CAPACITY_MILLICORES)))


def _adversary(figures: Figures) -> plt.Figure:
    """What the honest pod and the adversary used of the node, per arm."""
    arms = figures.arms("adversary")
    figure, axes = plt.subplots(figsize=(7.5, 3.4))
    for shift, (pod, colour) in enumerate([("honest", PEER), ("adversary", HELD)]):
        values = [figures.of("adversary", arm, "mean_used_millicores", "pods", pod) for arm in arms]
        places = [index + 0.38 * shift for index in range(len(arms))]
        axes.bar(places, values, 0.36, color=colour, label=f"{pod}, same weight")
    for index, arm in enumerate(arms):
        p99 = figures.of("adversary", arm, "p99_ms")
        axes.text(index + 0.19, 15, f"p99 {p99:.0f} ms", ha="center", color="white", fontsize=7)
    axes.set_xticks([index + 0.19 for index in range(len(arms))])
    axes.set_xticklabels([NAMES.get(arm, f"fairlead\n{arm}") for arm in arms])
    axes.set_ylabel("CPU used, m")
    axes.set_title("Eight spinning processes against one busy thread, and the service beside them")
    axes.legend(frameon=False)
    return figure
