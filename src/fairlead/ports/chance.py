"""The port of secrets that chance and pseudonyms come from: fixed for good before they matter.

The engine publishes hashes of them and, in time, the secrets themselves. Two replicas of one
control plane need the same ones, as they need the same signing key.
"""

from typing import Protocol


class Chance(Protocol):
    """Answers are 32 bytes, and the same for ever."""

    def owner_secret(self, owner: str) -> bytes:
        """What an owner's pseudonyms are made with; told to that owner alone."""
        ...

    def entropy(self, chain: str, k: int) -> bytes:
        """The operator's part of outcome k of a scope; shown with that outcome, not before."""
        ...
