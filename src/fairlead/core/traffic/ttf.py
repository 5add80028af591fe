"""Time to failure (section 7) of what can run out: memory, descriptors, connections, pids, disk.

    TTF = (limit - used) / max(epsilon, v_pos(used))      the least over all resources and nodes

Never of CPU: full CPU is fine until it stalls. With less than a window of history the velocity, and
so the TTF, is unknown and triggers nothing; only what is already used up needs no history.
"""

from collections.abc import Iterable

from fairlead.core.traffic.config import Config
from fairlead.core.traffic.model import Resource
from fairlead.core.traffic.signals import EPSILON, ewma, velocity
from fairlead.core.traffic.state import Trail

ENDLESS = "cpu"


def follow(
    trail: Trail | None, resource: Resource, *, clock_ms: int, advanced: bool, config: Config
) -> Trail | None:
    """The trail with this sample added. No time, no sample: only the first is taken anyway."""
    used = resource.used
    if trail is None:
        return None if used is None else Trail(resource.name, used, ((clock_ms, used),))
    smoothed, history = trail.ewma, trail.history
    if used is not None and advanced:
        smoothed = ewma(smoothed, used, config.alpha)
        history = (*history, (clock_ms, smoothed))
    reach_ms = clock_ms - config.derivative_window_ms
    # The newest sample that is a window old is the one to compare with; older ones are done with,
    # also when time went on without a sample.
    old = [place for place, (at, _) in enumerate(history) if at <= reach_ms]
    return Trail(trail.name, smoothed, history[old[-1] :] if old else history)


def time_to_failure(
    resource: Resource, trail: Trail | None, clock_ms: int, config: Config
) -> float | None:
    """Seconds until the resource is used up at the current velocity; None: unknown."""
    if resource.used is None or resource.limit is None or trail is None:
        return None
    remaining = resource.limit - resource.used
    if remaining <= 0:
        return 0.0
    at, before = trail.history[0]
    if at > clock_ms - config.derivative_window_ms:
        return None
    rising = velocity(trail.ewma, before, config.derivative_window_ms)
    return min(remaining / max(EPSILON, rising), config.ttf_max_s)


def soonest(times: Iterable[float | None]) -> float | None:
    """The least of the known ones."""
    return min((time for time in times if time is not None), default=None)
