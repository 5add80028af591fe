"""Water-fills in doubles: what they grant is exact, and what they cannot prove they leave alone."""

import random

import pytest

from fairlead.core.apportion import fill_grants, largest_remainder, water_fill
from fairlead.core.claims import Claim
from fairlead.core.rough import EXACT_MAX, SHARED_MAX, rough_fill, rough_price, rough_shares
from fairlead.core.units import quotient


def random_claims(rng: random.Random) -> list[Claim]:
    """Whole rates, some equal; bounds on both sides of any level."""
    claims = []
    for _ in range(rng.randint(1, 12)):
        base = rng.choice((0, rng.randint(0, 300)))
        low = base + rng.choice((0, 0, rng.randint(0, 200)))
        rate = rng.choice((0, 1, 3, rng.randint(1, 5_000)))
        high = low + rng.randint(0, 900)
        claims.append(Claim(base, rate, low, high, weight=float(rate)))
    return claims


def test_what_doubles_grant_is_exact() -> None:
    """Grants and prices are those of the exact fill wherever doubles find any, which is mostly."""
    rng, found, priced = random.Random("rough"), 0, 0
    for _ in range(2_000):
        claims = random_claims(rng)
        start = sum(max(claim.base, claim.low) for claim in claims)
        tops = sum(claim.high if claim.rate else claim.low for claim in claims)
        total = rng.randint(start, max(start, tops))
        exact = water_fill(total, claims)
        grants = rough_fill(total, claims)
        assert fill_grants(total, claims) == exact.grants
        if grants:
            found += 1
            assert grants == exact.grants
            price = rough_price(total, claims, grants)
            priced += price > 0
            assert price in (0.0, quotient(exact.denominator, exact.numerator))
    assert found > 1_000
    assert priced > 0.9 * found


@pytest.mark.parametrize(
    ("total", "claims"),
    [
        pytest.param(10, [Claim(5, 1, 0, 4, weight=1.0)], id="a base above its bound"),
        pytest.param(10, [Claim(0, 1, 0, EXACT_MAX + 1, weight=1.0)], id="a size beyond doubles"),
        pytest.param(10, [Claim(0, 1, 0, 90, weight=1e-300)], id="a rate beyond its range"),
        pytest.param(10, [Claim(10, 1, 10, 90, weight=1.0)], id="nothing to hand out"),
        pytest.param(10, [Claim(0, 1, 0, 90, weight=1.0)], id="a whole share"),
        pytest.param(
            24,
            [Claim(0, 1, 0, 3, weight=0.1), Claim(0, 7, 0, 99, weight=0.7)],
            id="a share that rounding alone puts above its bound",
        ),
        pytest.param(
            10**12 + 1,
            [Claim(0, 1, 0, 2 * 10**12, weight=rate) for rate in (1.0, 1.1, 1.3) * 50],
            id="shares known to less than a millicore",
        ),
    ],
)
def test_what_doubles_cannot_tell_is_left_alone(total: int, claims: list[Claim]) -> None:
    assert rough_fill(total, claims) == []


def test_rates_that_only_round_to_the_same_are_no_tie() -> None:
    """Two products with one double: which of them is larger is not for doubles to say."""
    pairs = ((1.1, 0.3), (1.0, 0.7), (1.1 * 0.3, 1.0), (7.0, 1.0))
    claims = [Claim(0, 0, 0, 10**6, weight=weight, demand=part) for weight, part in pairs]
    assert claims[0].pace == claims[2].pace
    assert not all(rough_fill(total, claims) for total in range(100, 140))


def test_rates_beyond_doubles_are_filled_exactly() -> None:
    big = 10**30
    assert fill_grants(7, [Claim(0, big, 0, 9), Claim(0, 2 * big, 0, 9)]) == [2, 5]


def test_a_price_of_weights_beyond_their_range_is_left_alone() -> None:
    """1e200 at a demand of 1e-190 is a rate like any other; cutting the weight is not safe."""
    claims = [Claim(0, 0, 0, 900, weight=1e200, demand=part) for part in (1e-190, 3.3e-190)]
    grants = rough_fill(100, claims)
    assert sum(grants) == 100
    assert rough_price(100, claims, grants) == 0


def random_shares(rng: random.Random) -> list[float]:
    """Of any size beside each other, some the same, some a hair apart, some nothing."""
    shares = [
        rng.choice((0.0, 1.0, rng.random(), 2.0 ** -rng.randint(1, 60)))
        for _ in range(rng.randint(1, 40))
    ]
    shares += [shares[0] * (1 + rng.randint(-3, 3) * 2.0**-52) for _ in range(rng.randint(0, 3))]
    whole = sum(shares)
    return [share / whole for share in shares] if whole else shares


def test_what_doubles_divide_is_exact() -> None:
    """Shares are divided as integers divide them wherever doubles find anything."""
    rng, found = random.Random("shares"), 0
    for _ in range(5_000):
        total, shares = rng.choice((1, 16, 256, 1_000, SHARED_MAX)), random_shares(rng)
        divided = rough_shares(total, shares)
        if divided:
            found += 1
            assert divided == largest_remainder(total, [int(share * 2.0**106) for share in shares])
    assert found > 500


@pytest.mark.parametrize(
    ("total", "shares"),
    [
        pytest.param(100, [], id="no shares"),
        pytest.param(100, [0.0, 0.0], id="nothing but zeros"),
        pytest.param(100, [1.3, 1.3], id="shares that add up to more than about 1"),
        pytest.param(0, [0.3, 0.7], id="nothing to divide"),
        pytest.param(SHARED_MAX + 1, [0.3, 0.7], id="more than doubles are trusted with"),
        pytest.param(256, [0.25, 0.75], id="whole quotas"),
        pytest.param(256, [0.3, 0.7 - 1e-17, 1e-17], id="a quota that is next to nothing"),
        pytest.param(256, [1 / 3, 1 / 3, 1 / 3], id="equal remainders"),
    ],
)
def test_doubles_divide_nothing_that_they_cannot_prove(total: int, shares: list[float]) -> None:
    assert rough_shares(total, shares) == []
