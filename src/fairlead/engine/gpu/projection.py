"""Objects and accounts as the ledger tells them: a fold over entries, and nothing else changes it.

Two replicas that folded the same entries are equal, and so is one that was rebuilt. Entries of
other governors are passed over; they only move `seq`, the size of the ledger that was seen.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Set
from typing import Any, TypeVar

from msgspec import to_builtins
from msgspec.structs import replace

from fairlead.core.canonical import Rendered, text
from fairlead.core.gpu import Book, Budget, FlavorHold, FreeDevices, OwnEnvelope, ReservedStart
from fairlead.core.gpu.accounts import Accounts
from fairlead.core.gpu.clock import BootSpan, ClockAnchor, ClockJump
from fairlead.core.invariant import of_kind, require
from fairlead.engine.gpu import state
from fairlead.engine.gpu.entries import Body, Stamp, decode
from fairlead.engine.gpu.fold import FOLDS
from fairlead.ports.ledger import Entry
from fairlead.schema.objects import (
    BudgetSpec,
    NodeSpec,
    ReservationSpec,
    RunSpec,
    after_of,
    budget_document,
    foreign_of,
    to_node,
)
from fairlead.schema.times import parse_time

CLOSED_KEPT = 10_000  # closed leases shown by name; their charges are kept for good
T = TypeVar("T")
DayKey = tuple[int, str, str, str, str, bool]
"""(UTC day, owner, payer, budget, envelope, borrowed)."""


class Projection:
    """The state after some entry of the ledger."""

    def __init__(self) -> None:
        self.seq, self.time_ms = 0, 0
        self.objects: dict[str, dict[str, state.Stored]] = {}
        """By kind and name."""
        self.runs: dict[str, state.RunState] = {}
        self.live: dict[str, state.RunState] = {}
        """Those of them that have not ended: a turn looks at these, and not at history."""
        self.running: dict[str, state.RunState] = {}
        """Those of them that have leases and a job: thousands may wait, and need no look."""
        self.giving_back: set[str] = set()
        """Those of which an owner recalled a lease."""
        self.following: set[str] = set()
        """Those of them that start after other runs."""
        self.run_owners: dict[str, int] = {}
        """How many runs each owner has."""
        self.manifest_bytes: dict[str, int] = {}
        """What the runs of each owner take as manifests."""
        self.leases: dict[str, state.LeaseFact] = {}
        self.closed: deque[state.LeaseFact] = deque(maxlen=CLOSED_KEPT)
        self.accounts, self.resolver = Accounts(), state.ResolverState()
        self.budgets: dict[str, Budget] = {}
        self.conditions: dict[tuple[str, str], state.Condition] = {}
        self.charges: dict[DayKey, list[int]] = {}
        self.taken: dict[str, dict[int, str]] = {}
        """Leased ordinals of each node, and their leases."""
        self.quarantined: set[str] = set()
        """Devices that hold memory that no run has: given to none until they are clean."""
        self.unknown_jobs: dict[str, state.UnknownJob] = {}
        """Processes that the ledger did not start: their devices are given to none, either."""
        self.plans: dict[str, int] = {}  # cover_plans_total by result
        self.denied: dict[tuple[str, str], int] = {}
        """budget_lending_denied_total by (budget, envelope)."""
        self.posted: dict[tuple[str, str], int] = {}
        """All GPU-milliseconds ever posted, by payer."""
        self.orders: dict[str, tuple[str, ...]] = {}
        """The order that `gpu.queue`, `gpu.activate`, `gpu.grow` and each cause of `gpu.rank` last
        recorded."""
        self.reserved: dict[str, str] = {}
        """Runs that have a reservation, and which."""
        self.clock: ClockAnchor | None = None
        """The last moment at which the machine's clocks were recorded; None in early ledgers."""
        self.clock_jump: ClockJump | None = None
        """The wall clock jumped then, and no operator has judged it."""
        # The last boots of the machine: ends of processes are placed by them.
        self.boots: tuple[BootSpan, ...] = ()
        self._book: Book | None = None
        self._written: dict[tuple[str, bool], Rendered] = {}
        """Budgets as decisions record them."""
        self._devices, self._kept_seq = FreeDevices(()), 0
        self._moved: set[str] = set()
        """Nodes that are not there as they are now: one start moves a few."""
        self._kept: dict[str, Any] = {}

    def apply(self, entry: Entry) -> None:
        """Fold one entry; one that was folded before is passed over."""
        if entry.seq > self.seq:
            self.fold(Stamp(entry.seq, entry.time_ms, entry.author), decode(entry))

    def fold(self, at: Stamp, body: Body | None) -> None:
        """Fold what an entry says; None: an entry of another governor."""
        require(at.seq == self.seq + 1, "entries are folded in order, none left out")
        fold = None if body is None else FOLDS.get(type(body))
        if fold is not None:
            fold(self, at, body)
        self.seq, self.time_ms = at.seq, max(self.time_ms, at.time_ms)

    # -- questions ----------------------------------------------------------------------------

    def get(self, kind: str, name: str) -> state.Stored | None:
        return self.objects.get(kind, {}).get(name)

    def of_kind(self, kind: str) -> Iterator[state.Stored]:
        found = self.objects.get(kind, {})
        for name in sorted(found):
            yield found[name]

    def shared_name(self, run: str) -> str:
        """The name of a run as the run itself has it: orders name thousands."""
        stored = self.get("Run", run)
        return run if stored is None else stored.name

    def book(self, now_ms: int) -> Book:
        """Budgets and usage for covering requests; the family graph is kept between edits."""
        book = self._unused_book()
        book.usage = self.accounts.at(now_ms, paid=True)
        return book

    def _unused_book(self) -> Book:
        if self._book is None:
            self._book = Book(self.budgets.values(), {})
        return self._book

    def own_envelopes(self, owner: str, flavor: str, now_ms: int) -> tuple[OwnEnvelope, ...]:
        """The owner's own ones that are open: what its runs may overdraw."""
        return tuple(
            OwnEnvelope(payer.budget.name, payer.envelope.name)
            for payer in self._unused_book().payers(owner, flavor)
            if payer.envelope.is_open(now_ms)
        )

    @property
    def devices(self) -> FreeDevices:
        """Nodes with their free devices."""
        withheld = self.withheld
        for name in self._moved:
            stored = self.get("Node", name)
            if stored is None:
                self._devices.drop(name)
                continue
            spec, taken = node_spec(stored), self.taken.get(name, {})
            free = tuple(
                i for i in range(spec.devices) if i not in taken and f"{name}#{i}" not in withheld
            )
            free = free[: max(0, len(free) - foreign_of(spec))]
            self._devices.put(to_node(name, spec, free))
        self._moved.clear()
        return self._devices

    @property
    def withheld(self) -> Set[str]:
        """Devices without a lease that are given to no run: quarantined, or used by a process that
        the ledger did not start."""
        used = {
            slot
            for job in self.unknown_jobs.values()
            for slot in job.slots
            if (at := state.parse_slot(slot))[1] not in self.taken.get(at[0], {})
        }
        return self.quarantined | used if used else self.quarantined

    def devices_moved(self, nodes: Iterable[str]) -> None:
        """Devices of these nodes were taken or are free again, or the nodes are others."""
        self._moved.update(nodes)

    def kept(self, key: str, make: Callable[[], T]) -> T:
        """What `make` computes from this state alone; computed once until the next entry."""
        if self._kept_seq != self.seq:
            self._kept_seq, self._kept = self.seq, {}
        if key not in self._kept:
            self._kept[key] = make()
        value: T = self._kept[key]
        return value

    def is_pending(self, run: str) -> bool:
        """Whether a run is there, and waits to be started as soon as it fits."""
        known = self.runs.get(run)
        if known is None or known.phase is not state.Phase.PENDING or known.stopping:
            return False
        return not self.waits_for_time(run)

    def is_still_pending(self, run: str, submitted: int) -> bool:
        """The same of the run of this number: another one may have its name by now."""
        return self.is_pending(run) and self.runs[run].submitted_seq == submitted

    def waits_for_runs(self, run: str) -> bool:
        """Whether it is Pending and starts after runs that have not ended as asked."""
        found = self.live.get(run)
        if found is None or found.phase is not state.Phase.PENDING or found.stopping:
            return False
        return not found.released and bool(after_of(self.run_spec(run)))

    def waits_for_time(self, run: str) -> bool:
        """Whether a run is to be started by its reservation, and not as soon as it fits."""
        name = self.reserved.get(run)
        return name is not None and self.resolver.reservations[name].waits

    def reserved_start(self, run: str) -> ReservedStart | None:
        """The reservation that is to start a run, where one is."""
        if not self.waits_for_time(run):
            return None
        reservation = self.objects["Reservation"][self.reserved[run]]
        return ReservedStart(reservation.name, starts_ms(reservation))

    def is_held(self, run: str, now_ms: int, *, hold_ms: int) -> bool:
        """Whether a run waits because what is free is meant for the run of an open outcome."""
        if not self.resolver.open_seqs:
            return False
        spec = self.run_spec(run)
        hold = self.hold_on(spec.flavor, hold_ms)
        return hold is not None and hold.applies(now_ms, run, spec.location)

    def hold_on(self, flavor: str, hold_ms: int) -> FlavorHold | None:
        """What the open outcome of a flavor holds back: a drawn one until it is over, another for a
        while. One that brings a budget back within its caps frees devices for no run."""
        outcome = self.resolver.open_outcome(flavor)
        if outcome is None or outcome.cause == "cap":
            return None
        drawn = outcome.stage is state.OutcomeStage.DRAWN
        until_ms = None if drawn else outcome.time_ms + hold_ms
        location = outcome.location or self.resolver.chains[outcome.chain].location
        return FlavorHold(flavor, outcome.seq, until_ms, location, scoped=True, winner=outcome.run)

    def devices_outside(self, flavor: str, now_ms: int, *, hold_ms: int) -> FreeDevices:
        """Nodes with their free devices, without those that an open outcome keeps for its run."""
        hold = self.hold_on(flavor, hold_ms)
        if hold is None or not hold.is_open(now_ms):
            return self.devices
        return self.kept(
            f"outside of {flavor}",
            lambda: FreeDevices(
                node
                for node in self.devices.nodes
                if node.flavor == flavor and not hold.keeps(node.location)
            ),
        )

    def holds(self, hold_ms: int) -> tuple[FlavorHold, ...]:
        """Of all open outcomes that keep devices."""
        holds = (self.hold_on(flavor, hold_ms) for flavor in sorted(self.resolver.open_seqs))
        return tuple(hold for hold in holds if hold is not None)

    def runs_on(self, node: str) -> list[str]:
        return sorted({lease.run for lease in self.leases.values() if node in lease.nodes})

    def run_spec(self, name: str) -> RunSpec:
        return of_kind(self.objects["Run"][name].spec, RunSpec, "a Run has a run's spec")

    def budget_document(self, name: str) -> Any:
        """A budget as decisions record it: hours as they were written."""
        spec = of_kind(self.objects["Budget"][name].spec, BudgetSpec, "a Budget has its spec")
        return budget_document(name, spec)

    def written_budget(self, name: str, *, pays: bool) -> Rendered:
        """The same in canonical form; written once between edits, for every start has it in its
        input. One that does not pay has no envelopes."""
        key = (name, pays)
        if key not in self._written:
            document = self.budget_document(name)
            if not pays:
                document = replace(document, envelopes=[], aggregate_caps=[])
            self._written[key] = Rendered(text(to_builtins(document)))
        return self._written[key]

    def owner_of(self, stored: state.Stored) -> str | None:
        """Whose an object is: a reservation is its run's owner's."""
        spec = stored.spec
        if isinstance(spec, ReservationSpec):
            run = self.get("Run", spec.run)
            return None if run is None else self.owner_of(run)
        return None if isinstance(spec, NodeSpec) else spec.owner

    def next_job(self, name: str) -> str:
        """The plan id of a run's next start; another run of the same name has another uid."""
        uid, attempt = self.objects["Run"][name].uid, self.runs[name].attempt
        return f"{state.job_prefix(name, uid)}{attempt + 1}"

    def virtual_nodes(self) -> frozenset[str]:
        """Nodes whose devices are not there."""
        return self.kept(
            "virtual",
            lambda: frozenset(
                node.name for node in self.of_kind("Node") if node_spec(node).virtual is True
            ),
        )

    def is_virtual(self, leases: Iterable[state.LeaseFact]) -> bool:
        """Whether one of these leases is on a virtual node."""
        virtual = self.virtual_nodes()
        return bool(virtual) and any(not virtual.isdisjoint(lease.nodes) for lease in leases)

    def recalled(self) -> Set[str]:
        """Leases that stay unfunded: the run that they were recalled for still waits."""
        return self.kept(
            "recalled",
            lambda: {
                lease
                for run in (self.running[name] for name in self.giving_back)
                for lease, by in run.recalled.items()
                if by in self.live and self.live[by].phase is state.Phase.PENDING
            },
        )

    def recalling(self) -> Set[str]:
        """Runs for which leases were recalled that are open still."""
        return self.kept(
            "recalling",
            lambda: {
                by for name in self.giving_back for by in self.running[name].recalled.values()
            },
        )

    def is_funded(self, lease_id: str) -> bool:
        return self.accounts.of_lease(lease_id).leases[lease_id].unfunded_ms is None

    def put(self, stored: state.Stored) -> None:
        if isinstance(stored.spec, RunSpec):
            owner, before = stored.spec.owner, self.get(stored.kind, stored.name)
            self.run_owners[owner] = self.run_owners.get(owner, 0) + (before is None)
            more = state.manifest_bytes(stored) - (state.manifest_bytes(before) if before else 0)
            self.manifest_bytes[owner] = self.manifest_bytes.get(owner, 0) + more
        self.objects.setdefault(stored.kind, {})[stored.name] = stored
        if stored.kind == "Node":
            self.devices_moved([stored.name])

    def set_budget(self, name: str, budget: Budget | None) -> None:
        """A budget as it is from now on; None: it is gone."""
        if budget is None:
            del self.budgets[name]
        else:
            self.budgets[name] = budget
        self._book = None
        for pays in (True, False):
            self._written.pop((name, pays), None)

    def drop(self, kind: str, name: str) -> None:
        stored = self.objects[kind].pop(name)
        if kind == "Node":
            self.devices_moved([name])
        if isinstance(stored.spec, RunSpec):
            owner = stored.spec.owner
            self.run_owners[owner] -= 1
            self.manifest_bytes[owner] -= state.manifest_bytes(stored)
            if not self.run_owners[owner]:
                del self.run_owners[owner], self.manifest_bytes[owner]
            del self.runs[name]
            self.index_run(name, None)

    def index_run(self, name: str, run: state.RunState | None) -> None:
        """A run as it is from now on; None: it is gone."""
        if run is None or run.phase is not state.Phase.RUNNING:
            self.running.pop(name, None)
            self.giving_back.discard(name)
        if run is None or run.phase.ended:
            self.live.pop(name, None)
            self.following.discard(name)
            return
        self.live[name] = run
        if run.phase is state.Phase.RUNNING:
            self.running[name] = run
            if run.recalled:
                self.giving_back.add(name)
        if after_of(self.run_spec(name)):
            self.following.add(name)

    def restate(self, shift_ms: int, now_ms: int) -> None:
        """Ledger time was set forward: what is open began, and was asked for, so much later."""
        self.accounts.restate(shift_ms, now_ms)
        self.boots = tuple(span.restated(shift_ms) for span in self.boots)
        for run in self.live.values():
            run.restate(shift_ms)
            self.leases.update(run.leases)
        for seq in self.resolver.open_seqs.values():
            self.resolver.outcomes[seq].time_ms += shift_ms
        self._kept_seq = 0

    def adopt(self, fact: state.LeaseFact) -> None:
        """Index an open lease of a run by its id and its devices."""
        self.devices_moved(fact.nodes)
        self.leases[fact.id] = fact
        for slot in fact.slots:
            node, ordinal = state.parse_slot(slot)
            taken = self.taken.setdefault(node, {})
            require(ordinal not in taken, "a device is leased once")
            taken[ordinal] = fact.id


def node_spec(stored: state.Stored) -> NodeSpec:
    return of_kind(stored.spec, NodeSpec, "a Node has a node's spec")


def reservation_spec(stored: state.Stored) -> ReservationSpec:
    return of_kind(stored.spec, ReservationSpec, "a Reservation has a reservation's spec")


def starts_ms(stored: state.Stored) -> int:
    return parse_time(reservation_spec(stored).earliest_start, "spec.earliestStart")
