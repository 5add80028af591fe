"""A simulated node and a simulated service for the demo: the real loops, at the pace of a caller.

`advance` lets time pass. What the governors decide is read from their last turn and round, as an
agent on a machine would report it. Each story round begins with a fresh one: a record that only
grows must not outlive a demo of days.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import NamedTuple

from fairlead.core.cpu import CpuMode, NodePlan, Policy
from fairlead.core.traffic import Cause
from fairlead.engine.traffic import TickRound, TrafficLoop
from fairlead.ports.traffic import Transition
from fairlead.schema.scenario import (
    Constant,
    GovernorDocument,
    ScenarioDocument,
    SimNodeDocument,
    SimPodDocument,
    Sine,
    Spikes,
)
from fairlead.schema.traffic_scenario import (
    EventDocument,
    LoadDocument,
    SimBackendDocument,
    TrafficScenarioDocument,
)
from fairlead.sim.agent import SimAgent
from fairlead.sim.simulation import Simulation
from fairlead.sim.traffic.result import GROUP
from fairlead.sim.traffic.virtual import VirtualRun

OnRound = Callable[[TickRound, TrafficLoop], None]
DAY_S = 86_400
SICK = "d"
_QUIET = (
    SimPodDocument(
        "shop",
        800,
        [Sine(low_millicores=500, high_millicores=1100, period_s=20)],
        limit_millicores=4000,
    ),
    SimPodDocument(
        "search",
        600,
        [Constant(millicores=450), Spikes(millicores=500, per_minute=6, length_ms=2000)],
        limit_millicores=3000,
    ),
    SimPodDocument(
        "db",
        1200,
        [Sine(low_millicores=700, high_millicores=1300, period_s=30)],
        limit_millicores=3000,
    ),
    SimPodDocument("cache", 300, [Constant(millicores=200)], limit_millicores=1000),
)
_SPIKE = (
    SimPodDocument("batch-a", 500, [Constant(millicores=4000)], limit_millicores=5000),
    SimPodDocument("batch-b", 500, [Constant(millicores=3500)], limit_millicores=5000),
)
_PROMISES = (
    SimPodDocument("train-a", 2500, [Constant(millicores=4000)], limit_millicores=4000),
    SimPodDocument("train-b", 2500, [Constant(millicores=3000)], limit_millicores=4000),
)


class Crisis(NamedTuple):
    """A change for the worse: the number of the decision that found it, and words."""

    decision: int | None
    text: str


class LiveNode:
    """A node of eight cores with four quiet pods."""

    def __init__(self, seed: int) -> None:
        self._simulation = Simulation(
            ScenarioDocument(
                name="demo-node",
                duration_s=DAY_S,
                node=SimNodeDocument(8000),
                pods=list(_QUIET),
                governor=GovernorDocument(sample_ms=500, clear_ms=2000),
            ),
            seed=seed,
            policy=Policy.NASH,  # it has a price, which the page shows
        )
        self._heard, self._guests = 0, tuple[SimPodDocument, ...]()

    @property
    def agent(self) -> SimAgent:
        return self._simulation.agent

    def advance(self, step_ms: int) -> list[Crisis]:
        """Let time pass; changes to a worse mode."""
        simulation = self._simulation
        simulation.advance(step_ms)
        fresh = simulation.record.events[self._heard :]
        self._heard = len(simulation.record.events)
        bad = {f"mode.{mode.value}" for mode in CpuMode if mode is not CpuMode.UNCONGESTED}
        turn = simulation.agent.turn
        if turn is None or not any(event.kind in bad for event in fresh):
            return []
        return [Crisis(turn.sequence, _scarce(turn.plan))]

    def congest(self, *, promised: bool) -> None:
        """Pods arrive that use more than there is; or whose requests alone do not fit."""
        self.settle()
        self._guests = _PROMISES if promised else _SPIKE
        for pod in self._guests:
            self._simulation.arrive(pod)

    def settle(self) -> None:
        for pod in self._guests:
            self._simulation.leave(pod)
        self._guests = ()


def _scarce(plan: NodePlan) -> str:
    whole = f"{plan.capacity_millicores / 1000:.1f} cores"
    if plan.mode is CpuMode.OVERLOADED:
        least = f"{plan.total_min / 1000:.1f} of {whole}"
        return f"overloaded: the minimums of its pods are {least}, so even these are scaled down"
    needed = f"{plan.total_need / 1000:.1f} of {whole}"
    return f"congested: its pods need {needed}, so each pod gets its share at one price"


class LiveService:
    """A service of four backends below their capacity; `d` turns sick."""

    def __init__(self, seed: int, folder: Path, on_round: OnRound) -> None:
        backends = [SimBackendDocument(name, 40.0, concurrency=4) for name in "abcd"]
        scenario = TrafficScenarioDocument("demo-service", 3600, backends, LoadDocument(80.0))
        self.run = VirtualRun(scenario, seed, folder)
        self.run.on_round = self._listen
        self._report = on_round
        self._crises: list[Crisis] = []
        self.run.begin()

    def advance(self, step_ms: int) -> list[Crisis]:
        """Let time pass; backends that were ejected meanwhile."""
        run, self._crises = self.run, []
        run.advance(step_ms)
        for kept in (run.ticks, run.clients.answers, run.events):  # a harness reads them at the end
            kept.clear()
        return self._crises

    def sicken(self, *, fails: bool) -> None:
        """One backend answers ten times slower; or at once, and with errors."""
        event = EventDocument(0, backend=SICK, latency_factor=10.0)
        if fails:
            event = EventDocument(0, backend=SICK, latency_ms=1.0, error_rate=1.0)
        self.run.apply(event)

    def heal(self) -> None:
        well = EventDocument(0, backend=SICK, latency_ms=40.0, latency_factor=1.0, error_rate=0.0)
        self.run.apply(well)

    def obey(self, orders: Mapping[str, str]) -> None:
        """Backends that an operator ejects or drains, from the next tick on."""
        self.run.orders = {GROUP: dict(orders)}

    def close(self) -> None:
        self.run.close()

    def _listen(self, round: TickRound) -> None:
        self._report(round, self.run.loop)
        for change in round.transitions:
            # What an operator ejects is no crisis.
            if change.what == "isolation" and change.after not in (None, Cause.OPERATOR):
                number = round.groups[change.group].sequence
                self._crises.append(Crisis(number, _ejected(round, change)))


def _ejected(round: TickRound, change: Transition) -> str:
    """In numbers of the snapshot that led to it."""
    made = round.groups[change.group]
    backends = made.snapshot.backends
    sick = next(backend for backend in backends if backend.id == change.backend)
    others = [made.plan.pressure[b.id].total for b in backends if b is not sick]
    pressure = made.plan.pressure[sick.id].total
    facts = [f"pressure {pressure:.1f}, the others {median(others):.1f}"]
    facts += [f"{sick.error_rate * 100:.0f} % errors"] if sick.error_rate else []
    return (
        f"backend {sick.id} is ejected as {change.after} ({'; '.join(facts)}) and its share goes "
        "to the others"
    )
