"""Commitments and reveals: what is bound, what is labelled, and what raises a doubt."""

from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.canonical import digest
from fairlead.core.invariant import InvariantBroken
from fairlead.core.lottery import (
    BeaconRound,
    Commitment,
    Doubt,
    Draw,
    Label,
    Pot,
    check_draws,
    check_reveal,
    check_succession,
    committed_tokens,
    derive_seed,
    entropy_hash,
    first_odds,
    lp,
    preimage,
    reveal,
)

ENTROPY, NEXT = sha256(b"this").digest(), sha256(b"next").digest()
TOKENS = {"a": ["x", "y"], "b": ["z"]}


def commitment(**fields: Any) -> Commitment:
    made = Commitment(
        sequence=4,
        scope={"flavor": "H100", "location": {}, "cap": None},
        deficit_gpus=3,
        conflict_digest=sha256(b"conflict").hexdigest(),
        candidates=("l1", "l2"),
        exclusions=(),
        odds=first_odds(TOKENS),
        entropy_hash=entropy_hash(ENTROPY),
    )
    return replace(made, **fields)


def test_an_outcome_is_verifiable_with_a_beacon_or_a_nonce() -> None:
    """Either is enough; neither means that the operator is trusted."""
    assert commitment().label is Label.OPERATOR_TRUSTED
    assert commitment(nonces={"a": b"\0"}).label is Label.VERIFIABLE
    assert commitment(beacon=BeaconRound("chain", 9)).label is Label.VERIFIABLE


def test_the_documents() -> None:
    """Hex for bytes, lists by owner, the commitment cited by its digest."""
    promised = commitment(beacon=BeaconRound("chain", 9), nonces={"b": b"\x02", "a": b"\x01"})
    body = promised.document()
    assert body["beacon"] == {"chain": "chain", "round": 9}
    assert body["nonces"] == [{"owner": "a", "nonce": "01"}, {"owner": "b", "nonce": "02"}]
    shown = reveal(promised, entropy=ENTROPY, next_entropy=NEXT, beacon=b"\xab")
    assert shown.document({"resolved": True}) == {
        "sequence": 4,
        "commitment": digest(body),
        "entropy": ENTROPY.hex(),
        "beacon": "ab",
        "seed": promised.seed(ENTROPY, b"\xab").hex(),
        "next_entropy_hash": sha256(NEXT).hexdigest(),
        "outcome": {"resolved": True},
    }
    plain = reveal(commitment(), entropy=ENTROPY, next_entropy=NEXT)
    assert plain.document({})["beacon"] is None


@pytest.mark.parametrize(
    "given",
    [
        {"entropy": NEXT, "next_entropy": NEXT},
        {"entropy": ENTROPY, "next_entropy": NEXT, "beacon": b"nobody waited for it"},
        {"entropy": ENTROPY[:31], "next_entropy": NEXT},
        {"entropy": ENTROPY, "next_entropy": NEXT[:31]},
    ],
)
def test_a_commitment_cannot_be_broken_by_mistake(given: dict[str, bytes]) -> None:
    """Other entropy, a beacon that was not committed to, entropy of another length."""
    with pytest.raises(InvariantBroken):
        reveal(commitment(), **given)


def test_a_committed_beacon_is_waited_for() -> None:
    """Without its value there is no reveal."""
    with pytest.raises(InvariantBroken):
        reveal(commitment(beacon=BeaconRound("c", 1)), entropy=ENTROPY, next_entropy=NEXT)


def test_a_kept_commitment_leaves_no_doubt() -> None:
    """With and without a beacon."""
    for promised, beacon in (
        (commitment(), b""),
        (commitment(beacon=BeaconRound("c", 1), nonces={"a": b"n"}), b"value"),
    ):
        shown = reveal(promised, entropy=ENTROPY, next_entropy=NEXT, beacon=beacon)
        assert check_reveal(promised, shown) == ()


@pytest.mark.parametrize(
    ("change", "doubts"),
    [
        ({"sequence": 5}, {Doubt.SEQUENCE}),
        ({"commitment": "00" * 32}, {Doubt.COMMITMENT}),
        ({"entropy": NEXT}, {Doubt.ENTROPY, Doubt.SEED}),
        ({"entropy": b"short"}, {Doubt.ENTROPY, Doubt.SEED}),
        ({"beacon": b"late"}, {Doubt.BEACON, Doubt.SEED}),
        ({"seed": bytes(32)}, {Doubt.SEED}),
    ],
)
def test_every_change_of_a_reveal_is_doubted(change: dict[str, Any], doubts: set[Doubt]) -> None:
    """By name."""
    shown = reveal(commitment(), entropy=ENTROPY, next_entropy=NEXT)
    assert set(check_reveal(commitment(), replace(shown, **change))) == doubts


@pytest.mark.parametrize(
    "change",
    [
        {"deficit_gpus": 2},
        {"candidates": ("l1",)},
        {"exclusions": (("l3", "OtherFlavor"),)},
        {"scope": {}},
        {"nonces": {"a": b"n"}},
        {"conflict_digest": "00" * 32},
        {"sequence": 5},
        {"odds": first_odds({"a": ["x"]})},
        {"entropy_hash": entropy_hash(NEXT)},
        {"beacon": BeaconRound("c", 1)},
    ],
)
def test_every_change_of_a_commitment_is_doubted(change: dict[str, Any]) -> None:
    """The outcome cites the digest of what was committed, so nothing can be edited later."""
    shown = reveal(commitment(), entropy=ENTROPY, next_entropy=NEXT)
    assert Doubt.COMMITMENT in check_reveal(commitment(**change), shown)


def test_odds_that_are_not_those_of_the_tokens_are_doubted() -> None:
    """Two tokens of one owner at a third each."""
    odds = first_odds({"a": ["x"], "b": ["y"], "c": ["z"]})
    bent = commitment(odds=(odds[0], replace(odds[1], owner="a"), odds[2]))
    shown = reveal(bent, entropy=ENTROPY, next_entropy=NEXT)
    assert check_reveal(bent, shown) == (Doubt.ODDS,)


def test_outcomes_of_a_scope_follow_each_other() -> None:
    """The next sequence number, with the entropy that was fixed in the last outcome."""
    shown = reveal(commitment(), entropy=ENTROPY, next_entropy=NEXT)
    after = commitment(sequence=5, entropy_hash=entropy_hash(NEXT))
    assert check_succession(shown, after) == ()
    assert check_succession(shown, replace(after, sequence=6)) == (Doubt.SEQUENCE,)
    assert check_succession(shown, replace(after, entropy_hash="00")) == (Doubt.ENTROPY,)


def test_draws_can_be_repeated_from_the_committed_tokens() -> None:
    """All of them in order; another victim, or one too many, is doubted."""
    tokens, seed = committed_tokens(commitment()), commitment().seed(ENTROPY)
    assert tokens == TOKENS
    pot = Pot(tokens)
    draws = [pot.draw(seed, index) for index in range(3)]
    assert check_draws(seed, tokens, draws) == ()
    assert check_draws(seed, tokens, [*draws, Draw(3, "a", "x")]) == (Doubt.OUTCOME,)
    bent = [replace(draws[0], token="?")]
    assert check_draws(seed, tokens, bent) == (Doubt.OUTCOME,)


parts = st.lists(st.binary(max_size=4), max_size=4)


@given(parts, parts)
def test_framed_parts_never_look_like_other_parts(ours: list[bytes], theirs: list[bytes]) -> None:
    """Equal bytes only for equal parts."""
    joined = [b"".join(map(lp, each)) for each in (ours, theirs)]
    assert (joined[0] == joined[1]) is (ours == theirs)


def test_every_part_changes_the_seed() -> None:
    """Digest, sequence, entropy, beacon, each nonce and to whom it belongs."""
    base: dict[str, Any] = {
        "conflict_digest": "11" * 32,
        "sequence": 1,
        "entropy": ENTROPY,
        "beacon": b"b",
        "nonces": {"a": b"1", "b": b"2"},
    }
    changes: list[dict[str, Any]] = [
        {},
        {"conflict_digest": "12" * 32},
        {"sequence": 2},
        {"entropy": NEXT},
        {"beacon": b""},
        {"nonces": {}},
        {"nonces": {"a": b"2", "b": b"1"}},
        {"nonces": {"a": b"1"}},
        {"nonces": {"a1": b"", "b": b"2"}},
    ]
    seeds = {derive_seed(**{**base, **change}) for change in changes}
    assert len(seeds) == len(changes)
    backwards = {**base, "nonces": {"b": b"2", "a": b"1"}}
    assert derive_seed(**backwards) == derive_seed(**base)


@pytest.mark.parametrize("change", [{"entropy": b"short"}, {"conflict_digest": "11"}])
def test_parts_of_another_length_are_a_bug(change: dict[str, Any]) -> None:
    """32 bytes of entropy, 32 of the digest."""
    given: dict[str, Any] = {
        "conflict_digest": "11" * 32,
        "sequence": 1,
        "entropy": ENTROPY,
        "beacon": b"",
        "nonces": {},
    }
    with pytest.raises(InvariantBroken):
        preimage(**{**given, **change})
