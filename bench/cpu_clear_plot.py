"""The picture of `bench.cpu_clear`: time by size of a node, time of a fleet, broken promises."""

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

NAMES = {"floats": "straightforward floats", "scalar": "scalar path", "fleet": "fleet path"}
# Distinguishable without colour vision (Okabe and Ito) and by marker.
COLOURS = {"floats": "#999999", "scalar": "#0072B2", "fleet": "#D55E00"}
MARKERS = {"floats": "s", "scalar": "o", "fleet": "^"}
BAR = 0.27


def draw(report: dict[str, Any], path: Path) -> None:
    """Three panels of one node above, the fleet and the promises below."""
    figure = plt.figure(figsize=(12, 8), layout="constrained")
    policies = [counted["policy"] for counted in report["promises"]]
    grid = figure.add_gridspec(2, 6, height_ratios=(1, 1.05))
    first: Axes | None = None
    for place, policy in enumerate(policies):
        axes = figure.add_subplot(grid[0, 2 * place : 2 * place + 2], sharey=first)
        _one_node(axes, report, policy, first=first is None)
        first = first or axes
    _fleet(figure.add_subplot(grid[1, :3]), report, policies)
    _promises(figure.add_subplot(grid[1, 3:]), report, policies)
    _caption(figure, report)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _one_node(axes: Axes, report: dict[str, Any], policy: str, *, first: bool) -> None:
    lines = [x for x in report["lines"] if x["policy"] == policy and x["nodes_per_call"] == 1]
    sizes = [line["pods_per_node"] for line in lines]
    for name, label in NAMES.items():
        spreads = [line["seconds_per_node"][name] for line in lines]
        middle = [spread["median"] * 1e3 for spread in spreads]
        low = [spread["low"] * 1e3 for spread in spreads]
        high = [spread["high"] * 1e3 for spread in spreads]
        axes.fill_between(sizes, low, high, color=COLOURS[name], alpha=0.2, linewidth=0)
        axes.plot(sizes, middle, color=COLOURS[name], marker=MARKERS[name], label=label)
    axes.set(xscale="log", yscale="log", xlabel="pods on the node", title=f"one node, {policy}")
    axes.set_xticks(sizes, [f"{size:,}".replace(",", " ") for size in sizes])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    if first:
        axes.set_ylabel("CPU ms per clearing (log)")
        axes.legend(loc="upper left", fontsize=9)


def _fleet(axes: Axes, report: dict[str, Any], policies: list[str]) -> None:
    lines = [line for line in report["lines"] if line["nodes_per_call"] > 1]
    nodes, pods = lines[0]["nodes_per_call"], lines[0]["pods_per_node"]
    for offset, name in enumerate(NAMES):
        places = [place + (offset - 1) * BAR for place in range(len(lines))]
        seconds = [line["seconds_per_node"][name]["median"] * nodes for line in lines]
        bars = axes.bar(places, seconds, BAR * 0.92, color=COLOURS[name], label=NAMES[name])
        texts = [_seconds(value) for value in seconds]
        if name == "fleet":
            ratios = [line["fleet_times_faster_than_scalar"]["median"] for line in lines]
            texts = [f"{r:.0f}x\n{t}" for t, r in zip(texts, ratios, strict=True)]
        axes.bar_label(bars, texts, fontsize=9, padding=2)
    axes.set(yscale="log", ylabel="CPU seconds for the whole fleet (log)")
    axes.yaxis.set_major_formatter("{x:g}")
    title = f"{nodes:,} nodes of {pods} pods (x: times faster than scalar)"
    axes.set_title(title.replace(",", " "))
    axes.set_xticks(range(len(policies)), policies)
    axes.margins(y=0.18)
    axes.grid(axis="y", alpha=0.3)


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 1 else f"{value * 1e3:.0f} ms"


def _promises(axes: Axes, report: dict[str, Any], policies: list[str]) -> None:
    kinds = {"over_capacity": "Σ above capacity", "not_handed_out_whole": "Σ not equal capacity"}
    series = [("floats", kind, label) for kind, label in kinds.items()]
    for offset, (name, kind, label) in enumerate(series):
        shares = [100 * x[name][kind] / x["scarce_nodes"] for x in report["promises"]]
        places = [place + (offset - 1) * BAR for place in range(len(shares))]
        shade = "#555555" if offset else "#BBBBBB"
        bars = axes.bar(places, shares, BAR * 0.92, color=shade, label=f"floats: {label}")
        axes.bar_label(bars, [f"{share:.0f} %" for share in shares], fontsize=9, padding=2)
    ours = [sum(x[n][k] for n in ("scalar", "fleet") for k in kinds) for x in report["promises"]]
    places = [place + BAR for place in range(len(ours))]
    bars = axes.bar(places, ours, BAR * 0.92, color=COLOURS["fleet"], label="ours: either")
    axes.bar_label(bars, [f"{count}" for count in ours], fontsize=9, padding=2)
    axes.set(ylabel="% of nodes where capacity is scarce", ylim=(0, 125))
    axes.set_title("broken promises about the sum of the grants")
    axes.set_xticks(range(len(policies)), policies)
    axes.legend(loc="upper center", ncols=3, fontsize=8.5, columnspacing=1.0, handlelength=1.2)
    axes.grid(axis="y", alpha=0.3)


def _caption(figure: Figure, report: dict[str, Any]) -> None:
    counts = sorted({line["repetitions"] for line in report["lines"]})
    figure.supxlabel(
        f"Python {report['python']}, numpy {report['numpy']}, {report['cpus']} CPUs; medians of "
        f"{' to '.join(map(str, counts))} interleaved repetitions, bands are quartiles. Nodes are "
        "overloaded, congested and uncongested in equal parts;\nwhere promises are judged, a "
        "fourth part is starved (less than 10m per pod)",
        fontsize=9,
    )
