"""The protocol's entries, one function each: introductions, the commitment, its answer.

    owner.pseudonym, gpu.resolve.scope     long before: secrets and entropy fixed by their hashes
    gpu.resolve.commit, gpu.resolve.case   the conflict is frozen; for whom
    gpu.resolve.draw or gpu.resolve.void   the entropy is shown, and the next one is fixed

docs/reference/outcome-export.md says what is in them, and why no clear name is.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from fairlead.core.canonical import canonical
from fairlead.core.gpu import Conflict, Resolution, Scope, conflict_bytes, resolve
from fairlead.core.lottery import Label, OwnerWeighting, derive_seed, entropy_hash
from fairlead.core.lottery.pseudonym import secret_commitment
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.resolver.freeze import Frozen
from fairlead.engine.gpu.resolver.names import Names, chain_of
from fairlead.engine.gpu.resolver.state import Outcome, Step
from fairlead.engine.gpu.values import SYSTEM
from fairlead.ports.chance import Chance
from fairlead.ports.faults import PermanentFault
from fairlead.ports.ledger import Draft
from fairlead.schema.resolve import VERSIONS, from_resolution

ANOTHER_MASTER = "the master secret is not the one that this ledger's chance was fixed with"


@dataclass(frozen=True, slots=True)
class Case:
    """What asks for a resolve: where, how much, and for whom."""

    cause: str
    scope: Scope
    deficit_gpus: int
    author: str = SYSTEM
    run: str | None = None
    reservation: str | None = None
    node: str | None = None
    asked: int | None = None
    """The request that it is a step of, and which: see `tightening`."""
    step: Step | None = None


def introductions(
    projection: Projection,
    chance: Chance,
    owners: Iterable[str],
    scopes: Iterable[tuple[Scope, str | None]],
    now_ms: int,
) -> Iterator[Draft]:
    """Secrets and entropy that nobody has been told about yet, by their hashes.

    A scope comes with the owner of its cap.
    """
    known = projection.resolver
    for owner in sorted(set(owners) - known.owners.keys()):
        commitment = secret_commitment(chance.owner_secret(owner))
        yield Draft(
            kind="owner.pseudonym",
            time_ms=now_ms,
            author=SYSTEM,
            plan_id=f"owner.{owner}",
            effect="pseudonym",
            body={"commitment": commitment, "owner": owner},
        )
    told = set(known.chains)
    for scope, cap_owner in scopes:
        chain = chain_of(chance, scope, cap_owner)
        if chain not in told:
            told.add(chain)
            body = {
                "capped": scope.cap is not None,
                "chain": chain,
                "flavor": scope.flavor,
                "location": dict(scope.location),
                "next_commitment": entropy_hash(chance.entropy(chain, 0)),
            }
            yield Draft(
                kind="gpu.resolve.scope",
                time_ms=now_ms,
                author=SYSTEM,
                body=body,
                plan_id=f"resolve.{chain[:16]}",
                effect="scope",
            )


def commit_drafts(
    projection: Projection,
    names: Names,
    *,
    chain: str,
    case: Case,
    frozen: Frozen,
    beacon: dict[str, Any] | None,
    owner_weighting: OwnerWeighting,
    now_ms: int,
) -> list[Draft]:
    """The promise: this conflict, these odds, this chance, before anybody knows whom it hits."""
    known, conflict = projection.resolver.chains[chain], frozen.conflict
    # Of owners with a run in the conflict: a nonce of nobody would be a salt that can be chosen.
    owners = {run.owner for run in conflict.runs}
    given = {
        owner: nonce
        for owner, nonce in projection.resolver.nonces.items()
        if names.owner(owner) in owners
    }
    nonces = sorted(
        ({"nonce": nonce, "owner": names.owner(owner)} for owner, nonce in given.items()),
        key=lambda each: each["owner"],
    )
    document, notice = conflict_bytes(conflict), canonical(frozen.notice)
    digest = _digest(document)
    body = {
        "chain": chain,
        "k": known.k,
        "previous_seq": known.published_seq,
        "scope": conflict.scope.document(),
        "deficit_gpus": conflict.deficit_gpus,
        "conflict_digest": digest,
        "notice_digest": _digest(notice),
        "nonces": nonces,
        "beacon": beacon,
        "owner_weighting": owner_weighting.value,
    }
    about = {
        "chain": chain,
        "k": known.k,
        "flavor": case.scope.flavor,
        "cause": case.cause,
        "run": case.run,
        "reservation": case.reservation,
        "node": case.node,
        "nonce_owners": sorted(given),
        "asked": case.asked,
    }
    plan = plan_id(chain, known.k)
    return [
        Draft(
            kind="gpu.resolve.commit",
            time_ms=now_ms,
            author=SYSTEM,
            body=body,
            plan_id=plan,
            effect="commit",
            input_digest=digest,
            version=VERSIONS[owner_weighting],
            blobs=(document, notice),
        ),
        Draft(
            kind="gpu.resolve.case",
            time_ms=now_ms,
            author=case.author,
            body=about,
            plan_id=plan,
            effect="case",
            blobs=(canonical(names.clear),),
        ),
    ]


@dataclass(frozen=True, slots=True)
class Shown:
    """What an outcome comes to: the seed and the decision; neither while a beacon is awaited."""

    entropy: bytes
    beacon_value: str | None
    seed: bytes | None
    resolution: Resolution | None
    result: bytes | None


def show(
    projection: Projection,
    chance: Chance,
    outcome: Outcome,
    conflict: Conflict,
    beacon_value: str | None,
) -> Shown:
    """Reveal the entropy and decide; the same for ever, whoever asks."""
    chain = projection.resolver.chains[outcome.chain]
    entropy = chance.entropy(outcome.chain, outcome.k)
    if entropy_hash(entropy) != chain.commitment:
        raise PermanentFault(ANOTHER_MASTER)
    if outcome.beacon is not None and beacon_value is None:
        return Shown(entropy, None, None, None, None)
    seed = derive_seed(
        conflict_digest=outcome.conflict_digest,
        sequence=outcome.k,
        entropy=entropy,
        beacon=bytes.fromhex(beacon_value or ""),
        nonces={each["owner"]: bytes.fromhex(each["nonce"]) for each in outcome.nonces},
    )
    resolution = resolve(conflict, seed, owner_weighting=outcome.owner_weighting)
    result = from_resolution(resolution, outcome.conflict_digest)
    return Shown(entropy, beacon_value, seed, resolution, canonical(result))


def final_draft(
    chance: Chance,
    outcome: Outcome,
    shown: Shown,
    *,
    commit_head: dict[str, Any],
    now_ms: int,
    author: str = SYSTEM,
    void: str | None = None,
) -> Draft:
    """The answer to a commitment: what was drawn, or why it was given up and what it would be."""
    public = outcome.beacon is not None or len(outcome.nonces) > 0
    body = {
        "chain": outcome.chain,
        "k": outcome.k,
        "commit_seq": outcome.seq,
        "commit_head": commit_head,
        "entropy": shown.entropy.hex(),
        "beacon_value": shown.beacon_value,
        "seed": None if shown.seed is None else shown.seed.hex(),
        "result_digest": None if shown.result is None else _digest(shown.result),
        "label": (Label.VERIFIABLE if public else Label.OPERATOR_TRUSTED).value,
        "next_commitment": entropy_hash(chance.entropy(outcome.chain, outcome.k + 1)),
        **({} if void is None else {"reason": void}),
    }
    return Draft(
        kind="gpu.resolve.draw" if void is None else "gpu.resolve.void",
        time_ms=now_ms,
        author=author,
        body=body,
        plan_id=plan_id(outcome.chain, outcome.k),
        effect="outcome",
        version=VERSIONS[outcome.owner_weighting],
        blobs=() if shown.result is None else (shown.result,),
    )


def plan_id(chain: str, k: int) -> str:
    """All entries of one outcome have it."""
    return f"resolve.{chain[:16]}.{k}"


def _digest(data: bytes) -> str:
    return sha256(data).hexdigest()
