"""What scenarios in virtual and in real time share, and the simulated clients and backends."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import exp, log
from statistics import NormalDist
from typing import Any

from fairlead.dataplane.memory import MemoryDataplane
from fairlead.schema.traffic_scenario import (
    EventDocument,
    LoadDocument,
    SimBackendDocument,
    TrafficScenarioDocument,
    scenario_config,
)
from fairlead.sim.clock import Entropy, Stream, Turn, VirtualClock
from fairlead.sim.record import SimEvent
from fairlead.sim.traffic.result import GROUP, Answer, AnswerKind, TrafficResult

MEMORY_BYTES = 16 * 2**30
_NORMAL, _WORDS = NormalDist(), 2**32
_LOOK_AGAIN_MS = 100


def follow(event: EventDocument, target: object, *names: str) -> None:
    """Set what the event sets, and leave the rest as it is."""
    for name in names:
        if (value := getattr(event, name)) is not None:
            setattr(target, name, value)


class BackendModel:
    """How long a backend works on a request and whether it fails, as the events set it."""

    def __init__(self, spec: SimBackendDocument, chance: Stream) -> None:
        self.spec, self._chance = spec, chance
        self.latency_ms, self.latency_factor, self.error_rate = spec.latency_ms, 1.0, 0.0

    def change(self, event: EventDocument) -> None:
        follow(event, self, "latency_ms", "latency_factor", "error_rate")

    def draw(self) -> tuple[float, bool]:
        """Milliseconds of work, lognormal, and whether the request fails."""
        fails = self._chance.chance(self.error_rate)
        at = (self._chance.below(_WORDS) + 0.5) / _WORDS
        median_ms = self.latency_ms * self.latency_factor
        return median_ms * exp(self.spec.sigma * _NORMAL.inv_cdf(at)), fails


class ClientRetries:
    """Which attempts a client repeats, and after how long."""

    def __init__(self, load: LoadDocument, entropy: Entropy) -> None:
        self.repeat = 0.0  # probability that a request is sent again although it succeeded
        self._load, self._chance = load, entropy.stream("retries")

    def pause_ms(self, kind: AnswerKind, retry: int) -> int | None:
        """The pause before the next attempt; None: there is none."""
        load, succeeded = self._load, kind is AnswerKind.OK
        if self._chance.chance(self.repeat) if succeeded else retry < load.retries:
            return load.retry_after_ms // 2 + self._chance.below(load.retry_after_ms + 1)
        return None


def transition_text(what: str, backend: str | None, before: object, after: object) -> str:
    if what == "agent started":
        return "the agent has started"
    if what == "isolation":
        return f"{backend} is isolated: {after}" if after else f"{backend} is back in service"
    if what == "failsafe":
        return f"the dataplane went from {before} to {after}"
    return f"admission goes from {before} to {after}"


class HostLoad:
    """Stalls and memory of the machine under the backends, as the scenario's events set them."""

    def __init__(self, clock_ms: Callable[[], float]) -> None:
        self.stalled_us, self.memory_used = 0, 0.3
        self.stall, self.memory_per_s = 0.0, 0.0
        self._clock_ms, self._at_ms = clock_ms, clock_ms()

    def advance(self) -> None:
        now_ms = self._clock_ms()
        elapsed_ms, self._at_ms = now_ms - self._at_ms, now_ms
        self.stalled_us += round(elapsed_ms * 1000 * self.stall)
        grown = self.memory_used + self.memory_per_s * elapsed_ms / 1000
        self.memory_used = min(1.0, max(0.0, grown))

    def change(self, event: EventDocument) -> None:
        self.advance()
        follow(event, self, "stall", "memory_used", "memory_per_s")


class ScenarioRun(ABC):
    """One scenario under one seed: what happens, in virtual and in real time alike."""

    backends: Mapping[str, BackendModel]
    retries: ClientRetries
    host: HostLoad

    def __init__(self, scenario: TrafficScenarioDocument, seed: int | None) -> None:
        self.scenario, self.config = scenario, scenario_config(scenario)
        self.seed = scenario.seed if seed is None else seed
        self.events: list[SimEvent] = []
        self._deaths: list[tuple[float, float]] = []

    @abstractmethod
    def elapsed_ms(self) -> float:
        """Since the scenario began."""

    @abstractmethod
    def change_backend(self, name: str, event: EventDocument) -> None:
        """What an event does to a backend beside its work."""

    @abstractmethod
    def kill_agent(self, dead_ms: int) -> None:
        """End the agent as a crash would."""

    @abstractmethod
    def return_agent(self) -> None:
        """Start it again, from what it kept."""

    @abstractmethod
    def reconfigure(self) -> None:
        """A backend joined or left."""

    def plan(self) -> list[tuple[float, Callable[[], None]]]:
        """What happens, and after how many seconds, in order."""
        actions: list[tuple[float, Callable[[], None]]] = []
        for event in self.scenario.events:
            actions.append((event.at_s, partial(self.apply, event)))
            if event.agent_dead_s is not None:
                actions.append((event.at_s + event.agent_dead_s, self.return_agent))
        for spec in self.scenario.backends:
            times = (spec.joins_s, spec.leaves_s)
            actions += [(at_s, self.reconfigure) for at_s in times if at_s]
        return sorted(actions, key=lambda action: action[0])

    def apply(self, event: EventDocument) -> None:
        if event.title:
            self.log(event.title)
        for name in self.backends if event.backend is None else [event.backend]:
            self.backends[name].change(event)
            self.change_backend(name, event)
        follow(event, self.retries, "repeat")
        if event.agent_dead_s is not None:
            dead_ms = round(event.agent_dead_s * 1000)
            self.kill_agent(dead_ms)
            self._deaths.append((self.elapsed_ms(), self.elapsed_ms() + dead_ms))
            self.log("the agent is killed")
        self.host.change(event)

    def log(self, text: str) -> None:
        self.events.append(SimEvent(self.elapsed_ms(), "event", text))

    def result(self, **found: Any) -> TrafficResult:
        known = (self.scenario, self.seed, self.config)
        return TrafficResult(*known, deaths=self._deaths, **found)


@dataclass(slots=True)
class SimCall:
    """One request on its way through a backend."""

    began_ms: int
    done: Callable[["SimCall", AnswerKind], None]
    ended: bool = False  # answered, or given up by its client


class SimBackend(BackendModel):
    """Serves calls in virtual time."""

    def __init__(self, spec: SimBackendDocument, clock: VirtualClock, chance: Stream) -> None:
        super().__init__(spec, chance)
        self.reachable, self.retries = True, 0
        """Retries: requests that were repetitions, as the application counts them."""
        self.false_retries_per_s = 0
        """A lie: it reports so many more, which never were."""
        self._false_retries, self._asked_ms = 0, 0
        self._clock, self._busy = clock, 0
        self.line: deque[SimCall] = deque()  # those that wait

    @property
    def now_ms(self) -> int:
        return self._clock.now_ms

    def report_retries(self) -> int:
        """What it says when it is asked."""
        elapsed_ms, self._asked_ms = self.now_ms - self._asked_ms, self.now_ms
        self._false_retries += self.false_retries_per_s * elapsed_ms // 1000
        return self.retries + self._false_retries

    def take(self, call: SimCall) -> None:
        if self._busy < self.spec.concurrency:
            self._serve(call)
        else:
            self.line.append(call)

    def give_up(self, call: SimCall) -> None:
        """Its client does not wait any longer; what is being worked on is worked on in vain."""
        call.ended = True
        if call in self.line:
            self.line.remove(call)

    def _serve(self, call: SimCall) -> None:
        self._busy += 1
        drawn_ms, failed = self.draw()

        def finish() -> None:
            self._busy -= 1
            if not call.ended:
                call.ended = True
                call.done(call, AnswerKind.ERROR if failed else AnswerKind.OK)
            if self.line and self._busy < self.spec.concurrency:
                self._serve(self.line.popleft())

        self._clock.at(self.now_ms + max(1, round(drawn_ms)), Turn.SCENARIO, finish)


def gap_s(chance: Stream, per_s: float) -> float:
    """The time to the next arrival of a Poisson process."""
    return -log((chance.below(_WORDS) + 0.5) / _WORDS) / per_s


class SimClients:
    """All clients of the group: a Poisson stream of first attempts, and their retries."""

    def __init__(
        self,
        load: LoadDocument,
        clock: VirtualClock,
        plane: MemoryDataplane,
        backends: dict[str, SimBackend],
        entropy: Entropy,
    ) -> None:
        self.answers: list[Answer] = []
        self.load_factor = 1.0
        self.retries = ClientRetries(load, entropy)
        self.members: frozenset[str] = frozenset()  # backends that the group has now
        self._load, self._clock, self._plane, self._backends = load, clock, plane, backends
        self._arrivals = entropy.stream("arrivals")
        self._next_us = 0
        self._open: dict[int, Answer] = {}  # what is under way, by the identity of its call

    def stop(self) -> None:
        """The run is over: what is under way stays open."""
        self.answers += self._open.values()
        self._open.clear()

    def start(self) -> None:
        """Send the first one after the first gap, and so on for ever."""
        per_s = self._load.per_s * self.load_factor
        if per_s <= 0:
            self._next_us = (self._clock.now_ms + _LOOK_AGAIN_MS) * 1000
            self._clock.at(self._next_us // 1000, Turn.SCENARIO, self.start)
            return
        self._next_us += round(gap_s(self._arrivals, per_s) * 1_000_000)
        at_ms = max(self._clock.now_ms, self._next_us // 1000)
        self._clock.at(at_ms, Turn.SCENARIO, self._arrive)

    def _arrive(self) -> None:
        self._attempt(0)
        self.start()

    def _attempt(self, retry: int) -> None:
        began_ms, verdict = self._clock.now_ms, self._plane.route(GROUP)
        name = verdict.backend
        if name is None:
            self._answer(began_ms, AnswerKind(str(verdict.refused)), None, retry)
            return
        backend = self._backends[name]
        backend.retries += retry > 0
        if not backend.reachable:
            self._report(name, lambda: self._plane.connect_failed(GROUP, name))
            self._answer(began_ms, AnswerKind.UNREACHABLE, name, retry)
            return
        self._call(name, backend, began_ms, retry)

    def _call(self, name: str, backend: SimBackend, began_ms: int, retry: int) -> None:
        def done(call: SimCall, outcome: AnswerKind) -> None:
            del self._open[id(call)]
            took_ms, ok = float(self._clock.now_ms - began_ms), outcome is AnswerKind.OK
            self._report(name, lambda: self._plane.done(GROUP, name, latency_ms=took_ms, ok=ok))
            self._answer(began_ms, outcome, name, retry)

        call = SimCall(began_ms, done)

        def time_out() -> None:
            if not call.ended:
                backend.give_up(call)
                done(call, AnswerKind.TIMEOUT)

        self._open[id(call)] = Answer(began_ms, AnswerKind.OPEN, 0, name, retry)
        backend.take(call)
        self._report(name, lambda: None)
        self._clock.at(began_ms + self._load.timeout_ms, Turn.SCENARIO, time_out)

    def _report(self, name: str, what: Callable[[], None]) -> None:
        """Tell the dataplane what became of a request, unless its backend left meanwhile."""
        if name in self.members:
            what()
            self._plane.waiting(GROUP, name, len(self._backends[name].line))

    def _answer(self, began_ms: int, outcome: AnswerKind, backend: str | None, retry: int) -> None:
        pause_ms, took_ms = self.retries.pause_ms(outcome, retry), self._clock.now_ms - began_ms
        final = pause_ms is None
        self.answers.append(Answer(began_ms, outcome, took_ms, backend, retry, final=final))
        if pause_ms is not None:
            at_ms = self._clock.now_ms + pause_ms
            self._clock.at(at_ms, Turn.SCENARIO, lambda: self._attempt(retry + 1))
