"""Admission: fund, then place, then the entries that say so; and growth, the same for a part.

`ask` is also what a dry run and `plan` show: the same decision, not recorded.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from fairlead.core import gpu
from fairlead.core.gpu.place import Gang
from fairlead.core.invariant import known, require
from fairlead.core.reasons import QueueHold
from fairlead.core.units import counted
from fairlead.engine.gpu import entries
from fairlead.engine.gpu.backfill import BackfillAnswer, QueueHeads
from fairlead.engine.gpu.committer import Committer, Context
from fairlead.engine.gpu.entries import Document, Funding, FundRefusal, NewEntry
from fairlead.engine.gpu.leases import open_lease
from fairlead.engine.gpu.projection import Projection, hold_of, starts_ms
from fairlead.engine.gpu.state import Phase, RunState
from fairlead.schema import objects
from fairlead.schema.convert import convert
from fairlead.schema.funding import from_plan, fund_document
from fairlead.schema.gpu import STYLE, PlaceInput, from_start, no_room, start_document
from fairlead.schema.objects import RunSpec
from fairlead.schema.times import format_time

AT_ONCE = 200
"""Entries of one append, about."""
HELD = "Queued"
"""Why a run waits that would delay another one."""


class _Row(NamedTuple):
    """A run that waits, as it was when something of it last changed."""

    key: object
    waiting: gpu.WaitingRun
    request: gpu.Request
    alike: str
    """The same for all runs that ask for the same."""


Covers = dict[str, gpu.Refusal | None]
"""What cover says to runs that are alike, as long as nothing changes: thousands wait, and most of
them ask for what another one asks for."""


class RunAdmission:
    """Starts runs that wait, and widens those that have less than they asked for."""

    def __init__(self, committer: Committer) -> None:
        self._committer, self._hold_ms = committer, committer.config.hold_ms
        self._projection = committer.projection
        self._rows: dict[str, _Row] = {}
        self._alike: dict[str, tuple[str, gpu.Request]] = {}
        """Requests by their text: one of each is kept."""
        self._covers: Covers = {}
        config = committer.config
        self._policy, self._heads = config.queue, QueueHeads(self._projection, config.backfill)
        self._order: list[str] = []
        """Of the last turn."""
        self._positions: tuple[int, dict[str, int]] = (0, {})

    def admit_all(self, now_ms: int) -> None:
        """Every run that waits, in the order of the queue; runs that lack devices keep those that
        they need at their earliest start.

        The order is recorded with the first start that it decides: one run starts, others wait
        behind it, and the order that was last recorded does not say so already.
        """
        projection, heads = self._projection, self._heads
        heads.begin()
        runs = self._waiting_runs()
        use = tuple(owner_use(projection, runs, now_ms))
        waiting = gpu.Waiting(now_ms, runs, self._holds(), self._policy, use)
        queue = gpu.queue(waiting)
        self._order = order = [row.run for row in queue.order]
        recorded = RecordedOrder(entries.QueueDecision, order)
        self._lead_reserved(queue, now_ms)

        def decide(run: str) -> list[NewEntry]:
            # Another replica may have started or removed it since the list was made.
            if not projection.is_pending(run) or self._is_held(run, now_ms):
                return []
            row = self._rows[run]
            if self._still_refused(run, now_ms):
                heads.add_refused(run, row.request, now_ms, row.alike)
                return []
            if self._still_lacks(run):
                return []
            made = attempt(projection, run, now_ms, heads)
            if opens_leases(made) and not recorded.says(run, projection):
                made.insert(0, order_decision(entries.QueueDecision, queue, waiting, now_ms))
            return made

        self._decide_all(order, decide)

    def _lead_reserved(self, queue: gpu.Queue, now_ms: int) -> None:
        """Runs whose reservations are due and lack devices are the first heads: runs that have just
        started are no candidates, so that short ones that follow each other would keep the devices
        from a reservation for ever."""
        due = [row for row in queue.held if row.reason is QueueHold.RESERVATION_DUE]
        for row in sorted(due, key=lambda row: (row.until_ms or 0, row.run)):
            found = ask(self._projection, self._projection.run_spec(row.run), now_ms).found
            if found.plan.funded and not found.starts:
                self._heads.add(row.run, found, now_ms)

    def place(self, run: str) -> Document | None:
        """Where a run stands in the queue, as of the last turn, and what it was promised."""
        projection = self._projection
        if self._positions[0] != projection.seq:
            waiting = (name for name in self._order if projection.is_pending(name))
            positions = {name: position for position, name in enumerate(waiting, start=1)}
            self._positions = (projection.seq, positions)
        positions = self._positions[1]
        if run not in positions:
            return None
        flavor = projection.run_spec(run).flavor
        found: Document = {"position": positions[run], "waiting": len(positions)}
        promised = self._heads.promised(run, flavor)
        if promised is not None:
            gang, after = promised.gang, promised.after
            shape = gpu.GangShape(gang.group_gpus, gang.spares_per_group)
            nodes = [node.name for node in projection.devices.nodes if node.flavor == flavor]
            found["gpus"] = shape.with_spares(gang.gpus)
            found["on"] = nodes[0] if len(nodes) == 1 else None
            found["earliestStart"] = format_time(promised.start_ms)
            found["after"] = after
            found["afterOwner"] = None if after is None else projection.run_spec(after).owner
        return found

    def grow_all(self, now_ms: int) -> None:
        """Runs that have less than they asked for grow, where that delays no run that waits.

        The order is recorded as that of the queue is, with the first growth that it decides.
        """
        projection, live = self._projection, self._projection.live
        specs = ((run, state, projection.run_spec(run)) for run, state in sorted(live.items()))
        shrunk = tuple(
            gpu.ShrunkRun(run, spec.flavor, state.width, most, is_settled(state))
            for run, state, spec in specs
            if (most := grows_to(spec, state))
        )
        if not shrunk:
            return
        asked = gpu.ShrunkRuns(now_ms, shrunk, self._holds())
        found = gpu.grow(asked)
        order = [row.run for row in found.order]
        recorded = RecordedOrder(entries.GrowDecision, order)

        def decide(run: str) -> list[NewEntry]:
            state = live.get(run)
            if state is None or not is_settled(state) or self._is_held(run, now_ms):
                return []
            made = growth(projection, run, now_ms, self._heads)
            if made and not recorded.says(run, projection):
                made.insert(0, order_decision(entries.GrowDecision, found, asked, now_ms))
            return made

        self._decide_all(order, decide)

    def _holds(self) -> tuple[gpu.FlavorHold, ...]:
        resolver = self._projection.resolver
        opened = (resolver.outcomes[seq] for _, seq in sorted(resolver.open_seqs.items()))
        return tuple(hold_of(outcome, self._hold_ms) for outcome in opened)

    def _waiting_runs(self) -> tuple[gpu.WaitingRun, ...]:
        """Every run that waits, by name. Most are the same from turn to turn, and are kept."""
        projection, before, self._rows = self._projection, self._rows, {}
        for run, state in sorted(projection.live.items()):
            if state.phase is not Phase.PENDING or state.stopping:
                continue
            if projection.waits_for_runs(run):
                continue
            reserved = projection.reserved.get(run)
            slot = reserved and projection.objects["Reservation", reserved].version
            key = (state.submitted_seq, state.since_ms, slot, projection.waits_for_time(run))
            row = before.get(run)
            if row is None or row.key != key:
                waiting, request = _waiting_run(projection, run)
                text = repr(request)
                alike, request = self._alike.setdefault(text, (text, request))
                row = _Row(key, waiting, request, alike)
            self._rows[run] = row
        if not self._rows:
            self._alike.clear()
        return tuple(row.waiting for row in self._rows.values())

    def _still_refused(self, run: str, now_ms: int) -> bool:
        """Whether the answer is the recorded one: the search for a remedy costs ten times the
        cover. Code, shortfall and caps count; use goes up every millisecond, that alone is not
        news."""
        recorded, row = self._projection.runs[run].refusal, self._rows[run]
        if recorded is None:
            return False
        if row.alike not in self._covers:
            book = self._projection.book(now_ms)
            self._covers[row.alike] = gpu.cover(book, row.request, now_ms).refusal
        refusal = self._covers[row.alike]
        return refusal is not None and _is_same(refusal, recorded)

    def _still_lacks(self, run: str) -> bool:
        """Whether a run waits for more devices than are free, behind a head: asking again would
        say what is recorded, and thousands may wait."""
        if self._projection.runs[run].reason not in ("NoDevices", HELD):
            return False
        request = self._rows[run].request
        free = self._projection.devices.gpus(request.flavor)
        return request.enough_gpus > free and self._heads.leads(request.flavor, request.location)

    def _is_held(self, run: str, now_ms: int) -> bool:
        return self._projection.is_held(run, now_ms, hold_ms=self._hold_ms)

    def _decide_all(self, queue: list[str], decide: Callable[[str], list[NewEntry]]) -> None:
        """In order; one append for all decisions up to the next one that takes devices."""
        first = decided = 0

        def batch() -> list[NewEntry]:
            nonlocal decided
            made: list[NewEntry] = []
            self._covers.clear()
            for number in range(first, len(queue)):
                decided, found = number + 1, decide(queue[number])
                made += found
                if opens_leases(found):
                    break  # the next one has to see what this one took
                if len(made) >= AT_ONCE:
                    break  # thousands of refusals with their inputs: not all in memory at once
            return made

        while first < len(queue):
            self._committer.commit(batch)
            first = decided


def opens_leases(made: list[NewEntry]) -> bool:
    """Whether these entries start a run, or widen one."""
    return any(isinstance(entry.body, entries.LeaseOpen) for entry in made)


def _waiting_run(projection: Projection, run: str) -> tuple[gpu.WaitingRun, gpu.Request]:
    state, request, start = projection.runs[run], objects.to_request(projection.run_spec(run)), None
    if projection.waits_for_time(run):
        reservation = projection.objects["Reservation", projection.reserved[run]]
        start = gpu.ReservedStart(reservation.name, starts_ms(reservation))
    waiting = gpu.WaitingRun(
        id=run,
        owner=request.owner,
        flavor=request.flavor,
        gpus=request.gpus,
        submitted=state.submitted_seq,
        waiting_since_ms=state.since_ms,
        min_gpus=request.min_gpus,
        duration_ms=request.duration_ms,
        owner_priority=projection.run_spec(run).priority or 0,
        reservation=start,
        submitted_ms=projection.objects["Run", run].created_ms,
    )
    return waiting, request


def owner_use(
    projection: Projection, runs: Sequence[gpu.WaitingRun], now_ms: int
) -> Iterator[gpu.OwnerUse]:
    """What owners of waiting runs are granted by envelopes of their own, and use, by flavor."""
    book, used = projection.book(now_ms), Counter[tuple[str, str]]()
    for lease in projection.leases.values():
        used[lease.owner, projection.run_spec(lease.run).flavor] += lease.gpus
    for owner, flavor in sorted({(run.owner, run.flavor) for run in runs}):
        own = (payer.envelope for payer in book.payers(owner, flavor))
        granted = sum(envelope.gpus for envelope in own if envelope.is_open(now_ms))
        yield gpu.OwnerUse(owner, flavor, granted, used[owner, flavor])


class RecordedOrder:
    """How far the order of one turn is the order that was last recorded."""

    def __init__(self, kind: type[entries.OrderDecision], order: Sequence[str]) -> None:
        self._kind = kind
        self._order, self._places = order, {run: place for place, run in enumerate(order)}
        self._recorded: Sequence[str] | None = None
        self._same = 0
        """So many runs at the beginning are the same ones, those that wait no more left out."""

    def says(self, run: str, projection: Projection) -> bool:
        """Whether none comes behind this one, or the recorded order has the same ones before
        it."""
        recorded = projection.orders.get(self._kind.ENTRY, ())
        if recorded is not self._recorded:
            self._recorded, self._same = recorded, 0
            left = (name for name in recorded if name in self._places)
            for mine, other in zip(self._order, left, strict=False):
                if mine != other:
                    break
                self._same += 1
        return self._order[-1] == run or self._places[run] < self._same


def order_decision(
    kind: type[entries.OrderDecision], found: object, asked: object, now_ms: int
) -> NewEntry:
    """An order as it is recorded, with its whole input."""
    return NewEntry(kind(STYLE.from_core(found)), now_ms, input=STYLE.from_core(asked))


# -- one decision ---------------------------------------------------------------------------------


class StartAnswer(NamedTuple):
    """What was asked of `core.gpu.start`, and what it decided."""

    asked: gpu.StartRequest
    found: gpu.Start

    @property
    def refusal(self) -> FundRefusal | None:
        return funding(self.found).refusal


def ask(projection: Projection, spec: RunSpec, now_ms: int, **more: Any) -> StartAnswer:
    """Whether a run can start now, and how wide; `more`: other fields of a `StartRequest`."""
    fields = {"request": objects.to_request(spec), "shape": objects.to_shape(spec), **more}
    asked = gpu.StartRequest(**fields)
    return StartAnswer(asked, gpu.start(asked, projection.book(now_ms), projection.devices, now_ms))


def funding(found: gpu.Start) -> Funding:
    return convert(from_plan(found.plan, found.remedy), Funding)


def admission(projection: Projection, run: str, now_ms: int) -> list[NewEntry]:
    """The entries of one attempt to start a run; none when nothing new is to be said."""
    recorded = projection.runs[run].refusal
    if recorded is not None:
        request = objects.to_request(projection.run_spec(run))
        refusal = gpu.cover(projection.book(now_ms), request, now_ms).refusal
        if refusal is not None and _is_same(refusal, recorded):
            return []
    return attempt(projection, run, now_ms)


def attempt(
    projection: Projection, run: str, now_ms: int, heads: QueueHeads | None = None
) -> list[NewEntry]:
    """The same where the answer is known to be news. `heads`: runs that are not to be delayed."""
    spec, at = projection.run_spec(run), Context(projection, now_ms)
    answer = ask(projection, spec, now_ms)
    found, job = answer.found, projection.next_job(run)
    if not found.plan.funded:
        if heads is not None:
            heads.add_refused(run, found.request, now_ms)
        return _refused(at, run, answer)
    if not found.starts:
        if heads is not None:
            heads.add(run, found, now_ms)
        return _waiting(at, run, answer)
    beside = None if heads is None else heads.ask(run, found, now_ms)
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


def _is_same(refusal: gpu.Refusal, recorded: FundRefusal) -> bool:
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
    body = entries.RunPhase(run, Phase.PENDING.value, why.code, why.message)
    return [_fund_decision(at, run, answer.found), at.entry(body)]


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
    document = place_input(at.projection.devices, gang)
    reasons = () if placement.placed else ("NoDevices",)
    placed = at.entry(body, plan_id, effect, input=document, reasons=reasons)
    made = [_fund_decision(at, run, found, plan_id), placed]
    searched = found.request != answer.asked.request or not found.starts
    if searched and answer.asked.request.min_gpus is not None:
        made.insert(0, start_decision(at, run, answer, cause, plan_id))
    return made


def start_decision(
    at: Context, run: str, answer: StartAnswer, cause: str, plan_id: str | None = None
) -> NewEntry:
    """The choice of the width, with its whole input."""
    asked, found = answer
    fund = fund_input(at.projection, asked.request, at.now_ms)
    document = start_document(fund, at.projection.devices.nodes, asked)
    body = entries.StartDecision(run, from_start(found), cause)
    effect, reasons = None if plan_id is None else "start", (found.reason.value,)
    return at.entry(body, plan_id, effect, input=document, reasons=reasons)


def _fund_decision(at: Context, run: str, found: gpu.Start, plan_id: str | None = None) -> NewEntry:
    output, effect = funding(found), None if plan_id is None else "cover"
    document = fund_input(at.projection, found.request, at.now_ms)
    reasons = () if output.refusal is None else (output.refusal.code,)
    body = entries.FundDecision(run, output)
    return at.entry(body, plan_id, effect, input=document, reasons=reasons)


def fund_input(projection: Projection, request: gpu.Request, now_ms: int) -> Document:
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
    return fund_document(now_ms, [each for _, each in sorted(budgets.items())], usage, request)


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
        request=replace(
            request,
            duration_ms=None if end_ms is None else end_ms - now_ms,
            max_borrow_gpus=None if limit is None else max(0, limit - borrowed),
        ),
        growth=gpu.RunGrowth(state.width, most, tuple(sorted(there))),
    )
    found = answer.found
    beside = heads.ask(run, found, now_ms) if found.starts and heads is not None else None
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
