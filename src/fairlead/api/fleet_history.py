"""What node and traffic agents reported, for as long as it is recent: bounded memory, no ledger.

Each node or group of each agent has a ring of moments. A moment keeps one compact line of numbers,
and its decision compressed. All rings together share `BYTES_MAX`; what does not fit is forgotten,
oldest first. docs/decisions/0082 tells why this is not in the ledger.
"""

import secrets
import threading
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from fairlead.engine.gpu import NotFound, Refused
from fairlead.schema.border import BadInput
from fairlead.schema.reports import (
    AgentReport,
    GroupMoment,
    GroupMoments,
    GroupReport,
    NodeMoment,
    NodeMoments,
    NodeReport,
)
from fairlead.schema.samples import Samples

Kind = Literal["node", "group"]
SUBJECTS_MAX, BYTES_MAX, SUBJECT_BYTES_MAX = 512, 128 * 2**20, 4 * 2**20
MOMENTS_MAX = 3_600
STALE_MS, STALE_PERIODS = 10_000, 3
FORGET_MS = 24 * 3_600_000
AHEAD_MS_MAX = 24 * 3_600_000
_OVERHEAD = 400
"""Bytes that a moment takes beside its documents."""


class SubjectKey(NamedTuple):
    """A node or group, as one agent reports it."""

    kind: Kind
    name: str
    agent: str


class KeptPod(msgspec.Struct, array_like=True, frozen=True):
    """The numbers of a pod at a moment."""

    pod: str
    need: int
    allocation: int
    limit: int | None
    usage: int | None
    throttling: float | None


class KeptNode(msgspec.Struct, array_like=True, frozen=True):
    """The numbers of a node at a moment."""

    mode: str
    capacity: int
    need: int
    limits: int
    price: float | None
    pods: list[KeptPod]


class KeptBackend(msgspec.Struct, array_like=True, frozen=True):
    """The numbers of a backend at a moment."""

    backend: str
    slots: int
    pressure: dict[str, float]
    queue: float | None
    p95_ms: float | None
    error_rate: float | None
    isolated: str | None


class KeptGroup(msgspec.Struct, array_like=True, frozen=True):
    """The numbers of a group at a moment."""

    mode: str
    regime: str
    stall: bool
    conductance: float | None
    admitted: int | None
    refused_soft: int | None
    refused_hard: int | None
    reasons: list[str]
    backends: list[KeptBackend]


class Moment(NamedTuple):
    """What is kept of a moment."""

    time_ms: int
    point: bytes
    number: int | None = None
    decision: bytes | None = None

    @property
    def bytes(self) -> int:
        return _OVERHEAD + len(self.point) + len(self.decision or b"")


@dataclass(slots=True)
class Subject:
    """A node or group: its newest state, and its recent moments."""

    key: SubjectKey
    started_ms: int = 0
    every_ms: int = 0
    dropped: int = 0
    received_ms: int = 0
    """When the control plane last heard of it, by its own clock."""
    time_ms: int = -1
    """Of the newest moment, by the agent's clock."""
    state: NodeReport | GroupReport | None = None
    number: int | None = None
    moments: deque[Moment] = field(default_factory=deque)
    bytes: int = 0
    version: int = 0
    """When it last changed, in the count of all changes; to become stale is one, too."""
    known_stale: bool = False

    def add(self, moment: Moment) -> None:
        self.moments.append(moment)
        self.bytes += moment.bytes
        self.time_ms = moment.time_ms

    def trim(self, bytes_max: int) -> None:
        while self.moments and (self.bytes > bytes_max or len(self.moments) > MOMENTS_MAX):
            self.bytes -= self.moments.popleft().bytes

    def stale_since_ms(self, now_ms: int) -> int | None:
        """When it was last heard of; None while its reports come."""
        late_ms = now_ms - self.received_ms
        allowed_ms = max(STALE_MS, STALE_PERIODS * self.every_ms)
        return self.received_ms if late_ms > allowed_ms else None


class FleetHistory:
    """All nodes and groups that agents report. Thread-safe."""

    def __init__(self, *, subjects_max: int = SUBJECTS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._subjects_max, self._bytes_max = subjects_max, bytes_max
        self._lock = threading.Lock()
        self._subjects: dict[SubjectKey, Subject] = {}
        """Those that changed last come last."""
        self.version = 0
        """Counts changes; begins at 0 with each life of the control plane."""
        self.life = secrets.token_hex(4)

    def take(self, report: AgentReport, now_ms: int) -> int:
        """Keep a report; how many moments of it were new. One that came before changes nothing."""
        _check_times(report, now_ms)
        parts = list(_parts(report))
        with self._lock:
            self._forget(now_ms)
            for key, _ in parts:
                self._place(key, now_ms)
            return sum(self._add(key, part, report, now_ms) for key, part in parts)

    def subjects(self, kind: Kind, now_ms: int) -> list[Subject]:
        with self._lock:
            self._forget(now_ms)
            found = [subject for key, subject in self._subjects.items() if key.kind == kind]
        return sorted(found, key=lambda subject: subject.key)

    def subject(self, kind: Kind, name: str, agent: str | None = None) -> Subject:
        """One by its name; where several agents report it, the one that was heard of last."""
        with self._lock:
            found = [
                subject
                for key, subject in self._subjects.items()
                if key[:2] == (kind, name) and agent in (None, key.agent)
            ]
        if not found:
            raise NotFound(kind, name if agent is None else f"{name} of agent {agent}")
        return max(found, key=lambda subject: (subject.received_ms, subject.key))

    def news(
        self, kind: Kind | None, name: str | None, version: int
    ) -> tuple[int, list[tuple[int, Subject]]]:
        """The version now, and what changed since another: each once, with its own version, in
        their order."""
        found: list[tuple[int, Subject]] = []
        with self._lock:
            for key, subject in reversed(self._subjects.items()):
                if subject.version <= version:
                    break
                if kind in (None, key.kind) and name in (None, key.name):
                    found.append((subject.version, subject))
            return self.version, found[::-1]

    def note_stale(self, now_ms: int) -> None:
        """Count as changed what has become stale: no report says so."""
        with self._lock:
            for subject in list(self._subjects.values()):
                if not subject.known_stale and subject.stale_since_ms(now_ms) is not None:
                    subject.known_stale = True
                    self._changed(subject)

    def moments(self, subject: Subject, after_ms: int) -> list[Moment]:
        with self._lock:
            return [moment for moment in subject.moments if moment.time_ms > after_ms]

    def decision(self, subject: Subject, number: int, at_ms: int | None = None) -> dict[str, Any]:
        """The newest of its number, or the one nearest to a time: an agent that lost its record
        counts from 1 again."""
        with self._lock:
            found = [m for m in reversed(subject.moments) if m.number == number]
        if at_ms is not None:
            found.sort(key=lambda moment: abs(moment.time_ms - at_ms))
        moment = found[0] if found else None
        if moment is None or moment.decision is None:
            raise NotFound(f"{subject.key.kind} decision", f"{subject.key.name}/{number}")
        document = dict(msgspec.json.decode(zlib.decompress(moment.decision)))
        return {"time_ms": moment.time_ms, **document}

    def samples(self, now_ms: int) -> Samples:
        """For `/metrics`: how many are heard of, and for how long each agent was silent."""
        counts = {(kind, state): 0 for kind in ("node", "group") for state in ("fresh", "stale")}
        ages_ms: dict[tuple[str, str], int] = {}
        for kind in get_args(Kind):
            for subject in self.subjects(kind, now_ms):
                stale = subject.stale_since_ms(now_ms) is not None
                counts[kind, "stale" if stale else "fresh"] += 1
                key, age_ms = (kind, subject.key.agent), max(0, now_ms - subject.received_ms)
                ages_ms[key] = max(age_ms, ages_ms.get(key, 0))
        return {
            "fairlead_reported": [
                ({"kind": kind, "state": state}, float(count))
                for (kind, state), count in counts.items()
            ],
            "fairlead_agent_report_age_seconds": [
                ({"kind": kind, "agent": agent}, age_ms / 1000)
                for (kind, agent), age_ms in sorted(ages_ms.items())
            ],
        }

    # --- under the lock

    def _forget(self, now_ms: int) -> None:
        gone = [k for k, s in self._subjects.items() if now_ms - s.received_ms > FORGET_MS]
        for key in gone:
            del self._subjects[key]

    def _changed(self, subject: Subject) -> None:
        self.version += 1
        subject.version = self.version
        self._subjects[subject.key] = self._subjects.pop(subject.key)

    def _place(self, key: SubjectKey, now_ms: int) -> None:
        if key in self._subjects:
            return
        if len(self._subjects) >= self._subjects_max:
            oldest = min(self._subjects.values(), key=lambda subject: subject.received_ms)
            if oldest.stale_since_ms(now_ms) is None:
                raise Refused(
                    "TooManyAgents",
                    f"agents report {self._subjects_max} nodes and groups already, which is all "
                    "that this control plane keeps",
                )
            del self._subjects[oldest.key]
        self._subjects[key] = Subject(key, received_ms=now_ms)
        for subject in self._subjects.values():
            subject.trim(self._share)

    @property
    def _share(self) -> int:
        return min(SUBJECT_BYTES_MAX, self._bytes_max // len(self._subjects))

    def _add(
        self, key: SubjectKey, part: NodeMoments | GroupMoments, report: AgentReport, now_ms: int
    ) -> int:
        subject, taken = self._subjects[key], 0
        if subject.started_ms != report.started_ms:  # an agent that began anew, or a clock that did
            subject.started_ms, subject.time_ms = report.started_ms, -1
        for moment in part.moments:
            if moment.time_ms <= subject.time_ms:
                continue  # it came before, and the reply was lost
            subject.add(_kept(moment))
            subject.state, taken = moment.state, taken + 1
            subject.number = None if moment.decision is None else moment.decision.number
        subject.every_ms, subject.dropped = part.every_ms, report.dropped
        subject.received_ms, subject.known_stale = now_ms, False
        subject.trim(self._share)
        self._changed(subject)
        return taken


def _parts(report: AgentReport) -> Iterator[tuple[SubjectKey, NodeMoments | GroupMoments]]:
    for node in report.nodes:
        yield SubjectKey("node", node.name, report.agent), node
    for group in report.groups:
        yield SubjectKey("group", group.name, report.agent), group


def _check_times(report: AgentReport, now_ms: int) -> None:
    for place, (key, part) in enumerate(_parts(report)):
        kind, times = key.kind, [moment.time_ms for moment in part.moments]
        for index, time_ms in enumerate(times):
            if time_ms > now_ms + AHEAD_MS_MAX:
                at = place if kind == "node" else place - len(report.nodes)
                where = f"{kind}s[{at}].moments[{index}].time_ms"
                raise BadInput(where, "is more than a day ahead of the control plane's clock")


def _kept(moment: NodeMoment | GroupMoment) -> Moment:
    decision = moment.decision
    state = moment.state
    point = node_point(state) if isinstance(state, NodeReport) else group_point(state)
    made = msgspec.json.encode(point)
    if decision is None:
        return Moment(moment.time_ms, made)
    packed = zlib.compress(msgspec.json.encode(decision), 1)
    return Moment(moment.time_ms, made, decision.number, packed)


def node_point(state: NodeReport) -> KeptNode:
    return KeptNode(
        state.mode,
        state.capacity_millicores,
        state.need_millicores,
        state.limits_millicores,
        state.shadow_price,
        [
            KeptPod(
                pod.pod,
                pod.need_millicores,
                pod.allocation_millicores,
                pod.limit_millicores,
                pod.usage_millicores,
                pod.throttling,
            )
            for pod in state.pods
        ],
    )


def group_point(state: GroupReport) -> KeptGroup:
    return KeptGroup(
        state.mode,
        state.regime,
        state.stall,
        state.conductance,
        state.admitted,
        state.refused_soft,
        state.refused_hard,
        state.reasons,
        [
            KeptBackend(
                row.backend,
                row.slots,
                row.pressure,
                row.queue,
                row.p95_ms,
                row.error_rate,
                row.isolated,
            )
            for row in state.backends
        ],
    )
