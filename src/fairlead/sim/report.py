"""Reports of simulations: report.json, report.md, tables and plots in one folder.

A report appears whole, by a rename. No clock, no host, no path goes in, so the same seed writes the
same bytes.
"""

import csv
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from errno import EACCES, ENOTDIR
from pathlib import Path
from typing import Any

from fairlead import __version__
from fairlead.ports.faults import faults
from fairlead.sim.plots import draw_plots
from fairlead.sim.record import NodeFigures, PodFigures, SimEvent
from fairlead.sim.simulation import PolicyRun, ScenarioResult

MARKER = "report.json"
"""Its presence, listing its own files, is how an old report is told from a folder of the user's."""

EVENTS_MAX = 80
COLUMNS = (
    *("run", "time_s", "mode", "capacity_millicores", "shadow_price", "pod", "want_millicores"),
    *("limit_millicores", "used_millicores", "unserved_millicores", "throttled_ratio", "opted_out"),
)

Draw = Callable[[Path], Sequence[str]]
"""Draws the plots of a report into a folder and names the files."""
Write = Callable[[Path], object]
"""Writes one file, or one folder, of a report."""


class NotAReport(ValueError):
    """The target holds something that Fairlead did not write, or cannot be written."""


# --- one writer for all reports


def check_target(target: Path) -> None:
    """Refuse to replace anything but an earlier report; called before the work, not after it."""
    try:
        there = _entries(target)
    except OSError as error:
        raise NotAReport(f"{target} cannot be written: {error.strerror}") from error
    if not there:
        return
    try:
        ours = set(json.loads((target / MARKER).read_bytes())["files"])
    except (OSError, ValueError, KeyError, TypeError):
        raise NotAReport(f"{target} holds something else than a report; name another") from None
    if extra := sorted(there - ours):
        raise NotAReport(f"{target} holds more than a report ({extra[0]}); name another")


def _entries(target: Path) -> set[str]:
    """What the folder holds; an error where no report could be put in its place."""
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise NotAReport(f"{target} is not a folder")
    there = {entry.name for entry in target.iterdir()} if target.exists() else set()
    folder = next((folder for folder in target.absolute().parents if folder.exists()), target)
    if not folder.is_dir():
        raise NotADirectoryError(ENOTDIR, os.strerror(ENOTDIR))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(EACCES, os.strerror(EACCES))
    return there


def write_folder(
    target: Path,
    document: Mapping[str, Any],
    *,
    page: Callable[[Sequence[str]], str],
    parts: Mapping[str, Write],
    draw: Draw | None,
) -> list[str]:
    """Write a report to `target`, replacing an earlier one; returns the names of its files.

    `page` makes report.md from the names of the pictures that `draw` made.
    """
    check_target(target)
    with faults(f"write {target}"):
        target.parent.mkdir(parents=True, exist_ok=True)
        workshop = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            fresh = workshop / "report"
            fresh.mkdir()
            for name, write in parts.items():
                write(fresh / name)
            pictures = list(draw(fresh)) if draw else []
            (fresh / "report.md").write_text(page(pictures), encoding="utf-8")
            files = sorted({MARKER, "report.md", *parts, *pictures})
            whole = {**document, "files": files}
            (fresh / MARKER).write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
            _exchange(fresh, target, workshop / "old")
        finally:
            shutil.rmtree(workshop, ignore_errors=True)
    return files


def _exchange(fresh: Path, target: Path, old: Path) -> None:
    """Two renames; an interruption between them puts the old report back."""
    try:
        if target.exists():
            target.rename(old)
        fresh.rename(target)
    except BaseException:
        if old.exists() and not target.exists():
            old.rename(target)
        raise


def write_csv(path: Path, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """One row per line: the form that spreadsheets and data frames like."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(rows)


def heading(name: str, about: str) -> list[str]:
    return [f"# {name}", "", *([about[:1].upper() + about[1:] + ".", ""] if about else [])]


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A Markdown table: the first column to the left, figures to the right."""
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return ["| " + " | ".join(str(cell) for cell in row) + " |" for row in lines]


def code(*lines: str) -> list[str]:
    return ["```", *lines, "```", ""]


def event_lines(events: Sequence[SimEvent]) -> list[str]:
    """What happened, as a block, cut where it becomes too long to read."""
    lines = [f"{event.time_ms / 1000:7.1f} s  {event.text}" for event in events[:EVENTS_MAX]]
    if len(events) > EVENTS_MAX:
        lines.append(f"… and {len(events) - EVENTS_MAX} lines more in report.json")
    return code(*lines)


def picture_lines(pictures: Iterable[str]) -> list[str]:
    return [f"![{name}]({name})\n" for name in pictures]


# --- the report of a CPU scenario


def write_report(played: ScenarioResult, target: Path, *, plots: bool) -> list[str]:
    made = [decision for run in played.runs for decision in run.decisions]
    inputs = b"".join(decision.input + b"\n" for decision in made)
    results = b"".join(decision.result + b"\n" for decision in made)
    return write_folder(
        target,
        as_document(played),
        page=lambda pictures: write_markdown(played, pictures),
        parts={
            "decisions.jsonl": lambda path: path.write_bytes(inputs),
            "results.jsonl": lambda path: path.write_bytes(results),
            "timeline.csv": lambda path: write_csv(path, COLUMNS, _timeline(played)),
        },
        draw=(lambda folder: draw_plots(played, folder)) if plots else None,
    )


def as_document(played: ScenarioResult) -> dict[str, Any]:
    return {
        "fairlead": __version__,
        "scenario": played.scenario.name,
        "about": played.scenario.about,
        "seed": played.seed,
        "digest": played.digest,
        "ok": played.broken is None,
        "runs": [_run(run) for run in played.runs],
    }


def _run(run: PolicyRun) -> dict[str, Any]:
    broken = run.broken
    fields = ("check", "message", "seed", "time_ms")
    return {
        "name": run.name,
        "policy": run.policy.value,
        "digest": run.digest,
        "broken": broken and {name: getattr(broken, name) for name in fields},
        "node": asdict(run.node),
        "pods": [asdict(pod) for pod in run.pods],
        "faults": run.faults,
        "story": [event._asdict() for event in run.events],
    }


def _timeline(played: ScenarioResult) -> Iterable[Sequence[object]]:
    for run in played.runs:
        for frame in run.frames:
            second, mode = frame.time_ms // 1000, frame.mode or ""
            node = (run.name, second, mode, frame.capacity, frame.shadow_price)
            for pod in frame.pods:
                figures = (pod.want, pod.limit, pod.used, pod.unserved, pod.throttled)
                yield (*node, pod.uid, *figures, int(pod.opted_out))


def write_markdown(played: ScenarioResult, pictures: Sequence[str]) -> str:
    """The whole page: figures first, then the pictures, then the events."""
    scenario = played.scenario
    lines = heading(scenario.name, scenario.about)
    lines += [
        f"Seed {played.seed}, digest `{played.digest}`. The same seed gives the same digest:",
        "",
        *code(f"fairlead sim run {scenario.name}.yaml --seed {played.seed}"),
        "Every decision is here and can be checked: `decisions.jsonl` holds the inputs and",
        "`results.jsonl` what was decided, line by line.",
        "",
        *code("fairlead decide cpu.allocate --jsonl < decisions.jsonl | cmp - results.jsonl"),
    ]
    if len(played.runs) > 1:
        lines += ["## Side by side", "", *_side_by_side(played), ""]
    lines += picture_lines(name for name in pictures if name.startswith("compare"))
    for run in played.runs:
        title = "policy by act" if run.name == "by-act" else run.name
        lines += [f"## {title}", "", *_run_lines(run, pictures)]
    return "\n".join(lines) + "\n"


def _run_lines(run: PolicyRun, pictures: Sequence[str]) -> list[str]:
    lines = [f"**Broken:** {run.broken}", ""] if run.broken else []
    lines += [*_node_lines(run.node), f"- digest `{run.digest}`"]
    if run.faults:
        fired = ", ".join(f"{point} {count}×" for point, count in run.faults.items())
        lines.append(f"- faults that fired: {fired}")
    lines += ["", *pod_table(run.pods), ""]
    lines += picture_lines(name for name in pictures if name.startswith(f"{run.name}-"))
    return [*lines, "### What happened", "", *event_lines(run.events)]


def _node_lines(node: NodeFigures) -> list[str]:
    return [
        f"- {node.seconds:g} virtual seconds, {node.decisions} decisions",
        f"- uncongested {node.seconds_uncongested} s, congested {node.seconds_congested} s, "
        f"overloaded {node.seconds_overloaded} s, {node.mode_changes} changes of mode",
        f"- limits above the capacity: {node.seconds_over_capacity:g} s",
        f"- core-seconds: wanted {node.want_core_s:g}, granted {node.granted_core_s:g}, "
        f"used {node.used_core_s:g}",
    ]


POD_HEAD = (
    *("pod", "want core-s", "granted core-s", "used core-s", "throttled periods", "slack"),
    "reversals/min",
)


def pod_table(pods: Sequence[PodFigures]) -> list[str]:
    return table(POD_HEAD, [pod_row(pod, missing="–") for pod in pods])


def pod_row(pod: PodFigures, *, missing: str) -> tuple[str, ...]:
    """The figures of a pod, as the table on a terminal and the page both print them."""
    return (
        f"{pod.pod} (opted out)" if pod.opted_out else pod.pod,
        f"{pod.want_core_s:.1f}",
        missing if pod.granted_core_s is None else f"{pod.granted_core_s:.1f}",
        f"{pod.used_core_s:.1f}",
        f"{pod.throttled_ratio:.1%}",
        missing if pod.slack is None else f"{pod.slack:.1%}",
        f"{pod.reversals_per_minute:.1f}",
    )


def _side_by_side(played: ScenarioResult) -> list[str]:
    """The same load under each policy: one row per pod, one pair of columns per policy."""
    head = ["pod", "want"]
    for run in played.runs:
        head += [f"{run.policy.value}: used", "throttled"]
    rows: list[list[str]] = []
    for pods in zip(*(run.pods for run in played.runs), strict=False):
        row = [pods[0].pod, f"{pods[0].want_core_s:.1f}"]
        for pod in pods:
            row += [f"{pod.used_core_s:.1f}", f"{pod.throttled_ratio:.1%}"]
        rows.append(row)
    total = ["**all governed**", f"{played.runs[0].node.want_core_s:.1f}"]
    for run in played.runs:
        total += [f"{run.node.used_core_s:.1f}", ""]
    return table(head, [*rows, total])
