"""The picture of a play: slots, requests, latency and the door on one time axis.

Needs matplotlib (the extra `plots`), imported on use, in the simulator's style.
"""

from pathlib import Path
from typing import Any

from fairlead.sim.plots import COLOURS, INK, STYLE, load_matplotlib
from fairlead.sim.traffic.figures import Second, timeline
from fairlead.sim.traffic.story import Played

MODE_COLOURS = {"normal": "#7fbf7b", "soft": "#f1a340", "hard": "#c51b3a", "": "#dddddd"}
FATES = (
    ("good", "within the SLO", "#0072B2"),
    ("late", "late", "#56B4E9"),
    ("failed", "failed", "#D55E00"),
    ("refused", "refused aloud", "#999999"),
)


def draw_plots(played: Played, folder: Path) -> list[str]:
    """Draw the play into `folder`; returns the name of the file."""
    mpl = load_matplotlib()
    with mpl.rc_context(STYLE):
        figure = _figure(mpl, played)
        # No version, no date: the same seed draws the same bytes.
        figure.savefig(folder / "play.png", metadata={"Software": None})
    return ["play.png"]


def _figure(mpl: Any, played: Played) -> Any:
    seconds = timeline(played)
    times = [each.at_s for each in seconds]
    figure = mpl.figure.Figure(figsize=(10, 8), layout="constrained")
    slots, door, fates, latency = figure.subplots(
        4, 1, sharex=True, gridspec_kw={"height_ratios": [3, 0.3, 3, 1.6]}
    )
    names = sorted({name for each in seconds for name in each.slots})
    slots.stackplot(
        times,
        [[each.slots.get(name, 0) for each in seconds] for name in names],
        labels=names,
        colors=[COLOURS[index % len(COLOURS)] for index in range(len(names))],
        lw=0,
        step="post",
    )
    slots.set(ylabel="slots", ylim=(0, played.config.s_total), xlim=(0, len(seconds)))
    slots.set_title("slots by backend", loc="left", fontsize=9)
    slots.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    _door(door, seconds)
    fates.stackplot(
        times,
        [[getattr(each, name) for each in seconds] for name, _, _ in FATES],
        labels=[label for _, label, _ in FATES],
        colors=[colour for _, _, colour in FATES],
        lw=0,
        step="post",
    )
    fates.set(ylabel="attempts per second")
    fates.set_title("what became of requests", loc="left", fontsize=9)
    fates.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    latency.plot(times, [each.p95_ms for each in seconds], color=INK, lw=1.2)
    latency.axhline(played.scenario.load.slo_ms, color="#D55E00", lw=0.8, ls="--")
    latency.set(ylabel="p95 in ms", xlabel="seconds", ylim=(0, None))
    for axes in (slots, fates, latency):
        for start, end in played.deaths:
            axes.axvspan(start / 1000, end / 1000, color="#000000", alpha=0.08, lw=0)
        for event in played.scenario.events:
            axes.axvline(event.at_s, color=INK, lw=0.6, ls=":")
    where = f"{played.plane} plane" + (", real time" if played.real else f", seed {played.seed}")
    figure.suptitle(f"{played.scenario.name}: {where}", x=0.01, ha="left", fontsize=12)
    return figure


def _door(axes: Any, seconds: list[Second]) -> None:
    for each in seconds:
        axes.axvspan(each.at_s, each.at_s + 1, color=MODE_COLOURS[each.mode], lw=0)
    axes.set(yticks=[], ylim=(0, 1), ylabel="door")
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
