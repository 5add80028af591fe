"""A scenario in virtual time: simulated clients and backends, the in-memory plane, the real loop.

No clock and no chance but the seed's: the same seed gives the same ticks, byte for byte. The ticks
go through a real flight recorder and are decided again afterwards.
"""

import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from fairlead.core.traffic import HealthRules
from fairlead.core.traffic.admission import fnv1a, judge, scramble
from fairlead.engine.traffic import Group, GroupGovernor, GroupRules, Ports, TrafficLoop
from fairlead.ports.dataplane import FALLBACK_AFTER_MS, Backend, Liveness, Proto, RouteGroup
from fairlead.recorder import FileRecorder, read, replay
from fairlead.schema.traffic import from_plan, from_snapshot
from fairlead.schema.traffic_scenario import EventDocument, TrafficScenarioDocument, scenario_config
from fairlead.sim.clock import Turn, VirtualClock
from fairlead.sim.entropy import Entropy
from fairlead.sim.traffic.clients import Clients
from fairlead.sim.traffic.service import SimBackend
from fairlead.sim.traffic.story import GROUP, Happening, Played, Tick
from fairlead.sim.traffic.surroundings import Around, CurtainedPlane, Machine

_HOST, _PORT = "192.0.2.1", 80


class VirtualPlay:
    """One world."""

    def __init__(self, scenario: TrafficScenarioDocument, seed: int, folder: Path) -> None:
        self.scenario, self.clock = scenario, VirtualClock()
        self._seed, entropy = seed, Entropy(seed)
        self.plane = CurtainedPlane(self.clock)
        self.backends = {
            spec.name: SimBackend(spec, self.clock, entropy.stream("backend", spec.name))
            for spec in scenario.backends
        }
        memory = any(e.memory_used or e.memory_per_s for e in scenario.events)
        self.machine = Machine(self.clock, memory=memory)
        self.clients = Clients(scenario.load, self.clock, self.plane, self.backends, entropy)
        self.ticks: list[Tick] = []
        self.happenings: list[Happening] = []
        self.deaths: list[tuple[float, float]] = []
        self.orders: dict[str, dict[str, str]] = {}
        self._recorder = FileRecorder(folder, segment_bytes=2**20, sync_each=False)
        self._rules = GroupRules(
            scenario_config(scenario),
            HealthRules(),
            own_budget=not {"bucket_rate", "bucket_burst"} & scenario.config.keys(),
            own_reference="q_ref" not in scenario.config,
            own_latency="l_ref_ms" not in scenario.config,
            own_bound="inside_max" not in scenario.config,
        )
        self._alive, self._number = True, 0
        self._loop = self._new_loop(GroupGovernor(GROUP, self._rules))

    def run(self) -> Played:
        """To the end."""
        for event in self.scenario.events:
            self._later(event.at_s, self._happening(event))
        for spec in self.scenario.backends:
            for at_s in (spec.joins_s, spec.leaves_s):
                if at_s:
                    self._later(at_s, self._rejoin)
        self.clients.start()
        self.clock.at(0, Turn.CLEAR, self._tick)
        self.clock.run_until(self.scenario.duration_s * 1000)
        self.clients.stop()
        self._recorder.close()
        seen = self.plane.read()[GROUP]
        return Played(
            scenario=self.scenario,
            seed=self._seed,
            plane=self.plane.name,
            config=self._rules.config,
            ticks=self.ticks,
            answers=self.clients.answers,
            counted={
                "admitted": seen.admitted,
                "refused_soft": seen.refused_soft,
                "refused_hard": seen.refused_hard,
            },
            happenings=self.happenings,
            digest=self._sum(),
            sources=dict(self.plane.sources),
            deaths=self.deaths,
        )

    def _later(self, at_s: float, action: Callable[[], None]) -> None:
        self.clock.at(round(at_s * 1000), Turn.WORLD, action)

    def _happening(self, event: EventDocument) -> Callable[[], None]:
        return lambda: self._happen(event)

    # --- the agent

    def _tick(self) -> None:
        """One tick, and the next one 200 ms later with its jitter."""
        if self._alive:
            round = self._loop.tick(self.clock.now_ms)
            made = round.groups[GROUP]
            self.ticks.append(
                Tick(
                    self.clock.now_ms,
                    from_snapshot(made.snapshot),
                    from_plan(made.plan),
                    made.reasons,
                    applied=not made.fault,
                )
            )
            for each in round.transitions:
                self._tell(_transition(each.what, each.backend, each.before, each.after))
        self._number += 1
        due = self._number * self.scenario.tick_ms
        jitter = scramble(fnv1a(b"harness") ^ self._number) % max(1, self.scenario.tick_ms // 10)
        self.clock.at(max(self.clock.now_ms, due + jitter), Turn.CLEAR, self._tick)

    def _new_loop(self, governor: GroupGovernor) -> TrafficLoop:
        around = Around(self.backends, retried=self.scenario.load.retries > 0)
        ports = Ports(
            record=lambda _: self._recorder,
            signals=around,
            prober=around,
            nodes=self.machine,
            orders=lambda: self.orders,
        )
        loop = TrafficLoop(self.plane, [Group(self._route(), governor)], ports)
        loop.start(self.clock.now_ms)
        return loop

    def _die(self, dead_ms: int) -> None:
        """The agent is gone; what it kept is what the next one starts from."""
        governor, died_ms = self._loop.groups[GROUP].governor, self.clock.now_ms
        stored: dict[str, Any] = json.loads(json.dumps(governor.export()))
        self._alive = False
        self.deaths.append((died_ms, died_ms + dead_ms))
        self._tell("the agent is killed")

        def rise() -> None:
            fresh = GroupGovernor(GROUP, self._rules)
            fresh.restore(stored, stale=dead_ms >= FALLBACK_AFTER_MS)
            self._loop = self._new_loop(fresh)
            self._loop.found_stale(Liveness(judge(dead_ms).value))
            self._alive = True
            self._tell("the agent is back")

        self.clock.at(died_ms + dead_ms, Turn.WORLD, rise)

    # --- what happens

    def _happen(self, event: EventDocument) -> None:
        if event.title:
            self._tell(event.title)
        for name in self.backends if event.backend is None else [event.backend]:
            self._change_backend(name, event)
        if event.load_factor is not None:
            self.clients.factor = event.load_factor
        if event.repeat is not None:
            self.clients.repeat = event.repeat
        if event.agent_dead_s is not None:
            self._die(round(event.agent_dead_s * 1000))
        self.machine.advance()
        for field in ("stall", "memory_used", "memory_per_s"):
            value = getattr(event, field)
            if value is not None:
                setattr(self.machine, field, value)

    def _change_backend(self, name: str, event: EventDocument) -> None:
        backend = self.backends[name]
        if event.latency_ms is not None:
            backend.latency_ms = event.latency_ms
        if event.latency_factor is not None:
            backend.factor = event.latency_factor
        if event.error_rate is not None:
            backend.error_rate = event.error_rate
        if event.reachable is not None:
            backend.reachable = event.reachable
        if event.blind is not None:
            self.plane.hidden[name] = event.blind
        if event.order == "restore":
            self.orders.get(GROUP, {}).pop(name, None)
        elif event.order is not None:
            self.orders.setdefault(GROUP, {})[name] = event.order

    def _rejoin(self) -> None:
        """Somebody joined or left: the groups are configured anew, as the agent would."""
        governor = self._loop.groups[GROUP].governor
        self._loop.reconfigure([Group(self._route(), governor)])
        self._tell("backends: " + ", ".join(backend.id for backend in self._route().backends))

    def _route(self) -> RouteGroup:
        now_s = self.clock.now_ms / 1000
        here = tuple(
            Backend(spec.name, "192.0.2.2", 1000 + index)
            for index, spec in enumerate(self.scenario.backends)
            if spec.joins_s <= now_s and (spec.leaves_s is None or now_s < spec.leaves_s)
        )
        self.clients.members = frozenset(backend.id for backend in here)
        return RouteGroup(GROUP, _HOST, _PORT, Proto.TCP, here)

    def _tell(self, text: str) -> None:
        self.happenings.append(Happening(self.clock.now_ms, text))

    def _sum(self) -> str:
        """Of every tick, which the record's chain holds, and of every answer."""
        found = sha256(self._recorder.head().hash.encode())
        for answer in self.clients.answers:
            found.update(repr(tuple(answer)).encode())
        return found.hexdigest()


def _transition(what: str, backend: str | None, before: str | None, after: str | None) -> str:
    if what == "isolation":
        return f"{backend} is isolated: {after}" if after else f"{backend} is back in service"
    names = {"mode": "the door goes from", "failsafe": "the plane went from"}
    return f"{names[what]} {before} to {after}"


def play(
    scenario: TrafficScenarioDocument, *, seed: int | None = None, record: Path | None = None
) -> Played:
    """Play in virtual time; the flight record goes to `record`, or is thrown away afterwards."""
    used = scenario.seed if seed is None else seed
    with tempfile.TemporaryDirectory(prefix="fairlead-harness-") as spare:
        folder = record or Path(spare) / "record"
        played = VirtualPlay(scenario, used, folder).run()
        return replace(played, problems=replay_problems(folder))


def replay_problems(folder: Path) -> list[str]:
    """Ticks that are not decided again as they were."""
    return [
        f"entry {each.seq}: a replay is {each.verdict.value} {each.detail}".strip()
        for each in replay(read(folder))
        if each.verdict != "same"
    ]
