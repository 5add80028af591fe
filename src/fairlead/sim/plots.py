"""The pictures of a played scenario. Needs matplotlib (the extra `plots`), imported on use.

Per policy: what the pods want and what they are granted, stacked against the capacity, the mode,
what went unserved and the shadow price; then one small panel per pod. With several policies also
a comparison.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import wrap
from typing import Any

from fairlead.core.cpu import CpuMode
from fairlead.sim.simulation import PolicyRun, ScenarioResult

INSTALL_HINT = "pip install 'fairlead[plots]'"
PANELS_MAX = 12
# Okabe and Ito's colours: distinguishable for colour-blind readers, and in print.
COLOURS = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"),
    *("#999933", "#882255", "#44AA99", "#AA4499", "#117733", "#332288"),
)
MODE_COLOURS = {
    CpuMode.UNCONGESTED: "#7fbf7b",
    CpuMode.CONGESTED: "#f1a340",
    CpuMode.OVERLOADED: "#c51b3a",
}
INK, FAINT = "#333333", "#bbbbbb"
STYLE = {
    "font.size": 9,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#eeeeee",
    "axes.axisbelow": True,
    "figure.dpi": 110,
    "legend.frameon": False,
}


class PlotsMissing(ImportError):
    """matplotlib is not installed."""


def load_matplotlib() -> Any:
    """matplotlib, or `PlotsMissing`. Figures are made directly: no display, no global state."""
    try:
        import matplotlib as mpl  # noqa: PLC0415 - optional and slow to import
        import matplotlib.figure  # noqa: PLC0415 - as above
    except ImportError as error:
        raise PlotsMissing(f"plots need matplotlib: {INSTALL_HINT}") from error
    return mpl


@contextmanager
def drawn(path: Path, width: float, height: float, title: str = "") -> Iterator[Any]:
    """A figure in our style, saved at the end without version or date: the same seed draws the
    same bytes."""
    mpl = load_matplotlib()
    with mpl.rc_context(STYLE):
        figure = mpl.figure.Figure(figsize=(width, height), layout="constrained")
        yield figure
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=12)
        figure.savefig(path, metadata={"Software": None})


def colour_of(place: int) -> str:
    return COLOURS[place % len(COLOURS)]


def strip(axes: Any) -> None:
    axes.set(yticks=[], ylim=(0, 1))
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


def draw_plots(played: ScenarioResult, folder: Path) -> list[str]:
    names, scenario = [], f"{played.scenario.name}, seed {played.seed}"
    for run in played.runs:
        if run.frames:
            names += [f"{run.name}-node.png", f"{run.name}-pods.png"]
            title = f"{scenario}: policy {run.name.replace('-act', ' act')}"
            with drawn(folder / names[-2], 10, 9, title) as figure:
                _node_panels(figure, played, run)
            _draw_pods(run, folder / names[-1])
    if len(played.runs) > 1:
        names.append("compare.png")
        with drawn(folder / names[-1], 10, 3.6) as figure:
            title = f"{played.scenario.name}: the same load, seed {played.seed}"
            figure.suptitle(title, x=0.01, ha="left")
            _compare_panels(figure, played)
    return names


# --- the node


def _node_panels(figure: Any, played: ScenarioResult, run: PolicyRun) -> None:
    acts, want, mode, grant, short, price = figure.subplots(
        6, 1, sharex=True, gridspec_kw={"height_ratios": [0.45, 3, 0.28, 3, 1.5, 1.2]}
    )
    # Pods that opted out stand outside the capacity that is drawn.
    names = [pod.pod for pod in run.pods if not pod.opted_out]
    colours = {name: colour_of(place) for place, name in enumerate(names)}
    whole = max(frame.capacity for frame in run.frames)
    top = max(_stack(want, run, "want", names, colours), whole)
    _stack(grant, run, "limit", names, colours)
    # Before the first apply the users' own limits stand, and they may be anything: cut them off.
    for axes, title, high in ((want, "wanted", top), (grant, "granted (limits)", whole * 1.08)):
        axes.step(_seconds(run), [f.capacity / 1000 for f in run.frames], color=INK, lw=1.4)
        axes.set(ylabel="cores", ylim=(0, high / 1000 * 1.05), xlim=(0, run.node.seconds))
        _title(axes, title)
    _stack(short, run, "unserved", names, colours)
    short.set(ylabel="cores")
    _title(short, "wanted and not served at once")
    _mode_strip(mode, run)
    _price(price, run)
    _act_strip(acts, played, run)
    handles, labels = want.get_legend_handles_labels()
    line = load_matplotlib().lines.Line2D([], [], color=INK, lw=1.4)
    shown = [*handles[::-1], line], [*labels[::-1], "capacity"]
    figure.legend(*shown, loc="outside right upper", title="pods", alignment="left")


def _stack(axes: Any, run: PolicyRun, field: str, names: list[str], colours: dict[str, str]) -> int:
    series = {name: [0] * len(run.frames) for name in names}
    for place, frame in enumerate(run.frames):
        for pod in frame.pods:
            if pod.uid in series:
                series[pod.uid][place] = getattr(pod, field) or 0
    if names:
        cores = [[value / 1000 for value in series[name]] for name in names]
        style = {"colors": [colours[name] for name in names], "lw": 0, "alpha": 0.9}
        axes.stackplot(_seconds(run), cores, labels=names, step="post", **style)
    axes.margins(x=0)
    return max((sum(column) for column in zip(*series.values(), strict=True)), default=0)


def _mode_strip(axes: Any, run: PolicyRun) -> None:
    """One colour per mode, each stretch labelled where it is long enough to read."""
    for start, end, mode in _stretches(run):
        colour = MODE_COLOURS[mode] if mode else "#dddddd"
        axes.axvspan(start, end, color=colour, lw=0)
        if mode and (end - start) * 9 > run.node.seconds:
            ink = "white" if mode is CpuMode.OVERLOADED else INK
            middle = (start + end) / 2
            axes.text(middle, 0.45, mode.value, ha="center", va="center", fontsize=8, color=ink)
    strip(axes)


def _stretches(run: PolicyRun) -> list[tuple[float, float, CpuMode | None]]:
    """(from, to, mode) in seconds; a frame shows the second that ends at its time."""
    stretches: list[tuple[float, float, CpuMode | None]] = []
    for frame in run.frames:
        end = frame.time_ms / 1000
        if stretches and stretches[-1][2] is frame.mode:
            stretches[-1] = (stretches[-1][0], end, frame.mode)
        else:
            start = stretches[-1][1] if stretches else end - 1
            stretches.append((start, end, frame.mode))
    return stretches


def _price(axes: Any, run: PolicyRun) -> None:
    values = [frame.shadow_price for frame in run.frames]
    # A price per core reads better than one per millicore; gaps are where there is no single price.
    heights = [float("nan") if value is None else value * 1000 for value in values]
    axes.step(_seconds(run), heights, color="#5e3c99", lw=1.6, where="post")
    axes.set(ylabel="weight\nper core", xlabel="virtual seconds")
    axes.set_ylim(bottom=0)
    _title(axes, "shadow price" if any(values) else "shadow price (none under this policy)")


def _act_strip(axes: Any, played: ScenarioResult, run: PolicyRun) -> None:
    """The acts as chapters, their titles wrapped to the room they have."""
    starts = [act.at_s for act in played.scenario.acts] + [run.node.seconds]
    for place, act in enumerate(played.scenario.acts):
        start, end = act.at_s, min(starts[place + 1], run.node.seconds)
        if start >= end:
            continue
        axes.axvspan(start, end, color="#ececec" if place % 2 else "#f7f7f7", lw=0)
        width = max(8, int(110 * (end - start) / run.node.seconds))
        text = "\n".join(wrap(act.title, width)[:2])
        axes.text((start + end) / 2, 0.5, text, ha="center", va="center", fontsize=8)
    strip(axes)
    axes.tick_params(bottom=False)


# --- the pods


def _draw_pods(run: PolicyRun, path: Path) -> None:
    """A panel per pod: want, grant, use; red where periods were throttled."""
    by_want = sorted(run.pods, key=lambda pod: (-pod.want_core_s, pod.pod))[:PANELS_MAX]
    names = sorted(pod.pod for pod in by_want)
    rows = max(1, -(-len(names) // 2))
    with drawn(path, 10, 1.1 + 1.75 * rows, "each pod") as figure:
        panels = figure.subplots(rows, 2, sharex=True, squeeze=False).ravel()
        for axes, name in zip(panels, names, strict=False):
            _pod_panel(axes, run, name)
        for axes in panels[len(names) :]:
            axes.set_axis_off()
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper right", ncols=4)
        for axes in panels[max(0, len(names) - 2) : len(names)]:
            axes.set_xlabel("virtual seconds")
            axes.tick_params(labelbottom=True)


def _pod_panel(axes: Any, run: PolicyRun, name: str) -> None:
    seen = [(frame, pod) for frame in run.frames for pod in frame.pods if pod.uid == name]
    seconds = [frame.time_ms / 1000 for frame, _ in seen]
    want, used = [pod.want / 1000 for _, pod in seen], [pod.used / 1000 for _, pod in seen]
    limit = [float("nan") if pod.limit is None else pod.limit / 1000 for _, pod in seen]
    axes.fill_between(seconds, used, color="#9ecae1", lw=0, step="post", label="used")
    axes.step(seconds, want, color="#555555", lw=1, ls="--", where="post", label="want")
    axes.step(seconds, limit, color="#0072B2", lw=1.6, where="post", label="granted")
    tops = [max(pair) for pair in zip(want, used, strict=True)]
    short = [pod.throttled > 0 for _, pod in seen]
    red = {"color": "#d6604d", "alpha": 0.55, "lw": 0}
    axes.fill_between(seconds, used, tops, where=short, step="post", label="throttled", **red)
    outside = any(pod.opted_out for pod in run.pods if pod.pod == name)
    _title(axes, f"{name} (opted out)" if outside else name)
    axes.set_ylim(bottom=0)
    axes.set_xlim(0, run.node.seconds)
    axes.set_ylabel("cores")


# --- policies side by side


def _compare_panels(figure: Any, played: ScenarioResult) -> None:
    panels = figure.subplots(1, 3)
    fields = (
        ("unserved_core_s", "wanted and not served\n(core-seconds)", 1),
        ("throttled_ratio", "throttled periods (%)", 100),
        ("slack", "granted and not used (%)", 100),
    )
    names = [pod.pod for pod in played.runs[0].pods if not pod.opted_out]
    width = 0.8 / len(played.runs)
    for axes, (field, title, scale) in zip(panels, fields, strict=True):
        for place, run in enumerate(played.runs):
            pods = {pod.pod: pod for pod in run.pods}
            heights = [
                (getattr(pods[name], field) or 0) * scale if name in pods else 0 for name in names
            ]
            spots = [spot + (place + 0.5) * width - 0.4 for spot in range(len(names))]
            axes.bar(spots, heights, width * 0.92, color=COLOURS[place], label=run.policy.value)
        _title(axes, title)
        axes.set_xticks(range(len(names)), names, rotation=35, ha="right")
        axes.grid(visible=False, axis="x")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper right", ncols=4)


def _title(axes: Any, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=10, fontweight="bold")


def _seconds(run: PolicyRun) -> list[float]:
    return [frame.time_ms / 1000 for frame in run.frames]
