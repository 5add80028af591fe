"""What is kept for the first runs of the queue, and which runs may start beside them.

What `core.gpu.heads` and `core.gpu.backfill` look at is made here of leases and nodes; it is
recorded where it lets a run start before a head, or holds one back.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from fairlead.core import gpu
from fairlead.core.canonical import Rendered, text
from fairlead.core.gpu.backfill import check
from fairlead.core.gpu.cover import Candidate, Line, find_route
from fairlead.core.gpu.place import Gang, Node, Placement
from fairlead.core.invariant import known
from fairlead.engine.gpu.claims import OwnerClaims
from fairlead.engine.gpu.committer import Context
from fairlead.engine.gpu.entries import BackfillDecision, Document, NewEntry
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.state import LeaseFact, Phase, parse_slot
from fairlead.engine.gpu.values import Config
from fairlead.schema import objects
from fairlead.schema.gpu import STYLE, from_backfill
from fairlead.schema.objects import max_runtime_ms

_End = gpu.Release | gpu.LeaseCharge
_Labels = tuple[tuple[str, str], ...]


class _View(NamedTuple):
    """The pools of a flavor, at one entry of the ledger and one time."""

    pools: dict[str, gpu.Pool]
    pool_of: Mapping[str, str]
    """Of nodes."""
    ends: list[tuple[str, _End]]
    """Of which run's leases."""
    charges: tuple[gpu.LeaseCharge, ...]
    outlook: gpu.Outlook
    promises: dict[str, gpu.Promise]
    overruns: tuple[gpu.Overrun, ...]
    """Runs that are past their own estimate."""

    def overruns_for(self, owner: str) -> tuple[gpu.Overrun, ...]:
        """Those that decide about a run of an owner: one of the same, and the last to start."""
        chosen = [next((row for row in self.overruns if row.owner == owner), None)]
        chosen.append(max(self.overruns, key=lambda row: row.start_ms, default=None))
        return tuple(dict.fromkeys(row for row in chosen if row is not None))


class BackfillAnswer(NamedTuple):
    """What was asked of `core.gpu.backfill`, and what it decided."""

    asked: gpu.BackfillRequest
    found: gpu.Backfill

    def entry(self, at: Context, plan_id: str | None) -> NewEntry:
        """The decision with its input, but for leases that end after the last promised start."""
        last_ms = max(promise.start_ms or 0 for promise in self.found.promises)
        asked, policy = self.asked, self.asked.policy

        def written(ends: Iterable[_End]) -> list[Rendered]:
            return [_written(end) for end in ends if policy.end_ms(end, asked.now_ms) <= last_ms]

        def as_written(pool: gpu.Pool) -> Document:
            bare: Document = STYLE.from_core(replace(pool, releases=()))
            return {**bare, "releases": written(pool.releases)}

        caps = (cap for head in asked.heads if head.funding for cap in head.funding.caps)
        paying = {envelope for cap in caps for envelope in cap.envelopes}
        counted = (charge for charge in asked.charges if charge.envelope in paying)
        body = BackfillDecision(asked.run.run, from_backfill(asked, self.found))
        document: Document = STYLE.from_core(replace(asked, pools=(), charges=()))
        document["pools"] = [as_written(pool) for pool in asked.pools]
        document["charges"] = written(counted)
        effect, reasons = "backfill" if plan_id else None, (self.found.reason.value,)
        return at.entry(body, plan_id, effect, input=document, reasons=reasons)


@lru_cache(8_192)
def _written(end: _End) -> Rendered:
    """As a record has it: a lease is in those of all runs that start beside it."""
    return Rendered(text(STYLE.from_core(end)))


class Promised(NamedTuple):
    """The earliest start of a head, and a run whose end makes it possible."""

    gang: Gang
    start_ms: int
    after: str | None
    lacks: str
    """`devices`, or `envelopes` that others use."""


class QueueHeads:
    """Runs of one turn that lack devices or funding and are first in their scope."""

    def __init__(self, projection: Projection, config: Config) -> None:
        self._projection, self._policy = projection, config.backfill
        self._hold_ms, enforced = config.hold_ms, config.resolver == "enforce"
        self.claims = OwnerClaims(projection, self._delays, enforced=enforced)
        self._by_flavor: dict[str, dict[str, gpu.QueueHead]] = {}
        self._views: dict[str, _View] = {}
        self._seen = (0, 0)
        self._looked_at: set[str] = set()
        """What refused runs ask for that were looked at in this turn: the next one is no head."""
        self.behind: set[str] = set()
        """Runs that wait for what owners claim of their envelopes."""
        self._leased: dict[str, _Leased] = {}
        """Of each lease: leases do not change, and there are thousands."""
        self._labels: dict[str, tuple[Mapping[str, str], _Labels]] = {}
        """Those of each node, and the same in order."""

    def begin(self) -> None:
        """A turn begins: who is first is found anew."""
        self._by_flavor.clear()
        self._looked_at.clear()
        self.behind.clear()

    def devices(self, flavor: str, now_ms: int) -> gpu.FreeDevices:
        """What runs of the queue may take: all that no open outcome keeps."""
        return self._projection.devices_outside(flavor, now_ms, hold_ms=self._hold_ms)

    def runs(self) -> Iterator[str]:
        """All heads of the turn."""
        return (run for heads in self._by_flavor.values() for run in heads)

    def add(self, run: str, found: gpu.Start, now_ms: int, due_ms: int | None = None) -> None:
        """A run that is funded and lacks devices: a head, if it is the first of its scope.
        `due_ms`: when its reservation became due."""
        gang = known(found.gang, "what is funded is a gang")
        heads = self._by_flavor.get(gang.flavor, {})
        if run in heads or self._is_full(heads, funded=True):
            return
        if self.leads(gang.flavor, gang.location):
            return
        shape = gpu.GangShape(gang.group_gpus, gang.spares_per_group)
        least = replace(gang, gpus=shape.without_spares(found.request.enough_gpus))
        funding = self._funding(found.request, now_ms)[0]
        since_ms = self._since_ms(run)
        self._promise(gpu.QueueHead(run, least, funding, since_ms, due_ms=due_ms), now_ms)

    def add_refused(
        self,
        run: str,
        request: gpu.Request,
        now_ms: int,
        alike: str | None = None,
        *,
        behind: bool = False,
    ) -> None:
        """A run that is not funded: a head, if it will be when leases have ended, and none before
        it could be paid by the same envelopes. `alike`: the same for all that ask for the same.
        `behind`: owners' claims on their own envelopes come before it, and it is none."""
        if behind:
            self.behind.add(run)
            return
        heads = self._by_flavor.get(request.flavor, {})
        if run in heads or alike in self._looked_at or self._is_full(heads, funded=False):
            return
        if alike is not None:
            self._looked_at.add(alike)
        funding, route = self._funding(request, now_ms)
        payers = {gpu.envelope_key(row.budget.name, row.envelope.name) for row in route}
        if not payers or not gpu.is_first(heads.values(), request.location, payers):
            return
        if not self._view(request.flavor, now_ms).outlook.charges.could_pay(funding):
            return
        shape = objects.to_shape(self._projection.run_spec(run))
        gang = shape.gang(request, gpu.Plan(request.enough_gpus, ()))
        if all(row.tier.value.endswith("elsewhere") for row in route):
            gang = replace(gang, elsewhere=True)
        since_ms, paying = self._since_ms(run), tuple(sorted(payers))
        self._promise(gpu.QueueHead(run, gang, funding, since_ms, paying), now_ms)

    def _is_full(self, heads: Mapping[str, gpu.QueueHead], *, funded: bool) -> bool:
        most = self._policy.heads_max
        return most is not None and gpu.is_full(heads.values(), most, funded=funded)

    def _funding(
        self, request: gpu.Request, now_ms: int
    ) -> tuple[gpu.HeadFunding, tuple[Candidate, ...]]:
        route, _ = find_route(self._projection.book(now_ms), request, now_ms, whole=True)
        return gpu.head_funding(route, request), route.candidates

    def _waits(self, run: str) -> bool:
        """Whether a head of the last turn waits still."""
        state = self._projection.live.get(run)
        return state is not None and state.phase is Phase.PENDING

    def _since_ms(self, run: str) -> int:
        """Since when a run waits to be started as soon as it fits."""
        projection, since_ms = self._projection, self._projection.runs[run].since_ms
        start = projection.reserved_start(run)
        return since_ms if start is None else max(since_ms, start.start_ms)

    def _promise(self, head: gpu.QueueHead, now_ms: int) -> None:
        """Keep a head that has an earliest start."""
        heads = self._by_flavor.setdefault(head.gang.flavor, {})
        heads[head.run] = head
        view = self._view(head.gang.flavor, now_ms)
        if view.promises[head.run].start_ms is None:
            del heads[head.run], view.promises[head.run]

    def leads(self, flavor: str, location: Mapping[str, str]) -> bool:
        """Whether a head of this scope that lacks devices was found in this turn."""
        return not gpu.is_first(self._by_flavor.get(flavor, {}).values(), location)

    def ask(
        self,
        run: str,
        request: gpu.Request,
        placement: Placement,
        now_ms: int,
        lines: Iterable[Line] = (),
        *,
        spec: objects.RunSpec | None = None,
    ) -> BackfillAnswer | None:
        """Whether a run may take the devices that were found for it; None: no head waits.
        `lines`: who pays; `spec`: of a run that is not there yet."""
        flavor = request.flavor
        heads = self._by_flavor.get(flavor)
        if not heads:
            return None
        view = self._view(flavor, now_ms)
        waiting = tuple(
            head for head in heads.values() if head.run != run and self._waits(head.run)
        )
        if not waiting:
            return None
        gpus: Counter[str] = Counter()
        for group in placement.groups:
            for slot in (*group.active, *group.spares):
                gpus[view.pool_of[parse_slot(slot)[0]]] += 1
        most_ms = max_runtime_ms(spec or self._projection.run_spec(run))
        latest_ms = None if most_ms is None else now_ms + most_ms
        estimate_ms = request.duration_ms
        end_ms = latest_ms if estimate_ms is None else now_ms + estimate_ms
        payments = tuple(
            gpu.Payment(gpu.envelope_key(line.budget, line.envelope), line.gpus, line.borrowed)
            for line in lines
        )
        asked = gpu.BackfillRequest(
            now_ms,
            gpu.Backfiller(
                run, dict(sorted(gpus.items())), end_ms, payments, request.owner, latest_ms
            ),
            waiting,
            tuple(view.pools.values()),
            self._policy,
            view.charges,
            view.overruns_for(request.owner),
        )
        promises = tuple(view.promises[head.run] for head in waiting)
        return BackfillAnswer(asked, check(asked, promises, view.outlook))

    def delays(self, run: str, spec: objects.RunSpec, found: gpu.Start, now_ms: int) -> bool:
        """Whether the start of a run that is not submitted yet would delay one that waits."""
        placement = known(found.placement, "what starts was placed")
        answer = self.ask(run, found.request, placement, now_ms, found.plan.lines, spec=spec)
        return answer is not None and not answer.found.starts

    def _delays(
        self,
        run: str,
        request: gpu.Request,
        placement: Placement,
        now_ms: int,
        lines: Sequence[Line],
    ) -> bool:
        answer = self.ask(run, request, placement, now_ms, lines)
        return answer is not None and not answer.found.starts

    def promised(self, run: str, flavor: str) -> Promised | None:
        """What a head was promised in the last turn; None: it is no head."""
        head = self._by_flavor.get(flavor, {}).get(run)
        if head is None:
            return None
        now_ms = self._seen[1]
        view = self._view(flavor, now_ms)
        start_ms = view.promises[run].start_ms
        if start_ms is None:
            return None
        ending = (of for of, part in view.ends if self._policy.end_ms(part, now_ms) == start_ms)
        lacks = "envelopes" if head.envelopes else "devices"
        return Promised(head.gang, start_ms, min(ending, default=None), lacks)

    def _view(self, flavor: str, now_ms: int) -> _View:
        seen = (self._projection.seq, now_ms)
        if seen != self._seen:
            self._seen = seen
            self._views.clear()
        view = self._views.get(flavor)
        if view is None:
            view = self._views[flavor] = self._look(flavor, now_ms)
        for run, head in self._by_flavor.get(flavor, {}).items():
            if run not in view.promises:
                view.promises[run] = gpu.Promise(run, view.outlook.promise_ms(head))
        return view

    def _look(self, flavor: str, now_ms: int) -> _View:
        pools: dict[str, gpu.Pool] = {}
        pool_of: dict[str, str] = {}
        free: Counter[str] = Counter()
        names: dict[_Labels, str] = {}
        for node in self.devices(flavor, now_ms).nodes:
            if node.flavor != flavor or node.cordoned:
                continue
            name = names.setdefault(self._labels_of(node), node.name)
            if name not in pools:
                pools[name] = gpu.Pool(name, node.location)
            pool_of[node.name] = name
            free[name] += len(node.free)
        releases: dict[str, list[gpu.Release]] = {name: [] for name in pools}
        ends: list[tuple[str, _End]] = []
        charges: list[gpu.LeaseCharge] = []
        runs, overruns = self._projection.runs, dict[str, gpu.Overrun]()
        for lease in self._projection.leases.values():
            parts, charge = self._parts(lease)
            if runs[lease.run].reclaim is not None:
                parts = [(on, self._reclaimed(lease, part)) for on, part in parts]
                charge = _charge(lease, parts)
            for on, release in parts:
                if on in pool_of:
                    if (lease.expected_end_ms or now_ms) < now_ms:
                        late = gpu.Overrun(lease.run, lease.owner, lease.start_ms)
                        overruns.setdefault(lease.run, late)
                    releases[pool_of[on]].append(release)
                    ends.append((lease.run, release))
            if charge is not None and self._projection.is_funded(lease.id):
                charges.append(charge)
                ends.append((lease.run, charge))
        pools = {
            name: replace(pool, free_gpus=free[name], releases=tuple(releases[name]))
            for name, pool in pools.items()
        }
        outlook = gpu.Outlook(pools.values(), now_ms, self._policy, charges)
        late_runs = tuple(row for _, row in sorted(overruns.items()))
        return _View(pools, pool_of, ends, tuple(charges), outlook, {}, late_runs)

    def _labels_of(self, node: Node) -> _Labels:
        labels, ordered = self._labels.get(node.name, (None, ()))
        if labels is not node.location:
            ordered = tuple(sorted(node.location.items()))
            self._labels[node.name] = (node.location, ordered)
        return ordered

    def _reclaimed(self, lease: LeaseFact, part: gpu.Release) -> gpu.Release:
        """What is given back ends with its grace, if not before."""
        reclaim = self._projection.runs[lease.run].reclaim
        if reclaim is None or not (reclaim.preempts or lease.id in reclaim.leases):
            return part
        end_ms = reclaim.due_ms if part.end_ms is None else min(part.end_ms, reclaim.due_ms)
        return replace(part, end_ms=end_ms)

    def _parts(self, lease: LeaseFact) -> "_Leased":
        found = self._leased.get(lease.id)
        if found is None:
            if len(self._leased) > 2 * len(self._projection.leases) + 100:
                self._leased.clear()
            times = (lease.start_ms, known_end_ms(self._projection, lease))
            gpus = Counter(parse_slot(slot)[0] for slot in lease.slots)
            parts = [(node, gpu.Release(count, *times)) for node, count in gpus.items()]
            found = self._leased[lease.id] = _Leased(parts, _charge(lease, parts))
        return found


def known_end_ms(projection: Projection, lease: LeaseFact) -> int | None:
    """When a lease ends by its run's `duration`, else by its `maxRuntime`; None: it has neither."""
    if lease.expected_end_ms is not None:
        return lease.expected_end_ms
    most_ms = max_runtime_ms(projection.run_spec(lease.run))
    return None if most_ms is None else lease.start_ms + most_ms


def ended_by(
    projection: Projection, flavor: str, at_ms: int, *, now_ms: int, policy: gpu.BackfillPolicy
) -> tuple[LeaseFact, ...]:
    """Leases of a flavor that are taken to have ended at a time: it is known when they end."""
    ends = (
        (lease, known_end_ms(projection, lease))
        for lease in projection.leases.values()
        if projection.run_spec(lease.run).flavor == flavor
    )
    return tuple(
        lease
        for lease, end_ms in ends
        if end_ms is not None
        and policy.end_ms(gpu.Release(lease.gpus, lease.start_ms, end_ms), now_ms) <= at_ms
    )


class _Leased(NamedTuple):
    """The devices of a lease by node, and what it takes of its envelope."""

    parts: list[tuple[str, gpu.Release]]
    charge: gpu.LeaseCharge | None


def _charge(lease: LeaseFact, parts: Sequence[tuple[str, gpu.Release]]) -> gpu.LeaseCharge | None:
    """What a lease takes of its envelope, as long as it holds its devices."""
    if not parts:
        return None
    _, part = parts[0]
    envelope = gpu.envelope_key(lease.budget, lease.envelope)
    return gpu.LeaseCharge(envelope, lease.gpus, part.start_ms, part.end_ms, lease.borrowed)
