"""The picture of `bench.compiled`: time per pod of each arm, and what compiling gives."""

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

NAMES = {
    "go": "Go, doubles",
    "interpreted": "core, interpreted",
    "compiled": "core, compiled",
    "fleet": "fleet path",
}
# Distinguishable without colour vision (Okabe and Ito), and by hatching.
COLOURS = {"go": "#999999", "interpreted": "#56B4E9", "compiled": "#0072B2", "fleet": "#D55E00"}
HATCHES = {"go": "", "interpreted": "//", "compiled": "", "fleet": "\\\\"}
BAR = 0.2


def draw(report: dict[str, Any], path: Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    _per_pod(left, [line for line in report["lines"] if "microseconds_per_pod" in line])
    _gain(right, report["lines"])
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _per_pod(axes: Axes, lines: list[dict[str, Any]]) -> None:
    for offset, arm in enumerate(NAMES):
        spreads = [line["microseconds_per_pod"][arm] for line in lines]
        places = [place + (offset - 1.5) * BAR for place in range(len(lines))]
        axes.bar(
            places,
            [spread["median"] for spread in spreads],
            BAR,
            yerr=_errors(spreads),
            label=NAMES[arm],
            color=COLOURS[arm],
            hatch=HATCHES[arm],
            capsize=2,
        )
    axes.set_xticks(range(len(lines)), [line["contest"] for line in lines])
    axes.set(ylabel="CPU microseconds per pod", title="500 nodes of 110 pods")
    axes.legend(fontsize=9)
    axes.grid(axis="y", alpha=0.3)


def _gain(axes: Axes, lines: list[dict[str, Any]]) -> None:
    spreads = [line["compiled_times_faster_than_interpreted"] for line in lines]
    places = range(len(lines))
    axes.barh(
        places,
        [spread["median"] for spread in spreads],
        xerr=_errors(spreads),
        color=COLOURS["compiled"],
        capsize=2,
    )
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks(places, [line["contest"] for line in lines])
    axes.invert_yaxis()
    axes.set(xlabel="times as fast as interpreted", title="what compiling gives")
    axes.grid(axis="x", alpha=0.3)


def _errors(spreads: list[dict[str, float]]) -> list[list[float]]:
    return [
        [spread["median"] - spread["low"] for spread in spreads],
        [spread["high"] - spread["median"] for spread in spreads],
    ]
