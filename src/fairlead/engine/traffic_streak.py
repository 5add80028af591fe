"""A backend that answers with hardly anything but errors, noticed within a tick or two.

Pressure needs seconds to make an outlier of it, and meanwhile a quarter of a group of four fails.
An application that is broken altogether shows it in its first answers.
"""

from collections import deque

SPAN_MS = 600
ERRORS_MIN, TIMES_SUCCESSES = 4, 4


class Streak:
    """The last moments of one backend."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, int, int]] = deque()

    def advance(self, clock_ms: int, successes: int | None, errors: int | None) -> bool:
        """Counters so far; whether it is failing now. What nobody counts is no failure."""
        if successes is None or errors is None:
            self._seen.clear()
            return False
        if self._seen and (successes < self._seen[-1][1] or errors < self._seen[-1][2]):
            self._seen.clear()  # another process counts
        self._seen.append((clock_ms, successes, errors))
        while self._seen[0][0] < clock_ms - SPAN_MS:
            self._seen.popleft()
        _, good, bad = self._seen[0]
        failed, served = errors - bad, successes - good
        return failed >= ERRORS_MIN and failed > TIMES_SUCCESSES * served
