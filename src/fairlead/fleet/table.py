"""Nodes cut into tables: a few hundred nodes of one policy and similar size, side by side.

One row per node, one column per pod, padded with pods that own and want nothing. Tables are small
so that a dozen of them fit the processor's cache (about twice as fast as one table over all
nodes), and hold nodes of similar size so that one large node does not pad thousands of small ones.
`pod_table` computes needs and bounds as `core.cpu.need` and `core.cpu.market` do, with the same
doubles in the same order.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields

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

    def scatter(self, cells: npt.NDArray[Item], column: npt.NDArray[Item]) -> None:
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
    """The pods of a table. Padding has all sizes zero: it owns nothing and wants nothing."""

    live: Bools
    floor: Ints
    top: Ints
    need: Ints
    low: Ints
    high: Ints
    want: Ints
    weight: Floats
    demand: Floats
    reasons: Bits

    def rows(self, mask: Bools) -> "PodTable":
        if mask.all():
            return self
        return PodTable(**{item.name: getattr(self, item.name)[mask] for item in fields(self)})

    def relax(self, mask: Bools, low: Ints) -> None:
        self.low[mask] = low
        self.want[mask] = np.minimum(np.maximum(self.need[mask], low), self.high[mask])


def pod_table(table: NodeTable) -> PodTable:
    fleet, live = table.fleet, table.live
    top = table.gather(fleet.max_millicores) * live
    lowest = table.gather(fleet.min_millicores) * live
    floor = np.minimum(lowest, top)
    demand = table.gather(fleet.demand)
    value, reasons = _value(table, floor=floor, top=top, demand=demand)
    reasons |= (lowest > top) * np.uint8(REASON_BIT[CpuReason.MIN_ABOVE_MAX])
    need = np.minimum(np.maximum(value, floor), top)
    upper, lower = table.gather(fleet.upper_millicores), table.gather(fleet.lower_millicores)
    # An unknown lower bound is -1 and so the floor; an unknown upper bound is the top.
    high = np.where(upper < 0, top, np.minimum(np.maximum(upper, floor), top))
    low = np.minimum(np.maximum(lower, floor), high)
    want = np.minimum(np.maximum(need, low), high)
    weight = table.gather(fleet.weight) * live
    return PodTable(live, floor, top, need, low, high, want, weight, demand, reasons)


def _value(table: NodeTable, *, floor: Ints, top: Ints, demand: Floats) -> tuple[Ints, Bits]:
    """The need before it is clamped, and the one reason where it comes from."""
    fleet = table.fleet
    base, per_demand, per_miss, cap = fleet.headroom[table.nodes].T[:, :, None]
    misses = table.gather(fleet.headroom_misses)
    # Casting to int64 truncates towards zero, as `int` does.
    raw = floor + ((top - floor) * demand).astype(np.int64)
    factor = np.minimum(cap, base + per_demand * demand + per_miss * misses)
    value: Ints = raw + (raw * factor).astype(np.int64)
    reasons = np.full(table.live.shape, REASON_BIT[CpuReason.DEMAND_DRIVEN], dtype=np.uint8)
    usage = table.gather(fleet.usage_millicores)
    known = usage >= 0
    quiet = (demand == 0) & known & (usage > USAGE_SUSPICIOUS * floor)
    lost = ~table.gather(fleet.signal_ok)
    current = table.gather(fleet.current_millicores)
    by_usage = (usage * USAGE_ROOM).astype(np.int64)
    for mask, by, reason in (
        (quiet & ~lost, by_usage, CpuReason.USAGE_FALLBACK),
        (lost & known, by_usage, CpuReason.SIGNAL_MISSING_USAGE),
        (lost & ~known & (current >= 0), current, CpuReason.SIGNAL_MISSING_HOLD),
        (lost & ~known & (current < 0), floor, CpuReason.SIGNAL_MISSING_MIN),
    ):
        if mask.any():  # mostly nowhere
            value[mask], reasons[mask] = by[mask], REASON_BIT[reason]
    return value, reasons
