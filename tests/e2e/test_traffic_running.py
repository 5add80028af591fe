"""The agent on a proxy that its operator runs: processes, real backends, one of them slow."""

from collections.abc import Iterator

import pytest

from tests.dataplane.running_worlds import RunningEnvoyWorld, RunningHaproxyWorld
from tests.dataplane.test_running_haproxy import state
from tests.e2e.traffic_agents import TrafficProcess

IDS = ("a", "b", "c")


@pytest.fixture
def world() -> Iterator[RunningHaproxyWorld]:
    made = RunningHaproxyWorld()
    yield made
    made.close()


@pytest.mark.component("haproxy")
def test_the_weight_of_a_slow_server_is_shifted_and_put_back(world: RunningHaproxyWorld) -> None:
    """Far slower than the others: it loses its share, and no request fails. A kill leaves the
    weights; `stop` and `remove` put all of it back, byte for byte."""
    world.server = "check inter 500 weight 20 maxconn 100"
    group = world.group("web", IDS)
    before = state(world)
    plane = {"haproxy": {"socket": world.socket, "backend": "web"}}
    agent = TrafficProcess(world.home, plane, 1, (), groups=[{"name": "shop"}])
    try:
        for id in IDS:
            world.backends.behaviour[id].delay_s = 0.02
        with world.load(group, clients=6) as load:
            agent.until("all are seen", lambda: set(agent.slots()) == set(IDS))
            load.wait(60)
            world.backends.behaviour["b"].delay_s = 1.0
            agent.until("b has lost its share", lambda: agent.slots()["b"] <= 40)
            world.until(lambda: world.settings("web")["b"].weight <= 40, "HAProxy has it, too")
            agent.kill()
            assert world.settings("web")["b"].weight <= 40
            agent.start()
            agent.until("the next agent decides", lambda: True)
            assert agent.stop() == 0, agent.log()
            assert state(world) == before
            load.wait(10)
            assert {sent.word for sent in load.sent} <= set(IDS)
        agent.start()
        agent.until("a third agent decides", lambda: sum(agent.slots().values()) == 256)
        agent.kill()
        assert state(world) != before
        removed = agent.fairlead("traffic", "remove", str(agent.file))
        assert "is as it was found" in removed.stdout, removed.stderr
        assert state(world) == before
        replayed = agent.fairlead("replay", str(agent.state / "record"))
        assert replayed.returncode == 0, replayed.stdout
    finally:
        agent.close()


@pytest.mark.component("haproxy")
def test_what_is_missing_is_named_and_nothing_is_changed(world: RunningHaproxyWorld) -> None:
    """By the command that an operator types: exit code 3, and the line to add."""
    world.level = "operator"
    world.group("web", IDS)
    before = state(world)
    plane = {"haproxy": {"socket": world.socket}}
    agent = TrafficProcess(world.home, plane, 1, (), groups=[{"name": "web"}])
    assert agent.process.wait(timeout=60) == 3
    assert "add `level admin` to its `stats socket` line" in agent.log()
    assert state(world) == before


@pytest.fixture
def envoy() -> Iterator[RunningEnvoyWorld]:
    made = RunningEnvoyWorld()
    made.logged = True
    yield made
    made.close()


@pytest.mark.component("envoy")
def test_an_envoy_of_its_operators_follows_and_outlives_the_agent(envoy: RunningEnvoyWorld) -> None:
    """A slow endpoint loses its share. A killed agent leaves the last weights, one that stops equal
    ones. No request fails meanwhile."""
    group = envoy.group("web", IDS)
    places = envoy.arguments()
    plane = {"envoy": {name: places[name] for name in ("xds", "admin", "requests")}}
    backends = [{"id": b.id, "host": b.host, "port": b.port} for b in group.backends]
    groups = [{"name": "web", "backends": backends}]
    agent = TrafficProcess(envoy.home, plane, 1, (), groups=groups)
    try:
        for id in IDS:
            envoy.backends.behaviour[id].delay_s = 0.02
        agent.until("Envoy has been told", lambda: sum(agent.slots().values()) == 256)
        with envoy.load(group, clients=6) as load:
            load.wait(60)
            envoy.backends.behaviour["b"].delay_s = 1.0
            agent.until("b has lost its share", lambda: agent.slots()["b"] <= 40)
            envoy.until(lambda: envoy.weights("web").get("b", 0) <= 40, "Envoy has it, too")
            agent.kill()
            load.wait(60)
            assert envoy.weights("web").get("b", 0) <= 40
            agent.start()
            agent.until("the next agent decides", lambda: True)
            assert agent.stop() == 0, agent.log()
            assert envoy.weights("web") == dict.fromkeys(IDS, 1)
            load.wait(10)
            assert {sent.word for sent in load.sent} <= set(IDS)
    finally:
        agent.close()
