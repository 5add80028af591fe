"""Nodes cut into tables: a few hundred nodes of one policy and similar size, side by side.

One row per node, one column per pod, padded with pods that own and want nothing. Tables are small
so that a dozen of them fit the processor's cache (about twice as fast as one table over all
nodes), and hold nodes of similar size so that one large node does not pad thousands of small ones.
`pod_table` computes needs and bounds as `core.cpu.need` and `core.cpu.market` do, with the same
doubles in the same order.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fairlead.core.cpu.need import USAGE_ROOM, USAGE_SUSPICIOUS
from fairlead.core.reasons import CpuReason
from fairlead.fleet.snapshot import REASON_BIT, Bits, Bools, FleetSnapshot, Floats, Ints, Item

# 2^14 cells of eight bytes are 128 KiB per column. Measured: half or four times as many are slower.
CELLS_MAX = 1 << 14
# Beyond this Σ of sizes could pass 2^63, and the error bounds of `shares` would be worth little.
PODS_MAX = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class NodeTable:
    """Some nodes of one policy, and how to lay out a fleet's columns for them."""

    fleet: FleetSnapshot
    nodes: Ints
    policy: int
    live: Bools
    """Which cells are pods; the others are padding."""
    index: Ints | slice
    """Where the cells lie in the fleet's columns of pods."""

    def gather(self, column: npt.NDArray[Item]) -> npt.NDArray[Item]:
        """A column of pods as a table. Padding holds the numbers of some other pod."""
        return column[self.index].reshape(self.live.shape)

    def sizes(self, column: Ints) -> Floats:
        return self.gather(column).astype(np.float64)

    @property
    def full(self) -> bool:
        """No cell is padding."""
        return isinstance(self.index, slice)

    def scatter(self, cells: Floats | Bits, column: npt.NDArray[Item]) -> None:
        if isinstance(self.index, slice):
            column[self.index] = cells.reshape(-1)
        else:
            column[self.index[self.live]] = cells[self.live]


def cut(fleet: FleetSnapshot) -> Iterator[NodeTable]:
    """All nodes that have pods and not too many, each in exactly one table."""
    counts = fleet.roster.counts
    order = np.lexsort((counts, fleet.policy))
    order = order[(counts[order] > 0) & (counts[order] <= PODS_MAX)]
    start = 0
    while start < len(order):
        nodes = order[start : start + CELLS_MAX]
        policy, smallest = fleet.policy[nodes[0]], counts[nodes[0]]
        # Sorted by size inside a policy: the last node taken sets the width of all.
        fits = (fleet.policy[nodes] == policy) & (counts[nodes] <= 2 * smallest)
        fits &= counts[nodes] * np.arange(1, len(nodes) + 1) <= CELLS_MAX
        taken = max(1, int(np.logical_and.accumulate(fits).sum()))
        yield _table(fleet, nodes[:taken], int(policy))
        start += taken


def _table(fleet: FleetSnapshot, nodes: Ints, policy: int) -> NodeTable:
    counts, starts = fleet.roster.counts[nodes], fleet.roster.offsets[nodes]
    width = int(counts[-1])
    places = np.arange(width)
    live = places < counts[:, None]
    first = int(starts[0])
    if (starts == first + width * np.arange(len(nodes))).all() and live.all():
        return NodeTable(fleet, nodes, policy, live, slice(first, first + width * len(nodes)))
    # Padding of the last node would point past the end of the columns.
    index = np.minimum(starts[:, None] + places, len(fleet.roster.uids) - 1)
    return NodeTable(fleet, nodes, policy, live, index)


@dataclass(slots=True, eq=False)
class PodTable:
    """The pods of a table. Padding has all sizes zero: it owns nothing and wants nothing.

    Sizes are whole numbers in doubles, which are exact far beyond SIZE_MAX and twice as fast.
    """

    live: Bools
    floor: Floats
    top: Floats
    need: Floats
    low: Floats
    high: Floats
    want: Floats
    weight: Floats
    demand: Floats
    reasons: Bits

    def relax(self, rows: Ints, low: Floats) -> None:
        self.low[rows] = low
        self.want[rows] = np.minimum(np.maximum(self.need[rows], low), self.high[rows])


def pod_table(table: NodeTable) -> PodTable:
    fleet, live = table.fleet, table.live
    top, lowest = table.sizes(fleet.max_millicores), table.sizes(fleet.min_millicores)
    weight = table.gather(fleet.weight)
    if not table.full:
        top, lowest, weight = top * live, lowest * live, weight * live
    floor = np.minimum(lowest, top)
    demand = table.gather(fleet.demand)
    need, reasons = _value(table, floor=floor, top=top, demand=demand)
    above = lowest > top
    if above.any():
        reasons |= above * np.uint8(REASON_BIT[CpuReason.MIN_ABOVE_MAX])
    _clamp(need, floor, top)
    high, low = top, floor
    # An unknown lower bound is -1 and so the floor; an unknown upper bound is the top.
    upper, lower = table.gather(fleet.upper_millicores), table.gather(fleet.lower_millicores)
    if (upper >= 0).any():
        high = np.where(upper < 0, top, _clamp(upper.astype(np.float64), floor, top))
    if (lower >= 0).any():
        low = _clamp(lower.astype(np.float64), floor, high)
    want = need
    if high is not top or low is not floor:
        want = _clamp(need.copy(), low, high)
    return PodTable(live, floor, top, need, low, high, want, weight, demand, reasons)


def _clamp(values: Floats, low: Floats, high: Floats) -> Floats:
    np.maximum(values, low, out=values)
    return np.minimum(values, high, out=values)


def _value(table: NodeTable, *, floor: Floats, top: Floats, demand: Floats) -> tuple[Floats, Bits]:
    """The need before it is clamped, and the one reason where it comes from."""
    fleet = table.fleet
    base, per_demand, per_miss, cap = fleet.headroom[table.nodes].T[:, :, None]
    misses = table.gather(fleet.headroom_misses)
    factor = per_demand * demand
    factor += base
    if misses.any():
        factor += per_miss * misses
    np.minimum(cap, factor, out=factor)
    # Truncated towards zero, as `int` does.
    raw = top - floor
    raw *= demand
    np.trunc(raw, out=raw)
    raw += floor
    factor *= raw
    value = np.trunc(factor, out=factor)
    value += raw
    reasons = np.full(table.live.shape, REASON_BIT[CpuReason.DEMAND_DRIVEN], dtype=np.uint8)
    lost, silent = ~table.gather(fleet.signal_ok), demand == 0
    if lost.any() or silent.any():
        _without_signal(table, floor, (lost, silent), value, reasons)
    return value, reasons


def _without_signal(
    table: NodeTable, floor: Floats, doubts: tuple[Bools, Bools], value: Floats, reasons: Bits
) -> None:
    """Needs by usage, by the limit in force or by the minimum, in place."""
    lost, silent = doubts
    usage = table.gather(table.fleet.usage_millicores)
    current = table.gather(table.fleet.current_millicores)
    known = usage >= 0
    quiet = silent & known & (usage > USAGE_SUSPICIOUS * floor)
    by_usage = np.trunc(usage * USAGE_ROOM)
    for mask, by, reason in (
        (quiet & ~lost, by_usage, CpuReason.USAGE_FALLBACK),
        (lost & known, by_usage, CpuReason.SIGNAL_MISSING_USAGE),
        (lost & ~known & (current >= 0), current, CpuReason.SIGNAL_MISSING_HOLD),
        (lost & ~known & (current < 0), floor, CpuReason.SIGNAL_MISSING_MIN),
    ):
        if mask.any():  # mostly nowhere
            value[mask], reasons[mask] = by[mask], REASON_BIT[reason]
