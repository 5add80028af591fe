"""The budget of a soft door where the operator set none: what the group has shown it can serve.

A fixed default is wrong for almost everybody: 100 a second would starve a group that serves 1000.
So the budget starts below what was served last, is cut once per window while the trigger lasts (a
signal over 5 s shows no effect before that), and grows a little every calm second. While more comes
than can be served it saws along the capacity, and the door stays soft; when less comes the trigger
ends, and the door opens by its own rules.

The budget is a parameter of the tick (`bucket_rate`, `bucket_burst`), so the record holds it.
"""

from collections import deque
from dataclasses import replace

from fairlead.core.traffic import Config, Mode

LOOK_MS, KEEP_MS = 1_000, 10_000
CUT, GROW_PER_S = 0.85, 0.07
FLOOR = 0.1
"""Of the most that was served lately: less is `hard`'s business."""
BURST_S = 0.1


class Budget:
    """Watches what is served, and follows the door."""

    def __init__(self, config: Config, *, window_ms: int) -> None:
        self._rate, self._least = config.bucket_rate, config.drip_rate_min
        self._window_ms = window_ms
        self._served: deque[tuple[int, int]] = deque()
        self._best: deque[tuple[int, float]] = deque()
        self._soft, self._cut_ms, self._at_ms = False, 0, 0

    def advance(
        self, clock_ms: int, served: int | None, *, mode: Mode, triggered: bool
    ) -> None:  # fmt: skip
        """One tick: successes so far, and what the last tick made of the door."""
        elapsed_s = (clock_ms - self._at_ms) / 1000
        self._at_ms = clock_ms
        best = self._best_per_s(clock_ms, served)
        if mode is Mode.NORMAL:
            self._soft = False
            if best is not None:
                self._rate = max(self._least, best)
            return
        if not self._soft:
            self._soft = True
            self._cut(clock_ms, self._least)
        elif triggered and clock_ms - self._cut_ms >= self._window_ms:
            self._cut(clock_ms, 0.0 if best is None else FLOOR * best)
        elif not triggered:
            self._rate *= 1 + GROW_PER_S * elapsed_s

    def _cut(self, clock_ms: int, floor: float) -> None:
        self._cut_ms = clock_ms
        self._rate = max(self._least, floor, CUT * self._rate)

    def laid_over(self, config: Config) -> Config:
        """The parameters with this budget in place of the default one."""
        rate = round(self._rate, 1)
        return replace(config, bucket_rate=max(rate, 0.1), bucket_burst=max(1.0, rate * BURST_S))

    def _best_per_s(self, clock_ms: int, served: int | None) -> float | None:
        """The most that was served in a second of the last ten; None where nobody can tell."""
        if served is None:
            self._served.clear()
            return max((rate for _, rate in self._best), default=None)
        if self._served and served < self._served[-1][1]:
            self._served.clear()
        self._served.append((clock_ms, served))
        while len(self._served) > 2 and self._served[1][0] <= clock_ms - LOOK_MS:
            self._served.popleft()
        first_ms, first = self._served[0]
        if clock_ms - first_ms >= LOOK_MS:
            self._best.append((clock_ms, (served - first) * 1000 / (clock_ms - first_ms)))
        while self._best and self._best[0][0] <= clock_ms - KEEP_MS:
            self._best.popleft()
        return max((rate for _, rate in self._best), default=None)
