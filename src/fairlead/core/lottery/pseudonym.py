"""Names that hide their owners and cannot be chosen: what the documents of an outcome say instead.

An export goes to whoever asks, so no name of another tenant may be in it; and it must still hash
to what is in the log, so the names are replaced before the decision, not after. If the operator
could choose how, that would be a second lottery: so each owner has one secret for good, whose
hash is in the log before the owner's first run is. docs/reference/outcome-export.md has the form.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from hmac import digest as hmac

from fairlead.core.canonical import canonical
from fairlead.core.invariant import require
from fairlead.core.lottery.seed import lp

SECRET_BYTES = 32
PREFIXES = {
    "owner": "o-",
    "run": "r-",
    "lease": "l-",
    "budget": "b-",
    "envelope": "e-",
    "cap": "c-",
}


_KINDS = {kind: lp(kind.encode()) for kind in PREFIXES}


def secret_commitment(secret: bytes) -> str:
    """What is published of an owner's secret; hex."""
    require(len(secret) == SECRET_BYTES, "an owner's secret has 32 bytes")
    return sha256(lp(b"fairlead/owner/v1") + lp(secret)).hexdigest()


def outcome_key(secret: bytes, chain: str, k: int) -> bytes:
    """An owner's key for the names of one outcome: in every outcome they are others."""
    parts = (b"fairlead/pseudonym/v1", bytes.fromhex(chain), k.to_bytes(8, "big"))
    return hmac(secret, b"".join(map(lp, parts)), "sha256")


def pseudonym(key: bytes, kind: str, parts: Sequence[str]) -> str:
    """What a name of that kind is called."""
    message = b"".join([_KINDS[kind], *[lp(part.encode()) for part in parts]])
    return PREFIXES[kind] + hmac(key, message, "sha256").hex()[:32]


def chain_salt(secret: bytes) -> bytes:
    """Hides a cap's name in the name of its chain."""
    return hmac(secret, lp(b"fairlead/chain-salt/v1"), "sha256")


def chain_id(scope: Mapping[str, object], salt: bytes = b"") -> str:
    """The name of a scope's sequence of outcomes; `scope` is the clear one, salted with a cap."""
    parts = (b"fairlead/chain/v1", salt, canonical(dict(scope)))
    return sha256(b"".join(map(lp, parts))).hexdigest()
