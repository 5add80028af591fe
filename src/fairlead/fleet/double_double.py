"""Numbers as unevaluated sums of two doubles: about 106 bits, from error-free transformations.

Only what `shares` and `price` need. The theorems are Dekker's and Knuth's; the bounds for sums of
pairs are those of Joldes, Muller and Popescu, "Tight and rigorous error bounds for basic building
blocks of double-word arithmetic" (2017), with u = 2^-53.
"""

from fairlead.fleet.columns import Floats

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
