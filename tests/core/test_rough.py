"""Water-fills in doubles: what they grant is exact, and what they cannot prove they leave alone."""

import random
from fractions import Fraction
from math import nextafter

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
        pytest.param(10, [Claim(0, 1, 0, 10**400, weight=1.0)], id="a size that is no double"),
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
        pytest.param(
            10**11 + 1,
            [Claim(0, 1, 0, 2 * 10**12, weight=rate) for rate in (1.0, 1.1, 1.3) * 50],
            id="shares whose sum is known to half a millicore",
        ),
    ],
)
def test_what_doubles_cannot_tell_is_left_alone(total: int, claims: list[Claim]) -> None:
    assert rough_fill(total, claims) == []


def test_rates_that_only_round_to_the_same_are_no_tie() -> None:
    """Two products with one double: which of them is larger is not for doubles to say."""
    for twin in ((1.1 * 0.46, 1.0), (1.1, nextafter(0.46, 1))):
        pairs = ((1.1, 0.46), (1.0, 0.7), twin, (7.0, 1.0))
        claims = [Claim(0, 0, 0, 10**6, weight=weight, demand=part) for weight, part in pairs]
        assert claims[0].pace == claims[2].pace
        assert not all(rough_fill(total, claims) for total in range(100, 140))


SMALL, FIRST, SECOND = 10**6, 11_453_246_124, 14_316_557_652


@pytest.mark.parametrize(
    ("total", "claims"),
    [
        pytest.param(
            2 * FIRST + 2 * SMALL + 4,
            [
                Claim(0, 2**33, FIRST - 1, FIRST),
                Claim(0, 2**33, FIRST + 2 * SMALL, 10**12),
                *(Claim(0, rate, 0, 9) for rate in (1, 2)),
            ],
            id="the level falls",
        ),
        pytest.param(
            2 * SECOND - 2 * SMALL + 5,
            [
                Claim(0, 2**33, SECOND, SECOND + 1),
                Claim(0, 2**33, 0, SECOND - 2 * SMALL),
                *(Claim(0, rate, 0, 9) for rate in (1, 1, 1)),
            ],
            id="the level rises",
        ),
    ],
)
def test_a_claim_at_the_wrong_one_of_its_bounds_is_noticed(total: int, claims: list[Claim]) -> None:
    """The first two are put aside at once, as far off on either side. What is left rises so slowly
    that the level moves far, past both bounds of the first one, which are a unit apart.
    """
    assert fill_grants(total, claims) == water_fill(total, claims).grants


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
        pytest.param(7, [0.2, 0.3], id="shares that add up to a half"),
        pytest.param(7, [0.7, 1.3], id="shares that add up to 2"),
        pytest.param(7, [1.0, 1.3], id="shares that add up to more than 2"),
        pytest.param(0, [0.3, 0.7], id="nothing to divide"),
        pytest.param(SHARED_MAX + 1, [0.3, 0.7], id="more than doubles are trusted with"),
        pytest.param(256, [0.25, 0.75], id="whole quotas"),
        pytest.param(256, [0.3, 0.7 - 1e-17, 1e-17], id="a quota that is next to nothing"),
        pytest.param(256, [1 / 3, 1 / 3, 1 / 3], id="equal remainders"),
    ],
)
def test_doubles_divide_nothing_that_they_cannot_prove(total: int, shares: list[float]) -> None:
    assert rough_shares(total, shares) == []


def test_doubles_divide_a_single_unit_and_the_most_that_they_may() -> None:
    """By shares that add up to less than 1, too: 1.75 and 5.25 of 7."""
    assert rough_shares(1, [0.3, 0.7]) == [0, 1]
    assert rough_shares(SHARED_MAX, [0.3, 0.7]) == [314_573, 734_003]
    assert rough_shares(7, [0.2, 0.6]) == [2, 5]


@pytest.mark.parametrize("side", [1, -1])
def test_a_quota_too_near_to_a_whole_number_is_left_alone(side: int) -> None:
    """Above or below it: doubles may be off by `blur`."""
    rng = random.Random(side)
    for _ in range(200):
        total = rng.randint(1_000, SHARED_MAX)
        blur = 2.0**-52 * 11 * total
        near = (rng.randint(1, total // 4) + side * rng.uniform(0.4, 0.8) * blur) / total
        other = rng.uniform(0.2, 0.5)
        assert rough_shares(total, [near, other, 1 - near - other]) == []


def generic_claims(rng: random.Random) -> list[Claim]:
    """Rates of 40 bits: no two remainders are the same, and no share is near a bound."""
    claims = []
    for _ in range(rng.randint(2, 12)):
        base = rng.choice((0, rng.randint(0, 300)))
        low = base + rng.choice((0, 0, rng.randint(0, 200)))
        rate = rng.choice((0, *[rng.getrandbits(rng.randint(30, 40)) | 1] * 5))
        high = low + rng.choice((0, rng.randint(1, 900)))
        claims.append(Claim(base, rate, low, high, weight=float(rate)))
    return claims


def rising(claims: list[Claim], numerator: int, denominator: int) -> list[bool]:
    """Whose exact share lies between its bounds."""
    return [
        c.low * denominator < c.base * denominator + c.rate * numerator < c.high * denominator
        for c in claims
    ]


def test_doubles_find_every_fill_that_is_clear() -> None:
    """With several claims between their bounds and nothing near any of them, doubles can tell."""
    rng, clear = random.Random("clear"), 0
    for _ in range(600):
        claims = generic_claims(rng)
        start = sum(claim.low for claim in claims)
        tops = sum(claim.high if claim.rate else claim.low for claim in claims)
        total = rng.randint(start, max(start, tops))
        exact = water_fill(total, claims)
        if exact.denominator and sum(rising(claims, exact.numerator, exact.denominator)) > 1:
            clear += 1
            assert rough_fill(total, claims) == exact.grants
    assert clear > 200


def test_a_single_unit_and_the_largest_size_are_filled() -> None:
    claims = [Claim(0, 1, 0, EXACT_MAX, weight=1.0), Claim(0, 3, 0, EXACT_MAX, weight=3.0)]
    assert rough_fill(1, claims) == [0, 1]
    assert rough_fill(11, claims) == [3, 8]


def exact_price(total: int, claims: list[Claim]) -> Fraction:
    """Rates over what is left to claims that rise, all of which do."""
    rates = sum(Fraction(claim.weight) * Fraction(claim.demand) for claim in claims)
    return rates / (total - sum(claim.base for claim in claims))


def rising_claim(weight: float, demand: float = 1.0, base: int = 0) -> Claim:
    claim = Claim(base, 0, 0, EXACT_MAX, weight=weight, demand=demand)
    claim.rises = True
    return claim


def test_prices_of_products_are_rounded_once() -> None:
    """Weights of 53 bits at demands of 53 bits, of any size beside each other."""
    rng, priced = random.Random("prices"), 0
    for _ in range(500):
        scale = 2.0 ** rng.randint(-200, 200)
        claims = [
            rising_claim(
                rng.random() * scale * 2.0 ** -rng.choice((0, 0, rng.randint(0, 60))),
                rng.random() * 2.0 ** -rng.choice((0, 0, rng.randint(0, 60))),
                rng.randint(0, 9),
            )
            for _ in range(rng.choice((1, 2, 3, rng.randint(1, 40))))
        ]
        total = sum(claim.base for claim in claims) + rng.getrandbits(rng.choice((8, 20, 50))) + 1
        price = rough_price(total, claims, [])
        priced += price > 0
        assert price in (0.0, float(exact_price(total, claims)))
    assert priced > 425


def test_prices_next_to_halfway_are_rounded_right_or_left_alone() -> None:
    """A rate next to half of the last digit of another one: up, down, or not for doubles to say."""
    rng, priced, left = random.Random("halfway"), 0, 0
    for _ in range(2_000):
        first = rng.choice((1.0, 1.0 + 2.0**-52, 2.0 - 2.0**-52, 1.0 + rng.random()))
        half = 2.0**-53 * (1 + rng.choice((-1, 0, 1)) * 2.0 ** -rng.randint(1, 52))
        demand = rng.choice((1.0, 2.0**-30, 2.0**-53))
        claims = [rising_claim(first), rising_claim(half / demand, demand)]
        rng.shuffle(claims)
        total = 2 ** rng.randint(0, 20)
        price = rough_price(total, claims, [])
        priced, left = priced + (price > 0), left + (price == 0)
        assert price in (0.0, float(exact_price(total, claims)))
    assert priced > 400
    assert left > 100
    assert rough_price(1, [rising_claim(1.0), rising_claim(2.0**-53)], []) == 0


def test_a_price_too_near_to_halfway_is_left_alone() -> None:
    """A sum of two products may be off by 12 * 2^-76, on either side of half of the last digit."""

    def price(off: float) -> float:
        return rough_price(1, [rising_claim(1.0), rising_claim(2.0**-53 + off)], [])

    assert price(2.0**-73) == price(-(2.0**-73)) == 0
    assert (price(2.0**-71), price(-(2.0**-71))) == (1 + 2.0**-52, 1)


def test_products_of_factors_near_the_largest_add_up_exactly() -> None:
    """Many of them: the bits of their upper parts are as many as the sum has room for."""
    rng, priced = random.Random("large"), 0
    for _ in range(200):
        count = rng.choice((3, 13, 15))
        claims = [rising_claim(rng.uniform(0.9, 1), rng.uniform(0.9, 1)) for _ in range(count)]
        total = rng.randint(1, 2**20)
        price = rough_price(total, claims, [])
        priced += price > 0
        assert price in (0.0, float(exact_price(total, claims)))
    assert priced > 190


@pytest.mark.parametrize("odd", ["an upper bound", "a lower bound", "a whole number"])
def test_a_share_too_near_is_left_alone(odd: str) -> None:
    """Doubles may be off by `blur`: nothing nearer than that is decided, on either side."""
    rng, kept = random.Random(odd), 0
    for _ in range(200):
        claims = [Claim(0, 0, 0, 10**6, weight=rng.uniform(0.5, 2)) for _ in range(3)]
        total, size = rng.randint(50, 4_000), rng.randint(1, 1_000)
        level = total / sum(claim.weight for claim in claims)
        blur = 2.0**-52 * 12 * (total + size)
        near = (size + rng.choice((0, 1, -1)) * rng.random() * 0.9 * blur) / level
        low, high = {
            "an upper bound": (0, size),
            "a lower bound": (size, 10**6),
            "a whole number": (0, 10**6),
        }[odd]
        claims.insert(rng.randrange(4), Claim(0, 0, low, high, weight=near))
        assert rough_fill(total + size, claims) == []
        apart = [claim for claim in claims if claim.weight != near]
        kept += bool(rough_fill(total, apart))
    assert kept == 200
