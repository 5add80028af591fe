"""Shares against exact fractions: what is declared sure is right, in both ways of knowing."""

import random
from fractions import Fraction

import numpy as np
import pytest

from fairlead.fleet.fill import Level, shadow_price
from fairlead.fleet.shares import BLUR, Rates, shares, sum_rows, two_product, two_sum


def exactly(rates: Rates, row: int) -> list[Fraction]:
    return [Fraction(a) + Fraction(b) for a, b in zip(rates.high[row], rates.low[row], strict=True)]


def random_rates(rng: np.random.Generator, *, rows: int, width: int) -> Rates:
    weight = rng.integers(0, 2_000, (rows, width)) / rng.choice([1, 3, 8], (rows, 1))
    high, low = two_product(weight, rng.random((rows, width)))
    return Rates(high, low)


@pytest.mark.parametrize("width", [1, 2, 3, 17, 128])
def test_pairs_are_exact(width: int) -> None:
    """Sums and products of two doubles lose nothing; a row's sum is off by less than 2^-99."""
    rng = np.random.default_rng(width)
    a, b = rng.random((4, width)) * 1e9, rng.random((4, width))
    for operation, made in (("+", two_sum(a, b)), ("*", two_product(a, b))):
        for x, y, high, low in zip(a.flat, b.flat, made[0].flat, made[1].flat, strict=True):
            true = Fraction(x) + Fraction(y) if operation == "+" else Fraction(x) * Fraction(y)
            assert Fraction(high) + Fraction(low) == true
    high, low = sum_rows(*two_product(a, b))
    for row in range(4):
        true = sum(
            (Fraction(x) * Fraction(y) for x, y in zip(a[row], b[row], strict=True)), Fraction()
        )
        assert abs(Fraction(high[row, 0]) + Fraction(low[row, 0]) - true) <= true / 2**99


@pytest.mark.parametrize("kind", ["sharp", "exact"])
def test_floors_and_remainders(kind: str) -> None:
    """Floors are exact; keys order the remainders wherever they are further apart than BLUR."""
    rng = np.random.default_rng(1)
    rates = random_rates(rng, rows=60, width=12)
    if kind == "exact":
        rates = Rates(np.rint(rates.high) / 8, np.zeros_like(rates.low))
    number = rng.integers(1, 10**6, 60)
    found = shares(number, rates)
    assert found.exact.all() == (kind == "exact")
    assert found.sure.all()
    for row in range(60):
        true = exactly(rates, row)
        parts = [int(number[row]) * rate / sum(true) for rate in true]
        assert found.floor[row].tolist() == [part // 1 for part in parts]
        unit = sum(found.key[row]) if kind == "exact" else 2**53
        if kind == "sharp":
            for part, key, rate in zip(parts, found.key[row].tolist(), true, strict=True):
                assert rate == 0 or abs(part % 1 * unit - key) < BLUR / 2
        else:
            order = sorted(range(12), key=lambda cell: (-(parts[cell] % 1), cell))
            assert np.argsort(-found.key[row], kind="stable").tolist() == order


def test_whole_shares_are_exact_or_unsure() -> None:
    """Ratios 1:2:4 over 700: whole in exact integers, not sure where rates have 106 bits."""
    plain = Rates(np.array([[0.5, 1.0, 2.0]]), np.zeros((1, 3)))
    assert shares(np.array([700]), plain).floor.tolist() == [[100, 200, 400]]
    odd = Rates(*two_product(np.array([[0.7, 1.4, 2.8]]), np.array([[0.3, 0.3, 0.3]])))
    assert not shares(np.array([700]), odd).sure.any()


def test_equal_rates_are_exact_whatever_they_are() -> None:
    """Replicas with bids of 106 bits divide like ones."""
    third = Rates(*two_product(np.full((1, 3), 1 / 3), np.full((1, 3), 0.7)))
    found = shares(np.array([10]), third)
    assert found.exact.all()
    assert found.floor.tolist() == [[3, 3, 3]]


def test_prices_are_rounded_correctly() -> None:
    """Σ rates / number to the last bit, ties included, from 5e-324 to beyond every double."""
    rng, chance = np.random.default_rng(2), random.Random(2)
    rates = random_rates(rng, rows=200, width=5)
    number = np.array([chance.choice((0, 1, 2, 400, 1400, 10**12)) for _ in range(200)])
    rates.high[:3], rates.low[:3] = 2.0**-1060, 0.0
    rates.high[3:6], rates.low[3:6] = 1e308, 0.0
    number[:6] = 7, 1, 2, 1, 3, 10**12
    with np.errstate(over="ignore", invalid="ignore"):
        prices = shadow_price(Level(np.zeros((200, 5), dtype=np.int64), number, rates))
    for row, price in enumerate(prices.tolist()):
        if number[row] == 0:
            assert np.isnan(price)
            continue
        true = sum(exactly(rates, row), Fraction()) / int(number[row])
        try:
            assert price == true.numerator / true.denominator
        except OverflowError:
            assert np.isnan(price)
