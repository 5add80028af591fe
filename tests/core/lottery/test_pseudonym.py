"""Pseudonyms follow from what was fixed before, and from nothing else."""

import hashlib
import hmac

import pytest

from fairlead.core.invariant import InvariantBroken
from fairlead.core.lottery.pseudonym import (
    Pseudonyms,
    chain_id,
    outcome_key,
    pseudonym,
    secret_commitment,
)

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


OWNERS = {"bud": "ann", "box": "bob"}


def secret_of(owner: str) -> bytes:
    return hashlib.sha256(owner.encode()).digest()


def named(owner: str, kind: str, *parts: str) -> str:
    return pseudonym(outcome_key(secret_of(owner), CHAIN, 7), kind, parts)


def test_each_name_is_made_with_the_key_of_its_owner() -> None:
    """A budget's is that of the owner whose budget it is, whoever asks."""
    names = Pseudonyms(CHAIN, 7, secret_of, OWNERS.__getitem__)
    assert names.owner("ann") == named("ann", "owner", "ann")
    assert names.run("ann", "train") == named("ann", "run", "train")
    assert names.lease("bob", "l1") == named("bob", "lease", "l1")
    payer = (named("bob", "budget", "box"), named("bob", "envelope", "box", "main"))
    assert names.payer("box", "main") == payer
    assert names.cap("bud", "all") == (
        named("ann", "budget", "bud"),
        named("ann", "cap", "bud", "all"),
    )


def test_what_was_asked_for_can_be_told_again_in_clear() -> None:
    """Once each for owners and payers, which many leases have."""
    names = Pseudonyms(CHAIN, 7, secret_of, OWNERS.__getitem__)
    run, lease = names.run("ann", "train"), names.lease("ann", "l1")
    assert names.payer("bud", "main") == names.payer("bud", "main")
    names.cap("bud", "all")
    assert (names.runs, names.leases) == ({run: "train"}, {lease: "l1"})
    assert names.owners == {named("ann", "owner", "ann"): "ann"}
    assert names.owner("ann") == names.owner("ann")
    assert names.clear == {
        "ann": {
            "run": [["train"]],
            "lease": [["l1"]],
            "budget": [["bud"]],
            "envelope": [["bud", "main"]],
            "cap": [["bud", "all"]],
        }
    }


def test_a_secret_is_asked_for_once() -> None:
    """Leases are many, and each key is a hash."""
    asked: list[str] = []

    def secret(owner: str) -> bytes:
        asked.append(owner)
        return secret_of(owner)

    names = Pseudonyms(CHAIN, 7, secret, OWNERS.__getitem__)
    for lease in ("l1", "l2", "l3"):
        names.lease("ann", lease)
    names.owner("ann")
    assert asked == ["ann"]
