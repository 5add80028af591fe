"""Q_ref where the operator set none: twice the queue that is usual for this group.

The equations ask for "a typical healthy queue proxy, or a constant like 50". With the constant a
group that usually has three requests in each backend hardly feels a queue of thirty; its latency,
a p95 over 5 s, is felt too late, and near capacity the slots swing from one backend to the next.
In the harness's `slow` (70 % load, one of four gone) goodput within the SLO was 0.71 to 1.00 with
50, depending on the seed, and 1.00 with twice the usual queue.

The usual queue is the median of the last minute, in which the door was open; the reference changes
every ten seconds at most, so that a record is not full of it.
"""

from collections import deque
from collections.abc import Collection

from fairlead.core.traffic import Config, Mode
from fairlead.core.traffic.health import median

SAMPLE_MS, CHANGE_MS = 1_000, 10_000
SAMPLES, SAMPLES_MIN = 60, 10
TIMES_USUAL = 2.0
LEAST = 4.0


class QueueReference:
    """Follows the usual queue of a group's backends."""

    def __init__(self, config: Config) -> None:
        self.value = self._most = config.q_ref
        self._samples: deque[float] = deque(maxlen=SAMPLES)
        self._sampled_ms = self._changed_ms = 0

    def advance(self, clock_ms: int, queues: Collection[float], mode: Mode) -> float:
        """One tick: queues of the backends in service. Returns the reference now."""
        if mode is Mode.NORMAL and queues and clock_ms - self._sampled_ms >= SAMPLE_MS:
            self._sampled_ms = clock_ms
            self._samples.append(median(list(queues)) or 0.0)
        if len(self._samples) >= SAMPLES_MIN and clock_ms - self._changed_ms >= CHANGE_MS:
            self._changed_ms = clock_ms
            usual = TIMES_USUAL * (median(list(self._samples)) or 0.0)
            self.value = min(self._most, max(LEAST, round(usual, 1)))
        return self.value
