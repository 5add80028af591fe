"""Unbiased draws: a whole number below n, and the lottery of two stages that is made of them.

Draw k of a stage hashes the stage's name, k and a counter under the seed. The remainder of a hash
modulo n would favour small numbers a little; so hashes from the incomplete last stretch of n are
thrown away and the counter goes on. Nothing but HMAC-SHA256 is needed to repeat a draw by hand.

A draw selects an owner, then one of its tokens. An owner with many tokens is not selected more
often than one with few, unless the operator configured that tokens are equal
(`OwnerWeighting.TOKENS`). Owners and tokens are ordered by id, by code point; a selected token is
out, an owner without tokens too.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from fractions import Fraction
from hashlib import sha256

from fairlead.core.invariant import require
from fairlead.core.lottery.model import Draw, Odds

SEED_BYTES = 32
_PREFIX = b"fairlead/lottery/v1\0"
_HASHES = 2**64  # the first 8 bytes of an HMAC
_INNER_PAD = bytes(byte ^ 0x36 for byte in range(256))
_OUTER_PAD = bytes(byte ^ 0x5C for byte in range(256))


class Stage(StrEnum):
    """What is drawn: first an owner, then one of that owner's tokens; or a heap of tokens."""

    OWNER = "owner"
    TOKEN = "token"
    HEAP = "heap"
    """A heap of runs, where every GPU is as likely as the next: see `stake`."""


def message(stage: Stage, index: int, counter: int) -> bytes:
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
    """HMAC-SHA256 as it is defined. `hmac.digest` takes four times as long for so little data."""
    key = seed.ljust(64, b"\0")
    inner = sha256(key.translate(_INNER_PAD) + data).digest()
    return int.from_bytes(sha256(key.translate(_OUTER_PAD) + inner).digest()[:8], "big")


class Urn:
    """Things in a fixed order, some several times; `total` of them together.

    The thing at a position and the taking out of one cost O(log n) (a Fenwick tree), so that a
    lottery with ten thousand draws among a hundred thousand tokens does not move them all.
    """

    __slots__ = ("_top", "_tree", "total")

    def __init__(self, counts: Sequence[int]) -> None:
        self.total = sum(counts)
        # tree[i] sums the counts of the i & -i things up to and including the i-th, from 1.
        tree = self._tree = [0, *counts]
        for i in range(1, len(tree)):
            above = i + (i & -i)
            if above < len(tree):
                tree[above] += tree[i]
        self._top = 1 << len(counts).bit_length() >> 1

    def find(self, position: int) -> int:
        """The thing that holds this position, 0 to total - 1, counted in order."""
        tree, at, stride = self._tree, 0, self._top
        while stride:
            ahead = at + stride
            if ahead < len(tree) and tree[ahead] <= position:
                position -= tree[ahead]
                at = ahead
            stride >>= 1
        return at

    def take(self, thing: int) -> None:
        tree, i = self._tree, thing + 1
        while i < len(tree):
            tree[i] -= 1
            i += i & -i
        self.total -= 1


Tokens = Mapping[str, Sequence[str]]
"""Each owner's tokens; every owner listed has at least one."""


class OwnerWeighting(StrEnum):
    """Between whom the lottery is fair."""

    OWNERS = "owners"
    """Every owner is as likely as the next."""
    TOKENS = "tokens"
    """Every token is as likely as the next."""
    STAKE = "stake"
    """Every GPU of a tier is as likely as the next: see `stake`."""


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
