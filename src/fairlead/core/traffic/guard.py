"""The monotonic guard (section 8.3): a step that makes the skew worse is halved, or not taken.

Repeated worsening means that the governor is too eager or that a signal lies. Every halving stays
until 5 quiet seconds have passed; then Δmax doubles again.
"""

from collections.abc import Sequence
from typing import NamedTuple

from fairlead.core.traffic.config import Config
from fairlead.core.traffic.skew import predicted_skew
from fairlead.core.traffic.slots import slew, step_limit
from fairlead.core.traffic.state import HALVINGS_MAX, Guard


class Step(NamedTuple):
    """Slots after the step, the guard after it, and whether it was held back altogether."""

    slots: list[int]
    guard: Guard
    held: bool


def regrow(guard: Guard, clock_ms: int, config: Config) -> Guard:
    """One doubling for each 5 quiet seconds."""
    doublings = (clock_ms - guard.since_ms) // config.guard_quiet_ms
    if doublings >= guard.halvings:
        return Guard()
    since_ms = guard.since_ms + doublings * config.guard_quiet_ms
    return Guard(guard.halvings - doublings, since_ms)


def guarded_step(
    slots: Sequence[int],
    target: Sequence[int],
    *,
    weights: Sequence[float],
    skew: float | None,
    guard: Guard,
    crisis: bool,
    clock_ms: int,
    config: Config,
) -> Step:
    """One step towards the target, if it does not make the skew worse by more than epsilon."""
    limit = step_limit(config, crisis=crisis, halvings=guard.halvings)
    after = slew(slots, target, limit)
    if skew is None or after == list(slots) or not _worse(after, weights, skew, config):
        return Step(after, guard, held=False)
    halvings = guard.halvings + (limit > 1 and guard.halvings < HALVINGS_MAX)
    guard = Guard(halvings, clock_ms if halvings else 0)
    after = slew(slots, target, step_limit(config, crisis=crisis, halvings=halvings))
    if _worse(after, weights, skew, config):
        return Step(list(slots), guard, held=True)
    return Step(after, guard, held=False)


def _worse(slots: Sequence[int], weights: Sequence[float], skew: float, config: Config) -> bool:
    return predicted_skew(slots, weights, config.s_total) > skew + config.epsilon_skew
