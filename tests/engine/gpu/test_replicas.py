"""Replicas as processes on a real PostgreSQL: what they share is never spent twice."""

import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.engine.gpu import ControlPlane
from fairlead.engine.gpu.projection import Projection
from fairlead.ledger.keys import KeyDirectory
from fairlead.ledger.postgres import PostgresLedger
from tests.engine.gpu.replica import RUNS
from tests.engine.gpu.worlds import ADMIN, START, budget, envelope, manifest

pytestmark = pytest.mark.component("postgres")
GPUS = 4


def test_two_replicas_on_postgres_never_overspend(postgres: str, tmp_path: Path) -> None:
    """Two processes race for the last GPUs of a budget, and of a node; every entry is followed."""
    schema, keys = "race", tmp_path / "keys"
    with PostgresLedger.open(postgres, KeyDirectory(keys), schema=schema, time_ms=START) as ledger:
        plane = ControlPlane(ledger, None, lambda: START)
        a100 = {**envelope(concurrency=100), "flavor": "A100"}
        plane.apply_all(
            [
                budget("a", "a", envelope(concurrency=GPUS)), budget("b", "b", a100),
                manifest("Node", "wide", {"flavor": "H100", "devices": 64}),
                manifest("Node", "narrow", {"flavor": "A100", "devices": GPUS}),
            ],
            author=ADMIN,
        )  # fmt: skip
        replicas = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.engine.gpu.replica", postgres, schema, str(keys),
                 str(number)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for number in range(2)
        ]  # fmt: skip
        for replica in replicas:
            out, err = replica.communicate(timeout=240)
            assert (replica.returncode, out) == (0, f"{RUNS}\n"), err
        fullest = _follow(ledger)
        assert ledger.verify().ok
    assert fullest == {"a": GPUS, "b": GPUS}, "they really met at the limit, and not beyond it"


def _follow(ledger: PostgresLedger) -> dict[str, int]:
    """Fold entry by entry; how many GPUs each budget ever paid for at once."""
    projection, fullest, started = Projection(), {"a": 0, "b": 0}, list[str]()
    while page := ledger.entries(projection.seq):
        for entry in page:
            projection.apply(entry)  # refuses a device that is leased twice
            if entry.kind == "lease.open":
                started.append(entry.body["run"])
            for name, most in fullest.items():
                used = sum(each.gpus for each in projection.leases.values() if each.budget == name)
                fullest[name] = max(most, used)
    assert len(started) == len(set(started)) == 2 * RUNS, "every run was started once"
    return fullest
