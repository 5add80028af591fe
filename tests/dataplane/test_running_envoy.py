"""An Envoy that its operator runs: the suite as far as endpoints can promise it, and what stays."""

import json
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest

from fairlead.dataplane.envoy import running, xds
from fairlead.dataplane.envoy.xds import EndpointServer
from fairlead.host.process import free_port
from fairlead.ports.dataplane import GroupRefused, Proto
from fairlead.ports.faults import PermanentFault, TemporaryFault
from tests.dataplane.conformance import Driven
from tests.dataplane.running_worlds import RunningEnvoyWorld
from tests.dataplane.tables import IDS, only, opened, table

needs_envoy = pytest.mark.component("envoy")


@pytest.fixture
def world() -> Iterator[RunningEnvoyWorld]:
    made = RunningEnvoyWorld()
    yield made
    made.close()


@needs_envoy
class TestRunningEnvoy(Driven):
    """The suite of all planes, as far as it is about weights."""


@needs_envoy
def test_a_killed_agent_leaves_its_last_endpoints(world: RunningEnvoyWorld) -> None:
    """kill -9: Envoy goes on by them; the next agent continues, and its stop leaves equal ones."""
    group = world.group("web", IDS)
    slots = {"b1": 200, "b2": 56, "b3": 0, "b4": 0}
    agent = world.agent([table("web", 1, slots)])
    world.until(lambda: world.weights("web") == {"b1": 200, "b2": 56}, "Envoy follows")
    agent.send_signal(signal.SIGKILL)
    agent.wait()
    words = [world.one(group) for _ in range(128)]
    assert abs(words.count("b1") - 100) <= 2
    assert set(words) == {"b1", "b2"}
    world.plane.configure([group])
    assert world.plane.read()["web"].epoch == 1
    assert world.weights("web") == {"b1": 200, "b2": 56}
    world.plane.detach()
    assert world.weights("web") == dict.fromkeys(IDS, 1)


@needs_envoy
def test_remove_after_a_kill_leaves_equal_weights(world: RunningEnvoyWorld) -> None:
    """Without an agent's file: what was served is in the state directory."""
    world.group("web", IDS)
    agent = world.agent([table("web", 1, only("b2"))])
    world.until(lambda: world.weights("web") == {"b2": 256}, "Envoy follows")
    agent.send_signal(signal.SIGKILL)
    agent.wait()
    world.plane.remove()
    assert world.weights("web") == dict.fromkeys(IDS, 1)
    assert not world.folder.exists()


@needs_envoy
def test_more_than_half_may_be_without_slots(world: RunningEnvoyWorld) -> None:
    """Listed as unhealthy they would get requests again: Envoy panics below half."""
    group = opened(world)
    world.apply("web", only("b3"), epoch=1)
    assert set(world.send(group, 40)) == {"b3"}


@needs_envoy
def test_counters_and_what_is_inside_are_seen(world: RunningEnvoyWorld) -> None:
    """Errors, successes, and the sum of the group; without a log there is no latency."""
    group = opened(world)
    world.backends.behaviour["b2"].status = 500
    assert len(world.send(group, 40)) == 40
    seen = world.plane.read()["web"]
    assert seen.admitted == 40
    assert (seen.backends["b2"].successes, seen.backends["b2"].errors) == (0, 10)
    assert {backend.p95_ms for backend in seen.backends.values()} == {None}
    world.backends.behaviour["b1"].delay_s = 0.3
    with world.load(group, clients=4):
        world.until(lambda: (world.plane.read()["web"].backends["b1"].open or 0) > 0, "inside b1")


@needs_envoy
def test_an_access_log_gives_latencies(world: RunningEnvoyWorld) -> None:
    """In the format of the page."""
    world.logged = True
    world.plane = world.open()
    group = opened(world)
    world.backends.behaviour["b1"].delay_s = 0.06
    assert len(world.send(group, 40)) == 40
    world.until(lambda: world.plane.read()["web"].backends["b1"].p95_ms is not None, "was read")
    seen = world.plane.read()["web"].backends
    assert seen["b1"].p95_ms is not None
    assert seen["b1"].p95_ms >= 55


@needs_envoy
def test_endpoints_over_a_unix_socket(world: RunningEnvoyWorld) -> None:
    """Which only those may open that its folder admits."""
    world.unix = True
    world.plane = world.open()
    group = opened(world)
    world.apply("web", only("b4"), epoch=1)
    assert set(world.send(group, 6)) == {"b4"}


@needs_envoy
class TestRefusals:
    """What is missing is named."""

    def test_a_cluster_that_does_not_ask(
        self, world: RunningEnvoyWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With what Envoy has asked for instead; the groups of before are served on."""
        monkeypatch.setattr(running, "_ASK_S", 5.0)
        web = opened(world)
        with pytest.raises(
            GroupRefused, match=r"groups\[1\]: .*'shop'.* it has asked for web; its"
        ):
            world.plane.configure([web, replace(web, name="shop")])
        world.apply("web", only("b2"), epoch=1)
        assert set(world.send(web, 6)) == {"b2"}

    def test_udp(self, world: RunningEnvoyWorld) -> None:
        """By its path."""
        group = replace(world.group("web", IDS), proto=Proto.UDP)
        with pytest.raises(GroupRefused, match=r"groups\[0\]\.proto: "):
            world.plane.configure([group])


@needs_envoy
def test_an_envoy_that_no_longer_asks_is_a_fault_that_may_pass(
    world: RunningEnvoyWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its counters cannot be read, and its last endpoints cannot be changed."""
    opened(world)
    world.plane.heartbeat()
    world.stop()
    monkeypatch.setattr(running, "_LEAVE_S", 0.1)
    monkeypatch.setattr(running, "_SILENT_MS", -1)
    with pytest.raises(TemporaryFault, match="has not asked for cluster 'web'"):
        world.plane.heartbeat()
    with pytest.raises(TemporaryFault, match="does not answer"):
        world.plane.read()
    with pytest.raises(TemporaryFault, match="its last weights stay"):
        world.plane.detach()
    monkeypatch.undo()
    world.serve()


def test_no_admin_interface_is_refused_with_what_is_missing(world: RunningEnvoyWorld) -> None:
    """Before anything listens."""
    with pytest.raises(PermanentFault, match=r"plane\.envoy\.admin: .*needs `admin: "):
        world.plane.configure([])


# --- the server alone


def ask(port: int, body: bytes, path: str = xds.PATH) -> tuple[int, dict[str, object]]:
    """One question, as Envoy asks it."""
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = b""
        while part := connection.recv(1 << 16):
            answer += part
    head_bytes, _, rest = answer.partition(b"\r\n\r\n")
    return int(head_bytes.split()[1]), json.loads(rest) if rest else {}


def question(*names: str, version: str = "") -> bytes:
    return json.dumps({"version_info": version, "resource_names": names}).encode()


def test_what_envoy_has_already_is_not_sent_again() -> None:
    """A question waits for news, and is answered with 304 when there are none."""
    port = free_port()
    server = EndpointServer(f"127.0.0.1:{port}")
    try:
        server.offer({"app": {"cluster_name": "app"}})
        status, first = ask(port, question("app"))
        assert (status, first["resources"]) == (200, [{"cluster_name": "app"}])
        version = str(first["version_info"])
        assert not server.taken_up("app")
        assert ask(port, question("app", version=version))[0] == 304
        assert server.taken_up("app")
        server.offer({"app": {"cluster_name": "app"}, "more": {}})
        assert server.taken_up("app")
        server.offer({"app": {"cluster_name": "app", "endpoints": []}})
        assert ask(port, question("app", version=version))[0] == 200
        assert server.clusters() == ["app"]
    finally:
        server.close()


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"resource_names": [1]}', b"\xff"])
def test_what_is_no_question_is_refused(body: bytes) -> None:
    """And the next one is answered."""
    port = free_port()
    server = EndpointServer(f"127.0.0.1:{port}")
    try:
        assert ask(port, body)[0] == 400
        assert ask(port, question("app"), "/v3/discovery:clusters")[0] == 404
        assert server.clusters() == []
    finally:
        server.close()


def test_an_address_that_is_taken_is_refused() -> None:
    """By the name of the setting."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(PermanentFault, match=r"plane\.envoy\.xds: cannot listen at "):
            EndpointServer(place)
