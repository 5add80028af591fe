"""Exact division: against a slow, obvious implementation with fractions, and at its edges."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.apportion import Fill, fill_grants, largest_remainder, water_fill
from fairlead.core.claims import Claim
from fairlead.core.invariant import InvariantBroken

small = st.integers(0, 50)
large = st.integers(0, 10**12)


@given(st.one_of(small, large), st.lists(st.one_of(small, large), max_size=12))
def test_largest_remainder_adds_up(total: int, shares: list[int]) -> None:
    """Σ = total exactly, nobody is further than one unit from its exact share."""
    parts = largest_remainder(total, shares)
    whole = sum(shares)
    if whole == 0:
        assert parts == [0] * len(shares)
        return
    assert sum(parts) == total
    for part, share in zip(parts, shares, strict=True):
        assert abs(part - Fraction(total * share, whole)) < 1


def test_ties_are_settled_in_order() -> None:
    """Equal remainders: the first claims get the leftovers."""
    assert largest_remainder(2000, [1, 1, 1]) == [667, 667, 666]
    assert largest_remainder(1, [5, 5]) == [1, 0]


def settled(total: int, exact: list[Fraction]) -> list[int]:
    """The definition: floors, and the rest by one unit each to the largest fractions, in order."""
    floors = [part.numerator // part.denominator for part in exact]
    order = sorted(range(len(exact)), key=lambda at: (floors[at] - exact[at], at))
    for at in order[: total - sum(floors)]:
        floors[at] += 1
    return floors


@given(st.one_of(small, large), st.lists(st.one_of(small, large), max_size=12))
def test_leftovers_go_to_the_largest_remainders(total: int, shares: list[int]) -> None:
    exact = [Fraction(total * share, sum(shares) or 1) for share in shares]
    assert largest_remainder(total, shares) == settled(total if any(shares) else 0, exact)


@st.composite
def claim_lists(draw: st.DrawFn) -> list[Claim]:
    claims = []
    for _ in range(draw(st.integers(0, 8))):
        low = draw(st.one_of(small, large))
        base = draw(st.one_of(st.just(low), st.integers(0, low + 20)))
        high = max(low, draw(st.one_of(small, large)))
        claims.append(Claim(base, draw(st.one_of(small, large)), low, high))
    return claims


def level_by_bisection(total: int, claims: list[Claim], level: Fraction) -> Fraction:
    return sum((min(max(c.base + c.rate * level, c.low), c.high) for c in claims), Fraction(0))


@given(claim_lists(), st.one_of(small, large, st.integers(0, 10**13)))
def test_water_fill_solves_its_equation(claims: list[Claim], extra: int) -> None:
    """Σ clamp(base + rate*t, low, high) = total holds at the level it returns, exactly."""
    start = sum(min(max(c.base, c.low), c.high) for c in claims)
    total = start + extra
    fill = water_fill(total, claims)
    tops = sum(c.high if c.rate else min(max(c.base, c.low), c.high) for c in claims)
    if fill.denominator == 0:
        assert tops <= total
        assert sum(fill.grants) == tops
        return
    level = Fraction(fill.numerator, fill.denominator)
    assert level >= 0
    assert level_by_bisection(total, claims, level) == total
    assert sum(fill.grants) == total
    for claim, grant in zip(claims, fill.grants, strict=True):
        exact = min(max(claim.base + claim.rate * level, claim.low), claim.high)
        assert claim.low <= grant <= claim.high
        assert abs(grant - exact) < 1


@given(claim_lists(), st.one_of(small, large))
def test_fractions_of_a_fill_are_settled_as_those_of_a_division(
    claims: list[Claim], extra: int
) -> None:
    """A claim at a bound has no fraction; the faster way gives the same grants."""
    total = sum(min(max(c.base, c.low), c.high) for c in claims) + extra
    fill = water_fill(total, claims)
    assert fill_grants(total, claims) == fill.grants
    assert all(type(grant) is int for grant in fill.grants)
    if fill.denominator:
        level = Fraction(fill.numerator, fill.denominator)
        exact = [min(max(c.base + c.rate * level, c.low), Fraction(c.high)) for c in claims]
        assert fill.grants == settled(total, exact)


def test_a_fill_says_at_which_level_it_ends() -> None:
    """At once where nothing is missing; where all are at their high bounds just then, or never."""
    claims = [Claim(0, 2, 0, 5), Claim(0, 0, 1, 9)]
    assert water_fill(1, claims) == Fill([0, 1], 0, 1)
    assert water_fill(2, claims) == Fill([1, 1], 1, 2)
    assert water_fill(6, claims) == Fill([5, 1], 5, 2)
    assert water_fill(7, claims) == Fill([5, 1], 0, 0)
    assert water_fill(0, []) == Fill([], 0, 1)
    assert water_fill(1, []) == Fill([], 0, 0)


def test_the_leftover_of_a_fill_goes_to_the_largest_remainder() -> None:
    """11 by 1, 2 and 4: 4/7, 1/7 and 2/7 are left; the first has the least, and gets it."""
    claims = [Claim(0, rate, 0, 99) for rate in (1, 2, 4)]
    assert water_fill(11, claims).grants == largest_remainder(11, [1, 2, 4]) == [2, 3, 6]


@pytest.mark.parametrize("first", [Claim(0, 3, 0, 1), Claim(0, 1, 1, 5)])
def test_a_claim_at_a_bound_gets_no_leftover(first: Claim) -> None:
    """At the level 1/2 it would have a fraction of its own, and comes first."""
    claims = [first, Claim(0, 1, 0, 5), Claim(0, 1, 0, 5)]
    assert water_fill(2, claims) == Fill([1, 1, 0], 1, 2)


def test_water_fill_does_not_start_above_its_total() -> None:
    """A caller that promised more than there is has a bug."""
    with pytest.raises(InvariantBroken, match="starts at or below"):
        water_fill(9, [Claim(10, 1, 10, 20)])


def test_nearly_equal_levels_are_told_apart() -> None:
    """Two saturation points that agree to 1 in 10^24 are still ordered exactly."""
    big = 10**12
    claims = [Claim(0, big, 0, big - 1), Claim(0, big - 1, 0, big - 2), Claim(0, 1, 0, big)]
    for total in (2 * big - 4, 2 * big - 3, 2 * big - 2):
        assert sum(water_fill(total, claims).grants) == total


def test_events_next_to_each_other_come_in_their_order() -> None:
    """The second claim stops at 1 - 1/(n - 1), the first one at 1 - 1/n: the level between them is
    that of the first and the third.
    """
    big = 10**12
    claims = [Claim(0, big, 0, big - 1), Claim(0, big - 1, 0, big - 2)]
    claims.append(Claim(0, 3 * big * (big - 1), 0, 10**40))
    total = 2 * big - 2 + 3 * big * (big - 2)
    fill = water_fill(total, claims)
    level = Fraction(fill.numerator, fill.denominator)
    assert Fraction(big - 2, big - 1) < level < Fraction(big - 1, big)
    assert level_by_bisection(total, claims, level) == total
