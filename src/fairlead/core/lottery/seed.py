"""The seed of an outcome: everything that was fixed or published before, hashed in one way only.

`lp` puts each part's length before it, so that no two lists of parts have the same bytes: without
it a nonce could pretend to be the end of an owner's name.
"""

from collections.abc import Mapping
from hashlib import sha256

from fairlead.core.invariant import require

ENTROPY_BYTES = 32
_TAG, _TURN = b"fairlead/seed/v1", b"fairlead/seed/v2"


def lp(part: bytes) -> bytes:
    """The part behind its length in 8 bytes, big endian."""
    return len(part).to_bytes(8, "big") + part


def entropy_hash(entropy: bytes) -> str:
    """What is published of the entropy before it is known what it will decide; hex."""
    require(len(entropy) == ENTROPY_BYTES, "entropy has 32 bytes")
    return sha256(entropy).hexdigest()


def derive_seed(
    *,
    conflict_digest: str,
    sequence: int,
    entropy: bytes,
    beacon: bytes = b"",
    nonces: Mapping[str, bytes],
) -> bytes:
    """The 32 bytes from which an outcome of the first protocol is drawn; `beacon` may be empty."""
    require(len(entropy) == ENTROPY_BYTES, "entropy has 32 bytes")
    conflict = bytes.fromhex(conflict_digest)
    require(len(conflict) == 32, "a conflict digest has 32 bytes")
    parts = [_TAG, conflict, sequence.to_bytes(8, "big"), entropy, beacon]
    for owner in sorted(nonces):
        parts += [owner.encode(), nonces[owner]]
    return sha256(b"".join(map(lp, parts))).digest()


def derive_turn_seed(
    *, chain: str, turn: int, entropy: bytes, beacon: bytes = b"", nonces: Mapping[str, bytes]
) -> bytes:
    """The 32 bytes of a turn of a sequence, whatever the conflict; `beacon` may be empty."""
    require(len(entropy) == ENTROPY_BYTES, "entropy has 32 bytes")
    parts = [_TURN, bytes.fromhex(chain), turn.to_bytes(8, "big"), entropy, beacon]
    for owner in sorted(nonces):
        parts += [owner.encode(), nonces[owner]]
    return sha256(b"".join(map(lp, parts))).digest()
