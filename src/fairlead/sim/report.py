"""The report of a played scenario: report.json, report.md, the decisions, a timeline, the plots.

Everything is written into a temporary folder beside the target, which is then renamed: whoever
interrupts leaves the old report or none, never half of one. No clock, no host, no path goes in, so
the same seed writes the same bytes.
"""

import csv
import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fairlead import __version__
from fairlead.sim.markdown import write_markdown
from fairlead.sim.play import Played, Run

MARKER = "report.json"
"""Its presence, listing its own files, is how an old report is told from somebody's folder."""

TEXTS = ("report.md", "decisions.jsonl", "results.jsonl", "timeline.csv")
COLUMNS = (
    "run",
    "time_s",
    "mode",
    "capacity_millicores",
    "shadow_price",
    "pod",
    "want_millicores",
    "limit_millicores",
    "used_millicores",
    "unserved_millicores",
    "throttled_ratio",
    "opted_out",
)

Draw = Callable[[Played, Path], Sequence[str]]
"""Draws the plots of a scenario into a folder and names the files."""


class NotAReport(ValueError):
    """The target holds something that we did not write."""


def check_target(target: Path) -> None:
    """Refuse to replace anything but an earlier report; asked before the work, not after it."""
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise NotAReport(f"{target} is not a folder")
    if not target.exists():
        return
    there = {entry.name for entry in target.iterdir()}
    if not there:
        return
    try:
        ours = set(json.loads((target / MARKER).read_bytes())["files"])
    except (OSError, ValueError, KeyError, TypeError):
        raise NotAReport(f"{target} holds something else than a report; name another") from None
    if extra := sorted(there - ours):
        raise NotAReport(f"{target} holds more than a report ({extra[0]}); name another")


def write_report(played: Played, target: Path, draw: Draw | None) -> list[str]:
    """Write the report to `target`, replacing an earlier one; returns the names of the files."""
    return write_folder(target, lambda folder: _fill(played, folder, draw))


def write_folder(target: Path, fill: Callable[[Path], list[str]]) -> list[str]:
    """Have a fresh folder filled, then put it in the place of an earlier report."""
    check_target(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    workshop = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        fresh = workshop / "report"
        fresh.mkdir()
        files = fill(fresh)
        _exchange(fresh, target, workshop / "old")
    finally:
        shutil.rmtree(workshop, ignore_errors=True)
    return files


def _exchange(fresh: Path, target: Path, old: Path) -> None:
    """Two renames; whoever interrupts between them gets the old report back."""
    try:
        if target.exists():
            target.rename(old)
        fresh.rename(target)
    except BaseException:
        if old.exists() and not target.exists():
            old.rename(target)
        raise


def _fill(played: Played, folder: Path, draw: Draw | None) -> list[str]:
    with (folder / "decisions.jsonl").open("wb") as inputs:
        inputs.writelines(made.input + b"\n" for run in played.runs for made in run.decisions)
    with (folder / "results.jsonl").open("wb") as results:
        results.writelines(made.result + b"\n" for run in played.runs for made in run.decisions)
    _write_timeline(played, folder / "timeline.csv")
    pictures = list(draw(played, folder)) if draw else []
    (folder / "report.md").write_text(write_markdown(played, pictures), encoding="utf-8")
    files = sorted({MARKER, *TEXTS, *pictures})
    document = {**as_document(played), "files": files}
    (folder / MARKER).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return files


def _write_timeline(played: Played, path: Path) -> None:
    """One row per policy, second and pod: the form that spreadsheets and data frames like."""
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(COLUMNS)
        for run in played.runs:
            for frame in run.frames:
                node = (
                    run.name,
                    frame.time_ms // 1000,
                    frame.mode or "",
                    frame.capacity,
                    frame.shadow_price,
                )
                for pod in frame.pods:
                    figures = [pod.want, pod.limit, pod.used, pod.unserved]
                    rows.writerow([*node, pod.uid, *figures, pod.throttled, int(pod.opted_out)])


def as_document(played: Played) -> dict[str, Any]:
    """The summary as JSON-ready data."""
    return {
        "fairlead": __version__,
        "scenario": played.scenario.name,
        "about": played.scenario.about,
        "seed": played.seed,
        "digest": played.digest,
        "ok": played.broken is None,
        "runs": [_run(run) for run in played.runs],
    }


def _run(run: Run) -> dict[str, Any]:
    broken = run.broken
    return {
        "name": run.name,
        "policy": run.policy.value,
        "digest": run.digest,
        "broken": broken
        and {
            "check": broken.check,
            "message": broken.message,
            "seed": broken.seed,
            "time_ms": broken.time_ms,
        },
        "node": asdict(run.node),
        "pods": [asdict(pod) for pod in run.pods],
        "faults": run.faults,
        "story": [
            {"time_ms": line.time_ms, "kind": line.kind, "text": line.text} for line in run.story
        ],
    }
