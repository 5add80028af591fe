"""What a resolve decides, and what a forecast can say before there is a seed."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from fairlead.core.lottery import Draw, Odds, Tokens
from fairlead.core.reasons import CutKind


class CutTier(StrEnum):
    """The order of preemption. A run is in one tier with all its leases."""

    UNFUNDED = "unfunded"
    NOMINATED = "nominated"
    FUNDED = "funded"

    @classmethod
    def of(cls, *, unfunded: bool, nominated: bool) -> "CutTier":
        """A run with an unfunded candidate, one that its owner nominated, or any other."""
        if unfunded:
            return cls.UNFUNDED
        return cls.NOMINATED if nominated else cls.FUNDED


@dataclass(frozen=True, slots=True)
class Action:
    """A lease that ends; only GPUs in scope help against the deficit."""

    lease: str
    run: str
    kind: CutKind
    gpus: int
    in_scope: bool
    tier: CutTier
    draw: int | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """The lottery of one tier: who had tokens, and what was drawn."""

    tier: CutTier
    tokens: Tokens
    draws: tuple[Draw, ...]


@dataclass(frozen=True, slots=True)
class Resolution:
    """Enough is freed, or nothing is done and so many GPUs would still be missing."""

    deficit_gpus: int
    freed_gpus: int = 0
    actions: tuple[Action, ...] = ()
    withdrawn: tuple[Action, ...] = ()
    """Structural cuts that the draws made unnecessary, in the order in which they were made."""
    rounds: tuple[Round, ...] = ()
    shortfall_gpus: int = 0

    @property
    def resolved(self) -> bool:
        """Whether the deficit is met."""
        return not self.shortfall_gpus

    def draws(self) -> Iterator[tuple[CutTier, Draw]]:
        """All draws, in order, with their tiers."""
        for each in self.rounds:
            for draw in each.draws:
                yield each.tier, draw


@dataclass(frozen=True, slots=True)
class RiskRound:
    """A lottery that will be held: each token with its odds in the first draw of this round."""

    tier: CutTier
    odds: tuple[Odds, ...]
    missing_gpus: int
    """What is still to be freed when it begins."""
    all_lost: bool
    """Even all tokens together are no more than what is missing: every one will be drawn."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is known before a seed is: the cuts without chance, and the odds of the rest."""

    deficit_gpus: int
    actions: tuple[Action, ...] = ()
    """The structural cuts, in order. Those that turn out to be unnecessary will come back."""
    withdrawn: tuple[Action, ...] = ()
    """Structural cuts that come back for certain; known only where no draw is open."""
    risks: tuple[RiskRound, ...] = ()
    shortfall_gpus: int = 0

    @property
    def first_odds(self) -> tuple[Odds, ...]:
        """The odds of every token in draw 0; empty when nothing is drawn."""
        return self.risks[0].odds if self.risks else ()
