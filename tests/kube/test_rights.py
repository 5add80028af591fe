"""The accounts of the chart: no right is missing, and each is used."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from fairlead.api.cluster_server import ClusterListen
from fairlead.kube import queries
from fairlead.kube.client import KubeClient, connection
from fairlead.kube.cpu.pods import SWITCH
from fairlead.kube.kinds import crds
from fairlead.kube.roles import TENANT, tenant_role
from fairlead.kube.serving import ServingCertificate
from tests.kube import charts
from tests.kube.charts import BASE, CONTROLLER, NAMESPACE
from tests.kube.cpu_world import SPACE, NodeAgent, Pods
from tests.kube.test_api_server import get, port_of
from tests.kube.world import World, due_now, made, node, run, team, until

pytestmark = pytest.mark.component("helm")
NODE_AGENT = "fairlead-node"


@pytest.fixture
def world(deployed: charts.Deployed, tmp_path: Path) -> Iterator[World]:
    charts.install(deployed.cluster, controller_replicas=0, cpu_enabled=True)
    made = World(deployed.cluster, tmp_path)
    yield made
    made.clean()


def test_the_shipped_roles_are_what_controller_and_node_agent_need(
    deployed: charts.Deployed, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "KEEP_S", 1.0)
    account = charts.account(deployed.cluster, NAMESPACE, CONTROLLER, tmp_path)
    world.kubectl("-n", NAMESPACE, "delete", "leases", "--all")
    for kind, end in (("secret", "tls"), ("configmap", "ca")):
        name = f"{CONTROLLER}-{end}"
        world.kubectl("-n", NAMESPACE, "delete", kind, name, "--ignore-not-found")
    audit = deployed.audit()
    world.apply(node("n1"), node("n2"), *team("team-a"), *team("team-b"))
    world.apply(run("gang", 16, groupGPUs=8))
    with world.controlled(kubeconfig=account, namespace=NAMESPACE):
        world.reach("gang", "Running")
    listen = ClusterListen("127.0.0.1", 0)
    # It finds its pods again.
    with world.controlled(kubeconfig=account, namespace=NAMESPACE, listen=listen):
        token = world.kubectl("-n", "team-a", "create", "token", "default").strip()
        assert get(port_of(world), "/metrics", token)[0] == 403
        world.apply(made("Query", "ask", {"method": "GET", "path": "/v1/budgets"}, "team-b"))
        reserve = due_now("first")
        world.apply(run("first", 8, "team-b"), made("Reservation", "now", reserve, "team-b"))
        world.reach("first", "Running", "team-b")
        for name in ("resolveroutcomes", "gpuleases"):
            until(lambda name=name: world.names(name), f"{name} are shown")
        world.exit("first-0", 0, "team-b")
        world.reach("first", "Completed", "team-b")
        world.reach("gang", "Running")
        # Its state is shown beside the making of its pods.
        until(lambda: "gang-1" in world.names("pods"), "its pods are made")
        until(lambda: world.get("pod", "gang-1", "team-a")["spec"].get("nodeName"), "it is bound")
        world.kubectl("delete", "node", "n2")
        until(lambda: world.phase("gang") != "Running", "the gang lost a node")
        world.kubectl("-n", "team-a", "delete", "run", "gang")
        world.kubectl("delete", "budget", "team-a")
        until(lambda: not world.names("queries"), "the Query is removed")
        _limit_a_pod(world, tmp_path)
    _rotate(KubeClient(connection(account)), tmp_path)
    for name in (CONTROLLER, NODE_AGENT):
        rights, refused = audit.of(name)
        allowed = charts.granted(deployed.cluster.programs, name, cpu_enabled=True)
        assert refused == []
        assert rights - allowed == set(), "allowed by something else than the shipped role"
        assert allowed - rights == set(), "never used"


def _rotate(client: KubeClient, folder: Path) -> None:
    """Issue the certificate, and two years later another one."""
    for days in (0, 700):
        now = datetime.now(UTC) + timedelta(days=days)
        made = ServingCertificate(
            client, NAMESPACE, CONTROLLER, folder / "tls", now=lambda now=now: now
        )
        made.turn()


def _limit_a_pod(world: World, folder: Path) -> None:
    """The node agent as the DaemonSet starts it, on files that stand for the node's cgroups."""
    pods, agent = Pods(world), NodeAgent(world, folder)
    account = charts.account(world.cluster, NAMESPACE, NODE_AGENT, folder)
    quota = agent.container(pods, "web", 800)
    with agent.running(account):

        def asked() -> int:
            found = world.get("podallocations")["items"]
            return found[0]["spec"]["containers"][0]["limitMillicores"] if found else 0

        first = until(asked, "a PodAllocation")
        quota.write_text(f"{first * 100} 100000\n")
        until(lambda: asked() not in (0, first), "another limit")
        until(lambda: pods.limit("web") < 800, "the pod is resized")
        world.kubectl("-n", SPACE, "annotate", "pod", "web", f"{SWITCH}=off")
        until(lambda: not asked(), "the PodAllocation is removed")


def test_the_shipped_crds_are_generated() -> None:
    shipped = list(yaml.safe_load_all((BASE / "crds.yaml").read_text()))
    assert shipped == crds(), "run: fairlead kube crds > deploy/kube/base/crds.yaml"


def test_the_tenants_role_of_a_development_cluster_is_the_shipped_one() -> None:
    shipped = yaml.safe_load_all((BASE / "fairlead.yaml").read_text())
    (role,) = [row for row in shipped if row and row["metadata"]["name"] == TENANT]
    assert role == tenant_role()


def test_no_role_has_a_wildcard(deployed: charts.Deployed) -> None:
    rows = charts.rendered(deployed.cluster.programs)
    roles = [row for row in rows if row["kind"] in ("ClusterRole", "Role")]
    assert len(roles) >= 3
    assert "*" not in str([row["rules"] for row in roles])
