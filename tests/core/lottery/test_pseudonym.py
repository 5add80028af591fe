"""Pseudonyms follow from what was fixed before, and from nothing else."""

import hashlib
import hmac

import pytest

from fairlead.core.invariant import InvariantBroken
from fairlead.core.lottery.pseudonym import chain_id, outcome_key, pseudonym, secret_commitment

SECRET, CHAIN = bytes(range(32)), "ab" * 32


def framed(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)


def test_the_bytes_are_those_of_the_reference() -> None:
    """As a stranger would write them down from the page."""
    said = hashlib.sha256(framed(b"fairlead/owner/v1", SECRET)).hexdigest()
    assert secret_commitment(SECRET) == said
    message = framed(b"fairlead/pseudonym/v1", b"\xab" * 32, (7).to_bytes(8, "big"))
    key = hmac.new(SECRET, message, "sha256").digest()
    assert outcome_key(SECRET, CHAIN, 7) == key
    name = hmac.new(key, framed(b"envelope", b"bud", "wést".encode()), "sha256").hexdigest()[:32]
    assert pseudonym(key, "envelope", ("bud", "wést")) == f"e-{name}"
    flavor = hashlib.sha256(framed(b"fairlead/chain/v2", b"H100")).hexdigest()
    assert chain_id("H100") == flavor


def test_a_name_is_another_one_in_every_outcome_kind_and_owner() -> None:
    """So outcomes cannot be joined by their names, nor a run be taken for a lease."""
    keys = [
        outcome_key(SECRET, CHAIN, 0),
        outcome_key(SECRET, CHAIN, 1),
        outcome_key(bytes(32), CHAIN, 0),
        outcome_key(SECRET, "cd" * 32, 0),
    ]
    found = [pseudonym(key, kind, ["x"]) for key in keys for kind in ("run", "lease", "owner")]
    assert len({name[2:] for name in found}) == len(found)
    assert pseudonym(keys[0], "cap", ["a", "b"]) != pseudonym(keys[0], "cap", ["ab"])


def test_a_short_secret_is_refused() -> None:
    """One that could be guessed would hide nothing."""
    with pytest.raises(InvariantBroken):
        secret_commitment(b"short")
