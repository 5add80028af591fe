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

    @property
    def shape(self) -> tuple[int, int]:
        rows, width = self.live.shape
        return rows, width

    def gather(self, column: npt.NDArray[Item]) -> npt.NDArray[Item]:
        """A column of pods as a table. Padding holds the numbers of some other pod."""
        return column[self.index].reshape(self.shape)

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
    value = _driven(table, floor=floor, top=top, demand=demand)
    reasons = np.full(table.shape, REASON_BIT[CpuReason.DEMAND_DRIVEN], dtype=np.uint8)
    usage, known = _usage(table)
    quiet = (demand == 0) & known & (usage > USAGE_SUSPICIOUS * floor)
    lost = ~table.gather(fleet.signal_ok)
    current = table.gather(fleet.current_millicores)
    by_usage = (usage * USAGE_ROOM).astype(np.int64)
    _replace(value, reasons, quiet & ~lost, by_usage, CpuReason.USAGE_FALLBACK)
    _replace(value, reasons, lost & known, by_usage, CpuReason.SIGNAL_MISSING_USAGE)
    held = lost & ~known & (current >= 0)
    _replace(value, reasons, held, current, CpuReason.SIGNAL_MISSING_HOLD)
    blind = lost & ~known & (current < 0)
    _replace(value, reasons, blind, floor, CpuReason.SIGNAL_MISSING_MIN)
    return value, reasons


def _usage(table: NodeTable) -> tuple[Ints, Bools]:
    usage = table.gather(table.fleet.usage_millicores)
    return usage, usage >= 0


def _driven(table: NodeTable, *, floor: Ints, top: Ints, demand: Floats) -> Ints:
    """The need that follows demand. Casting to int64 truncates towards zero, as `int` does."""
    base, per_demand, per_miss, cap = table.fleet.headroom[table.nodes].T[:, :, None]
    misses = table.gather(table.fleet.headroom_misses)
    raw = floor + ((top - floor) * demand).astype(np.int64)
    factor = np.minimum(cap, base + per_demand * demand + per_miss * misses)
    need: Ints = raw + (raw * factor).astype(np.int64)
    return need


def _replace(value: Ints, reasons: Bits, mask: Bools, by: Ints, reason: CpuReason) -> None:
    """Overwrite the need and its reason where `mask` says so (mostly nowhere)."""
    if mask.any():
        value[mask] = by[mask]
        reasons[mask] = REASON_BIT[reason]
