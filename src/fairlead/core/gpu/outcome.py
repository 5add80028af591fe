"""The resolver's side of a fair chance: what to commit to, and whether an outcome is the right one.

`commitment_for` writes down everything that is known before the draw. `check_outcome` repeats the
whole decision from the conflict set and the revealed entropy, as a losing tenant would.
"""

from collections.abc import Mapping

from fairlead.core.gpu.conflict import Conflict, conflict_digest, exclusions
from fairlead.core.gpu.resolution import Resolution
from fairlead.core.gpu.resolve import forecast, resolve
from fairlead.core.lottery import (
    BeaconRound,
    Commitment,
    Doubt,
    OwnerWeighting,
    Reveal,
    check_reveal,
)


def commitment_for(
    conflict: Conflict,
    *,
    sequence: int,
    entropy_hash: str,
    nonces: Mapping[str, bytes] | None = None,
    beacon: BeaconRound | None = None,
    owner_weighting: OwnerWeighting = OwnerWeighting.OWNERS,
) -> Commitment:
    """The promise that is made before the draw: this conflict, these tokens, these odds."""
    candidates, excluded = exclusions(conflict)
    return Commitment(
        sequence=sequence,
        scope=conflict.scope.document(),
        deficit_gpus=conflict.deficit_gpus,
        conflict_digest=conflict_digest(conflict),
        candidates=candidates,
        exclusions=excluded,
        odds=forecast(conflict, owner_weighting=owner_weighting).first_odds,
        entropy_hash=entropy_hash,
        owner_weighting=owner_weighting,
        nonces=dict(nonces or {}),
        beacon=beacon,
    )


def check_outcome(
    conflict: Conflict, commitment: Commitment, shown: Reveal, outcome: Resolution
) -> tuple[Doubt, ...]:
    """Everything that is wrong with an outcome; empty when it is what had to come."""
    doubts = list(check_reveal(commitment, shown))
    expected = commitment_for(
        conflict,
        sequence=commitment.sequence,
        entropy_hash=commitment.entropy_hash,
        nonces=commitment.nonces,
        beacon=commitment.beacon,
        owner_weighting=commitment.owner_weighting,
    )
    if expected != commitment:
        doubts.append(Doubt.CONFLICT)
    if Doubt.SEED not in doubts:
        again = resolve(conflict, shown.seed, owner_weighting=commitment.owner_weighting)
        if again != outcome:
            doubts.append(Doubt.OUTCOME)
    return tuple(doubts)
