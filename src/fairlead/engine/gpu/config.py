"""What an operator can set on a control plane."""

from dataclasses import dataclass
from typing import Literal

from fairlead.core.lottery import OwnerWeighting

NEAR_LIMIT_PERCENT = 90


@dataclass(frozen=True, slots=True)
class BeaconSource:
    """A public source of randomness with a round every so often, counted from 1."""

    source: str
    genesis_ms: int
    period_ms: int

    def round_after(self, now_ms: int) -> int:
        """The first round that surely begins in the future, clocks a round apart included."""
        return max(0, (now_ms - self.genesis_ms) // self.period_ms) + 3


@dataclass(frozen=True, slots=True)
class Config:
    """Settings with their defaults."""

    grace_ms: int = 30_000
    near_limit_percent: int = NEAR_LIMIT_PERCENT
    checkpoint_every: int = 20_000
    """Entries between checkpoints: a start folds at most about as many."""
    resolver: Literal["off", "dry-run", "enforce"] = "dry-run"
    """Preemption: never; previewed only; carried out."""
    may_resolve: frozenset[str] = frozenset()
    """Owners whose runs may preempt others at once, besides by reservation."""
    owner_weighting: OwnerWeighting = OwnerWeighting.OWNERS
    """Whether owners or tokens are equally likely; an outcome keeps what its commitment says."""
    beacon: BeaconSource | None = None
    """Public entropy that the operator cannot know in advance; None: outcomes do not wait."""
    hold_ms: int = 120_000
    """How long a commitment that waits for its beacon keeps other runs of the flavor waiting."""
