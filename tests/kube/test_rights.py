"""The accounts of the chart: no right is missing, and each is used."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from fairlead.kube import queries
from fairlead.kube.kinds import crds
from tests.kube import charts
from tests.kube.charts import BASE, CONTROLLER, NAMESPACE, Right
from tests.kube.world import World, made, node, run, team, until

pytestmark = pytest.mark.component("helm")


@pytest.fixture
def world(deployed: charts.Deployed, tmp_path: Path) -> Iterator[World]:
    charts.install(deployed.cluster, controller_replicas=0)
    made = World(deployed.cluster, tmp_path)
    yield made
    made.clean()


def granted(deployed: charts.Deployed, account: str) -> set[Right]:
    """What the chart's roles of this name allow."""
    return {
        (group, resource, verb)
        for row in charts.rendered(deployed.cluster.programs)
        if row["kind"] in ("ClusterRole", "Role") and row["metadata"]["name"] == account
        for rule in row["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_shipped_role_is_what_the_controller_needs(
    deployed: charts.Deployed, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "KEEP_S", 1.0)
    account = charts.account(deployed.cluster, NAMESPACE, CONTROLLER, tmp_path)
    world.kubectl("-n", NAMESPACE, "delete", "leases", "--all")
    audit = deployed.audit()
    world.apply(node("n1"), node("n2"), *team("team-a"), *team("team-b"))
    world.apply(run("gang", 16, groupGPUs=8))
    with world.controlled(kubeconfig=account, namespace=NAMESPACE):
        world.reach("gang", "Running")
    with world.controlled(kubeconfig=account, namespace=NAMESPACE):  # finds its pods again
        reserve = {"run": "first", "earliestStart": "2026-01-01T00:00:00Z"}
        world.apply(run("first", 8, "team-b"), made("Reservation", "now", reserve, "team-b"))
        world.reach("first", "Running", "team-b")
        for name in ("resolveroutcomes", "gpuleases"):
            until(lambda name=name: world.names(name), f"{name} are shown")
        world.exit("first-0", 0, "team-b")
        world.reach("first", "Completed", "team-b")
        world.reach("gang", "Running")
        until(lambda: world.get("pod", "gang-1", "team-a")["spec"].get("nodeName"), "it is bound")
        world.kubectl("delete", "node", "n2")
        until(lambda: world.phase("gang") != "Running", "the gang lost a node")
        world.kubectl("-n", "team-a", "delete", "run", "gang")
        govern_cpu(world)
        asked = made("Query", "asked", {"method": "GET", "path": "/v1/runs"}, "team-a")
        world.apply(asked)
        until(lambda: not world.names("queries"), "the Query is answered and removed")
        world.kubectl("delete", "budget", "team-a")
    rights, refused = audit.of(CONTROLLER)
    allowed = granted(deployed, CONTROLLER)
    assert refused == []
    assert rights - allowed == set(), "allowed by something else than the shipped role"
    assert allowed - rights == set(), "never used"


def govern_cpu(world: World) -> None:
    """A pod with a limit, and what a node agent asks for it."""
    resources = {"limits": {"cpu": "500m"}, "requests": {"cpu": "50m"}}
    spec = {"containers": [{"name": "main", "image": "busybox", "resources": resources}]}
    meta = {"name": "web", "namespace": "team-a"}
    world.apply({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    until(lambda: world.get("pod", "web", "team-a")["status"].get("phase") == "Running", "it runs")
    web = world.get("pod", "web", "team-a")
    uid = web["metadata"]["uid"]
    limit = [{"name": "main", "limitMillicores": 300}]
    spec = {"pod": "web", "uid": uid, "node": web["spec"]["nodeName"], "decision": 1}
    spec |= {"capacityMillicores": 1000, "containers": limit}
    world.apply(made("PodAllocation", uid, spec, "team-a"))
    world.kubectl("-n", "team-a", "wait", "--for=condition=Applied", f"pa/{uid}")


def test_the_shipped_crds_are_generated() -> None:
    shipped = list(yaml.safe_load_all((BASE / "crds.yaml").read_text()))
    assert shipped == crds(), "run: fairlead kube crds > deploy/kube/base/crds.yaml"


def test_no_role_has_a_wildcard(deployed: charts.Deployed) -> None:
    rows = charts.rendered(deployed.cluster.programs)
    roles = [row for row in rows if row["kind"] in ("ClusterRole", "Role")]
    assert len(roles) >= 3
    assert "*" not in str([row["rules"] for row in roles])
