"""A traffic scenario in real time: a real agent process, dataplane, backends and connections.

The agent is `fairlead traffic run`, started, killed, ordered and reloaded as an operator would do;
what it decided is read from its flight record afterwards, so the same checks look at it.
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
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from fairlead.node.state import StateDirectory
from fairlead.node.traffic.commands import BackendCommand, change_command
from fairlead.ports.faults import PermanentFault
from fairlead.ports.recorder import Mark, RecordEntry
from fairlead.recorder.chain import RecordChain
from fairlead.recorder.reader import links, segments
from fairlead.schema.traffic import from_snapshot
from fairlead.schema.traffic_govern import KIND, Settled, follow, read_input
from fairlead.schema.traffic_scenario import EventDocument, TrafficScenarioDocument, scenario_config
from fairlead.sim.clock import Entropy
from fairlead.sim.record import SimEvent
from fairlead.sim.traffic.backend import HOST, HostExporter, ScenarioBackend
from fairlead.sim.traffic.generator import Attempt, LoadGenerator, PlannedRequest, arrivals
from fairlead.sim.traffic.load import Retries, backends_at, change_backend, gap_s, transition_text
from fairlead.sim.traffic.result import GROUP, Answer, AnswerKind, Tick, TrafficResult, percentile
from fairlead.sim.traffic.virtual import replay_problems


@dataclass(frozen=True, slots=True)
class LoggedTransition:
    """One transition that the agent logged."""

    wall_ms: float
    sequence: int | None
    reasons: tuple[str, ...]
    text: str


def read_transitions(log: Path) -> list[LoggedTransition]:
    transitions = []
    for line in log.read_text(errors="replace").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and event.get("event") in _LOGGED:
            wall_ms = datetime.fromisoformat(event["timestamp"]).timestamp() * 1000
            reasons = tuple(event.get("reasons", ()))
            change = (event.get(name) for name in ("backend", "before", "after"))
            text = transition_text(event["event"], *change)
            transitions.append(LoggedTransition(wall_ms, event.get("sequence"), reasons, text))
    return transitions


_LOGGED = ("admission", "isolation", "failsafe", "agent started")


def read_ticks(
    record: Path, began_ms: float, duration_ms: float, transitions: Sequence[LoggedTransition]
) -> list[Tick]:
    """The ticks of the run, with the reasons that the agent gave beyond the decision's own."""
    logged = {t.sequence: t.reasons for t in transitions if t.sequence is not None}
    entries: list[tuple[RecordEntry, dict[str, Any]]] = []
    voided: set[int] = set()
    life: Settled | None = None
    for link in links(segments(record), RecordChain()):
        if isinstance(link, RecordEntry) and link.kind == KIND:
            life = follow(read_input(link.input, link.version), life)
            entries.append((link, from_snapshot(life.decision.snapshot)))
        elif isinstance(link, Mark) and link.status == "voided":
            voided.add(link.entry_seq)
    return [
        Tick(
            entry.time_ms - began_ms,
            snapshot,
            entry.output,
            logged.get(entry.seq) or tuple(entry.output["reasons"]),
            applied=entry.seq not in voided,
        )
        for entry, snapshot in entries
        if 0 <= entry.time_ms - began_ms < duration_ms
    ]


_FAIRLEAD = (sys.executable, "-m", "fairlead")
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
class PlaneTarget:
    """Which dataplane, and for eBPF where: None means the default place."""

    kind: str
    cgroup: str | None = None
    pins: str | None = None

    def document(self) -> dict[str, Any]:
        document = {"kind": self.kind, "cgroup": self.cgroup, "pins": self.pins}
        if self.kind == "ebpf" and self.pins is None:
            document["pins"] = f"/sys/fs/bpf/fairlead-harness-{os.getpid()}"
        return {name: value for name, value in document.items() if value is not None}


def play_real(
    scenario: TrafficScenarioDocument,
    place: PlaneTarget,
    *,
    seed: int | None,
    record: Path,
    folder: Path,
) -> TrafficResult:
    """Play on a real dataplane; the flight record goes to `record`."""
    used = scenario.seed if seed is None else seed
    return asyncio.run(RealRun(scenario, place, used, folder).run(record))


class _Clients:
    """All clients of the group: planned arrivals, and retries as they come."""

    def __init__(
        self, scenario: TrafficScenarioDocument, target: tuple[str, int], entropy: Entropy
    ) -> None:
        self.retries, self._scenario = Retries(scenario.load, entropy), scenario
        times = arrivals(partial(gap_s, entropy.stream("arrivals")), rate_steps(scenario))
        self.generator = LoadGenerator(
            target,
            [PlannedRequest(at_s) for at_s in times],
            timeout_s=scenario.load.timeout_ms / 1000,
            again=self._again,
        )

    def _again(self, _: int, retry: int, kind: AnswerKind, now_s: float) -> float | None:
        pause_ms = self.retries.pause_ms(kind, retry)
        if pause_ms is None or now_s >= self._scenario.duration_s:
            return None
        return pause_ms / 1000

    def answers(self) -> list[Answer]:
        answers = []
        for a in self.generator.attempts:
            times = (a.due_s * 1000, self._kind(a), a.took_s * 1000)
            answers.append(Answer(*times, a.backend or None, a.retry, a.final))
        return answers

    def _kind(self, attempt: Attempt) -> AnswerKind:
        """A refused connect is a hard rejection, unless a backend is meant to be unreachable."""
        refused = attempt.kind is AnswerKind.HARD and attempt.status is None
        ended_s = attempt.due_s + attempt.took_s
        unreachable = refused and any_unreachable(self._scenario, ended_s)
        return AnswerKind.UNREACHABLE if unreachable else attempt.kind


def rate_steps(scenario: TrafficScenarioDocument) -> list[tuple[float, float]]:
    """(until when, arrivals per second), as the events change the load."""
    steps, factor = [], 1.0
    for event in sorted(scenario.events, key=lambda event: event.at_s):
        if event.load_factor is not None:
            steps.append((event.at_s, scenario.load.per_s * factor))
            factor = event.load_factor
    return [*steps, (float(scenario.duration_s), scenario.load.per_s * factor)]


def any_unreachable(scenario: TrafficScenarioDocument, now_s: float) -> bool:
    """Whether a backend is meant to be unreachable at this time."""
    down: set[str] = set()
    for event in sorted(scenario.events, key=lambda event: event.at_s):
        names = {spec.name for spec in scenario.backends if event.backend in (None, spec.name)}
        if event.at_s <= now_s and event.reachable is not None:
            down = down - names if event.reachable else down | names
    return bool(down)


@dataclass
class RealRun:
    """One scenario in real time."""

    scenario: TrafficScenarioDocument
    place: PlaneTarget
    seed: int
    folder: Path
    backends: dict[str, ScenarioBackend] = field(default_factory=dict)
    events: list[SimEvent] = field(default_factory=list)
    deaths: list[tuple[float, float]] = field(default_factory=list)

    async def run(self, record: Path) -> TrafficResult:
        """From the first server to the end of the record."""
        entropy = Entropy(self.seed)
        self._state = StateDirectory(self.folder / "state")
        self._state.create()
        self._port = _free_port()
        self._host = HostExporter()
        self._began_s = time.monotonic()
        for spec in self.scenario.backends:
            self.backends[spec.name] = ScenarioBackend(spec, entropy.stream("backend", spec.name))
        self._clients = _Clients(self.scenario, (HOST, self._port), entropy)
        servers = [self._host.server, *(backend.server for backend in self.backends.values())]
        try:
            for server in servers:
                await server.open()
            self._agent = self._start_agent()
            try:
                await self._ready()
                self._began_s, began_ms = time.monotonic(), time.time() * 1000
                script = asyncio.ensure_future(self._apply_events())
                await asyncio.to_thread(self._clients.generator.run, self._began_s)
                await script
            finally:
                self._clients.generator.stop()
                self._end_agent()
        finally:
            for server in servers:
                server.close()
        return self._played(record, began_ms)

    # --- the agent

    def _start_agent(self) -> subprocess.Popen[bytes]:
        path = self.folder / "traffic.yaml"
        path.write_text(json.dumps(self._config()))
        with (self.folder / "agent.log").open("ab") as log:
            return subprocess.Popen([*_FAIRLEAD, "traffic", "run", str(path)], stderr=log)

    def _config(self) -> dict[str, Any]:
        here = [
            {
                "id": spec.name,
                "host": HOST,
                "port": self.backends[spec.name].server.port,
                "node": "n1",
            }
            for spec in backends_at(self.scenario, time.monotonic() - self._began_s)
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
                    "url": f"http://{HOST}:{self._host.server.port}/metrics",
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

    def _end_agent(self) -> None:
        """Stop the agent and remove the dataplane from the machine."""
        agent = self._agent
        if agent.poll() is None:
            agent.send_signal(signal.SIGTERM)
            try:
                agent.wait(timeout=30)
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()
        subprocess.run(
            [*_FAIRLEAD, "traffic", "remove", str(self.folder / "traffic.yaml")],
            capture_output=True,
            check=False,
            timeout=120,
        )

    # --- what happens

    async def _apply_events(self) -> None:
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
                    await self._apply(event)
                elif event.agent_dead_s is not None and event.at_s + event.agent_dead_s == at_s:
                    self._agent = self._start_agent()
                    self._log("the agent is started again")
            if any(at_s in (spec.joins_s, spec.leaves_s) for spec in self.scenario.backends):
                (self.folder / "traffic.yaml").write_text(json.dumps(self._config()))
                self._agent.send_signal(signal.SIGHUP)
                self._log("the configuration is changed and read again")

    async def _apply(self, event: EventDocument) -> None:
        if event.title:
            self._log(event.title)
        for name in self.backends if event.backend is None else [event.backend]:
            await self._change_backend(name, event)
        if event.repeat is not None:
            self._clients.retries.repeat = event.repeat
        if event.agent_dead_s is not None:
            self._agent.kill()
            self._agent.wait()
            at_ms = (time.monotonic() - self._began_s) * 1000
            self.deaths.append((at_ms, at_ms + event.agent_dead_s * 1000))
            self._log("the agent is killed")
        self._host.load.change(event)

    async def _change_backend(self, name: str, event: EventDocument) -> None:
        backend = self.backends[name]
        change_backend(backend, event)
        if event.blind is not None:
            backend.service.hidden = event.blind
        if event.reachable is False:
            backend.server.shut()
        elif event.reachable and not backend.server.listening:
            await backend.server.open()
        if event.order is not None:
            orders: dict[str, BackendCommand | None] = {"isolate": "isolate", "drain": "drain"}
            change_command(self._state, GROUP, name, orders.get(event.order))

    def _log(self, text: str) -> None:
        self.events.append(SimEvent((time.monotonic() - self._began_s) * 1000, "event", text))

    # --- afterwards

    def _played(self, record: Path, began_ms: float) -> TrafficResult:
        shutil.copytree(
            self._state.path / "record" / GROUP, record, ignore=shutil.ignore_patterns("*.lock")
        )
        status = self._state.read("status.json") or {}
        groups: list[dict[str, Any]] = status.get("groups", [])
        group = groups[0] if groups else {}
        logged = read_transitions(self.folder / "agent.log")
        attempts = self._clients.generator.attempts
        lags_ms = [attempt.lag_s * 1000 for attempt in attempts if attempt.retry == 0]
        lag_ms = percentile(lags_ms, 0.99) or 0.0
        if lag_ms > _LAG_MS_MAX:
            self._log(f"the generator lagged: {lag_ms:.0f} ms at p99; this machine is too busy")
        for transition in logged:
            if transition.wall_ms >= began_ms:
                at_ms = transition.wall_ms - began_ms
                self.events.append(SimEvent(at_ms, "agent", transition.text))
        names = ("admitted", "refused_soft", "refused_hard")
        return TrafficResult(
            scenario=self.scenario,
            seed=self.seed,
            plane=self.place.kind,
            config=scenario_config(self.scenario),
            ticks=read_ticks(record, began_ms, self.scenario.duration_s * 1000, logged),
            answers=sorted(self._clients.answers(), key=lambda answer: answer.at_ms),
            counted={name: group.get(name) or 0 for name in names},
            events=sorted(self.events),
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
