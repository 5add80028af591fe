"""Draws: every number below n, none other, and nothing but the seed decides."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.invariant import InvariantBroken
from fairlead.core.lottery import Stage, uniform_below
from fairlead.core.lottery.draw import Urn
from tests.core.lottery import definition

seeds = st.binary(min_size=32, max_size=32)


@given(seeds, st.sampled_from(Stage), st.integers(0, 2**64 - 1), st.integers(1, 2**64))
def test_a_draw_is_the_definition(seed: bytes, stage: Stage, index: int, n: int) -> None:
    """Any n up to 2^64, any index."""
    found = uniform_below(n, seed=seed, stage=stage, index=index)
    assert found == definition.pick(seed.hex(), stage.value, index, n)
    assert 0 <= found < n


def test_a_hash_of_the_incomplete_stretch_is_drawn_again() -> None:
    """Nearly half of them for 2^63 + 1 numbers, none for all of 2^64, and the first one beyond it
    too."""
    first, every = [], []
    for number in range(40):
        seed = number.to_bytes(32, "big")
        known = {"seed": seed, "stage": Stage.TOKEN, "index": 3}
        found = uniform_below(2**63 + 1, **known)  # type: ignore[arg-type]
        assert found == definition.pick(seed.hex(), "token", 3, 2**63 + 1)
        whole = uniform_below(2**64, **known)  # type: ignore[arg-type]
        every.append(whole)
        if whole > 2**63:
            first.append(uniform_below(whole, **known))  # type: ignore[arg-type]
            assert first[-1] == definition.pick(seed.hex(), "token", 3, whole)
    assert len(first) > 10
    assert 0 not in first
    assert len(set(every)) == 40


def test_stages_indexes_and_seeds_are_independent() -> None:
    """Another stage, index or seed is another draw."""
    n = 2**60
    draws = {
        uniform_below(n, seed=bytes([first]) * 32, stage=stage, index=index)
        for first in range(5)
        for stage in Stage
        for index in range(5)
    }
    assert len(draws) == 75


@pytest.mark.parametrize(("seed", "n"), [(bytes(31), 2), (bytes(32), 0), (bytes(32), 2**64 + 1)])
def test_what_cannot_be_drawn_is_a_bug(seed: bytes, n: int) -> None:
    """Short seeds, no token to draw, more than a hash can count."""
    with pytest.raises(InvariantBroken):
        uniform_below(n, seed=seed, stage=Stage.OWNER, index=0)


@given(st.lists(st.integers(0, 4), max_size=40), st.data())
def test_an_urn_is_a_list_that_things_are_taken_from(
    counts: list[int], data: st.DataObject
) -> None:
    """The same thing at every position, after every taking."""
    urn = Urn(counts)
    left = [thing for thing, count in enumerate(counts) for _ in range(count)]
    while left:
        assert urn.total == len(left)
        position = data.draw(st.integers(0, len(left) - 1))
        assert urn.find(position) == left[position]
        urn.take(left.pop(position))
    assert urn.total == 0
