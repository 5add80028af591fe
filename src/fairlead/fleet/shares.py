"""Divide numbers in proportion to rates: the floors and the remainders, or an honest "not sure".

Row by row, the share of a claim is number·rate/Σrates. Its floor is known *exactly* where the
rates, scaled by a power of two, are integers so small that every product stays below 2^62.
Otherwise (a bid is the product of two doubles and has 106 bits) the *sharp* way computes the
remainder to about 100 bits, which decides the floor unless the share lies within 2^-90 of a whole
number, relatively. Remainders come as integer keys: those of the sharp way are off by less than
`BLUR`.

Pairs of doubles (high, low) are unevaluated sums of about 106 bits. The theorems are Dekker's and
Knuth's; the bounds for sums of pairs are those of Joldes, Muller and Popescu, "Tight and rigorous
error bounds for basic building blocks of double-word arithmetic" (2017), with u = 2^-53.
"""

from typing import NamedTuple

import numpy as np

from fairlead.fleet.snapshot import Bools, Floats, Ints

_SPLITTER = float(2**27 + 1)


def two_sum(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """The rounded sum and its error: a + b = sum + error, exactly."""
    total = a + b
    other = total - a
    return total, (a - (total - other)) + (b - other)


def two_product(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """The rounded product and its error, exactly while nothing over- or underflows.

    Numpy has no fused multiply-add, so both factors are split into halves of 26 bits.
    """
    product = a * b
    a_high, a_low = _split(a)
    b_high, b_low = _split(b)
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error


def _split(a: Floats) -> tuple[Floats, Floats]:
    scaled = _SPLITTER * a
    high = scaled - (scaled - a)
    return high, a - high


def sum_rows(high: Floats, low: Floats) -> tuple[Floats, Floats]:
    """Σ over each row of non-negative pairs, as columns (high, low).

    A tree of pair sums of relative error 3u² each: at most 3·log2(n)·u², below 2^-99 for 2^20
    numbers. Halves are folded onto each other, so that each step is one vector operation.
    """
    high, low = high.copy(), low.copy()
    width = high.shape[1]
    while width > 1:
        half, rest = width // 2, width - width // 2
        left, right = slice(0, half), slice(rest, width)
        total, error = two_sum(high[:, left], high[:, right])
        error += low[:, left] + low[:, right]
        high[:, left] = total + error
        low[:, left] = error - (high[:, left] - total)
        width = rest
    return high[:, :1], low[:, :1]


# Products stay this far below 2^63 because the bound itself is checked in doubles.
_PRODUCT_MAX = 2.0**62
_KEY_ONE = 2.0**53
BLUR = 32
_NO_CLAIM = -(1 << 40)
DUST = 2.0**-130
# Above the exponent of any double.
_FAR = 5000


class Rates(NamedTuple):
    """Rates as pairs of doubles, high + low. A rate of 0 takes no part."""

    high: Floats
    low: Floats

    def rows(self, mask: Bools) -> "Rates":
        return Rates(self.high[mask], self.low[mask])

    def where(self, taking: Bools) -> "Rates":
        return Rates(self.high * taking, self.low * taking)

    def without_dust(self) -> tuple["Rates", Bools]:
        """Rates that are nothing beside the largest of their row dropped; the rows that had any.

        A demand that decays by a tenth each second is 1e-100 after forty minutes. All such bids
        together move another claim's share by less than 2^-110 of it and never earn a unit: their
        shares add up to less than one, so the others have remainders enough for every unit.
        """
        peak = self.high.max(axis=1)[:, None]
        dust = (self.high < peak * DUST) & (self.high > 0)
        dusty: Bools = dust.any(axis=1)
        if not dusty.any():
            return self, dusty
        return Rates(self.high * ~dust, self.low * ~dust), dusty

    def scaled(self) -> tuple["Rates", Ints]:
        """Each row over a power of two, so that its largest rate lies in [0.5, 1)."""
        _, exponent = np.frexp(self.high.max(axis=1))
        by = -exponent[:, None]
        return Rates(np.ldexp(self.high, by), np.ldexp(self.low, by)), exponent.astype(np.int64)


class Shares(NamedTuple):
    """Per cell the floor of its share and the key of its remainder; per row how they were found."""

    floor: Ints
    key: Ints
    exact: Bools
    sure: Bools


def shares(number: Ints, rates: Rates) -> Shares:
    grid = _on_grid(rates)
    bound = np.maximum(number, grid.shape[1]).astype(np.float64)
    exact = grid.max(axis=1) * bound < _PRODUCT_MAX
    if exact.all():
        floor, key = _exact(number, grid)
        return Shares(floor, key, exact, exact)
    floor, key = np.empty(grid.shape, dtype=np.int64), np.empty(grid.shape, dtype=np.int64)
    sure, blurred = exact.copy(), ~exact
    floor[exact], key[exact] = _exact(number[exact], grid[exact])
    floor[blurred], key[blurred], sure[blurred] = _sharp(number[blurred], rates.rows(blurred))
    return Shares(floor, key, exact, sure)


def _on_grid(rates: Rates) -> Floats:
    """The rates as integers in doubles, row by row over one power of two; infinite if too fine."""
    grid = rates.high.copy()
    alike = _alike(rates)
    grid[alike] = rates.high[alike] > 0  # only ratios matter
    fine = ~alike & rates.low.any(axis=1)
    grid[fine] = np.inf
    broken = ~fine & (np.rint(grid) != grid).any(axis=1)
    if broken.any():
        grid[broken] = _lift(grid[broken])
    return grid


def _alike(rates: Rates) -> Bools:
    """Rows whose rates are all the same (replicas, or a single claim)."""
    peak = rates.high.max(axis=1)[:, None]
    alike: Bools = ((rates.high == peak) | (rates.high == 0)).all(axis=1)
    tail, taking = rates.low[alike], rates.high[alike] > 0
    lowest = np.where(taking, tail, np.inf).min(axis=1)
    alike[alike] = lowest >= np.where(taking, tail, -np.inf).max(axis=1)
    return alike


def _lift(rate: Floats) -> Floats:
    """Multiply each row by the power of two that makes its finest double an integer."""
    mantissa, exponent = np.frexp(rate)
    bits = (mantissa * _KEY_ONE).astype(np.int64)
    _, trailing = np.frexp((bits & -bits).astype(np.float64))
    # rate = bits·2^(exponent-53), and its lowest bit is 2^(trailing-1).
    finest = np.where(bits == 0, _FAR, exponent + trailing).min(axis=1)
    lifted: Floats = np.ldexp(rate, (54 - finest)[:, None])
    return lifted


def _exact(number: Ints, grid: Floats) -> tuple[Ints, Ints]:
    """Quotients and remainders of integers whose products fit int64."""
    rates = grid.astype(np.int64)
    whole = np.maximum(rates.sum(axis=1), 1)[:, None]
    product = rates * number[:, None]
    floor = product // whole
    return floor, product - floor * whole


def _sharp(number: Ints, rates: Rates) -> tuple[Ints, Ints, Bools]:
    """Floors and keys from remainders of about 100 bits, and the rows where they are certain.

    With p = rate·number and w = Σrates, the remainder p - q·w of the nearest whole q is

        p_high - q·w_high, exactly, as pairs, plus p_low - q·w_low, rounded

    Errors: 2^-99·q·w from w, and a few roundings of terms below 2^-52·q·w: together below
    2^-98·q·w. The bound taken is 256 times that. What underflows when the row is scaled to a peak
    of 1 is below 2^-1000. Where q is 0 the remainder is p itself, certainly not negative.
    """
    (part, part_low), _ = rates.scaled()
    whole, whole_low = sum_rows(part, part_low)
    times = number.astype(np.float64)[:, None]
    product, product_low = two_product(part, times)
    product_low += part_low * times
    nearest = np.rint(product / whole)
    taken, taken_low = two_product(nearest, whole)
    rest, rest_low = two_sum(product, -taken)
    rest += rest_low + ((product_low - taken_low) - nearest * whole_low)
    sure = ((nearest == 0) | (np.abs(rest) > taken * 2.0**-90)).all(axis=1)
    below = rest < 0
    key = ((rest / whole + below) * _KEY_ONE).astype(np.int64)
    key[part == 0] = _NO_CLAIM
    return (nearest - below).astype(np.int64), key, sure
