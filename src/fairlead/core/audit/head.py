"""Heads: what one has to remember of a ledger to notice any later change, as bytes to sign.

A holder of a signed head can have every entry below it proved, and every later head
proved to be a continuation. Signing and the checking of signatures need a library and are the
ledger's; here is only what is signed.
"""

from dataclasses import asdict, dataclass
from hashlib import sha256

from fairlead.core.canonical import canonical

# In front of what is signed, so that a signature made for one purpose is none for another.
_HEAD = b"fairlead/head/v1\n"
_STATEMENT = b"fairlead/statement/v1\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A ledger at one size."""

    ledger: str
    """The ledger's id, so that the head of one is none of another."""
    epoch: int
    """How often the ledger was restored from a backup, which is the one way to become shorter."""
    size: int
    root: str
    """The root of the Merkle tree, in hex."""
    time_ms: int
    """The latest time of its entries."""
    key_id: str

    def to_sign(self) -> bytes:
        return _HEAD + canonical(asdict(self))


@dataclass(frozen=True, slots=True)
class SignedHead:
    """A head and the Ed25519 signature over `head.to_sign()`, in hex."""

    head: Head
    signature: str

    def as_document(self) -> dict[str, object]:
        """As JSON carries it: the fields of the head and the signature side by side."""
        return {**asdict(self.head), "signature": self.signature}


def statement_to_sign(ledger: str, body: dict[str, object]) -> bytes:
    """The bytes under a signature inside an entry: a rotation of keys, the start of an epoch."""
    return _STATEMENT + canonical({"ledger": ledger, "statement": body})


def key_id(public_key: bytes) -> str:
    """The short name of a key: the first 16 hex digits of the SHA-256 of its 32 public bytes."""
    return sha256(public_key).hexdigest()[:16]
