"""The labels of the traffic governor: how far the door is open, and what the group goes through."""

from enum import StrEnum

LatencyMs = float
"""Measured milliseconds, fractions included. Times of decisions are whole milliseconds."""


class Mode(StrEnum):
    """Who is let in. Ordered: each is stricter than the one before it."""

    NORMAL = "normal"
    """Everybody."""
    SOFT = "soft"
    """As many as the bucket lets; the others are told to try again."""
    HARD = "hard"
    """A drip, so that signals do not go blind; the others are refused."""

    @property
    def level(self) -> int:
        """0, 1, 2: for comparing."""
        return _LEVELS[self]


_LEVELS = {mode: level for level, mode in enumerate(Mode)}
MODES = tuple(Mode)


class Regime(StrEnum):
    """What the group goes through, as told by its modes."""

    LAMINAR = "laminar"
    """Normal."""
    TRANSITION = "transition"
    """Soft, coming from normal."""
    CRISIS = "crisis"
    """Hard: slots may move four times as fast."""
    RECOVERY = "recovery"
    """Soft, coming from hard: the bucket reopens little by little."""
