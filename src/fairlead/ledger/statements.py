"""The ledger's own entries: who signs it, which epoch it is in. Made here, and checked here.

| kind | says | signed by |
|---|---|---|
| `ledger.created` | the ledger's id and its first key | that key |
| `key.rotated` | the key from here on | the key before |
| `ledger.epoch` | restored from a backup: where it goes on, what is lost | the key in force |
| `ledger.archived` | the content of these entries is in that segment | the head alone |
| `ledger.snapshot` | the SHA-256 of a state kept beside the log, and its entry | the head alone |
"""

from dataclasses import dataclass, field
from typing import Any

from fairlead.core.audit import SignedHead, key_id, statement_to_sign
from fairlead.ledger.keys import SecretKey
from fairlead.ledger.signatures import signature_holds
from fairlead.ports.ledger import Draft, Entry

CREATED, ROTATED, EPOCH = "ledger.created", "key.rotated", "ledger.epoch"
ARCHIVED, SNAPSHOT = "ledger.archived", "ledger.snapshot"
OWN_KINDS = (CREATED, ROTATED, EPOCH, ARCHIVED, SNAPSHOT)
"""Entries that verifying begins with."""
_UNSIGNED = (ARCHIVED, SNAPSHOT)
"""Statements that the signed head covers like any other entry."""
_PROVED = (
    *("owner.pseudonym", "owner.key", "gpu.resolve.nonce"),
    *("gpu.resolve.scope", "gpu.resolve.draw", "gpu.resolve.void"),
)
KEPT = (*OWN_KINDS, *_PROVED)
"""Entries that are never moved to an archive; exports of later outcomes prove the others."""


def statement(
    kind: str, ledger: str, body: dict[str, Any], key: SecretKey, *, time_ms: int, author: str
) -> Draft:
    """One of the ledger's own entries; the key in force signs it, unless the head alone does."""
    if kind in _UNSIGNED:
        return Draft(kind=kind, time_ms=time_ms, author=author, body=body)
    body = {**body, "key_id": key.key_id}
    signature = key.sign(statement_to_sign(ledger, {"kind": kind, **body})).hex()
    return Draft(kind=kind, time_ms=time_ms, author=author, body={**body, "signature": signature})


@dataclass(slots=True)
class LedgerIdentity:
    """What a ledger's own entries add up to, followed in order: its id, epoch, keys."""

    ledger: str = ""
    epoch: int = 0
    key_id: str = ""
    """The key in force."""
    keys: dict[str, bytes] = field(default_factory=dict)
    """Every key so far."""
    restored_from: list[int] = field(default_factory=list)
    """The size that each epoch after the first began with."""

    def follow(self, entry: Entry, *, root_before: bytes | None = None) -> str:
        """Take in one of the ledger's own entries; answers what is wrong with it, or nothing.

        `root_before` None: taken from a store that is trusted, not verified.
        """
        try:
            return self._follow(entry.kind, entry.body, entry.seq, root_before)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            return f"{entry.kind} is malformed: {error!r}"

    def _follow(self, kind: str, body: dict[str, Any], seq: int, root: bytes | None) -> str:
        if (kind == CREATED) != (seq == 1):
            return "a ledger begins with ledger.created, once"
        if kind == CREATED:
            self.ledger = body["ledger"]
            self._introduce(body["public_key"])
        if kind not in _UNSIGNED and (problem := self._unsigned(kind, body)):
            return problem
        if kind == ROTATED:
            if key_id(bytes.fromhex(body["public_key"])) != body["new_key_id"]:
                return "the new key does not have the id it is introduced with"
            self._introduce(body["public_key"])
        if kind == EPOCH:
            if body["epoch"] != self.epoch + 1 or body["size"] != seq - 1:
                return "an epoch goes on where the last one was restored to"
            if root is not None and body["root"] != root.hex():
                return "the epoch was begun after other entries than these"
            self.epoch += 1
            self.restored_from.append(body["size"])
        return ""

    def _introduce(self, public_key: str) -> None:
        key = bytes.fromhex(public_key)
        self.key_id = key_id(key)
        self.keys[self.key_id] = key

    def _unsigned(self, kind: str, body: dict[str, Any]) -> str:
        unsigned = {name: value for name, value in body.items() if name != "signature"}
        data = statement_to_sign(self.ledger, {"kind": kind, **unsigned})
        if body["key_id"] != self.key_id:
            return f"{kind} is not signed with the key in force, {self.key_id}"
        if not signature_holds(self.keys[self.key_id], data, body["signature"]):
            return f"the signature of {kind} does not hold"
        return ""

    def check(self, signed: SignedHead) -> str:
        """What is wrong with a head of the ledger as it stands here, or nothing."""
        head = signed.head
        if (head.ledger, head.epoch) != (self.ledger, self.epoch):
            return "is of another ledger or epoch"
        if head.key_id != self.key_id:
            return f"is not signed with the key in force, {self.key_id}"
        return self.check_signature(signed)

    def check_signature(self, signed: SignedHead) -> str:
        """The same with any key that was ever in force."""
        key = self.keys.get(signed.head.key_id)
        if key is None:
            return f"is signed with key {signed.head.key_id}, which the ledger never introduced"
        if not signature_holds(key, signed.head.to_sign(), signed.signature):
            return "has a signature that does not hold"
        return ""
