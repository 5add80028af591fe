"""Border types of `gpu.resolve`: a conflict and a seed in, which leases end out."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from fairlead.core import gpu
from fairlead.core.lottery import SEED_BYTES, OwnerWeighting, unfold
from fairlead.core.reasons import CutKind
from fairlead.core.units import Count, Hex, OutOfRange
from fairlead.schema.derive import Style

VERSIONS: Mapping[OwnerWeighting, int] = {OwnerWeighting.OWNERS: 1, OwnerWeighting.TOKENS: 2}
"""The version that a recorded decision names: 1 where owners are equal, as in the contract, and 2
where tokens are, so that a reader who knows only the first reports an unknown version."""
STYLE = Style(strict=False, required={gpu.Scope: {"location"}})


@dataclass(frozen=True, slots=True)
class ResolveInput:
    """Input of `gpu.resolve`."""

    scope: gpu.Scope
    deficit_gpus: Count
    seed: Annotated[bytes, Hex(SEED_BYTES)]
    runs: tuple[gpu.ConflictRun, ...]
    leases: tuple[gpu.ConflictLease, ...]

    @property
    def conflict(self) -> gpu.Conflict:
        """What is decided, without the seed."""
        return gpu.Conflict(self.scope, self.deficit_gpus, self.runs, self.leases)

    def faults(self) -> Iterator[OutOfRange]:
        """Those of the conflict."""
        return self.conflict.faults()


ResolveDocument = STYLE.document(ResolveInput, "ResolveDocument")


class ActionDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A lease that ends; `draw` is the index of the draw that ended it."""

    lease: str
    run: str
    kind: CutKind
    gpus: int
    in_scope: bool
    tier: gpu.CutTier
    draw: int | None


class DrawDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One draw: who could be drawn, and who was."""

    index: int
    tier: gpu.CutTier
    owners: list[str]
    owner: str
    tokens: list[str]
    token: str


class ResolveResult(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Output of `gpu.resolve`: enough is freed, or nothing is done."""

    resolved: bool
    deficit_gpus: int
    freed_gpus: int
    actions: list[ActionDocument]
    withdrawn: list[ActionDocument]
    draws: list[DrawDocument]
    conflict_digest: str
    shortfall_gpus: int


def to_conflict(document: Any) -> gpu.Conflict:
    """Core's conflict; repeated ids and leases of unknown runs are refused."""
    return STYLE.to_core(ResolveInput, document).conflict


def decide_resolve(
    document: Any, owner_weighting: OwnerWeighting = OwnerWeighting.OWNERS
) -> dict[str, Any]:
    """The whole contract: documents in, result document out. In the contract owners are equal."""
    given = STYLE.to_core(ResolveInput, document)
    resolution = gpu.resolve(given.conflict, given.seed, owner_weighting=owner_weighting)
    return from_resolution(resolution, gpu.conflict_digest(given.conflict))


def from_resolution(resolution: gpu.Resolution, conflict_digest: str) -> dict[str, Any]:
    """The result document of a resolution."""
    return {
        "resolved": resolution.resolved,
        "deficit_gpus": resolution.deficit_gpus,
        "freed_gpus": resolution.freed_gpus,
        "actions": [from_action(action) for action in resolution.actions],
        "withdrawn": [from_action(action) for action in resolution.withdrawn],
        "draws": [
            {
                "index": draw.index,
                "tier": each.tier.value,
                "owners": owners,
                "owner": draw.owner,
                "tokens": tokens,
                "token": draw.token,
            }
            for each in resolution.rounds
            for draw, owners, tokens in unfold(each.tokens, each.draws)
        ],
        "conflict_digest": conflict_digest,
        "shortfall_gpus": resolution.shortfall_gpus,
    }


def from_action(action: gpu.Action) -> dict[str, Any]:
    """The document of a cut."""
    return {
        "lease": action.lease,
        "run": action.run,
        "kind": action.kind.value,
        "gpus": action.gpus,
        "in_scope": action.in_scope,
        "tier": action.tier.value,
        "draw": action.draw,
    }
