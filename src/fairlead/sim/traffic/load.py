"""Simulated clients and backends in virtual time: open-loop arrivals, lognormal service times.

SimClients arrive at their own rate whether or not answers come, wait for a limited time, and may
retry. A backend serves so many requests at once; the others wait in line.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import exp, log
from statistics import NormalDist
from typing import Protocol

from fairlead.core.traffic.state import AdmissionMode
from fairlead.dataplane.memory import MemoryDataplane
from fairlead.schema.traffic_scenario import (
    EventDocument,
    LoadDocument,
    SimBackendDocument,
    TrafficScenarioDocument,
)
from fairlead.sim.clock import Entropy, Stream, Turn, VirtualClock
from fairlead.sim.traffic.result import GROUP, Answer, AnswerKind

_NORMAL = NormalDist()
_WORDS = 2**32


MEMORY_BYTES = 16 * 2**30


class Changeable(Protocol):
    """A backend, simulated or real, that events of a scenario make slower or worse."""

    latency_ms: float
    factor: float
    error_rate: float


def change_backend(backend: Changeable, event: EventDocument) -> None:
    if event.latency_ms is not None:
        backend.latency_ms = event.latency_ms
    if event.latency_factor is not None:
        backend.factor = event.latency_factor
    if event.error_rate is not None:
        backend.error_rate = event.error_rate


def backends_at(scenario: TrafficScenarioDocument, now_s: float) -> list[SimBackendDocument]:
    return [
        spec
        for spec in scenario.backends
        if spec.joins_s <= now_s and (spec.leaves_s is None or now_s < spec.leaves_s)
    ]


class Retries:
    """Which attempts a client repeats, and after how long."""

    def __init__(self, load: LoadDocument, entropy: Entropy) -> None:
        self.repeat = 0.0
        """Probability that a request is sent again although it succeeded."""
        self._load, self._chance = load, entropy.stream("retries")

    def pause_ms(self, kind: AnswerKind, retry: int) -> int | None:
        """The pause before the next attempt; None: there is none."""
        load, succeeded = self._load, kind is AnswerKind.OK
        again = self._chance.chance(self.repeat) if succeeded else retry < load.retries
        if not again:
            return None
        return load.retry_after_ms // 2 + self._chance.below(load.retry_after_ms + 1)


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
        self._stall, self._memory_per_s = 0.0, 0.0
        self._clock_ms, self._at_ms = clock_ms, clock_ms()

    def advance(self) -> None:
        now_ms = self._clock_ms()
        elapsed_ms, self._at_ms = now_ms - self._at_ms, now_ms
        self.stalled_us += round(elapsed_ms * 1000 * self._stall)
        grown = self.memory_used + self._memory_per_s * elapsed_ms / 1000
        self.memory_used = min(1.0, max(0.0, grown))

    def change(self, event: EventDocument) -> None:
        self.advance()
        if event.stall is not None:
            self._stall = event.stall
        if event.memory_used is not None:
            self.memory_used = event.memory_used
        if event.memory_per_s is not None:
            self._memory_per_s = event.memory_per_s


@dataclass(slots=True)
class SimCall:
    """One request on its way through a backend."""

    began_ms: int
    done: Callable[["SimCall", AnswerKind], None]
    ended: bool = False
    """Answered, or given up by its client."""


class SimBackend:
    """Serves calls in virtual time."""

    def __init__(self, spec: SimBackendDocument, clock: VirtualClock, chance: Stream) -> None:
        self.spec, self.reachable = spec, True
        self.latency_ms, self.factor, self.error_rate = spec.latency_ms, 1.0, 0.0
        self.retries = 0
        """Requests that were repetitions, as the application counts them."""
        self._clock, self._chance = clock, chance
        self._line: deque[SimCall] = deque()
        self._busy = 0

    @property
    def now_ms(self) -> int:
        return self._clock.now_ms

    @property
    def waiting(self) -> int:
        return len(self._line)

    def take(self, call: SimCall) -> None:
        if self._busy < self.spec.concurrency:
            self._serve(call)
        else:
            self._line.append(call)

    def give_up(self, call: SimCall) -> None:
        """Its client does not wait any longer; what is being worked on is worked on in vain."""
        call.ended = True
        if call in self._line:
            self._line.remove(call)

    def _serve(self, call: SimCall) -> None:
        self._busy += 1
        failed = self._chance.chance(self.error_rate)
        drawn_ms = lognormal(self._chance, self.latency_ms * self.factor, self.spec.sigma)
        took_ms = max(1, round(drawn_ms))

        def finish() -> None:
            self._busy -= 1
            if not call.ended:
                call.ended = True
                call.done(call, AnswerKind.ERROR if failed else AnswerKind.OK)
            if self._line and self._busy < self.spec.concurrency:
                self._serve(self._line.popleft())

        self._clock.at(self._clock.now_ms + took_ms, Turn.SCENARIO, finish)


def lognormal(chance: Stream, median: float, sigma: float) -> float:
    at = (chance.below(_WORDS) + 0.5) / _WORDS
    return median * exp(sigma * _NORMAL.inv_cdf(at))


def gap_s(chance: Stream, per_s: float) -> float:
    """The time to the next arrival of a Poisson process."""
    return -log((chance.below(_WORDS) + 0.5) / _WORDS) / per_s


_LOOK_AGAIN_MS = 100


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
        self.factor = 1.0
        """Of the scenario's load."""
        self.retries = Retries(load, entropy)
        self.members: frozenset[str] = frozenset()
        """Backends that the group has now."""
        self._load, self._clock, self._plane, self._backends = load, clock, plane, backends
        self._arrivals = entropy.stream("arrivals")
        self._next_us = 0
        self._open: dict[int, Answer] = {}
        """What is under way, by the identity of its call."""

    def stop(self) -> None:
        """The run is over: what is under way stays open."""
        self.answers += self._open.values()
        self._open.clear()

    def start(self) -> None:
        """Send the first one after the first gap, and so on for ever."""
        per_s = self._load.per_s * self.factor
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
            outcome = AnswerKind.SOFT if verdict.refused == AdmissionMode.SOFT else AnswerKind.HARD
            self._answer(began_ms, outcome, None, retry)
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
            self._plane.waiting(GROUP, name, self._backends[name].waiting)

    def _answer(self, began_ms: int, outcome: AnswerKind, backend: str | None, retry: int) -> None:
        pause_ms, took_ms = self.retries.pause_ms(outcome, retry), self._clock.now_ms - began_ms
        final = pause_ms is None
        self.answers.append(Answer(began_ms, outcome, took_ms, backend, retry, final=final))
        if pause_ms is not None:
            at_ms = self._clock.now_ms + pause_ms
            self._clock.at(at_ms, Turn.SCENARIO, lambda: self._attempt(retry + 1))
