"""What each policy asks of a water-fill, for rows of nodes.

Mirrors `_scale_minimums`, `_cut_surplus`, `_nash` and `_market` of `fairlead.core.cpu.market`. A
curve rises from the pod's minimum there; here everything is counted from that minimum.
"""

from typing import NamedTuple

import numpy as np

from fairlead.core.cpu import Policy
from fairlead.core.cpu.market import SURVIVAL_MILLICORES
from fairlead.fleet.columns import POLICIES, Bools, Floats, Ints
from fairlead.fleet.double_double import two_product
from fairlead.fleet.fill import RATE_MAX, fill
from fairlead.fleet.level import Claims
from fairlead.fleet.price import shadow_price
from fairlead.fleet.seats import Seats
from fairlead.fleet.shares import Rates


class Outcome(NamedTuple):
    """Grants, prices (NaN for core's None) and the rows that are certain."""

    grants: Ints
    price: Floats
    sure: Bools


def scale_minimums(seats: Seats, capacity: Ints) -> Outcome:
    """Overloaded: x = max(survival, minimum·s) with s solving Σx = capacity."""
    share = np.minimum(SURVIVAL_MILLICORES, capacity // seats.live.sum(axis=1))
    survival = np.minimum(share[:, None], seats.top)
    filled = fill(Claims(capacity, _doubles(seats.floor), survival, seats.top))
    return Outcome(filled.grants, np.full(len(capacity), np.nan), filled.sure)


def relaxed(seats: Seats, capacity: Ints) -> tuple[Ints, Bools]:
    """Lower bounds moved towards the minimums by one common ratio, until they fit."""
    extra = seats.low - seats.floor
    spare = capacity - seats.floor.sum(axis=1)
    filled = fill(Claims(spare, _doubles(extra), np.zeros_like(extra), extra))
    return seats.floor + filled.grants, filled.sure


def divide(seats: Seats, capacity: Ints, policy: int) -> Outcome:
    """The grants of nodes whose lower bounds fit, congested or not."""
    if POLICIES[policy] is Policy.MARKET:
        return _market(seats, capacity)
    grants, price = seats.want.copy(), np.zeros(len(capacity))
    sure = np.ones(len(capacity), dtype=np.bool_)
    scarce = seats.want.sum(axis=1) > capacity
    if scarce.any():
        choose = _nash if POLICIES[policy] is Policy.NASH else _cut_surplus
        part = choose(seats.rows(scarce), capacity[scarce])
        grants[scarce], price[scarce], sure[scarce] = part
    return Outcome(grants, price, sure)


def _cut_surplus(seats: Seats, capacity: Ints) -> Outcome:
    """x = minimum + (need - minimum)·t, inside the bounds."""
    floor = seats.floor
    rates, room = _doubles(seats.need - floor), capacity - floor.sum(axis=1)
    filled = fill(Claims(room, rates, seats.low - floor, seats.high - floor))
    return Outcome(floor + filled.grants, np.full(len(capacity), np.nan), filled.sure)


def _nash(seats: Seats, capacity: Ints) -> Outcome:
    """x = min(want, minimum + weight·t); pods of weight 0 share what the others cannot take."""
    rate = seats.weight
    weighted = rate > 0
    least, most = seats.low - seats.floor, seats.want - seats.floor
    tops = np.where(weighted, seats.want, seats.low)
    # Everybody with a weight is satisfied: the level is infinite, its price 0.
    spare = tops.sum(axis=1) < capacity
    if spare.any():
        rate, least = rate.copy(), least.copy()
        least[spare] = tops[spare] - seats.floor[spare]
        rate[spare] = ~weighted[spare] & seats.live[spare]
    room = capacity - seats.floor.sum(axis=1)
    filled = fill(Claims(room, Rates(rate, np.zeros_like(rate)), least, most))
    price = np.where(spare, 0.0, shadow_price(filled.level))
    return Outcome(seats.floor + filled.grants, price, filled.sure)


def _market(seats: Seats, capacity: Ints) -> Outcome:
    """x = min(high, minimum + bid·t): the whole capacity is handed out, whatever the needs."""
    bids, sure = _bids(seats)
    grants = np.where(bids.high > 0, seats.high, seats.low)  # if every bidder is capped
    price = np.zeros(len(capacity))
    short = grants.sum(axis=1) > capacity
    if short.any():
        floor = seats.floor[short]
        least, most = seats.low[short] - floor, seats.high[short] - floor
        room = capacity[short] - floor.sum(axis=1)
        filled = fill(Claims(room, bids.rows(short), least, most))
        grants[short] = floor + filled.grants
        price[short] = shadow_price(filled.level)
        sure[short] &= filled.sure
    return Outcome(grants, price, sure)


def _bids(seats: Seats) -> tuple[Rates, Bools]:
    """Weight times demand, as exact pairs; all zero, the weights; those zero as well, equally.

    Not sure where a product vanishes that core keeps, or where its error would overflow.
    """
    weight, demand = seats.weight, seats.demand
    with np.errstate(over="ignore", invalid="ignore"):
        high, low = two_product(weight, demand)
    vanished = (high == 0) & (weight > 0) & (demand > 0)
    sure = ~vanished.any(axis=1) & (weight.max(axis=1) < RATE_MAX)
    silent = ~high.any(axis=1)
    if silent.any():
        high[silent], low[silent] = weight[silent], 0.0
        high[~high.any(axis=1)] = 1.0
        high *= seats.live
    return Rates(high, low), sure


def _doubles(sizes: Ints) -> Rates:
    rate = sizes.astype(np.float64)
    return Rates(rate, np.zeros_like(rate))
