"""RouteGroups on a real API server with a real HAProxy: the agent runs with its shipped rights."""

import json
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead.host.process import free_port
from fairlead.kube.dev.assets import Programs
from fairlead.kube.dev.cluster import Cluster
from fairlead.kube.dev.components import ClusterOptions
from fairlead.kube.kinds import crds
from tests.dataplane.backends import Backends
from tests.dataplane.clients import ThreadLoad, request
from tests.kube.test_rights import BASE
from tests.kube.traffic_world import (
    KubeTrafficProcess,
    TrafficWorld,
    own_address,
    route_group,
    service,
)

ACCOUNT = "system:serviceaccount:fairlead:fairlead-traffic"
pytestmark = [pytest.mark.component("haproxy")]


@pytest.fixture(scope="module")
def audited(
    programs: Programs, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Cluster, Path]]:
    """A cluster that writes down what the agent's account did; one for all tests here."""
    folder = tmp_path_factory.mktemp("traffic")
    log, policy = folder / "audit.log", folder / "policy.json"
    rule = {"level": "Metadata", "users": [ACCOUNT], "omitStages": ["RequestReceived"]}
    document = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "rules": [rule, {"level": "None"}],
    }
    policy.write_text(json.dumps(document))
    flags = (f"--audit-policy-file={policy}", f"--audit-log-path={log}")
    options = ClusterOptions(nodes=1, gpus=0, api_flags=flags)
    with Cluster(programs, folder / "cluster", options) as cluster:
        cluster.apply(crds())
        cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        cluster.kubectl("create", "namespace", "fairlead")
        for row in _documents():
            if row["kind"] != "DaemonSet":
                row["metadata"].setdefault("namespace", "fairlead")
                cluster.apply([row])
        yield cluster, log


def _documents() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((BASE / "traffic.yaml").read_text()))


@pytest.fixture
def world(audited: tuple[Cluster, Path]) -> Iterator[TrafficWorld]:
    cluster, _ = audited
    name = f"team-{uuid.uuid4().hex[:8]}"
    cluster.kubectl("create", "namespace", name)
    made = TrafficWorld(cluster, name)
    yield made
    cluster.kubectl("-n", name, "delete", "routegroups,services", "--all")
    cluster.kubectl("delete", "namespace", name, "--wait=false")
    made.client.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not pytest's: the path of a socket has 107 bytes and no more.
    with tempfile.TemporaryDirectory(prefix="fairlead-") as made:
        yield Path(made)


@pytest.fixture
def backends() -> Iterator[Backends]:
    made = Backends(own_address())
    yield made
    made.close()


@pytest.fixture
def agent(
    audited: tuple[Cluster, Path], folder: Path, world: TrafficWorld
) -> Iterator[KubeTrafficProcess]:
    cluster, _ = audited
    account = cluster.kubeconfig_for(ACCOUNT, ("system:serviceaccounts",))
    made = KubeTrafficProcess(folder, account, "127.0.0.1")
    yield made
    made.close()


def test_endpoints_come_and_go_while_clients_are_served(
    agent: KubeTrafficProcess, world: TrafficWorld, backends: Backends
) -> None:
    """One is added, turns slow, terminates and is removed: no client sees an error."""
    a, b = (backends.start(name) for name in ("a", "b"))
    ids = {each.id: f"{each.host}:{each.port}" for each in (a, b)}
    for each in ids:
        backends.behaviour[each].delay_s = 0.02
    port, group = free_port(), f"{world.namespace}.web"
    world.apply(service(world.namespace), route_group(world.namespace, port=port))
    world.endpoints([a])
    agent.until("served", lambda: agent.slots(group) == {ids["a"]: 256})
    load = ThreadLoad(lambda: request("127.0.0.1", port), 0.02)
    with load.running(4):
        load.wait(20)
        world.endpoints([a, b])
        agent.until("joined", lambda: agent.slots(group).get(ids["b"], 0) > 32)
        load.wait(50)
        backends.behaviour["b"].delay_s = 0.2
        agent.until("less for the slow", lambda: agent.slots(group)[ids["b"]] <= 256 * 0.05)
        backends.behaviour["b"].delay_s = 0.02
        agent.until("back", lambda: agent.slots(group)[ids["b"]] >= 16)
        backends.behaviour["b"].held = True  # a request stays in it while it drains
        agent.until("held", lambda: backends.held > 0)
        world.endpoints([a, b], b={"ready": False, "terminating": True})
        agent.until("drains", lambda: agent.slots(group) == {ids["a"]: 256, ids["b"]: 0})
        held = backends.held
        before = len(load.sent)
        backends.behaviour["b"].held = False
        agent.until("ends", lambda: backends.held == 0)
        load.wait(100)
        late = [sent.word for sent in load.sent[before:]]
        assert late.count("b") <= held, "what was in it ended there, nothing new came"
        world.endpoints([a])
        agent.until("gone", lambda: set(agent.slots(group)) == {ids["a"]})
        load.wait(50)
    assert {sent.word for sent in load.sent} == {"a", "b"}, "nobody saw a failure or a refusal"
    agent.until("shown", lambda: world.condition("Programmed").get("status") == "True")
    assert world.condition("Accepted")["reason"] == "Accepted"
    assert world.status()["address"] == f"127.0.0.1:{port}"
    agent.until("shown", lambda: world.entry().get("slots") == {ids["a"]: 256})
