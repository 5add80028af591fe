"""Total odds: against all orders of all draws, against the lottery itself, and within the error."""

from collections import Counter
from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.gpu import (
    Conflict,
    ConflictLease,
    ConflictRun,
    CutTier,
    Malleable,
    Role,
    Scope,
    conflict_digest,
    resolve,
    total_odds,
)
from fairlead.core.gpu import odds as module
from fairlead.core.gpu.odds import TotalOdds
from fairlead.core.lottery import OwnerWeighting

WEIGHTINGS = list(OwnerWeighting)


def conflict(deficit: int, *runs: tuple[str, int, bool]) -> Conflict:
    """Runs by owner, size and whether they are funded."""
    rows = [(f"r{i:03}", *run) for i, run in enumerate(runs)]
    return Conflict(
        Scope("H100"),
        deficit,
        tuple(ConflictRun(name, owner) for name, owner, _, _ in rows),
        tuple(
            ConflictLease(f"l-{n}", n, Role.ACTIVE, 0, gpus, "H100", {}, funded, "b", "e")
            for n, _, gpus, funded in rows
        ),
    )


def test_by_hand() -> None:
    """Two owners, one with two runs; two of three gangs have to go."""
    three = conflict(2, ("a", 1, True), ("a", 1, True), ("b", 1, True))
    found = {row.run: row.chance for row in total_odds(three)}
    # b first (1/2) or second (a first, then 1/2): 3/4. What is left of 2 is shared by a's two.
    assert found == {"r000": 0.625, "r001": 0.625, "r002": 0.75}
    tokens = total_odds(three, owner_weighting=OwnerWeighting.TOKENS)
    assert {row.chance for row in tokens} == {0.6667}


def test_a_tier_that_goes_wholly_is_certain_and_nothing_drawn_is_no_risk() -> None:
    both = conflict(3, ("a", 2, False), ("b", 1, True), ("c", 1, True))
    for weighting in WEIGHTINGS:
        assert total_odds(both, owner_weighting=weighting) == (
            TotalOdds("r000", "a", CutTier.UNFUNDED, 1.0),
            TotalOdds("r001", "b", CutTier.FUNDED, 0.5),
            TotalOdds("r002", "c", CutTier.FUNDED, 0.5),
        )
    assert {row.chance for row in total_odds(conflict(3, ("a", 2, True), ("b", 1, True)))} == {1.0}
    assert total_odds(conflict(9, ("a", 2, True))) == ()
    assert total_odds(conflict(0, ("a", 2, True))) == ()
    steps = Conflict(
        Scope("H100"),
        1,
        (ConflictRun("r", "a", Malleable(1, 1)),),
        tuple(
            ConflictLease(f"l{g}", "r", Role.ACTIVE, g, 1, "H100", {}, True, "b", "e")
            for g in range(2)
        ),
    )
    assert total_odds(steps) == (), "it shrinks by rule"


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3)), min_size=1, max_size=6),
    st.sampled_from(WEIGHTINGS),
    st.data(),
)
def test_the_lottery_agrees(
    runs: list[tuple[str, int]], weighting: OwnerWeighting, data: st.DataObject
) -> None:
    deficit = data.draw(st.integers(1, sum(gpus for _, gpus in runs)))
    given_ = conflict(deficit, *((owner, gpus, True) for owner, gpus in runs))
    games, hits = 400, Counter[str]()
    for game in range(games):
        seed = sha256(f"{game}".encode()).digest()
        drawn = resolve(given_, seed, owner_weighting=weighting).draws()
        hits.update(draw.token for _, draw in drawn)
    for row in total_odds(given_, owner_weighting=weighting):
        assert abs(hits[row.run] / games - row.chance) < 0.13  # five standard errors


@pytest.mark.parametrize("weighting", [OwnerWeighting.OWNERS, OwnerWeighting.TOKENS])
def test_simulated_figures_are_near_the_exact_ones_and_always_the_same(
    monkeypatch: pytest.MonkeyPatch, weighting: OwnerWeighting
) -> None:
    runs = [("abcd"[i % 4], 1 + i % 3, True) for i in range(10)]
    exact = total_odds(conflict(9, *runs), owner_weighting=weighting)
    assert {row.error for row in exact} == {0.0}, "ten runs are not too many"
    monkeypatch.setattr(module, "EXACT_MAX", 0)
    near = total_odds(conflict(9, *runs), owner_weighting=weighting)
    assert near == total_odds(conflict(9, *runs), owner_weighting=weighting)
    assert {row.error for row in near} == {0.0224}
    off = [abs(one.chance - other.chance) for one, other in zip(exact, near, strict=True)]
    assert max(off) < 2 * near[0].error


def test_many_runs_are_a_matter_of_a_moment() -> None:
    many = conflict(600, *((f"o{i % 40}", 2, True) for i in range(500)))
    found = total_odds(many)
    assert len(found) == 500
    assert abs(sum(row.chance for row in found) - 300) < 1
    assert 0 < found[0].error < 0.2


@pytest.mark.parametrize("weighting", [OwnerWeighting.OWNERS, OwnerWeighting.TOKENS])
def test_games_are_played_as_outcomes_are_with_seeds_of_the_conflict(
    monkeypatch: pytest.MonkeyPatch, weighting: OwnerWeighting
) -> None:
    """All draws of a game with one seed, numbered from 0."""
    monkeypatch.setattr(module, "EXACT_MAX", 0)
    monkeypatch.setattr(module, "_GAMES", (40, 40))
    made = conflict(6, *(("abc"[i % 3], 1 + i % 2, True) for i in range(8)))
    hits = Counter[str]()
    for game in range(40):
        text = f"fairlead odds {conflict_digest(made)} {game}"
        seed = sha256(text.encode()).digest()
        drawn = resolve(made, seed, owner_weighting=weighting).draws()
        hits.update(draw.token for _, draw in drawn)
    found = total_odds(made, owner_weighting=weighting)
    assert {row.run: row.chance for row in found} == {
        f"r{i:03}": round(hits[f"r{i:03}"] / 40, 4) for i in range(8)
    }


def test_a_tier_that_is_just_enough_is_certain_and_not_played() -> None:
    every = total_odds(conflict(11, *(("a", 1, True) for _ in range(11))))
    assert {(row.chance, row.error) for row in every} == {(1.0, 0.0)}


def test_odds_by_stakes_have_four_places() -> None:
    three = conflict(1, *(("a", 1, True) for _ in range(3)))
    found = total_odds(three, owner_weighting=OwnerWeighting.STAKE)
    assert [row.chance for row in found] == [0.3333] * 3
