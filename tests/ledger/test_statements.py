"""The ledger's own entries: only the key in force speaks for it, and only the truth."""

from dataclasses import replace

import pytest

from fairlead.core.audit import EMPTY_ROOT, Head, statement_to_sign
from fairlead.ledger.entries import parse, prepare
from fairlead.ledger.keys import SecretKey, sign_head
from fairlead.ledger.statements import ARCHIVED, LedgerIdentity, created, restored, rotated
from fairlead.ports.ledger import Draft, Entry
from tests.ledger.drafts import draft

OLD, NOW, NEXT, STRANGER = (SecretKey.generate() for _ in range(4))
BY = {"time_ms": 1, "author": "root"}
HEAD = Head(ledger="l", epoch=0, size=2, root=EMPTY_ROOT.hex(), time_ms=1, key_id=NOW.key_id)
RESTORED = {"reason": "disk died", "lost": None}


def entry(statement: Draft, seq: int) -> Entry:
    return parse(prepare(statement, own=True).data(seq), seq)


@pytest.fixture
def standing() -> LedgerIdentity:
    """A ledger of two entries: begun with the old key, rotated to the one of now."""
    standing = LedgerIdentity()
    assert standing.follow(entry(created("l", OLD, time_ms=1), 1)) == ""
    assert standing.follow(entry(rotated("l", OLD, NOW, **BY), 2)) == ""
    return standing


def test_the_keys_and_the_epoch_follow_the_entries(standing: LedgerIdentity) -> None:
    """Created, rotated, restored, archived."""
    assert (standing.ledger, standing.key_id, standing.epoch) == ("l", NOW.key_id, 0)
    assert standing.keys == {OLD.key_id: OLD.public_key, NOW.key_id: NOW.public_key}
    assert (
        standing.follow(entry(restored(HEAD, NOW, RESTORED, **BY), 3), root_before=EMPTY_ROOT) == ""
    )
    assert (standing.epoch, standing.restored_from) == (1, [2])
    body = {"segment": "s", "first": 1, "last": 2}
    assert standing.follow(entry(draft(1, kind=ARCHIVED, body=body), 4)) == ""


def _renamed(statement: Draft, signer: SecretKey, **other: object) -> Draft:
    """A statement with other words, signed all the same."""
    body = {**statement.body, **other}
    del body["signature"]
    data = statement_to_sign("l", {"kind": statement.kind, **body})
    return replace(statement, body={**body, "signature": signer.sign(data).hex()})


FORGED = {
    "a second beginning": (created("l", NOW, time_ms=1), "begins with"),
    "rotated by an old key": (rotated("l", OLD, NEXT, **BY), "key in force"),
    "rotated by a stranger": (rotated("l", STRANGER, NEXT, **BY), "key in force"),
    "signed for another ledger": (rotated("m", NOW, NEXT, **BY), "does not hold"),
    "a signature of a stranger": (
        _renamed(rotated("l", NOW, NEXT, **BY), STRANGER),
        "does not hold",
    ),
    "a key under another's id": (
        _renamed(rotated("l", NOW, NEXT, **BY), NOW, new_key_id=OLD.key_id),
        "the id it is",
    ),
    "an epoch left out": (
        restored(replace(HEAD, epoch=1), NOW, RESTORED, **BY),
        "where the last one was",
    ),
    "an epoch from elsewhere": (
        restored(replace(HEAD, size=9), NOW, RESTORED, **BY),
        "where the last one was",
    ),
    "an epoch after other entries": (
        restored(replace(HEAD, root="00" * 32), NOW, RESTORED, **BY),
        "other entries",
    ),
    "nothing at all": (draft(1, kind="key.rotated", body={}), "malformed"),
    "numbers for names": (draft(1, kind="ledger.epoch", body={"key_id": 1}), "key in force"),
}


@pytest.mark.parametrize("which", FORGED)
def test_a_forged_statement_is_refused(standing: LedgerIdentity, which: str) -> None:
    """With what is wrong about it; and nothing changes."""
    statement, word = FORGED[which]
    assert word in standing.follow(entry(statement, 3), root_before=EMPTY_ROOT)
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
