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

    def proceed(self, now_ms: int) -> None:
        projection, lent = self._projection, lent_leases(self._projection)
        if not lent:
            return
        requests, alike = _Requests(projection), dict[str, list[str]]()
        for run in projection.live:
            if self._may_ask(run, lent):
                alike.setdefault(requests.of(run), []).append(run)
        # Thousands may wait, and ask for the same: those are ordered that a recall would help.
        asked = {
            run: request
            for request, runs in alike.items()
            if recalled(projection, runs[0], now_ms)
            for run in runs
        }
        if not asked:
            return
        seq, in_vain = projection.seq, set[str]()
        order = rank_order(
            projection, RankCause.RECALL, asked, now_ms, self._committer.config.hold_ms
        )
        for run in order.names:
            if projection.seq != seq:
                seq = projection.seq
                in_vain.clear()
            request = asked[run]
            if request in in_vain:
                continue
            if not self._committer.commit(partial(self._recall, run, now_ms, order)):
                in_vain.add(request)

    def _may_ask(self, run: str, owners: Container[str]) -> bool:
        """Whether a run of one of these owners waits."""
        projection = self._projection
        if not _waits(projection.live[run]) or projection.run_spec(run).owner not in owners:
            return False
        return not projection.waits_for_runs(run)

    def _recall(self, run: str, now_ms: int, order: TurnOrder) -> Sequence[NewEntry]:
        state = self._projection.live.get(run)
        if state is None or not _waits(state):
            return []
        return recall_entries(Context(self._projection, now_ms), run, order)


class _Requests:
    """What runs ask for, as text: most have the spec of another one."""

    def __init__(self, projection: Projection) -> None:
        self._projection = projection
        self._known: dict[int, tuple[objects.RunSpec, str]] = {}
        """By the id of the spec, which is kept with it."""

    def of(self, run: str) -> str:
        spec = self._projection.run_spec(run)
        known = self._known.get(id(spec))
        if known is None:
            text = repr((objects.to_request(spec), objects.to_shape(spec)))
            known = self._known[id(spec)] = spec, text
        return known[1]


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


def recalled(projection: Projection, run: str, now_ms: int) -> gpu.Recall | None:
    """What a run recalls; None where it is covered, or a recall would not help."""
    spec = projection.run_spec(run)
    if gpu.cover(projection.book(now_ms), objects.to_request(spec), now_ms).funded:
        return None  # as `recall` would say: most of thousands, at every turn
    found = recall_of(projection, spec, now_ms)
    return found if found.leases else None


def recall_entries(at: Context, run: str, order: TurnOrder | None = None) -> list[NewEntry]:
    """The decision and what follows; none where it is covered, or a recall would not help. A
    preview has no order: it is of one run."""
    projection, now_ms = at.projection, at.now_ms
    spec, book = projection.run_spec(run), projection.book(now_ms)
    request, found = objects.to_request(spec), recalled(projection, run, now_ms)
    if found is None:
        return []
    leases, room = asked_of(projection, request, now_ms), room_of(projection, spec)
    taken = {row.lease for row in found.leases}
    after = without(book, [lease for lease in leases if lease.id in taken])
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
