"""Owner recall: an owner whose own envelopes are used by others takes their funding back.

`core.gpu.recall` decides; here are its input and the entries that follow. The leases are unfunded
from then on, and stay so while the run that they were recalled for waits. Where it lacks devices,
unfunded runs are the first to be preempted (`reclaim.py`, `reservations.py`), with their grace.
"""

from collections.abc import Container, Sequence
from functools import partial

from fairlead.core import gpu
from fairlead.core.gpu.recall import without
from fairlead.core.reasons import RankCause
from fairlead.engine.gpu.committer import Committer, Context
from fairlead.engine.gpu.entries import LeaseUnfunded, NewEntry, RecallDecision
from fairlead.engine.gpu.orders import TurnOrder, rank_order
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.starting import fund_input
from fairlead.engine.gpu.state import LeaseFact, Phase, RunState
from fairlead.schema import objects
from fairlead.schema.gpu import STYLE, recall_document


class Recalls:
    """Once a turn, for every run that waits for the funding of its own owner."""

    def __init__(self, committer: Committer) -> None:
        self._committer, self._projection = committer, committer.projection
        self._asked: dict[str, tuple[int, str]] = {}
        """What waiting runs ask for, by their versions: most ask for what another one asks for."""

    def proceed(self, now_ms: int) -> None:
        projection, lent = self._projection, lent_leases(self._projection)
        before, self._asked = self._asked, {}
        if not lent:
            return
        seq, in_vain = projection.seq, set[str]()
        order = self._order(now_ms, lent)
        for run in order.names:
            stored, asked = projection.get("Run", run), before.get(run)
            if stored is None:
                continue  # another replica removed it
            if asked is None or asked[0] != stored.version:
                spec = projection.run_spec(run)
                asked = stored.version, repr((objects.to_request(spec), objects.to_shape(spec)))
            self._asked[run] = asked
            if projection.seq != seq:
                seq = projection.seq
                in_vain.clear()
            if asked[1] in in_vain:
                continue
            if not self._committer.commit(partial(self._recall, run, now_ms, order)):
                in_vain.add(asked[1])

    def _order(self, now_ms: int, owners: Container[str]) -> TurnOrder:
        """Of runs of some owners that wait."""
        projection, hold_ms = self._projection, self._committer.config.hold_ms
        runs = (
            run
            for run, state in projection.live.items()
            if _waits(state)
            and projection.run_spec(run).owner in owners
            and not projection.waits_for_runs(run)
        )
        return rank_order(projection, RankCause.RECALL, runs, now_ms, hold_ms)

    def _recall(self, run: str, now_ms: int, order: TurnOrder) -> Sequence[NewEntry]:
        state = self._projection.live.get(run)
        if state is None or not _waits(state):
            return []
        return recall_entries(Context(self._projection, now_ms), run, order)


def _waits(state: RunState) -> bool:
    return state.phase is Phase.PENDING and not state.stopping


def lent_leases(projection: Projection) -> dict[str, list[LeaseFact]]:
    """Funded leases on envelopes of other owners than their run's, by the owner who pays."""

    def find() -> dict[str, list[LeaseFact]]:
        found: dict[str, list[LeaseFact]] = {}
        for lease in projection.leases.values():
            payer = projection.budgets[lease.budget].owner
            if payer != lease.owner and projection.is_funded(lease.id):
                found.setdefault(payer, []).append(lease)
        return found

    return projection.kept("lent", find)


def asked_of(
    projection: Projection, request: gpu.Request, now_ms: int
) -> tuple[gpu.LentLease, ...]:
    """The leases that the owner of a request could recall."""
    families = projection.book(now_ms).families
    found = []
    for lease in lent_leases(projection).get(request.owner, ()):
        account = projection.accounts.of_lease(lease.id)
        if account.envelope.flavor != request.flavor:
            continue
        until_ms = account.leases[lease.id].hold_end_ms
        relation = gpu.relation_of(families, lease.owner, request.owner, borrowed=lease.borrowed)
        found.append(
            gpu.LentLease(
                lease.id,
                lease.run,
                lease.owner,
                relation,
                lease.budget,
                lease.envelope,
                lease.gpus,
                lease.start_ms,
                0 if until_ms is None else lease.gpus * max(0, until_ms - now_ms),
            )
        )
    return tuple(sorted(found, key=lambda row: row.id))


def recall_of(projection: Projection, spec: objects.RunSpec, now_ms: int) -> gpu.Recall:
    """What a run would recall if it waited now."""
    request = objects.to_request(spec)
    leases, room = asked_of(projection, request, now_ms), room_of(projection, spec)
    return gpu.recall(projection.book(now_ms), request, leases, now_ms, room)


def room_of(projection: Projection, spec: objects.RunSpec) -> gpu.RecallRoom:
    """The devices that a run could have if every lease had ended."""

    def find() -> tuple[gpu.Node, ...]:
        leased = (slot for lease in projection.leases.values() for slot in lease.slots)
        nodes = projection.devices.after(leased).nodes
        return tuple(node for node in nodes if node.flavor == spec.flavor and not node.cordoned)

    nodes = projection.kept(f"all devices of {spec.flavor}", find)
    return gpu.RecallRoom(nodes, objects.to_shape(spec))


def recall_entries(at: Context, run: str, order: TurnOrder | None = None) -> list[NewEntry]:
    """The decision and what follows; none where it is covered, or a recall would not help. A
    preview has no order: it is of one run."""
    projection, now_ms = at.projection, at.now_ms
    spec, book = projection.run_spec(run), projection.book(now_ms)
    request = objects.to_request(spec)
    if gpu.cover(book, request, now_ms).funded:
        return []  # as `recall` would say: most of thousands, at every turn
    leases, room = asked_of(projection, request, now_ms), room_of(projection, spec)
    found = gpu.recall(book, request, leases, now_ms, room)
    if not found.leases:
        return []
    recalled = {row.lease for row in found.leases}
    after = without(book, [lease for lease in leases if lease.id in recalled])
    decided_by = room.deciding(after, request, now_ms)
    document = recall_document(fund_input(projection, request, now_ms), leases, decided_by)
    reasons = tuple(sorted({row.reason.value for row in found.leases}))
    body = RecallDecision(run, STYLE.from_core(found))
    ordered = [] if order is None else order.entries(run)
    made = [*ordered, at.entry(body, input=document, reasons=reasons)]
    decision = projection.seq + len(made)
    for row in found.leases:
        lease = projection.leases[row.lease]
        message = f"{request.owner} recalled envelope {lease.budget}/{lease.envelope} for run {run}"
        unfunded = LeaseUnfunded(
            lease=lease.id,
            run=lease.run,
            at_ms=now_ms,
            kind="recall",
            budget=lease.budget,
            name=lease.envelope,
            hours=False,
            message=message,
            recalled_for=run,
            decision=decision,
        )
        made.append(at.entry(unfunded))
    return made
