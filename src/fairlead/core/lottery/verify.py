"""Checks of what was committed and revealed, for whoever lost and wants to know.

Each answers with everything that is wrong, by name; nothing wrong is an empty tuple. Whether the
conflict set leads to these tokens and these victims is for the governor that knows the rules of
cutting (`fairlead.core.gpu.outcome`).
"""

from collections.abc import Sequence
from enum import StrEnum

from fairlead.core.lottery.pot import Draw, OwnerWeighting, Pot, Tokens, first_odds
from fairlead.core.lottery.protocol import Commitment, Reveal
from fairlead.core.lottery.seed import ENTROPY_BYTES, entropy_hash


class Doubt(StrEnum):
    """What does not fit."""

    SEQUENCE = "sequence"
    """The outcome is not the one that was committed to, or not the next of its scope."""
    COMMITMENT = "commitment"
    """The outcome cites another commitment."""
    ENTROPY = "entropy"
    """The revealed entropy is not the one whose hash was published."""
    BEACON = "beacon"
    """A beacon's value without a round, or a round without its value."""
    SEED = "seed"
    """The seed is not made of what was committed and revealed."""
    ODDS = "odds"
    """The odds are not those of the tokens."""
    CONFLICT = "conflict"
    """The conflict set is not the one that was committed to, or describes something else."""
    OUTCOME = "outcome"
    """This seed draws something else from this conflict set."""


def check_reveal(commitment: Commitment, shown: Reveal) -> tuple[Doubt, ...]:
    """Whether an outcome keeps its commitment and has the seed that follows from both."""
    doubts = []
    if shown.sequence != commitment.sequence:
        doubts.append(Doubt.SEQUENCE)
    if shown.commitment != commitment.digest():
        doubts.append(Doubt.COMMITMENT)
    sound = len(shown.entropy) == ENTROPY_BYTES
    if not sound or entropy_hash(shown.entropy) != commitment.entropy_hash:
        doubts.append(Doubt.ENTROPY)
    if (commitment.beacon is None) != (not shown.beacon):
        doubts.append(Doubt.BEACON)
    if not sound or shown.seed != commitment.seed(shown.entropy, shown.beacon):
        doubts.append(Doubt.SEED)
    return (*doubts, *check_odds(commitment))


def check_odds(commitment: Commitment) -> tuple[Doubt, ...]:
    """Whether the committed odds are those of the committed tokens."""
    tokens = committed_tokens(commitment)
    fits = commitment.odds == first_odds(tokens, commitment.owner_weighting)
    return () if fits else (Doubt.ODDS,)


def committed_tokens(commitment: Commitment) -> Tokens:
    """The tokens of the first draw, by owner."""
    tokens: dict[str, list[str]] = {}
    for each in commitment.odds:
        tokens.setdefault(each.owner, []).append(each.token)
    return tokens


def check_succession(previous: Reveal, commitment: Commitment) -> tuple[Doubt, ...]:
    """Whether a commitment is the next after an outcome, with the entropy fixed in that one."""
    doubts = []
    if commitment.sequence != previous.sequence + 1:
        doubts.append(Doubt.SEQUENCE)
    if commitment.entropy_hash != previous.next_entropy_hash:
        doubts.append(Doubt.ENTROPY)
    return tuple(doubts)


def check_draws(
    seed: bytes,
    tokens: Tokens,
    draws: Sequence[Draw],
    *,
    weighting: OwnerWeighting = OwnerWeighting.OWNERS,
) -> tuple[Doubt, ...]:
    """Whether the seed draws these from these tokens, one after the other."""
    pot = Pot(tokens, weighting)
    for draw in draws:
        if not pot or pot.draw(seed, draw.index) != draw:
            return (Doubt.OUTCOME,)
    return ()
