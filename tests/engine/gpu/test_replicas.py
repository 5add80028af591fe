"""Replicas as processes on a real PostgreSQL: what they share is never spent twice."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from fairlead.engine.gpu import Config, ControlPlane
from fairlead.engine.gpu.projection import Projection
from fairlead.ledger.keys import KeyDirectory
from fairlead.ledger.postgres import PostgresLedger
from fairlead.ports.ledger import Entry
from tests.engine.gpu.replica import RUNS
from tests.engine.gpu.resolving import CHANCE, reservation
from tests.engine.gpu.worlds import ADMIN, LENIENT, START, budget, envelope, manifest, node, run
from verify import fairlead_verify

pytestmark = pytest.mark.component("postgres")
GPUS = 4


def test_two_replicas_on_postgres_never_overspend(postgres: str, tmp_path: Path) -> None:
    """Two processes race for the last GPUs of a budget, and of a node; every entry is followed."""
    schema, keys = "race", tmp_path / "keys"
    with PostgresLedger.open(postgres, KeyDirectory(keys), schema=schema) as ledger:
        plane = ControlPlane(ledger, None, lambda: START)
        a100 = {**envelope(concurrency=100), "flavor": "A100"}
        plane.objects.apply_all(
            [
                budget("a", "a", envelope(concurrency=GPUS)),
                budget("b", "b", a100),
                manifest("Node", "wide", {"flavor": "H100", "devices": 64}),
                manifest("Node", "narrow", {"flavor": "A100", "devices": GPUS}),
            ],
            author=ADMIN,
        )
        replicas = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.engine.gpu.replica",
                    postgres,
                    schema,
                    str(keys),
                    str(number),
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for number in range(2)
        ]
        for replica in replicas:
            out, err = replica.communicate(timeout=240)
            assert (replica.returncode, out) == (0, f"{RUNS}\n"), err
        fullest = _follow(ledger)
        assert ledger.verify().ok
    assert fullest == {"a": GPUS, "b": GPUS}, "they really met at the limit, and not beyond it"


def test_two_replicas_resolve_one_scope_at_once(postgres: str, tmp_path: Path) -> None:
    """Three reservations due together: outcomes in one order, each drawn and applied once."""
    schema, keys = "resolve", tmp_path / "keys"
    with PostgresLedger.open(postgres, KeyDirectory(keys), schema=schema) as ledger:
        plane = ControlPlane(
            ledger, None, lambda: START, Config(resolver="enforce", preemption=LENIENT), CHANCE
        )
        runs = [run(f"r{i}", owner="bc"[i % 2]) for i in range(16)]
        plane.objects.apply_all(
            [
                node(devices=16),
                *(budget(name, name, envelope(concurrency=16)) for name in "abc"),
                *runs,
            ],
            author=ADMIN,
        )
        plane.reconcile()
        winners = [run(f"w{i}", owner="a", gpus=4) for i in range(3)]
        slots = [reservation(f"s{i}", f"w{i}") for i in range(3)]
        plane.objects.apply_all([*winners, *slots], author=ADMIN)
        rivals = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.engine.gpu.rival", postgres, schema, str(keys)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        for rival in rivals:
            _, err = rival.communicate(timeout=240)
            assert rival.returncode == 0, err
        entries = _all(ledger)
        projection = Projection()
        for entry in entries:
            projection.apply(entry)  # refuses a second resolve of the flavor, and a device twice
        kinds = Counter(entry.kind for entry in entries)
        assert kinds["gpu.resolve.commit"] == kinds["gpu.resolve.draw"] == 3
        assert kinds["gpu.resolve.applied"] == 3
        cut = [e.body["lease"] for e in entries if e.kind == "lease.close"]
        assert len(cut) == len(set(cut)), "nobody is cut twice"
        gone = {e.body["run"] for e in entries if e.body.get("reason") == "Preempted"}
        assert gone, "and somebody was"
        plane = ControlPlane(
            ledger, None, lambda: START, Config(resolver="enforce", preemption=LENIENT), CHANCE
        )
        for outcome in plane.outcome_reports.page(100)["items"]:
            data = plane.outcome_reports.export(outcome["outcome"], author=ADMIN, owner="b")
            assert fairlead_verify.verify(data)[0] == 0, fairlead_verify.verify(data)
        assert ledger.verify().ok


def _all(ledger: PostgresLedger) -> list[Entry]:
    found: list[Entry] = []
    while page := ledger.entries(found[-1].seq if found else 0):
        found += page
    return found


def _follow(ledger: PostgresLedger) -> dict[str, int]:
    """Fold entry by entry; how many GPUs each budget ever paid for at once."""
    projection, fullest, started = Projection(), {"a": 0, "b": 0}, list[str]()
    for entry in _all(ledger):
        projection.apply(entry)  # refuses a device that is leased twice
        if entry.kind == "lease.open":
            started.append(entry.body["run"])
        for name, most in fullest.items():
            used = sum(each.gpus for each in projection.leases.values() if each.budget == name)
            fullest[name] = max(most, used)
    assert len(started) == len(set(started)) == 2 * RUNS, "every run was started once"
    return fullest
