"""Clearing: divide a node's millicores among its pods, exactly.

Every path ends in the same arithmetic (`core.apportion`), so the sums hold to the millicore for
any input and the order of the pods never matters. Guardrails arrive as bounds, never as a
correction after the fact: a correction would break Σ grants <= capacity.
"""

from operator import attrgetter
from typing import NamedTuple

from fairlead.core.apportion import Claim, largest_remainder, water_fill
from fairlead.core.cpu.model import CpuMode, Plan, Pod, Policy, Snapshot
from fairlead.core.cpu.need import estimate_need
from fairlead.core.invariant import require
from fairlead.core.reasons import CpuReason

# A pod that is granted less than this cannot even answer a health check.
SURVIVAL_MILLICORES = 10


class _Seat(NamedTuple):
    """A pod at the table: its minimum, its need, the bounds of this clearing, and what it wants:
    the need inside the bounds. (A tuple, because ten thousand pods are seated at once.)
    """

    pod: Pod
    floor: int
    need: int
    low: int
    high: int
    want: int
    reasons: tuple[CpuReason, ...]


def clear(snapshot: Snapshot) -> Plan:
    """Divide the capacity. Pure, exact, permutation-invariant; every pod's reasons are given."""
    capacity = snapshot.capacity_millicores
    seated = [_seat(pod, snapshot) for pod in sorted(snapshot.pods, key=attrgetter("uid"))]
    seats = seated
    if sum(seat.floor for seat in seats) > capacity:
        mode = CpuMode.OVERLOADED
        grants, price = _scale_minimums(capacity, seats), None
    else:
        seats = _relax(capacity, seats)
        total_want = sum(seat.want for seat in seats)
        mode = _label(total_want, snapshot)
        grants, price = _divide(capacity, seats, total_want, snapshot.policy)
    plan = _plan(snapshot, mode, price, seated, grants)
    _check(plan, seats, grants, snapshot.policy)
    return plan


def _seat(pod: Pod, snapshot: Snapshot) -> _Seat:
    need = estimate_need(pod, snapshot.headroom)
    floor, top = pod.floor_millicores, pod.max_millicores
    # Where a step bound falls below the minimum, the minimum wins; above the maximum, the maximum.
    high = top if pod.upper_millicores is None else min(max(pod.upper_millicores, floor), top)
    low = floor if pod.lower_millicores is None else min(max(pod.lower_millicores, floor), high)
    want = min(max(need.millicores, low), high)
    return _Seat(pod, floor, need.millicores, low, high, want, need.reasons)


def _relax(capacity: int, seats: list[_Seat]) -> list[_Seat]:
    """Lower the lower bounds towards the minimums until they fit."""
    if sum(seat.low for seat in seats) <= capacity:
        return seats
    spare = capacity - sum(seat.floor for seat in seats)
    extra = largest_remainder(spare, [seat.low - seat.floor for seat in seats])
    relaxed = []
    for seat, more in zip(seats, extra, strict=True):
        low = seat.floor + more
        relaxed.append(seat._replace(low=low, want=min(max(seat.need, low), seat.high)))
    return relaxed


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
    share = capacity // len(seats)
    claims = []
    for seat in seats:
        survival = min(SURVIVAL_MILLICORES, share, seat.pod.max_millicores)
        claims.append(Claim(0, seat.floor, survival, seat.pod.max_millicores))
    return list(water_fill(capacity, claims).grants)


# In congestion every policy is one curve per pod, rising from its minimum with a common level t
# and clamped to the bounds. A bound that does not bind changes nothing for any pod.


def _cut_surplus(capacity: int, seats: list[_Seat]) -> list[int]:
    """x = minimum + (need - minimum)*t: every surplus is cut by one common ratio."""
    claims = [Claim(seat.floor, seat.need - seat.floor, seat.low, seat.high) for seat in seats]
    return list(water_fill(capacity, claims).grants)


def _nash(capacity: int, seats: list[_Seat]) -> tuple[list[int], float | None]:
    """x = min(want, minimum + weight*t); pods of weight 0 share what the others cannot take."""
    rates, scale = _integers([seat.pod.share_weight.as_integer_ratio() for seat in seats])
    fill = water_fill(
        capacity, [Claim(s.floor, r, s.low, s.want) for s, r in zip(seats, rates, strict=True)]
    )
    if fill.denominator:
        return list(fill.grants), _price(fill.numerator, fill.denominator, scale)
    # Every pod with a weight is satisfied: the level is infinite, its price 0.
    rest = [
        Claim(grant, 0, grant, grant) if rate else Claim(seat.floor, 1, seat.low, seat.want)
        for seat, rate, grant in zip(seats, rates, fill.grants, strict=True)
    ]
    return list(water_fill(capacity, rest).grants), 0.0


def _market(capacity: int, seats: list[_Seat]) -> tuple[list[int], float | None]:
    """x = min(high, minimum + bid*t): the whole capacity is handed out, whatever the needs."""
    rates, scale = _integers([_bid(seat.pod) for seat in seats])
    if not any(rates):
        rates, scale = _integers([seat.pod.share_weight.as_integer_ratio() for seat in seats])
    if not any(rates):
        rates, scale = [1] * len(seats), 1
    tops = [seat.high if rate else seat.low for seat, rate in zip(seats, rates, strict=True)]
    if sum(tops) <= capacity:
        return tops, 0.0  # every bidder is capped, the rest stays unused
    fill = water_fill(
        capacity, [Claim(s.floor, r, s.low, s.high) for s, r in zip(seats, rates, strict=True)]
    )
    return list(fill.grants), _price(fill.numerator, fill.denominator, scale)


def _bid(pod: Pod) -> tuple[int, int]:
    """weight times demand as an exact fraction: a rounded product would invent ties."""
    weight, per_weight = pod.share_weight.as_integer_ratio()
    demand, per_demand = pod.demand.as_integer_ratio()
    return weight * demand, per_weight * per_demand


def _integers(ratios: list[tuple[int, int]]) -> tuple[list[int], int]:
    """Fractions over powers of two as integers over one: exact, so that shares are exact."""
    scale = max((denominator for _, denominator in ratios), default=1)
    return [numerator * (scale // denominator) for numerator, denominator in ratios], scale


def _price(numerator: int, denominator: int, scale: int) -> float | None:
    """lambda = 1/t; None when t is 0, or so small that its price is beyond a double."""
    if numerator == 0:
        return None
    try:
        return denominator / (numerator * scale)
    except OverflowError:
        return None


def _plan(
    snapshot: Snapshot, mode: CpuMode, price: float | None, seats: list[_Seat], grants: list[int]
) -> Plan:
    needs, allocations, ratios, reasons = {}, {}, {}, {}
    for seat, grant in zip(seats, grants, strict=True):
        uid, room = seat.pod.uid, seat.need - seat.floor
        needs[uid], allocations[uid], reasons[uid] = seat.need, grant, seat.reasons
        ratios[uid] = (seat.need - grant) / room if room else 0.0
        if grant < seat.low and seat.low > seat.floor:
            reasons[uid] = (*seat.reasons, CpuReason.GUARDRAIL_RELAXED)
    return Plan(
        mode=mode,
        capacity_millicores=snapshot.capacity_millicores,
        total_min=sum(seat.floor for seat in seats),
        total_need=sum(needs.values()),
        shadow_price=price,
        needs=needs,
        allocations=allocations,
        reduction_ratio=ratios,
        reasons=reasons,
    )


def _check(plan: Plan, seats: list[_Seat], grants: list[int], policy: Policy) -> None:
    """The promises of this module, kept on every clearing and not only in tests."""
    total, pairs = sum(grants), list(zip(seats, grants, strict=True))
    require(total <= plan.capacity_millicores, "INV-2: the grants fit the capacity")
    if plan.mode is CpuMode.OVERLOADED:
        require(
            all(grant <= seat.pod.max_millicores for seat, grant in pairs),
            "INV-1: no grant lies above its maximum",
        )
        require(total == plan.capacity_millicores, "an overloaded node is handed out whole")
        return
    require(
        all(seat.low <= grant <= seat.high for seat, grant in pairs),
        "INV-1: every grant lies inside its bounds",
    )
    if policy is Policy.MARKET:
        return
    if sum(seat.want for seat in seats) <= plan.capacity_millicores:
        require(all(grant == seat.want for seat, grant in pairs), "INV-3: unscarce, the need")
        return
    require(all(grant <= seat.want for seat, grant in pairs), "no grant lies above the need")
    require(total == plan.capacity_millicores, "a congested node is handed out whole")
