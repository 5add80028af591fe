"""Admission: every run that waits is asked in the order of the queue, then those that could grow.

`starting.py` decides about each of them.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from msgspec import structs

from fairlead.core import gpu
from fairlead.core.canonical import Rendered, text
from fairlead.engine.gpu import entries
from fairlead.engine.gpu.asking import Asking, EachRun, NextOfEach, StandingOrder
from fairlead.engine.gpu.backfill import QueueHeads
from fairlead.engine.gpu.committer import Committer
from fairlead.engine.gpu.entries import Document, NewEntry
from fairlead.engine.gpu.orders import TurnOrder, turn_order
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.starting import (
    HELD,
    CoverAnswer,
    ask,
    ask_cover,
    attempt,
    grows_to,
    growth,
    is_settled,
    opens_leases,
)
from fairlead.engine.gpu.state import Phase, RunState
from fairlead.engine.gpu.waiting import Scope, WaitingRows
from fairlead.schema.times import format_time

AT_ONCE = 200
"""Entries of one append, about."""
RESAID_MAX = 20
"""Waiting runs of a turn of which another refusal is recorded than before: where thousands wait
their numbers change with every start, and the first ones of the queue tell most."""
SAID_MAX = 100
"""Runs of an order that stands that are looked at in a turn for what is to be said of them, those
first of which nothing was said: it costs as much as to start a few, which wait for it."""
LACKS = ("NoDevices", HELD)
"""Why a run waits that is funded."""


class _Promised(NamedTuple):
    """The number of a run that is a head, and since when it is one."""

    submitted: int
    since_ms: int

    def is_of(self, state: RunState | None) -> bool:
        """Whether the run of a name is this one, and waits."""
        if state is None or state.phase is not Phase.PENDING:
            return False
        return state.submitted_seq == self.submitted


Covers = dict[str, CoverAnswer]
"""What cover says to runs that are alike, as long as nothing changes: thousands wait, and most of
them ask for what another one asks for."""


class RunAdmission:
    """Starts runs that wait, and widens those that have less than they asked for."""

    def __init__(self, committer: Committer) -> None:
        self._committer, self._hold_ms = committer, committer.config.hold_ms
        self._projection = committer.projection
        self._rows = WaitingRows(self._projection)
        self._covers: Covers = {}
        self._said: dict[tuple[str, int, str], bool] = {}
        """Whether that is what is recorded of runs with the same refusal and reason, likewise."""
        self._refusals: dict[str, tuple[bool, list[NewEntry]]] = {}
        """What is recorded of runs that are alike and are refused, likewise; and whether because
        of owners' claims."""
        self._lacking: dict[str, tuple[str, int]] = {}
        """Why runs that are alike wait for devices, likewise."""
        self._resaid = 0
        config = committer.config
        self._policy, self.heads = config.queue, QueueHeads(self._projection, config)
        self._order: list[str] = []
        """The last one."""
        self._ordered: _Ordered | None = None
        self._promised: dict[str, _Promised] = {}
        """The heads of the last turn by name, as long as they wait; found anew after a restart."""
        self._positions: tuple[int, dict[str, int], dict[Scope, int]] = (0, {}, {})

    def admit_all(self, now_ms: int) -> None:
        """Every run that waits, in the order of the queue; runs that lack devices keep those that
        they need at their earliest start.

        The order is recorded with the first start that it decides: one run starts, others wait
        behind it, and the order that was last recorded does not say so already.
        """
        self.heads.begin()
        self._resaid = 0
        known, follows = self._ordered, self.follows(now_ms)
        if known is None or not follows:
            known = self._ordered = None  # of thousands not two at once
            known = self._ordered = self._order_anew(now_ms)
        self._lead_reserved(known.queue, now_ms)
        order = known.order

        def decide(run: str) -> list[NewEntry]:
            made = self._decide(run, now_ms)
            return [*order.entries(run), *made] if opens_leases(made) else made

        if known.stands(0):
            self._decide_standing(known, decide, now_ms)
        else:
            self._decide_all(known.each, decide)
        live, behind = self._projection.live, self.heads.behind
        heads = {
            run: _Promised(live[run].submitted_seq, now_ms)
            for run in self.heads.runs()
            if run in live  # else another replica ended it just now
        }
        # What owners claim delays a promise, and does not end it; nor does a turn without an order.
        self._promised = heads | {
            run: promise
            for run, promise in self._promised.items()
            if (follows or run in heads or run in behind) and promise.is_of(live.get(run))
        }

    def follows(self, now_ms: int) -> bool:
        """Whether the last order is followed for another turn."""
        known = self._ordered
        if known is None or known.since_ms is None:
            return False
        return known.stands(now_ms - known.since_ms)

    def end_turn(self, now_ms: int) -> None:
        """An order that was made in this turn stands from now on: the turn may have taken long."""
        if self._ordered is not None and self._ordered.since_ms is None:
            self._ordered.since_ms = now_ms

    def _order_anew(self, now_ms: int) -> "_Ordered":
        projection, promised = self._projection, self._promised
        runs = tuple(
            replace(run, promised_ms=promised[run.id].since_ms)
            if run.id in promised and promised[run.id].submitted == run.submitted
            else run
            for run in self._rows.look()
        )
        use = tuple(owner_use(projection, runs, now_ms))
        waiting = gpu.Waiting(now_ms, runs, projection.holds(self._hold_ms), self._policy, use)
        queue = gpu.queue(waiting)
        self._order = [row.run for row in queue.order]
        order = TurnOrder(
            projection,
            entries.QueueDecision.ENTRY,
            self._order,
            lambda: self._rows.decision(queue, waiting),
        )
        rows = [self._rows.by_name[run] for run in self._order]
        self.heads.claims.begin((row.waiting, row.asked.alike) for row in rows)
        first = [run for run in self._order if not self._is_answered(run)]
        return _Ordered(order, queue, [row.asked.alike for row in rows], first)

    def _decide_standing(
        self, known: "_Ordered", decide: Callable[[str], list[NewEntry]], now_ms: int
    ) -> None:
        """The first that does not start stands for all that ask for the same (`order_stands`).
        What is to be said of the others keeps no start waiting: where runs start, it is said of
        some in a turn. It starts none of them."""
        projection, starts = self._projection, 0

        def tell(run: str) -> list[NewEntry]:
            made = self._decide(run, now_ms)
            if made and opens_leases(made):  # of most of thousands nothing is to be said
                known.each.stop()  # freed since the first ones were asked, which are before it
                return []
            return made

        while True:
            holds = projection.holds(self._hold_ms)
            winners = {hold.winner for hold in holds if hold.winner and hold.is_open(now_ms)}
            next_ones = NextOfEach(known.standing, self._is_there, winners)
            self._decide_all(next_ones, decide)
            starts += next_ones.starts
            known.each.next_part(SAID_MAX if starts else None)
            self._decide_all(known.each, tell)
            if not known.each.is_stopped:
                return

    def _decide(self, run: str, now_ms: int) -> list[NewEntry]:
        projection, heads = self._projection, self.heads
        if not self._is_there(run) or self._is_held(run, now_ms):
            return []
        asked = self._rows.by_name[run].asked
        if self._still_lacks(run) or self._lacks_the_same(run):
            return []
        if self._still_refused(run, now_ms):
            behind = bool(self._covers[asked.alike].claimants)
            heads.add_refused(run, asked.request, now_ms, asked.alike, behind=behind)
            return []
        if asked.alike in self._refusals:
            behind, known = self._refusals[asked.alike]
            heads.add_refused(run, asked.request, now_ms, asked.alike, behind=behind)
            return [_about(run, entry) for entry in known]
        made = attempt(projection, run, now_ms, heads, asked.alike)
        if opens_leases(made):
            return made
        if made and isinstance(made[0].body, entries.FundDecision) and len(made) == 2:
            self._keep_refusal(asked.alike, made, behind=run in heads.behind)
        else:
            self._lacking.setdefault(asked.alike, _answer(projection.runs[run], made))
        return made

    def _keep_refusal(self, alike: str, made: list[NewEntry], *, behind: bool) -> None:
        """For the next run that is alike: it is written once."""
        fund, phase = made
        written = replace(fund, input=Rendered(text(fund.input)))
        self._refusals[alike] = behind, [written, phase]

    def _lead_reserved(self, queue: gpu.Queue, now_ms: int) -> None:
        """Runs whose reservations are due and lack devices are the first heads."""
        projection = self._projection
        due_ms = {run: self._due_ms(run, now_ms) for run in gpu.due_first(queue.held)}
        held = (replace(row, until_ms=due_ms[row.run]) for row in queue.held if row.run in due_ms)
        for run in gpu.due_first(held):
            if due_ms[run] is None:
                continue
            spec = projection.run_spec(run)
            devices = self.heads.devices(spec.flavor, now_ms)
            found = ask(projection, spec, now_ms, devices).found
            if found.plan.funded and not found.starts:
                self.heads.add(run, found, now_ms, due_ms[run])

    def _due_ms(self, run: str, now_ms: int) -> int | None:
        """When a reservation of the order became due: another run may have its name since then,
        and its owner may have moved it."""
        projection = self._projection
        state, start = projection.live.get(run), projection.reserved_start(run)
        if (
            state is None
            or state.submitted_seq != self._rows.by_name[run].waiting.submitted
            or start is None
        ):
            return None
        return start.start_ms if start.start_ms <= now_ms else None

    def positions(self) -> dict[str, int]:
        """Every run in the queue, as of the last turn and in order, with its place in its scope."""
        projection = self._projection
        if self._positions[0] != projection.seq:
            positions, waiting = dict[str, int](), defaultdict[Scope, int](int)
            rows = self._rows.by_name
            for name in self._order:
                row = rows[name]
                if projection.is_still_pending(name, row.waiting.submitted):
                    scope = row.asked.scope
                    waiting[scope] += 1
                    positions[name] = waiting[scope]
            self._positions = (projection.seq, positions, waiting)
        return self._positions[1]

    def place(self, run: str) -> Document | None:
        """Where a run stands in the queue, as of the last turn, and what it was promised."""
        projection, positions = self._projection, self.positions()
        if run not in positions:
            return None
        spec, state = projection.run_spec(run), projection.runs[run]
        nodes = projection.kept("queue.nodes", partial(_nodes_of_flavors, projection))
        node = nodes.get(spec.flavor, _FlavorNodes(None, cordoned=False))
        found: Document = {
            "position": positions[run],
            "waiting": self._positions[2][self._rows.by_name[run].asked.scope],
            "gpus": self._rows.by_name[run].asked.request.enough_gpus,
            "lacks": "devices" if state.reason in LACKS else "envelopes" if state.refusal else None,
            "on": node.alone,
        }
        if node.cordoned:
            found["cordoned"] = True
        promised = self.heads.promised(run, spec.flavor)
        if promised is not None:
            gang, after = promised.gang, promised.after
            if after is not None and projection.get("Run", after) is None:
                after = None  # it was deleted since that turn
            shape = gpu.GangShape(gang.group_gpus, gang.spares_per_group)
            found["gpus"] = shape.with_spares(gang.gpus)
            found["lacks"] = promised.lacks
            found["earliestStart"] = format_time(promised.start_ms)
            found["after"] = after
            other = None if after is None else projection.run_spec(after)
            found["afterOwner"] = None if other is None else other.owner
            found["assumed"] = other is not None and not (other.duration or other.max_runtime)
        return found

    def grow_all(self, now_ms: int) -> None:
        """Runs that have less than they asked for grow, where that delays no run that waits.

        The order is recorded as that of the queue is, with the first growth that it decides.
        """
        projection, live = self._projection, self._projection.running
        specs = ((run, state, projection.run_spec(run)) for run, state in live.items())
        narrow = (
            gpu.ShrunkRun(run, spec.flavor, state.width, most, is_settled(state), spec.location)
            for run, state, spec in specs
            if (most := grows_to(spec, state))
        )
        shrunk = tuple(sorted(narrow, key=attrgetter("id")))
        if not shrunk:
            return
        asked = gpu.ShrunkRuns(now_ms, shrunk, projection.holds(self._hold_ms))
        found = gpu.grow(asked)
        names = [row.run for row in found.order]
        order = turn_order(projection, entries.GrowDecision, names, found, asked)

        def decide(run: str) -> list[NewEntry]:
            state = live.get(run)
            if state is None or not is_settled(state) or self._is_held(run, now_ms):
                return []
            made = growth(projection, run, now_ms, self.heads)
            return [*order.entries(run), *made] if made else []

        self._decide_all(EachRun(order.names), decide)

    def _still_refused(self, run: str, now_ms: int) -> bool:
        """Whether the answer is the recorded one: the search for a remedy costs ten times the
        cover. Code, shortfall and caps count; use goes up every millisecond, that alone is not
        news. Of many that changed, a few are recorded in a turn."""
        state, asked = self._projection.runs[run], self._rows.by_name[run].asked
        recorded = state.refusal
        if not self._is_answered(run):
            return False
        if asked.alike not in self._covers:
            devices = self.heads.devices(asked.request.flavor, now_ms)
            self._covers[asked.alike] = ask_cover(
                self._projection, asked.request, now_ms, devices, self.heads.claims
            )
        answer = self._covers[asked.alike]
        refusal = answer.refusal
        same = (asked.alike, id(recorded), state.reason)  # equal refusals are one, which runs keep
        if same not in self._said:
            self._said[same] = answer.is_known(state)
        if refusal is None or self._said[same]:
            return refusal is not None
        if self._projection.run_spec(run).funding.allow_unfunded is True:
            return False  # it starts without funding when it is refused
        self._resaid += 1
        known = recorded is None or refusal.code == recorded.code
        return known and self._resaid > RESAID_MAX

    def _is_there(self, run: str) -> bool:
        """Whether a run of the order still waits: another replica may have started or removed it,
        and another one of its name is not in the order."""
        return self._projection.is_still_pending(run, self._rows.by_name[run].waiting.submitted)

    def _is_answered(self, run: str) -> bool:
        """Whether it is recorded why a run waits."""
        state = self._projection.runs[run]
        return state.refusal is not None or state.reason in LACKS

    def _still_lacks(self, run: str) -> bool:
        """Whether a run waits for more devices than are free, behind a head: asking again would
        say what is recorded, and thousands may wait."""
        if self._projection.runs[run].reason not in LACKS:
            return False
        request = self._rows.by_name[run].asked.request
        free = self._projection.devices.gpus(request.flavor)
        return request.enough_gpus > free and self.heads.leads(request.flavor, request.location)

    def _lacks_the_same(self, run: str) -> bool:
        """Whether another one that is alike was just found to lack devices. Of many of which that
        is to be said, a few are recorded in a turn."""
        state, answer = (
            self._projection.runs[run],
            self._lacking.get(self._rows.by_name[run].asked.alike),
        )
        if answer is None or not self._is_answered(run):
            return False
        if answer == (state.reason, state.shortfall_gpus):
            return True
        self._resaid += 1
        return self._resaid > RESAID_MAX

    def _is_held(self, run: str, now_ms: int) -> bool:
        return self._projection.is_held(run, now_ms, hold_ms=self._hold_ms)

    def _decide_all(self, asking: Asking, decide: Callable[[str], list[NewEntry]]) -> None:
        """One append for all decisions up to the next one that takes devices."""

        def batch() -> list[NewEntry]:
            made: list[NewEntry] = []
            self._covers.clear()
            self._said.clear()
            self._refusals.clear()
            self._lacking.clear()
            for run in asking.batch():
                found = decide(run)
                made += found
                if opens_leases(found):
                    asking.started()
                    break  # the next one has to see what this one took
                if len(made) >= AT_ONCE:
                    break  # thousands of refusals with their inputs: not all in memory at once
            return made

        while not asking.is_over:
            self._committer.commit(batch)
            asking.settle()


class _Ordered:
    """What was decided about the queue, and how far it was followed."""

    def __init__(
        self, order: TurnOrder, queue: gpu.Queue, alike: Sequence[str], first: list[str]
    ) -> None:
        """`first`: runs that were never told why they wait."""
        self.order, self.queue = order, queue
        self.standing, self.each = StandingOrder(order.names, alike), EachRun(order.names)
        if self.stands(0):
            told = set(first)
            others = (run for run in order.names if run not in told)
            self.each = EachRun([*first, *others])
        self.since_ms: int | None = None
        """The end of the turn that decided it; None where that turn was not carried out to its
        end."""

    def stands(self, age_ms: int) -> bool:
        return gpu.order_stands(runs=len(self.order.names), age_ms=age_ms)


class _FlavorNodes(NamedTuple):
    """The nodes of a flavor: the only one by name, and whether all are out of service."""

    alone: str | None
    cordoned: bool


def _nodes_of_flavors(projection: Projection) -> dict[str, _FlavorNodes]:
    nodes: dict[str, list[gpu.Node]] = {}
    for node in projection.devices.nodes:
        nodes.setdefault(node.flavor, []).append(node)
    return {
        flavor: _FlavorNodes(
            rows[0].name if len(rows) == 1 else None, cordoned=all(row.cordoned for row in rows)
        )
        for flavor, rows in nodes.items()
    }


def _answer(state: RunState, made: list[NewEntry]) -> tuple[str, int]:
    """Why a run waits, after what was decided about it."""
    for body in (entry.body for entry in made):
        if isinstance(body, entries.RunPhase):
            return body.reason, body.shortfall_gpus or 0
    return state.reason, state.shortfall_gpus


def _about(run: str, entry: NewEntry) -> NewEntry:
    """The same entry of another run."""
    return replace(entry, body=structs.replace(entry.body, run=run))


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
