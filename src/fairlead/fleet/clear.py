"""Clear a fleet: core's `clear`, table by table instead of node by node.

The steps and their names are those of `fairlead.core.cpu.market`; read that first. A row may turn
out *not sure* (see `fill`): such nodes, and nodes too large for a table, are cleared by core and
counted in `FleetPlan.fallback`. Curves rise from the pod's minimum there; here everything is
counted from that minimum.
"""

from typing import NamedTuple

import numpy as np

from fairlead.core.cpu import CpuMode, Policy, clear
from fairlead.core.cpu.market import SURVIVAL_MILLICORES
from fairlead.core.invariant import require
from fairlead.core.reasons import CpuReason
from fairlead.fleet.fill import RATE_MAX, fill
from fairlead.fleet.quick import Fills
from fairlead.fleet.snapshot import (
    MODE_CODE,
    POLICIES,
    REASON_BIT,
    Bools,
    Codes,
    FleetPlan,
    FleetSnapshot,
    Floats,
    Ints,
)
from fairlead.fleet.table import NodeTable, PodTable, cut, pod_table

# Sums of whole numbers below this are exact in doubles.
_EXACT_MAX = 2.0**53


class Offer(NamedTuple):
    """What the policy makes of nodes whose lower bounds fit: the grants where nothing is scarce,
    and the claims of the rows where something is, counted from `base`.
    """

    grants: Floats
    rows: Ints
    base: Floats
    weight: Floats
    demand: Floats | None
    least: Floats
    most: Floats
    sure: Bools
    free: Bools | None = None
    """Rows of these whose price is 0; None: this policy has no prices."""


class Division(NamedTuple):
    """Grants, prices (NaN for core's None) and the rows that are certain."""

    grants: Floats
    price: Floats
    sure: Bools


def clear_fleet(fleet: FleetSnapshot) -> FleetPlan:
    """Divide the capacity of every node, bit-equal to `fairlead.core.cpu.clear` on each."""
    plan = FleetPlan.blank(fleet)
    plan.fallback[:] = fleet.roster.counts > 0  # until a table has cleared it for certain
    for table in cut(fleet):
        _clear_table(table, plan)
    for index in np.flatnonzero(plan.fallback).tolist():
        plan.put(index, clear(fleet.snapshots[index]))
    return plan


def _clear_table(table: NodeTable, plan: FleetPlan) -> None:
    pods = pod_table(table)
    capacity = table.fleet.capacity_millicores[table.nodes].astype(np.float64)
    lower_bounds = pods.low
    total_min = pods.floor.sum(axis=1)
    overloaded = total_min > capacity
    sure = pods.top.sum(axis=1) < _EXACT_MAX
    tight = np.flatnonzero(sure & ~overloaded & (pods.low.sum(axis=1) > capacity))
    if tight.size:
        lower_bounds = pods.low.copy()
        low, sure[tight] = relaxed(pods, capacity, tight)
        pods.relax(tight, low)
    total_want = pods.want.sum(axis=1)
    offer = CHOICES[POLICIES[table.policy]](pods, capacity, total_want, ~overloaded & sure)
    division = divide(pods, capacity, np.flatnonzero(overloaded & sure), offer)
    division.sure[~sure] = False
    _check(table, pods, division, overloaded, total_want)
    _say_bent(pods, division.grants, lower_bounds)
    _write(table, pods, division, plan)
    plan.mode[table.nodes] = _label(table, total_want, overloaded)
    plan.total_min[table.nodes] = total_min


def _label(table: NodeTable, total_want: Floats, overloaded: Bools) -> Codes:
    """Hysteresis belongs to the label only; letting it hold the grants would overcommit."""
    fleet, nodes = table.fleet, table.nodes
    capacity = fleet.capacity_millicores[nodes]
    leaves_at = capacity * (1 - fleet.hysteresis_band[nodes])
    was_congested = fleet.previous_mode[nodes] == MODE_CODE[CpuMode.CONGESTED]
    congested = (total_want > capacity) | (was_congested & (total_want > leaves_at))
    mode = np.where(congested, MODE_CODE[CpuMode.CONGESTED], MODE_CODE[CpuMode.UNCONGESTED])
    return np.where(overloaded, MODE_CODE[CpuMode.OVERLOADED], mode).astype(np.int8)


def _say_bent(pods: PodTable, grants: Floats, lower_bounds: Floats) -> None:
    guarded = lower_bounds > pods.floor
    if guarded.any():
        guarded &= grants < lower_bounds
        pods.reasons |= guarded * np.uint8(REASON_BIT[CpuReason.GUARDRAIL_RELAXED])


def _write(table: NodeTable, pods: PodTable, division: Division, plan: FleetPlan) -> None:
    room = pods.need - pods.floor
    ratio = pods.need - division.grants
    ratio /= np.maximum(room, 1.0)
    ratio[room == 0] = 0.0
    table.scatter(pods.need, plan.needs)
    table.scatter(division.grants, plan.allocations)
    table.scatter(ratio, plan.reduction_ratio)
    table.scatter(pods.reasons, plan.reasons)
    plan.total_need[table.nodes] = pods.need.sum(axis=1)
    plan.shadow_price[table.nodes] = division.price
    plan.fallback[table.nodes] = ~division.sure


def _check(
    table: NodeTable, pods: PodTable, division: Division, overloaded: Bools, total_want: Floats
) -> None:
    """Core's promises, kept on every clearing and not only in tests; unsure rows go to core."""
    capacity = table.fleet.capacity_millicores[table.nodes]
    grants, unsure = division.grants, ~division.sure
    total = grants.sum(axis=1)
    require(bool((unsure | (total <= capacity)).all()), "INV-2: the grants fit the capacity")
    below_top = (grants <= pods.top).all(axis=1)
    bounded = below_top & (overloaded | (pods.low <= grants).all(axis=1))
    if pods.high is not pods.top:
        bounded &= overloaded | (grants <= pods.high).all(axis=1)
    require(bool((unsure | bounded).all()), "INV-1: every grant lies inside its bounds")
    whole = overloaded
    if POLICIES[table.policy] is not Policy.MARKET:
        scarce = total_want > capacity
        fits = (grants <= pods.want).all(axis=1) & (scarce | (total == total_want))
        require(
            bool((unsure | overloaded | fits).all()),
            "INV-3: the need where nothing is scarce, never more",
        )
        whole = overloaded | scarce
    require(
        bool((unsure | ~whole | (total == capacity)).all()), "a scarce node is handed out whole"
    )


def relaxed(pods: PodTable, capacity: Floats, rows: Ints) -> tuple[Floats, Bools]:
    """Lower bounds moved towards the minimums by one common ratio, until they fit."""
    floor = pods.floor[rows]
    extra = pods.low[rows] - floor
    spare = capacity[rows] - floor.sum(axis=1)
    filled = fill(Fills(spare, extra, None, extra, np.zeros_like(extra), extra), unpriced=len(rows))
    return floor + filled.grants, filled.sure


def divide(pods: PodTable, capacity: Floats, overloaded: Ints, offer: Offer) -> Division:
    """The grants of all rows: minimums scaled where not even those fit, else what is offered."""
    grants, sure = offer.grants, offer.sure
    price = np.zeros(len(sure))
    price[overloaded] = np.nan
    rows, scaled = np.concatenate((overloaded, offer.rows)), len(overloaded)
    if not rows.size:
        return Division(grants, price, sure)
    floor, top = pods.floor[overloaded], pods.top[overloaded]
    weight = np.concatenate((floor, offer.weight))
    demand, rate = None, weight
    if offer.demand is not None:
        demand = np.concatenate((np.ones_like(floor), offer.demand))
        rate = weight * demand
    least = np.concatenate((_survival(pods, capacity, overloaded), offer.least))
    total = capacity[rows]
    total[scaled:] -= offer.base.sum(axis=1)
    fills = Fills(total, weight, demand, rate, least, np.concatenate((top, offer.most)))
    filled = fill(fills, unpriced=len(rows) if offer.free is None else scaled)
    filled.grants[scaled:] += offer.base
    if offer.free is not None:
        filled.price[scaled:][offer.free] = 0.0
    grants[rows], price[rows] = filled.grants, filled.price
    sure[rows] &= filled.sure
    return Division(grants, price, sure)


def _survival(pods: PodTable, capacity: Floats, rows: Ints) -> Floats:
    """Overloaded: x = max(survival, minimum·s) with s solving Σx = capacity."""
    share = np.minimum(SURVIVAL_MILLICORES, capacity[rows] // pods.live[rows].sum(axis=1))
    survival: Floats = np.minimum(share[:, None], pods.top[rows])
    return survival


def cut_surplus(pods: PodTable, capacity: Floats, total_want: Floats, fits: Bools) -> Offer:
    """x = minimum + (need - minimum)·t, inside the bounds."""
    rows = np.flatnonzero(fits & (total_want > capacity))
    base = pods.floor[rows]
    parts = (base, pods.need[rows] - base, None, pods.low[rows] - base, pods.high[rows] - base)
    return Offer(pods.want.copy(), rows, *parts, np.ones_like(fits))


def nash(pods: PodTable, capacity: Floats, total_want: Floats, fits: Bools) -> Offer:
    """x = min(want, minimum + weight·t); pods of weight 0 share what the others cannot take."""
    rows = np.flatnonzero(fits & (total_want > capacity))
    base, want, weight = pods.floor[rows], pods.want[rows], pods.weight[rows]
    least = pods.low[rows]
    tops = np.where(weight > 0, want, least)
    # Every claim with a weight is satisfied: the level is infinite, its price 0.
    spare = tops.sum(axis=1) < capacity[rows]
    if spare.any():
        least[spare] = tops[spare]
        weight[spare] = (weight[spare] == 0) & pods.live[rows][spare]
    least -= base
    want -= base
    return Offer(pods.want.copy(), rows, base, weight, None, least, want, np.ones_like(fits), spare)


def market(pods: PodTable, capacity: Floats, _want: Floats, fits: Bools) -> Offer:
    """x = min(high, minimum + bid·t): the whole capacity is handed out, whatever the needs."""
    weight, demand, bid, sure = _bids(pods)
    grants = np.where(bid > 0, pods.high, pods.low)  # if every bidder is capped
    rows = np.flatnonzero(fits & (grants.sum(axis=1) > capacity))
    base = pods.floor[rows]
    claims = (weight[rows], demand[rows], pods.low[rows] - base, pods.high[rows] - base)
    return Offer(grants, rows, base, *claims, sure | ~fits, np.zeros(len(rows), np.bool_))


CHOICES = {Policy.DEMAND_CAPPED: cut_surplus, Policy.MARKET: market, Policy.NASH: nash}


def _bids(pods: PodTable) -> tuple[Floats, Floats, Floats, Bools]:
    """Weight times demand; all zero, the weights; those zero as well, equally.

    Not sure where a product vanishes that core keeps, or where its error would overflow.
    """
    weight, demand = pods.weight, pods.demand
    with np.errstate(over="ignore", invalid="ignore"):
        bid = weight * demand
    there = bid > 0
    sure: Bools = (there == ((weight > 0) & (demand > 0))).all(axis=1)
    sure &= weight.max(axis=1) < RATE_MAX
    silent = ~there.any(axis=1)
    if silent.any():
        weight, demand = weight.copy(), demand.copy()
        demand[silent] = 1.0
        weight[~weight.any(axis=1)] = 1.0
        weight *= pods.live
        bid = weight * demand
    return weight, demand, bid, sure
