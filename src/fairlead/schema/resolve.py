"""Border types of `gpu.resolve`: a conflict and a seed in, who gives way out."""

import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from fairlead.core import gpu
from fairlead.core.lottery import OwnerWeighting, unfold
from fairlead.core.reasons import CutKind
from fairlead.core.units import INTEGER_MAX
from fairlead.schema.border import BadInput

Id = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=0, le=INTEGER_MAX)]
Positive = Annotated[int, Meta(ge=1, le=INTEGER_MAX)]
_SEED = "[0-9a-fA-F]{64}"
VERSIONS: Mapping[OwnerWeighting, int] = {OwnerWeighting.OWNERS: 1, OwnerWeighting.TOKENS: 2}
"""The version that a recorded decision names: that of the contract, where owners are equal; and the
same where tokens are, so that whoever knows only the first says so and does not cry foul."""


class CapDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True, gc=False):
    """An aggregate cap that binds: only what its envelopes pay is a candidate."""

    budget: str
    name: str
    envelopes: list[str]


class ScopeDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True, gc=False):
    """Where GPUs are missing: every key of `location` must be equal; no wildcards."""

    flavor: str
    location: dict[str, str]
    cap: CapDocument | None = None


class MalleableDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True, gc=False):
    """How far and by which steps a run can shrink."""

    min_gpus: Positive
    step_gpus: Positive


class ConflictRunDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True, gc=False):
    """A run; `malleable` null means fixed."""

    id: Id
    owner: Id
    malleable: MalleableDocument | None = None
    nominated: bool = False


class ConflictLeaseDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True, gc=False):
    """An open lease of a run."""

    id: Id
    run: Id
    role: gpu.Role
    group: Count
    gpus: Positive
    flavor: str
    location: dict[str, str]
    funded: bool
    budget: str
    envelope: str


class ResolveDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Input of `gpu.resolve`."""

    scope: ScopeDocument
    deficit_gpus: Count
    seed: Annotated[str, Meta(extra_json_schema={"pattern": f"^{_SEED}$"})]
    runs: list[ConflictRunDocument]
    leases: list[ConflictLeaseDocument]


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


def to_conflict(document: ResolveDocument) -> gpu.Conflict:
    """Core's conflict; repeated ids and leases of unknown runs are refused."""
    runs: dict[str, gpu.ConflictRun] = {}
    for i, run in enumerate(document.runs):
        if run.id in runs:
            raise BadInput(f"runs[{i}].id", f"repeats another run's id, {run.id!r}")
        steps = run.malleable
        malleable = None if steps is None else gpu.Malleable(steps.min_gpus, steps.step_gpus)
        runs[run.id] = gpu.ConflictRun(run.id, run.owner, malleable, run.nominated)
    leases: dict[str, gpu.ConflictLease] = {}
    # A parser makes every string anew; most of a conflict's are the same few.
    names: dict[str, str] = {}
    places: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
    for i, lease in enumerate(document.leases):
        if lease.id in leases:
            raise BadInput(f"leases[{i}].id", f"repeats another lease's id, {lease.id!r}")
        holder = runs.get(lease.run)
        if holder is None:
            raise BadInput(f"leases[{i}].run", f"names an unknown run, {lease.run!r}")
        leases[lease.id] = gpu.ConflictLease(
            lease.id,
            holder.id,
            lease.role,
            lease.group,
            lease.gpus,
            names.setdefault(lease.flavor, lease.flavor),
            places.setdefault(tuple(lease.location.items()), lease.location),
            lease.funded,
            names.setdefault(lease.budget, lease.budget),
            names.setdefault(lease.envelope, lease.envelope),
        )
    if sum(lease.gpus for lease in document.leases) > INTEGER_MAX:
        raise BadInput("leases", f"add up to more than {INTEGER_MAX} GPUs")
    scope, cap = document.scope, document.scope.cap
    binding = None if cap is None else gpu.ScopeCap(cap.budget, cap.name, tuple(cap.envelopes))
    return gpu.Conflict(
        scope=gpu.Scope(scope.flavor, scope.location, binding),
        deficit_gpus=document.deficit_gpus,
        runs=tuple(runs.values()),
        leases=tuple(leases.values()),
    )


def to_seed(text: str, path: str = "seed") -> bytes:
    """The 32 bytes of a seed."""
    if not re.fullmatch(_SEED, text):
        raise BadInput(path, "must be 64 hex digits")
    return bytes.fromhex(text)


def decide_resolve(
    document: ResolveDocument, owner_weighting: OwnerWeighting = OwnerWeighting.OWNERS
) -> dict[str, Any]:
    """The whole contract: documents in, result document out. In the contract owners are equal."""
    seed = to_seed(document.seed)
    conflict = to_conflict(document)
    resolution = gpu.resolve(conflict, seed, owner_weighting=owner_weighting)
    return from_resolution(resolution, gpu.conflict_digest(conflict))


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
