"""One unbiased draw: a whole number below n, from a seed that anybody can check.

Draw k of a stage hashes the stage's name, k and a counter under the seed. The remainder of a hash
modulo n would favour small numbers a little; so hashes from the incomplete last stretch of n are
thrown away and the counter goes on. Nothing but HMAC-SHA256 is needed to repeat a draw by hand.
"""

from enum import StrEnum
from hmac import digest

from fairlead.core.invariant import require

SEED_BYTES = 32
_PREFIX = b"fairlead/lottery/v1\0"
_HASHES = 2**64  # the first 8 bytes of an HMAC


class Stage(StrEnum):
    """What is drawn: first an owner, then one of that owner's tokens."""

    OWNER = "owner"
    TOKEN = "token"


def message(stage: Stage, index: int, counter: int) -> bytes:
    """The bytes that are hashed for try `counter` of draw `index`."""
    return _PREFIX + stage.encode() + b"\0" + index.to_bytes(8, "big") + counter.to_bytes(8, "big")


def uniform_below(n: int, *, seed: bytes, stage: Stage, index: int) -> int:
    """A number from 0 to n - 1, each as likely as the others."""
    require(len(seed) == SEED_BYTES, "a seed has 32 bytes")
    require(0 < n <= _HASHES, "something is there to draw from")
    whole = _HASHES - _HASHES % n
    counter = 0
    while (found := _hash(seed, message(stage, index, counter))) >= whole:
        counter += 1
    return found % n


def _hash(seed: bytes, data: bytes) -> int:
    return int.from_bytes(digest(seed, data, "sha256")[:8], "big")
