"""Proofs: the RFC's, for every pair of sizes to 70; and nothing else passes for one."""

import pytest

from fairlead.core.audit import (
    EMPTY_ROOT,
    check_consistency,
    check_inclusion,
    consistency_proof,
    inclusion_proof,
    leaf_hash,
)
from fairlead.core.invariant import InvariantBroken
from tests.core.audit import oracle
from tests.core.audit.test_tree import LEAVES, ROOTS, Kept, data_of

# From the same reference suite: (leaf from 0, size) and (old size, new size).
INCLUSION = {
    (0, 8): [
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    ],
    (5, 8): [
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ],
}
CONSISTENCY = {
    (1, 1): [],
    (1, 8): INCLUSION[0, 8],
    (6, 8): [
        "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ],
    (2, 5): [
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
    ],
}


def test_the_published_proofs() -> None:
    """Byte for byte."""
    kept = Kept(LEAVES)
    for (index, size), expected in INCLUSION.items():
        proof = inclusion_proof(index, size, kept)
        assert [each.hex() for each in proof] == expected
        root = bytes.fromhex(ROOTS[size])
        leaf = leaf_hash(LEAVES[index])
        assert check_inclusion(leaf=leaf, index=index, size=size, proof=proof, root=root)
    for (old, new), expected in CONSISTENCY.items():
        assert [each.hex() for each in consistency_proof(old, new, kept)] == expected


def test_every_inclusion_to_70_is_the_definitions_and_checks() -> None:
    """Every leaf of every size, in at most 2 log n stored nodes."""
    data = data_of(70)
    kept = Kept(data)
    for size in range(1, 71):
        root = oracle.mth(data[:size])
        for index in range(size):
            kept.asked = 0
            proof = inclusion_proof(index, size, kept)
            assert kept.asked <= 2 * size.bit_length()
            assert list(proof) == oracle.path(index, data[:size])
            leaf = leaf_hash(data[index])
            assert check_inclusion(leaf=leaf, index=index, size=size, proof=proof, root=root)


def test_every_consistency_to_70_is_the_definitions_and_checks() -> None:
    """Every pair of sizes, the empty tree included."""
    data = data_of(70)
    kept = Kept(data)
    roots = [oracle.mth(data[:size]) for size in range(71)]
    for new in range(71):
        for old in range(new + 1):
            kept.asked = 0
            proof = consistency_proof(old, new, kept)
            assert kept.asked <= 2 * new.bit_length()
            assert list(proof) == (oracle.proof(old, data[:new]) if old else [])
            assert check_consistency(
                old_size=old, old_root=roots[old], new_size=new, new_root=roots[new], proof=proof
            )


def test_no_changed_inclusion_passes() -> None:
    """Another leaf, index, size or root, a flipped bit, a missing or additional hash."""
    data = data_of(40)
    kept = Kept(data)
    for size in range(1, 41):
        root = oracle.mth(data[:size])
        for index in range(0, size, 3):
            proof, leaf = list(inclusion_proof(index, size, kept)), leaf_hash(data[index])
            assert not check_inclusion(
                leaf=leaf_hash(b"other"), index=index, size=size, proof=proof, root=root
            )
            for other in (index - 1, index + 1, -1, size):
                if other != index:
                    assert not check_inclusion(
                        leaf=leaf, index=other, size=size, proof=proof, root=root
                    )
            for changed in _changes(proof):
                assert not check_inclusion(
                    leaf=leaf, index=index, size=size, proof=changed, root=root
                )
            assert not check_inclusion(
                leaf=leaf, index=index, size=size, proof=proof, root=EMPTY_ROOT
            )


def test_no_changed_consistency_passes() -> None:
    """Another old or new root, sizes the wrong way round, a changed path."""
    data = data_of(40)
    kept = Kept(data)
    roots = [oracle.mth(data[:size]) for size in range(41)]
    other = leaf_hash(b"other")
    for new in range(1, 41):
        for old in range(new + 1):
            proof = list(consistency_proof(old, new, kept))
            sizes = {"old_size": old, "new_size": new}
            good = {"old_root": roots[old], "new_root": roots[new]}
            assert not check_consistency(**sizes, **good | {"old_root": other}, proof=proof)
            if old:  # from the empty tree everything is a continuation
                assert not check_consistency(**sizes, **good | {"new_root": other}, proof=proof)
            for changed in _changes(proof):
                assert not check_consistency(**sizes, **good, proof=changed)
            if 0 < old < new:
                assert not check_consistency(**sizes, **good, proof=())
    assert not check_consistency(
        old_size=3, old_root=roots[3], new_size=2, new_root=roots[2], proof=()
    )
    assert not check_consistency(
        old_size=-1, old_root=roots[0], new_size=2, new_root=roots[2], proof=()
    )


def _changes(proof: list[bytes]) -> list[list[bytes]]:
    """The path with one thing wrong."""
    changes = [[*proof, EMPTY_ROOT], [EMPTY_ROOT, *proof]]
    for at, each in enumerate(proof):
        flipped = bytes([each[0] ^ 1]) + each[1:]
        changes.append([*proof[:at], flipped, *proof[at + 1 :]])
        changes.append([*proof[:at], *proof[at + 1 :]])
    if len(proof) > 1:
        changes.append(proof[::-1])
    return changes


def test_a_rewritten_entry_cannot_be_explained_away() -> None:
    """Two histories that share the first 20 entries: no proof of one is a proof of the other."""
    ours, theirs = data_of(33), data_of(33)
    theirs[20] = b"rewritten"
    kept = Kept(theirs)
    for old in range(21, 34):
        proof = consistency_proof(old, 33, kept)
        assert not check_consistency(
            old_size=old,
            old_root=oracle.mth(ours[:old]),
            new_size=33,
            new_root=oracle.mth(theirs),
            proof=proof,
        )


@pytest.mark.parametrize(("index", "size"), [(-1, 3), (3, 3), (0, 0)])
def test_no_proof_is_made_about_what_is_not_there(index: int, size: int) -> None:
    """A bug of the caller, not a proof."""
    with pytest.raises(InvariantBroken):
        inclusion_proof(index, size, Kept(data_of(3)))
    with pytest.raises(InvariantBroken):
        consistency_proof(size + 1, size, Kept(data_of(3)))
