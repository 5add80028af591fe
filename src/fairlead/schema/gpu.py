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


def decide_place(document: Any) -> dict[str, Any]:
    """Find devices for a gang of GPUs: best fit, groups inside one domain."""
    given = STYLE.to_core(PlaceInput, document)
    return STYLE.from_core(gpu.place(given.nodes, given.gang))


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


def decide_resize(document: Any) -> dict[str, Any]:
    """Decide which leases of a run end and begin: a shrink, or a node that is lost."""
    return STYLE.from_core(gpu.resize(STYLE.to_core(gpu.ResizeRequest, document)))


def decide_restart(document: Any) -> dict[str, Any]:
    """Decide whether a run that has ended starts again."""
    asked = STYLE.to_core(gpu.RunFailure, document)
    return from_restart(asked, gpu.restart(asked))


def from_restart(asked: gpu.RunFailure, found: gpu.Restart) -> dict[str, Any]:
    """Without a back-off the output says nothing of one, as it always did."""
    made = STYLE.from_core(found)
    if asked.backoff is None:
        del made["delay_ms"], made["delays"]
    return made


def decide_limit(document: Any) -> dict[str, Any]:
    """Decide whether a run that holds devices has to end, or is to be warned."""
    return STYLE.from_core(gpu.limit(STYLE.to_core(gpu.RunLimits, document)))


def decide_idle(document: Any) -> dict[str, Any]:
    """Decide since when the devices of runs do nothing."""
    return STYLE.from_core(gpu.idle(STYLE.to_core(gpu.IdleRequest, document)))


def decide_after(document: Any) -> dict[str, Any]:
    """Decide whether a run that starts after others may start."""
    return STYLE.from_core(gpu.after(STYLE.to_core(gpu.Dependencies, document)))


def decide_quarantine(document: Any) -> dict[str, Any]:
    """Decide which devices hold memory that no run has, and are given to none."""
    return STYLE.from_core(gpu.quarantine(STYLE.to_core(gpu.QuarantineRequest, document)))


def decide_clock(document: Any) -> dict[str, Any]:
    """Decide the ledger's time, and whether runs may start: the clock may have jumped."""
    return STYLE.from_core(gpu.judge_clock(STYLE.to_core(gpu.ClockRequest, document)))


def decide_refund(document: Any) -> dict[str, Any]:
    """Decide which leases of a budget lose their funding, or have it again."""
    return STYLE.from_core(gpu.refund(FUND.to_core(gpu.RefundRequest, document)))


def refund_document(asked: gpu.RefundRequest, budget: msgspec.Struct) -> dict[str, Any]:
    """The input of one `gpu.refund`; the budget as a document, its hours as they were written."""
    return {**FUND.from_core(asked), "budget": msgspec.to_builtins(budget)}


# -- gpu.queue and gpu.deficit ----------------------------------------------------------------


def decide_queue(document: Any) -> dict[str, Any]:
    """Order the runs that wait for admission, and say which are held."""
    waiting = STYLE.to_core(gpu.Waiting, document)
    found = STYLE.from_core(gpu.queue(waiting))
    if waiting.policy is None:  # version 1 has no tiers
        for row in found["order"]:
            del row["tier"]
    return found


def decide_backfill(document: Any) -> dict[str, Any]:
    """Decide whether a run may start before others that wait for devices."""
    asked = STYLE.to_core(gpu.BackfillRequest, document)
    return from_backfill(asked, gpu.backfill(asked))


def from_backfill(asked: gpu.BackfillRequest, found: gpu.Backfill) -> dict[str, Any]:
    """Where no estimate was overrun, the output has no `overrun`, as it always had; `ends_by` is of
    version 2."""
    made = STYLE.from_core(found)
    if not asked.overruns:
        del made["overrun"]
    if asked.policy.halving_ms is None:
        del made["ends_by"]
    return made


def decide_activate(document: Any) -> dict[str, Any]:
    """Order the reservations that are due, and say which may preempt."""
    return STYLE.from_core(gpu.activate(STYLE.to_core(gpu.ActivateRequest, document)))


def decide_reserve(document: Any) -> dict[str, Any]:
    """Decide whether a reservation may be made, or moved."""
    return STYLE.from_core(gpu.reserve(STYLE.to_core(gpu.ReserveRequest, document)))


def decide_overdraw(document: Any) -> dict[str, Any]:
    """Decide whether a run without funding starts on devices that would be idle."""
    return STYLE.from_core(gpu.overdraw(STYLE.to_core(gpu.OverdrawRequest, document)))


def decide_grow(document: Any) -> dict[str, Any]:
    """Order the runs that lack groups which an outcome took."""
    return STYLE.from_core(gpu.grow(STYLE.to_core(gpu.ShrunkRuns, document)))


def decide_rank(document: Any) -> dict[str, Any]:
    """Order the waiting runs that recall funding, reclaim devices or start unfunded."""
    return STYLE.from_core(gpu.rank(STYLE.to_core(gpu.RankRequest, document)))


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


def decide_deficit(document: Any) -> dict[str, Any]:
    """Find the scope that is short of GPUs, and the candidates for preemption."""
    given = STYLE.to_core(DeficitInput, document)
    return STYLE.from_core(gpu.find_deficit(given.demand, given.holdings))


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
