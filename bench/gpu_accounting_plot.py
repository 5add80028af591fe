"""The picture of `bench.gpu_accounting`: what a question costs, beside the length of history."""

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt


def draw(report: dict[str, Any], path: Path) -> None:
    """Bars of p50 and p99 for the short and the long history, and the waits on Kueue's load."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    short, long = (f"{closed:,} closed" for closed in report["size"]["closed"])
    names = list(report["questions_us"])
    for offset, (key, label) in enumerate((("short", short), ("long", long))):
        for shade, percent in ((0.45, "p99"), (1.0, "p50")):
            left.bar(
                [x + 0.38 * offset for x in range(len(names))],
                [report["questions_us"][name][key][percent] for name in names],
                width=0.34,
                color=f"C{offset}",
                alpha=shade,
                label=f"{percent}, {label}",
            )
    left.set_yscale("log")
    left.set_xticks([x + 0.19 for x in range(len(names))], [n.replace("_", "\n") for n in names])
    left.set_ylabel("µs of CPU per call")
    left.set_title(f"{report['size']['envelopes']:,} envelopes, {report['size']['open']:,} open")
    left.legend(fontsize=8)
    ours = report["kueue_shape"]["fairlead"]
    waits = ours["average_wait_s"]
    right.bar(list(waits), list(waits.values()), color="C2")
    right.set_ylabel("average wait, s (virtual)")
    right.set_title(
        f"Kueue's baseline load: {ours['decisions_per_s']:,} decisions/s, "
        f"p99 {ours['decision_p99_us']} µs"
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)
