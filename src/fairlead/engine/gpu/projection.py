"""Objects and accounts as the ledger tells them: a fold over entries, and nothing else changes it.

Two replicas that folded the same entries are equal, and so is one that was rebuilt. Entries of
other governors are passed over; they only move `seq`, the size of the ledger that was seen.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from fairlead.core.gpu import Book, Budget
from fairlead.core.gpu.accounts import Accounts
from fairlead.core.gpu.place import Gang, Node, Placement, place
from fairlead.core.invariant import of_kind, require
from fairlead.engine.gpu.resolver import fold as resolving
from fairlead.engine.gpu.resolver.state import Reservation, ResolverState
from fairlead.engine.gpu.state import Condition, LeaseFact, Phase, RunState, Stored, job_prefix
from fairlead.ports.ledger import Entry
from fairlead.schema.objects import read_spec, to_budget, to_node
from fairlead.schema.specs import BudgetSpec, NodeSpec, ReservationSpec, RunSpec

CLOSED_KEPT = 10_000  # closed leases shown by name; their charges are kept for good
DayKey = tuple[int, str, str, str, str, bool]
"""(UTC day, owner, payer, budget, envelope, borrowed)."""


class Projection:
    """The state after some entry of the ledger."""

    def __init__(self) -> None:
        self.seq = 0
        self.time_ms = 0
        self.objects: dict[tuple[str, str], Stored] = {}
        self.runs: dict[str, RunState] = {}
        self.live: dict[str, RunState] = {}
        """Those of them that have not ended: a turn looks at these, and not at history."""
        self.run_owners: dict[str, int] = {}
        """How many runs each owner has."""
        self.leases: dict[str, LeaseFact] = {}
        self.closed: deque[LeaseFact] = deque(maxlen=CLOSED_KEPT)
        self.accounts = Accounts()
        self.budgets: dict[str, Budget] = {}
        self.conditions: dict[tuple[str, str], Condition] = {}
        self.charges: dict[DayKey, list[int]] = {}
        self.taken: dict[str, dict[int, str]] = {}
        """Leased ordinals of each node, and their leases."""
        self.plans: dict[str, int] = {}
        """cover_plans_total by result."""
        self.denied: dict[tuple[str, str], int] = {}
        """budget_lending_denied_total by (budget, envelope)."""
        self.posted: dict[tuple[str, str], int] = {}
        """All GPU-milliseconds ever posted, by payer."""
        self.resolver = ResolverState()
        self.reserved: dict[str, str] = {}
        """Runs that have a reservation, and which."""
        self._names: dict[str, set[str]] = {}
        """Of the objects of each kind."""
        self._book: Book | None = None
        self._nodes: list[Node] | None = None
        self._placements: dict[tuple[object, ...], Placement] = {}
        self._free: dict[str, int] = {}

    def apply(self, entry: Entry) -> None:
        """Fold one entry; one that was folded before is passed over."""
        if entry.seq <= self.seq:
            return
        require(entry.seq == self.seq + 1, "entries are folded in order, none left out")
        fold = _FOLDS.get(entry.kind)
        if fold is not None:
            fold(self, entry, entry.body)
        self.seq, self.time_ms = entry.seq, max(self.time_ms, entry.time_ms)

    # -- questions ----------------------------------------------------------------------------

    def get(self, kind: str, name: str) -> Stored | None:
        """An object, if there is one."""
        return self.objects.get((kind, name))

    def of_kind(self, kind: str) -> Iterator[Stored]:
        """All objects of a kind, by name."""
        for name in sorted(self._names.get(kind, ())):
            yield self.objects[kind, name]

    def book(self, now_ms: int) -> Book:
        """Budgets and usage for covering requests; the family graph is kept between edits."""
        if self._book is None:
            self._book = Book(self.budgets.values(), {})
        self._book.usage = self.accounts.at(now_ms)
        return self._book

    def nodes(self) -> list[Node]:
        """Nodes with the devices that nobody leases; kept until one of either changes."""
        if self._nodes is not None:
            return self._nodes
        found = []
        for stored in self.of_kind("Node"):
            spec = node_spec(stored)
            taken = self.taken.get(stored.name, {})
            free = tuple(i for i in range(spec.devices) if i not in taken)
            found.append(to_node(stored.name, spec, free))
        self._nodes = found
        return found

    def place(self, gang: Gang) -> Placement:
        """Where a gang would go now; worked out once for all of its shape that wait.

        After a large resolve thousands wait, most of them alike, for a few devices of many nodes.
        """
        where = tuple(sorted(gang.location.items()))
        key = (
            gang.flavor,
            gang.gpus,
            gang.group_gpus,
            gang.spares_per_group,
            where,
            gang.elsewhere,
        )
        known = self._placements.get(key)
        if known is None:
            nodes = [node for node in self.nodes() if node.free]
            known = self._placements[key] = place(nodes, gang)
        return known

    def free_gpus(self, flavor: str) -> int:
        """Devices that nobody leases, on nodes in service; kept like the nodes."""
        if not self._free:
            for node in self.nodes():
                free = 0 if node.cordoned else len(node.free)
                self._free[node.flavor] = self._free.get(node.flavor, 0) + free
        return self._free.get(flavor, 0)

    def _moved(self) -> None:
        """A device was leased or given back, or there are other nodes."""
        self._nodes = None
        self._placements.clear()
        self._free.clear()

    def pending(self) -> list[str]:
        """Runs that wait, in order of submission and then name."""
        waiting = [
            (state.submitted_seq, name)
            for name, state in self.live.items()
            if state.phase is Phase.PENDING and self.is_pending(name)
        ]
        return [name for _, name in sorted(waiting)]

    def is_pending(self, run: str) -> bool:
        """Whether a run is there, and waits to be started as soon as it fits."""
        state = self.runs.get(run)
        if state is None or state.phase is not Phase.PENDING or state.stopping:
            return False
        return not self.waits_for_time(run)

    def waits_for_time(self, run: str) -> bool:
        """Whether a run is to be started by its reservation, and not as soon as it fits."""
        name = self.reserved.get(run)
        return name is not None and self.resolver.reservations[name].waits

    def run_spec(self, name: str) -> RunSpec:
        """The spec of a run that exists."""
        return of_kind(self.objects["Run", name].spec, RunSpec, "a Run has a run's spec")

    def owner_of(self, stored: Stored) -> str | None:
        """Whose an object is: a reservation is its run's owner's."""
        spec = stored.spec
        if isinstance(spec, ReservationSpec):
            run = self.get("Run", spec.run)
            return None if run is None else self.owner_of(run)
        return None if isinstance(spec, NodeSpec) else spec.owner

    def next_job(self, name: str) -> str:
        """The plan id of a run's next start; another run of the same name has another uid."""
        uid, attempt = self.objects["Run", name].uid, self.runs[name].attempt
        return f"{job_prefix(name, uid)}{attempt + 1}"

    def is_funded(self, lease_id: str) -> bool:
        """Whether an open lease is paid for."""
        return self.accounts.of_lease(lease_id).leases[lease_id].unfunded_ms is None

    def put(self, stored: Stored) -> None:
        """An object as it is from now on."""
        key = (stored.kind, stored.name)
        if key not in self.objects and isinstance(stored.spec, RunSpec):
            owner = stored.spec.owner
            self.run_owners[owner] = self.run_owners.get(owner, 0) + 1
        self.objects[key] = stored
        self._names.setdefault(stored.kind, set()).add(stored.name)

    def _drop(self, kind: str, name: str) -> None:
        stored = self.objects.pop((kind, name))
        self._names[kind].discard(name)
        if isinstance(stored.spec, RunSpec):
            owner = stored.spec.owner
            self.run_owners[owner] -= 1
            if not self.run_owners[owner]:
                del self.run_owners[owner]
            del self.runs[name]
            self.live.pop(name, None)

    def adopt(self, fact: LeaseFact) -> None:
        """Index an open lease of a run by its id and its devices."""
        self._moved()
        self.leases[fact.id] = fact
        for slot in fact.slots:
            node, ordinal = parse_slot(slot)
            taken = self.taken.setdefault(node, {})
            require(ordinal not in taken, "a device is leased once")
            taken[ordinal] = fact.id

    # -- folds --------------------------------------------------------------------------------

    def _object_applied(self, entry: Entry, body: Mapping[str, Any]) -> None:
        kind, name = body["kind"], body["name"]
        before = self.objects.get((kind, name))
        spec = read_spec(kind, body["spec"])
        self.put(
            Stored(
                kind,
                name,
                body["uid"],
                body["generation"],
                entry.seq,
                entry.time_ms if before is None else before.created_ms,
                body["labels"],
                spec,
                body["spec"],
                entry.author if before is None else before.user,
            )
        )
        self._moved()
        if isinstance(spec, BudgetSpec):
            self.budgets[name] = to_budget(name, spec)
            self.accounts.define(self.budgets[name], entry.time_ms)
            self._book = None
        elif isinstance(spec, RunSpec) and before is None:
            state = RunState(submitted_seq=entry.seq, since_ms=entry.time_ms)
            self.runs[name] = self.live[name] = state
        elif isinstance(spec, ReservationSpec) and before is None:
            self.reserved[spec.run] = name
            self.resolver.reservations[name] = Reservation(since_ms=entry.time_ms)
        self.resolver.world_seq = entry.seq

    def _object_deleted(self, entry: Entry, body: Mapping[str, Any]) -> None:
        kind, name = body["kind"], body["name"]
        self._drop(kind, name)
        self._moved()
        if kind == "Budget":
            del self.budgets[name]
            self._book = None
            for key in [key for key in self.conditions if key[0] == name]:
                del self.conditions[key]
        elif kind == "Reservation":
            del self.resolver.reservations[name]
            self.reserved = {run: by for run, by in self.reserved.items() if by != name}
        self.resolver.world_seq = entry.seq

    def _run_phase(self, entry: Entry, body: Mapping[str, Any]) -> None:
        state = self.runs[body["run"]]
        phase = Phase(body["phase"])
        if phase is not state.phase:
            state.since_ms = entry.time_ms
        state.phase, state.reason, state.message = phase, body["reason"], body["message"]
        state.paused, state.stopping = body.get("paused", False), body.get("stopping", False)
        state.shortfall_gpus = body.get("shortfall_gpus", 0)
        if state.shortfall_gpus:
            state.refusal = None  # it is funded now, and waits for devices alone
        if phase is Phase.RUNNING and body.get("job") is not None:
            state.job, state.started_ms = body["job"], entry.time_ms
            state.attempt += 1
            state.refusal, state.shrunk = None, False
            state.numbered, state.grows_to, state.grown = len(state.leases), 0, False
        if phase is not Phase.RUNNING:
            state.job, state.shrunk, state.grows_to, state.grown = None, False, 0, False
        if phase.ended:
            self.live.pop(body["run"], None)
            state.ended_ms = body["ended_ms"]
            state.exit_code, state.exit_signal = body.get("code"), body.get("signal")
            state.exit_reason = body.get("exit_reason")

    def _run_grown(self, entry: Entry, body: Mapping[str, Any]) -> None:
        state = self.runs[body["run"]]
        if body["width"] >= state.grows_to:
            state.shrunk, state.grows_to = False, 0

    def _gpu_cover(self, entry: Entry, body: Mapping[str, Any]) -> None:
        state, output = self.runs[body["run"]], body["output"]
        refusal = output["refusal"]
        result = "funded" if refusal is None else refusal["code"]
        self.plans[result] = self.plans.get(result, 0) + 1
        state.refusal = refusal
        if state.phase is not Phase.RUNNING:  # else it grows; how it started stays to be explained
            state.cover_seq = entry.seq
        for binding in () if refusal is None else refusal["binding"]:
            if binding["kind"] in ("acl", "lending"):
                key = (binding["budget"], binding["name"])
                self.denied[key] = self.denied.get(key, 0) + 1

    def _gpu_place(self, entry: Entry, body: Mapping[str, Any]) -> None:
        state = self.runs[body["run"]]
        if state.phase is not Phase.RUNNING:
            state.place_seq = entry.seq

    def _lease_open(self, entry: Entry, body: Mapping[str, Any]) -> None:
        fact = LeaseFact(
            body["lease"],
            body["run"],
            body["owner"],
            body["role"],
            body["group"],
            tuple(body["slots"]),
            body["budget"],
            body["envelope"],
            body["borrowed"],
            body["start_ms"],
            body["expected_end_ms"],
            body["reason"],
            entry.seq,
            payer=self.budgets[body["budget"]].owner,
        )
        state = self.runs[fact.run]
        state.leases[fact.id] = fact
        if fact.reason == "Grow":
            state.numbered, state.grown = state.numbered + 1, True
        self.resolver.world_seq = entry.seq
        self.adopt(fact)
        self.accounts.hold(fact.to_lease())

    def _lease_close(self, entry: Entry, body: Mapping[str, Any]) -> None:
        fact = self.leases.pop(body["lease"])
        self._moved()
        state = self.runs[fact.run]
        if body["reason"] == "Shrink":
            state.shrunk = True
            # What its owner gave up is given up; what an outcome took may come back.
            if body.get("outcome") is None or not state.numbered:
                state.grows_to = 0
            elif not state.grows_to:
                state.grows_to = state.width
        del state.leases[fact.id]
        for slot in fact.slots:
            node, ordinal = parse_slot(slot)
            del self.taken[node][ordinal]
        charge = self.accounts.post(fact.id, body["end_ms"])
        # The charge stands in the entry after this one; it must be what the accounts say.
        self.closed.append(
            replace(
                fact,
                end_ms=body["end_ms"],
                end_reason=body["reason"],
                used_ms=charge.used_ms,
                overdraft_ms=charge.overdraft_ms,
            )
        )
        resolving.lease_closed(self, entry, body)
        payer = (fact.budget, fact.envelope)
        self.posted[payer] = self.posted.get(payer, 0) + charge.used_ms
        for part in charge.parts:
            key = (part.day, fact.owner, fact.payer, *payer, fact.borrowed)
            sums = self.charges.setdefault(key, [0, 0])
            sums[0] += part.used_ms
            sums[1] += part.overdraft_ms

    def _charge_post(self, entry: Entry, body: Mapping[str, Any]) -> None:
        last = self.closed[-1]
        require(last.id == body["lease"], "a charge follows its lease's end")
        require(
            (last.used_ms, last.overdraft_ms) == (body["used_ms"], body["overdraft_ms"]),
            "the accounts post what was recorded",
        )

    def _lease_unfunded(self, entry: Entry, body: Mapping[str, Any]) -> None:
        self.resolver.world_seq = entry.seq
        self.accounts.of_lease(body["lease"]).demote(body["lease"], body["at_ms"])

    def _lease_funded(self, entry: Entry, body: Mapping[str, Any]) -> None:
        self.resolver.world_seq = entry.seq
        self.accounts.of_lease(body["lease"]).restore(body["lease"], body["at_ms"])

    def _budget_condition(self, entry: Entry, body: Mapping[str, Any]) -> None:
        key = (body["budget"], body["type"])
        before = self.conditions.get(key)
        moved = before is None or before.status != body["status"]
        self.conditions[key] = Condition(
            body["type"],
            body["status"],
            body["reason"],
            body["message"],
            body["generation"],
            entry.time_ms if moved or before is None else before.since_ms,
        )


_FOLDS: dict[str, Callable[[Projection, Entry, Mapping[str, Any]], None]] = {
    "object.applied": Projection._object_applied,
    "object.deleted": Projection._object_deleted,
    "run.phase": Projection._run_phase,
    "run.grown": Projection._run_grown,
    "gpu.fund": Projection._gpu_cover,
    "gpu.place": Projection._gpu_place,
    "lease.open": Projection._lease_open,
    "lease.close": Projection._lease_close,
    "charge.post": Projection._charge_post,
    "lease.unfunded": Projection._lease_unfunded,
    "lease.funded": Projection._lease_funded,
    "budget.condition": Projection._budget_condition,
    **resolving.FOLDS,
}


def parse_slot(slot: str) -> tuple[str, int]:
    """`node#ordinal`."""
    node, _, ordinal = slot.partition("#")
    return node, int(ordinal)


def node_spec(stored: Stored) -> NodeSpec:
    """The spec of a Node."""
    return of_kind(stored.spec, NodeSpec, "a Node has a node's spec")
