"""`kubectl runs` and `kubectl fairlead`, run by the real kubectl with the rights of a tenant."""

import json
from pathlib import Path

import pytest
import yaml

from tests.kube.plugins import Person, tenant
from tests.kube.world import World, due_now, made, node, plane_of, run, team, until

# Many commands, each a process of its own: on a busy machine they take minutes.
pytestmark = pytest.mark.timeout(900)
LENDING = {"allow": True, "to": ["team-b"]}


def budget(owner: str, gpus: int, **envelope: object) -> dict[str, object]:
    main = {"name": "main", "flavor": "H100", "concurrency": gpus, **envelope}
    return made("Budget", owner, {"owner": owner, "envelopes": [main]})


def test_a_tenant_submits_follows_and_ends_a_run(world: World, tmp_path: Path) -> None:
    """Every verb with nothing but a kubeconfig and the shipped role."""
    world.apply(node("n1"), node("n2"), *team("team-a", gpus=16))
    ana = tenant(world, tmp_path, "team-a")
    manifest = yaml.safe_dump(run("train", 16, groupGPUs=8))
    with world.controlled():
        planned = ana.runs("plan", "-f", "-", given=manifest)
        assert "starts now on n1#0" in planned.out
        preview = ana.runs("submit", "-f", "-", "--dry-run", given=manifest)
        assert preview.out.startswith("run/train created (dry run)")
        assert not world.names("runs")
        assert ana.runs("submit", "-f", "-", given=manifest).out == "run/train created\n"
        assert ana.runs("submit", "-f", "-", given=manifest).out == "run/train unchanged\n"
        world.reach("train", "Running")
        until(lambda: len(world.names("pods")) == 2, "both pods are there")

        explained = ana.runs("explain", "run/train").out
        assert explained.startswith("train: Running (Admitted)")
        assert "paid by team-a/main" in explained
        leases = json.loads(ana.runs("leases", "-o", "json").out)
        assert {row["run"] for row in leases} == {"train"}
        assert sum(row["gpus"] for row in leases) == 16
        assert ana.runs("leases", "-o", "name").out.count("team-a.train") == 2
        (row,) = json.loads(ana.runs("budgets", "-o", "json").out)
        assert (row["owner"], row["used_gpus"]) == ("team-a", 16)
        assert "16/16" in ana.runs("budgets").out
        pods = json.loads(ana.runs("pods", "train", "-o", "json").out)
        assert [(pod["rank"], pod["pod"]) for pod in pods] == [(0, "train-0"), (1, "train-1")]
        assert ana.fairlead("get", "runs", "-o", "name").out == "run/train\n"
        told = ana.runs("watch", "run/train", "--now", "--limit", "1", "-o", "json")
        event = json.loads(told.out)
        assert (event["object"], event["reason"]) == ({"kind": "Run", "name": "train"}, "Admitted")
        described = ana.fairlead("describe", "run/train", "-o", "json")
        assert {"run.phase"} <= {e["kind"] for e in json.loads(described.out)["events"]}

        assert "not malleable" in ana.runs("shrink", "train", "--to", "8", code=1).err
        ana.fairlead("cancel", "train")
        assert world.reach("train", "Failed")["reason"] == "Cancelled"
        assert ana.fairlead("delete", "run/train").out == "run/train deleted\n"
        until(lambda: not world.names("runs"), "the run is gone")
        until(lambda: not world.names("queries"), "no Query is left")


def test_a_tenant_sees_its_own_and_nothing_else(world: World, tmp_path: Path) -> None:
    """Another namespace is closed by RBAC; what the controller answers is the owner's alone."""
    world.apply(node("n1"), *team("team-a"), *team("team-b"))
    world.apply(budget("team-a", 8, lending=LENDING), budget("team-b", 8))
    world.apply(run("secret-a", 4), run("own-b", 4, "team-b"))
    ben = tenant(world, tmp_path, "team-b")
    with world.controlled():
        world.reach("secret-a", "Running")
        world.reach("own-b", "Running", "team-b")
        world.apply(
            run("waits", 8, "team-b", funding={"allowBorrow": True, "sponsors": ["team-a"]})
        )
        world.reach("waits", "Pending", "team-b")

        for words in (("leases",), ("budgets",), ("watch",), ("pods", "secret-a")):
            refused = ben.kubectl("runs", *words, "-n", "team-a")
            assert refused.code == 1, refused
            assert "forbidden" in refused.err
        answers = [
            ben.runs("leases", "-o", "json").out,
            ben.runs("budgets", "-o", "json").out,
            ben.runs("explain", "run/waits", "-o", "json").out,
            ben.runs("resolve", "--run", "waits", "--dry-run", code=1).err,
            ben.fairlead("owes", "-o", "json").out,
            ben.runs("outcome", "-o", "json").out,
            ben.fairlead("describe", "run/waits", "-o", "json").out,
        ]
        assert not [answer for answer in answers if "secret-a" in answer]
        assert {row["owner"] for row in json.loads(answers[0])} == {"team-b"}
        assert {row["owner"] for row in json.loads(answers[1])} == {"team-b"}
        at_risk = json.loads(answers[2])["forecast"]["atRisk"]
        assert {row["owner"] for row in at_risk} == {"team-b", "(another owner)"}
        (lender,) = json.loads(
            ben.runs("sponsors", "--owner", "team-b", "--flavor", "H100", "-o", "json").out
        )
        assert lender["owner"] == "team-a"
        other = ben.runs("sponsors", "--owner", "team-a", "--flavor", "H100", code=1)
        assert "query.owner: must be the namespace's owner, 'team-b'" in other.err
        for name in ("secret-a", "team-a.secret-a"):
            unknown = ben.runs("explain", f"run/{name}", code=2).err
            assert "there is no Run" in unknown
            assert "(see `kubectl fairlead get runs`)" in unknown
        assert "another owner's" in ben.runs("explain", "budget/team-a", code=1).err
        scope = ("--scope", "flavor=H100", "--gpus", "1")
        assert "only in the admin namespace" in ben.runs("resolve", *scope, code=1).err
        assert "only in the admin namespace" in ben.fairlead("report", code=1).err
        written = ben.fairlead("apply", "-f", "-", given=yaml.safe_dump(budget("x", 9)), code=1)
        assert "forbidden" in written.err


def test_an_admin_asks_in_the_admin_namespace(world: World, tmp_path: Path) -> None:
    world.apply(node("n1"), *team("team-a"), *team("team-b"), run("small", 4))
    admin = Person(world, tmp_path, world.kubeconfig, "default")
    with world.controlled(admin_namespace="default"):
        world.reach("small", "Running")
        assert {row["owner"] for row in json.loads(admin.runs("budgets", "-o", "json").out)} == {
            "team-a",
            "team-b",
        }
        scope = ("--scope", "flavor=H100", "--gpus", "4")
        preview = json.loads(admin.runs("resolve", *scope, "--dry-run", "-o", "json").out)
        assert [row["run"] for row in preview["forecast"]["atRisk"]] == ["team-a.small"]
        admin.runs("resolve", *scope)
        until(lambda: world.get("resolveroutcomes")["items"], "an outcome is shown")
        (outcome,) = json.loads(admin.runs("outcome", "-o", "json").out)
        ana = tenant(world, tmp_path, "team-a")
        shown = ana.runs("outcome", str(outcome["outcome"])).out
        assert "small" in shown
        verified = ana.runs("verify", str(outcome["outcome"]))
        assert "holds" in verified.out.lower(), verified
        assert "team-a" in admin.fairlead("report", "--by", "owner", "-o", "json").out
        assert admin.fairlead("report", "--by", "owner").out.startswith("kind,period,")


def test_the_namespace_of_a_manifest_holds_for_every_command(world: World, tmp_path: Path) -> None:
    """Without -n a manifest says where it belongs: who would pay is asked there, too."""
    world.apply(node("n1"), *team("team-a"), *team("team-b"))
    admin = Person(world, tmp_path, world.kubeconfig, "default")
    manifest = yaml.safe_dump(run("big", 8, "team-b"))
    with world.controlled(admin_namespace="default"):
        planned = admin.kubectl("runs", "plan", "-f", "-", given=manifest)
        assert "starts now on n1#0" in planned.out, planned
        preview = admin.kubectl("runs", "submit", "-f", "-", "--dry-run", given=manifest)
        assert "team-b  main" in preview.out, preview
        other = admin.kubectl("runs", "plan", "-n", "team-a", "-f", "-", given=manifest)
        assert other.code == 2
        assert "metadata.namespace: must be 'team-a', as -n says" in other.err
        words = ("fairlead", "reserve", "-f", "-", "--at", "+1h")
        dry = admin.kubectl(*words, "--dry-run", given=manifest)
        assert (dry.code, "no preview yet" in dry.out) == (0, True), dry
        assert not world.names("runs")
        assert admin.kubectl(*words, given=manifest).code == 0
        assert world.get("reservation", "big", "team-b")["spec"]["run"] == "big"


def test_errors_name_the_field_and_the_exit_code(world: World, tmp_path: Path) -> None:
    world.apply(*team("team-a"))
    ana = tenant(world, tmp_path, "team-a")

    def submit(document: object, code: int) -> str:
        return ana.runs("submit", "-f", "-", given=yaml.safe_dump(document), code=code).err

    assert "spec.totalGPUs" in submit(run("train", 0), 2)
    assert "spec.typo: is not a known field" in submit(run("train", 8, typo=1), 2)
    assert "metadata.namespace: must be 'team-a', as -n says" in submit(run("x", 8, "team-b"), 2)
    old = submit({**run("train", 8), "apiVersion": "fairlead.dev/v1"}, 2)
    assert "apiVersion: must be fairlead.dev/v1alpha1, got 'fairlead.dev/v1'" in old
    assert "kind: must be Run" in submit(made("Budget", "b", {}), 2)
    submit(run("train", 8), 0)
    assert "totalGPUs is immutable" in submit(run("train", 4), 2)
    assert "no such option" in ana.runs("leases", "--bogus", code=2).err.lower()
    missing = ana.kubectl("runs", "leases", KUBECONFIG=str(tmp_path / "none"))
    assert missing.code == 3
    assert "cannot read kubeconfig" in missing.err


def test_kubectl_completes_the_plugins(world: World, tmp_path: Path) -> None:
    """By kubectl's own protocol: it calls `kubectl_complete-runs`."""
    world.apply(*team("team-a"), run("train", 8))
    ana = tenant(world, tmp_path, "team-a")
    verbs = ana.kubectl("__complete", "runs", "ex").out.splitlines()
    assert verbs[0].startswith("explain\t")
    assert verbs[-1] == ":4"
    names = ana.kubectl("__complete", "runs", "-n", "team-a", "pods", "tr").out.splitlines()
    assert names == ["train", ":4"]
    formats = ana.kubectl("__complete", "runs", "leases", "-o", "").out.splitlines()
    assert formats == ["table", "wide", "json", "yaml", "name", ":4"]


def test_a_preview_names_no_run_of_another_owner(world: World, tmp_path: Path) -> None:
    """Where preemption is only previewed, a reservation tells which runs it would take."""
    world.apply(node("n1"), *team("team-a", gpus=8), *team("team-b", gpus=8), run("secret-a", 8))
    ben = tenant(world, tmp_path, "team-b")
    with world.controlled(resolver="dry-run") as controller:
        world.reach("secret-a", "Running")
        reserve = due_now("big")
        world.apply(run("big", 8, "team-b"), made("Reservation", "soon", reserve, "team-b"))

        def blocked() -> bool:
            found = world.get("reservation", "soon", "team-b").get("status", {})
            return found.get("state") == "Blocked"

        until(blocked, "the reservation is blocked")
        stored = plane_of(controller).objects.get("Reservation", "team-b.soon")
        assert "secret-a" in stored["status"]["message"], "the ledger names it"
        answers = [
            ben.runs("explain", "reservation/soon", "-o", "json").out,
            ben.fairlead("describe", "reservation/soon", "-o", "json").out,
            ben.fairlead("get", "reservations", "-o", "json").out,
            json.dumps(world.get("events", namespace="team-b")),
        ]
        assert not [answer for answer in answers if "secret-a" in answer]
        assert "(another owner)" in answers[0]
