"""The report of a play: report.json, report.md, timeline.csv, the flight record, a picture.

Written whole or not at all, like the simulator's: see `fairlead.sim.report`. In virtual time no
clock, no host and no path goes in, so the same seed writes the same bytes.
"""

import csv
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fairlead import __version__
from fairlead.sim.report import MARKER, write_folder
from fairlead.sim.traffic.figures import measure, timeline
from fairlead.sim.traffic.judge import Verdict
from fairlead.sim.traffic.markdown import write_markdown
from fairlead.sim.traffic.story import Played

RECORD, TEXTS = "record", ("report.md", "timeline.csv")
COLUMNS = (
    "time_s",
    "arrivals",
    "attempts",
    "good",
    "late",
    "failed",
    "refused",
    "p95_ms",
    "mode",
    "rate_per_s",
    "conductance",
    "reasons",
    "backend",
    "slots",
    "pressure",
    "isolated",
)

Draw = Callable[[Played, Path], Sequence[str]]
"""Draws the pictures of a play into a folder and names the files."""


def write_report(
    played: Played, verdicts: Sequence[Verdict], target: Path, *, record: Path, draw: Draw | None
) -> list[str]:
    """Write the report to `target`, replacing an earlier one; returns the names of its files."""

    def fill(folder: Path) -> list[str]:
        shutil.copytree(record, folder / RECORD, ignore=shutil.ignore_patterns("*.lock"))
        _write_timeline(played, folder / "timeline.csv")
        pictures = list(draw(played, folder)) if draw else []
        page = write_markdown(played, verdicts, pictures)
        (folder / "report.md").write_text(page, encoding="utf-8")
        files = sorted({MARKER, RECORD, *TEXTS, *pictures})
        document = {**as_document(played, verdicts), "files": files}
        (folder / MARKER).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        return files

    return write_folder(target, fill)


def as_document(played: Played, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The summary as JSON-ready data."""
    return {
        "fairlead": __version__,
        "scenario": played.scenario.name,
        "about": played.scenario.about,
        "seed": played.seed,
        "plane": played.plane,
        "real_time": played.real,
        "sources": dict(played.sources),
        "digest": None if played.real else played.digest,
        "ok": all(verdict.kept for verdict in verdicts),
        "figures": asdict(measure(played)),
        "promises": [
            {"promise": each.promise, "kept": each.kept, "problem": each.problem}
            for each in verdicts
        ],
        "story": [{"at_s": each.at_ms / 1000, "text": each.text} for each in played.happenings],
    }


def _write_timeline(played: Played, path: Path) -> None:
    """One row per second and backend: the form that spreadsheets and data frames like."""
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(COLUMNS)
        for each in timeline(played):
            shared = [
                each.at_s,
                each.arrivals,
                each.attempts,
                each.good,
                each.late,
                each.failed,
                each.refused,
                each.p95_ms,
                each.mode,
                each.rate_per_s,
                each.conductance,
                " ".join(each.reasons),
            ]
            for name in sorted(each.slots) or [""]:
                here = [each.slots.get(name), each.pressure.get(name), int(name in each.isolated)]
                rows.writerow([*shared, name, *here])
