"""Clearing: divide a node's millicores among its pods, exactly.

Every path ends in the same arithmetic (`core.apportion`), so the sums hold to the millicore for
any input and the order of the pods never matters. Guardrails arrive as bounds, never as a
correction after the fact: a correction would break Σ grants <= capacity.
"""

from itertools import starmap
from operator import attrgetter
from typing import NamedTuple

from fairlead.core.apportion import Claim, largest_remainder, water_fill
from fairlead.core.cpu.model import Mode, Plan, Pod, Policy, Snapshot
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
    seats = [_seat(pod, snapshot) for pod in sorted(snapshot.pods, key=attrgetter("uid"))]
    total_min = sum(seat.floor for seat in seats)
    if total_min > capacity:
        mode = Mode.OVERLOADED
        grants, price = _scale_minimums(capacity, seats), None
    else:
        seats = _relax(capacity, seats)
        total_want = sum(seat.want for seat in seats)
        mode = _label(total_want, snapshot)
        grants, price = _divide(capacity, seats, total_want, snapshot.policy)
    plan = _plan(snapshot, mode, price, seats, grants)
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
    total_min = sum(seat.floor for seat in seats)
    if sum(seat.low for seat in seats) <= capacity:
        return seats
    extra = largest_remainder(capacity - total_min, [seat.low - seat.floor for seat in seats])
    return list(starmap(_relaxed, zip(seats, extra, strict=True)))


def _relaxed(seat: _Seat, extra: int) -> _Seat:
    low = seat.floor + extra
    if low == seat.low:
        return seat
    reasons = (*seat.reasons, CpuReason.GUARDRAIL_RELAXED)
    want = min(max(seat.need, low), seat.high)
    return seat._replace(low=low, want=want, reasons=reasons)


def _label(total_want: int, snapshot: Snapshot) -> Mode:
    """Hysteresis belongs to the label only; letting it hold the grants would overcommit."""
    capacity = snapshot.capacity_millicores
    if total_want > capacity:
        return Mode.CONGESTED
    leaves_at = capacity * (1 - snapshot.hysteresis_band)
    if snapshot.previous_mode is Mode.CONGESTED and total_want > leaves_at:
        return Mode.CONGESTED
    return Mode.UNCONGESTED


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
    """x = max(floor, minimum*s) with s solving Σx = capacity; nobody is starved to zero."""
    share = capacity // len(seats)
    claims = []
    for seat in seats:
        survival = min(SURVIVAL_MILLICORES, share, seat.pod.max_millicores)
        claims.append(Claim(0, seat.floor, survival, seat.pod.max_millicores))
    return list(water_fill(capacity, claims).grants)


def _cut_surplus(capacity: int, seats: list[_Seat]) -> list[int]:
    """Everybody keeps its lower bound; what it wants above is cut by one common ratio."""
    surplus = capacity - sum(seat.low for seat in seats)
    extra = largest_remainder(surplus, [seat.want - seat.low for seat in seats])
    return [seat.low + more for seat, more in zip(seats, extra, strict=True)]


def _nash(capacity: int, seats: list[_Seat]) -> tuple[list[int], float | None]:
    """x = min(want, low + weight*t); pods of weight 0 share what the others cannot take."""
    rates, scale = _integers([seat.pod.share_weight for seat in seats])
    claims = [_claim(seat, rate, seat.want) for seat, rate in zip(seats, rates, strict=True)]
    fill = water_fill(capacity, claims)
    if fill.denominator:
        return list(fill.grants), _price(fill.numerator, fill.denominator, scale)
    # Everybody with a weight is satisfied: the level is infinite, its price 0.
    rest = [
        Claim(grant, 0 if rate else 1, grant, seat.want)
        for seat, rate, grant in zip(seats, rates, fill.grants, strict=True)
    ]
    return list(water_fill(capacity, rest).grants), 0.0


def _market(capacity: int, seats: list[_Seat]) -> tuple[list[int], float | None]:
    """x = min(high, low + bid*t): the whole capacity is handed out, whatever the needs are."""
    bids = [seat.pod.share_weight * seat.pod.demand for seat in seats]
    if not any(bids):
        bids = [seat.pod.share_weight for seat in seats]
    if not any(bids):
        bids = [1.0] * len(seats)
    rates, scale = _integers(bids)
    claims = [_claim(seat, rate, seat.high) for seat, rate in zip(seats, rates, strict=True)]
    risers = sum(claim.high - claim.low for claim in claims if claim.rate)
    if risers <= capacity - sum(claim.low for claim in claims):
        return [c.high if c.rate else c.low for c in claims], 0.0
    fill = water_fill(capacity, claims)
    return list(fill.grants), _price(fill.numerator, fill.denominator, scale)


def _claim(seat: _Seat, rate: int, high: int) -> Claim:
    return Claim(seat.low, rate, seat.low, high)


def _integers(weights: list[float]) -> tuple[list[int], int]:
    """Doubles as integers over one power of two: exact, so that shares are exact."""
    ratios = [weight.as_integer_ratio() for weight in weights]
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
    snapshot: Snapshot, mode: Mode, price: float | None, seats: list[_Seat], grants: list[int]
) -> Plan:
    needs, allocations, ratios, reasons = {}, {}, {}, {}
    for seat, grant in zip(seats, grants, strict=True):
        uid, room = seat.pod.uid, seat.need - seat.floor
        needs[uid], allocations[uid], reasons[uid] = seat.need, grant, seat.reasons
        ratios[uid] = (seat.need - grant) / room if room else 0.0
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
    if plan.mode is Mode.OVERLOADED:
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
