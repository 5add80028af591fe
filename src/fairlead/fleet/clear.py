"""Clear a fleet: core's `clear`, table by table instead of node by node.

The steps and their names are those of `fairlead.core.cpu.market`; read that first. What differs is
that a row may turn out *not sure* (see `fill`): such nodes, and nodes too large for a table, are
cleared by core and counted in `FleetPlan.fallback`.
"""

import numpy as np

from fairlead.core.cpu import CpuMode, Policy, clear
from fairlead.core.invariant import require
from fairlead.core.reasons import CpuReason
from fairlead.fleet.columns import MODE_CODE, POLICIES, REASON_BIT, Bools, Codes, Ints
from fairlead.fleet.plan import FleetPlan
from fairlead.fleet.policies import Outcome, divide, relaxed, scale_minimums
from fairlead.fleet.seats import Seats, seat
from fairlead.fleet.snapshot import FleetSnapshot
from fairlead.fleet.table import Table, cut


def clear_fleet(fleet: FleetSnapshot) -> FleetPlan:
    """Divide the capacity of every node, bit-equal to `fairlead.core.cpu.clear` on each."""
    plan = FleetPlan.blank(fleet.roster, fleet.capacity_millicores)
    plan.fallback[:] = fleet.roster.counts > 0  # until a table has cleared it for certain
    for table in cut(fleet):
        _clear_table(table, plan)
    for index in np.flatnonzero(plan.fallback).tolist():
        plan.put(index, clear(fleet.node(index)))
    return plan


def _clear_table(table: Table, plan: FleetPlan) -> None:
    seats = seat(table)
    lower_bounds = seats.low.copy()
    capacity = table.fleet.capacity_millicores[table.nodes]
    rows = len(capacity)
    total_min = seats.floor.sum(axis=1)
    overloaded = total_min > capacity
    sure = _relax(seats, capacity, ~overloaded)
    outcome = Outcome(np.zeros_like(seats.low), np.full(rows, np.nan), sure)
    if overloaded.any():
        _enter(outcome, overloaded, scale_minimums(seats.rows(overloaded), capacity[overloaded]))
    rest = ~overloaded & sure
    if rest.any():
        _enter(outcome, rest, divide(seats.rows(rest), capacity[rest], table.policy))
    mode = _label(table, seats.want.sum(axis=1), overloaded)
    _check(table, seats, outcome, overloaded)
    bent = (outcome.grants < lower_bounds) & (lower_bounds > seats.floor)
    seats.reasons |= bent * np.uint8(REASON_BIT[CpuReason.GUARDRAIL_RELAXED])
    _write(table, seats, outcome, plan)
    plan.mode[table.nodes] = mode
    plan.total_min[table.nodes] = total_min


def _relax(seats: Seats, capacity: Ints, fits: Bools) -> Bools:
    """Lower the lower bounds towards the minimums where they do not fit; which rows are sure."""
    sure = np.ones(len(capacity), dtype=np.bool_)
    tight = fits & (seats.low.sum(axis=1) > capacity)
    if tight.any():
        low, sure[tight] = relaxed(seats.rows(tight), capacity[tight])
        seats.relax(tight, low)
    return sure


def _enter(outcome: Outcome, rows: Bools, part: Outcome) -> None:
    outcome.grants[rows], outcome.price[rows], outcome.sure[rows] = part


def _label(table: Table, total_want: Ints, overloaded: Bools) -> Codes:
    """Hysteresis belongs to the label only; letting it hold the grants would overcommit."""
    fleet, nodes = table.fleet, table.nodes
    capacity = fleet.capacity_millicores[nodes]
    leaves_at = capacity * (1 - fleet.hysteresis_band[nodes])
    was_congested = fleet.previous_mode[nodes] == MODE_CODE[CpuMode.CONGESTED]
    congested = (total_want > capacity) | (was_congested & (total_want > leaves_at))
    mode = np.where(congested, MODE_CODE[CpuMode.CONGESTED], MODE_CODE[CpuMode.UNCONGESTED])
    return np.where(overloaded, MODE_CODE[CpuMode.OVERLOADED], mode).astype(np.int8)


def _write(table: Table, seats: Seats, outcome: Outcome, plan: FleetPlan) -> None:
    room = seats.need - seats.floor
    # Where there is no room the ratio is 0, and 0/1 is as good as a special case.
    ratio = (seats.need - outcome.grants) * (room > 0) / np.maximum(room, 1)
    table.scatter(seats.need, plan.needs)
    table.scatter(outcome.grants, plan.allocations)
    table.scatter(ratio, plan.reduction_ratio)
    table.scatter(seats.reasons, plan.reasons)
    plan.total_need[table.nodes] = seats.need.sum(axis=1)
    plan.shadow_price[table.nodes] = outcome.price
    plan.fallback[table.nodes] = ~outcome.sure


def _check(table: Table, seats: Seats, outcome: Outcome, overloaded: Bools) -> None:
    """Core's promises, kept on every clearing and not only in tests; unsure rows go to core."""
    capacity = table.fleet.capacity_millicores[table.nodes]
    grants, unsure = outcome.grants, ~outcome.sure
    total = grants.sum(axis=1)
    require(bool((unsure | (total <= capacity)).all()), "INV-2: the grants fit the capacity")
    below_top = (grants <= seats.top).all(axis=1)
    inside = ((seats.low <= grants) & (grants <= seats.high)).all(axis=1)
    bounded = np.where(overloaded, below_top, inside)
    require(bool((unsure | bounded).all()), "INV-1: every grant lies inside its bounds")
    whole = overloaded
    if POLICIES[table.policy] is not Policy.MARKET:
        scarce = seats.want.sum(axis=1) > capacity
        as_wanted = np.where(scarce[:, None], grants <= seats.want, grants == seats.want)
        kept = unsure | overloaded | as_wanted.all(axis=1)
        require(bool(kept.all()), "INV-3: the need where nothing is scarce, never more")
        whole = overloaded | scarce
    require(
        bool((unsure | ~whole | (total == capacity)).all()), "a scarce node is handed out whole"
    )
