"""Before and after the draw: forecasts, what is announced, and whether an outcome is right."""

import random
from collections import Counter
from fractions import Fraction
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.canonical import canonical, digest
from fairlead.core.gpu import (
    Conflict,
    CutTier,
    conflict_bytes,
    conflict_digest,
    forecast,
    notice_of,
    resolve,
)
from fairlead.core.lottery import Commitment, OwnerWeighting, check_reveal, entropy_hash, reveal
from fairlead.core.reasons import Exclusion
from tests.core.gpu.conflicts import ELSEWHERE, conflict_of, document, lease, random_doc, run

conflicts = st.builds(
    lambda seed: conflict_of(random_doc(random.Random(seed))), st.integers(0, 2**64)
)
seeds = st.binary(min_size=32, max_size=32)
ENTROPY, NEXT = sha256(b"this").digest(), sha256(b"next").digest()


def example() -> Conflict:
    """A spare, a step, and three gangs of two owners, of which one will be drawn."""
    runs = [run("m", "a", least=2), run("x", "a"), run("y", "b")]
    leases = [
        lease("s", "x", 1, spare=True),
        lease("m0", "m", 2),
        lease("m1", "m", 1, group=1),
        lease("x0", "x", 4),
        lease("y0", "y", 4),
        lease("far", "y", 1, location=ELSEWHERE),
        lease("other", "y", 1, flavor="A100"),
        lease("paid", "y", 1, envelope="east"),
    ]
    cap = {"budget": "b", "name": "all", "envelopes": ["west"]}
    made: Conflict = conflict_of(document(4, runs, leases, cap=cap))
    return made


def test_a_forecast_names_who_is_cut_and_who_is_at_risk() -> None:
    """Two owners: a has two tokens with a quarter each, b one with a half."""
    seen = forecast(example())
    assert [action.lease for action in seen.actions] == ["s", "m1"]
    (risk,) = seen.risks
    assert (risk.tier, risk.missing_gpus, risk.all_lost) == (CutTier.FUNDED, 2, False)
    assert {each.token: each.chance for each in seen.first_odds} == {
        "m": Fraction(1, 4),
        "x": Fraction(1, 4),
        "y": Fraction(1, 2),
    }
    weighted = forecast(example(), owner_weighting=OwnerWeighting.TOKENS)
    assert {each.chance for each in weighted.first_odds} == {Fraction(1, 3)}


def test_a_forecast_without_a_draw_is_the_outcome() -> None:
    """Structural cuts are certain, and so is what comes back."""
    leases = [lease("a", "r", 1, spare=True), lease("b", "r", 10, spare=True)]
    made = conflict_of(document(10, [run("r")], leases))
    seen, done = forecast(made), resolve(made, ENTROPY)
    assert (seen.actions, seen.withdrawn) == (done.actions, done.withdrawn)
    assert (seen.risks, seen.first_odds) == ((), ())
    assert seen.deficit_gpus == done.deficit_gpus == 10


def test_a_forecast_says_that_a_whole_tier_is_lost() -> None:
    """Two unfunded gangs are not enough; the third is at no risk but certain too."""
    runs = [run("u1"), run("u2"), run("f")]
    leases = [lease("u1", "u1", funded=False), lease("u2", "u2", funded=False), lease("f", "f", 2)]
    seen = forecast(conflict_of(document(3, runs, leases)))
    assert [(risk.tier, risk.all_lost) for risk in seen.risks] == [
        (CutTier.UNFUNDED, True),
        (CutTier.FUNDED, False),
    ]
    every = forecast(conflict_of(document(4, runs, leases)))
    assert [risk.all_lost for risk in every.risks] == [True, True]
    assert (every.actions, every.withdrawn) == ((), ())


def test_a_forecast_of_what_cannot_be_resolved_is_the_shortfall() -> None:
    """No run is at risk."""
    seen = forecast(conflict_of(document(3, [run("r")], [lease("l", "r", 1)])))
    assert (seen.shortfall_gpus, seen.actions, seen.risks) == (2, (), ())
    assert seen.deficit_gpus == 3


@given(conflicts, seeds)
def test_every_outcome_is_inside_its_forecast(made: Conflict, seed: bytes) -> None:
    """The same structural cuts; draws only from the rounds that were forecast; odds that fit."""
    seen, done = forecast(made), resolve(made, seed)
    assert (not seen.shortfall_gpus, seen.shortfall_gpus) == (done.resolved, done.shortfall_gpus)
    structural = {x.lease for x in (*done.actions, *done.withdrawn) if x.draw is None}
    assert {x.lease for x in (*seen.actions, *seen.withdrawn)} == structural
    assert [risk.tier for risk in seen.risks] == [each.tier for each in done.rounds]
    draws = list(done.draws())
    assert [draw.index for _, draw in draws] == list(range(len(draws)))
    assert {tier for tier, _ in draws} == {risk.tier for risk in seen.risks}
    for risk, each in zip(seen.risks, done.rounds, strict=True):
        assert sum(odds.chance for odds in risk.odds) == 1
        names = {token for tokens in each.tokens.values() for token in tokens}
        assert {odds.token for odds in risk.odds} == names
        assert len(each.draws) == len(names) or not risk.all_lost
    if all(risk.all_lost for risk in seen.risks):
        assert seen.withdrawn == done.withdrawn
        assert seen.actions == tuple(x for x in done.actions if x.draw is None)


@given(conflicts, seeds)
def test_weighting_by_tokens_changes_only_the_draws(made: Conflict, seed: bytes) -> None:
    """Enough is freed either way, from the same tokens."""
    done = resolve(made, seed, owner_weighting=OwnerWeighting.TOKENS)
    plain = resolve(made, seed)
    assert (done.resolved, done.shortfall_gpus) == (plain.resolved, plain.shortfall_gpus)
    assert [each.tokens for each in done.rounds] == [each.tokens for each in plain.rounds]
    assert not done.resolved or done.freed_gpus >= made.deficit_gpus


@given(conflicts)
def test_a_conflict_is_written_in_its_canonical_form(made: Conflict) -> None:
    """The fast writing of leases is the slow one, byte for byte; its document is the contract's."""
    assert conflict_bytes(made) == canonical(made.document())
    assert conflict_digest(made) == digest(made.document())
    again = conflict_of({**made.document(), "seed": "00" * 32})
    assert conflict_bytes(again) == conflict_bytes(made)


def test_a_notice_holds_everything_that_is_known_before() -> None:
    """Candidates, exclusions with reasons, those who are left out too, and the first odds."""
    left_out = [("zz", Exclusion.ENDING), ("aa", Exclusion.BENEFICIARY)]
    assert notice_of(example(), left_out).document() == {
        "candidates": ["m0", "m1", "s", "x0", "y0"],
        "exclusions": [
            {"lease": "aa", "reason": "beneficiary"},
            {"lease": "far", "reason": "location"},
            {"lease": "other", "reason": "flavor"},
            {"lease": "paid", "reason": "payer"},
            {"lease": "zz", "reason": "ending"},
        ],
        "tokens": [
            {"one_in": 4, "owner": "a", "token": "m"},
            {"one_in": 4, "owner": "a", "token": "x"},
            {"one_in": 2, "owner": "b", "token": "y"},
        ],
    }
    weighted = notice_of(example(), owner_weighting=OwnerWeighting.TOKENS)
    assert {odds.chance for odds in weighted.odds} == {Fraction(1, 3)}


def test_a_notice_by_stakes_says_how_many_times_its_part_a_token_has() -> None:
    """Two GPUs are missing: a run of one cannot free them, so the other is certain to be drawn."""
    leases = [lease("m0", "m", 1), lease("y0", "y", 3)]
    made = conflict_of(document(2, [run("m", "a"), run("y", "b")], leases))
    weighted = notice_of(made, owner_weighting=OwnerWeighting.STAKE)
    assert weighted.owner_weighting is OwnerWeighting.STAKE
    assert weighted.document()["tokens"] == [
        {"one_in": 1, "owner": "a", "times": 0, "token": "m"},
        {"one_in": 1, "owner": "b", "times": 1, "token": "y"},
    ]


def _seed(number: int) -> bytes:
    return sha256(f"seed {number}".encode()).digest()


@pytest.mark.parametrize("weighting", list(OwnerWeighting))
def test_grinding_would_show(weighting: OwnerWeighting) -> None:
    """Fifty tries for a friendlier outcome: only the one that was committed leaves no doubt."""
    made = example()
    promised = Commitment(
        chain="ab" * 32,
        k=3,
        previous_seq=1,
        scope=made.scope.document(),
        deficit_gpus=made.deficit_gpus,
        conflict_digest=conflict_digest(made),
        notice_digest=digest(notice_of(made, owner_weighting=weighting).document()),
        owner_weighting=weighting,
    )
    met: Counter[bool] = Counter()
    drawn = set()
    for number in range(50):
        entropy = ENTROPY if number == 20 else _seed(number)
        tried = reveal(promised, commit_seq=2, entropy=entropy, next_entropy=NEXT)
        assert tried.seed is not None
        drawn.add(resolve(made, tried.seed, owner_weighting=weighting).actions)
        met[check_reveal(promised, tried, entropy_hash(ENTROPY)) == ()] += 1
    assert met == {True: 1, False: 49}
    assert len(drawn) > 1, "another try would have preempted another run"
