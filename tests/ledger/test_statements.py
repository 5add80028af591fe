"""The ledger's own entries: only the key in force speaks for it, and only the truth."""

from dataclasses import replace

import pytest

from fairlead.core.audit import EMPTY_ROOT, Head, statement_to_sign
from fairlead.ledger.entries import parse, prepare
from fairlead.ledger.keys import SecretKey, sign_head
from fairlead.ledger.statements import ARCHIVED, CREATED, EPOCH, ROTATED, LedgerIdentity, statement
from fairlead.ports.ledger import Draft, Entry
from tests.ledger.drafts import draft

OLD, NOW, NEXT, STRANGER = (SecretKey.generate() for _ in range(4))
BY = {"time_ms": 1, "author": "root"}
HEAD = Head(ledger="l", epoch=0, size=2, root=EMPTY_ROOT.hex(), time_ms=1, key_id=NOW.key_id)


def created(ledger: str, key: SecretKey) -> Draft:
    body = {"format": 1, "ledger": ledger, "public_key": key.public_key.hex()}
    return statement(CREATED, ledger, body, key, **BY)


def rotated(ledger: str, old: SecretKey, new: SecretKey) -> Draft:
    body = {"new_key_id": new.key_id, "public_key": new.public_key.hex()}
    return statement(ROTATED, ledger, body, old, **BY)


def restored(head: Head) -> Draft:
    place = {"epoch": head.epoch + 1, "size": head.size, "root": head.root}
    body = {**place, "reason": "disk died", "lost": None}
    return statement(EPOCH, head.ledger, body, NOW, **BY)


def entry(drafted: Draft, seq: int) -> Entry:
    return parse(prepare(drafted, own=True).data(seq), seq)


@pytest.fixture
def standing() -> LedgerIdentity:
    """A ledger of two entries: begun with the old key, rotated to the one of now."""
    standing = LedgerIdentity()
    assert standing.follow(entry(created("l", OLD), 1)) == ""
    assert standing.follow(entry(rotated("l", OLD, NOW), 2)) == ""
    return standing


def test_the_keys_and_the_epoch_follow_the_entries(standing: LedgerIdentity) -> None:
    """Created, rotated, restored, archived."""
    assert (standing.ledger, standing.key_id, standing.epoch) == ("l", NOW.key_id, 0)
    assert standing.keys == {OLD.key_id: OLD.public_key, NOW.key_id: NOW.public_key}
    assert standing.follow(entry(restored(HEAD), 3), root_before=EMPTY_ROOT) == ""
    assert (standing.epoch, standing.restored_from) == (1, [2])
    body = {"segment": "s", "first": 1, "last": 2}
    assert standing.follow(entry(draft(1, kind=ARCHIVED, body=body), 4)) == ""


def _renamed(said: Draft, signer: SecretKey, **other: object) -> Draft:
    """A statement with other words, signed all the same."""
    body = {**said.body, **other}
    del body["signature"]
    data = statement_to_sign("l", {"kind": said.kind, **body})
    return replace(said, body={**body, "signature": signer.sign(data).hex()})


FORGED = {
    "a second beginning": (created("l", NOW), "begins with"),
    "rotated by an old key": (rotated("l", OLD, NEXT), "key in force"),
    "rotated by a stranger": (rotated("l", STRANGER, NEXT), "key in force"),
    "signed for another ledger": (rotated("m", NOW, NEXT), "does not hold"),
    "a signature of a stranger": (_renamed(rotated("l", NOW, NEXT), STRANGER), "does not hold"),
    "a key under another's id": (
        _renamed(rotated("l", NOW, NEXT), NOW, new_key_id=OLD.key_id),
        "the id it is",
    ),
    "an epoch left out": (restored(replace(HEAD, epoch=1)), "where the last one was"),
    "an epoch from elsewhere": (restored(replace(HEAD, size=9)), "where the last one was"),
    "an epoch after other entries": (restored(replace(HEAD, root="00" * 32)), "other entries"),
    "nothing at all": (draft(1, kind="key.rotated", body={}), "malformed"),
    "numbers for names": (draft(1, kind="ledger.epoch", body={"key_id": 1}), "key in force"),
}


@pytest.mark.parametrize("which", FORGED)
def test_a_forged_statement_is_refused(standing: LedgerIdentity, which: str) -> None:
    """With what is wrong about it; and nothing changes."""
    said, word = FORGED[which]
    assert word in standing.follow(entry(said, 3), root_before=EMPTY_ROOT)
    assert (standing.key_id, standing.epoch) == (NOW.key_id, 0)


def test_a_head_is_signed_by_the_key_of_its_time(standing: LedgerIdentity) -> None:
    """Not by an earlier one, not of another ledger or epoch, not forged."""
    good = sign_head(HEAD, NOW)
    assert standing.check(good) == ""
    early = sign_head(replace(HEAD, key_id=OLD.key_id), OLD)
    assert "key in force" in standing.check(early)
    assert standing.check_signature(early) == ""
    assert "another" in standing.check(sign_head(replace(HEAD, epoch=1), NOW))
    assert "does not hold" in standing.check(sign_head(HEAD, STRANGER))
    unknown = sign_head(replace(HEAD, key_id=STRANGER.key_id), STRANGER)
    assert "never introduced" in standing.check_signature(unknown)
