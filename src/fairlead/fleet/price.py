"""The shadow price lambda = Σ rates / number, rounded as core's division of integers rounds it."""

import math

import numpy as np

from fairlead.fleet.columns import Floats
from fairlead.fleet.double_double import sum_rows, two_product
from fairlead.fleet.level import Level
from fairlead.fleet.shares import Rates

# Away from overflow and from subnormal results, where scaling by a power of two would round.
_EXPONENT_MAX = 950


def shadow_price(level: Level) -> Floats:
    """The price of every row, NaN for core's None.

    Σ rates is known to 2^-99 and divided to about 2^-100. Where the rounding to a double changes
    within 2^-90 of that (Ziv's test; often an exact tie), Python's integers decide.
    """
    rates, exponent = level.rising.scaled()
    whole, whole_low = sum_rows(*rates)
    number = np.maximum(level.number, 1).astype(np.float64)[:, None]
    quotient = whole / number
    taken, taken_low = two_product(quotient, number)
    correction = (((whole - taken) - taken_low) + whole_low) / number
    spread = quotient * 2.0**-90
    lower, upper = quotient + (correction - spread), quotient + (correction + spread)
    sure = (lower == upper)[:, 0] & (np.abs(exponent) < _EXPONENT_MAX)
    price: Floats = np.ldexp(upper[:, 0], np.where(sure, exponent, 0))
    for row in np.flatnonzero(~sure & (level.number > 0)).tolist():
        price[row] = _by_hand(level.rising, int(level.number[row]), row)
    price[level.number == 0] = np.nan  # t is 0
    return price


def _by_hand(rates: Rates, number: int, row: int) -> float:
    """One price in exact integers, as core has it."""
    parts: list[float] = [*rates.high[row].tolist(), *rates.low[row].tolist()]
    ratios = [part.as_integer_ratio() for part in parts if part]
    scale = max((denominator for _, denominator in ratios), default=1)
    whole = sum(numerator * (scale // denominator) for numerator, denominator in ratios)
    try:
        return whole / (number * scale)
    except OverflowError:
        return math.nan
