"""How much CPU a paced workload wants at a time: steady, on and off, rare spikes, a ramp."""

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Profile:
    """Cores wanted over time. `low` and `high` in cores, times in seconds from the start.

    steady: `high`. bursty: `on_s` at high, `off_s` at low, shifted by `phase_s`. spikes: `low`
    with spikes of `on_s` at high, `off_s` apart on average. ramp: from low to high and back, each
    way in `on_s`.
    """

    shape: str
    high: float
    low: float = 0.0
    on_s: float = 1.0
    off_s: float = 0.0
    phase_s: float = 0.0
    seed: int = 0

    def cores(self, at_s: float) -> float:
        match self.shape:
            case "steady":
                return self.high
            case "bursty":
                on = (at_s + self.phase_s) % (self.on_s + self.off_s) < self.on_s
                return self.high if on else self.low
            case "spikes":
                on = any(begin <= at_s < begin + self.on_s for begin in self._spikes(at_s))
                return self.high if on else self.low
            case "ramp":
                turn = ((at_s + self.phase_s) / self.on_s) % 2
                return self.low + (self.high - self.low) * min(turn, 2 - turn)
        raise ValueError(f"no shape is called {self.shape!r}")

    def _spikes(self, until_s: float) -> list[float]:
        """Begins of all spikes up to a moment: memoryless gaps, the same for every arm."""
        chance, begins, at_s = random.Random(self.seed), [], 0.0
        while True:
            at_s += 1.0 + chance.expovariate(1 / (self.off_s - 1.0)) if begins else self.phase_s
            if at_s > until_s:
                return begins
            begins.append(at_s)
            at_s += self.on_s

    def mean(self, over_s: float) -> float:
        steps = int(over_s * 50)
        return sum(self.cores(step / 50) for step in range(steps)) / steps
