"""Fair chance: unbiased draws, seeds, commitments and their checks. See README.md."""

from fairlead.core.lottery.draw import SEED_BYTES, Stage, message, uniform_below
from fairlead.core.lottery.pot import Draw, Odds, OwnerWeighting, Pot, Tokens, first_odds, unfold
from fairlead.core.lottery.protocol import BeaconRound, Commitment, Label, Reveal, reveal
from fairlead.core.lottery.seed import ENTROPY_BYTES, derive_seed, entropy_hash, lp, preimage
from fairlead.core.lottery.verify import (
    Doubt,
    check_draws,
    check_odds,
    check_reveal,
    check_succession,
    committed_tokens,
)

__all__ = [
    "ENTROPY_BYTES",
    "SEED_BYTES",
    "BeaconRound",
    "Commitment",
    "Doubt",
    "Draw",
    "Label",
    "Odds",
    "OwnerWeighting",
    "Pot",
    "Reveal",
    "Stage",
    "Tokens",
    "check_draws",
    "check_odds",
    "check_reveal",
    "check_succession",
    "committed_tokens",
    "derive_seed",
    "entropy_hash",
    "first_odds",
    "lp",
    "message",
    "preimage",
    "reveal",
    "unfold",
    "uniform_below",
]
