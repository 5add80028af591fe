"""Which claims of a water-fill stand at a bound: the first half of `fill`.

Variable fixing after Bitran and Hax: let everybody rise, look who passes a bound, and put those
aside who pass on the side that weighs more. If the excess above upper bounds is larger than the
shortfall below lower bounds, the true level is higher than this one, so whoever is above its
upper bound now will be there at the end; and the other way round. Repeat until nobody passes. At
least one claim is put aside each time; mostly it takes a handful of rounds.

All this is in plain doubles and only a guess. `verified` proves it afterwards, with a margin that
covers the rounding.
"""

from typing import NamedTuple

import numpy as np

from fairlead.fleet.columns import Bools, Floats, Ints
from fairlead.fleet.shares import Rates

_UNIT = 2.0**-53
# Where excess and shortfall weigh the same up to rounding, both sides are put aside.
_EVEN = 1 - 2.0**-30


class Claims(NamedTuple):
    """One water-fill per row: x = clamp(rate·t, least, most) with Σx = total."""

    total: Ints
    rates: Rates
    least: Ints
    most: Ints


class Level(NamedTuple):
    """Who stands at a bound; the level of row i is number[i] / Σ rising.high[i, :] (+ low)."""

    bounded: Ints
    """The grants of those at a bound, 0 for the others."""
    number: Ints
    """What is left for the others."""
    rising: Rates
    """The rates of the others, 0 for those at a bound."""


def margin(width: int) -> float:
    """Twice the most by which the comparisons below err, relatively.

    A share and a bound times Σrates: the sum errs by less than width·2^-53 in any order of adding,
    the rest by a few roundings.
    """
    return 2 * (width + 8) * _UNIT


def find_level(claims: Claims) -> Level:
    """Guess the level of every row."""
    rate = claims.rates.high
    bounded = claims.least * (rate == 0)
    number = claims.total - bounded.sum(axis=1)
    idle = claims.total == claims.least.sum(axis=1)  # level 0: all at their lower bounds already
    rising = rate * ~idle[:, None]
    bounded[idle], number[idle] = claims.least[idle], 0
    _put_aside(claims, np.flatnonzero(~idle), bounded=bounded, number=number, rising=rising)
    return Level(bounded, number, Rates(rising, claims.rates.low * (rising > 0)))


def _put_aside(claims: Claims, rows: Ints, *, bounded: Ints, number: Ints, rising: Floats) -> None:
    """Move claims from rising to bounded, in place, until nobody passes a bound."""
    slack = 2 * margin(claims.least.shape[1])
    rate = rising[rows]
    most = claims.most[rows] * (1 + slack)
    least = claims.least[rows] * (1 - slack) * (rate > 0)
    while rows.size:
        share = rate * (number[rows] / rate.sum(axis=1))[:, None]
        above, below = share - most, least - share
        excess, shortfall = _weight(above), _weight(below)
        over = (above > 0) & (excess >= shortfall * _EVEN)[:, None]
        under = (below > 0) & (shortfall >= excess * _EVEN)[:, None]
        moved = (excess > 0) | (shortfall > 0)
        rows, over, under = rows[moved], over[moved], under[moved]
        grants = claims.most[rows] * over + claims.least[rows] * under
        bounded[rows] += grants
        number[rows] -= grants.sum(axis=1)
        stays = ~(over | under)
        rate, most, least = rate[moved] * stays, most[moved], least[moved] * stays
        rising[rows] = rate


def _weight(passing: Floats) -> Floats:
    weight: Floats = np.maximum(passing, 0).sum(axis=1)
    return weight


def verified(claims: Claims, level: Level) -> Bools:
    """Rows where everybody at a bound certainly belongs there, whatever the doubles rounded."""
    slack = margin(claims.least.shape[1])
    whole = level.rising.high.sum(axis=1)
    share = claims.rates.high * (level.number / whole)[:, None]
    at_most = (level.bounded == claims.most) & (share >= claims.most * (1 + slack))
    at_least = (level.bounded == claims.least) & (share <= claims.least * (1 - slack))
    free = (level.rising.high > 0) | (claims.rates.high == 0)
    right = free | at_most | at_least
    idle = claims.total == claims.least.sum(axis=1)
    sure: Bools = idle | (right.all(axis=1) & (whole > 0))
    return sure
