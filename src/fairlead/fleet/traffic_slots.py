"""Slots of many groups: `core.traffic.slots` and `core.traffic.guard`, a row per group.

The slew is integer arithmetic and exact. Targets divide doubles by largest remainder, exactly in
core; here they are rounded with doubles and a margin, and a row in which the margin cannot tell two
remainders apart is declared not sure, for core to decide.
"""

from typing import NamedTuple

import numpy as np

from fairlead.core.traffic.config import Config
from fairlead.core.traffic.slots import step_limit
from fairlead.core.traffic.state import HALVINGS_MAX
from fairlead.fleet.columns import Bools, Floats, Ints

# Doubles err by less than S·(n + 2)·2^-52 slots; below this many slots times backends that is
# less than a third of the margin.
MARGIN = 1e-9
SLOTS_TIMES_BACKENDS_MAX = 1_000_000


def left_sums(cells: Floats) -> Floats:
    """Σ of each row from left to right, as core adds: numpy's own sum adds in pairs."""
    total: Floats = np.cumsum(cells, axis=1)[:, -1]
    return total


def share_out(total: Ints, shares: Ints) -> Ints:
    """`core.apportion.largest_remainder` of each row."""
    whole = shares.sum(axis=1)
    product = shares * total[:, None]
    floor: Ints = product // np.maximum(whole, 1)[:, None]
    left = np.where(whole > 0, total - floor.sum(axis=1), 0)
    if not left.any():
        return floor
    more: Ints = floor + _first(product - floor * whole[:, None], left)
    return more


def _first(keys: Ints | Floats, left: Ints) -> Bools:
    """Mark the `left` largest keys of each row; the earlier of equals first."""
    order = np.argsort(-keys, axis=1, kind="stable")
    marked = np.zeros(keys.shape, dtype=np.bool_)
    np.put_along_axis(marked, order, np.arange(keys.shape[1]) < left[:, None], axis=1)
    return marked


def target_rows(s_total: int, shares: Floats) -> tuple[Ints, Bools]:
    """Targets of each row, and the rows that are sure."""
    if s_total * shares.shape[1] > SLOTS_TIMES_BACKENDS_MAX:
        return np.zeros(shares.shape, dtype=np.int64), np.zeros(len(shares), dtype=np.bool_)
    taking = shares > 0
    quota = shares * s_total
    floor = np.floor(quota)
    rest = quota - floor
    left = s_total - floor.sum(axis=1).astype(np.int64)
    key = np.where(taking, rest, -1.0)
    # How large the remainders on both sides of the cut are.
    ordered = -np.sort(-key, axis=1)
    rows = np.arange(len(shares))
    last = ordered[rows, np.clip(left - 1, 0, shares.shape[1] - 1)]
    following = np.clip(left, 0, shares.shape[1] - 1)
    next_one = np.where(left < shares.shape[1], ordered[rows, following], -1.0)
    clear = (left <= 0) | (last - next_one > MARGIN)
    whole = (~taking | ((rest > MARGIN) & (rest < 1 - MARGIN))).all(axis=1)
    sure = clear & whole & (left >= 0)
    target = floor.astype(np.int64) + _first(key, left)
    # Equal shares need no margin: they divide evenly, and the first ones take what is left.
    peak = shares.max(axis=1)
    alike = ((shares == peak[:, None]) | ~taking).all(axis=1)
    count = np.maximum(taking.sum(axis=1), 1)
    even = taking * (s_total // count)[:, None]
    extra = taking & (np.cumsum(taking, axis=1) <= (s_total % count)[:, None])
    target = np.where(alike[:, None], even + extra, target)
    # Remainders that tie exactly do so because the shares are the same double.
    return target, sure | alike | (whole & (left > 0) & _tied(shares, key, last, next_one))


def _tied(shares: Floats, key: Floats, last: Floats, next_one: Floats) -> Bools:
    """Rows whose cut runs through equal shares, with nobody else near it."""
    near = np.abs(key - last[:, None]) <= MARGIN
    low = np.where(near, shares, np.inf).min(axis=1)
    high = np.where(near, shares, -np.inf).max(axis=1)
    tied: Bools = (low == high) & (last == next_one)
    return tied


def limits(config: Config, crisis: Bools, halvings: Ints) -> Ints:
    """Δmax of each row; core computes the few different ones."""
    table = [
        [step_limit(config, crisis=bool(kind), halvings=n) for n in range(HALVINGS_MAX + 1)]
        for kind in (False, True)
    ]
    return np.array(table, dtype=np.int64)[crisis.astype(np.int64), halvings]


def slew_rows(slots: Ints, target: Ints, limit: Ints) -> Ints:
    """One step of each row towards its target."""
    gap = target - slots
    takes = np.minimum(np.maximum(gap, 0), limit[:, None])
    gives = np.minimum(np.maximum(-gap, 0), limit[:, None])
    moved = np.minimum(takes.sum(axis=1), gives.sum(axis=1))
    return slots + share_out(moved, takes) - share_out(moved, gives)


class Steps(NamedTuple):
    """Slots after the step, the guard after it, and the rows that were held back."""

    slots: Ints
    halvings: Ints
    since_ms: Ints
    held: Bools


def guarded_steps(
    slots: Ints,
    target: Ints,
    *,
    weights: Floats,
    skew: Floats,
    halvings: Ints,
    since_ms: Ints,
    crisis: Bools,
    clock_ms: Ints,
    config: Config,
) -> Steps:
    """`core.traffic.guard.guarded_step` of each row."""
    limit = limits(config, crisis, halvings)
    after = slew_rows(slots, target, limit)
    moves = (after != slots).any(axis=1)
    bad = moves & _worse(after, weights, skew, config)
    held = np.zeros(len(slots), dtype=np.bool_)
    if bad.any():
        more = (limit[bad] > 1) & (halvings[bad] < HALVINGS_MAX)
        halvings, since_ms = halvings.copy(), since_ms.copy()
        halvings[bad] += more
        since_ms[bad] = np.where(halvings[bad] > 0, clock_ms[bad], 0)
        smaller = limits(config, crisis[bad], halvings[bad])
        again = slew_rows(slots[bad], target[bad], smaller)
        held[bad] = _worse(again, weights[bad], skew[bad], config)
        after[bad] = np.where(held[bad][:, None], slots[bad], again)
    return Steps(after, halvings, since_ms, held)


def _worse(slots: Ints, weights: Floats, skew: Floats, config: Config) -> Bools:
    predicted = np.abs(slots / config.s_total - weights).max(axis=1)
    worse: Bools = predicted > skew + config.epsilon_skew  # NaN: undefined, and nothing is worse
    return worse
