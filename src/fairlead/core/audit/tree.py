"""The Merkle tree of RFC 9162: hashing, the frontier that appends in O(log n), nodes, proofs.

A leaf is SHA-256(0x00 ‖ data), a node SHA-256(0x01 ‖ left ‖ right), so that a leaf can never be
passed off as a node. A tree of any size is a row of perfect subtrees, largest first: the
*frontier*. Their hashes are all that appending needs.

A node is complete with its last leaf, and that leaf completes one node on each level up to some
height. A store that keeps with each leaf the nodes it completes only ever appends, and finds any
node by arithmetic: the node of level l over a last leaf m is the l-th hash kept with m.

Proofs show that an entry is in a tree, or that a tree only grew (2.1.3 and 2.1.4). Making one needs
O(log n) stored nodes, checking one needs none: a holder of a head can check with these functions
what it is shown, and need not trust the source. Checks answer False to anything that is not a
proof, however it is malformed.
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
    return sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
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


Proof = tuple[bytes, ...]


def inclusion_proof(index: int, size: int, stored: Stored) -> Proof:
    """The hashes that lead from leaf `index` (from 0) to the root of the first `size` leaves."""
    require(0 <= index < size, "an inclusion proof is about a leaf of the tree")
    spans, _ = _descend(index + 1, size, to_leaf=True)
    return _hashes(spans[::-1], stored)


def consistency_proof(old_size: int, new_size: int, stored: Stored) -> Proof:
    """The hashes from which both roots follow, so that the old tree begins the new one."""
    require(0 <= old_size <= new_size, "a consistency proof leads from a tree to a later one")
    if old_size == 0:
        return ()  # every tree begins with the empty one
    spans, last = _descend(old_size, new_size, to_leaf=False)
    if last.start:  # else the old tree is itself a subtree of the new one, and its root is known
        spans.append(last)
    return _hashes(spans[::-1], stored)


def check_inclusion(
    *, leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes
) -> bool:
    """Whether `proof` leads from the hash of leaf `index` to `root`."""
    steps = _climb(index, size - 1, proof) if 0 <= index < size else None
    result = leaf
    for sibling, left in steps or ():
        result = node_hash(sibling, result) if left else node_hash(result, sibling)
    return steps is not None and result == root


def check_consistency(
    *, old_size: int, old_root: bytes, new_size: int, new_root: bytes, proof: Sequence[bytes]
) -> bool:
    """Whether `proof` shows that the tree of `old_root` begins that of `new_root`."""
    if not 0 <= old_size <= new_size:
        return False
    if old_size in (0, new_size):
        start = EMPTY_ROOT if old_size == 0 else new_root
        return not proof and old_root == start
    path = list(proof)
    if old_size & (old_size - 1) == 0:
        path.insert(0, old_root)
    if not path:
        return False
    shift = _trailing_ones(old_size - 1)
    steps = _climb((old_size - 1) >> shift, (new_size - 1) >> shift, path[1:])
    old = new = path[0]
    for sibling, left in steps or ():
        if left:
            old, new = node_hash(sibling, old), node_hash(sibling, new)
        else:
            new = node_hash(new, sibling)
    return steps is not None and old == old_root and new == new_root


def _descend(count: int, size: int, *, to_leaf: bool) -> tuple[list[Span], Span]:
    """The spans beside the way from the root to the subtree that ends with `count` leaves."""
    beside, here = list[Span](), Span(0, size)
    while here.end - here.start > 1 if to_leaf else here.end > count:
        middle = here.start + _split(here.end - here.start)
        left, right = Span(here.start, middle), Span(middle, here.end)
        here, other = (left, right) if count <= middle else (right, left)
        beside.append(other)
    return beside, here


def _climb(place: int, last: int, proof: Sequence[bytes]) -> list[tuple[bytes, bool]] | None:
    """Each hash of a proof, and whether it is a left sibling; None where it has not as many as the
    way from this place up to the root."""
    steps = []
    for sibling in proof:
        if last == 0:
            return None
        left = bool(place & 1) or place == last
        steps.append((sibling, left))
        while left and place and not place & 1:  # a right edge without a sibling on these levels
            place, last = place >> 1, last >> 1
        place, last = place >> 1, last >> 1
    return steps if last == 0 else None


def _split(length: int) -> int:
    """The largest power of two below `length`: where RFC 9162 divides a tree."""
    return 1 << ((length - 1).bit_length() - 1)


def _trailing_ones(value: int) -> int:
    return (~value & (value + 1)).bit_length() - 1


def _hashes(spans: Sequence[Span], stored: Stored) -> Proof:
    """One hash per span; all nodes are asked for at once, because a store answers that faster."""
    parts = [span.subtrees() for span in spans]
    found = list(stored([node for part in parts for node in part]))
    hashes, at = [], 0
    for part in parts:
        hashes.append(fold(found[at : at + len(part)]))
        at += len(part)
    return tuple(hashes)
