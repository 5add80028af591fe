"""The report: complete, replayable, the same bytes for the same seed, never half of one."""

import csv
import json
import os
from pathlib import Path

import msgspec
import pytest

from fairlead.core.canonical import canonical
from fairlead.ports.faults import PermanentFault
from fairlead.schema.kinds import KINDS
from fairlead.sim import ScenarioResult, play, report
from fairlead.sim.report import NotAReport, check_target, write_report
from tests.sim.scenarios import BUSY, scenario

FILES = ["decisions.jsonl", "report.json", "report.md", "results.jsonl", "timeline.csv"]


@pytest.fixture(scope="module")
def played() -> ScenarioResult:
    acts = [{"at_s": 0, "title": "calm"}, {"at_s": 30, "title": "and on"}]
    return play(scenario(*BUSY, policies=["demand-capped", "nash"], acts=acts), seed=9)


def test_everything_is_there_and_consistent(played: ScenarioResult, tmp_path: Path) -> None:
    """Figures, seed, digest, a row per second and pod, both policies."""
    target = tmp_path / "deep" / "report"
    assert write_report(played, target, plots=False) == FILES
    assert sorted(path.name for path in target.iterdir()) == FILES
    report = json.loads((target / "report.json").read_text())
    assert (report["seed"], report["digest"], report["ok"]) == (9, played.digest, True)
    assert [run["policy"] for run in report["runs"]] == ["demand-capped", "nash"]
    assert report["runs"][0]["node"]["seconds_over_capacity"] == 0
    rows = list(csv.DictReader((target / "timeline.csv").open()))
    assert len(rows) == 2 * 60 * 3
    page = (target / "report.md").read_text()
    assert played.digest in page
    assert "## Side by side" in page
    assert "calm" in page


def test_the_recorded_decisions_replay_to_the_recorded_results(
    played: ScenarioResult, tmp_path: Path
) -> None:
    """decisions.jsonl is valid input for `fairlead decide cpu.allocate --jsonl`, line by line."""
    write_report(played, tmp_path / "r", plots=False)
    inputs = (tmp_path / "r" / "decisions.jsonl").read_bytes().splitlines()
    results = (tmp_path / "r" / "results.jsonl").read_bytes().splitlines()
    assert len(inputs) == len(results) == 2 * 12
    for document, result in zip(inputs, results, strict=True):
        assert canonical(KINDS["cpu.allocate"].run(document).result) == result


def test_the_same_seed_writes_the_same_bytes(played: ScenarioResult, tmp_path: Path) -> None:
    """No clock, no host, no path goes into a report."""
    write_report(played, tmp_path / "a", plots=False)
    write_report(play(played.scenario, seed=9), tmp_path / "b", plots=False)
    for name in FILES:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.component("matplotlib")
def test_plots_are_drawn_and_shown(played: ScenarioResult, tmp_path: Path) -> None:
    """Two pictures per policy and a comparison, all of them in report.md and in the list."""
    short = play(msgspec.structs.replace(played.scenario, duration_s=10))
    files = write_report(short, tmp_path / "r", plots=True)
    pictures = [name for name in files if name.endswith(".png")]
    assert pictures == [
        "compare.png",
        "demand-capped-node.png",
        "demand-capped-pods.png",
        "nash-node.png",
        "nash-pods.png",
    ]
    page = (tmp_path / "r" / "report.md").read_text()
    for name in pictures:
        assert f"({name})" in page
        assert (tmp_path / "r" / name).read_bytes().startswith(b"\x89PNG")


def test_an_interrupted_report_leaves_the_old_one(
    played: ScenarioResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the middle of drawing: the old report is whole, nothing else is left behind."""
    target = tmp_path / "r"
    write_report(played, target, plots=False)
    before = {path.name: path.read_bytes() for path in target.iterdir()}

    def interrupt(_: ScenarioResult, folder: Path) -> list[str]:
        (folder / "half.png").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(report, "draw_plots", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_report(play(scenario(*BUSY)), target, plots=True)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["r"]
    with pytest.raises(KeyboardInterrupt):
        write_report(played, tmp_path / "new", plots=True)
    assert [path.name for path in tmp_path.iterdir()] == ["r"]


def test_a_report_replaces_a_report_and_nothing_else(
    played: ScenarioResult, tmp_path: Path
) -> None:
    """A folder, file or link of the user's is never touched."""
    target = tmp_path / "r"
    target.mkdir()
    write_report(played, target, plots=False)  # an empty folder is fine
    write_report(played, target, plots=False)
    (target / "notes.txt").write_text("mine")
    with pytest.raises(NotAReport, match=r"notes\.txt"):
        check_target(target)
    home = tmp_path / "home"
    home.mkdir()
    (home / "report.json").write_text('["not ours"]')
    with pytest.raises(NotAReport):
        write_report(played, home, plots=False)
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(target)
    for name in ("file", "link"):
        with pytest.raises(NotAReport):
            check_target(tmp_path / name)
    assert (home / "report.json").read_text() == '["not ours"]'


def test_where_no_report_can_be_written_is_said_before_the_work(
    played: ScenarioResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path below a file, a folder without rights: refused beforehand. What shows only then is a
    fault of the machine, not a bug."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotAReport, match="Not a directory"):
        check_target(tmp_path / "file" / "r")
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)  # root may write everywhere
        with pytest.raises(NotAReport, match="cannot be written: Permission denied"):
            check_target(tmp_path / "new" / "r")
    with pytest.raises(PermanentFault, match="cannot write /proc/r"):
        write_report(played, Path("/proc/r"), plots=False)
