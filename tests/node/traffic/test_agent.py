"""The agent in this process, on the memory plane: time, state, restarts, reloads, metrics."""

import json
import socket
import threading
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.core.invariant import InvariantBroken
from fairlead.core.traffic import Config
from fairlead.dataplane.memory import MemoryDataplane
from fairlead.engine.traffic import GroupRules
from fairlead.host.bounded import CONNECTIONS_MOST
from fairlead.host.clock import steady_now_ms as now_ms
from fairlead.node.metrics import serve_metrics
from fairlead.node.state import STATE, STATUS, StateDirectory
from fairlead.node.traffic.agent import AgentConfig, GroupSpec, Reloaded, TrafficAgent
from fairlead.node.traffic.commands import COMMANDS, change_command
from fairlead.node.traffic.poller import Poller
from fairlead.node.traffic.reports import traffic_collector
from fairlead.ports.dataplane import Backend, Dataplane, Proto, RouteGroup
from fairlead.ports.faults import PermanentFault, TemporaryFault
from fairlead.recorder import FileRecorder, read, replay
from fairlead.schema.metrics import Process
from tests.engine.traffic_worlds import Eyes, Machines
from tests.schema.scrapes import names_of, scraped

BACKENDS = (Backend("a", "127.0.0.1", 9001), Backend("b", "127.0.0.1", 9002))


class NoSensors:
    """An agent that sees nothing but its plane."""

    def __init__(self) -> None:
        self.signals = self.prober = Eyes()
        self.nodes = Machines(self.prober)
        self.alarm: Callable[[], None] = lambda: None
        self.found: dict[str, tuple[Backend, ...]] = {}
        self.watched: list[Mapping[str, Sequence[Backend]]] = []

    def watch(self, members: Mapping[str, Sequence[Backend]]) -> None:
        self.watched.append(dict(members))

    def members(self, group: str) -> Sequence[Backend] | None:
        return self.found.get(group)

    def check(self) -> None:
        """Nothing can break."""

    def close(self) -> None:
        """Nothing to close."""


def spec(*backends: Backend, name: str = "web", port: int = 9000, **fields: Any) -> GroupSpec:
    route = RouteGroup(name, "127.0.0.1", port, Proto.TCP, backends or BACKENDS)
    return GroupSpec(route, GroupRules(Config(t_recover_min_ms=100)), **fields)


class Folder:
    """Makes agents on one state directory and one plane."""

    def __init__(self, path: Path) -> None:
        self.path, self.sensors, self.said = path / "state", NoSensors(), []
        self.plane = MemoryDataplane(now_ms)

    said: list[str]

    def agent(
        self,
        *specs: GroupSpec,
        reload: Callable[[], Sequence[GroupSpec]] | None = None,
        plane: Callable[[], Dataplane] | None = None,
        **more: Any,
    ) -> TrafficAgent:
        return TrafficAgent(
            AgentConfig("n1", self.path, tick_ms=20),
            specs or [spec()],
            open_dataplane=plane or (lambda: self.plane),
            open_recorder=lambda path: FileRecorder(path, sync_each=False),
            sensors=self.sensors,
            warn=self.said.append,
            reload=reload,
            **more,
        )

    def run(self, agent: TrafficAgent, ticks: int) -> TrafficAgent:
        agent.start()
        try:
            agent.run(ticks_max=ticks)
        finally:
            agent.close()
        return agent

    def status(self) -> Any:
        return json.loads((self.path / STATUS).read_text())


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_it_ticks_records_and_says_how_it_stands(folder: Folder) -> None:
    """A record that replays, and a status with every group and backend."""
    agent = folder.run(folder.agent(), 5)
    assert agent.ticks == 5
    verdicts = [each.verdict for each in replay(read(folder.path / "record" / "web"))]
    assert verdicts == ["same"] * (1 + 5), "the slots that it begins with, and the ticks"
    status = folder.status()
    assert status["plane"] == "memory"
    (group,) = status["groups"]
    assert {b["backend"]: b["slots"] for b in group["backends"]} == {"a": 128, "b": 128}
    assert group["reasons"]


def test_ticks_jitter_by_their_number_and_the_agents_name(folder: Folder) -> None:
    """Within a tenth of the period, the same again, another for another agent."""
    agent = folder.agent()
    jitters = [agent.jitter_s(number) for number in range(100)]
    assert jitters == [folder.agent().jitter_s(number) for number in range(100)]
    assert all(0 <= jitter < 0.002 for jitter in jitters)
    assert len(set(jitters)) > 50
    other = folder.agent()
    other.config = replace(other.config, name="n2")
    assert [other.jitter_s(number) for number in range(100)] != jitters


def test_ticks_that_cannot_be_made_are_counted(folder: Folder) -> None:
    """A tick that takes as long as ten is one made and nine missed, not ten in a row."""
    agent = folder.agent()
    slow = threading.Event()
    agent._report = lambda *_: slow.wait(0.2)  # type: ignore[assignment,func-returns-value]
    folder.run(agent, 3)
    assert agent.ticks == 3
    assert agent.missed_ticks >= 15


def test_a_broken_invariant_of_a_sensor_stops_the_agent(folder: Folder) -> None:
    """A request in the poller's thread raises it; the next tick is the last."""

    async def request() -> None:
        raise InvariantBroken("a promise of ours")

    poller, agent = Poller(), folder.agent()
    folder.sensors.check = poller.check  # type: ignore[method-assign]
    agent.start()
    agent.run(ticks_max=2)
    poller.once(request)
    try:
        with pytest.raises(InvariantBroken, match="a promise of ours"):
            agent.run(ticks_max=10_000)
    finally:
        agent.close()
        poller.close()


def test_what_cannot_wait_makes_one_tick_between_two(folder: Folder) -> None:
    """At once, and only one: a group that goes on failing does not tick without end."""
    agent = folder.agent(report=lambda _round, agent: agent.hurry())
    agent.start()
    try:
        agent.run(ticks_max=6)
        assert agent.early_ticks == 3, "each tick is a reason, and each second one is early"
        agent.config = replace(agent.config, tick_ms=3_600_000)
        agent.run(ticks_max=7)  # none is due for an hour
        assert agent.early_ticks == 4
    finally:
        agent.close()


def test_one_agent_per_directory(folder: Folder) -> None:
    """Two would fight over one plane."""
    first = folder.agent()
    first.start()
    try:
        with pytest.raises(PermanentFault, match="another agent"):
            folder.agent().start()
    finally:
        first.close()


def test_isolation_by_the_operator_survives_a_restart(folder: Folder) -> None:
    """From the first tick of the next agent on."""
    folder.run(folder.agent(), 2)
    change_command(StateDirectory(folder.path), "web", "b", "isolate")
    folder.run(folder.agent(), 2)
    folder.plane = MemoryDataplane(now_ms)
    agent = folder.run(folder.agent(), 1)
    assert agent.last_round is not None
    assert agent.last_round.groups["web"].plan.slots == {"a": 256, "b": 0}
    (backend,) = [b for b in folder.status()["groups"][0]["backends"] if b["backend"] == "b"]
    assert (backend["isolated"], backend["order"]) == ("operator", "isolate")


def test_a_quick_restart_goes_on_where_it_was(folder: Folder) -> None:
    """The first tick of the new agent starts from the last one's state, not from nothing."""
    folder.run(folder.agent(), 3)
    last = list(read(folder.path / "record" / "web"))[-1]
    agent = folder.agent()
    agent.start()
    made = agent.tick().groups["web"]
    agent.close()
    assert made.snapshot.state is not None
    assert made.snapshot.state.clock_ms == last.output["state"]["clock_ms"]


def test_a_tick_that_was_voided_is_not_resumed_as_applied(folder: Folder) -> None:
    """The slots in force are those of the tick before it, and the next agent knows that."""

    def refuse(table: Any, *, decision: int | None) -> None:
        raise TemporaryFault("busy", retry_after_ms=1)

    folder.run(folder.agent(), 2)
    change_command(StateDirectory(folder.path), "web", "b", "isolate")
    apply, folder.plane.apply = folder.plane.apply, refuse  # type: ignore[method-assign]
    folder.run(folder.agent(), 1)
    folder.plane.apply = apply  # type: ignore[method-assign]
    last = list(read(folder.path / "record" / "web"))[-1]
    assert last.output["slots"] == {"a": 256, "b": 0}
    agent = folder.agent()
    agent.start()
    made = agent.tick().groups["web"]
    agent.close()
    assert made.snapshot.state is not None
    assert {b.id: b.slots for b in made.snapshot.state.backends} == {"a": 128, "b": 128}


def test_after_a_long_absence_it_begins_afresh_and_says_failsafe(folder: Folder) -> None:
    """The plane has fallen back meanwhile: what was decided then is of no use."""
    folder.run(folder.agent(), 3)
    state = json.loads((folder.path / STATE).read_text())
    state["beat_ms"] -= 60_000
    (folder.path / STATE).write_text(json.dumps(state))
    agent = folder.agent()
    agent.start()
    first, second = agent.tick(), agent.tick()
    agent.close()
    assert first.groups["web"].reasons[0] == "failsafe"
    assert [(t.what, t.after) for t in first.transitions] == [("failsafe", "fallback")]
    assert [(t.what, t.after) for t in second.transitions] == [("failsafe", "normal")]


@pytest.mark.parametrize("text", ["{", '{"groups": {"web": {}}}', '{"groups": 7}', "[1]"])
def test_a_damaged_state_is_said_and_forgotten(folder: Folder, text: str) -> None:
    """Traffic does not wait for somebody to clean up."""
    folder.run(folder.agent(), 2)
    (folder.path / STATE).write_text(text)
    folder.run(folder.agent(), 2)
    assert any("starting without it" in said for said in folder.said)


def test_damaged_orders_stop_the_start(folder: Folder) -> None:
    """Nobody knows who was isolated: a person has to look."""
    folder.path.mkdir()
    (folder.path / COMMANDS).write_text("{")
    agent = folder.agent()
    with pytest.raises(PermanentFault, match="damaged"):
        agent.start()
    agent.close()


def test_a_reload_adds_and_removes(folder: Folder) -> None:
    """Groups that stay keep their state; a bad file changes nothing and is said."""
    wanted: list[GroupSpec] = [spec(*BACKENDS), spec(name="api", port=9010)]

    undone: list[str] = []

    def again() -> Reloaded:
        if not wanted:
            raise ValueError("groups: must not be empty")
        return Reloaded(wanted, lambda: undone.append("eyes"))

    agent = folder.agent(reload=again)
    agent.start()
    agent.tick()
    governor = agent.loop.groups["web"].governor
    agent.hang_up()
    agent.run(ticks_max=2)
    assert sorted(agent.loop.groups) == ["api", "web"]
    assert agent.loop.groups["web"].governor is governor
    wanted[:] = [spec(BACKENDS[0])]
    agent.hang_up()
    agent.run(ticks_max=3)
    assert agent.last_round is not None
    assert agent.last_round.groups["web"].plan.slots == {"a": 256}
    wanted.clear()
    agent.hang_up()
    agent.run(ticks_max=4)
    agent.close()
    assert sorted(agent.loop.groups) == ["web"]
    assert folder.said == ["not reloaded: groups: must not be empty"]
    assert undone == []


def test_a_reload_that_the_plane_refuses_leaves_the_sensors_as_they_were(folder: Folder) -> None:
    """A sensor that looks elsewhere already would find nobody for the groups that stay."""
    undone: list[str] = []
    twice = [spec(*BACKENDS), spec(*BACKENDS, name="api")]  # the same door
    agent = folder.agent(reload=lambda: Reloaded(twice, lambda: undone.append("eyes")))
    agent.start()
    agent.hang_up()
    agent.run(ticks_max=1)
    agent.close()
    assert sorted(agent.loop.groups) == ["web"]
    assert undone == ["eyes"]
    assert folder.said[0].startswith("not reloaded: ")


def test_commands_that_are_damaged_later_are_reported_once(folder: Folder) -> None:
    """The last ones stand."""
    agent = folder.agent()
    agent.start()
    agent.tick()
    (folder.path / COMMANDS).write_text("{")
    for _ in range(3):
        agent.tick()
    agent.close()
    assert len(folder.said) == 1
    assert folder.said[0].startswith("the last commands stay: ")


def test_backends_that_are_looked_up_are_followed(folder: Folder) -> None:
    """A backend that appears behind the name joins, one that vanishes leaves."""
    empty = RouteGroup("web", "127.0.0.1", 9000, Proto.TCP, ())
    folder.sensors.found = {"web": BACKENDS[:1]}
    agent = folder.agent(GroupSpec(empty, GroupRules(), looked_up=True))
    agent.start()
    assert agent.tick().groups["web"].plan.slots == {"a": 256}
    folder.sensors.found = {"web": BACKENDS}
    assert agent.tick().groups["web"].plan.slots == {"a": 256, "b": 0}
    folder.sensors.found = {"web": BACKENDS[1:]}
    assert agent.tick().groups["web"].plan.slots == {"b": 256}
    agent.close()


def test_metrics_are_served(folder: Folder) -> None:
    """Per group and backend, and nothing else that grows."""
    agent = folder.agent()
    agent.start()
    agent.tick()
    port = serve_metrics(traffic_collector(agent), "127.0.0.1", 0)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    agent.close()
    assert 'fairlead_traffic_backend_slots{backend="a",group="web"} 128.0' in text
    assert 'fairlead_traffic_mode{group="web",mode="normal"} 1.0' in text
    assert "fairlead_traffic_ticks_total 1.0" in text
    labels = {
        part.split("=")[0]
        for line in text.splitlines()
        if line.startswith("fairlead_") and "{" in line
        for part in line[line.index("{") + 1 : line.index("}")].split(",")
    }
    assert labels <= {"group", "backend", "mode", "liveness", "reason", "what", "version"}
    assert scraped(text) == names_of(Process.TRAFFIC_AGENT)


def test_half_a_scrape_keeps_no_other_away(folder: Folder) -> None:
    """Of connections that do not go on most are ended, so that files can still be opened."""
    port = serve_metrics(traffic_collector(folder.agent()), "127.0.0.1", 0)
    halves = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(120)]
    for half in halves:
        half.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        assert answer.status == 200
    for half in halves[: 120 - CONNECTIONS_MOST]:
        assert half.recv(1) == b""
    for half in halves:
        half.close()


def test_a_port_that_is_taken_is_a_fault(folder: Folder) -> None:
    """Said with its address."""
    agent = folder.agent()
    port = serve_metrics(traffic_collector(agent), "127.0.0.1", 0)
    with pytest.raises(PermanentFault, match=f"127.0.0.1:{port}"):
        serve_metrics(traffic_collector(agent), "127.0.0.1", port)
