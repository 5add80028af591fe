"""RouteGroups on a real API server with a real HAProxy: the agent runs with its shipped rights."""

import json
import socket
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead.cli.main import main
from fairlead.host.process import free_port
from fairlead.kube.client import ApiError
from fairlead.kube.dev.cluster import Cluster
from tests.dataplane.backends import Backends
from tests.dataplane.clients import ThreadLoad, request
from tests.kube import charts
from tests.kube.traffic_world import (
    GROUPS,
    KubeTrafficProcess,
    TrafficWorld,
    own_address,
    route_group,
    service,
)
from tests.kube.world import node
from tests.node.traffic.servers import Page, serving

AGENT = "fairlead-traffic"
ACCOUNT = (f"{charts.USERS}{AGENT}", ("system:serviceaccounts", charts.GROUP))
VALUES = {"traffic_enabled": True}
OPEN = {"g_min": 0, "inside_max": 100_000, "l_ref_ms": 100}
"""A machine that is busy with other tests is slow: that must not restrict admission."""
pytestmark = [pytest.mark.component("haproxy"), pytest.mark.component("helm")]


@pytest.fixture(scope="module")
def audited(deployed: charts.Deployed) -> tuple[Cluster, charts.Audit]:
    """A cluster with the agent's account, which writes down what it did."""
    charts.install(deployed.cluster, controller_replicas=0, **VALUES)
    return deployed.cluster, deployed.audit()


@pytest.fixture
def world(audited: tuple[Cluster, charts.Audit]) -> Iterator[TrafficWorld]:
    cluster, _ = audited
    name = f"team-{uuid.uuid4().hex[:8]}"
    cluster.kubectl("create", "namespace", name)
    # An agent that was killed has it for a minute.
    lease = ("delete", "lease", "fairlead-traffic-haproxy", "--ignore-not-found")
    cluster.kubectl("-n", "fairlead", *lease)
    made = TrafficWorld(cluster, name)
    yield made
    cluster.kubectl("-n", name, "delete", "routegroups,services", "--all")
    cluster.kubectl("-n", name, "delete", "pods", "--all", "--force")  # some end in ten minutes
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
    audited: tuple[Cluster, charts.Audit], folder: Path, world: TrafficWorld
) -> Iterator[KubeTrafficProcess]:
    cluster, _ = audited
    account = cluster.kubeconfig_for(*ACCOUNT)
    made = KubeTrafficProcess(folder, account, "127.0.0.1")
    yield made
    made.close()


def test_endpoints_come_and_go_while_clients_are_served(
    agent: KubeTrafficProcess, world: TrafficWorld, backends: Backends
) -> None:
    """One is added, turns slow, terminates and is removed: no connection fails."""
    a, b = (backends.start(name) for name in ("a", "b"))
    ids = {each.id: f"{each.host}:{each.port}" for each in (a, b)}
    for each in ids:
        backends.behaviour[each].delay_s = 0.02
    port, group = free_port(), f"{world.namespace}.web"
    world.apply(service(world.namespace), route_group(world.namespace, port=port, config=OPEN))
    world.endpoints([a])
    agent.until("served", lambda: agent.slots(group) == {ids["a"]: 256})
    load = ThreadLoad(lambda: request("127.0.0.1", port), 0.02)
    with load.running(4):
        load.wait(20)
        world.endpoints([a, b])
        agent.until("joined", lambda: agent.slots(group).get(ids["b"], 0) > 32)
        load.wait(50)
        backends.behaviour["b"].delay_s = 1.0
        agent.until("less for the slow", lambda: agent.slots(group)[ids["b"]] <= 256 * 0.1)
        backends.behaviour["b"].delay_s = 0.02
        agent.until("back", lambda: agent.slots(group)[ids["b"]] >= 16)
        backends.behaviour["b"].held = True  # a request stays in it while it drains
        agent.until("held", lambda: backends.held > 0)
        world.endpoints([a, b], b={"ready": False, "terminating": True})
        agent.until("drains", lambda: agent.slots(group) == {ids["a"]: 256, ids["b"]: 0})
        if backends.held < 4:  # with all four clients in it nothing is on its way
            load.wait(20)
        held = backends.held
        before = len(load.sent)
        backends.behaviour["b"].held = False
        agent.until("ends", lambda: backends.held == 0)
        load.wait(100)
        late = [sent.word for sent in load.sent[before:]]
        assert late.count("b") <= held, "what was in it ended there"
        assert "b" not in late[50:], "nothing new came"
        world.endpoints([a])
        agent.until("gone", lambda: set(agent.slots(group)) == {ids["a"]})
        load.wait(50)
    words = {sent.word for sent in load.sent}
    assert {word for word in words if word.startswith("failed")} == set()
    # Backends that stall on a busy machine may be ejected, and then admission says so.
    assert words == {"a", "b"} or agent.events("admission"), words
    agent.until("shown", lambda: world.condition("Programmed").get("status") == "True")
    assert world.condition("Accepted")["reason"] == "Accepted"
    assert world.status()["address"] == f"127.0.0.1:{port}"
    agent.until("shown", lambda: world.entry().get("slots") == {ids["a"]: 256})


def test_a_group_is_programmed_when_its_backends_were_looked_at(
    agent: KubeTrafficProcess, world: TrafficWorld, backends: Backends
) -> None:
    """It is in the dataplane before: a check that has no answer yet says nothing of a backend."""
    a = backends.start("a")
    backends.behaviour["a"].held = True
    port, group = free_port(), f"{world.namespace}.web"
    check = {"kind": "http", "path": "/", "every_ms": 500, "timeout_ms": 60_000}
    world.apply(service(world.namespace), route_group(world.namespace, port=port, check=check))
    world.endpoints([a])
    agent.until("asked", lambda: backends.held > 0)
    agent.until("ticks", lambda: agent.slots(group))
    said = lambda: world.condition("Programmed").get("message", "")  # noqa: E731
    agent.until("shown", lambda: f"first look at 1 backends: {a.host}:{a.port}" in said())
    assert world.condition("Programmed")["status"] == "False"
    backends.behaviour["a"].held = False
    agent.until("looked at", lambda: world.condition("Programmed")["status"] == "True")
    backends.behaviour["a"].held = True
    b = backends.start("b")
    backends.behaviour["b"].held = True
    world.endpoints([a, b])
    agent.until("joined", lambda: len(agent.slots(group)) == 2)
    assert world.condition("Programmed")["status"] == "True", "endpoints come and go"


def test_a_bad_route_group_is_refused_and_stops_no_other(
    agent: KubeTrafficProcess, world: TrafficWorld, backends: Backends
) -> None:
    """By the API server where it can; else by the agent, with the path, in its conditions."""
    a, b = (backends.start(name) for name in ("a", "b"))
    ports = [free_port() for _ in range(3)]
    own = world.namespace
    for bad, message in (
        ({"config": {"alpha": 7}}, "spec.config.alpha"),
        ({"dataplane": "ebpf"}, "port is required on a proxy, and must be left out on ebpf"),
        ({"dataplane": "nginx"}, "spec.dataplane"),
        ({"proto": "udp"}, "proto must be tcp on a proxy"),
        ({"check": {"every_ms": 10}}, "check.every_ms must be at least 500"),
        ({"service": {"name": "web"}}, "spec.service.port"),
    ):
        with pytest.raises(ApiError) as refused:
            world.client.create(GROUPS.path(own), route_group(own, **{"port": ports[0], **bad}))
        assert refused.value.status == 422
        assert message in refused.value.message
    with socket.create_server(("127.0.0.1", ports[2])) as foreign:
        world.apply(
            service(own),
            route_group(own, "good", port=ports[0]),
            route_group(own, "rubbish", port=ports[1], config={"t_hard_s": 999}),
            route_group(own, "lost", port=ports[1], service={"name": "db", "port": 80}),
            route_group(own, "low", port=80),
            route_group(own, "busy", port=ports[2]),
        )
        world.endpoints([a])
        wait = ("wait", "--for=condition=Programmed", "routegroup/good", "--timeout=60s")
        world.cluster.kubectl("-n", own, *wait)
        world.apply(route_group(own, "twin", port=ports[0]))
        for name, reason, message in (
            ("rubbish", "Invalid", "spec.config.t_hard_s: must be below t_safe_s"),
            ("lost", "ServiceNotFound", "spec.service.name: there is no Service 'db' here"),
            ("low", "PortNotAllowed", "spec.port: must be between"),
            ("twin", "AddressTaken", "is the address of an older RouteGroup of good"),
        ):
            agent.until(name, lambda name=name: world.condition("Accepted", name))
            row = world.condition("Accepted", name)
            assert (row["status"], row["reason"]) == ("False", reason), row
            assert message in row["message"]
        agent.until("busy", lambda: "in use" in world.condition("Programmed", "busy")["message"])
        assert world.condition("Accepted", "busy")["status"] == "True"
        world.endpoints([a, b])  # the others do not keep it from being followed
        words = lambda: {request("127.0.0.1", ports[0]) for _ in range(8)}  # noqa: E731
        agent.until("followed", lambda: words() == {"a", "b"})
        foreign.close()
    agent.until("freed", lambda: world.condition("Programmed", "busy")["status"] == "True")
    assert request("127.0.0.1", ports[2]) in ("a", "b")
    shown = world.cluster.kubectl("-n", own, "get", "rg")
    assert f"127.0.0.1:{ports[0]}" in shown
    assert "ServiceNotFound" in shown


def test_an_agent_that_is_killed_goes_on_and_every_act_has_its_decision(
    agent: KubeTrafficProcess, world: TrafficWorld, backends: Backends
) -> None:
    """kill -9 under load, endpoints change meanwhile; HAProxy shows the decision it goes by."""
    a, b = (backends.start(name) for name in ("a", "b"))
    port, group = free_port(), f"{world.namespace}.web"
    world.apply(service(world.namespace), route_group(world.namespace, port=port, config=OPEN))
    world.endpoints([a])
    agent.until("served", lambda: agent.slots(group).get(f"{a.host}:{a.port}") == 256)
    load = ThreadLoad(lambda: request("127.0.0.1", port), 0.02)
    with load.running(2):
        load.wait(20)
        agent.kill()
        world.endpoints([a, b])
        load.wait(40)
        agent.start()
        agent.until("goes on", lambda: agent.slots(group).get(f"{b.host}:{b.port}", 0) > 0)
        agent.until("served by both", lambda: "b" in {sent.word for sent in load.sent})
    words = {sent.word for sent in load.sent}
    assert {word for word in words if word.startswith("failed")} == set()
    # Backends that stall on a busy machine may be ejected, and then admission says so.
    assert words == {"a", "b"} or agent.events("admission"), words
    decision = agent.decision_in_force(group)
    assert decision > 0
    agent.stop()
    kinds = agent.recorded(group)
    assert kinds[decision] in ("traffic.govern", "traffic.configure")
    assert set(kinds.values()) == {"traffic.govern", "traffic.configure"}
    done = agent.fairlead("replay", str(agent.state / "record"))
    assert done.returncode == 0, done.stderr
    assert " 0 different, 0 unknown" in done.stdout


def test_an_agent_that_starts_while_the_api_server_is_away_goes_on(
    audited: tuple[Cluster, charts.Audit], folder: Path, world: TrafficWorld, backends: Backends
) -> None:
    """With the groups that it had: its heartbeat keeps the table in force."""
    cluster, _ = audited
    a = backends.start("a")
    port, group = free_port(), f"{world.namespace}.web"
    world.apply(service(world.namespace), route_group(world.namespace, port=port))
    world.endpoints([a])
    account = cluster.kubeconfig_for(*ACCOUNT)
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(account.read_text())
    agent = KubeTrafficProcess(folder, kubeconfig, "127.0.0.1")
    try:
        agent.until("served", lambda: agent.slots(group))
        agent.kill()
        away = yaml.safe_load(account.read_text())
        away["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{free_port()}"
        kubeconfig.write_text(yaml.safe_dump(away))
        agent.start()
        agent.until("goes on", lambda: agent.slots(group) == {f"{a.host}:{a.port}": 256})
        assert request("127.0.0.1", port) == "a"
    finally:
        agent.close()


@pytest.mark.component("envoy")
def test_envoy_follows_endpoints_too(
    audited: tuple[Cluster, charts.Audit], folder: Path, world: TrafficWorld, backends: Backends
) -> None:
    """An agent of another dataplane serves the groups that ask for it."""
    cluster, _ = audited
    a, b = (backends.start(name) for name in ("a", "b"))
    port, group = free_port(), f"{world.namespace}.web"
    wanted = route_group(world.namespace, port=port, dataplane="envoy", config=OPEN)
    world.apply(service(world.namespace), wanted)
    world.endpoints([a])
    account = cluster.kubeconfig_for(*ACCOUNT)
    agent = KubeTrafficProcess(folder, account, "127.0.0.1", plane="envoy")
    try:
        agent.until("served", lambda: agent.slots(group) == {f"{a.host}:{a.port}": 256})
        load = ThreadLoad(lambda: request("127.0.0.1", port), 0.02)
        with load.running(2):
            load.wait(20)
            world.endpoints([a, b])
            agent.until("joined", lambda: "b" in {sent.word for sent in load.sent})
            world.endpoints([a, b], a={"ready": False, "terminating": True})
            agent.until("drains", lambda: agent.slots(group).get(f"{a.host}:{a.port}") == 0)
            world.endpoints([b])
            agent.until("gone", lambda: set(agent.slots(group)) == {f"{b.host}:{b.port}"})
            load.wait(20)
        failed = {sent.word for sent in load.sent if sent.word.startswith("failed")}
        assert failed == set()
        assert load.sent[-1].word == "b"
        agent.until("shown", lambda: world.condition("Programmed").get("status") == "True")
    finally:
        agent.close()


def test_each_agent_writes_its_own_entry_and_one_the_conditions(
    audited: tuple[Cluster, charts.Audit], folder: Path, world: TrafficWorld, backends: Backends
) -> None:
    """Two nodes; the entry of one that is gone is taken away."""
    cluster, _ = audited
    a = backends.start("a")
    port, account = free_port(), cluster.kubeconfig_for(*ACCOUNT)
    names = [f"{world.namespace}-{number}" for number in (1, 2)]
    world.apply(*(node(name) for name in names))
    world.apply(service(world.namespace), route_group(world.namespace, port=port))
    world.endpoints([a])
    agents = []
    for name, listen in zip(names, ("127.0.0.1", "127.0.0.2"), strict=True):
        (folder / name).mkdir()
        agents.append(KubeTrafficProcess(folder / name, account, listen, node_name=name))
    first, second = agents
    try:
        done = lambda: world.condition("Programmed").get("message")  # noqa: E731
        first.until("both", lambda: done() == "on 2 of 2 nodes")
        entries = {entry["node"]: entry for entry in world.status()["nodes"]}
        assert entries.keys() == set(names)
        assert {entry["slots"][f"{a.host}:{a.port}"] for entry in entries.values()} == {256}
        for listen in ("127.0.0.1", "127.0.0.2"):
            assert request(listen, port) == "a"
        second.stop()  # it resigns, if it was the writer
        cluster.kubectl("delete", "node", names[1])
        first.stop()
        first.start()
        first.until("forgotten", lambda: [e["node"] for e in world.status()["nodes"]] == names[:1])
        first.until("one", lambda: done() == "on 1 of 1 nodes")
    finally:
        for agent in agents:
            agent.close()
        cluster.kubectl("delete", "node", *names, "--ignore-not-found")


def test_endpoints_that_kubernetes_writes_are_followed(
    agent: KubeTrafficProcess, world: TrafficWorld
) -> None:
    """Slices of a Service with a selector: pods become backends, drain while Terminating, leave."""
    own, port, group = world.namespace, free_port(), f"{world.namespace}.web"
    pods = [pod(own, name) for name in ("p1", "p2")]
    ports = [{"name": "http", "port": 80, "targetPort": "web"}]
    world.apply(*pods, service(own, selector={"app": "web"}, ports=ports))
    world.apply(route_group(own, port=port))
    agent.until("backends", lambda: len(agent.slots(group)) == 2)
    ip = world.client.get(f"/api/v1/namespaces/{own}/pods/p2")["status"]["podIP"]  # type: ignore[index]
    assert f"{ip}:8080" in agent.slots(group)
    world.cluster.kubectl("-n", own, "delete", "pod", "p2", "--wait=false")
    agent.until("drains", lambda: agent.slots(group).get(f"{ip}:8080") == 0)
    patch = '{"metadata":{"annotations":{"sim.fairlead.dev/stop-after":"1ms"}}}'
    world.cluster.kubectl("-n", own, "patch", "pod", "p2", "-p", patch)
    agent.until("left", lambda: f"{ip}:8080" not in agent.slots(group))


def pod(namespace: str, name: str) -> dict[str, Any]:
    container = {"name": "main", "image": "web", "ports": [{"name": "web", "containerPort": 8080}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"app": "web"},
            "annotations": {"sim.fairlead.dev/stop-after": "600s"},
        },
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 600},
    }


def test_the_shipped_daemon_set_is_one_that_the_api_server_takes(
    audited: tuple[Cluster, charts.Audit],
) -> None:
    """It is not started, there is no image: but its command line is one of ours."""
    cluster, _ = audited
    shown = cluster.kubectl("-n", "fairlead", "get", "daemonset", "fairlead-traffic", "-o", "json")
    (container,) = json.loads(shown)["spec"]["template"]["spec"]["containers"]
    command, *flags = container["args"][1:]
    assert command == "run"
    with pytest.raises(SystemExit):  # click parses them, and then prints its help
        main.main([*("traffic", command), *flags, "--help"])


def test_time_to_failure_is_an_event_and_the_shipped_role_is_what_the_agent_needs(
    audited: tuple[Cluster, charts.Audit], folder: Path, world: TrafficWorld, backends: Backends
) -> None:
    """A machine whose memory runs out; each right of the account is used, and none is missing."""
    cluster, audit = audited
    a = backends.start("a")
    port, group = free_port(), f"{world.namespace}.web"
    world.apply(service(world.namespace), route_group(world.namespace, port=port))
    world.endpoints([a])
    account = cluster.kubeconfig_for(*ACCOUNT)
    with serving(Page(memory(8e9))) as page:
        url = f"http://127.0.0.1:{page.port}/metrics"
        nodes = [{"name": "n7", "url": url, "every_ms": 200}]
        agent = KubeTrafficProcess(folder, account, "127.0.0.1", nodes=nodes, metrics_port=0)
        try:
            agent.until("shown", lambda: world.condition("Programmed").get("status") == "True")

            def hinted() -> list[str]:
                page.body = memory(8e9 - len(page.asked) * 5e7)
                rows = [row for row in world.events() if row["reason"] == "ScaleHint"]
                return [row["message"] for row in rows]

            (message,) = agent.until("hinted", hinted)
            assert message.startswith("a machine runs out of a resource in ")
            assert message.endswith("(node here)")
            agent.kill()
            agent.start()  # takes its own Lease again
            agent.until("goes on", lambda: agent.slots(group))
            agent.until(
                "renewed", lambda: ("coordination.k8s.io", "leases", "update") in audit.of(AGENT)[0]
            )
        finally:
            agent.close()
    rights, refused = audit.of(AGENT)
    assert refused == []
    allowed = charts.granted(cluster.programs, AGENT, **VALUES)
    assert rights - allowed == set(), "allowed by something else than the shipped role"
    assert allowed - rights == set(), "never used"


def memory(available: float) -> str:
    """What a node exporter says."""
    return f"node_memory_MemTotal_bytes 8e9\nnode_memory_MemAvailable_bytes {available}\n"
