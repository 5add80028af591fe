"""The port of the secrets behind lotteries and pseudonyms, each fixed before it matters.

The engine publishes hashes of them and, in time, the secrets themselves. Two replicas of one
control plane need the same ones, as they need the same signing key.
"""

from typing import Protocol


class EntropySource(Protocol):
    """Answers are 32 bytes, and the same for ever."""

    def owner_secret(self, owner: str) -> bytes:
        """What an owner's pseudonyms are made with; disclosed to that owner alone."""

    def entropy(self, chain: str, k: int) -> bytes:
        """The operator's part of turn k of a sequence; disclosed with its outcome, not before."""

    def signature_holds(self, public_key: bytes, data: bytes, signature: str) -> bool:
        """Whether the holder of an Ed25519 key signed this; the signature in hex."""
