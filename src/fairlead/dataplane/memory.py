"""A plane without a network, for simulation and tests: the caller brings clock, flows and outcomes.

    plane = MemoryPlane(clock_ms)
    verdict = plane.route("web", 7)            # an explicit number walks the slots, exactly
    verdict = plane.route("web", b"10.0.0.9")  # a flow's bytes are hashed
    plane.done("web", verdict.backend, latency_ms=12.0, ok=True)

It promises what the real planes promise, and is judged by the same suite. The same calls give the
same verdicts: there is no clock and no chance in here.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd

from fairlead.core.invariant import InvariantBroken, require
from fairlead.core.traffic.admission import Bucket, admit, rendezvous
from fairlead.dataplane.tables import (
    Current,
    check_groups,
    check_table,
    current,
    fallback_admission,
    fallback_members,
    held_max,
    liveness,
)
from fairlead.dataplane.window import Window
from fairlead.ports.dataplane import (
    SCHEMA_VERSION,
    BackendSeen,
    GroupSeen,
    Liveness,
    Mode,
    Proto,
    RouteGroup,
    Stale,
    Table,
)
from fairlead.ports.faults import PermanentFault


@dataclass(frozen=True, slots=True)
class Verdict:
    """Where a flow goes, or how it was refused; exactly one of the two."""

    backend: str | None = None
    refused: Mode | None = None


@dataclass(slots=True)
class _Counts:
    admitted: int = 0
    connect_failures: int = 0
    consecutive_failures: int = 0
    successes: int = 0
    errors: int = 0
    open: int = 0
    queue: int | None = None
    window: Window = field(default_factory=Window)


@dataclass(slots=True)
class _Group:
    group: RouteGroup
    table: Current
    bucket: Bucket | None = None
    turn: int = 0
    admitted: int = 0  # not the sum of the counts: backends leave, what they were sent stays
    refused_soft: int = 0
    refused_hard: int = 0
    counts: dict[str, _Counts] = field(default_factory=dict)


class MemoryPlane:
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

    def configure(self, groups: Sequence[RouteGroup]) -> None:
        """These groups and no others."""
        check_groups(groups, plane=self.name, protos=tuple(Proto))
        before, self._groups = self._groups, {}
        for group in groups:
            was = before.get(group.name)
            now = was or _Group(group, current(group, None))
            now.group, now.table = group, current(group, was.table if was else None)
            now.counts = {each.id: now.counts.get(each.id, _Counts()) for each in group.backends}
            self._groups[group.name] = now
        self.heartbeat()

    def schema_version(self) -> int:
        """This process is all there is, so it is always of this version."""
        return SCHEMA_VERSION

    def apply(self, table: Table) -> None:
        """Flip a group to a table."""
        group = self._group(table.group)
        check_table(table, group.group)
        if self.liveness() != Liveness.NORMAL:
            raise Stale(f"the heartbeat is old: {self.liveness()}")
        if table.epoch <= group.table.epoch:
            raise Stale(f"epoch {table.epoch} is not after {group.table.epoch}")
        group.table = Current(table.epoch, dict(table.slots), table.admission, table.inside_max)

    def heartbeat(self) -> None:
        """The agent is alive."""
        self._beat_ms = self._clock_ms()

    def drain(self, group: str, backend: str) -> None:
        """Nothing is kept here; checks the names like any other plane."""
        self._counts(group, backend)

    def liveness(self) -> Liveness:
        """What the age of the heartbeat says now."""
        return liveness(self._clock_ms() - self._beat_ms)

    def read(self) -> Mapping[str, GroupSeen]:
        """Every group's counters."""
        return {name: self._seen(group) for name, group in self._groups.items()}

    def detach(self) -> None:
        """Nothing to let go."""

    def remove(self) -> None:
        """Nothing is routed any more."""
        self._groups = {}

    # What the world does with the plane.

    def route(self, group: str, flow: int | bytes | None = None) -> Verdict:
        """Admit a flow and say where it goes. A number is a place in the order of the slots, so
        that any `Σ slots` numbers in a row are split exactly; None takes the next number."""
        here = self._group(group)
        if flow is None:
            flow, here.turn = here.turn, here.turn + 1
        alone = self.liveness() == Liveness.FALLBACK
        admission = fallback_admission(here.table.admission) if alone else here.table.admission
        total = sum(here.table.slots.values())
        if not here.table.slots or (total == 0 and not alone):
            return self._refuse(here, Mode.HARD)
        most = None if alone else here.table.inside_max
        inside = sum(each.open for each in here.counts.values())
        if most is not None and inside >= most:
            return self._refuse(here, Mode.SOFT)
        if admission.mode != Mode.NORMAL:
            here.bucket, allowed = admit(
                here.bucket,
                now_us=self._clock_ms() * 1000,
                rate_per_s=admission.rate_per_s or 0.0,
                burst=admission.burst or 0.0,
            )
            if not allowed:
                return self._refuse(here, admission.mode)
        backend = _hashed(flow, here.table.slots) if alone else _slotted(flow, here.table.slots)
        if most is not None:
            backend = _with_room(flow, backend, here, inside + 1)
        here.admitted += 1
        here.counts[backend].admitted += 1
        here.counts[backend].open += 1
        return Verdict(backend=backend)

    def done(self, group: str, backend: str, *, latency_ms: float, ok: bool) -> None:
        """What was sent to a backend has been answered, well or with an error."""
        counts = self._counts(group, backend)
        counts.open -= 1
        counts.consecutive_failures = 0
        if ok:
            counts.successes += 1
            counts.window.add(self._clock_ms(), latency_ms)
        else:
            counts.errors += 1

    def connect_failed(self, group: str, backend: str) -> None:
        """What was sent to a backend did not reach it."""
        counts = self._counts(group, backend)
        counts.open -= 1
        counts.connect_failures += 1
        counts.consecutive_failures += 1

    def waiting(self, group: str, backend: str, queue: int | None) -> None:
        """How many wait in a backend; None when nobody can tell."""
        self._counts(group, backend).queue = queue

    def _refuse(self, group: _Group, mode: Mode) -> Verdict:
        if mode == Mode.SOFT:
            group.refused_soft += 1
        else:
            group.refused_hard += 1
        return Verdict(refused=mode)

    def _group(self, name: str) -> _Group:
        if name not in self._groups:
            raise PermanentFault(f"group {name!r} is not configured")
        return self._groups[name]

    def _counts(self, group: str, backend: str) -> _Counts:
        counts = self._group(group).counts.get(backend)
        if counts is None:
            raise PermanentFault(f"backend {backend!r} is not in group {group!r}")
        return counts

    def _seen(self, group: _Group) -> GroupSeen:
        now_ms, alive = self._clock_ms(), self.liveness()
        admission = group.table.admission
        if alive == Liveness.FALLBACK:
            admission = fallback_admission(admission)
        return GroupSeen(
            epoch=group.table.epoch,
            liveness=alive,
            mode=admission.mode,
            admitted=group.admitted,
            refused_soft=group.refused_soft,
            refused_hard=group.refused_hard,
            backends={
                id: BackendSeen(
                    admitted=each.admitted,
                    connect_failures=each.connect_failures,
                    consecutive_failures=each.consecutive_failures,
                    successes=each.successes,
                    errors=each.errors,
                    open=each.open,
                    queue=each.queue,
                    p95_ms=each.window.p95(now_ms),
                )
                for id, each in group.counts.items()
            },
        )


def _slotted(flow: int | bytes, slots: Mapping[str, int]) -> str:
    """The backend whose slot it is. Numbers step through the slots by a stride near the golden
    section, so that neighbours in time do not all fall to the same backend."""
    total = sum(slots.values())
    number = flow if isinstance(flow, int) else _number(flow)
    slot = number * _stride(total) % total
    for id in sorted(slots):
        slot -= slots[id]
        if slot < 0:
            return id
    raise InvariantBroken("a slot number is below the number of slots")


def _with_room(flow: int | bytes, first: str, group: _Group, inside: int) -> str:
    """The first backend in the order of the slots that does not hold too much; else the first."""
    slots, total = group.table.slots, sum(group.table.slots.values())
    number = flow if isinstance(flow, int) else _number(flow)
    for turn in range(total):
        id = _slotted(number + turn, slots)
        if group.counts[id].open < held_max(slots[id], total, inside):
            return id
    return first


def _hashed(flow: int | bytes, slots: Mapping[str, int]) -> str:
    key = flow if isinstance(flow, bytes) else str(flow).encode()
    found = rendezvous(key, fallback_members(slots))
    require(found is not None, "a group with backends has one for every flow")
    return str(found)


def _number(flow: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(flow, digest_size=8).digest(), "big")


def _stride(total: int) -> int:
    stride = max(1, total * 618 // 1000)
    while gcd(stride, total) != 1:
        stride += 1
    return stride
