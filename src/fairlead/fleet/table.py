"""Nodes cut into tables: a few hundred nodes of one policy and similar size, side by side.

One row per node, one column per pod, padded with pods that own and want nothing. Tables are small
so that a dozen of them fit the processor's cache (about twice as fast as one table over all
nodes), and hold nodes of similar size so that one large node does not pad thousands of small ones.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from fairlead.fleet.columns import Bools, Ints
from fairlead.fleet.snapshot import FleetSnapshot

# 2^14 cells of eight bytes are 128 KiB per column. Measured: half or four times as many are slower.
CELLS_MAX = 1 << 14
# Beyond this Σ of sizes could pass 2^63, and the error bounds of `shares` would be worth little.
PODS_MAX = 1 << 20

Item = TypeVar("Item", bound=np.generic)


@dataclass(frozen=True, slots=True, eq=False)
class Table:
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
        """Nodes, and the pods of the largest."""
        rows, width = self.live.shape
        return rows, width

    def gather(self, column: npt.NDArray[Item]) -> npt.NDArray[Item]:
        """A column of pods as a table. Padding holds the numbers of some other pod."""
        return column[self.index].reshape(self.shape)

    def scatter(self, cells: npt.NDArray[Item], column: npt.NDArray[Item]) -> None:
        """Write a table back into a column of pods."""
        if isinstance(self.index, slice):
            column[self.index] = cells.reshape(-1)
        else:
            column[self.index[self.live]] = cells[self.live]


def cut(fleet: FleetSnapshot) -> Iterator[Table]:
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


def _table(fleet: FleetSnapshot, nodes: Ints, policy: int) -> Table:
    counts, starts = fleet.roster.counts[nodes], fleet.roster.offsets[nodes]
    width = int(counts[-1])
    places = np.arange(width)
    live = places < counts[:, None]
    first = int(starts[0])
    if (starts == first + width * np.arange(len(nodes))).all() and live.all():
        return Table(fleet, nodes, policy, live, slice(first, first + width * len(nodes)))
    # Padding of the last node would point past the end of the columns.
    index = np.minimum(starts[:, None] + places, fleet.roster.pods - 1)
    return Table(fleet, nodes, policy, live, index)
