"""The Merkle tree of RFC 9162: hashing, the frontier that appends in O(log n), node numbers.

A leaf is SHA-256(0x00 ‖ data), a node SHA-256(0x01 ‖ left ‖ right), so that a leaf can never be
passed off as a node. A tree of any size is a row of perfect subtrees, largest first: the
*frontier*. Their hashes are all that appending needs.

A node is complete with its last leaf, and that leaf completes one node on each level up to some
height. A store that keeps with each leaf the nodes it completes only ever appends, and finds any
node by arithmetic: the node of level l over a last leaf m is the l-th hash kept with m.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple, Self

from fairlead.core.invariant import require

EMPTY_ROOT = sha256(b"").digest()

HASH_BYTES = 32


class TreeNode(NamedTuple):
    """The node over the leaves [position * 2^level, (position + 1) * 2^level)."""

    level: int
    position: int

    @property
    def last_leaf(self) -> int:
        """The leaf that completes it, and with which it is kept."""
        return ((self.position + 1) << self.level) - 1

    def among(self, completed: bytes) -> bytes:
        """Its hash, from all that its last leaf completed (`Growth.completed`)."""
        return completed[self.level * HASH_BYTES : (self.level + 1) * HASH_BYTES]


Stored = Callable[[Sequence[TreeNode]], Sequence[bytes]]
"""Answers nodes with their hashes, in the order asked."""


def leaf_hash(data: bytes) -> bytes:
    """The hash of one entry's bytes."""
    return sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of a node above two others."""
    return sha256(b"\x01" + left + right).digest()


class Span(NamedTuple):
    """The leaves [start, end) under one hash of a proof."""

    start: int
    end: int

    def subtrees(self) -> list[TreeNode]:
        """The perfect subtrees that make it up, largest (leftmost) first.

        Spans of RFC 9162 begin at a multiple of a power of two that is at least their length, so
        the binary digits of the length are the subtrees.
        """
        nodes, start, length = list[TreeNode](), self.start, self.end - self.start
        while length:
            level = length.bit_length() - 1
            nodes.append(TreeNode(level, start >> level))
            start += 1 << level
            length -= 1 << level
        return nodes


def fold(peaks: Sequence[bytes]) -> bytes:
    """One hash over a row of perfect subtrees, smallest first into the next larger."""
    result = peaks[-1]
    for peak in reversed(peaks[:-1]):
        result = node_hash(peak, result)
    return result


@dataclass(frozen=True, slots=True)
class Frontier:
    """The right edge of a tree: its size and the hashes of its perfect subtrees, largest first."""

    size: int = 0
    peaks: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        require(len(self.peaks) == self.size.bit_count(), "a peak for each binary digit of a size")

    @classmethod
    def of(cls, size: int, stored: Stored) -> Self:
        """The frontier of the first `size` leaves, from the nodes that a store keeps."""
        return cls(size, tuple(stored(Span(0, size).subtrees())))

    def root(self) -> bytes:
        """The hash of the whole tree."""
        return fold(self.peaks) if self.peaks else EMPTY_ROOT

    def extend(self, leaves: Iterable[bytes]) -> "Growth":
        """The tree with these leaf hashes behind the others, and the nodes that this completes."""
        size, peaks = self.size, list(self.peaks)
        completed: list[bytes] = []
        for leaf in leaves:
            carry, digits, hashes = leaf, size, [leaf]
            # As in binary addition: each trailing 1 is a subtree as large as the carry.
            while digits & 1:
                carry = sha256(b"\x01" + peaks.pop() + carry).digest()
                hashes.append(carry)
                digits >>= 1
            completed.append(b"".join(hashes) if size & 1 else leaf)
            peaks.append(carry)
            size += 1
        return Growth(Frontier(size, tuple(peaks)), completed)


class Growth(NamedTuple):
    """What an extension came to."""

    frontier: Frontier
    completed: list[bytes]
    """For each new leaf the hashes it completes, its own first, then one per level above."""
