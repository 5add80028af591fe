"""A little world for the traffic loop: the memory plane, a clock of ours, backends that answer."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairlead.core.canonical import Rendered
from fairlead.core.traffic import Config, HealthRules
from fairlead.core.traffic.sighting import NodeReading, Probed, Reading
from fairlead.dataplane.memory import MemoryDataplane
from fairlead.engine.traffic import Group, GroupGovernor, GroupRules, Ports, TickRound, TrafficLoop
from fairlead.ports.dataplane import Backend, Proto, RouteGroup
from fairlead.ports.recorder import RecordHead
from fairlead.ports.traffic import Transition

TICK_MS = 200


@dataclass
class Behaviour:
    """How a backend answers."""

    latency_ms: float = 20.0
    error_every: int = 0
    """Each so many requests one fails; 0: none does."""
    reachable: bool = True
    served: int = 0


class Eyes:
    """Every other port in one, answering what a test wants it to."""

    def __init__(self) -> None:
        self.covered: tuple[str, ...] = ()
        self.readings: dict[tuple[str, str], Reading] = {}
        self.machines: list[NodeReading] = []
        self.asked_for_ms: int | None = None
        self.checks: list[Probed] = []
        self.asked: list[tuple[str, str]] = []
        self.answers: list[Probed] = []
        self.told: list[Transition] = []
        self.anchors: list[tuple[int, dict[str, RecordHead]]] = []

    def covers(self, group: str) -> Sequence[str]:
        return self.covered

    def asked_ms(self, group: str, now_ms: int) -> int | None:
        return self.asked_for_ms

    def read(self, now_ms: int) -> Any:
        return self.readings

    def probe(self, group: str, backends: Sequence[str]) -> None:
        self.asked += [(group, backend) for backend in backends]

    def results(self) -> list[Probed]:
        found, self.answers = self.answers, []
        return found

    def checked(self) -> list[Probed]:
        found, self.checks = self.checks, []
        return found

    def transition(self, transition: Transition) -> None:
        self.told.append(transition)

    def anchor(self, now_ms: int, heads: Mapping[str, RecordHead]) -> None:
        self.anchors.append((now_ms, dict(heads)))

    def close(self) -> None:
        """Nothing waits."""


class Machines:
    """The nodes of a world."""

    def __init__(self, eyes: Eyes) -> None:
        self._eyes = eyes

    def read(self, now_ms: int) -> list[NodeReading]:
        return self._eyes.machines


class MemoryRecorder:
    """A flight recorder without a disk."""

    def __init__(self) -> None:
        self.appended: list[dict[str, Any]] = []
        self.marks: dict[int, str] = {}

    def append(self, kind: str, **entry: Any) -> int:
        read = {k: json.loads(v) if isinstance(v, Rendered) else v for k, v in entry.items()}
        self.appended.append({"kind": kind, **read})
        return len(self.appended)

    def mark(self, seq: int, status: str, **_: Any) -> None:
        self.marks[seq] = status

    def unapplied(self) -> list[Any]:
        return []

    def head(self) -> RecordHead:
        return RecordHead(len(self.appended), "00")

    def sync(self) -> None:
        """Nothing waits."""

    def begins_segment(self, kind: str) -> bool:
        return not self.appended

    def tail(self, kind: str) -> list[Any]:
        return []

    def was_applied(self, seq: int) -> bool:
        return self.marks.get(seq) == "applied"

    def last(self, kind: str) -> None:
        """Nothing is at hand."""

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class TrafficWorld:
    """One group on the memory plane; each tick its clients send requests first."""

    names: Sequence[str] = ("a", "b")
    per_tick: int = 40
    config: Config = field(default_factory=Config)
    health: HealthRules = field(default_factory=HealthRules)
    recorder: Any = None
    orders: dict[str, dict[str, str]] = field(default_factory=dict)
    answer_probes: bool = True
    paced: bool = False

    def __post_init__(self) -> None:
        self.recorder = self.recorder or MemoryRecorder()
        self.now_ms = 1_000_000_000
        self.plane = MemoryDataplane(lambda: self.now_ms)
        self.backends = {name: Behaviour() for name in self.names}
        self.eyes = Eyes()
        self.sent: dict[str, int] = dict.fromkeys(self.names, 0)
        self.refused = 0
        rules = GroupRules(self.config, self.health)
        self.loop = self.make_loop(GroupGovernor("web", rules))

    def make_loop(self, governor: GroupGovernor) -> TrafficLoop:
        ports = Ports(
            record=lambda _: self.recorder,
            signals=self.eyes,
            nodes=Machines(self.eyes),
            prober=self.eyes,
            events=self.eyes,
            orders=lambda: self.orders,
        )
        loop = TrafficLoop(self.plane, [self.group(governor)], ports, paced=self.paced)
        loop.start(self.now_ms)
        return loop

    def group(self, governor: GroupGovernor) -> Group:
        ports = range(9001, 9001 + len(self.backends))
        members = zip(self.backends, ports, strict=True)
        backends = tuple(Backend(name, "127.0.0.1", port) for name, port in members)
        return Group(RouteGroup("web", "127.0.0.1", 9000, Proto.TCP, backends), governor)

    @property
    def governor(self) -> GroupGovernor:
        return self.loop.groups["web"].governor

    def tick(self, *, elapsed_ms: int = TICK_MS) -> TickRound:
        """Clients send, time passes, the agent ticks."""
        self.serve()
        self.now_ms += elapsed_ms
        return self.loop.tick(self.now_ms)

    def ticks(self, seconds: float) -> list[TickRound]:
        return [self.tick() for _ in range(round(seconds * 1000 / TICK_MS))]

    def serve(self) -> None:
        for _ in range(self.per_tick):
            verdict = self.plane.route("web")
            if verdict.backend is None:
                self.refused += 1
                continue
            self.sent[verdict.backend] = self.sent.get(verdict.backend, 0) + 1
            self._answer(verdict.backend)
        for name in self.backends:
            self.plane.waiting("web", name, 0)
        if self.answer_probes:
            self._answer_probes()

    def _answer(self, name: str) -> None:
        backend = self.backends[name]
        if not backend.reachable:
            self.plane.connect_failed("web", name)
            return
        backend.served += 1
        failed = backend.error_every and backend.served % backend.error_every == 0
        self.plane.done("web", name, latency_ms=backend.latency_ms, ok=not failed)

    def _answer_probes(self) -> None:
        asked, self.eyes.asked = self.eyes.asked, []
        for group, name in asked:
            backend = self.backends[name]
            ok = backend.reachable and backend.error_every != 1
            latency = backend.latency_ms if ok else None
            self.eyes.answers.append(Probed(group, name, ok, latency))
