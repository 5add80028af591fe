"""Agents of a cluster report to its controller, each for its own node; silence is shown."""

import json
import ssl
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest

from fairlead.api import fleet_history
from fairlead.api.cluster_server import ClusterListen
from fairlead.compose.reporting import http_send
from fairlead.host.process import free_port
from fairlead.kube.certificates import Authority
from fairlead.node.report import NotTaken
from fairlead.schema.border import BadInput
from fairlead.schema.reports import ReportSettings
from tests.api.reporting import group_moment, node_moment, report
from tests.api.servers import short_folder
from tests.dataplane.backends import Backends
from tests.kube.cpu_world import NODE, SPACE, NodeAgent, Pods
from tests.kube.test_api_server import _role, get, port_of
from tests.kube.traffic_world import (
    KubeTrafficProcess,
    TrafficWorld,
    own_address,
    route_group,
    service,
)
from tests.kube.world import World, node, team, until

REPORT = {"nonResourceURLs": ["/v1/reports"], "verbs": ["post"]}
READ = {"apiGroups": ["fairlead.dev"], "resources": ["runs"], "verbs": ["list"]}
EDIT = {"apiGroups": ["fairlead.dev"], "resources": ["budgets"], "verbs": ["update"]}
BOUND = ("--bound-object-kind", "Node", "--bound-object-name")


class Controller:
    """How its clients reach a controller: over TLS, with tokens of the cluster."""

    def __init__(self, world: World, folder: Path) -> None:
        self._world, self._folder = world, folder
        authority = Authority(folder / "pki")
        pair = authority.server("localhost", ["localhost"], ["127.0.0.1"])
        self.ca, certificate, key = (folder / name for name in ("ca.crt", "tls.crt", "tls.key"))
        self.ca.write_bytes(authority.certificate)
        certificate.write_bytes(pair.certificate)
        key.write_bytes(pair.key)
        self.listen = ClusterListen("127.0.0.1", 0, certificate, key)
        world.apply(*team("team-a"))
        world.apply(*_role("agent", REPORT), *_role("admin", READ, EDIT), *_role("nobody"))

    def token(self, account: str, *bound: str) -> Path:
        made = self._world.kubectl("-n", "team-a", "create", "token", account, *bound)
        path = self._folder / f"token-{account}-{'-'.join(bound[3:])}"
        path.write_text(made)
        return path

    def settings(self, token: Path) -> dict[str, str]:
        to = f"https://127.0.0.1:{port_of(self._world)}"
        return {"to": to, "token_file": str(token), "ca_file": str(self.ca)}

    def send(self, token: Path, document: dict[str, Any]) -> dict[str, Any]:
        taken = http_send(ReportSettings(**self.settings(token)))(json.dumps(document).encode())
        return dict(json.loads(taken))

    def get(self, path: str, token: Path) -> tuple[int, Any]:
        context = ssl.create_default_context(cafile=str(self.ca))
        made = HTTPSConnection("127.0.0.1", port_of(self._world), timeout=30, context=context)
        made.request("GET", path, headers={"Authorization": f"Bearer {token.read_text().strip()}"})
        reply = made.getresponse()
        return reply.status, json.loads(reply.read())


@pytest.mark.component("helm")
def test_the_node_agent_reports_and_its_silence_is_shown(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`node run --kube` as the chart starts it, with the token of a pod on its node."""
    controller, pods, agent = Controller(world, tmp_path), Pods(world), NodeAgent(world, tmp_path)
    admin, token = controller.token("admin"), controller.token("agent", *BOUND, NODE)
    with world.controlled(listen=controller.listen):
        quota = agent.container(pods, "web", 800)
        with agent.running(world.kubeconfig, **controller.settings(token)):

            def heard() -> Any:
                _, rows = controller.get("/v1/nodes", admin)
                return next((row for row in rows if row["name"] == NODE and row["cpu"]), None)

            row = until(heard, "a report")
            assert (row["cpu"]["agent"], row["cpu"]["stale_since"]) == (NODE, None)
            quota.write_text(f"{row['cpu']['limits_millicores'] * 100} 100000\n")
            status, found = controller.get(f"/v1/nodes/{NODE}", admin)
            assert status == 200
            (pod,) = found["state"]["pods"]
            assert pod["pod"] == f"{SPACE}/web"
            number = until(lambda: heard()["cpu"]["decision"], "a decision")
            replay = f"/v1/nodes/{NODE}/decisions/{number}/replay"
            assert controller.get(replay, admin)[1]["verdict"] == "same"
            _, sums = controller.get("/v1/overview", admin)
            assert sums["cpu"]["nodes"] == 1
        monkeypatch.setattr(fleet_history, "STALE_MS", 1)
        monkeypatch.setattr(fleet_history, "STALE_PERIODS", 0)
        stale = until(lambda: heard()["cpu"]["stale_since"], "it is stale")
        assert stale == heard()["cpu"]["received"]


@pytest.mark.component("haproxy")
def test_the_traffic_agent_reports(world: World, tmp_path: Path) -> None:
    """`traffic run --kube`: the group of a RouteGroup, by the name that its agent gives it."""
    controller, space = Controller(world, tmp_path), TrafficWorld(world.cluster, "team-a")
    world.apply(node("n7"))
    admin, token = controller.token("admin"), controller.token("agent", *BOUND, "n7")
    backends = Backends(own_address())
    with short_folder() as folder, world.controlled(listen=controller.listen):
        space.apply(service("team-a"), route_group("team-a", port=free_port()))
        space.endpoints([backends.start("a")])
        settings = {"namespace": "team-a", "node_name": "n7"}
        reports = controller.settings(token)
        agent = KubeTrafficProcess(
            folder, world.kubeconfig, "127.0.0.1", **settings, report=reports
        )
        try:
            rows = agent.until("a report", lambda: controller.get("/v1/groups", admin)[1])
        finally:
            agent.close()
            backends.close()
    (row,) = rows
    assert (row["agent"], row["name"], row["plane"]) == ("n7", "team-a.web", "haproxy")


def test_an_agent_speaks_for_its_own_node_only(world: World, tmp_path: Path) -> None:
    """The API server names the node of a token: others, and other accounts, are refused."""
    controller = Controller(world, tmp_path)
    world.apply(node("n1"), node("n2"))
    token, admin = controller.token("agent", *BOUND, "n1"), controller.token("admin")
    of_node = report("n1", nodes={"n1": [node_moment(1)]})
    with world.controlled(listen=controller.listen):
        until(lambda: controller.get("/readyz", admin)[1]["leads"], "it leads")
        assert controller.send(token, of_node)["taken"] == 1
        assert controller.send(token, report("n1", groups={"a.web": [group_moment(1)]}))["taken"]
        for who, body in (
            (token, report("n2", nodes={"n2": [node_moment(1)]})),
            (token, report("n1", nodes={"n2": [node_moment(1)]})),
            (controller.token("agent"), of_node),  # of no pod: it is on no node
            (controller.token("nobody", *BOUND, "n1"), of_node),
            (admin, of_node),
        ):
            with pytest.raises(NotTaken, match="answered 403"):
                controller.send(who, body)
        with pytest.raises(NotTaken, match="answered 422") as refused:
            controller.send(token, {**of_node, "nodes": [{}]})
        assert not refused.value.again
        _, rows = controller.get("/v1/nodes", admin)
        assert [row["name"] for row in rows if row["cpu"]] == ["n1"]
        status, _ = controller.get("/v1/nodes", token)
        assert status == 403, "an agent reads nothing"


def test_a_standby_takes_no_report(world: World, tmp_path: Path) -> None:
    """It says who leads; the agent asks again, for another replica may be behind the address."""
    controller = Controller(world, tmp_path)
    world.apply(node("n1"))
    token = controller.token("agent", *BOUND, "n1")
    with world.controlled("a", listen=ClusterListen("127.0.0.1", 0)):
        until(lambda: '"leads":true' in get(port_of(world), "/readyz")[1], "one leads")
        with world.controlled("b", listen=controller.listen):
            with pytest.raises(NotTaken, match="NotLeader") as refused:
                controller.send(token, report("n1", nodes={"n1": [node_moment(1)]}))
            assert refused.value.again


def test_authorities_are_for_https(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"report\.ca_file: is for https only"):
        http_send(ReportSettings("http://127.0.0.1:1", ca_file="ca.crt"))
    missing = http_send(ReportSettings("https://127.0.0.1:1", ca_file=str(tmp_path / "none")))
    with pytest.raises(NotTaken, match=r"report\.ca_file") as refused:
        missing(b"{}")
    assert refused.value.again
