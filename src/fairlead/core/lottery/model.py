"""The values of a lottery: what was drawn, and how likely that is before."""

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Draw:
    """What draw `index` brought."""

    index: int
    owner: str
    token: str


@dataclass(frozen=True, slots=True)
class Odds:
    """How likely a token is in the first draw."""

    owner: str
    token: str
    chance: Fraction
