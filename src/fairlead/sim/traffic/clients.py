"""Simulated clients: they arrive whether or not anybody answers, wait so long, and may repeat."""

from collections.abc import Callable

from fairlead.dataplane.memory import MemoryDataplane
from fairlead.ports.dataplane import AdmissionMode
from fairlead.schema.traffic_scenario import LoadDocument
from fairlead.sim.clock import Turn, VirtualClock
from fairlead.sim.entropy import Entropy
from fairlead.sim.traffic.service import Call, SimBackend, gap_s
from fairlead.sim.traffic.story import GROUP, Answer, Outcome

_LOOK_AGAIN_MS = 100


class Clients:
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
        self.repeat = 0.0
        """How likely what was answered well is asked again, for no good reason."""
        self.members: frozenset[str] = frozenset()
        """Backends that the group has now."""
        self._load, self._clock, self._plane, self._backends = load, clock, plane, backends
        self._arrivals, self._pauses = entropy.stream("arrivals"), entropy.stream("retries")
        self._next_us = 0
        self._open: dict[int, Answer] = {}
        """What is under way, by the identity of its call."""

    def stop(self) -> None:
        """The play is over: what is under way stays open."""
        self.answers += self._open.values()
        self._open.clear()

    def start(self) -> None:
        """Send the first one after the first gap, and so on for ever."""
        per_s = self._load.per_s * self.factor
        if per_s <= 0:
            self._next_us = (self._clock.now_ms + _LOOK_AGAIN_MS) * 1000
            self._clock.at(self._next_us // 1000, Turn.WORLD, self.start)
            return
        self._next_us += round(gap_s(self._arrivals, per_s) * 1_000_000)
        at_ms = max(self._clock.now_ms, self._next_us // 1000)
        self._clock.at(at_ms, Turn.WORLD, self._arrive)

    def _arrive(self) -> None:
        self._attempt(0)
        self.start()

    def _attempt(self, retry: int) -> None:
        began_ms, verdict = self._clock.now_ms, self._plane.route(GROUP)
        name = verdict.backend
        if name is None:
            outcome = Outcome.SOFT if verdict.refused == AdmissionMode.SOFT else Outcome.HARD
            self._answer(began_ms, outcome, None, retry)
            return
        backend = self._backends[name]
        backend.retries += retry > 0
        if not backend.reachable:
            self._tell_plane(name, lambda: self._plane.connect_failed(GROUP, name))
            self._answer(began_ms, Outcome.UNREACHABLE, name, retry)
            return
        self._call(name, backend, began_ms, retry)

    def _call(self, name: str, backend: SimBackend, began_ms: int, retry: int) -> None:
        def done(call: Call, outcome: Outcome) -> None:
            del self._open[id(call)]
            took_ms, ok = float(self._clock.now_ms - began_ms), outcome is Outcome.OK
            self._tell_plane(name, lambda: self._plane.done(GROUP, name, latency_ms=took_ms, ok=ok))
            self._answer(began_ms, outcome, name, retry)

        call = Call(began_ms, done)

        def impatient() -> None:
            if not call.ended:
                backend.give_up(call)
                done(call, Outcome.TIMEOUT)

        self._open[id(call)] = Answer(began_ms, Outcome.OPEN, 0, name, retry)
        backend.take(call)
        self._tell_plane(name, lambda: None)
        self._clock.at(began_ms + self._load.timeout_ms, Turn.WORLD, impatient)

    def _tell_plane(self, name: str, what: Callable[[], None]) -> None:
        """What became of a request, and how many wait. A backend that left may still answer."""
        if name in self.members:
            what()
            self._plane.waiting(GROUP, name, self._backends[name].waiting)

    def _answer(self, began_ms: int, outcome: Outcome, backend: str | None, retry: int) -> None:
        load = self._load
        well = outcome is Outcome.OK
        again = self._pauses.chance(self.repeat) if well else retry < load.retries
        took_ms = self._clock.now_ms - began_ms
        self.answers.append(Answer(began_ms, outcome, took_ms, backend, retry, final=not again))
        if again:
            pause_ms = load.retry_after_ms // 2 + self._pauses.below(load.retry_after_ms + 1)
            at_ms = self._clock.now_ms + pause_ms
            self._clock.at(at_ms, Turn.WORLD, lambda: self._attempt(retry + 1))
