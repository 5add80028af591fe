"""A simulated backend: so many requests at once, the others wait in line, times are lognormal."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import exp, log
from statistics import NormalDist

from fairlead.schema.traffic_scenario import SimBackendDocument
from fairlead.sim.clock import Turn, VirtualClock
from fairlead.sim.entropy import PARTS, Stream
from fairlead.sim.traffic.story import Outcome

_NORMAL = NormalDist()
_WORDS = 2**32


@dataclass(slots=True)
class Call:
    """One request on its way through a backend."""

    began_ms: int
    done: Callable[["Call", Outcome], None]
    ended: bool = False
    """Answered, or given up by its client."""


class SimBackend:
    """Serves calls in virtual time."""

    def __init__(self, spec: SimBackendDocument, clock: VirtualClock, chance: Stream) -> None:
        self.spec = spec
        self.latency_ms = spec.latency_ms
        self.factor = 1.0
        self.error_rate = 0.0
        self.reachable = True
        self.retries = 0
        """Requests that were repetitions, as the application counts them."""
        self._clock, self._chance = clock, chance
        self._line: deque[Call] = deque()
        self._busy = 0

    @property
    def now_ms(self) -> int:
        """Of its world."""
        return self._clock.now_ms

    @property
    def waiting(self) -> int:
        """In line."""
        return len(self._line)

    def take(self, call: Call) -> None:
        """A request arrives."""
        if self._busy < self.spec.concurrency:
            self._serve(call)
        else:
            self._line.append(call)

    def give_up(self, call: Call) -> None:
        """Its client does not wait any longer; what is being worked on is worked on in vain."""
        call.ended = True
        if call in self._line:
            self._line.remove(call)

    def _serve(self, call: Call) -> None:
        self._busy += 1
        failed = self._chance.below(PARTS) < round(self.error_rate * PARTS)
        took_ms = self.draw_ms()

        def finish() -> None:
            self._busy -= 1
            if not call.ended:
                call.ended = True
                call.done(call, Outcome.ERROR if failed else Outcome.OK)
            if self._line and self._busy < self.spec.concurrency:
                self._serve(self._line.popleft())

        self._clock.at(self._clock.now_ms + took_ms, Turn.WORLD, finish)

    def draw_ms(self) -> int:
        """How long one request takes."""
        median = self.latency_ms * self.factor
        drawn = lognormal(self._chance, median, self.spec.sigma)
        return max(1, round(drawn))


def lognormal(chance: Stream, median: float, sigma: float) -> float:
    """A lognormal draw with this median."""
    at = (chance.below(_WORDS) + 0.5) / _WORDS
    return median * exp(sigma * _NORMAL.inv_cdf(at))


def gap_s(chance: Stream, per_s: float) -> float:
    """The time to the next arrival of a Poisson process."""
    return -log((chance.below(_WORDS) + 0.5) / _WORDS) / per_s
