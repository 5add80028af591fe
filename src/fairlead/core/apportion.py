"""The arithmetic every governor shares: exact division of a whole among claimants.

Two functions, both on integers only, both with ties settled by the order of the claims (callers
sort by id first):

- `largest_remainder` divides a total in proportion to shares;
- `water_fill` raises a common level t until every claim's clamp(base + rate*t, low, high) adds up.

Rounding to nearest would promise three equal bidders 2001 millicores of a 2000 node, so fractions
are floored first and the leftovers go to the largest remainders.
"""

from collections.abc import Sequence
from typing import NamedTuple

from fairlead.core.invariant import require


class Claim(NamedTuple):
    """One claimant of a water-fill: x(t) = clamp(base + rate*t, low, high)."""

    base: int
    rate: int
    low: int
    high: int


class Fill(NamedTuple):
    """Grants in the order of the claims, and the level t = numerator/denominator.

    `denominator` 0 means that no finite level uses up the total: every claim that rises is at its
    high bound and the rest stays unused.
    """

    grants: tuple[int, ...]
    numerator: int
    denominator: int


def largest_remainder(total: int, shares: Sequence[int]) -> list[int]:
    """Divide `total` in proportion to `shares`; Σ = total exactly (all 0 when the shares are)."""
    whole = sum(shares)
    if whole == 0:
        return [0] * len(shares)
    divided = [divmod(total * share, whole) for share in shares]
    return _settle(total, [quotient for quotient, _ in divided], [rest for _, rest in divided])


def water_fill(total: int, claims: Sequence[Claim]) -> Fill:
    """Solve Σ clamp(base + rate*t, low, high) = total for t >= 0, exactly, in O(n log n).

    The caller makes sure that Σ at t = 0 does not pass the total.
    """
    grants = [min(max(claim.base, claim.low), claim.high) for claim in claims]
    require(sum(grants) <= total, "a water-fill starts at or below its total")
    numerator, denominator = _level(total - sum(grants), claims, grants)
    if denominator == 0:
        tops = [c.high if c.rate else grant for c, grant in zip(claims, grants, strict=True)]
        return Fill(tuple(tops), 0, 0)
    rests = [0] * len(claims)
    for index, claim in enumerate(claims):
        quotient, rest = divmod(claim.rate * numerator, denominator)
        floor = claim.base + quotient
        if claim.low <= floor < claim.high:
            grants[index], rests[index] = floor, rest
        else:
            grants[index] = claim.high if floor >= claim.high else claim.low
    return Fill(tuple(_settle(total, grants, rests)), numerator, denominator)


def _level(missing: int, claims: Sequence[Claim], grants: Sequence[int]) -> tuple[int, int]:
    """The level at which the claims take `missing` more than `grants`; (0, 0) if they never do.

    Sweep the points where a claim starts or stops rising. Keys are exact integers: two different
    fractions with denominators below 2^b differ by more than 2^-2b, so scaling by 2^2b keeps them
    apart and makes equal ones equal.
    """
    if missing == 0:
        return 0, 1
    shift = 2 * max((claim.rate for claim in claims), default=0).bit_length()
    events: list[tuple[int, int, int, int, int]] = []
    rate_now = 0
    for claim, grant in zip(claims, grants, strict=True):
        rate = claim.rate
        if not rate or grant >= claim.high:
            continue
        stop = claim.high - claim.base
        events.append(((stop << shift) // rate, 1, stop, rate, grant))
        if grant > claim.base:  # held up by its low bound until t reaches it
            start = claim.low - claim.base
            events.append(((start << shift) // rate, 0, start, rate, grant))
        else:
            rate_now += rate
    events.sort()
    # Taken so far is rate_now*t - offset, exactly, between two events.
    offset = 0
    for _, stops, reach, rate, _ in events:
        # Does the level reach `missing` no later than this event, at t = reach/rate?
        if rate_now and (missing + offset) * rate <= rate_now * reach:
            return missing + offset, rate_now
        if stops:
            rate_now, offset = rate_now - rate, offset - reach
        else:
            rate_now, offset = rate_now + rate, offset + reach
    return 0, 0


def _settle(total: int, grants: list[int], rests: list[int]) -> list[int]:
    """Hand the units that flooring left over to the largest remainders, ties in order."""
    left = total - sum(grants)
    require(0 <= left < max(1, len(grants)), "flooring leaves less than one unit each")
    if left:
        by_rest = sorted(range(len(rests)), key=rests.__getitem__, reverse=True)
        for index in by_rest[:left]:
            require(rests[index] > 0, "a leftover unit belongs to a claim with a remainder")
            grants[index] += 1
    return grants
