"""Who sits where: the pods of each node, in the order that settles ties.

Kept apart from the numbers because it rarely changes: a fleet that is cleared every five seconds
checks its half a million names once and replaces only the columns.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from fairlead.core import units
from fairlead.core.units import OutOfRange
from fairlead.fleet.columns import Ints


@dataclass(frozen=True, slots=True, eq=False)
class Roster:
    """Node i holds the pods `uids[offsets[i]:offsets[i + 1]]`, ascending by code point.

    Core breaks ties by uid, so the position inside a node *is* the tie-break.
    """

    offsets: Ints
    uids: tuple[str, ...]

    def __post_init__(self) -> None:
        steps = np.diff(self.offsets)
        if not self.offsets.size or self.offsets[0] != 0 or (steps < 0).any():
            raise OutOfRange("offsets", "must start at 0 and never fall")
        if self.offsets[-1] != len(self.uids):
            raise OutOfRange("offsets", f"must end at the number of uids, {len(self.uids)}")
        starts = set(self.offsets.tolist())
        for index, uid in enumerate(self.uids):
            units.name(uid, f"uids[{index}]")
            if index not in starts and not self.uids[index - 1] < uid:
                raise OutOfRange(f"uids[{index}]", "must be above the uid before it in its node")

    @classmethod
    def of(cls, nodes: Iterable[Sequence[str]]) -> "Roster":
        """The roster of nodes given as lists of ascending uids."""
        members = [tuple(uids) for uids in nodes]
        offsets = np.array([0, *accumulate(map(len, members))], dtype=np.int64)
        return cls(offsets, tuple(uid for uids in members for uid in uids))

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return len(self.offsets) - 1

    @property
    def pods(self) -> int:
        """How many pods there are on all nodes together."""
        return len(self.uids)

    @property
    def counts(self) -> Ints:
        """How many pods each node holds."""
        return np.diff(self.offsets)

    def span(self, node: int) -> slice:
        """Where the pods of a node lie in every column of pods."""
        return slice(int(self.offsets[node]), int(self.offsets[node + 1]))
