"""A reservation whose window begins while every device is in use: a lottery that all can follow."""

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fairlead.engine.gpu import Author
from fairlead.kube.kinds import KINDS
from tests.kube.world import Document, World, due_now, made, node, plane_of, run, team, until

VERIFIER = Path(__file__).parents[2] / "verify" / "fairlead_verify.py"
SMALL = [f"small-{i}" for i in range(8)]


def events(world: World, kind: str, namespace: str) -> dict[str, list[Document]]:
    """What each object of a kind was told, by name."""
    told: dict[str, list[Document]] = {}
    for event in world.get("events", namespace=namespace)["items"]:
        about = event["involvedObject"]
        if about["kind"] == kind:
            told.setdefault(about["name"], []).append(event)
    return told


def said(rows: list[Document], reason: str) -> list[str]:
    return [row["message"] for row in rows if row["reason"] == reason]


def checked(file: Path) -> tuple[int, str]:
    command = [sys.executable, "-I", str(VERIFIER), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_window_that_begins_causes_a_deficit_and_a_lottery(world: World, tmp_path: Path) -> None:
    """Odds and preemption are told by Events, the outcome is shown, and its export verifies."""
    world.apply(node("n1"), *team("team-a", gpus=8), *team("team-b", gpus=8))
    world.apply(*(run(name, 1) for name in SMALL))
    with world.controlled() as controller:
        for name in SMALL:
            world.reach(name, "Running")
        until(lambda: len(world.names("pods")) == len(SMALL), "each has its pod")
        before = {
            row["metadata"]["name"]: row["metadata"]["uid"] for row in world.get("pods")["items"]
        }
        begins = datetime.now(UTC) + timedelta(seconds=10)
        reserve = {"run": "big", "earliestStart": begins.strftime("%Y-%m-%dT%H:%M:%SZ")}
        world.apply(run("big", 4, "team-b"), made("Reservation", "soon", reserve, "team-b"))
        until(lambda: world.phase("big", "team-b"), "it is submitted")
        if datetime.now(UTC) < begins - timedelta(seconds=1):
            assert not world.names("resolveroutcomes"), "nothing is decided before the window"
        try:
            world.reach("big", "Running", "team-b")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{world.picture()}") from None

        outcome = until(lambda: _applied(world), "the outcome is shown")
        assert datetime.now(UTC) >= begins - timedelta(seconds=1)
        assert outcome["spec"]["deficitGPUs"] == 4
        assert outcome["spec"]["cause"] == "reservation"
        (row,) = outcome["status"]["conditions"]
        assert (row["type"], row["status"]) == ("Applied", "True")
        seq = outcome["spec"]["outcome"]

        def waits() -> set[str]:
            return {name for name in SMALL if world.phase(name) == "Pending"}

        # Their status is written one by one, beside the outcome's.
        until(lambda: len(waits()) == 4, "four were preempted")
        waiting = waits()
        until(lambda: len(world.names("pods")) == 5, "four pods are left, and that of the winner")
        left = {
            row["metadata"]["name"]: row["metadata"]["uid"] for row in world.get("pods")["items"]
        }
        for name in set(SMALL) - waiting:
            assert left[f"{name}-0"] == before[f"{name}-0"], "who was not drawn runs on"

        def leased() -> list[str]:
            leases = world.get("gpuleases")["items"]
            return [slot for lease in leases for slot in lease["spec"]["slots"]]

        until(
            lambda: len(leased()) == 8, "the winner's leases are shown, which come after its state"
        )
        assert len(set(leased())) == 8

        until(lambda: len(events(world, "Run", "team-a")) == len(SMALL), "all are told")
        for name, told in events(world, "Run", "team-a").items():
            (announced,) = said(told, "PreemptionAnnounced")
            assert f"outcome {seq}: 4 H100 missing" in announced
            assert "first draw: 1 in 8" in announced
            assert bool(said(told, "Preempted")) == (name in waiting)
            for message in said(told, "Preempted")[:1]:
                assert f"outcome {seq}" in message
        told = until(lambda: _resolved(world), "the reservation is told")
        assert "8 runs may be preempted" in said(told, "PreemptionAnnounced")[0]
        assert f"outcome {seq} is drawn" in said(told, "PreemptionDecided")[0]

        exported = plane_of(controller).outcome_reports.export(
            seq, author=Author("test", admin=True), owner="team-a"
        )
    file = tmp_path / "outcome.json"
    file.write_bytes(exported)
    code, text = checked(file)
    assert (code, "Everything holds" in text) == (0, True), text
    changed = json.loads(exported)
    changed["result"]["actions"] = changed["result"]["actions"][1:]
    file.write_text(json.dumps(changed, separators=(",", ":"), sort_keys=True) + "\n")
    assert checked(file)[0] != 0, "an outcome that was not drawn does not verify"


def test_every_kind_can_be_waited_for(world: World) -> None:
    """By a condition, with `kubectl wait`; leases are the ledger's, and no object owns one."""
    world.apply(node("n1"), *team("team-a", gpus=8), *team("team-b", gpus=8), run("first", 8))
    with world.controlled():
        world.reach("first", "Running")
        reserve = due_now("big")
        world.apply(run("big", 8, "team-b"), made("Reservation", "now", reserve, "team-b"))
        world.reach("big", "Running", "team-b")
        world.apply(made("Query", "ask", {"method": "GET", "path": "/v1/budgets"}, "team-b"))
        outcome = until(lambda: _applied(world), "the outcome is shown")
        leases = until(lambda: world.names("gpuleases"), "its leases are shown")
        for kind, name, condition in (
            ("budget", "team-a", "Accepted"),
            ("ownerbinding", "team-a", "Bound"),
            ("run", "big", "Running"),
            ("reservation", "now", "Accepted"),
            ("gpulease", leases[0], "Open"),
            ("resolveroutcome", outcome["metadata"]["name"], "Applied"),
            ("query", "ask", "Answered"),
        ):
            wait = ("wait", f"--for=condition={condition}", f"{kind}/{name}", "--timeout=30s")
            assert "condition met" in world.kubectl("-n", "team-b", *wait)
        for lease in world.get("gpuleases")["items"]:
            assert "ownerReferences" not in lease["metadata"]
        listed = world.kubectl("api-resources", "--api-group=fairlead.dev", "-o", "wide")
        for kind in KINDS.values():
            (row,) = [line for line in listed.splitlines() if line.split()[0] == kind.plural]
            assert ",".join(kind.short) in row
            assert row.endswith("fairlead"), "the category"
            shown = world.kubectl("get", kind.plural, "-A").splitlines()
            assert not shown or all(name.upper() in shown[0] for name, _, _ in kind.columns)
        assert "run.fairlead.dev/big" in world.kubectl("get", "fairlead", "-A", "-o", "name")


def _applied(world: World) -> Document | None:
    found = world.get("resolveroutcomes")["items"]
    return found[0] if found and found[0].get("status", {}).get("stage") == "applied" else None


def _resolved(world: World) -> list[Document] | None:
    told = events(world, "Reservation", "team-b").get("soon", [])
    return told if said(told, "Resolved") else None
