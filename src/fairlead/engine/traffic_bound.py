"""How much may be inside a group where the operator set no `inside_max`: what it can do in time.

By Little's law as many are inside as come in a second, times the seconds that each stays. So a
group that can serve `best` a second keeps its latency near `PART` of the reference with
`PART * best * l_ref` inside. What comes beyond that would only wait, and make everybody behind it
late: it is told to try again at once, within the same tick in which it came, while the door's own
signals need seconds. A budget per second cannot do this: with the smallest error of it a queue
grows without end.

A bound must never be what keeps a healthy group small. It is never below three times what is
usually inside, nor below a few for each backend, and it needs to have seen the group serve. And it
always has room for half again as long a stay as is usual: as long as requests do not stay longer
when more come, what is served grows with the bound, and the bound with what is served, whatever
the reference says. Only where they queue does that end. Where clients keep their connections and a
plane counts nothing else, there is none.

The bound is a parameter of the tick (`inside_max`), which does not use it: so the record holds what
the plane was told.
"""

from collections import deque
from math import ceil

from fairlead.core.traffic.health import median

PART = 0.6
"""Of the reference latency: the rest is room for the slower requests."""
TIMES_USUAL, LEAST_EACH = 3, 8
LEARN_MS, SAMPLES = 2_000, 300
"""A minute of ticks. Three looks at a small backend are luck: with 7 of its usual 4 inside, the
bound came out half again too high, and a third of what it served was late (`monopoly`)."""
TIMES_STAY, BUSY = 1.5, 0.5
"""Of the usual stay; and of the bound: with more than that inside nothing is usual. Their product
is below 1, or an overload would slowly become what is usual."""
IDLE_MS = 5_000
"""What was idle all this time is idle: the plane and the application are not asked at once."""
STEP = 0.1
"""In steps: every change is a flip of the plane and a line in the record."""


class InsideBound:
    """Follows what a group can serve, and what is usual for it."""

    def __init__(self) -> None:
        self.value: int | None = None
        self._samples: deque[tuple[int, float]] = deque(maxlen=SAMPLES)
        """What was inside, and what was served in the second before."""
        self._since_ms: int | None = None
        self._idle: deque[tuple[int, int]] = deque()
        self._busy: float | None = None
        """With more at work than this, it says nothing about what is usual."""

    def advance(
        self,
        clock_ms: int,
        *,
        inside: int | None,
        idle: int,
        best: float | None,
        per_s: float | None,
        l_ref_ms: float,
        serving: int,
    ) -> int | None:
        """One tick. `inside` is what is being worked on, `idle` what the plane counts besides;
        `per_s` what is served now, `best` what was served lately.

        Returns the bound in the plane's own count, None as long as nobody can tell.
        """
        if inside is None or best is None:
            return self.value
        if self._busy is None or inside <= self._busy:
            self._samples.append((inside, per_s or 0.0))
        if self._since_ms is None:
            self._since_ms = clock_ms
        self._idle.append((clock_ms, idle))
        while self._idle[0][0] <= clock_ms - IDLE_MS:
            self._idle.popleft()
        if clock_ms - self._since_ms < LEARN_MS:
            return self.value
        usual = ceil(TIMES_USUAL * (median([each for each, _ in self._samples]) or 0))
        stay_s = max(PART * l_ref_ms / 1000, TIMES_STAY * self._usual_stay_s())
        most = max(ceil(best * stay_s), usual, LEAST_EACH * serving)
        self._busy = BUSY * most
        resting = min(each for _, each in self._idle)
        if 2 * resting > most:  # kept connections: how many there are says nothing about the load
            self.value = None
            return None
        wanted = most + resting
        if self.value is None or abs(wanted - self.value) > STEP * self.value:
            self.value = wanted
        return self.value

    def _usual_stay_s(self) -> float:
        """By Little's law over all samples; 0 where nothing was served."""
        served = sum(per_s for _, per_s in self._samples)
        return sum(inside for inside, _ in self._samples) / served if served else 0.0
