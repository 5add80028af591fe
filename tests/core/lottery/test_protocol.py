"""Commitments and reveals: what is recorded, what is labelled, and what raises a doubt."""

from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.invariant import InvariantBroken
from fairlead.core.lottery import (
    BeaconRound,
    Commitment,
    Doubt,
    Label,
    OwnerWeighting,
    Reveal,
    check_reveal,
    derive_seed,
    entropy_hash,
    lp,
    reveal,
)

ENTROPY, NEXT = sha256(b"this").digest(), sha256(b"next").digest()
PUBLISHED = entropy_hash(ENTROPY)
HEAD = {"size": 9}


def commitment(**fields: Any) -> Commitment:
    made = Commitment(
        chain="ab" * 32,
        k=4,
        previous_seq=7,
        scope={"flavor": "H100", "location": {}, "cap": None},
        deficit_gpus=3,
        conflict_digest=sha256(b"conflict").hexdigest(),
        notice_digest=sha256(b"notice").hexdigest(),
    )
    return replace(made, **fields)


def answer(promised: Commitment, **fields: Any) -> Reveal:
    return reveal(promised, commit_seq=8, entropy=ENTROPY, next_entropy=NEXT, **fields)


def test_an_outcome_is_verifiable_with_a_beacon_or_a_nonce() -> None:
    """Either is enough; neither means that the operator is trusted."""
    assert commitment().label is Label.OPERATOR_TRUSTED
    assert commitment(nonces={"a": b"\0"}).label is Label.VERIFIABLE
    assert commitment(beacon=BeaconRound("quicknet", 9)).label is Label.VERIFIABLE


def test_the_recorded_bodies() -> None:
    """Hex for bytes, nonces by owner; what is read back is what was written."""
    promised = commitment(
        beacon=BeaconRound("quicknet", 9),
        nonces={"b": b"\x02", "a": b"\x01"},
        owner_weighting=OwnerWeighting.TOKENS,
    )
    body = promised.document()
    assert body == {
        "chain": "ab" * 32,
        "k": 4,
        "previous_seq": 7,
        "scope": {"flavor": "H100", "location": {}, "cap": None},
        "deficit_gpus": 3,
        "conflict_digest": sha256(b"conflict").hexdigest(),
        "notice_digest": sha256(b"notice").hexdigest(),
        "nonces": [{"nonce": "01", "owner": "a"}, {"nonce": "02", "owner": "b"}],
        "beacon": {"round": 9, "source": "quicknet"},
        "owner_weighting": "tokens",
    }
    assert Commitment.of(body) == promised
    assert promised.beacon is not None
    assert promised.beacon.key == "quicknet/9"
    assert promised.plan_id == "resolve.abababababababab.4"
    shown = answer(promised, beacon_value=b"\xab", result_digest="cd" * 32)
    assert shown.kind == "gpu.resolve.draw"
    assert shown.seed is not None
    assert shown.document(HEAD) == {
        "chain": "ab" * 32,
        "k": 4,
        "commit_seq": 8,
        "commit_head": HEAD,
        "entropy": ENTROPY.hex(),
        "beacon_value": "ab",
        "seed": shown.seed.hex(),
        "result_digest": "cd" * 32,
        "label": "verifiable",
        "next_commitment": sha256(NEXT).hexdigest(),
    }
    assert Reveal.of(shown.document(HEAD)) == shown


def test_early_commitments_have_equal_owners() -> None:
    """The field came later; what was recorded without it is read as it was meant."""
    body = commitment().document()
    del body["owner_weighting"]
    assert Commitment.of(body) == commitment()


def test_a_void_before_the_beacon_shows_no_seed() -> None:
    """The reason is in the body; seed and result are null."""
    shown = answer(commitment(beacon=BeaconRound("quicknet", 1)), void="never came")
    assert shown.kind == "gpu.resolve.void"
    body = shown.document(HEAD)
    assert (body["seed"], body["beacon_value"], body["reason"]) == (None, None, "never came")
    assert Reveal.of(body) == shown


def test_a_kept_commitment_leaves_no_doubt() -> None:
    """With and without a beacon, drawn or void."""
    awaited = commitment(beacon=BeaconRound("quicknet", 1), nonces={"a": b"n"})
    for promised, shown in (
        (commitment(), answer(commitment())),
        (awaited, answer(awaited, beacon_value=b"value")),
        (awaited, answer(awaited, void="never came")),
    ):
        assert check_reveal(promised, shown, PUBLISHED) == ()


@pytest.mark.parametrize(
    ("change", "doubts"),
    [
        ({"k": 5}, {Doubt.SEQUENCE}),
        ({"chain": "00" * 32}, {Doubt.SEQUENCE}),
        ({"entropy": NEXT}, {Doubt.ENTROPY, Doubt.SEED}),
        ({"entropy": b"short"}, {Doubt.ENTROPY, Doubt.SEED}),
        ({"beacon_value": b"late"}, {Doubt.BEACON, Doubt.SEED}),
        ({"seed": bytes(32)}, {Doubt.SEED}),
        ({"seed": None}, {Doubt.SEED}),
        ({"label": Label.VERIFIABLE}, {Doubt.LABEL}),
    ],
)
def test_every_change_of_a_reveal_is_doubted(change: dict[str, Any], doubts: set[Doubt]) -> None:
    """By name."""
    shown = replace(answer(commitment()), **change)
    assert set(check_reveal(commitment(), shown, PUBLISHED)) == doubts


@pytest.mark.parametrize(
    ("change", "doubt"),
    [
        ({"conflict_digest": "00" * 32}, Doubt.SEED),
        ({"nonces": {"a": b"n"}}, Doubt.SEED),
        ({"beacon": BeaconRound("quicknet", 1)}, Doubt.SEED),
        ({"k": 5}, Doubt.SEQUENCE),
        ({"chain": "00" * 32}, Doubt.SEQUENCE),
    ],
)
def test_every_change_of_a_commitment_is_doubted(change: dict[str, Any], doubt: Doubt) -> None:
    """What enters the seed cannot be edited later; the rest is bound by the ledger's tree."""
    assert doubt in check_reveal(commitment(**change), answer(commitment()), PUBLISHED)


def test_entropy_of_another_length_is_never_published() -> None:
    """Neither this outcome's nor the next one's."""
    with pytest.raises(InvariantBroken):
        reveal(commitment(), commit_seq=8, entropy=ENTROPY[:31], next_entropy=NEXT)
    with pytest.raises(InvariantBroken):
        reveal(commitment(), commit_seq=8, entropy=ENTROPY, next_entropy=NEXT[:31])


def test_without_a_beacon_its_part_of_the_seed_is_empty() -> None:
    promised = commitment(nonces={"a": b"n"})
    assert promised.seed(ENTROPY, None) == derive_seed(
        conflict_digest=promised.conflict_digest,
        sequence=promised.k,
        entropy=ENTROPY,
        beacon=b"",
        nonces=promised.nonces,
    )


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
        derive_seed(**{**given, **change})
