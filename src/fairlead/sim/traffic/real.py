"""A scenario in real time: a real agent process, a real plane, real backends and connections.

The agent is `fairlead traffic run`, started, killed, told and reloaded as an operator would; what
it decided is read from its flight record afterwards, so the same judges look at it.
"""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairlead.node.state import StateDirectory
from fairlead.node.traffic.commands import BackendCommand, change_command
from fairlead.ports.faults import PermanentFault
from fairlead.schema.traffic_scenario import EventDocument, TrafficScenarioDocument, scenario_config
from fairlead.sim.entropy import Entropy
from fairlead.sim.traffic.figures import percentile
from fairlead.sim.traffic.real_clients import RealClients
from fairlead.sim.traffic.real_record import read_events, read_ticks
from fairlead.sim.traffic.real_service import HOST, RealBackend, RealMachine
from fairlead.sim.traffic.story import GROUP, Happening, Played
from fairlead.sim.traffic.virtual import replay_problems

_START_S = 60.0
_LAG_MS_MAX = 50.0
SCRAPE = {
    "every_ms": 250,
    "timeout_ms": 1_000,
    "requests": "requests_total",
    "errors": "errors_total",
    "queue": "inside",
    "latency": "latency_seconds",
}


@dataclass(frozen=True, slots=True)
class PlanePlace:
    """Which plane, and for eBPF where: None asks for the usual place."""

    kind: str
    cgroup: str | None = None
    pins: str | None = None

    def document(self) -> dict[str, Any]:
        """As an agent's configuration names it."""
        found = {"kind": self.kind, "cgroup": self.cgroup, "pins": self.pins}
        if self.kind == "ebpf" and self.pins is None:
            found["pins"] = f"/sys/fs/bpf/fairlead-harness-{os.getpid()}"
        return {name: value for name, value in found.items() if value is not None}


def play_real(
    scenario: TrafficScenarioDocument,
    place: PlanePlace,
    *,
    seed: int | None,
    record: Path,
    folder: Path,
) -> Played:
    """Play on a real plane; the flight record goes to `record`."""
    used = scenario.seed if seed is None else seed
    return asyncio.run(RealPlay(scenario, place, used, folder).run(record))


@dataclass
class RealPlay:
    """One play."""

    scenario: TrafficScenarioDocument
    place: PlanePlace
    seed: int
    folder: Path
    backends: dict[str, RealBackend] = field(default_factory=dict)
    happenings: list[Happening] = field(default_factory=list)
    deaths: list[tuple[float, float]] = field(default_factory=list)

    async def run(self, record: Path) -> Played:
        """From the first server to the last word of the record."""
        entropy = Entropy(self.seed)
        self._state = StateDirectory(self.folder / "state")
        self._state.create()
        self._port = _free_port()
        self._machine = RealMachine(time.monotonic)
        self._unreachable: set[str] = set()
        self._began_s = time.monotonic()
        for spec in self.scenario.backends:
            self.backends[spec.name] = RealBackend(spec, entropy.stream("backend", spec.name))
        self._clients = RealClients(
            self.scenario.load, (HOST, self._port), entropy, lambda: bool(self._unreachable)
        )
        servers = [self._machine, *self.backends.values()]
        agent: subprocess.Popen[bytes] | None = None
        try:
            for server in servers:
                await server.open()
            agent = self._agent = self._start_agent()
            await self._ready()
            self._began_s, began_ms = time.monotonic(), time.time() * 1000
            story = asyncio.ensure_future(self._tell_story())
            await self._clients.run(self.scenario.duration_s)
            await story
        finally:
            self._end(self._agent if agent else None)
            for server in servers:
                await server.close()
        return self._played(record, began_ms)

    # --- the agent

    def _start_agent(self) -> subprocess.Popen[bytes]:
        path = self.folder / "traffic.yaml"
        path.write_text(json.dumps(self._config()))
        with (self.folder / "agent.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "fairlead", "traffic", "run", str(path)], stderr=log
            )

    def _config(self) -> dict[str, Any]:
        now_s = time.monotonic() - self._began_s
        here = [
            {"id": spec.name, "host": HOST, "port": self.backends[spec.name].port, "node": "n1"}
            for spec in self.scenario.backends
            if spec.joins_s <= now_s and (spec.leaves_s is None or now_s < spec.leaves_s)
        ]
        group: dict[str, Any] = {
            "name": GROUP,
            "vip": HOST,
            "port": self._port,
            "backends": here,
            "config": dict(self.scenario.config),
            "probe": {"kind": "http"},
        }
        if self.place.kind == "ebpf" or self.scenario.scrape or self._retried():
            group["scrape"] = dict(SCRAPE)
            if self._retried():
                group["scrape"]["retries"] = "retries_total"
        return {
            "plane": self.place.document(),
            "state_dir": str(self._state.path),
            "tick_ms": self.scenario.tick_ms,
            "node": {"watch": False},
            "groups": [group],
            "nodes": [
                {
                    "name": "n1",
                    "url": f"http://{HOST}:{self._machine.port}/metrics",
                    "every_ms": self.scenario.tick_ms,
                }
            ],
        }

    def _retried(self) -> bool:
        events = self.scenario.events
        return bool(self.scenario.load.retries) or any(event.repeat for event in events)

    async def _ready(self) -> None:
        """Until the agent has decided and its address answers."""
        deadline = time.monotonic() + _START_S
        while not (self._state.path / "status.json").exists():
            if self._agent.poll() is not None or time.monotonic() > deadline:
                lines = (self.folder / "agent.log").read_text(errors="replace").splitlines()
                raise PermanentFault(f"the agent did not start: {lines[-1] if lines else ''}")
            await asyncio.sleep(0.05)

    def _end(self, agent: subprocess.Popen[bytes] | None) -> None:
        """Stop the agent and take the plane off the machine."""
        if agent is None:
            return
        if agent.poll() is None:
            agent.send_signal(signal.SIGTERM)
            try:
                agent.wait(timeout=30)
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()
        subprocess.run(
            [
                sys.executable,
                "-m",
                "fairlead",
                "traffic",
                "remove",
                str(self.folder / "traffic.yaml"),
            ],
            capture_output=True,
            check=False,
            timeout=120,
        )

    # --- what happens

    async def _tell_story(self) -> None:
        times = {event.at_s for event in self.scenario.events}
        for spec in self.scenario.backends:
            times |= {spec.joins_s, spec.leaves_s or 0.0}
        for event in self.scenario.events:
            if event.agent_dead_s is not None:
                times.add(event.at_s + event.agent_dead_s)
        for at_s in sorted(times - {0.0}):
            await asyncio.sleep(max(0.0, self._began_s + at_s - time.monotonic()))
            for event in self.scenario.events:
                if event.at_s == at_s:
                    await self._happen(event)
                elif event.agent_dead_s is not None and event.at_s + event.agent_dead_s == at_s:
                    self._agent = self._start_agent()
                    self._say("the agent is started again")
            if any(at_s in (spec.joins_s, spec.leaves_s) for spec in self.scenario.backends):
                (self.folder / "traffic.yaml").write_text(json.dumps(self._config()))
                self._agent.send_signal(signal.SIGHUP)
                self._say("the configuration is changed and read again")

    async def _happen(self, event: EventDocument) -> None:
        if event.title:
            self._say(event.title)
        for name in self.backends if event.backend is None else [event.backend]:
            await self._change_backend(name, event)
        if event.load_factor is not None:
            self._clients.factor = event.load_factor
        if event.repeat is not None:
            self._clients.repeat = event.repeat
        if event.agent_dead_s is not None:
            self._agent.kill()
            self._agent.wait()
            at_ms = (time.monotonic() - self._began_s) * 1000
            self.deaths.append((at_ms, at_ms + event.agent_dead_s * 1000))
            self._say("the agent is killed")
        self._machine.advance()
        for attribute in ("stall", "memory_used", "memory_per_s"):
            value = getattr(event, attribute)
            if value is not None:
                setattr(self._machine, attribute, value)

    async def _change_backend(self, name: str, event: EventDocument) -> None:
        backend = self.backends[name]
        for attribute, value in (
            ("latency_ms", event.latency_ms),
            ("factor", event.latency_factor),
            ("error_rate", event.error_rate),
            ("hidden", event.blind),
        ):
            if value is not None:
                setattr(backend, attribute, value)
        if event.reachable is False:
            self._unreachable.add(name)
            await backend.shut()
        elif event.reachable and name in self._unreachable:
            self._unreachable.discard(name)
            await backend.open()
        if event.order is not None:
            orders: dict[str, BackendCommand | None] = {"isolate": "isolate", "drain": "drain"}
            change_command(self._state, GROUP, name, orders.get(event.order))

    def _say(self, text: str) -> None:
        self.happenings.append(Happening((time.monotonic() - self._began_s) * 1000, text))

    # --- afterwards

    def _played(self, record: Path, began_ms: float) -> Played:
        shutil.copytree(
            self._state.path / "record" / GROUP, record, ignore=shutil.ignore_patterns("*.lock")
        )
        status = self._state.read("status.json") or {}
        groups: list[dict[str, Any]] = status.get("groups", [])
        group = groups[0] if groups else {}
        events = read_events(self.folder / "agent.log")
        lag_ms = percentile(self._clients.lags_ms, 0.99) or 0.0
        if lag_ms > _LAG_MS_MAX:
            self._say(f"the generator lagged: {lag_ms:.0f} ms at p99; this machine is too busy")
        for event in events:
            at_ms = event.wall_ms - began_ms
            if event.text and at_ms >= 0:
                self.happenings.append(Happening(at_ms, event.text))
        names = ("admitted", "refused_soft", "refused_hard")
        return Played(
            scenario=self.scenario,
            seed=self.seed,
            plane=self.place.kind,
            config=scenario_config(self.scenario),
            ticks=read_ticks(record, began_ms, self.scenario.duration_s * 1000, events),
            answers=sorted(self._clients.answers, key=lambda answer: answer.at_ms),
            counted={name: group.get(name) or 0 for name in names},
            happenings=sorted(self.happenings),
            digest="",
            real=True,
            sources=status.get("sources", {}),
            missed_ticks=status.get("missed_ticks", 0),
            deaths=self.deaths,
            problems=replay_problems(record),
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
