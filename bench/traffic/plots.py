"""The pictures of `bench.traffic`: the unhealthy backend's share, what clients saw, overload."""

from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from bench.side_by_side import Figures, order_of
from bench.traffic.report import LABELS, is_ours
from bench.traffic.scenarios import SICK, scenarios

PEER, OURS_COLOUR, HURT = "#8a8f98", "#1f6feb", "#d0342c"
# Good, late, refused, failed.
OUTCOMES = (("good", "#2f9e63"), ("late", "#f0a02f"), ("refused", "#9aa7b8"), ("failed", HURT))
TIMELINES = ("slow", "errors", "noisy", "killed")
RUSHES = ("overload", "retries", "monopoly", "dead", "brown-out", "rolling", "latency-lost")


def draw_plots(document: dict[str, Any], where: Path) -> None:
    mpl.use("Agg")
    plt.rcParams.update({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False})
    figures, name = Figures(document["runs"]), document.get("name", "traffic")
    ran = list(dict.fromkeys(run["scenario"] for run in document["runs"]))
    _save(_outcomes(figures, ran), where / f"{name}-outcomes.png")
    for scenario in (*TIMELINES, *RUSHES):
        if scenario in ran:
            _save(_over_time(document, scenario), where / f"{name}-{scenario}.png")


def _save(figure: plt.Figure, path: Path) -> None:
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)


_order = partial(order_of, labels=LABELS)


def _name(arm: str) -> str:
    return LABELS.get(arm, arm).replace("**", "")


def _outcomes(figures: Figures, ran: list[str]) -> plt.Figure:
    """A bar per arm and scenario: how much of what was asked became what."""
    columns = min(4, len(ran))
    rows = -(-len(ran) // columns)
    figure, grid = plt.subplots(
        rows,
        columns,
        figsize=(1.2 + 2.6 * columns, 3.4 * rows),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    arms = sorted({arm for scenario in ran for arm in figures.arms(scenario)}, key=_order)
    for axes in grid.flat[len(ran) :]:
        axes.set_axis_off()
    for axes, scenario in zip(grid.flat, ran, strict=False):
        here = figures.arms(scenario)
        for row, arm in enumerate(arms):
            if arm in here:
                _bar(axes, row, figures, scenario, arm)
        axes.set_title(scenario)
        axes.set_xlim(0, 1)
        axes.set_xlabel("share of requests")
    grid[0][0].set_yticks(range(len(arms)))
    grid[0][0].set_yticklabels([_name(arm) for arm in arms])
    grid[0][0].invert_yaxis()
    for label in (label for row in grid for label in row[0].get_yticklabels()):
        label.set_color(OURS_COLOUR if label.get_text().startswith("fairlead") else "#444")
    grid[0][-1].legend(
        [plt.Rectangle((0, 0), 1, 1, color=colour) for _, colour in OUTCOMES],
        [name for name, _ in OUTCOMES],
        loc="upper left",
        bbox_to_anchor=(1, 1),
        frameon=False,
    )
    return figure


def _bar(axes: Axes, row: int, figures: Figures, scenario: str, arm: str) -> None:
    requests = figures.of(scenario, arm, "requests") or 1.0
    left = 0.0
    good = figures.of(scenario, arm, "good_share") or 0.0
    others = [
        (figures.of(scenario, arm, name) or 0.0) / requests
        for name in ("late", "refused", "failed")
    ]
    for (_, colour), width in zip(OUTCOMES, (good, *others), strict=True):
        axes.barh(row, width, left=left, color=colour, height=0.75)
        left += width
    p99 = figures.of(scenario, arm, "p99_ms") or 0.0
    axes.text(0.02, row, f"p99 {p99:.0f} ms", va="center", color="white", fontsize=6)


def _over_time(document: dict[str, Any], scenario: str) -> plt.Figure:
    """Rows are arms: what clients saw per second, and over it the unhealthy backend's share."""
    series = document["series"]
    arms = sorted(
        (key.split("/")[1] for key in series if key.startswith(f"{scenario}/")), key=_order
    )
    known = scenarios(document["seed"], document.get("length", "full"))[scenario]
    columns = 2 if len(arms) > 4 else 1
    rows = -(-len(arms) // columns)
    figure, grid = plt.subplots(
        rows,
        columns,
        figsize=(6.2 * columns, 1.35 * rows + 0.5),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    marks = known.sick or (() if known.calm_s is None else (known.calm_s,))
    for axes in grid.flat[len(arms) :]:
        axes.set_axis_off()
    for axes, arm in zip(grid.T.flat, arms, strict=False):
        _draw_run(axes, series[f"{scenario}/{arm}"], share=scenario in TIMELINES)
        axes.axhline(known.capacity_per_s, color="#222", lw=0.6, ls="--")
        axes.set_title(_name(arm), loc="left", pad=2, color=OURS_COLOUR if is_ours(arm) else "#444")
        for at_s in marks:
            axes.axvline(at_s, color="#222", lw=0.8, ls=":")
        if known.kill_agent_s is not None:
            axes.axvline(known.kill_agent_s, color=HURT, lw=1, ls="--")
    figure.supylabel("requests per second")
    figure.supxlabel("s")
    figure.suptitle(
        f"{known.title}: "
        + ", ".join(name for name, _ in OUTCOMES)
        + (f"; line: share of {SICK}" if scenario in TIMELINES else "")
    )
    return figure


def _draw_run(axes: Axes, seen: dict[str, Any], *, share: bool) -> None:
    step = seen["step_s"]
    times = [index * step for index in range(len(seen["good_late_refused_failed"]))]
    stacked = list(zip(*seen["good_late_refused_failed"], strict=True))
    axes.stackplot(
        times,
        *[[value / step for value in each] for each in stacked],
        step="post",
        colors=[colour for _, colour in OUTCOMES],
        lw=0,
    )
    if share:
        came = seen["came"]
        totals = [max(1, sum(each)) for each in zip(*came.values(), strict=True)]
        other = axes.twinx()
        other.plot(
            times,
            [100 * a / b for a, b in zip(came[SICK], totals, strict=True)],
            color="#111",
            lw=0.9,
        )
        other.set_ylim(0, 60)
        other.set_yticks([0, 25, 50])
        other.set_yticklabels(["0", "25 %", "50 %"])
