"""The documents of a fair chance: what is promised before a draw, and what is shown after it.

    H(entropy k)  ──►  Commitment k  ──►  Reveal k: entropy k, seed, H(entropy k+1)  ──►  …
    published with       conflict set,       anybody can repeat the seed and the draws
    outcome k − 1        tokens, odds

An operator who could choose the entropy after seeing the conflict could choose the losers; so its
hash is public before the conflict exists. An operator who knows its own entropy in advance could
still arrange the conflict around it; a public beacon's future round, or a nonce from an owner,
closes that too, and the outcome is then labelled `verifiable`. The engine makes each document
durable before the next exists; nothing here keeps or sends anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from fairlead.core.canonical import digest
from fairlead.core.invariant import require
from fairlead.core.lottery.pot import Odds, OwnerWeighting
from fairlead.core.lottery.seed import derive_seed, entropy_hash


class Label(StrEnum):
    """Whom one has to trust."""

    OPERATOR_TRUSTED = "operator-trusted"
    """Only the operator's entropy: who runs the ledger could have known it beforehand."""
    VERIFIABLE = "verifiable"
    """A beacon or an owner's nonce took part: nobody could have known the seed beforehand."""


@dataclass(frozen=True, slots=True)
class BeaconRound:
    """A round of a public beacon that has not happened yet when it is committed to."""

    chain: str
    round: int

    def document(self) -> dict[str, object]:
        """As JSON carries it."""
        return {"chain": self.chain, "round": self.round}


@dataclass(frozen=True, slots=True, kw_only=True)
class Commitment:
    """What is fixed before a draw: the conflict, its tokens and their odds, and where chance
    comes from."""

    sequence: int
    """Which outcome of its scope this will be: k, from 0."""
    scope: Mapping[str, object]
    deficit_gpus: int
    conflict_digest: str
    """SHA-256, in hex, of the conflict set's canonical JSON, under which the set is kept."""
    candidates: tuple[str, ...]
    """The leases that may be cut, by id."""
    exclusions: tuple[tuple[str, str], ...]
    """The leases of the same runs that may not, each with the reason, by id."""
    odds: tuple[Odds, ...]
    """Every token of the first draw; empty when no draw is needed."""
    entropy_hash: str
    """H(entropy k), as it was published before the conflict existed."""
    owner_weighting: OwnerWeighting = OwnerWeighting.OWNERS
    nonces: Mapping[str, bytes] = field(default_factory=dict)
    """What owners added, by owner."""
    beacon: BeaconRound | None = None

    @property
    def label(self) -> Label:
        """Whom one has to trust."""
        public = self.beacon is not None or len(self.nonces) > 0
        return Label.VERIFIABLE if public else Label.OPERATOR_TRUSTED

    def seed(self, entropy: bytes, beacon: bytes = b"") -> bytes:
        """The seed, once the entropy and the beacon's value are known."""
        return derive_seed(
            conflict_digest=self.conflict_digest,
            sequence=self.sequence,
            entropy=entropy,
            beacon=beacon,
            nonces=self.nonces,
        )

    def document(self) -> dict[str, object]:
        """The body of `gpu.resolve.commit`."""
        return {
            "sequence": self.sequence,
            "scope": dict(self.scope),
            "deficit_gpus": self.deficit_gpus,
            "conflict_digest": self.conflict_digest,
            "candidates": list(self.candidates),
            "exclusions": [{"lease": lease, "reason": why} for lease, why in self.exclusions],
            "tokens": [each.document() for each in self.odds],
            "entropy_hash": self.entropy_hash,
            "owner_weighting": self.owner_weighting.value,
            "nonces": [
                {"owner": owner, "nonce": self.nonces[owner].hex()} for owner in sorted(self.nonces)
            ],
            "beacon": None if self.beacon is None else self.beacon.document(),
            "label": self.label.value,
        }

    def digest(self) -> str:
        """The name by which an outcome cites its commitment."""
        return digest(self.document())


@dataclass(frozen=True, slots=True, kw_only=True)
class Reveal:
    """What is shown after a draw, so that anybody can repeat it."""

    sequence: int
    commitment: str
    """The digest of the commitment."""
    entropy: bytes
    beacon: bytes
    """The beacon's value; empty where no round was committed to."""
    seed: bytes
    next_entropy_hash: str
    """H(entropy k + 1): the next outcome's chance is fixed from now on."""

    def document(self, outcome: Mapping[str, object]) -> dict[str, object]:
        """The body of `gpu.resolve.draw`: this and the decision that was drawn."""
        return {
            "sequence": self.sequence,
            "commitment": self.commitment,
            "entropy": self.entropy.hex(),
            "beacon": self.beacon.hex() if self.beacon else None,
            "seed": self.seed.hex(),
            "next_entropy_hash": self.next_entropy_hash,
            "outcome": dict(outcome),
        }


def reveal(
    commitment: Commitment, *, entropy: bytes, next_entropy: bytes, beacon: bytes = b""
) -> Reveal:
    """Keep a commitment: the entropy whose hash it names, and the beacon's value if it waits."""
    require(entropy_hash(entropy) == commitment.entropy_hash, "the committed entropy is revealed")
    require(
        (commitment.beacon is None) == (not beacon),
        "a beacon's value comes with the round that was committed to",
    )
    return Reveal(
        sequence=commitment.sequence,
        commitment=commitment.digest(),
        entropy=entropy,
        beacon=beacon,
        seed=commitment.seed(entropy, beacon),
        next_entropy_hash=entropy_hash(next_entropy),
    )
