"""Slots (section 5): shares as whole openings, moved a few at a time without breaking their sum.

Clipping every backend's change alone breaks the sum: of 100 slots 94 are left. So both sides are
clipped, the smaller side decides how much moves, and the other side shares that out.
"""

from collections.abc import Sequence
from math import floor

from fairlead.core.apportion import largest_remainder
from fairlead.core.invariant import require
from fairlead.core.traffic.config import Config

# A double in (0, 1] times this is a whole number, unless it is below 2^-53 and no slot anyway.
_UNIT = 2.0**106


def target_slots(s_total: int, shares: Sequence[float]) -> list[int]:
    """round(w*S) with Σ = S exactly: largest remainder, ties in the order of the ids."""
    return largest_remainder(s_total, [int(share * _UNIT) for share in shares])


def step_limit(config: Config, *, crisis: bool, halvings: int) -> int:
    """Δmax of this tick: ×4 in crisis, halved by the guard, then floored; at least 1."""
    factor = config.crisis_factor if crisis else 1.0
    return max(1, floor(config.step * factor * 0.5**halvings))


def slew(slots: Sequence[int], target: Sequence[int], limit: int) -> list[int]:
    """One step towards the target: Σ stays, nobody moves more than `limit` or past its target."""
    takes = [min(max(t - s, 0), limit) for s, t in zip(slots, target, strict=True)]
    gives = [min(max(s - t, 0), limit) for s, t in zip(slots, target, strict=True)]
    moved = min(sum(takes), sum(gives))
    takes, gives = largest_remainder(moved, takes), largest_remainder(moved, gives)
    return [s + take - give for s, take, give in zip(slots, takes, gives, strict=True)]


def hand_over(slots: Sequence[int], target: Sequence[int], freed: Sequence[bool]) -> list[int]:
    """Free the slots of some at once: theirs, and only theirs, go to those below their targets.

    `freed` have a target of 0, so the gaps of the others together are at least what is freed.
    """
    loose = sum(slot for slot, free in zip(slots, freed, strict=True) if free)
    gaps = [0 if free else max(t - s, 0) for s, t, free in zip(slots, target, freed, strict=True)]
    require(loose <= sum(gaps), "freed slots find backends below their targets")
    more = largest_remainder(loose, gaps)
    return [0 if free else s + m for s, m, free in zip(slots, more, freed, strict=True)]


def rescale(slots: Sequence[int], s_total: int) -> list[int]:
    """The same shares of another total, for a group whose number of slots was changed."""
    return list(slots) if sum(slots) == s_total else largest_remainder(s_total, slots)
