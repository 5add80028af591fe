"""Idle devices for runs that no budget pays for, where their owners asked for it.

After admission and growth, on what is free then. `core.gpu.overdraw` decides, and
`core.gpu.backfill` whether it would delay a run that was promised a start; its leases open and are
unfunded in one batch, so they never count as paid.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from fairlead.core import gpu
from fairlead.core.gpu.place import Gang
from fairlead.core.invariant import known
from fairlead.core.reasons import RankCause
from fairlead.core.units import counted
from fairlead.engine.gpu import entries
from fairlead.engine.gpu.backfill import BackfillAnswer, QueueHeads
from fairlead.engine.gpu.committer import Committer, Context
from fairlead.engine.gpu.entries import NewEntry
from fairlead.engine.gpu.orders import TurnOrder, rank_order
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.starting import HELD, ask
from fairlead.engine.gpu.state import Phase
from fairlead.schema import objects
from fairlead.schema.gpu import STYLE


class Overdrafts:
    """Once a turn, for every run that may start without funding and was refused it."""

    def __init__(self, committer: Committer, heads: QueueHeads) -> None:
        self._committer, self._projection = committer, committer.projection
        self._heads, self._hold_ms = heads, committer.config.hold_ms

    def proceed(self, now_ms: int) -> None:
        projection = self._projection
        runs = [run for run in projection.live if self._asks(run)]
        if not runs:
            return
        order = rank_order(projection, RankCause.OVERDRAW, runs, now_ms, self._hold_ms)
        for run in order.names:
            self._committer.commit(partial(self._start, run, now_ms, order))

    def _asks(self, run: str) -> bool:
        """Whether a run waits, was refused funding, and is allowed to start without."""
        projection, state = self._projection, self._projection.live.get(run)
        if state is None or state.refusal is None:
            return False
        spec = projection.run_spec(run)
        if spec.funding.allow_unfunded is not True or not projection.is_pending(run):
            return False
        return bool(projection.devices.gpus(spec.flavor))

    def _start(self, run: str, now_ms: int, order: TurnOrder) -> Sequence[NewEntry]:
        """An attempt that fails is not recorded: it is asked at every turn."""
        projection = self._projection
        if not self._asks(run) or projection.is_held(run, now_ms, hold_ms=self._hold_ms):
            return []
        asked = _asked(projection, run, projection.run_spec(run), now_ms)
        usable = {node.name for node in self._heads.devices(asked.gangs[0].flavor, now_ms).nodes}
        asked = replace(asked, nodes=tuple(node for node in asked.nodes if node.name in usable))
        found = gpu.overdraw(asked)
        if not found.starts:
            return []
        request = objects.to_request(projection.run_spec(run))
        placement = known(found.placement, "what starts was placed")
        beside = self._heads.ask(run, request, placement, now_ms)
        if beside is not None and not beside.found.starts:
            return []
        first = order.entries(run)
        return [*first, *_entries(Context(projection, now_ms), asked, found, beside, len(first))]


def overdraft_of(
    projection: Projection, run: str, spec: objects.RunSpec, now_ms: int
) -> gpu.OwnEnvelope | None:
    """The envelope whose overdraft a run would be if it waited now for funding."""
    if spec.funding.allow_unfunded is not True:
        return None
    return gpu.overdraw(_asked(projection, run, spec, now_ms)).payer


def _asked(
    projection: Projection, run: str, spec: objects.RunSpec, now_ms: int
) -> gpu.OverdrawRequest:
    request, shape = objects.to_request(spec), objects.to_shape(spec)
    widths = sorted({request.gpus, request.enough_gpus}, reverse=True)
    gangs = tuple(
        Gang(
            flavor=spec.flavor,
            gpus=shape.without_spares(gpus),
            group_gpus=shape.group_gpus,
            spares_per_group=shape.spares_per_group,
            location=request.location,
        )
        for gpus in widths
    )
    envelopes = projection.own_envelopes(spec.owner, spec.flavor, now_ms)
    nodes = tuple(
        node for node in projection.devices.nodes if node.flavor == spec.flavor and node.free
    )
    waiting = tuple(_waiting(projection, spec.flavor, now_ms))
    return gpu.OverdrawRequest(run, gangs, envelopes, nodes, waiting)


def _waiting(projection: Projection, flavor: str, now_ms: int) -> Iterator[gpu.WaitingGang]:
    """Funded runs that wait for devices of a flavor, also those that would delay another one."""
    for run, state in sorted(projection.live.items()):
        if not (state.shortfall_gpus or state.reason == HELD) or not projection.is_pending(run):
            continue
        spec = projection.run_spec(run)
        gang = ask(projection, spec, now_ms).found.gang if spec.flavor == flavor else None
        if gang is not None:
            yield gpu.WaitingGang(run, gang)


def _entries(
    at: Context,
    asked: gpu.OverdrawRequest,
    found: gpu.Overdraw,
    beside: BackfillAnswer | None,
    after: int,
) -> list[NewEntry]:
    """`after`: so many entries of the same batch."""
    run, projection = asked.run, at.projection
    job, decision = projection.next_job(run), projection.seq + after + 1
    payer = known(found.payer, "what starts has an envelope")
    body = entries.OverdrawDecision(run, STYLE.from_core(found))
    made = [
        at.entry(body, job, "overdraw", input=STYLE.from_core(asked), reasons=(found.reason.value,))
    ]
    if beside is not None:
        made.append(beside.entry(at, job))
    width, where = 0, f"{payer.budget}/{payer.envelope}"
    for number, lease in enumerate(_leases(at, run, found)):
        name = f"{job}.{number}"
        opened = entries.LeaseOpen(*lease, payer.budget, payer.envelope, *_terms(at, run), name)
        width += opened.gpus if opened.is_active else 0
        made.append(at.entry(opened, job, f"open {name}"))
        unfunded = entries.LeaseUnfunded(
            lease=name,
            run=run,
            at_ms=at.now_ms,
            kind=entries.OVERDRAFT,
            budget=payer.budget,
            name=payer.envelope,
            hours=False,
            message=f"started without funding, as its owner allowed; overdraft of {where}",
            decision=decision,
        )
        made.append(at.entry(unfunded))
    gpus = counted(width, "GPU")
    message = f"{gpus} without funding: overdraft of {where}, the first to be preempted"
    phase = entries.RunPhase(run, Phase.RUNNING.value, "Unfunded", message, job=job)
    return [*made, at.entry(phase, job, "phase")]


Lease = tuple[str, str, str, int, tuple[str, ...]]


def _leases(at: Context, run: str, found: gpu.Overdraw) -> Iterator[Lease]:
    """Run, owner, role, group and devices of one lease per group and role."""
    owner = at.projection.run_spec(run).owner
    placement = known(found.placement, "what starts was placed")
    for group in placement.groups:
        for role, slots in (("Active", group.active), ("Spare", group.spares)):
            if slots:
                yield run, owner, role, group.group, slots


def _terms(at: Context, run: str) -> tuple[bool, int, int | None, str]:
    duration_ms = objects.to_request(at.projection.run_spec(run)).duration_ms
    until_ms = None if duration_ms is None else at.now_ms + duration_ms
    return False, at.now_ms, until_ms, "Start"
