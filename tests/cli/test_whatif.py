"""`fairlead sim whatif` as an operator calls it: exit codes, streams, files."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.cli.shells import run_text
from tests.sim.records import append, record_of
from tests.sim.scenarios import scenario
from tests.sim.test_whatif import CROWD


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whatif")
    return record_of(scenario(*CROWD, duration_s=60), folder / "node-a" / "record")


def whatif(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run_text("sim", "whatif", *map(str, arguments))


def test_the_table_says_who_would_have_got_what(record: Path) -> None:
    """Nodes, gains, losses, and what the answer does not know."""
    done = whatif(record, "--policy", "demand-capped")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(
        "what if: policy demand-capped instead of nash, no guardrails: 12 snapshots of 1 node\n"
    )
    assert "node-a" in done.stdout
    assert "largest gains:" in done.stdout
    assert "largest losses:" in done.stdout
    assert "Each snapshot is decided by itself" in done.stdout


def test_json_and_yaml_hold_the_same(record: Path) -> None:
    """Per pod and per node, recorded beside what-if."""
    answers = [
        reader(whatif(record, "--policy", "market", "-o", output).stdout)
        for output, reader in (("json", json.loads), ("yaml", yaml.safe_load))
    ]
    assert answers[0] == answers[1]
    (node,) = answers[0]["nodes"]
    assert (node["snapshots"], node["seconds"], node["recorded_policies"]) == (12, 60.0, ["nash"])
    assert set(node["whatif"]) == {"below_need_pod_s", "unmet_core_s"}
    assert 0 < node["scarce_share"] <= 1
    assert {pod["pod"] for pod in answers[0]["pods"]} == {"api", "batch", "web"}
    for pod in answers[0]["pods"]:
        change = pod["whatif"]["mean_millicores"] - pod["recorded"]["mean_millicores"]
        assert pod["change_millicores"] == change


def test_a_report_is_written_like_that_of_a_run(record: Path, tmp_path: Path) -> None:
    """report.json, report.md and the pods; nothing but a report is replaced."""
    target = tmp_path / "report"
    call = (record, "--policy", "market", "--report", target, "--no-plots")
    done = whatif(*call)
    assert (done.returncode, done.stderr) == (0, f"report: {target}/report.md\n")
    files = json.loads((target / "report.json").read_text())["files"]
    assert files == ["pods.csv", "report.json", "report.md"]
    assert (target / "pods.csv").read_text().startswith("node,pod,seconds,need_millicores,")
    assert "## Largest gains" in (target / "report.md").read_text()
    assert whatif(*call).returncode == 0
    (target / "mine").write_text("x")
    refused = whatif(*call)
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: --report: ")


@pytest.mark.component("matplotlib")
def test_the_report_has_a_picture(record: Path, tmp_path: Path) -> None:
    """Gains and losses as bars."""
    assert whatif(record, "--policy", "market", "--report", tmp_path / "r").returncode == 0
    assert (tmp_path / "r" / "whatif.png").read_bytes().startswith(b"\x89PNG")


def test_bad_input_is_refused_and_damage_is_a_fault(record: Path, tmp_path: Path) -> None:
    """2 for what cannot be decided, 3 for a record that was changed; one line each."""
    (tmp_path / "empty").mkdir()
    append(tmp_path / "traffic", "traffic.tick", 0, {}, {})
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (segment,) = record.glob("segment-*.jsonl")
    lines = segment.read_bytes().splitlines(keepends=True)
    (damaged / segment.name).write_bytes(b"".join(lines[:2] + lines[3:]))
    for path, policy, code, message in (
        (tmp_path / "gone", "nash", 2, "does not exist"),
        (record, "fair", 2, "'fair' is not one of"),
        (tmp_path / "empty", "nash", 2, "error: .*: holds no record"),
        (tmp_path / "traffic", "nash", 2, "error: .*: no CPU decisions in this record: only"),
        (damaged, "nash", 3, "fault: .*: the record is damaged: segment-.*, line 3"),
    ):
        done = whatif(path, "--policy", policy)
        assert (done.returncode, done.stdout) == (code, "")
        assert re.search(message, done.stderr), done.stderr


def test_without_numpy_the_answer_is_the_same(record: Path) -> None:
    """The extra makes it faster, not different."""
    blocked = "import sys; sys.modules['numpy'] = None; from fairlead.cli.main import run; run()"
    call = ["sim", "whatif", str(record), "--policy", "market", "-o", "json"]
    plain = subprocess.run(
        [sys.executable, "-c", blocked, *call], capture_output=True, text=True, check=True
    )
    assert plain.stdout == whatif(record, "--policy", "market", "-o", "json").stdout
