"""Fair lottery: unbiased draws, seeds, pseudonyms, commitments and checks. See README.md."""

from fairlead.core.lottery.draw import (
    SEED_BYTES,
    Draw,
    Odds,
    OwnerWeighting,
    Pot,
    Stage,
    Tokens,
    first_odds,
    message,
    unfold,
    uniform_below,
)
from fairlead.core.lottery.protocol import (
    BeaconRound,
    Commitment,
    Doubt,
    Label,
    Reveal,
    check_reveal,
    plan_id,
    reveal,
)
from fairlead.core.lottery.pseudonym import Pseudonyms
from fairlead.core.lottery.seed import ENTROPY_BYTES, derive_seed, entropy_hash, lp, preimage

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
    "Pseudonyms",
    "Reveal",
    "Stage",
    "Tokens",
    "check_reveal",
    "derive_seed",
    "entropy_hash",
    "first_odds",
    "lp",
    "message",
    "plan_id",
    "preimage",
    "reveal",
    "unfold",
    "uniform_below",
]
