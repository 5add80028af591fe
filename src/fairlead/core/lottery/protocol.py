"""The protocol of an outcome, as values: what is promised before a draw and shown after it.

    H(entropy k)  ──►  Commitment k  ──►  Reveal k: entropy k, seed, H(entropy k + 1)  ──►  …
    published with       conflict, notice,     the seed and the draws can be repeated from it
    outcome k − 1        nonces, beacon

An operator who could choose the entropy after seeing the conflict could choose who is preempted; so
its hash is public before the conflict exists. An operator who knows its own entropy in advance
could still arrange the conflict around it; a public beacon's future round, or a nonce from an
owner, closes that too, and the outcome is then labelled `verifiable`.

The documents here are the bodies of `gpu.resolve.commit` and of `gpu.resolve.draw` or
`gpu.resolve.void`; docs/reference/outcome-export.md describes them field by field. The engine makes
each durable before the next exists; nothing here keeps or sends anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from fairlead.core.canonical import as_json
from fairlead.core.lottery.draw import OwnerWeighting
from fairlead.core.lottery.seed import ENTROPY_BYTES, derive_seed, entropy_hash


class Label(StrEnum):
    """Whom one has to trust."""

    OPERATOR_TRUSTED = "operator-trusted"
    """Only the operator's entropy: who runs the ledger could have known it beforehand."""
    VERIFIABLE = "verifiable"
    """A beacon or an owner's nonce took part: the seed could not be known beforehand."""


@dataclass(frozen=True, slots=True)
class BeaconRound:
    """A round of a public beacon that has not happened yet when it is committed to."""

    source: str
    round: int

    @property
    def key(self) -> str:
        return f"{self.source}/{self.round}"


def plan_id(chain: str, k: int) -> str:
    return f"resolve.{chain[:16]}.{k}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Commitment:
    """What is fixed before a draw: the conflict, the notice of it, and where the seed comes from.

    Names in it are pseudonyms; the scope's flavor and location are clear.
    """

    chain: str
    """Which scope's sequence of outcomes this belongs to."""
    k: int
    """Its number in that sequence, from 0."""
    previous_seq: int
    """The entry that published the hash of entropy k."""
    scope: Mapping[str, object]
    deficit_gpus: int
    conflict_digest: str
    notice_digest: str
    nonces: Mapping[str, bytes] = field(default_factory=dict)
    """What owners of runs in the conflict added, by owner."""
    beacon: BeaconRound | None = None
    owner_weighting: OwnerWeighting = OwnerWeighting.OWNERS

    @property
    def plan_id(self) -> str:
        return plan_id(self.chain, self.k)

    @property
    def label(self) -> Label:
        public = self.beacon is not None or len(self.nonces) > 0
        return Label.VERIFIABLE if public else Label.OPERATOR_TRUSTED

    def seed(self, entropy: bytes, beacon_value: bytes | None) -> bytes | None:
        """The seed, once the beacon's value is known; None while it is awaited."""
        if self.beacon is not None and beacon_value is None:
            return None
        return derive_seed(
            conflict_digest=self.conflict_digest,
            sequence=self.k,
            entropy=entropy,
            beacon=beacon_value or b"",
            nonces=self.nonces,
        )

    def document(self) -> dict[str, Any]:
        nonces = [
            {"nonce": self.nonces[owner].hex(), "owner": owner} for owner in sorted(self.nonces)
        ]
        return {**as_json(self), "nonces": nonces}

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> "Commitment":
        """The commitment that a recorded body holds. Early ones have no `owner_weighting`."""
        beacon = body["beacon"]
        values: dict[str, Any] = {
            **{field.name: body[field.name] for field in fields(cls) if field.name in body},
            "nonces": {nonce["owner"]: bytes.fromhex(nonce["nonce"]) for nonce in body["nonces"]},
            "beacon": beacon and BeaconRound(beacon["source"], beacon["round"]),
            "owner_weighting": OwnerWeighting(body.get("owner_weighting", OwnerWeighting.OWNERS)),
        }
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reveal:
    """What is shown after a draw, or when an outcome is voided, so that it can be repeated.

    `seed` and `result_digest` are None where a void came before the beacon's value.
    """

    chain: str
    k: int
    commit_seq: int
    entropy: bytes
    beacon_value: bytes | None
    seed: bytes | None
    result_digest: str | None
    label: Label
    next_commitment: str
    """H(entropy k + 1): the entropy of the next outcome is fixed from now on."""
    void: str | None = None
    """Why the outcome was given up; None: it was drawn."""

    @property
    def kind(self) -> str:
        return "gpu.resolve.draw" if self.void is None else "gpu.resolve.void"

    def document(self, commit_head: Mapping[str, object]) -> dict[str, Any]:
        """The body of its entry; `commit_head` is the checkpoint right after the commitment."""
        body = {**as_json(self), "commit_head": dict(commit_head)}
        void = body.pop("void")
        return body if void is None else {**body, "reason": void}

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> "Reveal":
        names = [field.name for field in fields(cls) if field.name != "void"]
        values: dict[str, Any] = {name: body[name] for name in names}
        for name in ("entropy", "beacon_value", "seed"):
            if values[name] is not None:
                values[name] = bytes.fromhex(values[name])
        return cls(**{**values, "label": Label(body["label"]), "void": body.get("reason")})


def reveal(
    commitment: Commitment,
    *,
    commit_seq: int,
    entropy: bytes,
    next_entropy: bytes,
    beacon_value: bytes | None = None,
    result_digest: str | None = None,
    void: str | None = None,
) -> Reveal:
    """Answer a commitment; `result_digest` names the decision that its seed leads to."""
    seed = commitment.seed(entropy, beacon_value)
    return Reveal(
        chain=commitment.chain,
        k=commitment.k,
        commit_seq=commit_seq,
        entropy=entropy,
        beacon_value=beacon_value,
        seed=seed,
        result_digest=result_digest,
        label=commitment.label,
        next_commitment=entropy_hash(next_entropy),
        void=void,
    )


class Doubt(StrEnum):
    """What does not fit in a finished outcome."""

    SEQUENCE = "sequence"
    """The reveal answers another commitment."""
    ENTROPY = "entropy"
    """The revealed entropy is not the one whose hash was published."""
    BEACON = "beacon"
    """A beacon's value without a round."""
    SEED = "seed"
    """The seed is not made of what was committed and revealed."""
    LABEL = "label"
    """The label says more or less than what took part."""


def check_reveal(commitment: Commitment, shown: Reveal, published: str) -> tuple[Doubt, ...]:
    """Everything that does not fit; `published` is the hash that entry `previous_seq` holds.

    Whether the conflict and the seed lead to the recorded decision, a replay of `gpu.resolve` says.
    """
    doubts = []
    if (shown.chain, shown.k) != (commitment.chain, commitment.k):
        doubts.append(Doubt.SEQUENCE)
    sound = len(shown.entropy) == ENTROPY_BYTES
    if not sound or entropy_hash(shown.entropy) != published:
        doubts.append(Doubt.ENTROPY)
    if commitment.beacon is None and shown.beacon_value is not None:
        doubts.append(Doubt.BEACON)
    if not sound or shown.seed != commitment.seed(shown.entropy, shown.beacon_value):
        doubts.append(Doubt.SEED)
    if shown.label is not commitment.label:
        doubts.append(Doubt.LABEL)
    return tuple(doubts)
