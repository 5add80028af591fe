"""Stake: every GPU of a tier is as likely to be lost as the next, however it is divided."""

import random
from fractions import Fraction

import pytest

from fairlead.core.gpu import resolve, total_odds
from fairlead.core.gpu.resolve import forecast
from fairlead.core.lottery import Heaps, OwnerWeighting, heaps_of
from fairlead.schema.border import check_shape
from fairlead.schema.gpu import ResolveDocument, to_conflict
from tests.core.gpu import resolve_cases, resolve_oracle

STAKE = OwnerWeighting.STAKE


def test_heaps_that_are_lost_that_are_spared_and_runs_that_are_needed() -> None:
    """The three cases by hand."""
    ones = {f"s{number:02d}": 1 for number in range(16)}
    halves = heaps_of({"big": 16, **ones}, 16)
    assert (halves.needed, len(halves.heaps), halves.spares) == ((), 2, False)
    assert (halves.chance, halves.lost(0), len(halves.lost(1))) == (Fraction(1, 2), ("big",), 16)
    thirds = heaps_of({"a": 10, "b": 10, "c": 10}, 15)
    assert (thirds.heaps, thirds.spares) == ((("a",), ("b",), ("c",)), True)
    assert (thirds.chance, thirds.lost(1)) == (Fraction(2, 3), ("a", "c"))
    forced = heaps_of({"big": 16, **ones}, 17)
    assert (forced.needed, len(forced.heaps), forced.chance) == (("big",), 16, Fraction(1, 16))
    assert heaps_of({"a": 4, "b": 1}, 4) == Heaps(("a",), (), spares=False)
    assert heaps_of({"a": 4, "b": 1}, 5).lost(0) == ("a", "b")
    packed = heaps_of({"a": 2, "b": 2, "c": 1, "d": 1}, 4)
    assert (packed.heaps, packed.spares) == ((("a",), ("b",), ("c", "d")), True)


@pytest.mark.parametrize("case", range(200))
def test_each_run_is_as_likely_and_every_heap_is_enough(case: int) -> None:
    """For any sizes and any deficit: what makes an expected loss a share of the GPUs."""
    rng = random.Random(f"stake/{case}")
    names = [f"r{number}" for number in range(rng.randrange(1, 30))]
    sizes = {name: rng.choice((1, 1, 2, 4, 8, 16, 64)) for name in names}
    missing = rng.randrange(1, sum(sizes.values()) + 1)
    found = heaps_of(sizes, missing)
    divided = [*found.needed, *(run for heap in found.heaps for run in heap)]
    assert len(divided) == len(set(divided))
    assert set(divided) == set(names if found.heaps else found.needed)
    outcomes = [found.lost(drawn) for drawn in range(max(1, len(found.heaps)))]
    for lost in outcomes:
        assert sum(sizes[run] for run in lost) >= missing
    for name in names:
        hits = Fraction(sum(name in lost for lost in outcomes), len(outcomes))
        assert hits == (1 if name in found.needed else found.chance)
    for name in found.needed:  # by any rule: all others are not enough
        assert sum(sizes.values()) - sizes[name] < missing


@pytest.mark.parametrize("case", range(150))
def test_core_decides_as_the_oracle(case: int) -> None:
    """Draws, cuts and odds of random documents, of another implementation."""
    document = resolve_cases.random_doc(random.Random(f"stake/{case}"))
    conflict = to_conflict(check_shape(document, ResolveDocument))
    seed = bytes.fromhex(document["seed"])
    found = resolve(conflict, seed, owner_weighting=STAKE)
    expected = resolve_oracle.decide(document, "stake")
    assert found.freed_gpus == expected["freed_gpus"]
    drawn = [(draw.index, draw.owner, draw.token) for each in found.rounds for draw in each.draws]
    rows = [(row["index"], row["owner"], row["token"]) for row in expected["draws"]]
    assert drawn == rows
    odds = {row.token: row.chance for row in forecast(conflict, owner_weighting=STAKE).first_odds}
    assert odds == {
        row["token"]: Fraction(row["times"], row["one_in"])
        for row in resolve_oracle.stake_tokens(document)
    }
    total = {row.run: row.chance for row in total_odds(conflict, owner_weighting=STAKE)}
    assert all(total[token] == round(float(odds[token]), 4) for token in odds)
