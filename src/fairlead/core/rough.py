"""A water-fill, and a division by shares, in doubles: fast, and proved, or not used.

Shares are pace*t, off by less than `blur` whatever the doubles rounded. The grants are certain
where nothing lies closer than that to where it would make a difference: no share to a bound or to a
whole number, no remainder to the last one that earns a unit, unless their rates are the same.
"""

from math import frexp, ldexp
from typing import Final

from fairlead.core.claims import Claim

UNIT: Final = 2.0**-53
# Whole numbers below this are exact, and so are sums of them that stay below it.
EXACT_MAX: Final = 2**52
SHARED_MAX: Final = 2**20
# Away from overflow and from subnormal numbers.
PACE_MIN: Final = 2.0**-400
PACE_MAX: Final = 2.0**400
# Where excess and shortfall weigh the same up to rounding, both sides are put aside.
EVEN: Final = 1 - 2.0**-30
SPLITTER: Final = 2.0**27 + 1


def rough_integers(total: int, claims: list[Claim]) -> list[int]:
    """The same where rates are integers and not products."""
    for claim in claims:
        if claim.rate > EXACT_MAX:
            return []
        claim.weight = claim.pace = float(claim.rate)
    return rough_fill(total, claims)


def rough_fill(total: int, claims: list[Claim]) -> list[int]:
    """The grants, and `rises` of each claim; none where doubles cannot tell."""
    rising: list[Claim] = []
    room, number = total, 0.0
    for claim in claims:
        base, low, high, pace = claim.base, claim.low, claim.high, claim.pace
        claim.rises = False
        low = max(low, base)
        if high < low or high > EXACT_MAX:
            return []
        room -= base
        claim.least = float(low - base)
        claim.most = float(high - base)
        if pace == 0:
            number -= claim.least
        elif PACE_MIN < pace < PACE_MAX:
            rising.append(claim)
        else:
            return []
    if not 0 < room <= EXACT_MAX:
        return []
    level = _level(number + float(room), rising)
    if not PACE_MIN < level < PACE_MAX:
        return []
    return _grants(total, claims, level, 2.0 * UNIT * float(len(claims) + 8) * float(room))


def _level(number: float, rising: list[Claim]) -> float:
    """Put claims aside that pass a bound, on the side that weighs more, until none does (Bitran and
    Hax). If the excess above upper bounds is larger than the shortfall below lower ones, the level
    is higher than this one, so a claim above its upper bound stays there; and the other way round.
    """
    while rising:
        whole = 0.0
        for claim in rising:
            whole += claim.pace
        level = number / whole
        excess = shortfall = 0.0
        for claim in rising:
            share = claim.pace * level
            if share > claim.most:
                excess += share - claim.most
            elif share < claim.least:
                shortfall += claim.least - share
        if excess == 0 and shortfall == 0:
            for claim in rising:
                claim.rises = True
            return level
        over, under = excess >= shortfall * EVEN, shortfall >= excess * EVEN
        kept: list[Claim] = []
        for claim in rising:
            share = claim.pace * level
            if over and share > claim.most:
                number -= claim.most
            elif under and share < claim.least:
                number -= claim.least
            else:
                kept.append(claim)
        rising = kept
    return 0.0


def _grants(total: int, claims: list[Claim], level: float, blur: float) -> list[int]:
    """Where the claims stand at a level, rounded by largest remainder; none where it is unsure."""
    grants: list[int] = []
    rests: list[float] = []
    left, rest_sum = total, 0.0
    for claim in claims:
        share = claim.pace * level
        rest = 0.0
        if not claim.rises:
            if claim.pace == 0 or share < claim.least - blur:
                whole = int(claim.least)
            elif share > claim.most + blur:
                whole = int(claim.most)
            else:
                return []
        else:
            whole = int(share)
            floor = float(whole)
            rest = share - floor
            if not (4 * blur < rest < 1 - blur and claim.least <= floor < claim.most):
                return []
        grant = claim.base + whole
        grants.append(grant)
        rests.append(rest)
        left -= grant
        rest_sum += rest
    # Else a claim stands at another bound than the one it was put aside at.
    off = rest_sum - float(left)
    if left < 1 or blur * float(len(claims)) > 0.25 or not -0.5 < off < 0.5:
        return []
    return grants if _settled(claims, grants, rests, left, blur) else []


def _settled(
    claims: list[Claim], grants: list[int], rests: list[float], left: int, blur: float
) -> bool:
    """Hand the units that flooring left over to the largest remainders, if it is clear whose."""
    ranked = sorted(rests, reverse=True)
    cut = ranked[left - 1]
    least, most = cut, cut
    if cut - ranked[left] <= 2 * blur:  # those that cannot be told apart share what is left of it
        least, most = cut - 2 * blur, cut + 2 * blur
        one: Claim | None = None
        for index, rest in enumerate(rests):
            if rest > most:
                left -= 1
            elif rest >= least:
                claim = claims[index]
                if one is None:
                    one = claim
                elif claim.weight != one.weight or claim.demand != one.demand:
                    return False
    for index, rest in enumerate(rests):
        if rest > most:
            grants[index] += 1
        elif rest >= least and left:
            grants[index] += 1
            left -= 1
    return True


def rough_shares(total: int, shares: list[float]) -> list[int]:
    """`total` divided in proportion to shares that add up to about 1, by largest remainder; none
    where doubles cannot tell, as where two remainders are the same.
    """
    whole = 0.0
    for share in shares:
        whole += share
    if not 0.5 < whole < 2.0 or not 0 < total <= SHARED_MAX:
        return []
    pace, left = float(total) / whole, total
    blur = 2.0 * UNIT * float(len(shares) + 8) * float(total)
    grants: list[int] = []
    rests: list[float] = []
    for share in shares:
        exact = share * pace
        grant = int(exact)
        rest = exact - float(grant)
        if share and not blur < rest < 1 - blur:
            return []
        grants.append(grant)
        rests.append(rest)
        left -= grant
    ranked = sorted(rests, reverse=True)
    cut = ranked[left - 1]
    if cut - ranked[left] <= 2 * blur:
        return []
    for index, rest in enumerate(rests):
        if rest >= cut:
            grants[index] += 1
    return grants


def rough_price(total: int, claims: list[Claim], grants: list[int]) -> float:
    """1/t of a fill that `rough_fill` found, rounded once; 0 where doubles cannot tell the last
    digit.

    Factors are cut so that the products of their upper parts add up exactly; what is left is
    small, and so is what rounding makes of it.
    """
    left, peak = total, 0.0
    for index, claim in enumerate(claims):
        if claim.rises:
            left -= claim.base
            peak = max(peak, claim.weight)
        else:
            left -= grants[index]
    if peak > PACE_MAX:
        return 0.0
    count = len(claims)
    bits = (53 - count.bit_length()) // 2
    step, part = ldexp(1.5, frexp(peak)[1] + 52 - bits), ldexp(1.5, 52 - bits)
    high = low = 0.0
    for claim in claims:
        if claim.rises:
            weight, demand = claim.weight, claim.demand
            upper, share = (weight + step) - step, (demand + part) - part
            high += upper * share
            low += upper * (demand - share) + (weight - upper) * demand
    error = ldexp(peak, 2 - bits) * float(count) * float(count + 4) * UNIT
    return _rounded(high, low, error, float(left))


def _rounded(high: float, low: float, error: float, number: float) -> float:
    """(high + low)/number rounded once; 0 where an error of the sum could change it."""
    whole = high + low
    low -= whole - high
    quotient = whole / number
    taken = quotient * number
    scaled = SPLITTER * quotient
    upper = scaled - (scaled - quotient)
    lower = quotient - upper
    scaled = SPLITTER * number
    front = scaled - (scaled - number)
    back = number - front
    rest = ((upper * front - taken) + upper * back + lower * front) + lower * back
    correction = (((whole - taken) - rest) + low) / number
    spread = quotient * 2.0**-90 + error / number
    price = quotient + (correction + spread)
    return price if price == quotient + (correction - spread) else 0.0
