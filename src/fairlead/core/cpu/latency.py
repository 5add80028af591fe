"""A pod's latency target as a lower bound of its allocation, inside Σ <= capacity.

The latency is how long a thread of the pod waits for a CPU before it runs, on average over a
second. While it is above the target, the lower bound rises; below half of the target it falls until
it is forgotten. In between it stays, so that it does not swing. It is a bound like those of the
guardrails: where the bounds together do not fit the capacity, they are relaxed.
"""

from collections.abc import Sequence

from fairlead.core.cpu.signal import Counters, delay_us

RISE, FALL = 1.10, 0.98
"""Per second: doubled within 8 s of a target that is missed, halved within 35 s of one kept."""
STEP_MILLICORES = 10


def latency_bound(
    bound: int | None,
    readings: Sequence[tuple[Counters | None, Counters | None]],
    *,
    target_ms: int,
    current_millicores: int,
    max_millicores: int,
) -> int | None:
    """The next lower bound; without a measurement the last one stays."""
    delay = delay_us(readings)
    if delay is None:
        return bound
    if delay > target_ms * 1000:
        least = current_millicores if bound is None else bound
        return min(int(least * RISE) + STEP_MILLICORES, max_millicores)
    if bound is None or delay * 2 > target_ms * 1000:
        return bound
    lower = int(bound * FALL)
    return lower if lower > STEP_MILLICORES else None
