"""Water-fills in plain doubles: what is declared sure is right, and almost every row is."""

from fractions import Fraction

import numpy as np
import pytest

from fairlead.core.apportion import water_fill
from fairlead.core.claims import Claim
from fairlead.fleet.quick import Fills, quick_fill, sum_rising

ROWS, WIDTH = 200, 30


def random_fills(seed: int, *, demands: bool, few_weights: bool) -> Fills:
    """Claims with bounds on both sides of the level; weights of any kind, or hardly any."""
    rng = np.random.default_rng(seed)
    shape = (ROWS, WIDTH)
    weight = rng.integers(0, 2_000, shape) / rng.choice([1, 3, 8], (ROWS, 1))
    if few_weights:
        weight = rng.choice([0.0, 1.0, 1.1, 3.0], shape)
    demand = rng.random(shape) if demands else None
    rate = weight if demand is None else weight * demand
    least = np.where(rng.random(shape) < 0.3, rng.integers(0, 300, shape), 0).astype(float)
    most = least + rng.integers(0, 900, shape).astype(float)
    tops = np.where(rate > 0, most, least).sum(axis=1)
    lowest = least.sum(axis=1)
    total = np.floor(lowest + (tops - lowest) * rng.random(ROWS))
    return Fills(total, weight, demand, rate, least, most)


def exact_rates(fills: Fills, row: int) -> list[Fraction]:
    demand = np.ones(WIDTH) if fills.demand is None else fills.demand[row]
    pairs = zip(fills.weight[row].tolist(), demand.tolist(), strict=True)
    return [Fraction(weight) * Fraction(part) for weight, part in pairs]


def exact_grants(fills: Fills, row: int) -> list[int]:
    rates = exact_rates(fills, row)
    scale = max(rate.denominator for rate in rates)  # powers of two
    claims = [
        Claim(0, int(rate * scale), int(low), int(high))
        for rate, low, high in zip(rates, fills.least[row], fills.most[row], strict=True)
    ]
    return water_fill(int(fills.total[row]), claims).grants


@pytest.mark.parametrize("demands", [False, True])
@pytest.mark.parametrize("few_weights", [False, True])
def test_what_is_sure_is_right(demands: bool, few_weights: bool) -> None:
    """Every grant of a sure row is core's; hardly a row of measured demands is left open."""
    fills = random_fills(1, demands=demands, few_weights=few_weights)
    with np.errstate(all="ignore"):
        filled = quick_fill(fills)
    for row in np.flatnonzero(filled.sure).tolist():
        assert filled.grants[row].tolist() == exact_grants(fills, row)
    assert filled.sure.mean() > (0.95 if demands else 0.5)


@pytest.mark.parametrize("demands", [False, True])
def test_sums_of_rates_keep_their_bound(demands: bool) -> None:
    """High and low together are off by less than the error that is given, which is tiny."""
    fills = random_fills(2, demands=demands, few_weights=False)
    with np.errstate(all="ignore"):
        filled = quick_fill(fills)
        high, low, error = sum_rising(fills, filled)
    for row in np.flatnonzero(filled.sure).tolist():
        rising = zip(exact_rates(fills, row), filled.rising[row].tolist(), strict=True)
        true = sum((rate for rate, part in rising if part), Fraction())
        found = Fraction(high[row]) + Fraction(low[row])
        assert abs(found - true) <= Fraction(error[row]) < true / 2**55


def test_a_claim_put_aside_at_the_wrong_bound_is_not_sure() -> None:
    """The bounds of a claim lie on both sides of a level that the first rounds overshoot."""
    least, most = np.array([[0.0, 90.0, 0.0]]), np.array([[10.0, 91.0, 1_000.0]])
    weight = np.array([[1_000.0, 1.0, 10.0]])
    with np.errstate(all="ignore"):
        filled = quick_fill(Fills(np.array([200.0]), weight, None, weight, least, most))
    row = [Claim(0, 1000, 0, 10), Claim(0, 1, 90, 91), Claim(0, 10, 0, 1000)]
    assert not filled.sure[0] or filled.grants[0].tolist() == water_fill(200, row).grants


def test_rates_that_only_round_to_the_same_are_no_tie() -> None:
    """Two products with one double: which is larger is not for doubles to say."""
    weight = np.array([[1.1, 1.0, 1.1 * 0.3, 7.0]])
    demand = np.array([[0.3, 0.7, 1.0, 1.0]])
    rate = weight * demand
    assert rate[0, 0] == rate[0, 2]
    bounds = np.zeros_like(rate), np.full_like(rate, 1e6)
    with np.errstate(all="ignore"):
        sure = [
            quick_fill(Fills(np.array([float(total)]), weight, demand, rate, *bounds)).sure[0]
            for total in range(100, 140)
        ]
    assert not all(sure)
