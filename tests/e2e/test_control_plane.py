"""Two teams share a box through `fairlead up` and the command line, as they would."""

import csv
import io
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.servers import budget, node, run, short_folder
from tests.e2e.plane_kills import run_kills
from tests.e2e.planes import Plane, documents


@pytest.fixture
def plane() -> Iterator[Plane]:
    with short_folder() as folder:
        found = Plane(folder, "--no-http").up()
        try:
            yield found
        finally:
            if found.process is not None and found.process.poll() is None:
                found.down()


def test_two_teams_share_a_box(plane: Plane, tmp_path: Path) -> None:
    """Budgets, a run with its devices, a loan, a refusal with its remedy, a bill at the end."""
    lending = {"allow": True, "to": ["team-a"], "maxConcurrency": 2}
    applied = plane.apply(
        node(devices=4), budget("team-a", 2), budget("team-b", 2, lending=lending)
    )
    assert applied.splitlines() == [
        "node/box created",
        "budget/team-a created",
        "budget/team-b created",
    ]
    seen = tmp_path / "seen"
    command = ["sh", "-c", f"echo $CUDA_VISIBLE_DEVICES > {seen}; echo hello; sleep 0.5"]
    funding = {"allowBorrow": True, "sponsors": ["team-b"]}
    big = run("big", gpus=3, command=command, funding=funding)
    shown = plane.ok("plan", "-f", "-", input=documents(big))
    assert "sponsor" in shown
    assert "starts now on box#0, box#1, box#2" in shown
    assert plane.ok("submit", "-f", "-", input=documents(big)) == "run/big created\n"
    assert plane.ok("logs", "-f", "big") == "hello\n"
    plane.until("completed", lambda: plane.phase("big") == "Completed")
    assert seen.read_text().strip() == "0,1,2"
    assert plane.json("leases") == []
    (debt,) = plane.json("owes")
    assert (debt["borrower"], debt["lender"], debt["gpus"]) == ("team-a", "team-b", 0)
    rows = list(csv.DictReader(io.StringIO(plane.ok("report"))))
    paid = {(row["owner"], row["payer"]): float(row["gpu_hours"]) for row in rows if row["owner"]}
    assert paid["team-a", "team-a"] > paid["team-a", "team-b"] == debt["gpu_hours"] > 0
    assert [row["idle_gpus"] for row in rows if row["kind"] == "idle"] == ["4"]
    used = {row["budget"]: row["used_gpu_hours"] for row in plane.json("budgets")}
    assert used["team-b"] == pytest.approx(paid["team-a", "team-b"])
    (sponsor,) = plane.json("sponsors", "--owner", "team-a", "--flavor", "H100")
    assert (sponsor["owner"], sponsor["free_gpus"]) == ("team-b", 2)
    assert "big" in plane.ok("describe", "run/big")
    verified = plane.ok("audit", "verify", "--ledger", str(plane.folder / "data" / "ledger.db"))
    assert verified.startswith("verified")


def test_a_refused_run_says_what_would_help(plane: Plane) -> None:
    """The plan, the explanation, the log of the server; and the remedy, applied, helps."""
    plane.apply(node(), budget("team-a", 2), budget("team-b", 2, sharing="none"))
    big = run("big", gpus=3)
    refused = plane.run("plan", "-f", "-", input=documents(big))
    assert refused.returncode == 1
    assert "ConcurrencyCapExceeded" in refused.stdout
    assert "would fund it: concurrency of envelope team-a/main from 2 to 3" in refused.stdout
    plane.ok("submit", "-f", "-", input=documents(big))
    plane.until("refused", lambda: plane.ask("/v1/objects/Run/big")["status"]["refusal"])
    assert "would fund it" in plane.ok("explain", "run/big")
    lines = [json.loads(each) for each in plane.log.read_text().splitlines() if each[0] == "{"]
    (failed,) = [each for each in lines if each["event"] == "cover failed"]
    assert (failed["code"], failed["owner"]) == ("ConcurrencyCapExceeded", "team-a")
    plane.apply(budget("team-a", 3))
    plane.until("running", lambda: plane.phase("big") == "Running")
    assert plane.ok("cancel", "big") == "run/big is being cancelled\n"
    assert plane.phase("big") == "Failed"


def test_runs_survive_a_restart_of_the_control_plane(plane: Plane, tmp_path: Path) -> None:
    """SIGTERM ends the server cleanly; the run goes on, is taken over, and is started once."""
    plane.apply(node(), budget("team-a"))
    starts, go = tmp_path / "starts", tmp_path / "go"
    command = ["sh", "-c", f"echo x >> {starts}; while [ ! -e {go} ]; do sleep 0.05; done"]
    plane.ok("submit", "-f", "-", input=documents(run("long", command=command)))
    plane.until("started", starts.exists)
    assert plane.down(signal.SIGTERM) == 0
    assert not plane.socket.exists()
    gone = plane.run("get", "runs")
    assert (gone.returncode, "fairlead up" in gone.stderr) == (3, True)
    plane.process = None
    plane.up()
    assert plane.phase("long") == "Running"
    go.touch()
    plane.until("completed", lambda: plane.phase("long") == "Completed")
    assert starts.read_text() == "x\n"
    assert plane.down(signal.SIGINT) == 0


def test_kill_9_under_load_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """A sample of what `make soak` does in full."""
    assert run_kills(25, seed=1, folder=tmp_path)["acknowledged"] > 0
