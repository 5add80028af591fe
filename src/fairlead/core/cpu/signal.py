"""The demand signal: from the kernel's counters of one container to a demand between 0 and 1.

A throttled container shows how much it was *held back*: the time its runnable threads stood
throttled. Usage plus that time is what it wanted, so

    shortage = held / (used + held)      0 when unthrottled, (want - limit)/want when short
    want     = used + held               in millicores
    demand   = clip((want - min) / (max - min), 0, 1)

keeps its slope from 0 to 100 % shortage. clip((held/used)/0.1) reads 1.0 from 9 % on, and a signal
that falls to 0 as soon as the limit is raised makes limits oscillate; `want` does not move when
only the limit moves.
"""

from dataclasses import dataclass

# Counters that claim more CPU than this per second are rubbish, not a large machine.
CORES_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Counters:
    """One reading of a container's cgroup; all counters grow."""

    time_us: int
    usage_us: int
    periods: int
    throttled_periods: int
    throttled_us: int


@dataclass(frozen=True, slots=True)
class Reading:
    """What two successive counters say about a container."""

    usage_millicores: int
    want_millicores: int
    shortage: float
    throttled_ratio: float

    def demand(self, min_millicores: int, max_millicores: int) -> float:
        """Where the want lies between minimum and maximum."""
        span = max_millicores - min_millicores
        if span <= 0:
            return 1.0 if self.want_millicores > max_millicores else 0.0
        return min(max((self.want_millicores - min_millicores) / span, 0.0), 1.0)


@dataclass(frozen=True, slots=True)
class Smoothing:
    """EWMA factors per sample: quick to grant, slow to take away."""

    up: float = 0.3
    down: float = 0.1


def read_signal(before: Counters | None, after: Counters | None) -> Reading | None:
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
    return Reading(
        usage_millicores=used * 1000 // elapsed,
        want_millicores=(used + held) * 1000 // elapsed,
        shortage=held / (used + held) if held else 0.0,
        throttled_ratio=min(throttled / periods, 1.0) if periods else 0.0,
    )


DEFAULT_SMOOTHING = Smoothing()


def smooth(previous: float | None, value: float, smoothing: Smoothing = DEFAULT_SMOOTHING) -> float:
    """Exponentially weighted mean, with its own factor for rising and for falling."""
    if previous is None:
        return value
    factor = smoothing.up if value > previous else smoothing.down
    return previous + factor * (value - previous)
