"""The lottery of two stages: an owner, then one of its tokens, until enough has been drawn.

Whoever has many tokens is not drawn more often than whoever has few: owners are equal, unless the
operator configured that tokens are (`OwnerWeighting.TOKENS`). Owners and tokens are ordered by id,
by code point; a drawn token is out, an owner without tokens too.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from fairlead.core.lottery.draw import Stage, uniform_below
from fairlead.core.lottery.urn import Urn

Tokens = Mapping[str, Sequence[str]]
"""Each owner's tokens; nobody is listed without one."""


class OwnerWeighting(StrEnum):
    """Between whom chance is fair."""

    OWNERS = "owners"
    """Every owner is as likely as the next."""
    TOKENS = "tokens"
    """Every token is as likely as the next."""


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

    def document(self) -> dict[str, object]:
        """As JSON carries it; the fraction as [numerator, denominator]."""
        odds = [self.chance.numerator, self.chance.denominator]
        return {"owner": self.owner, "token": self.token, "odds": odds}


class Pot:
    """The tokens that are still in."""

    __slots__ = ("_left", "_owners", "_tokens", "_urn", "_weighting")

    def __init__(self, tokens: Tokens, weighting: OwnerWeighting = OwnerWeighting.OWNERS) -> None:
        self._weighting = weighting
        self._owners = sorted(tokens)
        self._tokens = [sorted(tokens[owner]) for owner in self._owners]
        equal = weighting is OwnerWeighting.OWNERS
        self._urn = Urn([1 if equal else len(names) for names in self._tokens])
        self._left: dict[int, Urn] = {}  # an owner's tokens, from the first time it is drawn

    def __bool__(self) -> bool:
        return self._urn.total > 0

    def draw(self, seed: bytes, index: int) -> Draw:
        """Take one token out."""
        pick = uniform_below(self._urn.total, seed=seed, stage=Stage.OWNER, index=index)
        owner = self._urn.find(pick)
        names = self._tokens[owner]
        left = self._left.get(owner)
        if left is None:
            left = self._left[owner] = Urn([1] * len(names))
        pick = uniform_below(left.total, seed=seed, stage=Stage.TOKEN, index=index)
        token = left.find(pick)
        left.take(token)
        if self._weighting is OwnerWeighting.TOKENS or not left.total:
            self._urn.take(owner)
        return Draw(index, self._owners[owner], names[token])


def first_odds(
    tokens: Tokens, weighting: OwnerWeighting = OwnerWeighting.OWNERS
) -> tuple[Odds, ...]:
    """The odds of every token in the first draw, by owner and token. They add up to 1."""
    every = sum(map(len, tokens.values()))
    found: list[Odds] = []
    for owner in sorted(tokens):
        names = sorted(tokens[owner])
        equal = weighting is OwnerWeighting.OWNERS
        chance = Fraction(1, len(tokens) * len(names) if equal else every)
        found += [Odds(owner, name, chance) for name in names]
    return tuple(found)


def unfold(tokens: Tokens, draws: Iterable[Draw]) -> Iterator[tuple[Draw, list[str], list[str]]]:
    """Each draw with what it drew from: the owners, and the tokens of the one that was drawn.

    The lists of all draws together grow with the square of the tokens, so they are made here, for
    those who print them, and not kept with every draw.
    """
    left = {owner: sorted(tokens[owner]) for owner in sorted(tokens)}
    for draw in draws:
        names = left[draw.owner]
        yield draw, list(left), list(names)
        names.remove(draw.token)
        if not names:
            del left[draw.owner]
