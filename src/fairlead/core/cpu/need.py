"""How many millicores a pod needs, and the parameters it enters the market with.

IEEE doubles in the order the specification writes them, truncated towards zero: the need is the
one place where rounding is defined by floating point, so that any language can reproduce it.
"""

from typing import Final, NamedTuple

from fairlead.core import units
from fairlead.core.cpu.model import DEFAULT_HEADROOM, Headroom, Pod
from fairlead.core.reasons import CpuReason

# A usage-based need leaves 30 % room, since usage says nothing about what was held back.
USAGE_ROOM = 1.3
# Above this share of its minimum a pod that shows no demand is suspicious.
USAGE_SUSPICIOUS = 0.9
BASELINE_MILLICORES = 100
PRIORITY_UNIT = 10_000
MISS_DEMAND = 0.3
MISS_QUIET_MS = 60_000


class CpuNeed(NamedTuple):
    """A pod's need in millicores and where the number comes from."""

    millicores: int
    reasons: tuple[CpuReason, ...]


_DEMAND_DRIVEN: Final = (CpuReason.DEMAND_DRIVEN,)
_USAGE_FALLBACK: Final = (CpuReason.USAGE_FALLBACK,)
_BY_USAGE: Final = (CpuReason.SIGNAL_MISSING_USAGE,)
_HELD: Final = (CpuReason.SIGNAL_MISSING_HOLD,)
_LEAST: Final = (CpuReason.SIGNAL_MISSING_MIN,)


def estimate_need(pod: Pod, headroom: Headroom = DEFAULT_HEADROOM) -> CpuNeed:
    """The millicores that would end the pod's throttling, within its own minimum and maximum."""
    low, high = pod.min_millicores, pod.max_millicores
    factors = (headroom.base, headroom.per_demand, headroom.per_miss, headroom.cap)
    return CpuNeed(*need_between(pod, min(low, high), high, factors))


Factors = tuple[float, float, float, float]
"""A headroom's base, per_demand, per_miss and cap."""


def need_between(
    pod: Pod, low: int, high: int, factors: Factors
) -> tuple[int, tuple[CpuReason, ...]]:
    """The same with the pod's bounds and the headroom at hand: a node reads each once."""
    value, reasons = _value(pod, low, high, factors)
    if pod.min_millicores > high:
        reasons = (CpuReason.MIN_ABOVE_MAX, *reasons)
    return low if value < low else high if value > high else value, reasons


def _value(pod: Pod, low: int, high: int, factors: Factors) -> tuple[int, tuple[CpuReason, ...]]:
    demand, usage = pod.demand, pod.usage_millicores
    if not pod.signal_ok:
        if usage is not None:
            return int(usage * USAGE_ROOM), _BY_USAGE
        current = pod.current_millicores
        return (low, _LEAST) if current is None else (current, _HELD)
    if demand == 0 and usage is not None and usage > USAGE_SUSPICIOUS * low:
        return int(usage * USAGE_ROOM), _USAGE_FALLBACK
    base, per_demand, per_miss, cap = factors
    raw = low + int((high - low) * demand)
    factor = min(cap, base + per_demand * demand + per_miss * pod.headroom_misses)
    return raw + int(raw * factor), _DEMAND_DRIVEN


def count_misses(
    misses: int,
    *,
    demand: float,
    applied_ms: int | None,
    missed_ms: int | None,
    now_ms: int,
    cooldown_ms: int,
) -> tuple[int, int | None]:
    """Count a headroom miss, or forgive one. Called once per clear.

    A miss: the cooldown of an applied grant is over and smoothed demand is still above 0.3. One is
    forgiven after each quiet minute, so that headroom is not a ratchet. Returns the new count and
    the time of the last miss or forgiveness.
    """
    if applied_ms is not None and now_ms - applied_ms >= cooldown_ms and demand > MISS_DEMAND:
        return misses + 1, now_ms
    if misses and missed_ms is not None and now_ms - missed_ms >= MISS_QUIET_MS:
        return misses - 1, now_ms
    return misses, missed_ms


def pod_weight(request_millicores: int, priority: int = 0) -> float:
    """max(1, request), times the PriorityClass factor 1 + priority/10000 clipped to [1, 10]."""
    request = units.size(request_millicores, "request_millicores")
    factor = min(max(1 + units.quotient(priority, PRIORITY_UNIT), 1.0), 10.0)
    return max(1, request) * factor


def pod_bounds(
    request_millicores: int, limit_millicores: int | None, *, capacity_millicores: int
) -> tuple[int, int]:
    """Minimum and maximum from what the *user* asked for, frozen at first sight.

    Taking the current limit as the ceiling would make every cut permanent.
    """
    low = max(BASELINE_MILLICORES, units.size(request_millicores, "request_millicores"))
    high = capacity_millicores if limit_millicores is None else limit_millicores
    return low, units.size(high, "limit_millicores")
