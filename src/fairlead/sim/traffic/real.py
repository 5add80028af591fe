"""A traffic scenario in real time: a real agent process, dataplane, backends and connections.

The agent is `fairlead traffic run`, started, killed, ordered and reloaded as an operator would do;
what it decided is read from its flight record afterwards, so the same checks look at it.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from fairlead.host.process import free_port
from fairlead.node.state import StateDirectory
from fairlead.node.traffic.commands import BackendCommand, change_command
from fairlead.ports.faults import PermanentFault
from fairlead.ports.recorder import Mark, RecordEntry
from fairlead.recorder.chain import RecordChain
from fairlead.recorder.reader import links, segments
from fairlead.schema.traffic import from_snapshot
from fairlead.schema.traffic_govern import KIND, Settled, follow, read_input
from fairlead.schema.traffic_scenario import EventDocument, TrafficScenarioDocument
from fairlead.sim.clock import Entropy
from fairlead.sim.record import SimEvent
from fairlead.sim.traffic import result
from fairlead.sim.traffic.backend import HOST, HostExporter, ScenarioBackend
from fairlead.sim.traffic.generator import Attempt, LoadGenerator, PlannedRequest, arrivals
from fairlead.sim.traffic.load import ClientRetries, ScenarioRun, gap_s, transition_text
from fairlead.sim.traffic.result import COUNTED, GROUP, Answer, AnswerKind, Tick, TrafficResult
from fairlead.sim.traffic.virtual import replay_problems

_LOGGED = ("admission", "isolation", "failsafe", "agent started")


def read_log(log: Path, began_ms: float) -> tuple[dict[int, tuple[str, ...]], list[SimEvent]]:
    """The transitions that the agent logged: the reasons of those with a tick, by its number in the
    record, and all since the beginning as events."""
    reasons, events = dict[int, tuple[str, ...]](), []
    for line in log.read_text(errors="replace").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and event.get("event") in _LOGGED:
            reasons[event.get("sequence") or 0] = tuple(event.get("reasons", ()))
            at_ms = datetime.fromisoformat(event["timestamp"]).timestamp() * 1000 - began_ms
            change = (event.get(name) for name in ("backend", "before", "after"))
            if at_ms >= 0:
                events.append(SimEvent(at_ms, "agent", transition_text(event["event"], *change)))
    return reasons, events


def read_ticks(
    record: Path, began_ms: float, duration_ms: float, logged: Mapping[int, tuple[str, ...]]
) -> list[Tick]:
    """The ticks of the run, with the reasons that the agent gave beyond the decision's own."""
    ticks: dict[int, Tick] = {}
    life: Settled | None = None
    for link in links(segments(record), RecordChain()):
        if isinstance(link, RecordEntry) and link.kind == KIND:
            life = follow(read_input(link.input, link.version), life)
            at_ms, snapshot = link.time_ms - began_ms, from_snapshot(life.decision.snapshot)
            reasons = logged.get(link.seq) or tuple(link.output["reasons"])
            ticks[link.seq] = Tick(at_ms, snapshot, link.output, reasons, applied=True)
        elif isinstance(link, Mark) and link.status == "voided" and link.entry_seq in ticks:
            ticks[link.entry_seq] = replace(ticks[link.entry_seq], applied=False)
    return [tick for tick in ticks.values() if 0 <= tick.at_ms < duration_ms]


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


class RealRun(ScenarioRun):
    """One scenario in real time."""

    def __init__(
        self,
        scenario: TrafficScenarioDocument,
        plane: Mapping[str, str | None],
        seed: int | None,
        folder: Path,
    ) -> None:
        """`plane` is that of the agent's configuration."""
        super().__init__(scenario, seed)
        entropy = Entropy(self.seed)
        self._plane = {name: value for name, value in plane.items() if value is not None}
        if self._plane["kind"] == "ebpf":
            self._plane.setdefault("pins", f"/sys/fs/bpf/fairlead-harness-{os.getpid()}")
        self.backends: dict[str, ScenarioBackend] = {
            spec.name: ScenarioBackend(spec, entropy.stream("backend", spec.name))
            for spec in scenario.backends
        }
        self.host: HostExporter = HostExporter()
        self._file, self._agent_log = folder / "traffic.yaml", folder / "agent.log"
        self._state = StateDirectory(folder / "state")
        self._state.create()
        self._port = free_port(HOST)
        self._began_s = time.monotonic()
        self.retries = ClientRetries(scenario.load, entropy)
        times = arrivals(partial(gap_s, entropy.stream("arrivals")), rate_steps(scenario))
        self._load = LoadGenerator(
            (HOST, self._port),
            [PlannedRequest(at_s) for at_s in times],
            timeout_s=scenario.load.timeout_ms / 1000,
            again=self._again,
        )

    def run(self, record: Path) -> TrafficResult:
        """The flight record goes to `record`."""
        return asyncio.run(self._run(record))

    async def _run(self, record: Path) -> TrafficResult:
        """From the first server to the end of the record."""
        servers = [self.host.server, *(backend.server for backend in self.backends.values())]
        try:
            for server in servers:
                await server.open()
            self._agent = self._start_agent()
            try:
                await self._ready()
                self._began_s, began_ms = time.monotonic(), time.time() * 1000
                script = asyncio.ensure_future(self._apply_events())
                await asyncio.to_thread(self._load.run, self._began_s)
                await script
            finally:
                self._load.stop()
                self._end_agent()
        finally:
            for server in servers:
                server.close()
        return self._played(record, began_ms)

    # --- the agent

    def _start_agent(self) -> subprocess.Popen[bytes]:
        self._file.write_text(json.dumps(self._config()))
        with self._agent_log.open("ab") as log:
            return subprocess.Popen([*_FAIRLEAD, "traffic", "run", str(self._file)], stderr=log)

    def _config(self) -> dict[str, Any]:
        present = result.backends_at(self.scenario, self.elapsed_ms() / 1000)
        ports = {spec.name: self.backends[spec.name].server.port for spec in present}
        here = [{"id": n, "host": HOST, "port": port, "node": "n1"} for n, port in ports.items()]
        group: dict[str, Any] = {"name": GROUP, "vip": HOST, "port": self._port, "backends": here}
        group |= {"config": dict(self.scenario.config), "probe": {"kind": "http"}}
        events, load = self.scenario.events, self.scenario.load
        retried = bool(load.retries) or any(event.repeat for event in events)
        if self._plane["kind"] == "ebpf" or self.scenario.scrape or retried:
            group["scrape"] = SCRAPE | ({"retries": "retries_total"} if retried else {})
        url = f"http://{HOST}:{self.host.server.port}/metrics"
        return {
            "plane": self._plane,
            "state_dir": str(self._state.path),
            "tick_ms": self.scenario.tick_ms,
            "node": {"watch": False},
            "groups": [group],
            "nodes": [{"name": "n1", "url": url, "every_ms": self.scenario.tick_ms}],
        }

    async def _ready(self) -> None:
        """Until the agent has decided and its address answers."""
        deadline = time.monotonic() + _START_S
        while not (self._state.path / "status.json").exists():
            if self._agent.poll() is not None or time.monotonic() > deadline:
                lines = self._agent_log.read_text(errors="replace").splitlines()
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
        command = [*_FAIRLEAD, "traffic", "remove", str(self._file)]
        subprocess.run(command, capture_output=True, check=False, timeout=120)

    # --- what happens

    async def _apply_events(self) -> None:
        for at_s, action in self.plan():
            await asyncio.sleep(max(0.0, self._began_s + at_s - time.monotonic()))
            action()

    def reconfigure(self) -> None:
        self._file.write_text(json.dumps(self._config()))
        self._agent.send_signal(signal.SIGHUP)
        self.log("the configuration is changed and read again")

    def elapsed_ms(self) -> float:
        return (time.monotonic() - self._began_s) * 1000

    def kill_agent(self, dead_ms: int) -> None:
        self._agent.kill()
        self._agent.wait()

    def return_agent(self) -> None:
        self._agent = self._start_agent()
        self.log("the agent is started again")

    def change_backend(self, name: str, event: EventDocument) -> None:
        backend = self.backends[name]
        if event.blind is not None:
            backend.service.hidden = event.blind
        if event.reachable is False:
            backend.server.shut()
        elif event.reachable and not backend.server.listening:
            self._opening = asyncio.ensure_future(backend.server.open())
        if event.order is not None:
            orders: dict[str, BackendCommand | None] = {"isolate": "isolate", "drain": "drain"}
            change_command(self._state, GROUP, name, orders.get(event.order))

    # --- what the clients do

    def _again(self, _: int, retry: int, kind: AnswerKind, now_s: float) -> float | None:
        pause_ms = self.retries.pause_ms(kind, retry)
        return None if pause_ms is None or now_s >= self.scenario.duration_s else pause_ms / 1000

    def _answer(self, a: Attempt) -> Answer:
        """A refused connect is a hard rejection, unless a backend is meant to be unreachable."""
        kind, refused = a.kind, a.kind is AnswerKind.HARD and a.status is None
        if refused and any_unreachable(self.scenario, a.due_s + a.took_s):
            kind = AnswerKind.UNREACHABLE
        return Answer(a.due_s * 1000, kind, a.took_s * 1000, a.backend or None, a.retry, a.final)

    # --- afterwards

    def _played(self, record: Path, began_ms: float) -> TrafficResult:
        kept = self._state.path / "record" / GROUP
        shutil.copytree(kept, record, ignore=shutil.ignore_patterns("*.lock"))
        status = self._state.read("status.json") or {}
        group: dict[str, Any] = next(iter(status.get("groups", [])), {})
        reasons, events = read_log(self._agent_log, began_ms)
        attempts = self._load.attempts
        lags_ms = [attempt.lag_s * 1000 for attempt in attempts if attempt.retry == 0]
        lag_ms = result.percentile(lags_ms, 0.99) or 0.0
        if lag_ms > _LAG_MS_MAX:
            self.log(f"the generator lagged: {lag_ms:.0f} ms at p99; this machine is too busy")
        return self.result(
            plane=self._plane["kind"],
            ticks=read_ticks(record, began_ms, self.scenario.duration_s * 1000, reasons),
            answers=sorted(map(self._answer, attempts), key=lambda answer: answer.at_ms),
            counted={name: group.get(name) or 0 for name in COUNTED},
            events=sorted(self.events + events),
            digest="",
            real=True,
            sources=status.get("sources", {}),
            missed_ticks=status.get("missed_ticks", 0),
            problems=replay_problems(record),
        )
