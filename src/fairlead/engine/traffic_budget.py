"""The budget of a soft door where the operator set none: what the group has shown it can serve.

A fixed default is wrong for almost everybody: 100 a second would starve a group that serves 1000.
So the budget starts below the most that was served lately, is cut once per window while the trigger
lasts (a signal over 5 s shows no effect before that), and grows a little every calm second. While
more comes than can be served it saws along the capacity, and the door stays soft; when less comes
the trigger ends, and the door opens by its own rules.

The budget is a parameter of the tick (`bucket_rate`, `bucket_burst`), so the record holds it.
"""

from collections import deque
from dataclasses import replace

from fairlead.core.traffic import AdmissionMode, Config

LOOK_MS, KEEP_MS = 1_000, 10_000
CUT, GROW_PER_S = 0.85, 0.07
FLOOR = 0.25
"""Of the most that was served before the door closed: if less does not help either, it is not the
load, and less than that is `hard`'s business."""
BURST_S, STEP = 0.1, 0.1
LONG = 60
"""How many stretches of `KEEP_MS` are remembered: ten minutes."""
IDLE = 0.3
"""Below this part of the long memory the last seconds say how little came, not how much can."""


class Budget:
    """Watches what is served, and follows the door."""

    def __init__(self, config: Config, *, window_ms: int) -> None:
        self.rate = config.bucket_rate
        """Admissions per second that a soft door is to let in."""
        self._least, self._window_ms = config.drip_rate_min, window_ms
        self._served: deque[tuple[int, int]] = deque()
        self._recent: deque[tuple[int, float]] = deque()
        self._long: deque[tuple[int, float]] = deque(maxlen=LONG)
        self._soft, self._cut_ms, self._at_ms = False, 0, 0
        self._before = 0.0
        """The most that was served when the door was open: later it is what we let in."""

    def advance(
        self, clock_ms: int, served: int | None, *, mode: AdmissionMode, triggered: bool
    ) -> None:
        """One tick: successes so far, and what the last tick made of the door."""
        elapsed_s = (clock_ms - self._at_ms) / 1000
        self._at_ms = clock_ms
        self._look(clock_ms, served)
        best = self.best()
        if mode is AdmissionMode.NORMAL:
            self._soft = False
            # In steps: every change is a flip of the plane and a line in the record.
            self._before = best or 0.0
            if best is not None and abs(best - self.rate) > STEP * self.rate:
                self.rate = max(self._least, best)
        elif mode is AdmissionMode.HARD:
            return  # its drip is its own; the budget waits for it to be over
        elif not self._soft:
            self._soft = True
            self._cut(clock_ms, self._least)
        elif triggered and clock_ms - self._cut_ms >= self._window_ms:
            self._cut(clock_ms, FLOOR * self._before)
        elif not triggered:
            self.rate *= 1 + GROW_PER_S * elapsed_s

    def laid_over(self, config: Config) -> Config:
        """The parameters with this budget in place of the default one."""
        rate = round(self.rate, 1)
        return replace(config, bucket_rate=max(rate, 0.1), bucket_burst=max(1.0, rate * BURST_S))

    def best(self) -> float | None:
        """The most that was served in a second lately; None where nobody can tell."""
        recent = max((each for _, each in self._recent), default=0.0)
        ever = max((each for _, each in self._long), default=0.0)
        return max(recent, ever if recent < IDLE * ever else 0.0) or None

    def now(self) -> float | None:
        """What was served in the last second; None where nobody can tell."""
        return self._recent[-1][1] if self._recent else None

    def _cut(self, clock_ms: int, floor: float) -> None:
        self._cut_ms = clock_ms
        self.rate = max(self._least, floor, CUT * self.rate)

    def _look(self, clock_ms: int, served: int | None) -> None:
        """How much was served in the last second, where somebody can tell."""
        while self._recent and self._recent[0][0] <= clock_ms - KEEP_MS:
            self._recent.popleft()
        if served is None or (self._served and served < self._served[-1][1]):
            self._served.clear()
        if served is None:
            return
        self._served.append((clock_ms, served))
        while len(self._served) > 2 and self._served[1][0] <= clock_ms - LOOK_MS:
            self._served.popleft()
        first_ms, first = self._served[0]
        if clock_ms - first_ms < LOOK_MS:
            return
        per_s = (served - first) * 1000 / (clock_ms - first_ms)
        self._recent.append((clock_ms, per_s))
        stretch = clock_ms // KEEP_MS
        if self._long and self._long[-1][0] == stretch:
            per_s = max(per_s, self._long.pop()[1])
        self._long.append((stretch, per_s))
