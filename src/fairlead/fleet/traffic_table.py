"""Groups cut into tables: groups of similar size side by side, a row per group, padded."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from fairlead.fleet.columns import Bools, Ints
from fairlead.fleet.roster import Roster

# As for the tables of nodes: a dozen of them fit the processor's cache.
CELLS_MAX = 1 << 14

Item = TypeVar("Item", bound=np.generic)


@dataclass(frozen=True, slots=True, eq=False)
class GroupTable:
    """Some groups, and how to lay out the columns of backends for them."""

    groups: Ints
    live: Bools
    """Which cells are backends; the others are padding."""
    index: Ints

    def cells(self, column: npt.NDArray[Item], pad: float) -> npt.NDArray[Item]:
        """A column as a table, with `pad` where there is no backend."""
        if self.live.all():
            return column[self.index]
        return np.where(self.live, column[self.index], np.asarray(pad, dtype=column.dtype))

    def scatter(self, cells: npt.NDArray[Item], rows: Bools, column: npt.NDArray[Item]) -> None:
        """Write some rows of a table back into a column of backends."""
        chosen = self.live & rows[:, None]
        column[self.index[chosen]] = cells[chosen]


def cut(roster: Roster) -> Iterator[GroupTable]:
    """All groups that have backends, each in exactly one table."""
    counts = roster.counts
    order = np.argsort(counts, kind="stable")
    order = order[counts[order] > 0]
    start = 0
    while start < len(order):
        groups = order[start : start + CELLS_MAX]
        sizes = counts[groups]
        # Sorted by size: the last group taken sets the width of all.
        fits = (sizes <= 2 * sizes[0]) & (sizes * np.arange(1, len(groups) + 1) <= CELLS_MAX)
        taken = max(1, int(np.logical_and.accumulate(fits).sum()))
        yield _table(roster, groups[:taken])
        start += taken


def _table(roster: Roster, groups: Ints) -> GroupTable:
    counts, places = roster.counts[groups], np.arange(int(roster.counts[groups[-1]]))
    # Padding of the last group would point past the end of the columns.
    index = np.minimum(roster.offsets[groups][:, None] + places, roster.pods - 1)
    return GroupTable(groups, places < counts[:, None], index)
