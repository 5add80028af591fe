"""Turns: what a seed is made of, what a label says, and what a void hands on."""

from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest

from fairlead.core.invariant import InvariantBroken
from fairlead.core.lottery import BeaconRound, Commitment, Doubt, Label, Reveal, check_reveal
from fairlead.core.lottery.owner import key_message, nonce_message
from fairlead.core.lottery.seed import derive_seed, derive_turn_seed
from tests.core.lottery import network
from tests.core.lottery.test_protocol import ENTROPY, HEAD, NEXT, PUBLISHED, answer, commitment

ROUND = network.network(0).at(9)
VALUE = bytes.fromhex(network.sign(9))
NONCES = {"o-b": b"\2", "o-a": b"\1"}


def turned(**fields: Any) -> Commitment:
    return commitment(turn=2, **fields)


def read_back(promised: Commitment, shown: Reveal) -> None:
    """Both bodies are read back as they were written."""
    assert Commitment.of(promised.document()) == promised
    assert Reveal.of(shown.document(HEAD)) == shown


@pytest.mark.parametrize(
    ("fields", "label"),
    [
        ({}, Label.OPERATOR_TRUSTED),
        ({"nonces": NONCES}, Label.OWNER_NONCED),
        ({"beacon": ROUND}, Label.BEACON),
        ({"beacon": ROUND, "nonces": NONCES}, Label.BEACON),
        ({"beacon": ROUND, "nonces": NONCES, "continued": True}, Label.OPERATOR_TRUSTED),
    ],
)
def test_a_label_says_what_was_protected(fields: dict[str, Any], label: Label) -> None:
    """After a void the entropy was disclosed before the conflict: nothing is."""
    promised = turned(**fields)
    assert (promised.entropy_index, commitment().entropy_index) == (2, 4)
    shown = answer(promised, beacon_value=VALUE if promised.beacon else None)
    assert (promised.label, shown.label) == (label, label)
    assert check_reveal(promised, shown, PUBLISHED) == ()
    read_back(promised, shown)


def test_nothing_of_the_conflict_is_in_the_seed() -> None:
    """Its number, its scope, its deficit and its digests; the turn, the chain and the luck are."""
    same, seed = turned(nonces=NONCES), turned(nonces=NONCES).seed(ENTROPY, None)
    other = {"conflict_digest": "cd" * 32, "notice_digest": "cd" * 32, "deficit_gpus": 9, "k": 9}
    for name, value in other.items():
        assert replace(same, **{name: value}).seed(ENTROPY, None) == seed, name
    changed: list[dict[str, Any]] = [{"turn": 3}, {"chain": "cd" * 32}, {"nonces": {}}]
    for fields in changed:
        assert replace(same, **fields).seed(ENTROPY, None) != seed, fields
    assert same.seed(NEXT, None) != seed
    assert replace(same, beacon=ROUND).seed(ENTROPY, VALUE) != seed
    assert replace(same, beacon=ROUND).seed(ENTROPY, None) is None
    with pytest.raises(InvariantBroken):
        derive_turn_seed(chain="ab" * 32, turn=0, entropy=b"short", nonces={})


def test_a_void_hands_on_what_it_had() -> None:
    """Its entropy, nonces and round; without the round where that is lost."""
    promised = turned(beacon=ROUND, nonces=NONCES)
    kept = answer(promised, void="why")
    assert kept.next_commitment == PUBLISHED
    assert kept.carry == promised.luck(ROUND)
    lost = answer(promised, void="why", beacon_lost=True)
    assert lost.carry == promised.luck(None)
    for shown in (kept, lost):
        assert check_reveal(promised, shown, PUBLISHED) == ()
        read_back(promised, shown)
    drawn = answer(promised, beacon_value=VALUE)
    assert (drawn.carry, drawn.next_commitment == PUBLISHED) == (None, False)
    assert answer(commitment(), void="why").carry is None, "of the first protocol"


def test_what_a_void_does_not_hand_on_is_doubted() -> None:
    """Other nonces, another round, another entropy, nothing at all; or a draw that hands on."""
    promised = turned(beacon=ROUND, nonces=NONCES)
    shown = answer(promised, void="why")
    later = network.network(0).at(10)
    for fields in (
        {"carry": None},
        {"carry": promised.luck(later)},
        {"carry": turned(beacon=ROUND).luck(ROUND)},
        {"next_commitment": sha256(NEXT).hexdigest()},
    ):
        assert check_reveal(promised, replace(shown, **fields), PUBLISHED) == (Doubt.CARRY,)
    drawn = replace(answer(turned()), carry=turned().luck(None))
    assert Doubt.CARRY in check_reveal(turned(), drawn, PUBLISHED)
    assert check_reveal(promised, replace(shown, turn=3), PUBLISHED) == (Doubt.SEQUENCE,)


def test_a_value_that_the_network_did_not_sign_is_doubted() -> None:
    """In a turn; in the first protocol nothing was signed."""
    promised = turned(beacon=ROUND)
    shown = answer(promised, beacon_value=bytes.fromhex(network.sign(8)))
    assert check_reveal(promised, shown, PUBLISHED) == (Doubt.BEACON,)
    old = commitment(beacon=BeaconRound("drand", 9))
    assert check_reveal(old, answer(old, beacon_value=b"x"), PUBLISHED) == ()


def test_what_an_owner_signs_is_framed() -> None:
    """No key of one owner is one of another, no nonce an old one."""
    messages = {
        key_message("l", "ab", b"c"),
        key_message("l", "a", b"bc"),
        nonce_message("l", "ab", b"c", 1),
        nonce_message("l", "a", b"bc", 1),
        nonce_message("l", "ab", b"c", 2),
        nonce_message("m", "ab", b"c", 1),
    }
    assert len(messages) == 6


@pytest.mark.parametrize("beacon", [None, b"", b"\x07" * 96])
def test_the_seed_of_a_turn_is_hashed_as_the_page_says(beacon: bytes | None) -> None:
    """Lengths in 8 bytes, big endian; owners in order; without a beacon its part is empty."""
    given = {} if beacon is None else {"beacon": beacon}
    nonces = {"b": b"\x02", "a": b"\x01\x01"}
    found = derive_turn_seed(chain="ab" * 32, turn=258, entropy=ENTROPY, nonces=nonces, **given)
    parts = [b"fairlead/seed/v2", b"\xab" * 32, b"\0\0\0\0\0\0\x01\x02", ENTROPY, beacon or b""]
    parts += [b"a", b"\x01\x01", b"b", b"\x02"]
    whole = b""
    for part in parts:
        whole += bytes(7) + bytes([len(part)]) + part
    assert found == sha256(whole).digest()


def test_the_seed_of_the_first_protocol_has_an_empty_beacon_unless_one_is_given() -> None:
    given: dict[str, Any] = {"conflict_digest": "cd" * 32, "sequence": 3, "entropy": ENTROPY}
    assert derive_seed(**given, nonces={}) == derive_seed(**given, beacon=b"", nonces={})
