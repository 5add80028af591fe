"""Water-fills side by side: `core.apportion.water_fill`, one per row of a table.

Each row asks for the level t >= 0 with Σ clamp(rate·t, least, most) = total, and for whole grants
by largest remainder. The answer depends only on the exact value of t, so it is found in two steps:

1. which claims stand at a bound (`level`): guessed with doubles, then verified with a margin;
2. the shares of the others (`shares`): certain, or declared unsure. A claim that step 1 wrongly
   left rising shows here, outside its bounds.

Rows that are not sure are cleared by the scalar path, so speed never costs a millicore.
"""

from typing import NamedTuple

import numpy as np

from fairlead.fleet.columns import Bools, Ints
from fairlead.fleet.level import Claims, Level, find_level, verified
from fairlead.fleet.shares import BLUR, Rates, Shares, shares

# Far beyond any real weight. In between, no product of a rate and two sizes overflows, and what
# underflows is nothing beside the largest rate.
RATE_MAX, RATE_MIN = 2.0**900, 2.0**-900


class Fill(NamedTuple):
    """Grants, the rows that are certain, and the level they come from."""

    grants: Ints
    sure: Bools
    level: Level


def fill(claims: Claims) -> Fill:
    """Solve every row. The caller makes sure that each has a finite level."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # such rows are not sure
        level = find_level(claims)
        rates, dusty = level.rising.without_dust()
        parts = shares(level.number, rates)
        sure = parts.sure & verified(claims, level) & _inside(claims, parts, rates, dusty)
        more, certain = _leftovers(level.number, parts, rates, dusty)
    return Fill(level.bounded + parts.floor + more, sure & certain, level)


def _inside(claims: Claims, parts: Shares, rates: Rates, dusty: Bools) -> Bools:
    """Rows whose rising claims lie inside their bounds, and whose rates inside their range."""
    floor, fraction = parts.floor, parts.key > 0
    # A share that ends exactly on a bound is in order; only an exact one is known to.
    above = (floor > claims.most) | ((floor == claims.most) & (fraction | ~parts.exact[:, None]))
    below = (floor < claims.least) | ((floor == claims.least) & ~fraction & dusty[:, None])
    outside = ((above | (below & (claims.least > 0))) & (rates.high > 0)).any(axis=1)
    peak = rates.high.max(axis=1)
    in_range = (peak > RATE_MIN) & (claims.rates.high.max(axis=1) < RATE_MAX)
    inside: Bools = (peak == 0) | (in_range & ~outside)
    return inside


def _leftovers(number: Ints, parts: Shares, rates: Rates, dusty: Bools) -> tuple[Bools, Bools]:
    """Who gets one of the units that flooring left over, and the rows where that is certain.

    Largest key first, ties by position. Where keys are not exact, or dust bends them, a row is
    certain unless two different rates stand closer to the cut than their keys are known.
    """
    rows, width = parts.key.shape
    # Outside this range only where the row is unsure already.
    left = np.clip(number - parts.floor.sum(axis=1), 0, width)
    ranked = np.sort(parts.key, axis=1)
    # With nothing left over, a cut above every key.
    cut = ranked[np.arange(rows), np.minimum(width - left, width - 1)] + (left == 0)
    cut = cut[:, None]
    more = parts.key >= cut
    tied = more.sum(axis=1) > left
    if tied.any():
        more[tied] = _first_ties(parts.key[tied], cut[tied], left[tied])
    certain = np.ones(rows, dtype=np.bool_)
    doubtful = (dusty | ~parts.exact) & (left > 0)
    if doubtful.any():
        blur = np.where(parts.exact[doubtful], 0, BLUR)[:, None]
        key, near = parts.key[doubtful], cut[doubtful]
        certain[doubtful] = _apart(key, near, blur, left[doubtful], rates.rows(doubtful))
    return more, certain


def _first_ties(key: Ints, cut: Ints, left: Ints) -> Bools:
    above, level = key > cut, key == cut
    room = left - above.sum(axis=1)
    chosen: Bools = above | (level & (level.cumsum(axis=1) <= room[:, None]))
    return chosen


def _apart(key: Ints, cut: Ints, blur: Ints, left: Ints, rates: Rates) -> Bools:
    """Rows where everybody near the cut is chosen, or all of them have the very same rate."""
    all_chosen = (key >= cut - blur).sum(axis=1) == left
    near = np.abs(key - cut) <= blur
    same = np.ones(len(key), dtype=np.bool_)
    for part in rates:
        highest = np.where(near, part, -np.inf).max(axis=1)
        same &= highest == np.where(near, part, np.inf).min(axis=1)
    apart: Bools = all_chosen | same
    return apart
