"""The page, the figures and the picture of `bench.kube`."""

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from bench.kube.load import CLASSES
from bench.kube.promises import LABELS, PAIRS, judge
from bench.kube.server import CONTROLLER
from bench.side_by_side import Figures, Line, arm_table, cell, verdict_lines, write_page
from fairlead.sim.report import table

_COLUMNS = (
    ("workloads/s, created to admitted", "per_s", "{:.1f}"),
    ("workloads/s, created to finished", "finished_per_s", "{:.1f}"),
    ("until all are admitted, s", "admitted_s", "{:.0f}"),
    ("until all are finished, s", "finished_s", "{:.0f}"),
    ("quota use", "quota_use", "{:.0%}"),
    ("API calls per workload", "calls_per_workload", "{:.2f}"),
    ("of the harness", "harness_calls_per_workload", "{:.2f}"),
)
_ABOUT = (Path(__file__).with_name("about.md")).read_text()


def write_report(document: Line, where: Path) -> None:
    figures = Figures(document["runs"])
    document["verdicts"] = judge(document)
    write_page("kube", document, where, _text(figures, document), _draw)


def _text(figures: Figures, document: Line) -> str:
    lines = ["# Kueue's baseline, side by side", "", _ABOUT]
    machine = document["machine"]
    lines += [
        f"Machine: {machine['cpus']} CPUs, shared with other work, Python {machine['python']}. "
        "Medians; in brackets the spread over the repetitions.",
        *(f"\n{note}" for note in document.get("notes", ())),
        "",
        *verdict_lines(document["verdicts"], "arm"),
    ]
    for scenario in document["scenarios"]:
        lines += ["", f"## {scenario}", ""]
        lines += arm_table(figures, scenario, who="arm", columns=_COLUMNS, labels=LABELS)
        lines += ["", *_latencies(figures, scenario), "", *_processes(figures, scenario)]
        lines += ["", *_calls(figures, scenario), "", *_own(figures, scenario)]
        lines += _busy(figures, scenario)
    for part in ("pods", "scale"):
        if part in document:
            lines += ["", *_extra(part, document[part])]
    lines += ["", "![admitted over time](kube.png)", ""]
    return "\n".join(lines)


def _arms(figures: Figures, scenario: str) -> list[str]:
    return [arm for arm in LABELS if arm in figures.arms(scenario)]


def _latencies(figures: Figures, scenario: str) -> list[str]:
    rows = []
    for arm in _arms(figures, scenario):
        cells = [
            cell(figures.values(scenario, arm, name, "latency", of.name), "{:.1f}")
            for of in reversed(CLASSES)
            for name in ("mean_s", "p95_s")
        ]
        rows.append([LABELS[arm], *cells])
    heads = [f"{of.name}, {what} s" for of in reversed(CLASSES) for what in ("mean", "p95")]
    return ["Admission latency (created to admitted):", "", *table(["arm", *heads], rows)]


def _processes(figures: Figures, scenario: str) -> list[str]:
    rows = []
    for arm in _arms(figures, scenario):
        cells = [
            cell(figures.values(scenario, arm, figure, "processes", name), "{:.0f}")
            for name in ("controller", "api_server", "etcd")
            for figure in ("cpu_s", "peak_mib")
        ]
        rows.append([LABELS[arm], *cells])
    heads = [
        f"{who} {what}"
        for who in ("controller", "API server", "etcd")
        for what in ("CPU s", "peak MiB")
    ]
    return table(["arm", *heads], rows)


def _calls(figures: Figures, scenario: str) -> list[str]:
    lines = ["The controller's calls, of the first repetition:", ""]
    for arm in _arms(figures, scenario):
        calls = figures.runs(scenario, arm)[0]["calls"][CONTROLLER]
        most = sorted(calls.items(), key=lambda row: -row[1])[:8]
        lines.append(f"- {LABELS[arm]}: " + ", ".join(f"{name} {count}" for name, count in most))
    return lines


def _own(figures: Figures, scenario: str) -> list[str]:
    lines = []
    for arm in _arms(figures, scenario):
        own = figures.runs(scenario, arm)[0].get("own_summary")
        if own:
            means = ", ".join(f"{k} {v:.1f}" for k, v in sorted(own["admission_mean_s"].items()))
            lines.append(
                f"- {LABELS[arm]}, by its own recorder: mean admission {means} s, "
                f"quota use {own['quota_use']:.0%}, {own['evictions']} evictions"
            )
    return lines


def _busy(figures: Figures, scenario: str) -> list[str]:
    """How much else the machine had to do; not known of every run."""
    told = []
    for arm in _arms(figures, scenario):
        loads = [
            run["load_average"] for run in figures.runs(scenario, arm) if "load_average" in run
        ]
        spans = ", ".join(f"{before:.0f} to {after:.0f}" for before, after in loads)
        told += [f"{LABELS[arm]} {spans}"] if loads else []
    return (
        [f"- Load average at the beginning and end of each run: {'; '.join(told)}"] if told else []
    )


def _extra(part: str, found: dict[str, Any]) -> list[str]:
    titles = {"pods": "With pods, on simulated nodes", "scale": "1 000 nodes"}
    rows = [[name.replace("_", " "), _said(value)] for name, value in found.items()]
    return [f"## {titles[part]}", "", *table(["figure", "value"], rows)]


def _said(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _draw(document: Line, where: Path) -> None:
    colours = {"kueue": "#D55E00", "fairlead": "#0072B2"}
    figure, axes = plt.subplots(1, 2, figsize=(12, 4.2), layout="constrained")
    for axis, pair in zip(axes, PAIRS, strict=True):
        there = [
            name for name in document["scenarios"] if f"{name}/{pair[0]}" in document["series"]
        ]
        if not there:
            continue
        scenario = there[0]
        for arm in pair:
            name = f"{scenario}/{arm}"
            if name not in document["series"]:
                continue
            curve, colour = document["series"][name], colours[arm.partition("-")[0]]
            axis.plot(curve["s"], curve["created"], color=colour, linestyle=":", linewidth=1)
            axis.plot(curve["s"], curve["admitted"], color=colour, label=f"{LABELS[arm]}: admitted")
            axis.plot(curve["s"], curve["finished"], color=colour, linestyle="--", linewidth=1)
        axis.set(xlabel="s", ylabel="workloads", title=scenario)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8.5)
    figure.supxlabel("dotted: created, dashed: finished", fontsize=9)
    figure.savefig(where / "kube.png", dpi=110)
    plt.close(figure)
