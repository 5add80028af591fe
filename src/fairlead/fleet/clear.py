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
from fairlead.fleet.fill import RATE_MAX, Claims, fill, shadow_price
from fairlead.fleet.shares import Rates, two_product
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


class Division(NamedTuple):
    """Grants, prices (NaN for core's None) and the rows that are certain."""

    grants: Ints
    price: Floats
    sure: Bools

    def enter(self, rows: Bools, part: "Division") -> None:
        self.grants[rows], self.price[rows], self.sure[rows] = part


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
    lower_bounds = pods.low.copy()
    capacity = table.fleet.capacity_millicores[table.nodes]
    rows = len(capacity)
    total_min = pods.floor.sum(axis=1)
    overloaded = total_min > capacity
    sure = np.ones(rows, dtype=np.bool_)
    tight = ~overloaded & (pods.low.sum(axis=1) > capacity)
    if tight.any():
        low, sure[tight] = relaxed(pods.rows(tight), capacity[tight])
        pods.relax(tight, low)
    division = Division(np.zeros_like(pods.low), np.full(rows, np.nan), sure)
    if overloaded.any():
        division.enter(overloaded, scale_minimums(pods.rows(overloaded), capacity[overloaded]))
    rest = ~overloaded & sure
    if rest.any():
        division.enter(rest, divide(pods.rows(rest), capacity[rest], table.policy))
    mode = _label(table, pods.want.sum(axis=1), overloaded)
    _check(table, pods, division, overloaded)
    bent = (division.grants < lower_bounds) & (lower_bounds > pods.floor)
    pods.reasons |= bent * np.uint8(REASON_BIT[CpuReason.GUARDRAIL_RELAXED])
    _write(table, pods, division, plan)
    plan.mode[table.nodes] = mode
    plan.total_min[table.nodes] = total_min


def _label(table: NodeTable, total_want: Ints, overloaded: Bools) -> Codes:
    """Hysteresis belongs to the label only; letting it hold the grants would overcommit."""
    fleet, nodes = table.fleet, table.nodes
    capacity = fleet.capacity_millicores[nodes]
    leaves_at = capacity * (1 - fleet.hysteresis_band[nodes])
    was_congested = fleet.previous_mode[nodes] == MODE_CODE[CpuMode.CONGESTED]
    congested = (total_want > capacity) | (was_congested & (total_want > leaves_at))
    mode = np.where(congested, MODE_CODE[CpuMode.CONGESTED], MODE_CODE[CpuMode.UNCONGESTED])
    return np.where(overloaded, MODE_CODE[CpuMode.OVERLOADED], mode).astype(np.int8)


def _write(table: NodeTable, pods: PodTable, division: Division, plan: FleetPlan) -> None:
    room = pods.need - pods.floor
    # Where there is no room the ratio is 0, and 0/1 is as good as a special case.
    ratio = (pods.need - division.grants) * (room > 0) / np.maximum(room, 1)
    table.scatter(pods.need, plan.needs)
    table.scatter(division.grants, plan.allocations)
    table.scatter(ratio, plan.reduction_ratio)
    table.scatter(pods.reasons, plan.reasons)
    plan.total_need[table.nodes] = pods.need.sum(axis=1)
    plan.shadow_price[table.nodes] = division.price
    plan.fallback[table.nodes] = ~division.sure


def _check(table: NodeTable, pods: PodTable, division: Division, overloaded: Bools) -> None:
    """Core's promises, kept on every clearing and not only in tests; unsure rows go to core."""
    capacity = table.fleet.capacity_millicores[table.nodes]
    grants, unsure = division.grants, ~division.sure
    total = grants.sum(axis=1)
    require(bool((unsure | (total <= capacity)).all()), "INV-2: the grants fit the capacity")
    below_top = (grants <= pods.top).all(axis=1)
    inside = ((pods.low <= grants) & (grants <= pods.high)).all(axis=1)
    bounded = np.where(overloaded, below_top, inside)
    require(bool((unsure | bounded).all()), "INV-1: every grant lies inside its bounds")
    whole = overloaded
    if POLICIES[table.policy] is not Policy.MARKET:
        scarce = pods.want.sum(axis=1) > capacity
        as_wanted = np.where(scarce[:, None], grants <= pods.want, grants == pods.want)
        kept = unsure | overloaded | as_wanted.all(axis=1)
        require(bool(kept.all()), "INV-3: the need where nothing is scarce, never more")
        whole = overloaded | scarce
    require(
        bool((unsure | ~whole | (total == capacity)).all()), "a scarce node is handed out whole"
    )


def scale_minimums(pods: PodTable, capacity: Ints) -> Division:
    """Overloaded: x = max(survival, minimum·s) with s solving Σx = capacity."""
    share = np.minimum(SURVIVAL_MILLICORES, capacity // pods.live.sum(axis=1))
    survival = np.minimum(share[:, None], pods.top)
    filled = fill(Claims(capacity, _doubles(pods.floor), survival, pods.top))
    return Division(filled.grants, np.full(len(capacity), np.nan), filled.sure)


def relaxed(pods: PodTable, capacity: Ints) -> tuple[Ints, Bools]:
    """Lower bounds moved towards the minimums by one common ratio, until they fit."""
    extra = pods.low - pods.floor
    spare = capacity - pods.floor.sum(axis=1)
    filled = fill(Claims(spare, _doubles(extra), np.zeros_like(extra), extra))
    return pods.floor + filled.grants, filled.sure


def divide(pods: PodTable, capacity: Ints, policy: int) -> Division:
    """The grants of nodes whose lower bounds fit, congested or not."""
    if POLICIES[policy] is Policy.MARKET:
        return _market(pods, capacity)
    rows = len(capacity)
    division = Division(pods.want.copy(), np.zeros(rows), np.ones(rows, dtype=np.bool_))
    scarce = pods.want.sum(axis=1) > capacity
    if scarce.any():
        choose = _nash if POLICIES[policy] is Policy.NASH else _cut_surplus
        division.enter(scarce, choose(pods.rows(scarce), capacity[scarce]))
    return division


def _cut_surplus(pods: PodTable, capacity: Ints) -> Division:
    """x = minimum + (need - minimum)·t, inside the bounds."""
    floor = pods.floor
    rates, room = _doubles(pods.need - floor), capacity - floor.sum(axis=1)
    filled = fill(Claims(room, rates, pods.low - floor, pods.high - floor))
    return Division(floor + filled.grants, np.full(len(capacity), np.nan), filled.sure)


def _nash(pods: PodTable, capacity: Ints) -> Division:
    """x = min(want, minimum + weight·t); pods of weight 0 share what the others cannot take."""
    rate = pods.weight
    weighted = rate > 0
    least, most = pods.low - pods.floor, pods.want - pods.floor
    tops = np.where(weighted, pods.want, pods.low)
    # Every claim with a weight is satisfied: the level is infinite, its price 0.
    spare = tops.sum(axis=1) < capacity
    if spare.any():
        rate, least = rate.copy(), least.copy()
        least[spare] = tops[spare] - pods.floor[spare]
        rate[spare] = ~weighted[spare] & pods.live[spare]
    room = capacity - pods.floor.sum(axis=1)
    filled = fill(Claims(room, Rates(rate, np.zeros_like(rate)), least, most))
    price = np.where(spare, 0.0, shadow_price(filled.level))
    return Division(pods.floor + filled.grants, price, filled.sure)


def _market(pods: PodTable, capacity: Ints) -> Division:
    """x = min(high, minimum + bid·t): the whole capacity is handed out, whatever the needs."""
    bids, sure = _bids(pods)
    grants = np.where(bids.high > 0, pods.high, pods.low)  # if every bidder is capped
    price = np.zeros(len(capacity))
    short = grants.sum(axis=1) > capacity
    if short.any():
        floor = pods.floor[short]
        least, most = pods.low[short] - floor, pods.high[short] - floor
        room = capacity[short] - floor.sum(axis=1)
        filled = fill(Claims(room, bids.rows(short), least, most))
        grants[short] = floor + filled.grants
        price[short] = shadow_price(filled.level)
        sure[short] &= filled.sure
    return Division(grants, price, sure)


def _bids(pods: PodTable) -> tuple[Rates, Bools]:
    """Weight times demand, as exact pairs; all zero, the weights; those zero as well, equally.

    Not sure where a product vanishes that core keeps, or where its error would overflow.
    """
    weight, demand = pods.weight, pods.demand
    with np.errstate(over="ignore", invalid="ignore"):
        high, low = two_product(weight, demand)
    vanished = (high == 0) & (weight > 0) & (demand > 0)
    sure = ~vanished.any(axis=1) & (weight.max(axis=1) < RATE_MAX)
    silent = ~high.any(axis=1)
    if silent.any():
        high[silent], low[silent] = weight[silent], 0.0
        high[~high.any(axis=1)] = 1.0
        high *= pods.live
    return Rates(high, low), sure


def _doubles(sizes: Ints) -> Rates:
    rate = sizes.astype(np.float64)
    return Rates(rate, np.zeros_like(rate))
