"""The picture of `bench.gpu_queue`: waits by size class, utilisation and fairness."""

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

# Distinguishable without colour vision (Okabe and Ito).
COLOURS = {"fifo": "#999999", "kueue": "#E69F00", "easy": "#56B4E9", "fairlead": "#0072B2"}


def draw(report: dict[str, Any], path: Path) -> None:
    """Mean waits, p99 waits, then utilisation and Jain's index beside each other."""
    figure, axes = plt.subplots(1, 4, figsize=(15, 4.2), layout="constrained")
    mean = report["mean"]
    for axis, figure_name in zip(axes[:2], ("mean", "p99"), strict=True):
        _waits(axis, mean, figure_name)
    for axis, key, title in (
        (axes[2], "utilisation", "GPU-time in use"),
        (axes[3], "jain", "Jain index of satisfied entitlement"),
    ):
        values = [mean[name][key] for name in COLOURS]
        bars = axis.bar(list(COLOURS), values, color=list(COLOURS.values()))
        axis.bar_label(bars, [f"{value:.3f}" for value in values], padding=2, fontsize=9)
        axis.set_title(title, fontsize=11)
        axis.set_ylim(0, 1.1)
        axis.grid(axis="y", alpha=0.3)
    figure.supxlabel(
        f"{report['runs']} runs in the shape of the Philly trace on {report['gpus']} GPUs, "
        f"offered load {report['offered']:g}, means over seeds {report['seeds']}",
        fontsize=9,
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _waits(axis: Axes, mean: dict[str, Any], what: str) -> None:
    classes = [name for name in mean["fifo"]["wait_h"] if name != "all"]
    width = 0.8 / len(COLOURS)
    for i, (name, colour) in enumerate(COLOURS.items()):
        places = [place + (i - 1.5) * width for place in range(len(classes))]
        hours = [mean[name]["wait_h"][size][what] for size in classes]
        axis.bar(places, hours, width, color=colour, label=name)
    axis.set_xticks(range(len(classes)), [f"{size} GPU" for size in classes])
    axis.set_title(f"{what} wait in hours", fontsize=11)
    axis.grid(axis="y", alpha=0.3)
    if what == "mean":
        axis.legend(fontsize=8.5)
