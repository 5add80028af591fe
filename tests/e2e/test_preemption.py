"""Three teams, a reservation, and real processes that are told, stopped and started again."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.engine.gpu import Author, Config, ControlPlane
from fairlead.executor.local import LocalExecutor
from fairlead.ledger.keys import KeyDirectory, open_master
from fairlead.ledger.sqlite import SqliteLedger
from fairlead.schema.times import format_time
from tests.engine.gpu.worlds import ADMIN, LENIENT, budget, envelope, manifest, node, run
from tests.executor.worlds import open_folder

VERIFIER = Path(__file__).parents[2] / "verify" / "fairlead_verify.py"
PATIENCE_S = 60


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Lab:
    """A control plane on a real ledger and a real executor; `open` is also what a restart does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.open()

    def open(self) -> None:
        self.ledger = SqliteLedger.open(
            self.folder / "ledger.db", KeyDirectory(self.folder / "keys")
        )
        self.executor = LocalExecutor(self.folder / "runs", allow_root=True)
        config = Config(resolver="enforce", grace_ms=PATIENCE_S * 1000, preemption=LENIENT)
        self.plane = ControlPlane(
            self.ledger, self.executor, now_ms, config, open_master(self.folder / "keys")
        )

    def restart(self) -> None:
        self.ledger.close()
        self.open()

    def phase(self, name: str) -> str:
        found = self.plane.objects.get("Run", name)
        assert found is not None
        return str(found["status"]["phase"])

    def until(self, holds: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, (what, self.plane.objects.list("Run"))
            self.plane.reconcile()
            time.sleep(0.02)  # polling interval, not synchronisation

    def output(self, run: str) -> str:
        return "".join(part.read_text() for part in self.executor.log_parts(run))


@pytest.fixture
def lab() -> Iterator[Lab]:
    with open_folder() as folder:
        found = Lab(folder)
        try:
            yield found
        finally:
            for each in found.plane.objects.list("Run"):
                found.executor.stop(each["metadata"]["name"], 0, decision="p9")
            found.until(lambda: not found.executor.running(), "all processes are gone")
            found.ledger.close()


# Saves its work when it is asked to end, and goes on from there when it is started again.
GANG = """
trap 'echo "$step" > {mark}; exit 0' TERM
step=$(cat {mark} 2>/dev/null || echo 0)
echo "from $step"
while :; do step=$((step + 1)); sleep 0.05; done
"""
# Says its width when it is told to look, and works on.
ELASTIC = """
trap 'tr -d " " < "$FAIRLEAD_WIDTH_FILE"; echo' WINCH
echo ready
while [ ! -e {go} ]; do sleep 0.05; done
"""


def test_a_reservation_on_monday(lab: Lab, tmp_path: Path) -> None:
    """Spares dropped, an elastic run shrunk, a gang stopped and restarted; the loser verifies."""
    mark, go = lab.folder / "mark", lab.folder / "go"
    user = None if os.geteuid() else "root"
    lab.plane.objects.apply_all(
        [
            node("n1", 12, location={"region": "west", "cluster": "a", "domain": "d1"}),
            *(budget(team, team, envelope(concurrency=12)) for team in "abc"),
        ],
        author=ADMIN,
    )
    author = Author(user or os.environ.get("USER", "root"), admin=True)
    shell = ["/bin/sh", "-c"]
    lab.plane.objects.apply_all(
        [
            run(
                "elastic",
                "b",
                4,
                groupGPUs=2,
                malleable={"minTotalGPUs": 2, "stepGPUs": 2},
                checkpointGrace="1s",
                command=[*shell, ELASTIC.format(go=go)],
            ),
            run("steady", "b", 2, groupGPUs=2, sparesPerGroup=2, command=["sleep", "600"]),
            run("gang", "c", 4, command=[*shell, GANG.format(mark=mark)]),
        ],
        author=author,
    )
    lab.until(lambda: "ready" in lab.output("elastic") and "from 0" in lab.output("gang"), "busy")
    kept = lab.ledger.head().head
    monday = now_ms() + 500
    slot = manifest(
        "Reservation", "monday", {"run": "urgent", "earliestStart": format_time(monday)}
    )
    urgent = run("urgent", "a", 8, command=[*shell, f"echo $FAIRLEAD_DEVICES; cat {go} || sleep 1"])
    nominated = lab.plane.verbs.act("Run", "gang", "nominate", author=author)
    assert nominated.object["status"]["nominated"] is True
    lab.plane.objects.apply_all([urgent, slot], author=author)
    lab.until(lambda: lab.plane.outcome_reports.page(1)["items"], "the resolve begins")
    lab.restart()  # in the middle of it: processes live on, and nothing is decided again
    lab.until(lambda: lab.phase("urgent") in ("Running", "Completed"), "the winner starts")
    (outcome,) = lab.plane.outcome_reports.page(100)["items"]
    closed = {
        (entry.body["run"], entry.body["reason"])
        for entry in lab.ledger.entries(0, 10_000, kind="lease.close")
        if entry.body.get("outcome") == outcome["outcome"]
    }
    wanted = {("gang", "RandomPreempt"), ("steady", "DropSpare"), ("elastic", "Shrink")}
    assert closed == wanted
    saved = int(mark.read_text())
    assert saved > 0
    lab.until(lambda: lab.phase("urgent") == "Completed", "its work is done")
    lab.until(lambda: "from 0" not in lab.output("gang"), "the gang starts again")
    lab.until(lambda: f"from {saved}" in lab.output("gang"), "where it was")
    assert lab.plane.objects.get("Run", "gang")["status"]["attempts"] == 2
    data = lab.plane.outcome_reports.export(
        outcome["outcome"],
        author=Author("carol", frozenset({"c"})),
        heads=((kept.size, kept.root),),
    )
    file = tmp_path / "outcome.json"
    file.write_bytes(data)
    head = f"{kept.size}:{kept.root}"
    done = subprocess.run(
        [sys.executable, "-I", str(VERIFIER), str(file), "--head", head],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "Everything holds" in done.stdout) == (0, True), done
    go.touch()
    lab.until(lambda: lab.phase("elastic") == "Completed", "the elastic run ends by itself")
    assert lab.ledger.verify().ok


def test_an_elastic_run_is_told_and_works_on(lab: Lab) -> None:
    """Its process hears the signal, reads its width, and is never stopped; nor when it grows."""
    go = lab.folder / "go"
    lab.plane.objects.apply_all([node("n1", 4), *(budget(team) for team in "ab")], author=ADMIN)
    lab.plane.objects.apply(
        run(
            "elastic",
            "b",
            4,
            groupGPUs=2,
            malleable={"minTotalGPUs": 2, "stepGPUs": 2},
            checkpointGrace="1s",
            command=["/bin/sh", "-c", ELASTIC.format(go=go)],
        ),
        author=ADMIN,
    )
    lab.until(lambda: "ready" in lab.output("elastic"), "it listens")
    slot = manifest("Reservation", "s", {"run": "w", "earliestStart": format_time(now_ms())})
    lab.plane.objects.apply_all([run("w", "a", 2, command=["sleep", "0.2"]), slot], author=ADMIN)
    lab.until(lambda: lab.phase("w") == "Completed", "the winner had its turn")
    assert '"width":2' in lab.output("elastic")
    lab.until(lambda: '"width":4' in lab.output("elastic"), "it has its devices back")
    assert lab.phase("elastic") == "Running"
    assert lab.plane.objects.get("Run", "elastic")["status"]["attempts"] == 1
    go.touch()
    lab.until(lambda: lab.phase("elastic") == "Completed", "it ends by itself")
