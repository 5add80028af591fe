"""The latency a plane has seen lately: the p95 of successes over a short window.

Only successes are put in: a backend that fails fast must not look fast.
"""

from collections import deque

WINDOW_MS = 5_000
_SAMPLES_MAX = 4_096  # per backend: enough for 800 successes per second, bounded for more


class Window:
    """Latencies of one backend's successes, the oldest forgotten first."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, float]] = deque(maxlen=_SAMPLES_MAX)

    def add(self, now_ms: int, latency_ms: float) -> None:
        """A success that took so long."""
        self._samples.append((now_ms, latency_ms))

    def p95(self, now_ms: int) -> float | None:
        """The smallest latency that 95 % of the window does not pass; None without successes."""
        while self._samples and now_ms - self._samples[0][0] >= WINDOW_MS:
            self._samples.popleft()
        if not self._samples:
            return None
        ordered = sorted(latency for _, latency in self._samples)
        return ordered[-(-95 * len(ordered) // 100) - 1]
