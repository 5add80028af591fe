"""Proofs that an entry is in a tree and that a tree only grew (RFC 9162, 2.1.3 and 2.1.4).

Making one needs O(log n) stored nodes, checking one needs none: a holder of a head can check
with these functions what it is shown, and need not trust the source. Checks answer False
to anything that is not a proof, however it is malformed.
"""

from collections.abc import Sequence

from fairlead.core.audit.tree import EMPTY_ROOT, Span, Stored, fold, node_hash
from fairlead.core.invariant import require

Proof = tuple[bytes, ...]


def inclusion_proof(index: int, size: int, stored: Stored) -> Proof:
    """The hashes that lead from leaf `index` (from 0) to the root of the first `size` leaves."""
    require(0 <= index < size, "an inclusion proof is about a leaf of the tree")
    spans, start, end = [], 0, size
    while end - start > 1:
        middle = start + _split(end - start)
        if index < middle:
            spans.append(Span(middle, end))
            end = middle
        else:
            spans.append(Span(start, middle))
            start = middle
    return _hashes(spans[::-1], stored)


def consistency_proof(old_size: int, new_size: int, stored: Stored) -> Proof:
    """The hashes from which both roots follow, so that the old tree begins the new one."""
    require(0 <= old_size <= new_size, "a consistency proof leads from a tree to a later one")
    if old_size == 0:
        return ()  # every tree begins with the empty one
    spans, start, end = [], 0, new_size
    while old_size < end:
        middle = start + _split(end - start)
        if old_size <= middle:
            spans.append(Span(middle, end))
            end = middle
        else:
            spans.append(Span(start, middle))
            start = middle
    if start:  # else the old tree is itself a subtree of the new one, and its root is known
        spans.append(Span(start, end))
    return _hashes(spans[::-1], stored)


def check_inclusion(
    *, leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes
) -> bool:
    """Whether `proof` leads from the hash of leaf `index` to `root`."""
    if not 0 <= index < size:
        return False
    place, last, result = index, size - 1, leaf
    for sibling in proof:
        if last == 0:
            return False
        if place & 1 or place == last:
            result = node_hash(sibling, result)
            while place and not place & 1:  # a right edge that has no sibling on these levels
                place, last = place >> 1, last >> 1
        else:
            result = node_hash(result, sibling)
        place, last = place >> 1, last >> 1
    return last == 0 and result == root


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
    place, last = (old_size - 1) >> shift, (new_size - 1) >> shift
    old = new = path[0]
    for sibling in path[1:]:
        if last == 0:
            return False
        if place & 1 or place == last:
            old, new = node_hash(sibling, old), node_hash(sibling, new)
            while place and not place & 1:
                place, last = place >> 1, last >> 1
        else:
            new = node_hash(new, sibling)
        place, last = place >> 1, last >> 1
    return last == 0 and old == old_root and new == new_root


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
