"""The demand signal: from the kernel's counters of one container to a demand between 0 and 1.

A throttled container shows how long its runnable threads stood *held back*; so does one that waits
for a CPU where nothing is throttled. With `used` and `held` as shares of the elapsed time (in
cores):

    want     = used / (1 - held)      while used + held < 1: one thread, held for part of the time
             = used + held            from there on: that many threads were runnable
    shortage = 1 - used / want        0 when unthrottled, (want - limit)/want when short
    demand   = clip((want - min) / (max - min), 0, 1)

It keeps its slope from 0 to 100 % shortage, where clip((held/used)/0.1) reads 1.0 from 9 % on. And
`want` does not move when only the limit moves: a signal that falls to 0 as soon as the limit is
raised makes limits oscillate.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fairlead.core.cpu.model import Pause, Ratio

# Counters that claim more CPU than this per second are rubbish, not a large machine.
CORES_MAX = 100_000
NEGLIGIBLE = 0.001


class Counters(NamedTuple):
    """One reading of a container's cgroup; all counters grow."""

    time_us: int
    usage_us: int
    periods: int
    throttled_periods: int
    throttled_us: int
    waited_us: int | None = None
    """How long runnable threads waited for a CPU; None: not measured."""
    runs: int | None = None
    """How often threads began to run; None: not measured."""


class CpuReading(NamedTuple):
    """What two successive counters say about a container."""

    usage_millicores: int
    want_millicores: int
    shortage: float
    throttled_ratio: float

    def demand(self, min_millicores: int, max_millicores: int) -> float:
        span = max_millicores - min_millicores
        if span <= 0:
            return 1.0 if self.want_millicores > max_millicores else 0.0
        return min(max((self.want_millicores - min_millicores) / span, 0.0), 1.0)


@dataclass(frozen=True, slots=True)
class Smoothing:
    """EWMA factors per sample, and for how long the highest mean counts.

    A rise counts at once, a fall is believed when it has lasted. With 0.3 up, 0.1 down and nothing
    held, a service that idles for seconds between its peaks was throttled in 17 % of its periods at
    60 % load; a slow fall alone (0.03) made 2.8 reversals per pod-minute on a bursty mix. The peak
    of a minute sees the next burst coming (`python -m bench.cpu`).
    """

    up: Ratio = 1.0
    down: Ratio = 0.1
    hold_ms: Pause = 60_000


def read_signal(before: Counters | None, after: Counters | None) -> CpuReading | None:
    """Difference two readings; None (signal missing) at the first one, a reset, or rubbish."""
    if before is None or after is None:
        return None
    elapsed = after.time_us - before.time_us
    used = after.usage_us - before.usage_us
    periods = after.periods - before.periods
    throttled = after.throttled_periods - before.throttled_periods
    held = after.throttled_us - before.throttled_us
    if elapsed <= 0 or min(used, periods, throttled, held) < 0:
        return None
    if max(used, held) > elapsed * CORES_MAX:
        return None
    if throttled == 0:
        held = 0  # a throttle that began before this window is not news
    # Some kernels count a throttled thread as waiting, too: the larger of both, not the sum.
    held = max(held, waited_us(before, after) or 0)
    # A held thread is not a whole core of work: a service that runs dry 3/4 into each period waits
    # for 1/4 of it, and wants 4/3 of what it used. Threads that spin read the same either way.
    alone = used + held < elapsed
    want = used * elapsed // (elapsed - held) if alone else used + held
    return CpuReading(
        usage_millicores=used * 1000 // elapsed,
        want_millicores=want * 1000 // elapsed,
        shortage=1 - used / want if want else 0.0,
        throttled_ratio=min(throttled / periods, 1.0) if periods else 0.0,
    )


def waited_us(before: Counters | None, after: Counters | None) -> int | None:
    """How long threads waited between two readings; None: not known, which is not zero."""
    if before is None or after is None or before.waited_us is None or after.waited_us is None:
        return None
    waited, elapsed = after.waited_us - before.waited_us, after.time_us - before.time_us
    return waited if 0 <= waited <= elapsed * CORES_MAX else None


def delay_us(readings: Sequence[tuple[Counters | None, Counters | None]]) -> float | None:
    """How long a thread waited for a CPU before it ran, on average over containers; None: not
    known, because it is not measured of one of them, or no thread ran."""
    waits, runs = 0, 0
    for before, after in readings:
        waited = waited_us(before, after)
        if waited is None or before is None or after is None:
            return None
        if before.runs is None or after.runs is None or after.runs < before.runs:
            return None
        waits, runs = waits + waited, runs + after.runs - before.runs
    return waits / runs if runs else None


def pod_reading(readings: Sequence[CpuReading]) -> CpuReading:
    """What the containers' readings say about their pod: sums, and the worst throttling.

    The kernel keeps throttling statistics per container and does not roll them up to the pod. A
    pod's demand is the limit-weighted mean of its containers' demands; adding up the wants and
    asking where they lie between the pod's minimum and maximum is that mean, and stays right where
    a container has no limit to weigh by.
    """
    if len(readings) == 1:
        return readings[0]
    used = sum(reading.usage_millicores for reading in readings)
    want = sum(reading.want_millicores for reading in readings)
    return CpuReading(
        usage_millicores=used,
        want_millicores=want,
        shortage=1 - used / want if want else 0.0,
        throttled_ratio=max((reading.throttled_ratio for reading in readings), default=0.0),
    )


DEFAULT_SMOOTHING = Smoothing()


def smooth(previous: float | None, value: float, smoothing: Smoothing = DEFAULT_SMOOTHING) -> float:
    """Exponentially weighted mean, with its own factor for rising and for falling."""
    if previous is None:
        return value
    factor = smoothing.up if value > previous else smoothing.down
    smoothed = previous + factor * (value - previous)
    # Without an end the mean of an idle pod decays for hours and never reads idle again.
    return 0.0 if value == 0 and smoothed < NEGLIGIBLE else smoothed


Peaks = tuple[tuple[int, float], ...]
"""(time_ms, value), the oldest and highest first: every later one is lower than all before it."""


def hold_peak(peaks: Peaks, now_ms: int, value: float, hold_ms: int) -> Peaks:
    """What can still be the highest value of the last `hold_ms`; the first of them is."""
    first, end = 0, len(peaks)
    while first < end and peaks[first][0] <= now_ms - hold_ms:
        first += 1
    while first < end and peaks[end - 1][1] <= value:
        end -= 1
    return (*peaks[first:end], (now_ms, value))
