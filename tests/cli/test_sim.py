"""`fairlead sim` as a user calls it: exit codes, streams, files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.shells import run_inside, run_text
from tests.sim.scenarios import BUSY, pod


def sim(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_text("sim", *arguments, cwd=cwd)


def write(path: Path, **fields: object) -> str:
    document = {
        "name": "small",
        "duration_s": 30,
        "node": {"millicores": 2000},
        "pods": list(BUSY),
        **fields,
    }
    path.write_text(json.dumps(document))
    return str(path)


def test_a_run_prints_its_seed_and_digest_and_writes_its_report(tmp_path: Path) -> None:
    """Data on standard output, notes on standard error, the report where it says."""
    file = write(tmp_path / "s.yaml")
    done = sim("run", file, "--seed", "5", "--no-plots", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "report: out/small/report.md\n")
    assert "seed       5\n" in done.stdout
    report = json.loads((tmp_path / "out/small/report.json").read_text())
    assert f"digest     {report['digest']}\n" in done.stdout
    assert "REVERSALS/MIN" in done.stdout
    again = sim("run", file, "--seed", "5", "--no-plots", "-o", "json", cwd=tmp_path)
    assert again.returncode == 0
    assert json.loads(again.stdout)["digest"] == report["digest"]


def test_decide_reproduces_every_decision_of_a_report(tmp_path: Path) -> None:
    """The command that report.md names, typed as it stands there."""
    write(tmp_path / "s.yaml")
    policies = ("--policy", "nash", "--policy", "market")
    assert sim("run", "s.yaml", "--no-plots", *policies, cwd=tmp_path).returncode == 0
    folder = tmp_path / "out/small"
    inputs = (folder / "decisions.jsonl").read_bytes()
    done = run_inside("decide", "cpu.allocate", "--jsonl", input=inputs)
    assert done.stdout == (folder / "results.jsonl").read_bytes()
    assert b'"policy":"nash"' in (folder / "decisions.jsonl").read_bytes()


def test_a_broken_promise_exits_1_with_the_seed(tmp_path: Path) -> None:
    """A broken actuator: the check, the seed and the time on standard error, the report written."""
    faults = [{"point": "actuator.wrong", "at_s": [10], "factor": 3}]
    file = write(tmp_path / "s.yaml", faults=faults)
    done = sim("run", file, "--seed", "8", "--no-plots", cwd=tmp_path)
    assert done.returncode == 1
    assert "broken: limits-" in done.stderr
    assert "(seed 8, at " in done.stderr
    assert json.loads((tmp_path / "out/small/report.json").read_text())["ok"] is False


def test_bad_input_exits_2_and_writes_nothing(tmp_path: Path) -> None:
    """A wrong field, an alias bomb, a missing file, a folder that is not ours."""
    bad = write(tmp_path / "bad.yaml", pods=[pod("a", request_millicores="lots")])
    bomb = tmp_path / "bomb.yaml"
    bomb.write_text("a: &a [1]\nb: *a\n")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("x")
    good = write(tmp_path / "good.yaml")
    for arguments, words in (
        ((bad,), "error: pods[0].request_millicores: must be an integer between"),
        ((str(bomb),), "error: a: must not use anchors or aliases"),
        (("nowhere.yaml",), "error: nowhere.yaml: No such file or directory; bundled"),
        ((str(tmp_path),), "Is a directory"),
        ((good, "--out", "mine"), "error: --out: mine holds something else than a report"),
        ((good, "--seed", "-1"), "--seed"),
        ((good, "--policy", "luck"), "--policy"),
    ):
        done = sim("run", *arguments, "--no-plots", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, ""), arguments
        assert words in done.stderr
    assert not (tmp_path / "out").exists()


def test_without_matplotlib_it_says_how_to_get_it_and_goes_on(tmp_path: Path) -> None:
    """The extra is optional: a note, a report without pictures, exit code 0."""
    file = write(tmp_path / "s.yaml")
    hidden = (
        "import sys; sys.modules['matplotlib'] = None; from fairlead.cli.main import run; run()"
    )
    done = subprocess.run(
        [sys.executable, "-c", hidden, "sim", "run", file],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0
    assert "pip install 'fairlead[plots]'" in done.stderr
    assert not list((tmp_path / "out/small").glob("*.png"))


def test_list_and_schema(tmp_path: Path) -> None:
    """Names for scripts, a schema for editors; a listed name can be run anywhere."""
    listed = sim("list", cwd=tmp_path)
    assert listed.stdout.split() == ["bursty-mix", "faults", "overload", "quiet"]
    schema = sim("schema", cwd=tmp_path)
    assert "ScenarioDocument" in json.loads(schema.stdout)["$defs"]
    done = sim("run", "quiet", "--no-plots", cwd=tmp_path)
    assert done.returncode == 0
    assert "quiet: policy demand-capped" in done.stdout


@pytest.mark.parametrize("command", [("--help",), ("run", "--help")])
def test_help_explains(command: tuple[str, ...], tmp_path: Path) -> None:
    """Help goes to standard output and exits 0."""
    done = sim(*command, cwd=tmp_path)
    assert done.returncode == 0
    assert "scenario" in done.stdout.lower()
