"""An urn: things in a fixed order, some of them several times, taken out one by one.

The thing at a position and the taking out of one cost O(log n) (a Fenwick tree), so that a lottery
with ten thousand draws among a hundred thousand tokens does not move them all after each draw.
"""

from collections.abc import Sequence


class Urn:
    """How often each thing is still in; `total` of them together."""

    __slots__ = ("_top", "_tree", "total")

    def __init__(self, counts: Sequence[int]) -> None:
        self.total = sum(counts)
        # tree[i] sums the counts of the i & -i things up to and including the i-th, from 1.
        tree = self._tree = [0, *counts]
        for i in range(1, len(tree)):
            above = i + (i & -i)
            if above < len(tree):
                tree[above] += tree[i]
        self._top = 1 << len(counts).bit_length() >> 1

    def find(self, position: int) -> int:
        """The thing that holds this position, 0 to total - 1, counted in order."""
        tree, at, stride = self._tree, 0, self._top
        while stride:
            ahead = at + stride
            if ahead < len(tree) and tree[ahead] <= position:
                position -= tree[ahead]
                at = ahead
            stride >>= 1
        return at

    def take(self, thing: int) -> None:
        """One of it is out for good."""
        tree, i = self._tree, thing + 1
        while i < len(tree):
            tree[i] -= 1
            i += i & -i
        self.total -= 1
