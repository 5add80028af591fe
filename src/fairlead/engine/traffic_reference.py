"""Q_ref and L_ref where the operator set none: what is usual for this group.

The equations ask for "a typical healthy queue proxy, or a constant like 50". With the constant a
group that usually has three requests in each backend hardly feels a queue of thirty; its latency,
a p95 over 5 s, is felt too late, and near capacity the slots swing from one backend to the next.
In the harness's `slow` (70 % load, one of four gone) goodput within the SLO was 0.71 to 1.00 with
50, depending on the seed, and 1.00 with twice the usual queue.

The usual queue is the median of the last minute, in which the door was open; the reference changes
every ten seconds at most, so that a record is not full of it.

L_ref is 100 ms by default, and a service that simply takes 400 ms has a conductance below G_min
with it: its door would be soft for good. So where no objective is given the reference is what the
group usually takes, if that is more, and until that is known latency closes no door.

A door that has been soft for half a minute is not soft because of the load, or letting in less
would have helped: what is seen then is usual too. Otherwise it would stay soft for good.
"""

from collections import deque
from collections.abc import Collection

from fairlead.core.traffic import AdmissionMode, Config
from fairlead.core.traffic.health import median

SAMPLE_MS, CHANGE_MS = 1_000, 10_000
SAMPLES, SAMPLES_MIN = 60, 10
HELPLESS_MS = 30_000
TIMES_USUAL = 2.0
LEAST = 4.0


class _Usual:
    """The median of a signal over the last minute, in which the door was open or did not help."""

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=SAMPLES)
        self._sampled_ms = self._changed_ms = self._open_ms = 0

    def advance(
        self, clock_ms: int, values: Collection[float], mode: AdmissionMode
    ) -> float | None:
        """One tick: what the backends in service show. The median when it is time for it."""
        if mode is AdmissionMode.NORMAL:
            self._open_ms = clock_ms
        new = len(self._samples) < SAMPLES_MIN
        helpless = mode is AdmissionMode.SOFT and (new or clock_ms - self._open_ms >= HELPLESS_MS)
        telling = values and (mode is AdmissionMode.NORMAL or helpless)
        if telling and clock_ms - self._sampled_ms >= SAMPLE_MS:
            self._sampled_ms = clock_ms
            self._samples.append(median(list(values)) or 0.0)
        if len(self._samples) < SAMPLES_MIN or clock_ms - self._changed_ms < CHANGE_MS:
            return None
        self._changed_ms = clock_ms
        return median(list(self._samples))


class QueueReference:
    """Follows the usual queue of a group's backends, up to the default."""

    def __init__(self, config: Config) -> None:
        self.value = self._most = config.q_ref
        self._usual = _Usual()

    def advance(self, clock_ms: int, queues: Collection[float], mode: AdmissionMode) -> float:
        """One tick: queues of the backends in service. Returns the reference now."""
        usual = self._usual.advance(clock_ms, queues, mode)
        if usual is not None:
            self.value = min(self._most, max(LEAST, round(TIMES_USUAL * usual, 1)))
        return self.value


class LatencyReference:
    """Follows the usual latency of a group, where that is above the default."""

    def __init__(self, config: Config) -> None:
        self.value: float | None = None
        """None until it is known."""
        self._least = config.l_ref_ms
        self._usual = _Usual()

    def advance(
        self, clock_ms: int, latencies: Collection[float], mode: AdmissionMode
    ) -> float | None:
        """One tick: p95 of the backends in service. Returns the reference now."""
        usual = self._usual.advance(clock_ms, latencies, mode)
        if usual is not None:
            self.value = max(self._least, round(usual, 1))
        return self.value
