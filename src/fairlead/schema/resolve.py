"""Border types of `gpu.resolve`: a conflict and a seed in, which leases end out."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fairlead.core import gpu
from fairlead.core.lottery import SEED_BYTES, OwnerWeighting, unfold
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


@dataclass(frozen=True, slots=True)
class DrawRow:
    """One draw: the owners and tokens that could be selected, and those that were."""

    index: int
    tier: gpu.CutTier
    owners: tuple[str, ...]
    owner: str
    tokens: tuple[str, ...]
    token: str


@dataclass(frozen=True, slots=True)
class ResolveResult:
    """Output of `gpu.resolve`: enough is freed, or nothing is done."""

    resolved: bool
    deficit_gpus: int
    freed_gpus: int
    actions: tuple[gpu.Action, ...]
    withdrawn: tuple[gpu.Action, ...]
    draws: tuple[DrawRow, ...]
    conflict_digest: str
    shortfall_gpus: int


ResolveDocument = STYLE.document(ResolveInput, "ResolveDocument")


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
    draws = tuple(
        DrawRow(draw.index, lottery.tier, tuple(owners), draw.owner, tuple(tokens), draw.token)
        for lottery in resolution.rounds
        for draw, owners, tokens in unfold(lottery.tokens, lottery.draws)
    )
    return STYLE.from_core(
        ResolveResult(
            resolution.resolved,
            resolution.deficit_gpus,
            resolution.freed_gpus,
            resolution.actions,
            resolution.withdrawn,
            draws,
            conflict_digest,
            resolution.shortfall_gpus,
        )
    )
