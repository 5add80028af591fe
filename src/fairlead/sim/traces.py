"""Wants over time: each trace of a scenario as a function from virtual milliseconds to millicores.

Integers throughout, so that every platform draws the same curve. Called by `sim.node` once per
kernel period with rising times; bursts and spikes draw from a stream of their own.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence

from fairlead.schema import traces as documents
from fairlead.sim.entropy import Entropy, Stream

PERIOD_MS = 100
"""The kernel's bandwidth period: the grain of this world."""

Level = Callable[[int], int]


def build_want(parts: Sequence[documents.Trace], entropy: Entropy, pod: str) -> Level:
    """The sum of a pod's traces. Streams are named by pod and place, not by order of creation."""
    levels = [
        _windowed(part, entropy.stream("trace", pod, str(place)))
        for place, part in enumerate(parts)
    ]
    return lambda time_ms: sum(level(time_ms) for level in levels)


def peak(parts: Sequence[documents.Trace]) -> int:
    """An upper bound of what the traces want at once (overlapping spikes aside)."""
    return sum(_peak(part) for part in parts)


def _peak(part: documents.Trace) -> int:
    match part:
        case documents.Constant() | documents.Spikes():
            return part.millicores
        case documents.Steps():
            return max(part.millicores)
        case documents.Sine() | documents.Bursty():
            return part.high_millicores
        case documents.Ramp():
            return max(part.start_millicores, part.end_millicores)
        case documents.Points():
            return max(point.millicores for point in part.points)


def _windowed(part: documents.Trace, stream: Stream) -> Level:
    level = _level(part, stream)
    start_ms = part.from_s * 1000
    end_ms = None if part.until_s is None else part.until_s * 1000

    def inside(time_ms: int) -> int:
        if time_ms < start_ms or (end_ms is not None and time_ms >= end_ms):
            return 0
        return level(time_ms)

    return inside


def _level(part: documents.Trace, stream: Stream) -> Level:  # noqa: PLR0911 - one line a kind
    match part:
        case documents.Constant(millicores=millicores):
            return lambda _: millicores
        case documents.Steps(millicores=levels, every_s=every_s):
            return lambda time_ms: levels[time_ms // (every_s * 1000) % len(levels)]
        case documents.Sine():
            return lambda time_ms: _wave(part, time_ms)
        case documents.Ramp():
            return lambda time_ms: _line(
                time_ms - part.from_s * 1000,
                part.ramp_s * 1000,
                part.start_millicores,
                part.end_millicores,
            )
        case documents.Points():
            return _points(part)
        case documents.Bursty():
            return _bursty(part, stream)
        case documents.Spikes():
            return _spikes(part, stream)


def _wave(part: documents.Sine, time_ms: int) -> int:
    """Bhaskara's sine, 16t(h-t) / (5h^2 - 4t(h-t)): rational, and within 0.2 % of the real one."""
    half = part.period_s * 500
    phase = (time_ms - part.phase_s * 1000) % (2 * half)
    rise = phase % half * (half - phase % half)
    swing = part.high_millicores - part.low_millicores
    offset = swing * 8 * rise // (5 * half * half - 4 * rise)
    middle = part.low_millicores + swing // 2
    return middle + offset if phase < half else max(middle - offset, part.low_millicores)


def _line(elapsed_ms: int, length_ms: int, start: int, end: int) -> int:
    done_ms = min(max(elapsed_ms, 0), length_ms)
    return start + (end - start) * done_ms // length_ms


def _points(part: documents.Points) -> Level:
    times = [point.at_s * 1000 for point in part.points]
    levels = [point.millicores for point in part.points]

    def level(time_ms: int) -> int:
        at = bisect_right(times, time_ms) - 1
        if at < 0:
            return 0
        if not part.linear or at == len(times) - 1:
            return levels[at]
        length_ms = times[at + 1] - times[at]
        return _line(time_ms - times[at], length_ms, levels[at], levels[at + 1])

    return level


def _bursty(part: documents.Bursty, stream: Stream) -> Level:
    """Off first; each period it switches with probability period/mean, so stays are geometric."""
    on = False

    def level(_: int) -> int:
        nonlocal on
        mean_ms = (part.on_s if on else part.off_s) * 1000
        if stream.below(mean_ms) < PERIOD_MS:
            on = not on
        return part.high_millicores if on else part.low_millicores

    return level


def _spikes(part: documents.Spikes, stream: Stream) -> Level:
    """A spike starts in a period with probability rate*period: Poisson times, on the grain."""
    ends: list[int] = []
    probability = part.per_minute * PERIOD_MS / 60_000

    def level(time_ms: int) -> int:
        if stream.chance(probability):
            ends.append(time_ms + part.length_ms)
        ends[:] = [end for end in ends if end > time_ms]
        return part.millicores * len(ends)

    return level
