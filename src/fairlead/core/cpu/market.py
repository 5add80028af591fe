"""Clearing: divide a node's millicores among its pods, exactly.

Every path ends in the same arithmetic (`core.apportion`), so the sums hold to the millicore for
any input and the order of the pods never matters. Guardrails arrive as bounds, never as a
correction after the fact: a correction would break Σ grants <= capacity.
"""

from operator import attrgetter

from fairlead.core.apportion import fill_grants, largest_remainder, water_fill
from fairlead.core.claims import Claim
from fairlead.core.cpu.model import CpuMode, Plan, Pod, Policy, Snapshot
from fairlead.core.cpu.need import Factors, need_between
from fairlead.core.invariant import known, require
from fairlead.core.reasons import CpuReason
from fairlead.core.rough import rough_fill, rough_price
from fairlead.core.units import quotient

# A pod that is granted less than this cannot even answer a health check.
SURVIVAL_MILLICORES = 10


class _Seat:
    """A pod at the table: its minimum, maximum and need, the bounds of this clearing, and what it
    wants: the need inside the bounds.
    """

    __slots__ = ("floor", "high", "low", "need", "pod", "reasons", "relaxed", "top", "want")

    def __init__(self, pod: Pod, factors: Factors) -> None:
        low, top = pod.min_millicores, pod.max_millicores
        floor = min(low, top)
        need, reasons = need_between(pod, floor, top, factors)
        # Where a step bound falls below the minimum, the minimum wins; above the maximum, the
        # maximum.
        upper, lower = pod.upper_millicores, pod.lower_millicores
        high = top if upper is None else min(max(upper, floor), top)
        low = floor if lower is None else min(max(lower, floor), high)
        self.pod = pod
        self.floor = floor
        self.top = top
        self.need = need
        self.low = low
        self.high = high
        self.want = min(max(need, low), high)
        self.reasons = reasons
        self.relaxed = low
        """The lower bound once it fits together with those of the others."""

    def relax(self, low: int) -> None:
        self.relaxed = low
        self.want = min(max(self.need, low), self.high)

    @property
    def weight(self) -> float:
        return known(self.pod.weight, "a pod has a weight from its beginning")


def clear(snapshot: Snapshot) -> Plan:
    """Divide the capacity. Pure, exact, permutation-invariant; every pod's reasons are given."""
    capacity, headroom = snapshot.capacity_millicores, snapshot.headroom
    factors = (headroom.base, headroom.per_demand, headroom.per_miss, headroom.cap)
    seats = [_Seat(pod, factors) for pod in sorted(snapshot.pods, key=attrgetter("uid"))]
    price: float | None = None
    if sum([seat.floor for seat in seats]) > capacity:
        mode = CpuMode.OVERLOADED
        grants = _scale_minimums(capacity, seats)
    else:
        _relax(capacity, seats)
        total_want = sum([seat.want for seat in seats])
        mode = _label(total_want, snapshot)
        grants, price = _divide(capacity, seats, total_want, snapshot.policy)
    _check(capacity, seats, grants, mode, snapshot.policy)
    return _plan(capacity, mode, price, seats, grants)


def _relax(capacity: int, seats: list[_Seat]) -> None:
    """Lower the lower bounds towards the minimums until they fit."""
    if sum([seat.low for seat in seats]) <= capacity:
        return
    spare = capacity - sum([seat.floor for seat in seats])
    extra = largest_remainder(spare, [seat.low - seat.floor for seat in seats])
    for seat, more in zip(seats, extra, strict=True):
        seat.relax(seat.floor + more)


def _label(total_want: int, snapshot: Snapshot) -> CpuMode:
    """Hysteresis belongs to the label only; letting it hold the grants would overcommit."""
    capacity = snapshot.capacity_millicores
    if total_want > capacity:
        return CpuMode.CONGESTED
    leaves_at = capacity * (1 - snapshot.hysteresis_band)
    if snapshot.previous_mode is CpuMode.CONGESTED and total_want > leaves_at:
        return CpuMode.CONGESTED
    return CpuMode.UNCONGESTED


def _divide(
    capacity: int, seats: list[_Seat], total_want: int, policy: Policy
) -> tuple[list[int], float | None]:
    if policy is Policy.MARKET:
        return _market(capacity, seats)
    if total_want <= capacity:
        return [seat.want for seat in seats], 0.0
    if policy is Policy.NASH:
        return _nash(capacity, seats)
    return _cut_surplus(capacity, seats), None


def _scale_minimums(capacity: int, seats: list[_Seat]) -> list[int]:
    """x = max(survival, minimum*s) with s solving Σx = capacity; no pod is starved to zero."""
    share = min(SURVIVAL_MILLICORES, capacity // len(seats))
    claims = [Claim(0, seat.floor, min(share, seat.top), seat.top) for seat in seats]
    return fill_grants(capacity, claims)


# In congestion every policy is one curve per pod, rising from its minimum with a common level t
# and clamped to the bounds. A bound that does not bind changes nothing for any pod.


def _cut_surplus(capacity: int, seats: list[_Seat]) -> list[int]:
    """x = minimum + (need - minimum)*t: every surplus is cut by one common ratio."""
    claims = [Claim(s.floor, s.need - s.floor, s.relaxed, s.high) for s in seats]
    return fill_grants(capacity, claims)


def _nash(capacity: int, seats: list[_Seat]) -> tuple[list[int], float | None]:
    """x = min(want, minimum + weight*t); pods of weight 0 share what the others cannot take."""
    claims = [Claim(s.floor, 0, s.relaxed, s.want, weight=s.weight) for s in seats]
    grants = rough_fill(capacity, claims)
    price = rough_price(capacity, claims, grants) if grants else 0.0
    return (grants, price) if price else _exact_nash(capacity, seats)


def _exact_nash(capacity: int, seats: list[_Seat]) -> tuple[list[int], float | None]:
    rates, scale = _integers([_binary(seat.weight) for seat in seats])
    fill = water_fill(
        capacity, [Claim(s.floor, r, s.relaxed, s.want) for s, r in zip(seats, rates, strict=True)]
    )
    if fill.denominator:
        return fill.grants, _price(fill.numerator, fill.denominator, scale)
    # Every pod with a weight is satisfied: the level is infinite, its price 0.
    rest = [
        Claim(grant, 0, grant, grant) if rate else Claim(seat.floor, 1, seat.relaxed, seat.want)
        for seat, rate, grant in zip(seats, rates, fill.grants, strict=True)
    ]
    return water_fill(capacity, rest).grants, 0.0


def _market(capacity: int, seats: list[_Seat]) -> tuple[list[int], float | None]:
    """x = min(high, minimum + bid*t): the whole capacity is handed out, whatever the needs."""
    claims: list[Claim] = []
    most, silent = 0, True
    for seat in seats:
        weight, demand = seat.weight, seat.pod.demand
        claim = Claim(seat.floor, 0, seat.relaxed, seat.high, weight=weight, demand=demand)
        if claim.pace == 0 and weight > 0 and demand > 0:  # a product that only exact numbers have
            return _exact_market(capacity, seats)
        if claim.pace > 0:
            silent = False
            most += seat.high
        else:
            most += seat.relaxed
        claims.append(claim)
    if silent or most <= capacity:
        return _exact_market(capacity, seats)
    grants = rough_fill(capacity, claims)
    price = rough_price(capacity, claims, grants) if grants else 0.0
    return (grants, price) if price else _exact_market(capacity, seats)


def _exact_market(capacity: int, seats: list[_Seat]) -> tuple[list[int], float | None]:
    rates, scale = _integers([_bid(seat) for seat in seats])
    if not any(rates):
        rates, scale = _integers([_binary(seat.weight) for seat in seats])
    if not any(rates):
        rates, scale = [1] * len(seats), 1
    tops = [seat.high if rate else seat.relaxed for seat, rate in zip(seats, rates, strict=True)]
    if sum(tops) <= capacity:
        return tops, 0.0  # every bidder is capped, the rest stays unused
    fill = water_fill(
        capacity, [Claim(s.floor, r, s.relaxed, s.high) for s, r in zip(seats, rates, strict=True)]
    )
    return fill.grants, _price(fill.numerator, fill.denominator, scale)


def _bid(seat: _Seat) -> tuple[int, int]:
    """weight times demand, exactly: a rounded product would invent ties."""
    weight, weight_shift = _binary(seat.weight)
    demand, demand_shift = _binary(seat.pod.demand)
    return weight * demand, weight_shift + demand_shift


def _binary(value: float) -> tuple[int, int]:
    """A double as numerator and shift: numerator / 2^shift."""
    whole = int(value)
    if float(whole) == value:  # most weights are whole, and this is the shorter way
        return whole, 0
    numerator, denominator = value.as_integer_ratio()
    return numerator, denominator.bit_length() - 1


def _integers(ratios: list[tuple[int, int]]) -> tuple[list[int], int]:
    """Such numbers as integers over one power of two: exact, so that shares are exact."""
    most = max([shift for _, shift in ratios], default=0)
    return [numerator << (most - shift) for numerator, shift in ratios], 1 << most


def _price(numerator: int, denominator: int, scale: int) -> float | None:
    """lambda = 1/t; None when t is 0, or so small that its price is beyond a double."""
    if numerator == 0:
        return None
    try:
        return quotient(denominator, numerator * scale)
    except OverflowError:
        return None


def _plan(
    capacity: int, mode: CpuMode, price: float | None, seats: list[_Seat], grants: list[int]
) -> Plan:
    needs: dict[str, int] = {}
    allocations: dict[str, int] = {}
    ratios: dict[str, float] = {}
    reasons: dict[str, tuple[CpuReason, ...]] = {}
    for seat, grant in zip(seats, grants, strict=True):
        uid, room = seat.pod.uid, seat.need - seat.floor
        needs[uid], allocations[uid], reasons[uid] = seat.need, grant, seat.reasons
        ratios[uid] = float(seat.need - grant) / float(room) if room else 0.0
        if grant < seat.low and seat.low > seat.floor:
            reasons[uid] = (*seat.reasons, CpuReason.GUARDRAIL_RELAXED)
    return Plan(
        mode=mode,
        capacity_millicores=capacity,
        total_min=sum([seat.floor for seat in seats]),
        total_need=sum([seat.need for seat in seats]),
        shadow_price=price,
        needs=needs,
        allocations=allocations,
        reduction_ratio=ratios,
        reasons=reasons,
    )


def _check(
    capacity: int, seats: list[_Seat], grants: list[int], mode: CpuMode, policy: Policy
) -> None:
    """The promises of this module, kept on every clearing and not only in tests."""
    total, want = sum(grants), 0
    topped = inside = wanted = as_wanted = True
    for seat, grant in zip(seats, grants, strict=True):
        want += seat.want
        topped = topped and grant <= seat.top
        inside = inside and seat.relaxed <= grant <= seat.high
        wanted = wanted and grant <= seat.want
        as_wanted = as_wanted and grant == seat.want
    require(total <= capacity, "INV-2: the grants fit the capacity")
    if mode is CpuMode.OVERLOADED:
        require(topped, "INV-1: no grant lies above its maximum")
        require(total == capacity, "an overloaded node is handed out whole")
        return
    require(inside, "INV-1: every grant lies inside its bounds")
    if policy is Policy.MARKET:
        return
    if want <= capacity:
        require(as_wanted, "INV-3: unscarce, the need")
        return
    require(wanted, "no grant lies above the need")
    require(total == capacity, "a congested node is handed out whole")
