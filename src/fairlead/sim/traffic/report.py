"""The report of a traffic scenario: report.json, report.md, timeline.csv, the record, a picture.

Written whole or not at all by `fairlead.sim.report`. In virtual time no clock, no host and no path
goes in, so the same seed writes the same bytes. The picture needs matplotlib (the extra `plots`).
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fairlead import __version__
from fairlead.sim import report
from fairlead.sim.plots import INK, colour_of, drawn, strip
from fairlead.sim.traffic.checks import PromiseCheck
from fairlead.sim.traffic.result import TrafficFigures, TrafficResult, measure, timeline

RECORD = "record"
_SHARED = (
    *("at_s", "arrivals", "attempts", "good", "late", "failed", "refused", "p95_ms", "mode"),
    *("rate_per_s", "conductance"),
)
COLUMNS = ("time_s", *_SHARED[1:], "reasons", "backend", "slots", "pressure", "isolated")
MODE_COLOURS = {"normal": "#7fbf7b", "soft": "#f1a340", "hard": "#c51b3a", "": "#dddddd"}
ANSWER_COLOURS = (
    ("good", "within the SLO", "#0072B2"),
    ("late", "late", "#56B4E9"),
    ("failed", "failed", "#D55E00"),
    ("refused", "rejected", "#999999"),
)
Series = tuple[str, list[int]]  # a colour, and a value per second


def write_report(
    played: TrafficResult,
    checks: Sequence[PromiseCheck],
    target: Path,
    *,
    record: Path,
    plots: bool,
) -> list[str]:
    """Write the report to `target`, replacing an earlier one; returns the names of its files."""
    ignored = shutil.ignore_patterns("*.lock")
    return report.write_folder(
        target,
        as_document(played, checks),
        page=lambda pictures: _page(played, checks, pictures),
        parts={
            RECORD: lambda path: shutil.copytree(record, path, ignore=ignored),
            "timeline.csv": lambda path: report.write_csv(path, COLUMNS, _rows(played)),
        },
        draw=(lambda folder: draw_plots(played, folder)) if plots else None,
    )


def as_document(played: TrafficResult, checks: Sequence[PromiseCheck]) -> dict[str, Any]:
    return {
        "fairlead": __version__,
        "scenario": played.scenario.name,
        "about": played.scenario.about,
        "seed": played.seed,
        "plane": played.plane,
        "real_time": played.real,
        "sources": dict(played.sources),
        "digest": None if played.real else played.digest,
        "ok": all(check.kept for check in checks),
        "figures": asdict(measure(played)),
        "promises": [
            {"promise": check.promise, "kept": check.kept, "problem": check.problem}
            for check in checks
        ],
        "story": [{"at_s": event.time_ms / 1000, "text": event.text} for event in played.events],
    }


def _rows(played: TrafficResult) -> Iterator[Sequence[object]]:
    for second in timeline(played):
        shared = [getattr(second, name) for name in _SHARED]
        for name in sorted(second.slots) or [""]:
            backend = (second.slots.get(name), second.pressure.get(name))
            isolated = int(name in second.isolated)
            yield [*shared, " ".join(second.reasons), name, *backend, isolated]


# --- the page


def _page(played: TrafficResult, checks: Sequence[PromiseCheck], pictures: Sequence[str]) -> str:
    lines = [*report.heading(played.scenario.name, played.scenario.about), *_how(played)]
    lines += ["## Promises", "", "| promise | kept |", "|---|---|"]
    for check in checks:
        kept = "yes" if check.kept else f"**no**: {check.problem}"
        lines.append(f"| {check.promise} | {kept} |")
    lines += ["", "## Figures", "", *figure_table(measure(played)), ""]
    lines += [*report.picture_lines(pictures), "## What happened", ""]
    lines += report.event_lines(played.events)
    return "\n".join(lines)


def _how(played: TrafficResult) -> list[str]:
    if played.real:
        sources = "; ".join(f"{signal}: {where}" for signal, where in played.sources.items())
        where = f"Played in real time on the {played.plane} dataplane, seed {played.seed}."
        lines = [where, f"Its signals: {sources}.", ""]
    else:
        command = f"fairlead traffic harness {played.scenario.name} --seed {played.seed}"
        seed = f"Seed {played.seed}, digest `{played.digest}`. The same seed gives the same digest:"
        lines = [seed, "", *report.code(command)]
    replay = "Every tick is in `record/` and is decided again, byte for byte, by"
    return [*lines, replay, "", *report.code(f"fairlead replay {RECORD}")]


def figure_table(figures: TrafficFigures) -> list[str]:
    rows = (
        ("arrivals", figures.arrivals),
        ("attempts, retries included", figures.attempts),
        ("answered within the SLO, per arrival", f"{figures.good_ratio:.2%}"),
        ("failures that clients saw, per arrival", f"{figures.failed_ratio:.2%}"),
        ("explicit refusals, per attempt", f"{figures.refused_ratio:.2%}"),
        ("p50 and p99 of answers", f"{_ms(figures.p50_ms)}, {_ms(figures.p99_ms)}"),
        ("ticks, and those that were missed", f"{figures.ticks}, {figures.missed_ticks}"),
        ("changes of mode", figures.mode_changes),
        ("isolations", figures.isolations),
        ("slots that changed hands", figures.slots_moved),
    )
    return report.table(("figure", ""), rows)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g} ms"


# --- the picture


def draw_plots(played: TrafficResult, folder: Path) -> list[str]:
    """Slots, admission, answers and latency on one time axis; returns the name of the file."""
    where = "real time" if played.real else f"seed {played.seed}"
    title = f"{played.scenario.name}: {played.plane} dataplane, {where}"
    with drawn(folder / "play.png", 10, 8, title) as figure:
        _panels(figure, played)
    return ["play.png"]


def _panels(figure: Any, played: TrafficResult) -> None:
    seconds, shares = timeline(played), dict[str, Series]()
    slots, admission, answers, latency = figure.subplots(
        4, 1, sharex=True, gridspec_kw={"height_ratios": [3, 0.3, 3, 1.6]}
    )
    for place, name in enumerate(sorted({name for second in seconds for name in second.slots})):
        shares[name] = colour_of(place), [second.slots.get(name, 0) for second in seconds]
    _stack(slots, "slots by backend", shares)
    slots.set(ylabel="slots", ylim=(0, played.config.s_total), xlim=(0, len(seconds)))
    for second in seconds:
        admission.axvspan(second.at_s, second.at_s + 1, color=MODE_COLOURS[second.mode], lw=0)
    strip(admission)
    admission.set(ylabel="adm.")
    fates = {
        label: (colour, [getattr(second, field) for second in seconds])
        for field, label, colour in ANSWER_COLOURS
    }
    _stack(answers, "what became of requests", fates)
    answers.set(ylabel="attempts per second")
    times = [second.at_s for second in seconds]
    latency.plot(times, [second.p95_ms for second in seconds], color=INK, lw=1.2)
    latency.axhline(played.scenario.load.slo_ms, color="#D55E00", lw=0.8, ls="--")
    latency.set(ylabel="p95 in ms", xlabel="seconds", ylim=(0, None))
    for axes in (slots, answers, latency):
        for start, end in played.deaths:
            axes.axvspan(start / 1000, end / 1000, color="#000000", alpha=0.08, lw=0)
        for event in played.scenario.events:
            axes.axvline(event.at_s, color=INK, lw=0.6, ls=":")


def _stack(axes: Any, title: str, series: Mapping[str, Series]) -> None:
    colours, values = [colour for colour, _ in series.values()], [row for _, row in series.values()]
    times = range(len(values[0]) if values else 0)
    axes.stackplot(times, values, labels=list(series), colors=colours, lw=0, step="post")
    axes.set_title(title, loc="left", fontsize=9)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
