"""Seeded chance: independent named streams from one seed, the same on every platform.

A stream is HMAC-SHA-256 in counter mode, keyed by the seed and the stream's name. Whoever draws
from one stream never moves another, so adding a pod or a fault leaves everybody else's luck alone.
"""

from hashlib import sha256
from hmac import digest

SEED_MAX = 2**63 - 1
PARTS = 1_000_000
"""Probabilities are compared in millionths: integers, so that no rounding decides a draw."""


class Stream:
    """An endless sequence of draws. Integers only."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._blocks = 0
        self._words: list[int] = []

    def word(self) -> int:
        """64 random bits."""
        if not self._words:
            block = digest(self._key, self._blocks.to_bytes(8, "big"), "sha256")
            self._blocks += 1
            self._words = [int.from_bytes(block[at : at + 8], "big") for at in (24, 16, 8, 0)]
        return self._words.pop()

    def below(self, bound: int) -> int:
        """A whole number in [0, bound), each as likely as the others."""
        # Draws past the last full multiple of the bound would favour small numbers.
        limit = 2**64 - 2**64 % bound
        while (drawn := self.word()) >= limit:
            pass
        return drawn % bound

    def between(self, low: int, high: int) -> int:
        """A whole number in [low, high]."""
        return low + self.below(high - low + 1)

    def chance(self, probability: float) -> bool:
        """True with the given probability, in millionths."""
        return self.below(PARTS) < round(probability * PARTS)


class Entropy:
    """The seed of a run, and the streams derived from it."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def stream(self, *name: str) -> Stream:
        """The stream of this name; asking twice gives two copies that start at the beginning."""
        key = sha256(b"fairlead/sim/v1\0" + self.seed.to_bytes(8, "big"))
        for part in name:
            encoded = part.encode()
            key.update(len(encoded).to_bytes(8, "big") + encoded)
        return Stream(key.digest())
