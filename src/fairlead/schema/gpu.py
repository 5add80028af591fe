"""The contracts of the GPU governor: documents in, result documents out.

`gpu.cover` and `gpu.fund` are in `schema/funding.py`. `gpu.place` finds devices, `gpu.start` says
how wide a run starts or grows, `gpu.resize` which leases it ends and begins, `gpu.limit` whether
it has to end, `gpu.idle` since when it does nothing, `gpu.restart` whether it starts again,
`gpu.refund` which leases are funded, `gpu.clock` what time it is;
`gpu.queue`, `gpu.activate`, `gpu.grow` and `gpu.rank` say which run is asked about first,
`gpu.backfill` which may start before another,
`gpu.deficit` finds what is missing and who may be preempted, `gpu.resolve` which leases end.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from fairlead.core import gpu
from fairlead.core.lottery import SEED_BYTES, OwnerWeighting, unfold
from fairlead.core.reasons import StartReason
from fairlead.core.units import Count, Hex, Name, OutOfRange, repeats
from fairlead.schema.derive import Style
from fairlead.schema.funding import FUND, CoverResult, FundInput, RecallInput, from_plan

STYLE = Style(
    strict=False,
    required={
        gpu.Node: {"location", "free"},
        gpu.Placement: {"shortfall_gpus"},
        gpu.Scope: {"location"},
        gpu.Waiting: {"runs", "holds"},
    },
    computed={gpu.Placement: {"placed"}},
)
"""Of the other contracts."""


# -- gpu.place --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlaceInput:
    """Input of `gpu.place`."""

    nodes: tuple[gpu.Node, ...]
    gang: gpu.Gang

    def faults(self) -> Iterator[OutOfRange]:
        yield from repeats("nodes", "name", [node.name for node in self.nodes])


PlaceDocument = STYLE.document(PlaceInput, "PlaceDocument")


# -- gpu.start, gpu.resize and gpu.refund -----------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartInput(FundInput):
    """Input of `gpu.start`: that of `gpu.fund`, the nodes, and what a `StartRequest` has more."""

    nodes: tuple[gpu.Node, ...]
    shape: gpu.GangShape
    growth: gpu.RunGrowth | None
    freed: tuple[Name, ...] | None

    @property
    def asked(self) -> gpu.StartRequest:
        return gpu.StartRequest(self.request, self.shape, self.growth, self.freed)

    def faults(self) -> Iterator[OutOfRange]:
        yield from FundInput.faults(self)
        yield from repeats("nodes", "name", [node.name for node in self.nodes])
        yield from self.asked.faults()


class StartResult(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Output of `gpu.start`; `gpus` is the width that was decided on, spares included."""

    reason: StartReason
    gpus: int
    funding: CoverResult
    gang: STYLE.document(gpu.Gang) | None  # type: ignore[valid-type]  # derived
    placement: STYLE.document(gpu.Placement, "PlaceResult") | None  # type: ignore[valid-type]
    groups: list[int]


def decide_start(document: Any) -> dict[str, Any]:
    """Decide how wide a run starts or grows, who pays, and on which devices."""
    given = FUND.to_core(StartInput, document)
    devices = gpu.FreeDevices(given.nodes)
    return from_start(gpu.start(given.asked, given.claimed_book, devices, given.now_ms))


def from_start(found: gpu.Start) -> dict[str, Any]:
    return {
        "reason": found.reason.value,
        "gpus": found.request.gpus,
        "funding": from_plan(found.plan, found.remedy),
        "gang": None if found.gang is None else STYLE.from_core(found.gang),
        "placement": None if found.placement is None else STYLE.from_core(found.placement),
        "groups": list(found.groups),
    }


def start_document(
    fund: dict[str, Any], nodes: Iterable[gpu.Node], asked: gpu.StartRequest
) -> dict[str, Any]:
    """The input of one `gpu.start`, as plain data; `fund` is that of `gpu.fund`.

    Nodes that are full, cordoned or of another flavor change nothing.
    """
    freed = {slot.rpartition("#")[0] for slot in asked.freed or ()}
    usable = [
        FUND.from_core(node)
        for node in nodes
        if node.flavor == asked.request.flavor
        and not node.cordoned
        and (node.free or node.name in freed)
    ]
    return {
        **fund,
        "nodes": usable,
        "shape": FUND.from_core(asked.shape),
        "growth": None if asked.growth is None else FUND.from_core(asked.growth),
        "freed": None if asked.freed is None else list(asked.freed),
    }


def decide_recall(document: Any) -> dict[str, Any]:
    """Decide which leases of others lose their funding to the owner of their envelope."""
    given = FUND.to_core(RecallInput, document)
    asked = (given.book, given.request, given.leases, given.now_ms, given.room)
    return STYLE.from_core(gpu.recall(*asked))


def recall_document(
    fund: dict[str, Any], leases: Iterable[gpu.LentLease], room: gpu.RecallRoom
) -> dict[str, Any]:
    """The input of one `gpu.recall`; `fund` is that of `gpu.fund`."""
    rows = sorted(leases, key=lambda lease: lease.id)
    written = [FUND.from_core(lease) for lease in rows]
    return {**fund, "leases": written, "room": FUND.from_core(room)}


def from_restart(asked: gpu.RunFailure, found: gpu.Restart) -> dict[str, Any]:
    """Without a back-off the output says nothing of one, as it always did."""
    made = STYLE.from_core(found)
    if asked.backoff is None:
        del made["delay_ms"], made["delays"]
    return made


def refund_document(asked: gpu.RefundRequest, budget: msgspec.Struct) -> dict[str, Any]:
    """The input of one `gpu.refund`; the budget as a document, its hours as they were written."""
    return {**FUND.from_core(asked), "budget": msgspec.to_builtins(budget)}


# -- gpu.queue and gpu.deficit ----------------------------------------------------------------


def from_queue(waiting: gpu.Waiting, found: gpu.Queue) -> dict[str, Any]:
    """Version 1 has no tiers."""
    made = STYLE.from_core(found)
    if waiting.policy is None:
        for row in made["order"]:
            del row["tier"]
    return made


def from_backfill(asked: gpu.BackfillRequest, found: gpu.Backfill) -> dict[str, Any]:
    """Where no estimate was overrun, the output has no `overrun`, as it always had; `ends_by` is of
    version 2."""
    made = STYLE.from_core(found)
    if not asked.overruns:
        del made["overrun"]
    if asked.policy.halving_ms is None:
        del made["ends_by"]
    return made


@dataclass(frozen=True, slots=True)
class DeficitInput:
    """Input of `gpu.deficit`."""

    demand: gpu.GangDemand | gpu.CapDemand | gpu.PlaceDemand | gpu.NodeDemand
    nodes: tuple[gpu.Node, ...]
    runs: tuple[gpu.HoldingRun, ...]
    leases: tuple[gpu.HeldLease, ...]
    protection: gpu.RunProtection | None = None

    @property
    def holdings(self) -> gpu.Holdings:
        return gpu.Holdings(self.nodes, self.runs, self.leases, self.protection)

    def faults(self) -> Any:
        return self.holdings.faults()


def deficit_document(demand: gpu.Demand, holdings: gpu.Holdings) -> dict[str, Any]:
    """The input document of one decision, as plain data; lists by id."""
    return STYLE.from_core(
        DeficitInput(
            demand,
            tuple(sorted(holdings.nodes, key=lambda node: node.name)),
            tuple(sorted(holdings.runs, key=lambda run: run.id)),
            tuple(sorted(holdings.leases, key=lambda lease: lease.id)),
            holdings.protection,
        )
    )


# -- gpu.resolve ------------------------------------------------------------------------------

VERSIONS: Mapping[OwnerWeighting, int] = {
    OwnerWeighting.OWNERS: 1,
    OwnerWeighting.TOKENS: 2,
    OwnerWeighting.STAKE: 3,
}
"""The version that a recorded decision names: 1 where owners are equal, as in the contract, and 2
where tokens are, so that a reader who knows only the first reports an unknown version."""


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
        return gpu.Conflict(self.scope, self.deficit_gpus, self.runs, self.leases)

    def faults(self) -> Iterator[OutOfRange]:
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
    return STYLE.to_core(ResolveInput, document).conflict


def decide_resolve(
    document: Any, owner_weighting: OwnerWeighting = OwnerWeighting.OWNERS
) -> dict[str, Any]:
    """Decide which leases end when GPUs are missing: spares, steps, then a lottery.

    In the contract owners are equal.
    """
    given = STYLE.to_core(ResolveInput, document)
    resolution = gpu.resolve(given.conflict, given.seed, owner_weighting=owner_weighting)
    return from_resolution(resolution, gpu.conflict_digest(given.conflict))


def from_resolution(resolution: gpu.Resolution, conflict_digest: str) -> dict[str, Any]:
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
