"""The tree against published vectors and against the RFC's own recursive definition."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.audit import EMPTY_ROOT, Frontier, TreeNode, leaf_hash, node_hash
from fairlead.core.invariant import InvariantBroken
from tests.core.audit import oracle

# The reference tree of the certificate-transparency test suites: leaves, and the root after each.
LEAVES = [
    bytes.fromhex(text)
    for text in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


class Kept:
    """Stored nodes as a list, counting how many were asked for."""

    def __init__(self, data: Sequence[bytes]) -> None:
        self.completed = Frontier().extend(map(leaf_hash, data)).completed
        self.asked = 0

    def __call__(self, nodes: Sequence[TreeNode]) -> list[bytes]:
        self.asked += len(nodes)
        return [node.among(self.completed[node.last_leaf]) for node in nodes]


def data_of(size: int) -> list[bytes]:
    return [f"entry {number}".encode() for number in range(size)]


def test_the_published_roots() -> None:
    """The empty tree and the eight of the reference suite."""
    frontier = Frontier()
    assert frontier.root() == EMPTY_ROOT == bytes.fromhex(ROOTS[0])
    for size, leaf in enumerate(LEAVES, start=1):
        frontier = frontier.extend([leaf_hash(leaf)]).frontier
        assert frontier.root().hex() == ROOTS[size]


def test_every_size_to_70_has_the_root_of_the_definition() -> None:
    """However the leaves are cut into batches."""
    for size in range(71):
        data = data_of(size)
        leaves = [leaf_hash(each) for each in data]
        whole = Frontier().extend(leaves)
        assert whole.frontier.root() == oracle.mth(data)
        assert len(whole.completed) == size
        for cut in range(0, size + 1, 3):
            first = Frontier().extend(leaves[:cut])
            second = first.frontier.extend(leaves[cut:])
            assert second.frontier == whole.frontier
            assert first.completed + second.completed == whole.completed


def test_a_node_is_kept_with_its_last_leaf() -> None:
    """Every perfect subtree of 64 leaves, and the frontier of every size, from the stored nodes."""
    data = data_of(64)
    kept = Kept(data)
    for level in range(7):
        for position in range(64 >> level):
            under = data[position << level : (position + 1) << level]
            assert kept([TreeNode(level, position)]) == [oracle.mth(under)]
    assert sum(map(len, kept.completed)) == 127 * 32  # each node once, and no other
    for size in range(65):
        expected = Frontier().extend(map(leaf_hash, data[:size])).frontier
        assert Frontier.of(size, kept) == expected


def test_a_leaf_is_never_a_node() -> None:
    """The prefixes keep apart what would else hash alike."""
    left, right = leaf_hash(b"a"), leaf_hash(b"b")
    assert leaf_hash(left + right) != node_hash(left, right)


def test_a_frontier_has_a_peak_per_digit() -> None:
    """A size and hashes that do not belong together never become a frontier."""
    with pytest.raises(InvariantBroken):
        Frontier(3, (EMPTY_ROOT,))


@given(st.lists(st.binary(max_size=40), max_size=300), st.integers(0, 300))
def test_any_data_in_two_batches(data: list[bytes], cut: int) -> None:
    """Beyond the exhaustive sizes."""
    leaves = [leaf_hash(each) for each in data]
    grown = Frontier().extend(leaves[:cut]).frontier.extend(leaves[cut:])
    assert grown.frontier.root() == oracle.mth(data)
