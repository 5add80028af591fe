"""How one run starts or grows: fund, then place, then the entries that say so.

`ask` is also what a dry run and `plan` show: the same decision, not recorded.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from fairlead.core import gpu
from fairlead.core.gpu.place import Gang
from fairlead.core.invariant import known, require
from fairlead.core.units import counted
from fairlead.engine.gpu import entries
from fairlead.engine.gpu.backfill import BackfillAnswer, QueueHeads
from fairlead.engine.gpu.claims import OwnerClaims
from fairlead.engine.gpu.committer import Context
from fairlead.engine.gpu.entries import Document, Funding, FundRefusal, NewEntry
from fairlead.engine.gpu.leases import open_lease
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.state import Phase, RunState
from fairlead.schema import objects
from fairlead.schema.convert import convert
from fairlead.schema.funding import from_plan, fund_document
from fairlead.schema.gpu import STYLE, PlaceInput, from_start, start_document
from fairlead.schema.objects import RunSpec
from fairlead.schema.words import no_room, readable

HELD = "Queued"
"""Why a run waits that would delay another one."""
OWNER_FIRST = "OwnerFirst"
"""Why a run waits that others would pay for, whose own runs come first."""


def opens_leases(made: list[NewEntry]) -> bool:
    """Whether these entries start a run, or widen one."""
    return any(isinstance(entry.body, entries.LeaseOpen) for entry in made)


class StartAnswer(NamedTuple):
    """What was asked of `core.gpu.start`, on which devices, beside whose claims, and what it
    decided."""

    asked: gpu.StartRequest
    found: gpu.Start
    devices: gpu.FreeDevices
    claimants: tuple[gpu.Claimant, ...] = ()

    @property
    def version(self) -> int | None:
        """Of the recorded decision about funding."""
        return 2 if self.claimants else None

    @property
    def refusal(self) -> FundRefusal | None:
        return funding(self.found).refusal


def ask(
    projection: Projection,
    spec: RunSpec,
    now_ms: int,
    devices: gpu.FreeDevices | None = None,
    claims: OwnerClaims | None = None,
    **more: Any,
) -> StartAnswer:
    """Whether a run can start now, and how wide; `devices`: not on all that are free; `more`: other
    fields of a `StartRequest`."""
    fields = {"request": objects.to_request(spec), "shape": objects.to_shape(spec), **more}
    asked, devices = gpu.StartRequest(**fields), devices or projection.devices
    book = projection.book(now_ms)
    found = gpu.start(asked, book, devices, now_ms)
    claimants = () if claims is None else claims.against(asked.request, found.plan, devices, now_ms)
    if claimants:
        found = gpu.start(asked, gpu.claimed(book, claimants, now_ms), devices, now_ms)
    return StartAnswer(asked, found, devices, claimants)


class CoverAnswer(NamedTuple):
    """Why a request is not funded, as `ask` would say; None: it is. Beside whose claims."""

    refusal: gpu.Refusal | None
    claimants: tuple[gpu.Claimant, ...] = ()

    def is_known(self, state: RunState) -> bool:
        """Whether the recorded refusal of a run says so: that owners come first is news, and that
        they are there by now is not."""
        if self.refusal is None or state.refusal is None:
            return False
        said = not self.claimants or state.reason == OWNER_FIRST
        return said and same_refusal(self.refusal, state.refusal)


def ask_cover(
    projection: Projection,
    request: gpu.Request,
    now_ms: int,
    devices: gpu.FreeDevices | None = None,
    claims: OwnerClaims | None = None,
) -> CoverAnswer:
    book = projection.book(now_ms)
    plan = gpu.cover(book, request, now_ms)
    if claims is None:
        return CoverAnswer(plan.refusal)
    claimants = claims.against(request, plan, devices or projection.devices, now_ms)
    if claimants:
        plan = gpu.cover(gpu.claimed(book, claimants, now_ms), request, now_ms)
    return CoverAnswer(plan.refusal, claimants)


def funding(found: gpu.Start) -> Funding:
    return convert(from_plan(found.plan, found.remedy), Funding)


def admission(
    projection: Projection,
    run: str,
    now_ms: int,
    devices: gpu.FreeDevices | None = None,
    claims: OwnerClaims | None = None,
) -> list[NewEntry]:
    """The entries of one attempt to start a run; none when nothing new is to be said. `devices`:
    not on all that are free; `claims`: what owners keep of their envelopes."""
    if projection.runs[run].refusal is not None:
        request = objects.to_request(projection.run_spec(run))
        answer = ask_cover(projection, request, now_ms, devices, claims)
        if answer.is_known(projection.runs[run]):
            return []
    return attempt(projection, run, now_ms, devices=devices, claims=claims)


def attempt(
    projection: Projection,
    run: str,
    now_ms: int,
    heads: QueueHeads | None = None,
    alike: str | None = None,
    *,
    devices: gpu.FreeDevices | None = None,
    claims: OwnerClaims | None = None,
) -> list[NewEntry]:
    """The same where the answer is known to be news. `heads`: runs that are not to be delayed;
    `alike`: the same for all runs that ask for the same."""
    spec, at = projection.run_spec(run), Context(projection, now_ms)
    if heads is not None:
        devices, claims = heads.devices(spec.flavor, now_ms), heads.claims
    answer = ask(projection, spec, now_ms, devices, claims)
    found, job = answer.found, projection.next_job(run)
    if not found.plan.funded:
        if heads is not None:
            behind = bool(answer.claimants)
            heads.add_refused(run, found.request, now_ms, alike, behind=behind)
        return _refused(at, run, answer)
    if not found.starts:
        if heads is not None:
            heads.add(run, found, now_ms)
        return _waiting(at, run, answer)
    beside = _beside(heads, run, found, now_ms)
    if beside is not None and not beside.found.starts:
        return _held(at, run, answer, beside)
    made = _decisions(at, run, answer, "admission", job)
    if beside is not None:
        made.append(beside.entry(at, job))
    leases = list(_leases(at, run, found, job))
    for lease in leases:
        made += open_lease(at, lease, job)
    width = sum(lease.gpus for lease in leases if lease.is_active)
    payers = {(line.budget, line.envelope) for line in found.plan.lines}
    message = f"{counted(width, 'GPU')}, paid by {counted(len(payers), 'envelope')}"
    body = entries.RunPhase(run, Phase.RUNNING.value, "Admitted", message, job=job)
    made.append(at.entry(body, job, "phase"))
    return made


def _beside(
    heads: QueueHeads | None, run: str, found: gpu.Start, now_ms: int
) -> BackfillAnswer | None:
    """Whether a start keeps to what others were promised; None: there are no others."""
    if heads is None:
        return None
    placement = known(found.placement, "what starts was placed")
    return heads.ask(run, found.request, placement, now_ms, found.plan.lines)


def same_refusal(refusal: gpu.Refusal, recorded: FundRefusal) -> bool:
    caps = [
        (cap.kind, cap.budget, cap.name, cap.limit / gpu.HOUR_MS)
        if cap.hours and cap.limit is not None
        else (cap.kind, cap.budget, cap.name, cap.limit)
        for cap in refusal.binding
    ]
    before = [(cap.kind, cap.budget, cap.name, cap.limit) for cap in recorded.binding]
    same = (refusal.code, refusal.shortfall_gpus) == (recorded.code, recorded.shortfall_gpus)
    return same and caps == before


def _refused(at: Context, run: str, answer: StartAnswer) -> list[NewEntry]:
    """A refusal is recorded when it is another one than before: waiting must not fill the log."""
    why = known(answer.refusal, "what is not funded was refused")
    reason, message = why.code, readable(why.message)
    if answer.claimants:
        owners = sorted({claimant.request.owner for claimant in answer.claimants})
        reason = OWNER_FIRST
        message += f"; runs of {', '.join(owners)} come first on their own envelopes"
    body = entries.RunPhase(run, Phase.PENDING.value, reason, message)
    return [_fund_decision(at, run, answer), at.entry(body)]


def _waiting(at: Context, run: str, answer: StartAnswer) -> list[NewEntry]:
    """Funded, but there are no devices: recorded when what is missing is not what was. Groups are
    placed whole, so what is missing is the GPUs of all groups without a place, and not the few
    devices that each of them lacks."""
    missing = known(answer.found.placement, "what is funded was placed").shortfall_gpus
    state = at.projection.runs[run]
    if (state.reason, state.shortfall_gpus) == ("NoDevices", missing) or state.reason == HELD:
        return []
    message = "funded, but " + no_room(missing, answer.found.plan.gpus)
    body = entries.RunPhase(run, Phase.PENDING.value, "NoDevices", message, shortfall_gpus=missing)
    return [*_decisions(at, run, answer, "admission"), at.entry(body)]


def _held(at: Context, run: str, answer: StartAnswer, beside: BackfillAnswer) -> list[NewEntry]:
    """There is room, but a run that is before it in the queue would start later. Recorded once:
    room comes and goes, and a thousand runs may wait for it."""
    state = at.projection.runs[run]
    if state.reason == HELD:
        return []
    message = "funded, but it would delay a run that is before it in the queue"
    if beside.found.overrun is not None:
        message += (
            "; its duration does not count while a run that passed that one, or one of its own "
            "owner, is past its own: give a maxRuntime"
        )
    body = entries.RunPhase(run, Phase.PENDING.value, HELD, message)
    first = state.reason != "NoDevices"
    made = _decisions(at, run, answer, "admission") if first else []
    return [*made, beside.entry(at, None), at.entry(body)]


def _leases(
    at: Context, run: str, found: gpu.Start, job: str, first: int = 0
) -> Iterator[entries.LeaseOpen]:
    """One lease per payer, group and role: the plan's lines laid along the placed devices.

    Groups that come back (`found.groups`) have their own numbers; `first` is the first lease's.
    """
    duration_ms, owner = found.request.duration_ms, found.request.owner
    until_ms = None if duration_ms is None else at.now_ms + duration_ms
    reason = "Grow" if found.groups else "Start"
    lines, number = [(line, line.gpus) for line in found.plan.lines], first
    for group in found.placement.groups if found.placement else ():
        place = found.groups[group.group] if found.groups else group.group
        for role, slots in (("Active", group.active), ("Spare", group.spares)):
            done = 0
            while done < len(slots):
                line, left = lines[0]
                leased = slots[done : done + left]
                done += len(leased)
                lines[0] = (line, left - len(leased))
                if not lines[0][1]:
                    lines.pop(0)
                payer, times = (line.budget, line.envelope, line.borrowed), (at.now_ms, until_ms)
                terms = (run, owner, role, place, leased, *payer, *times, reason)
                yield entries.LeaseOpen(*terms, f"{job}.{number}")
                number += 1
    require(not lines, "every GPU of the plan has a device")


# -- the recorded decisions -----------------------------------------------------------------------


def _decisions(
    at: Context, run: str, answer: StartAnswer, cause: str, plan_id: str | None = None
) -> list[NewEntry]:
    """Width, funding and placement. `plan_id`: of the start or growth that they lead to.

    Where the width that was asked for is placed at once, funding and placement say all there is.
    """
    found, effect = answer.found, "place" if plan_id else None
    gang = known(found.gang, "what is funded is a gang")
    placement = known(found.placement, "what is funded was placed")
    body = entries.PlaceDecision(run, STYLE.from_core(placement))
    document = place_input(answer.devices, gang)
    reasons = () if placement.placed else ("NoDevices",)
    placed = at.entry(body, plan_id, effect, input=document, reasons=reasons)
    made = [_fund_decision(at, run, answer, plan_id), placed]
    searched = found.request != answer.asked.request or not found.starts
    if searched and answer.asked.request.min_gpus is not None:
        made.insert(0, start_decision(at, run, answer, cause, plan_id))
    return made


def start_decision(
    at: Context, run: str, answer: StartAnswer, cause: str, plan_id: str | None = None
) -> NewEntry:
    """The choice of the width, with its whole input."""
    asked, found = answer.asked, answer.found
    fund = fund_input(at.projection, asked.request, at.now_ms, answer.claimants)
    document = start_document(fund, answer.devices.nodes, asked)
    body = entries.StartDecision(run, from_start(found), cause)
    effect, reasons = None if plan_id is None else "start", (found.reason.value,)
    more: Document = {"input": document, "reasons": reasons, "version": answer.version}
    return at.entry(body, plan_id, effect, **more)


def _fund_decision(
    at: Context, run: str, answer: StartAnswer, plan_id: str | None = None
) -> NewEntry:
    output, effect = funding(answer.found), None if plan_id is None else "cover"
    document = fund_input(at.projection, answer.found.request, at.now_ms, answer.claimants)
    reasons = () if output.refusal is None else (output.refusal.code,)
    body = entries.FundDecision(run, output)
    more: Document = {"input": document, "reasons": reasons, "version": answer.version}
    return at.entry(body, plan_id, effect, **more)


def fund_input(
    projection: Projection,
    request: gpu.Request,
    now_ms: int,
    claimants: Sequence[gpu.Claimant] = (),
) -> Document:
    """The recorded input of a cover: the budgets that decide it, and their usage."""
    book = projection.book(now_ms)
    kin = set(book.families.kin(request.owner, request.sponsors))
    budgets, usage = {}, {}
    for owner in kin | book.families.parents_generation(request.owner):
        for budget in book.by_owner.get(owner, ()):
            # An uncle makes cousins but pays for nothing.
            pays = owner in kin
            budgets[budget.name] = projection.written_budget(budget.name, pays=pays)
            for envelope in budget.envelopes if pays else ():
                key = (budget.name, envelope.name)
                usage[key] = projection.accounts.paid_usage(key, now_ms)
    written = [each for _, each in sorted(budgets.items())]
    return fund_document(now_ms, written, usage, request, claimants)


def place_input(devices: gpu.FreeDevices, gang: Gang) -> Document:
    """The recorded input of a placement: the nodes that decided it, and not the fleet."""
    return STYLE.from_core(PlaceInput(tuple(devices.candidates(gang)), gang))


# -- growth ---------------------------------------------------------------------------------------
# Whole groups, the lowest numbers first, by whole steps; never more than the run asked for. Its
# other leases stay as they are and its process runs on: it is notified of its new width. Decided
# after every run that waits, and it delays none that was promised a start. What an owner gave up of
# its own accord stays given up, and an attempt that fails is not recorded.


def is_settled(state: RunState) -> bool:
    """Whether a run could grow now: it runs on with all that it has."""
    settled = state.phase is Phase.RUNNING and state.reclaim is None
    return settled and not (state.stopping or state.paused)


def grows_to(spec: RunSpec, state: RunState) -> int:
    """The width that a run may grow to: the one that an outcome took it from, else the one that it
    asked for; 0 where it has that, and where its owner made it shrink."""
    if spec.malleable is None or spec.group_gpus is None or not state.numbered:
        return 0
    most = state.grows_to if state.shrunk else spec.gpus
    return most if most > state.width > 0 else 0


def growth(
    projection: Projection, run: str, now_ms: int, heads: QueueHeads | None = None
) -> list[NewEntry]:
    """The entries by which a run grows, as wide as it can; none where it cannot."""
    spec, state = projection.run_spec(run), projection.runs[run]
    end_ms = next((lease.expected_end_ms for lease in state.leases.values()), None)
    most, late = grows_to(spec, state), end_ms is not None and end_ms <= now_ms
    if not most or late or not projection.devices.gpus(spec.flavor):
        return []
    request = objects.to_request(spec)
    borrowed = sum(lease.gpus for lease in state.leases.values() if lease.borrowed)
    limit = request.max_borrow_gpus
    there = {lease.group for lease in state.leases.values() if lease.is_active}
    answer = ask(
        projection,
        spec,
        now_ms,
        None if heads is None else heads.devices(spec.flavor, now_ms),
        request=replace(
            request,
            duration_ms=None if end_ms is None else end_ms - now_ms,
            max_borrow_gpus=None if limit is None else max(0, limit - borrowed),
        ),
        growth=gpu.RunGrowth(state.width, most, tuple(sorted(there))),
    )
    found = answer.found
    beside = _beside(heads, run, found, now_ms) if found.starts else None
    if not found.starts or (beside is not None and not beside.found.starts):
        return []
    return _grown(Context(projection, now_ms), run, answer, beside)


def _grown(
    at: Context, run: str, answer: StartAnswer, beside: BackfillAnswer | None
) -> list[NewEntry]:
    state = at.projection.runs[run]
    job = state.job or ""
    plan_id = f"{job}.{state.numbered}"
    made = _decisions(at, run, answer, "growth", plan_id)
    if beside is not None:
        made.append(beside.entry(at, plan_id))
    width = state.width
    for lease in _leases(at, run, answer.found, job, state.numbered):
        width += lease.gpus if lease.is_active else 0
        made += open_lease(at, lease, job)
    body = entries.RunGrown(run, width, f"there is room: {counted(width, 'GPU')}")
    return [*made, at.entry(body, plan_id, "grown")]
