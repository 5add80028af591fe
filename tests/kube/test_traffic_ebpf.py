"""RouteGroups in the kernel: connections to a Service's address reach its endpoints."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.kube.dev.cluster import Cluster
from fairlead.kube.kinds import crds
from fairlead.ports.dataplane import Backend
from tests.dataplane.ebpf.places import Place, own_place
from tests.kube.traffic_world import (
    KubeTrafficProcess,
    TrafficWorld,
    own_address,
    route_group,
    service,
)

pytestmark = [pytest.mark.component("ebpf")]


@pytest.fixture
def place() -> Iterator[Place]:
    with own_place() as made:
        yield made


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fairlead-") as made:
        yield Path(made)


def test_a_services_address_leads_to_its_endpoints_in_the_kernel(
    cluster: Cluster, namespace: str, folder: Path, place: Place
) -> None:
    """Added, terminating and removed endpoints, and kill -9 of the agent."""
    cluster.apply(crds())
    cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
    world = TrafficWorld(cluster, namespace)
    host = own_address()
    ports = place.talker("tests.dataplane.ebpf.servers", "3", host).hello
    a, b, c = (Backend(id, host, port) for id, port in zip("abc", ports, strict=True))
    world.apply(
        service(namespace), route_group(namespace, dataplane="ebpf", config={"warmup_ms": 0})
    )
    world.endpoints([a])
    address = world.address("web")
    group = f"{namespace}.web"
    plane = {"kind": "ebpf", "pins": str(place.pins), "cgroup": str(place.cgroup)}
    agent = KubeTrafficProcess(folder, cluster.kubeconfig, "", plane=plane, namespace="default")
    try:
        agent.until("served", lambda: agent.slots(group) == {f"{host}:{a.port}": 256})
        client = place.client()
        assert client.do("tcp", host=address, port=80, count=8) == ["0"] * 8
        agent.until("shown", lambda: world.condition("Programmed").get("status") == "True")
        assert world.status()["address"] == f"{address}:80"
        world.endpoints([a, b])
        agent.until("joined", lambda: agent.slots(group).get(f"{host}:{b.port}", 0) > 64)
        assert set(client.do("tcp", host=address, port=80, count=64)) == {"0", "1"}
        world.endpoints([a, b], b={"ready": False, "terminating": True})
        agent.until("drains", lambda: agent.slots(group).get(f"{host}:{b.port}") == 0)
        assert set(client.do("tcp", host=address, port=80, count=32)) == {"0"}
        agent.kill()
        assert set(client.do("tcp", host=address, port=80, count=32)) == {"0"}
        world.endpoints([c])
        agent.start()
        agent.until("moved", lambda: agent.slots(group) == {f"{host}:{c.port}": 256})
        assert set(client.do("tcp", host=address, port=80, count=32)) == {"2"}
        world.cluster.kubectl("-n", namespace, "delete", "routegroup", "web")
        agent.until("gone", lambda: agent.groups() == {})
    finally:
        agent.close()
        world.client.close()
