"""A dataplane without a network, for simulation and tests: the caller brings clock and flows.

    dataplane = MemoryDataplane(clock_ms)
    verdict = dataplane.route("web", 7)            # an explicit number walks the slots, exactly
    verdict = dataplane.route("web", b"10.0.0.9")  # a flow's bytes are hashed
    dataplane.done("web", verdict.backend, latency_ms=12.0, ok=True)

It is judged by the suite of the real ones. The same calls give the same verdicts.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import gcd

from fairlead.core.invariant import InvariantBroken, known
from fairlead.core.traffic.admission import admit, rendezvous
from fairlead.core.traffic.alone import Relaxed, has_room, relax
from fairlead.core.traffic.limits import Concurrency, Fallback, liveness, share
from fairlead.core.traffic.model import Bucket
from fairlead.core.traffic.sighting import GroupSeen, Liveness
from fairlead.core.traffic.state import AdmissionMode
from fairlead.dataplane import tables
from fairlead.dataplane.proxy import BackendCount, GroupCount, RequestLog
from fairlead.dataplane.tables import Active, active, configured
from fairlead.ports.dataplane import SCHEMA_VERSION, RouteGroup, Table
from fairlead.ports.faults import PermanentFault


@dataclass(frozen=True, slots=True)
class RoutingVerdict:
    """Where a flow goes, or how it was refused; exactly one of the two."""

    backend: str | None = None
    refused: AdmissionMode | None = None


@dataclass(slots=True)
class _Group:
    group: RouteGroup
    active: Active
    bucket: Bucket | None = None
    relaxed: Relaxed | None = None
    turn: int = 0
    counts: GroupCount = field(default_factory=GroupCount)


class MemoryDataplane:
    """Routes numbers and bytes instead of connections."""

    name = "memory"
    sources: Mapping[str, str] = {
        "requests": "route()",
        "queue": "waiting()",
        "latency": "done(), p95 of successes over 5 s",
        "errors": "done() and connect_failed()",
    }

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._beat_ms = clock_ms()
        self._groups: dict[str, _Group] = {}
        self._log = RequestLog()

    def configure(self, groups: Sequence[RouteGroup]) -> None:
        tables.check_groups(groups)
        before, self._groups = self._groups, {}
        for group in groups:
            now = before.get(group.name) or _Group(group, active(group, None))
            now.group, now.active = group, active(group, now.active)
            counted = now.counts.backends
            now.counts.backends = {
                backend.id: counted.get(backend.id, BackendCount(queue=None))
                for backend in group.backends
            }
            self._groups[group.name] = now
        self._log.keep({(group.name, backend.id) for group in groups for backend in group.backends})
        self.heartbeat()

    def schema_version(self) -> int:
        return SCHEMA_VERSION

    def apply(self, table: Table, *, decision: int | None) -> None:
        group = configured(self._groups, table.group)
        tables.check_table(table, {table.group: group.group})
        tables.check_flip(table, group.active.table.epoch, self.liveness())
        group.active = Active(table, decision)

    def limit(self, group: str, bound: Concurrency, *, decision: int | None) -> None:
        """Shares are compared on every request here."""

    def heartbeat(self) -> None:
        self._beat_ms = self._clock_ms()
        for group in self._groups.values():
            group.relaxed = None

    def drain(self, group: str, backend: str, *, decision: int | None) -> None:
        """Nothing is kept here; checks the names like any other dataplane."""
        self._counts(group, backend)

    def liveness(self) -> Liveness:
        return liveness(self._clock_ms() - self._beat_ms)

    def read(self) -> Mapping[str, GroupSeen]:
        now_ms, alive, seen = self._clock_ms(), self.liveness(), {}
        for name, group in self._groups.items():
            names = {id: id for id in group.counts.backends}
            signals = partial(self._log.signals, name, now_ms)
            seen[name] = group.counts.seen(group.active, alive, signals, names)
        return seen

    def detach(self) -> None:
        """Nothing to let go."""

    def remove(self) -> None:
        self._groups = {}

    # What clients and backends do with it.

    def route(self, group: str, flow: int | bytes | None = None) -> RoutingVerdict:
        """Admit a flow and say where it goes. A number is a place in the order of the slots, so
        that any `Σ slots` numbers in a row are split exactly; None takes the next number."""
        here = configured(self._groups, group)
        if flow is None:
            flow, here.turn = here.turn, here.turn + 1
        table, alone = here.active.table, self.liveness() is Liveness.FALLBACK
        limits, counts = table.limits, here.counts
        admission = limits.fallback.admission if alone else limits.admission
        bound = None if alone else limits.concurrency
        inside = sum(backend.open for backend in counts.backends.values())
        most = self._relax(here) if alone else None if bound is None else bound.inside_max
        if not (limits.fallback.members if alone else any(table.slots.values())):
            return _refuse(counts, AdmissionMode.HARD)
        if most is not None and inside >= most:
            return _refuse(counts, AdmissionMode.SOFT)
        if admission.mode != AdmissionMode.NORMAL:
            rate, burst = admission.rate_per_s or 0.0, admission.burst or 0.0
            now_us = self._clock_ms() * 1000
            here.bucket, allowed = admit(here.bucket, now_us=now_us, rate_per_s=rate, burst=burst)
            if not allowed:
                return _refuse(counts, admission.mode)
        if alone:
            key = flow if isinstance(flow, bytes) else str(flow).encode()
            members = _roomy(limits.fallback, counts, inside + 1)
            backend = known(rendezvous(key, members), "a member for every flow")
        else:
            backend = _choose(flow, here, bound, inside + 1)
        counts.admitted += 1
        counts.backends[backend].admitted += 1
        counts.backends[backend].open += 1
        return RoutingVerdict(backend=backend)

    def _relax(self, here: _Group) -> int:
        """How much may be inside without an agent."""
        successes = sum(backend.successes for backend in here.counts.backends.values())
        bound, now_ms = here.active.table.limits.fallback.bound, self._clock_ms()
        here.relaxed = relax(bound, here.relaxed, now_ms=now_ms, successes=successes)
        return here.relaxed.inside_max

    def done(self, group: str, backend: str, *, latency_ms: float, ok: bool) -> None:
        counts = self._counts(group, backend)
        counts.open -= 1
        if ok:
            counts.successes += 1
        else:
            counts.errors += 1
        self._log.add(group, backend, self._clock_ms(), latency_ms if ok else None, connected=True)

    def connect_failed(self, group: str, backend: str) -> None:
        counts = self._counts(group, backend)
        counts.open -= 1
        counts.connect_failures += 1
        self._log.add(group, backend, self._clock_ms(), None, connected=False)

    def waiting(self, group: str, backend: str, queue: int | None) -> None:
        self._counts(group, backend).queue = queue

    def _counts(self, group: str, backend: str) -> BackendCount:
        backends = configured(self._groups, group).counts.backends
        if backend not in backends:
            raise PermanentFault(f"backend {backend!r} is not in group {group!r}")
        return backends[backend]


def _refuse(counts: GroupCount, mode: AdmissionMode) -> RoutingVerdict:
    counts.refused_soft += mode == AdmissionMode.SOFT
    counts.refused_hard += mode == AdmissionMode.HARD
    return RoutingVerdict(refused=mode)


def _roomy(fallback: Fallback, counts: GroupCount, inside: int) -> list[str]:
    """Members that do not hold too much of what is inside."""
    members = fallback.members
    held = {id: counts.backends[id].open for id in members}
    rest = {"inside": inside, "members": len(members)}
    return [id for id in members if has_room(fallback.bound, open=held[id], **rest)]


def _choose(flow: int | bytes, group: _Group, bound: Concurrency | None, inside: int) -> str:
    """The backend whose slot it is; in a bounded group the first one in the order of the slots that
    does not hold too much, if any."""
    slots = group.active.table.slots
    total = sum(slots.values())
    if isinstance(flow, bytes):
        flow = int.from_bytes(hashlib.blake2b(flow, digest_size=8).digest(), "big")
    first = _slotted(flow, slots, total)
    if bound is None:
        return first
    for turn in range(total):
        id = _slotted(flow + turn, slots, total)
        if group.counts.backends[id].open < share(slots[id], total, inside, bound.room_least):
            return id
    return first


def _slotted(number: int, slots: Mapping[str, int], total: int) -> str:
    """Numbers step through the slots by a stride near the golden section, so that neighbours in
    time do not all fall to the same backend."""
    stride = max(1, total * 618 // 1000)
    while gcd(stride, total) != 1:
        stride += 1
    slot = number * stride % total
    for id in sorted(slots):
        slot -= slots[id]
        if slot < 0:
            return id
    raise InvariantBroken("a slot number is below the number of slots")
