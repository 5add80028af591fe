"""The protocol of an outcome, as values: what is promised before a draw and shown after it.

    H(entropy t)  ──►  Commitment k  ──►  Reveal k: entropy t, seed, H(entropy t + 1)  ──►  …
    published with       conflict, notice,     the seed and the draws can be repeated from it
    the draw before      nonces, beacon

A flavor has one sequence of outcomes. An outcome has a number k in it and a turn t: the number of
draws before it. The seed of a turn is made of its entropy, its nonces and its beacon, and of
nothing that the conflict says: who changes a label or a name does not get another seed. A void does
not end a turn. It shows what it would have been, and the outcome after it continues with the same
entropy, nonces and beacon round, so that voiding is no second draw.

The label says what protects the seed from the operator, who knows the entropy in advance.
docs/concepts/lottery-adversaries.md is the model. Commitments without a turn are of the first
protocol: a sequence per scope, a seed that hashes the conflict, a new seed after a void.

The documents here are the bodies of `gpu.resolve.commit` and of `gpu.resolve.draw` or
`gpu.resolve.void`; docs/reference/outcome-export.md describes them field by field. The engine makes
each durable before the next exists; nothing here keeps or sends anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from fairlead.core.canonical import as_json
from fairlead.core.lottery.beacon import BeaconRound
from fairlead.core.lottery.draw import OwnerWeighting
from fairlead.core.lottery.seed import ENTROPY_BYTES, derive_seed, derive_turn_seed, entropy_hash


class Label(StrEnum):
    """What protects the seed from the operator."""

    OPERATOR_TRUSTED = "operator-trusted"
    """Nothing: the operator could have known it, and arranged the conflict."""
    OWNER_NONCED = "owner-nonced"
    """An owner's signed nonce: to that owner, the seed could not be known before it was given."""
    BEACON = "beacon"
    """A signed round of a public network that was to come when the conflict was frozen."""
    VERIFIABLE = "verifiable"
    """Of the first protocol: a beacon or a nonce, neither of them signed. No more than trust."""


def plan_id(chain: str, k: int) -> str:
    return f"resolve.{chain[:16]}.{k}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Commitment:
    """What is fixed before a draw: the conflict, the notice of it, and where the seed comes from.

    Names in it are pseudonyms; the scope's flavor and location are clear.
    """

    chain: str
    """Which flavor's sequence of outcomes this belongs to."""
    k: int
    """Its number in that sequence, from 0."""
    previous_seq: int
    """The entry that published the hash of its entropy."""
    scope: Mapping[str, object]
    deficit_gpus: int
    conflict_digest: str
    notice_digest: str
    nonces: Mapping[str, bytes] = field(default_factory=dict)
    """What owners of runs in the conflict added, by owner."""
    beacon: BeaconRound | None = None
    owner_weighting: OwnerWeighting = OwnerWeighting.OWNERS
    turn: int | None = None
    """How many draws came before it; None: the first protocol."""
    continued: bool = False
    """Whether the outcome before it was voided: it has the entropy, nonces and beacon of that."""

    @property
    def plan_id(self) -> str:
        return plan_id(self.chain, self.k)

    @property
    def entropy_index(self) -> int:
        """Which entropy of the sequence, and which pseudonyms, it is made with."""
        return self.k if self.turn is None else self.turn

    @property
    def label(self) -> Label:
        public = self.beacon is not None or len(self.nonces) > 0
        if self.continued or not public:  # a void disclosed the entropy before this conflict
            return Label.OPERATOR_TRUSTED
        if self.turn is None:
            return Label.VERIFIABLE
        return Label.OWNER_NONCED if self.beacon is None else Label.BEACON

    def seed(self, entropy: bytes, beacon_value: bytes | None) -> bytes | None:
        """The seed, once the beacon's value is known; None while it is awaited."""
        if self.beacon is not None and beacon_value is None:
            return None
        beacon = beacon_value or b""
        if self.turn is not None:
            return derive_turn_seed(
                chain=self.chain, turn=self.turn, entropy=entropy, beacon=beacon, nonces=self.nonces
            )
        return derive_seed(
            conflict_digest=self.conflict_digest,
            sequence=self.k,
            entropy=entropy,
            beacon=beacon,
            nonces=self.nonces,
        )

    def document(self) -> dict[str, Any]:
        body = {**as_json(self), **self.luck(self.beacon)}
        if self.turn is None:
            del body["turn"], body["continued"]
        return body

    def luck(self, beacon: BeaconRound | None) -> dict[str, Any]:
        """What the seed needs besides the entropy, as entries say it."""
        owners = sorted(self.nonces)
        nonces = [{"nonce": self.nonces[owner].hex(), "owner": owner} for owner in owners]
        return {"beacon": None if beacon is None else beacon.document(), "nonces": nonces}

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> "Commitment":
        """The commitment that a recorded body holds. Early ones have no `owner_weighting`."""
        values: dict[str, Any] = {
            **{field.name: body[field.name] for field in fields(cls) if field.name in body},
            **luck_of(body),
            "owner_weighting": OwnerWeighting(body.get("owner_weighting", OwnerWeighting.OWNERS)),
        }
        return cls(**values)


def luck_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """The beacon and the nonces that `Commitment.luck` wrote, as its fields."""
    beacon = body["beacon"]
    return {
        "nonces": {nonce["owner"]: bytes.fromhex(nonce["nonce"]) for nonce in body["nonces"]},
        "beacon": None if beacon is None else BeaconRound.of(beacon),
    }


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
    """The hash of the next outcome's entropy, fixed from now on; after a void, the same one."""
    void: str | None = None
    """Why the outcome was given up; None: it was drawn."""
    turn: int | None = None
    carry: Mapping[str, Any] | None = None
    """After a void: the beacon and the nonces that the next outcome continues with."""

    @property
    def kind(self) -> str:
        return "gpu.resolve.draw" if self.void is None else "gpu.resolve.void"

    def document(self, commit_head: Mapping[str, object]) -> dict[str, Any]:
        """The body of its entry; `commit_head` is the checkpoint right after the commitment."""
        body = {**as_json(self), "commit_head": dict(commit_head)}
        void, carry = body.pop("void"), body.pop("carry")
        if self.turn is None:
            del body["turn"]
        body |= {} if void is None else {"reason": void}
        return body if carry is None else {**body, "carry": dict(self.carry or {})}

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> "Reveal":
        later = ("void", "carry", "turn")
        names = [field.name for field in fields(cls) if field.name not in later]
        values: dict[str, Any] = {name: body[name] for name in names}
        for name in ("entropy", "beacon_value", "seed"):
            if values[name] is not None:
                values[name] = bytes.fromhex(values[name])
        values |= {"label": Label(body["label"]), "void": body.get("reason")}
        return cls(**values, turn=body.get("turn"), carry=body.get("carry"))


def reveal(
    commitment: Commitment,
    *,
    commit_seq: int,
    entropy: bytes,
    next_entropy: bytes,
    beacon_value: bytes | None = None,
    result_digest: str | None = None,
    void: str | None = None,
    beacon_lost: bool = False,
) -> Reveal:
    """Answer a commitment; `result_digest` names the decision that its seed leads to.

    A void of a turn continues it, without its beacon where that is lost for good.
    """
    seed = commitment.seed(entropy, beacon_value)
    continues = void is not None and commitment.turn is not None
    beacon = None if beacon_lost else commitment.beacon
    return Reveal(
        chain=commitment.chain,
        k=commitment.k,
        commit_seq=commit_seq,
        entropy=entropy,
        beacon_value=beacon_value,
        seed=seed,
        result_digest=result_digest,
        label=commitment.label,
        next_commitment=entropy_hash(entropy if continues else next_entropy),
        void=void,
        turn=commitment.turn,
        carry=commitment.luck(beacon) if continues else None,
    )


class Doubt(StrEnum):
    """What does not fit in a finished outcome."""

    SEQUENCE = "sequence"
    """The reveal answers another commitment."""
    ENTROPY = "entropy"
    """The revealed entropy is not the one whose hash was published."""
    BEACON = "beacon"
    """A beacon's value without a round, or one that its network did not sign."""
    SEED = "seed"
    """The seed is not made of what was committed and revealed."""
    LABEL = "label"
    """The label says more or less than what took part."""
    CARRY = "carry"
    """A void does not hand on the entropy, the nonces or the beacon that it had."""


def check_reveal(commitment: Commitment, shown: Reveal, published: str) -> tuple[Doubt, ...]:
    """Everything that does not fit; `published` is the hash that entry `previous_seq` holds.

    Whether the conflict and the seed lead to the recorded decision, a replay of `gpu.resolve` says.
    """
    doubts = []
    named = (commitment.chain, commitment.k, commitment.turn)
    if (shown.chain, shown.k, shown.turn) != named:
        doubts.append(Doubt.SEQUENCE)
    sound = len(shown.entropy) == ENTROPY_BYTES
    if not sound or entropy_hash(shown.entropy) != published:
        doubts.append(Doubt.ENTROPY)
    if shown.beacon_value is not None and not _of_round(commitment.beacon, shown.beacon_value):
        doubts.append(Doubt.BEACON)
    if not sound or shown.seed != commitment.seed(shown.entropy, shown.beacon_value):
        doubts.append(Doubt.SEED)
    if shown.label is not commitment.label:
        doubts.append(Doubt.LABEL)
    if shown.carry not in _handed_on(commitment, shown.void) or (
        shown.carry is not None and shown.next_commitment != published
    ):
        doubts.append(Doubt.CARRY)
    return tuple(doubts)


def _of_round(promised: BeaconRound | None, value: bytes) -> bool:
    if promised is None:
        return False
    return promised.public_key == "" or promised.holds(value)


def _handed_on(commitment: Commitment, void: str | None) -> tuple[Mapping[str, Any] | None, ...]:
    """What a void may hand on: what it had; or that without its beacon."""
    if void is None or commitment.turn is None:
        return (None,)
    return commitment.luck(commitment.beacon), commitment.luck(None)
