"""Water-fills side by side: `core.apportion.water_fill`, one per row of a table.

`quick` decides almost every row in plain doubles; what follows is for the others, with more digits.

Each row asks for the level t >= 0 with Σ clamp(rate·t, least, most) = total, and for whole grants
by largest remainder; README.md says why two steps suffice. Step 1, which claims stand at a bound,
is variable fixing after Bitran and Hax: let every claim rise, and put those aside that pass a
bound on the side that weighs more. If the excess above upper bounds is larger than the shortfall
below lower bounds, the true level is higher than this one, so a claim above its upper bound now
stays there; and the other way round. Repeat until none passes: mostly it takes a handful of
rounds. A claim that this wrongly left rising shows in step 2, the shares of the others, outside
its bounds.
"""

import math
from typing import NamedTuple

import numpy as np

from fairlead.fleet.quick import Filled, Fills, margin, quick_fill, sum_rising
from fairlead.fleet.shares import BLUR, Rates, Shares, shares, sum_rows, two_product, two_sum
from fairlead.fleet.snapshot import Bools, Floats, Ints

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


def find_level(claims: Claims) -> Level:
    rate = claims.rates.high
    bounded = claims.least * (rate == 0)
    number = claims.total - bounded.sum(axis=1)
    idle = claims.total == claims.least.sum(axis=1)  # level 0: all at their lower bounds already
    rising = rate * ~idle[:, None]
    bounded[idle], number[idle] = claims.least[idle], 0
    _put_aside(claims, np.flatnonzero(~idle), bounded=bounded, number=number, rising=rising)
    return Level(bounded, number, Rates(rising, claims.rates.low * (rising > 0)))


def _put_aside(claims: Claims, rows: Ints, *, bounded: Ints, number: Ints, rising: Floats) -> None:
    """Move claims from rising to bounded, in place, until none passes a bound."""
    slack = 2 * margin(claims.least.shape[1])
    rate = rising[rows]
    most = claims.most[rows] * (1 + slack)
    least = claims.least[rows] * (1 - slack) * (rate > 0)
    while rows.size:
        share = rate * (number[rows] / rate.sum(axis=1))[:, None]
        above, below = share - most, least - share
        excess, shortfall = (np.maximum(side, 0).sum(axis=1) for side in (above, below))
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


def verified(claims: Claims, level: Level) -> Bools:
    """Rows where every claim at a bound certainly belongs there, whatever the doubles rounded."""
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


# Far beyond any real weight. In between, no product of a rate and two sizes overflows, and what
# underflows is nothing beside the largest rate.
RATE_MAX, RATE_MIN = 2.0**900, 2.0**-900


class ColumnFill(NamedTuple):
    """Grants, the rows that are certain, and the level they come from."""

    grants: Ints
    sure: Bools
    level: Level


def careful_fill(claims: Claims) -> ColumnFill:
    """Solve every row with all digits. The caller makes sure that each has a finite level."""
    level = find_level(claims)
    rates, dusty = level.rising.without_dust()
    parts = shares(level.number, rates)
    sure = parts.sure & verified(claims, level) & _inside(claims, parts, rates, dusty)
    more, certain = _leftovers(level.number, parts, rates, dusty)
    return ColumnFill(level.bounded + parts.floor + more, sure & certain, level)


class FillPlan(NamedTuple):
    """Grants, prices (NaN for core's None) and the rows that are certain."""

    grants: Floats
    price: Floats
    sure: Bools


def fill(fills: Fills, *, unpriced: int) -> FillPlan:
    """Solve every row; prices of all but the first `unpriced`."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # such rows are not sure
        quick = quick_fill(fills)
        price = np.full(len(quick.sure), np.nan)
        if unpriced < len(price):
            price[unpriced:] = _prices(fills.rows(slice(unpriced, None)), quick.after(unpriced))
        rest = np.flatnonzero(~quick.sure)
        if rest.size:
            few = fills.rows(rest)
            total, least, most = (
                part.astype(np.int64) for part in (few.total, few.least, few.most)
            )
            careful = careful_fill(Claims(total, _pairs(fills, rest), least, most))
            quick.grants[rest], quick.sure[rest] = careful.grants, careful.sure
            late = rest >= unpriced
            if late.any():
                price[rest[late]] = shadow_price(careful.level)[late]
    return FillPlan(quick.grants, price, quick.sure)


def _prices(fills: Fills, filled: Filled) -> Floats:
    """Of the rows that are sure."""
    high, low, error = sum_rising(fills, filled)
    whole, whole_low = two_sum(high, low)
    price, known = _rounded(whole, whole_low, error, np.maximum(filled.number, 1.0))
    again = np.flatnonzero(filled.sure & ~known)
    if again.size:
        rising = _pairs(fills, again).where(filled.rising[again] > 0)
        number = filled.number[again].astype(np.int64)
        price[again] = shadow_price(Level(number, number, rising))
    return price


def _pairs(fills: Fills, rows: Ints) -> Rates:
    """The rates of some rows without rounding."""
    few = fills.rows(rows)
    if few.demand is None:
        return Rates(few.weight, np.zeros_like(few.weight))
    return Rates(*two_product(few.weight, few.demand))


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
        above, level = parts.key[tied] > cut[tied], parts.key[tied] == cut[tied]
        room = (left[tied] - above.sum(axis=1))[:, None]
        more[tied] = above | (level & (level.cumsum(axis=1) <= room))
    certain = np.ones(rows, dtype=np.bool_)
    doubtful = (dusty | ~parts.exact) & (left > 0)
    if doubtful.any():
        blur = np.where(parts.exact[doubtful], 0, BLUR)[:, None]
        key, near = parts.key[doubtful], cut[doubtful]
        certain[doubtful] = _apart(key, near, blur, left[doubtful], rates.rows(doubtful))
    return more, certain


def _apart(key: Ints, cut: Ints, blur: Ints, left: Ints, rates: Rates) -> Bools:
    """Rows where every claim near the cut is chosen, or all of them have the very same rate."""
    all_chosen = (key >= cut - blur).sum(axis=1) == left
    near = np.abs(key - cut) <= blur
    same = np.ones(len(key), dtype=np.bool_)
    for part in rates:
        highest = np.where(near, part, -np.inf).max(axis=1)
        same &= highest == np.where(near, part, np.inf).min(axis=1)
    apart: Bools = all_chosen | same
    return apart


# Away from overflow and from subnormal results, where scaling by a power of two would round.
_EXPONENT_MAX = 950


def shadow_price(level: Level) -> Floats:
    """The price of every row, NaN for core's None.

    Σ rates is known to 2^-99 and divided to about 2^-100. Where the rounding to a double changes
    within 2^-90 of that (Ziv's test; often an exact tie), Python's integers decide.
    """
    rates, exponent = level.rising.scaled()
    whole, whole_low = sum_rows(*rates)
    number = np.maximum(level.number, 1).astype(np.float64)
    quotient, sure = _rounded(whole[:, 0], whole_low[:, 0], 0.0, number)
    sure &= np.abs(exponent) < _EXPONENT_MAX
    price: Floats = np.ldexp(quotient, np.where(sure, exponent, 0))
    for row in np.flatnonzero(~sure & (level.number > 0)).tolist():
        price[row] = _by_hand(level.rising, int(level.number[row]), row)
    price[level.number == 0] = np.nan  # t is 0
    return price


def _rounded(
    whole: Floats, whole_low: Floats, error: Floats | float, number: Floats
) -> tuple[Floats, Bools]:
    """(whole + whole_low)/number as a double, and where an error of the sum cannot change it."""
    quotient = whole / number
    taken, taken_low = two_product(quotient, number)
    correction = (((whole - taken) - taken_low) + whole_low) / number
    spread = quotient * 2.0**-90 + error / number
    lower, upper = quotient + (correction - spread), quotient + (correction + spread)
    return upper, lower == upper


def _by_hand(rates: Rates, number: int, row: int) -> float:
    """One price in exact integers, as core has it; NaN where a rate has overflowed: core's row."""
    parts: list[float] = [*rates.high[row].tolist(), *rates.low[row].tolist()]
    if not all(map(math.isfinite, parts)):
        return math.nan
    ratios = [part.as_integer_ratio() for part in parts if part]
    scale = max((denominator for _, denominator in ratios), default=1)
    whole = sum(numerator * (scale // denominator) for numerator, denominator in ratios)
    try:
        return whole / (number * scale)
    except OverflowError:
        return math.nan
