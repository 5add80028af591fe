"""Water-fills in plain doubles: almost every row is decided here, and proved.

A share is rate·t with t = number/Σrates, off by less than `blur` whatever the doubles rounded. A
row is *sure* where nothing lies closer than that to where it would make a difference: no share to a
bound or to a whole number, no remainder to the last one that earns a unit, unless their rates are
the same. `fill` looks at the other rows again, with more digits.

Sizes are whole numbers in doubles: sums stay below 2^53 (`clear` sees to it), so they are exact.
"""

from typing import NamedTuple

import numpy as np

from fairlead.fleet.snapshot import Bools, Floats, Ints

_UNIT = 2.0**-53
# Where excess and shortfall weigh the same up to rounding, both sides are put aside.
_EVEN = 2.0**-30
# Away from overflow and from subnormal numbers.
_RATE_MIN, _RATE_MAX = 2.0**-400, 2.0**400


class Fills(NamedTuple):
    """One water-fill per row: x = clamp(weight·demand·t, least, most) with Σx = total."""

    total: Floats
    weight: Floats
    demand: Floats | None
    """None: all 1."""
    rate: Floats
    """The product, rounded."""
    least: Floats
    most: Floats

    def rows(self, part: slice | Ints) -> "Fills":
        return Fills(
            self.total[part],
            self.weight[part],
            None if self.demand is None else self.demand[part],
            self.rate[part],
            self.least[part],
            self.most[part],
        )


class Filled(NamedTuple):
    """Grants, what is left for the rising claims, their rates, and the rows that are certain."""

    grants: Floats
    number: Floats
    rising: Floats
    sure: Bools

    def after(self, row: int) -> "Filled":
        return Filled(self.grants[row:], self.number[row:], self.rising[row:], self.sure[row:])


def margin(width: int) -> float:
    """Twice the most by which a share errs, relatively: Σrates errs by less than width·2^-53 in any
    order of adding, the rest by a few roundings."""
    return 2 * (width + 8) * _UNIT


def quick_fill(fills: Fills) -> Filled:
    rising, number, level = _find_level(fills)
    share = fills.rate * level[:, None]
    whole = np.floor(share)
    between = whole >= fills.least
    between &= whole < fills.most
    between &= fills.rate > 0
    sure: Bools = (between == (rising > 0)).all(axis=1)
    np.maximum(whole, fills.least, out=whole)
    np.minimum(whole, fills.most, out=whole)
    # What a share lies above its grant: a remainder, or far outside where it stands at a bound.
    share -= whole
    blur = margin(share.shape[1]) * fills.total
    sure &= ((np.abs(share) > blur[:, None]) | (fills.rate == 0)).all(axis=1)
    share *= between
    sure &= _hand_out(fills, whole, share, blur)
    top = fills.rate.max(axis=1)
    sure &= (top < _RATE_MAX) & (np.where(number > 0, level, 1.0) < 1 / _RATE_MIN)
    return Filled(whole, number, rising, sure & (number > 0) & (top > _RATE_MIN))


def _find_level(fills: Fills) -> tuple[Floats, Floats, Floats]:
    """Put claims aside that pass a bound, on the side that weighs more, until none does.

    See `fill`. Gives the rates of the others, what is left for them, and the level.
    """
    rate, least, most = fills.rate.copy(), fills.least, fills.most
    number = fills.total - (least * (rate == 0)).sum(axis=1)
    level = number / rate.sum(axis=1)
    rows: Ints | slice = slice(None)
    part, total, low, high = rate, number.copy(), least * (rate > 0), most
    while True:
        share = part * level[rows][:, None]
        held = np.maximum(share, low)
        np.minimum(held, high, out=held)
        excess = total - held.sum(axis=1)
        even = np.abs(total) * _EVEN
        aside = (share > held) & (excess >= -even)[:, None]
        aside |= (share < held) & (excess <= even)[:, None]
        moved = aside.any(axis=1)
        if not moved.any():
            return rate, number, level
        low, part = np.where(aside, 0.0, low), np.where(aside, 0.0, part)
        held *= aside
        total = total - held.sum(axis=1)
        rate[rows], number[rows] = part, total
        level[rows] = total / part.sum(axis=1)
        if 2 * np.count_nonzero(moved) < len(moved):  # few are left: the others are done
            rows = np.flatnonzero(moved) if isinstance(rows, slice) else rows[moved]
            part, total, low, high = part[moved], total[moved], low[moved], high[moved]


def _hand_out(fills: Fills, grants: Floats, rests: Floats, blur: Floats) -> Bools:
    """Add the units that flooring left over, in place; the rows where it is certain to whom.

    There are as many as the remainders add up to: else a claim stands at another bound than the
    one it was put aside at.
    """
    rows, width = rests.shape
    left = fills.total - grants.sum(axis=1)
    sure: Bools = (left >= 0) & (left < width) & (width * blur < 0.25)
    sure &= np.abs(rests.sum(axis=1) - left) < 0.5
    left = np.where(sure, left, 0).astype(np.int64)
    ranked = np.sort(rests, axis=1)
    at = np.arange(rows)
    cut = np.where(left > 0, ranked[at, width - np.maximum(left, 1)], 2.0)
    below = ranked[at, width - left - 1]
    sure &= (cut > 4 * blur) & (ranked[:, -1] < 1 - blur)
    chosen = rests >= cut[:, None]
    close = np.flatnonzero(sure & (cut - below <= 2 * blur))
    if close.size:
        ends = np.stack((cut - 2 * blur, cut + 2 * blur), axis=1)[close]
        chosen[close], sure[close] = _ties(fills.rows(close), rests[close], ends, left[close])
    grants += chosen
    return sure


def _ties(fills: Fills, rests: Floats, ends: Floats, left: Ints) -> tuple[Bools, Bools]:
    """Remainders that cannot be told apart: by position, if their rates are the very same."""
    above = rests > ends[:, 1:]
    near = (rests >= ends[:, :1]) & ~above
    same = np.ones(len(left), dtype=np.bool_)
    for factor in (fills.weight, fills.demand):
        if factor is not None:
            highest = np.where(near, factor, -np.inf).max(axis=1)
            same &= highest == np.where(near, factor, np.inf).min(axis=1)
    room = (left - above.sum(axis=1))[:, None]
    return above | (near & (near.cumsum(axis=1) <= room)), same


def sum_rising(fills: Fills, filled: Filled) -> tuple[Floats, Floats, Floats]:
    """Σ of the rising rates of each row: (high, low, error), |Σ - high - low| <= error.

    Factors are cut so that the products of their upper parts add up exactly; what is left is
    small, and so is what rounding makes of it. An infinite error: it is not known.
    """
    weight = np.where(filled.rising > 0, fills.weight, 0.0)
    width = weight.shape[1]
    bits = (53 - width.bit_length()) // 2
    peak = weight.max(axis=1)
    step = np.exp2(np.frexp(peak)[1] + 52.0 - bits)[:, None] * 1.5
    upper = weight + step
    upper -= step
    weight -= upper
    if fills.demand is None:
        lower = weight
    else:
        step = 1.5 * 2.0 ** (52 - bits)
        demand = (fills.demand + step) - step
        weight *= fills.demand
        lower = upper * (fills.demand - demand) + weight
        upper *= demand
    high, low = upper.sum(axis=1), lower.sum(axis=1)
    error = peak * (width * 2.0**-bits * (width + 4) * 4 * _UNIT)
    known = (peak > _RATE_MIN) & (peak < _RATE_MAX)
    return high, low, np.where(known, error, np.inf)
