"""The arithmetic every governor shares: exact division of a whole among claimants.

Functions on integers only, with ties settled by the order of the claims (callers
sort by id first):

- `largest_remainder` divides a total in proportion to shares;
- `water_fill` raises a common level t until every claim's clamp(base + rate*t, low, high) adds up;
  `fill_grants` gives the same grants without the level, mostly faster.

Rounding to nearest would promise three equal bidders 2001 millicores of a 2000 node, so fractions
are floored first and the leftovers go to the largest remainders.
"""

from collections.abc import Sequence
from typing import NamedTuple

from fairlead.core.claims import Claim, events_of, reach, rising_at_start
from fairlead.core.invariant import require
from fairlead.core.rough import rough_integers


class Fill(NamedTuple):
    """Grants in the order of the claims, and the level t = numerator/denominator.

    `denominator` 0 means that no finite level uses up the total: every claim that rises is at its
    high bound and the rest stays unused.
    """

    grants: list[int]
    numerator: int
    denominator: int


def largest_remainder(total: int, shares: Sequence[int]) -> list[int]:
    """Divide `total` in proportion to `shares`; Σ = total exactly (all 0 when the shares are)."""
    whole = sum(shares)
    if whole == 0:
        return [0] * len(shares)
    grants: list[int] = []
    rests: list[int] = []
    for share in shares:
        product = total * share
        quotient = product // whole
        grants.append(quotient)
        rests.append(product - quotient * whole)
    _settle(total, grants, rests)
    return grants


def fill_grants(total: int, claims: list[Claim]) -> list[int]:
    """The grants of a water-fill; doubles find most of them faster, and prove them."""
    return rough_integers(total, claims) or water_fill(total, claims).grants


def water_fill(total: int, claims: list[Claim]) -> Fill:
    """Solve Σ clamp(base + rate*t, low, high) = total for t >= 0, exactly, in O(n log n).

    The caller makes sure that Σ at t = 0 does not pass the total.
    """
    starts = [min(max(claim.base, claim.low), claim.high) for claim in claims]
    missing = total - sum(starts)
    require(missing >= 0, "a water-fill starts at or below its total")
    if missing == 0:
        return Fill(starts, 0, 1)
    numerator, denominator = _level(missing, claims, starts)
    if not denominator:
        tops = [c.high if c.rate else start for c, start in zip(claims, starts, strict=True)]
        return Fill(tops, 0, 0)
    grants: list[int] = []
    rests: list[int] = []
    for claim in claims:
        product = claim.rate * numerator
        quotient = product // denominator
        floor, rest = claim.base + quotient, product - quotient * denominator
        if floor < claim.low:
            floor, rest = claim.low, 0
        elif floor >= claim.high:
            floor, rest = claim.high, 0
        grants.append(floor)
        rests.append(rest)
    _settle(total, grants, rests)
    return Fill(grants, numerator, denominator)


def _level(missing: int, claims: list[Claim], starts: list[int]) -> tuple[int, int]:
    """The level at which the claims take `missing` more than at t = 0; (0, 0) if they never do.

    Keys are integers: two different fractions with denominators below 2^b differ by more than
    2^-2b, so scaling by 2^2b keeps them apart and makes equal ones equal.
    """
    shift = 2 * max([claim.rate for claim in claims], default=0).bit_length()
    keyed = [
        ((reach(claims, event) << shift) // claims[event // 2].rate, event)
        for event in events_of(claims, starts)
    ]
    events = [event for _, event in sorted(keyed)]
    number, rate = missing, rising_at_start(claims, starts, events)
    for event in events:
        claim, taken = claims[event // 2], reach(claims, event)
        # Does the level reach `missing` no later than this event, at t = reach/rate?
        if rate and number * claim.rate <= rate * taken:
            return number, rate
        if event % 2:
            number, rate = number - taken, rate - claim.rate
        else:
            number, rate = number + taken, rate + claim.rate
    return 0, 0


def _settle(total: int, grants: list[int], rests: list[int]) -> None:
    """Hand the units that flooring left over to the largest remainders, ties in order."""
    left = total - sum(grants)
    require(0 <= left < max(1, len(grants)), "flooring leaves less than one unit each")
    if not left:
        return
    cut = sorted(rests, reverse=True)[left - 1]
    require(cut > 0, "a leftover unit belongs to a claim with a remainder")
    for rest in rests:
        left -= rest > cut
    for index, rest in enumerate(rests):
        if rest > cut:
            grants[index] += 1
        elif rest == cut and left:
            grants[index] += 1
            left -= 1
