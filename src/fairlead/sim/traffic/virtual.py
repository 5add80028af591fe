"""A traffic scenario in virtual time: simulated clients, the in-memory dataplane, the real loop.

No clock and no randomness but the seed's: the same seed gives the same ticks, byte for byte. The
ticks go through a real flight recorder and are decided again afterwards.
"""

import json
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from fairlead.core.traffic import HealthRules, Resource, StallTotals
from fairlead.core.traffic.admission import fnv1a, scramble
from fairlead.core.traffic.limits import liveness, may_resume
from fairlead.core.traffic.memory import EDITION
from fairlead.core.traffic.sighting import BackendSeen, GroupSeen, NodeReading, Probed, Reading
from fairlead.dataplane.memory import MemoryDataplane
from fairlead.engine.traffic import (
    KIND,
    Group,
    GroupGovernor,
    GroupRules,
    Ports,
    TickRound,
    TrafficLoop,
)
from fairlead.ports.dataplane import Backend, Proto, RouteGroup
from fairlead.recorder import FileRecorder, read, replay
from fairlead.schema.traffic import from_plan, from_snapshot
from fairlead.schema.traffic_scenario import Blind, EventDocument, TrafficScenarioDocument
from fairlead.sim.clock import Entropy, Turn, VirtualClock
from fairlead.sim.traffic import load
from fairlead.sim.traffic.load import MEMORY_BYTES, ScenarioRun, SimBackend, SimCall
from fairlead.sim.traffic.result import COUNTED, GROUP, AnswerKind, Tick, TrafficResult, backends_at


class MaskedPlane(MemoryDataplane):
    """The in-memory dataplane, of which some signals can be hidden."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(lambda: clock.now_ms)
        self.hidden: dict[str, Blind] = {}

    def read(self) -> Mapping[str, GroupSeen]:
        return {
            name: replace(
                group, backends={id: self._mask(id, seen) for id, seen in group.backends.items()}
            )
            for name, group in super().read().items()
        }

    def _mask(self, id: str, seen: BackendSeen) -> BackendSeen:
        blind = self.hidden.get(id, Blind.NOTHING)
        if blind is Blind.ERRORS:
            return replace(seen, errors=None, successes=None, connect_failures=None)
        if blind is Blind.LATENCY:
            return replace(seen, p95_ms=None)
        return replace(seen, queue=None) if blind is Blind.QUEUE else seen


class SimSignals:
    """Everything that the loop reads beside its dataplane and its host."""

    def __init__(self, backends: Mapping[str, SimBackend], *, retried: bool) -> None:
        self._backends, self._retried = backends, retried
        self._answers: list[Probed] = []

    def covers(self, group: str) -> Collection[str]:
        return ("retries",) if self._retried else ()

    def read(self, now_ms: int) -> Mapping[tuple[str, str], Reading]:
        told = {name: b.report_retries() for name, b in self._backends.items()}
        return {(GROUP, name): Reading(retries=count) for name, count in told.items()}

    def probe(self, group: str, backends: Sequence[str]) -> None:
        """A probe is a request of its own that bypasses the dataplane."""
        for name in backends:
            if self._backends[name].reachable:
                call = SimCall(self._backends[name].now_ms, partial(self._probed, name))
                self._backends[name].take(call)
            else:
                self._answers.append(Probed(GROUP, name, ok=False))

    def _probed(self, name: str, call: SimCall, outcome: AnswerKind) -> None:
        took_ms = float(self._backends[name].now_ms - call.began_ms)
        self._answers.append(Probed(GROUP, name, outcome is AnswerKind.OK, took_ms))

    def results(self) -> Sequence[Probed]:
        results, self._answers = self._answers, []
        return results

    def asked_ms(self, group: str, now_ms: int) -> int | None:
        return None

    def checked(self) -> Sequence[Probed]:
        return ()


class SimHost(load.HostLoad):
    """The one machine under all backends."""

    def __init__(self, clock: VirtualClock, *, memory: bool) -> None:
        super().__init__(lambda: clock.now_ms)
        self._watched = memory

    def read(self, now_ms: int) -> Sequence[NodeReading]:
        """Counters of stalled time, and memory where the scenario is about it: its trail would be
        most of every record."""
        self.advance()
        totals = StallTotals(now_ms * 1000, {"cpu_some": self.stalled_us})
        memory = Resource("memory", MEMORY_BYTES, self.memory_used * MEMORY_BYTES)
        return [NodeReading("n1", totals, (memory,) if self._watched else ())]


class VirtualRun(ScenarioRun):
    """One scenario in virtual time."""

    def __init__(self, scenario: TrafficScenarioDocument, seed: int | None, folder: Path) -> None:
        super().__init__(scenario, seed)
        self.clock, entropy = VirtualClock(), Entropy(self.seed)
        self.plane = MaskedPlane(self.clock)
        self.backends: dict[str, SimBackend] = {
            spec.name: SimBackend(spec, self.clock, entropy.stream("backend", spec.name))
            for spec in scenario.backends
        }
        memory = any(e.memory_used or e.memory_per_s for e in scenario.events)
        self.host: SimHost = SimHost(self.clock, memory=memory)
        parts = (self.clock, self.plane, self.backends, entropy)
        self.clients = load.SimClients(scenario.load, *parts)
        self.retries = self.clients.retries
        self.ticks: list[Tick] = []
        self.orders: dict[str, dict[str, str]] = {}
        self._recorder = FileRecorder(folder, segment_bytes=2**20, sync_each=False)
        self._rules = GroupRules(
            self.config,
            HealthRules(),
            own_budget=not {"bucket_rate", "bucket_burst"} & scenario.config.keys(),
            own_reference="q_ref" not in scenario.config,
            own_latency="l_ref_ms" not in scenario.config,
            own_bound="inside_max" not in scenario.config,
            own_flow="g_min" not in scenario.config,
            edition=EDITION,
        )
        self.on_round: Callable[[TickRound], None] = lambda _: None
        self._alive, self._number = True, 0
        self.loop = self._new_loop(GroupGovernor(GROUP, self._rules))

    def begin(self) -> None:
        """Clients and agent start; `advance` lets time pass."""
        for at_s, action in self.plan():
            self.clock.at(round(at_s * 1000), Turn.SCENARIO, action)
        self.clients.start()
        self.clock.at(0, Turn.CLEAR, self._tick)

    def advance(self, step_ms: int) -> None:
        self.clock.run_until(self.clock.now_ms + step_ms)

    def close(self) -> None:
        self.clients.stop()
        self._recorder.close()

    def run(self) -> TrafficResult:
        self.begin()
        self.advance(self.scenario.duration_s * 1000)
        self.close()
        seen = self.plane.read()[GROUP]
        return self.result(
            plane=self.plane.name,
            ticks=self.ticks,
            answers=self.clients.answers,
            counted={name: getattr(seen, name) for name in COUNTED},
            events=self.events,
            digest=self._digest(),
            sources=dict(self.plane.sources),
        )

    def elapsed_ms(self) -> float:
        return self.clock.now_ms

    # --- the agent

    def _tick(self) -> None:
        """One tick, and the next one 200 ms later with its jitter."""
        if self._alive:
            round = self.loop.tick(self.clock.now_ms)
            self.on_round(round)
            made = round.groups[GROUP]
            snapshot, plan = from_snapshot(made.snapshot), from_plan(made.plan)
            applied = not made.fault
            self.ticks.append(Tick(self.clock.now_ms, snapshot, plan, made.reasons, applied))
            for change in round.transitions:
                what = (change.what, change.backend, change.before, change.after)
                self.log(load.transition_text(*what))
        self._number += 1
        due = self._number * self.scenario.tick_ms
        jitter = scramble(fnv1a(b"harness") ^ self._number) % max(1, self.scenario.tick_ms // 10)
        self.clock.at(max(self.clock.now_ms, due + jitter), Turn.CLEAR, self._tick)

    def _new_loop(self, governor: GroupGovernor) -> TrafficLoop:
        around = SimSignals(self.backends, retried=self.scenario.load.retries > 0)
        ports = Ports(
            record=lambda _: self._recorder,
            signals=around,
            prober=around,
            nodes=self.host,
            orders=lambda: self.orders,
        )
        loop = TrafficLoop(self.plane, [Group(self._route(), governor)], ports)
        loop.start(self.clock.now_ms)
        return loop

    def kill_agent(self, dead_ms: int) -> None:
        """The agent is gone; what it kept is what the next one starts from."""
        self._stored: dict[str, Any] = json.loads(json.dumps(self._governor.export()))
        self._alive, self._dead_ms = False, dead_ms

    def return_agent(self) -> None:
        fresh = GroupGovernor(GROUP, self._rules)
        fresh.restore(self._stored)
        if may_resume(self._dead_ms):
            applied = all(entry.kind != KIND for entry in self._recorder.unapplied())
            fresh.resume(self._recorder.tail(KIND), applied=applied)
        self.loop = self._new_loop(fresh)
        self.loop.found_stale(liveness(self._dead_ms))
        self._alive = True
        self.log("the agent is back")

    @property
    def _governor(self) -> GroupGovernor:
        return self.loop.groups[GROUP].governor

    # --- what happens

    def apply(self, event: EventDocument) -> None:
        super().apply(event)
        load.follow(event, self.clients, "load_factor")

    def change_backend(self, name: str, event: EventDocument) -> None:
        load.follow(event, self.backends[name], "reachable")
        if event.blind is not None:
            self.plane.hidden[name] = event.blind
        if event.order == "restore":
            self.orders.get(GROUP, {}).pop(name, None)
        elif event.order is not None:
            self.orders.setdefault(GROUP, {})[name] = event.order

    def reconfigure(self) -> None:
        """The groups are configured anew, as the agent would."""
        self.loop.reconfigure([Group(self._route(), self._governor)], self.clock.now_ms)
        self.log("backends: " + ", ".join(backend.id for backend in self._route().backends))

    def _route(self) -> RouteGroup:
        present = backends_at(self.scenario, self.clock.now_ms / 1000)
        here = tuple(Backend(s.name, "192.0.2.2", 1000 + n) for n, s in enumerate(present))
        self.clients.members = frozenset(backend.id for backend in here)
        return RouteGroup(GROUP, "192.0.2.1", 80, Proto.TCP, here)

    def _digest(self) -> str:
        """Of every tick, which the record's chain holds, and of every answer."""
        digest = sha256(self._recorder.head().hash.encode())
        for answer in self.clients.answers:
            digest.update(repr((answer.at_ms, answer.outcome.value, *answer[2:])).encode())
        return digest.hexdigest()


def play(
    scenario: TrafficScenarioDocument, *, seed: int | None = None, record: Path | None = None
) -> TrafficResult:
    """Play in virtual time; the flight record goes to `record`, or is deleted afterwards."""
    with tempfile.TemporaryDirectory(prefix="fairlead-harness-") as spare:
        folder = record or Path(spare) / "record"
        played = VirtualRun(scenario, seed, folder).run()
        return replace(played, problems=replay_problems(folder))


def replay_problems(folder: Path) -> list[str]:
    """Ticks that are not decided again as they were."""
    return [
        f"entry {entry.seq}: a replay is {entry.verdict.value} {entry.detail}".strip()
        for entry in replay(read(folder))
        if entry.verdict != "same"
    ]
