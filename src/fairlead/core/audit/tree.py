"""The Merkle tree of RFC 9162: hashing, the frontier that appends in O(log n), node numbers.

A leaf is SHA-256(0x00 ‖ data), a node SHA-256(0x01 ‖ left ‖ right), so that a leaf can never be
passed off as a node. A tree of any size is a row of perfect subtrees, largest first: the
*frontier*. Their hashes are all that appending needs.

Nodes are numbered in the order in which appending completes them (children before parents). A
store that keeps them under these numbers only ever appends, and finds any of them by arithmetic.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple, Self

from fairlead.core.invariant import require

EMPTY_ROOT = sha256(b"").digest()

Stored = Callable[[Sequence[int]], Sequence[bytes]]
"""Answers node numbers with the hashes kept under them, in the order asked."""


def leaf_hash(data: bytes) -> bytes:
    """The hash of one entry's bytes."""
    return sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of a node above two others."""
    return sha256(b"\x01" + left + right).digest()


def node_count(size: int) -> int:
    """How many nodes `size` leaves complete: 2n - 1 for each perfect subtree of n leaves."""
    return 2 * size - size.bit_count()


def node_number(level: int, position: int) -> int:
    """The number of the node over the leaves [position * 2^level, (position + 1) * 2^level).

    It is completed `level` steps after its last leaf, which comes after all nodes of the tree
    before that leaf.
    """
    last_leaf = ((position + 1) << level) - 1
    return node_count(last_leaf) + level


class Span(NamedTuple):
    """The leaves [start, end) under one hash of a proof."""

    start: int
    end: int

    def subtrees(self) -> list[int]:
        """The numbers of the perfect subtrees that make it up, largest (leftmost) first.

        Spans of RFC 9162 begin at a multiple of a power of two that is at least their length, so
        the binary digits of the length are the subtrees.
        """
        numbers, start, length = [], self.start, self.end - self.start
        while length:
            level = length.bit_length() - 1
            numbers.append(node_number(level, start >> level))
            start += 1 << level
            length -= 1 << level
        return numbers


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
        nodes: list[bytes] = []
        for leaf in leaves:
            nodes.append(leaf)
            carry, digits = leaf, size
            # As in binary addition: each trailing 1 is a subtree as large as the carry.
            while digits & 1:
                carry = sha256(b"\x01" + peaks.pop() + carry).digest()
                nodes.append(carry)
                digits >>= 1
            peaks.append(carry)
            size += 1
        return Growth(Frontier(size, tuple(peaks)), nodes)


class Growth(NamedTuple):
    """What an extension came to."""

    frontier: Frontier
    nodes: list[bytes]
    """Completed nodes; the first has the number `node_count` of the size before."""
