"""Signal conditioning (section 1): smoothing, velocity, evidence, and what to do without a signal.

Missing is never zero. A backend whose latency is unknown is not fast, and one without requests is
not healthy; it is only unknown, and the group's worst is assumed.
"""

from collections.abc import Iterable, Sequence
from math import sqrt
from typing import NamedTuple

from fairlead.core.units import FLOAT_MAX

EPSILON = 1e-9
# A latency of 1e308 ms is rubbish, but finite rubbish: it must not turn into infinity on the way.
TERM_MAX = 1e300


def left_sum(values: Iterable[float]) -> float:
    """Σ in the given order. `sum` of floats rounds differently from Python 3.12 on."""
    total = 0.0
    for value in values:
        total += value
    return total


def ewma(previous: float | None, value: float, alpha: float) -> float:
    """alpha*x(t) + (1 - alpha)*ewma(t - dt); the first sample is its own mean."""
    if previous is None:
        return value
    # The mean of two values near the end of the range must not round past it.
    return min(alpha * value + (1 - alpha) * previous, FLOAT_MAX)


def velocity(now: float, before: float, window_ms: int) -> float:
    """v_pos: how fast the smoothed signal rises, per second; falling counts as standing still."""
    return max(0.0, (now - before) / (window_ms / 1000))


def wilson_lower(rate: float, requests: int, z: float) -> float:
    """The lower end of Wilson's interval: the error rate that so few requests really prove."""
    if not requests or not rate:
        return 0.0
    square = z * z
    centre = rate + square / (2 * requests)
    margin = z * sqrt(rate * (1 - rate) / requests + square / (4 * requests * requests))
    return max(0.0, (centre - margin) / (1 + square / requests))


def normalise(value: float, weight: float, reference: float) -> float:
    """W*x/x_ref: a term of pressure. Every reference is a named parameter."""
    return min(weight * (value / reference), TERM_MAX) if weight else 0.0


class Imputed(NamedTuple):
    """A signal of every backend; `values` is None where nobody has it. `missing`: some have not."""

    values: list[float] | None
    missing: bool


def impute(signal: Sequence[float | None]) -> Imputed:
    """The signal with the group's worst in place of what is unknown."""
    known = [value for value in signal if value is not None]
    if not known:
        return Imputed(None, missing=bool(signal))
    if len(known) == len(signal):
        return Imputed(known, missing=False)
    worst = max(known)
    return Imputed([worst if value is None else value for value in signal], missing=True)
