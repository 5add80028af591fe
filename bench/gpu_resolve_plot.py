"""The picture of `bench.gpu_resolve`: time by size, overshoot and fairness beside naive ways."""

import math
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

# Distinguishable without colour vision (Okabe and Ito) and by marker.
SERIES = {
    ("mixed", "core"): ("#0072B2", "o", "core, spares, steps and draws"),
    ("lottery", "core"): ("#56B4E9", "s", "core, draws only"),
    ("mixed", "end_to_end"): ("#D55E00", "^", "end to end"),
}


def draw(report: dict[str, Any], path: Path) -> None:
    """Time on the left, overshoot in the middle, fairness on the right."""
    figure, axes = plt.subplots(1, 3, figsize=(14, 4.2), layout="constrained")
    _time(axes[0], report["lines"])
    shape = report["philly_shape"]
    _bars(axes[1], shape, "overshoot", "GPUs removed ÷ GPUs missing")
    _bars(axes[2], shape, "jain", "Jain index of GPU-hours lost ÷ entitlement")
    axes[2].set_ylim(0, 1.05)
    figure.supxlabel(
        f"Python {report['python']}, {report['cpus']} CPUs. Philly-like load: {shape['conflicts']} "
        f"conflicts on {shape['gpus']} GPUs, deficits of {min(shape['deficits'])} to "
        f"{max(shape['deficits'])}",
        fontsize=9,
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _time(axes: Axes, lines: list[dict[str, Any]]) -> None:
    for (shape, what), (colour, marker, label) in SERIES.items():
        mine = [line for line in lines if line["shape"] == shape]
        sizes = [line["leases"] for line in mine]
        took = [line["seconds"][what]["median"] for line in mine]
        axes.plot(sizes, took, color=colour, marker=marker, label=label)
        if (shape, what) == ("mixed", "core"):
            unit = took[0] / (sizes[0] * math.log(sizes[0]))
            bound = [unit * n * math.log(n) for n in sizes]
            axes.plot(sizes, bound, color="#999999", linestyle=":", label="n log n")
    axes.set(xscale="log", yscale="log", xlabel="candidate leases", ylabel="CPU seconds (log)")
    axes.set_title("a resolve with a deficit of 20 %")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8.5)


def _bars(axes: Axes, report: dict[str, Any], key: str, title: str) -> None:
    names = list(report["contestants"])
    values = [report["contestants"][name][key] for name in names]
    colours = ["#0072B2", "#56B4E9", "#999999", "#999999"]
    bars = axes.bar([name.replace(", ", ",\n") for name in names], values, color=colours)
    axes.bar_label(bars, [f"{value:.2f}" for value in values], padding=2, fontsize=9)
    axes.set_title(title, fontsize=11)
    axes.margins(y=0.15)
    axes.grid(axis="y", alpha=0.3)
