"""What the sensors saw of one group at one tick: raw, frozen, recorded as it is.

Counters are since their process began; `None` is what a sensor cannot see, and is never zero.
`plausible` takes out what no sensor can have meant: only then is a sighting recorded and observed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from fairlead.core.traffic.config import LatencyMs
from fairlead.core.traffic.model import Psi, Resource
from fairlead.core.traffic.state import AdmissionMode
from fairlead.core.units import FLOAT_MAX, SIZE_MAX


class Liveness(StrEnum):
    """What the age of the agent's heartbeat means to a dataplane."""

    NORMAL = "normal"
    HOLD = "hold"
    """Keep the active table, refuse flips."""
    FALLBACK = "fallback"
    """Choose by rendezvous; hard decays to soft."""


class OperatorCommand(StrEnum):
    """What the operator wants of a backend, until it is restored."""

    ISOLATE = "isolate"
    """No new requests."""
    DRAIN = "drain"
    """No new requests, and kept connections are to end."""


class Look(NamedTuple):
    """What a backend had counted at one moment, and how many requests were inside it then."""

    at_ms: int
    successes: int
    errors: int
    inside: int = 0


@dataclass(frozen=True, slots=True)
class Reading:
    """What an application last reported about itself. Counters since it began."""

    requests: int | None = None
    errors: int | None = None
    retries: int | None = None
    """How many of its requests were repetitions of an earlier one."""
    queue: float | None = None
    p95_ms: LatencyMs | None = None
    """Of successes, over about the last 5 s."""
    looks: tuple[Look, ...] = ()
    """Its latest reports, this one included, where it counts requests and errors: it is scraped
    more often than there are ticks."""
    at_ms: int | None = None
    """When it reported; None: just now."""


@dataclass(frozen=True, slots=True)
class BackendSeen:
    """What a dataplane has counted for one backend since it began; None where it cannot see it."""

    admitted: int = 0
    """Connections (or requests, on a proxy) that were sent to it."""
    connect_failures: int | None = None
    consecutive_failures: int | None = None
    successes: int | None = None
    errors: int | None = None
    open: int | None = None
    """Connections or requests in it now."""
    queue: int | None = None
    p95_ms: LatencyMs | None = None
    """Of successes, over the dataplane's own window (about 5 s)."""
    rtt_ms: LatencyMs | None = None
    retransmits: int | None = None
    jitter_ms: LatencyMs | None = None
    """How far round-trip times are from their average, on average."""
    inside: tuple[int, ...] = ()
    """Requests in each of its servers, where a proxy has several for one backend."""


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """What a dataplane has counted for one group: admitted, or rejected explicitly."""

    epoch: int
    liveness: Liveness
    mode: AdmissionMode
    admitted: int
    refused_soft: int
    """Told to try again (EAGAIN, 429)."""
    refused_hard: int
    """Refused (ECONNREFUSED, 503)."""
    backends: Mapping[str, BackendSeen] = field(default_factory=dict)
    decision: int | None = None
    """The recorded decision that the active table carries out; None where there was none."""
    retries: int | None = None
    """Requests that were sent to a second backend; `admitted` counts each of them once."""


@dataclass(frozen=True, slots=True)
class Probed:
    """The result of one probe, or of one health check."""

    group: str
    backend: str
    ok: bool
    latency_ms: LatencyMs | None = None
    """None when it did not answer at all."""


@dataclass(frozen=True, slots=True)
class StallTotals:
    """The kernel's counters of stalled microseconds at one moment, by kind of stall."""

    time_us: int
    stalled_us: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Counters of a machine's CPUs together, in any unit of time: all of it, and idle for want of a
    disk."""

    at_ms: int
    total: float
    iowait: float


@dataclass(frozen=True, slots=True)
class NodeReading:
    """One machine: counters of stalled time, and what can run out."""

    id: str
    totals: StallTotals | None = None
    resources: tuple[Resource, ...] = ()
    cpu: CpuTimes | None = None
    at_ms: int | None = None
    """When it was read; None: just now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """All that was seen of a group for one tick."""

    now_ms: int
    members: Mapping[str, str | None]
    """Backends that the group has now, and the machine of each where that is known."""
    seen: GroupSeen | None = None
    """None: the dataplane could not be read."""
    readings: Mapping[str, Reading] = field(default_factory=dict)
    covered: tuple[str, ...] = ()
    """Fields of `Reading` that applications are asked for; for these the dataplane's own figures
    are not used, or an application that does not answer would look like an idle one."""
    asked_ms: int | None = None
    """For how long they have been asked; None: for longer than any of them needs."""
    nodes: tuple[NodeReading, ...] | None = ()
    """The machines that could be seen; None: their sensor failed, and what it saw before holds."""
    probed: tuple[Probed, ...] = ()
    checked: tuple[Probed, ...] = ()
    """Every result of a health check since the last tick, in their order."""
    commands: Mapping[str, OperatorCommand] = field(default_factory=dict)
    """The operator's commands, by backend."""
    early: bool = False
    """A report could not wait: this tick was brought forward."""


@dataclass(frozen=True, slots=True)
class Waited:
    """What was seen of a group since its last decision, in ticks that decided nothing: the most of
    each, so that one test of it stands for the tests of all of them."""

    looks: int
    since_ms: int
    """How long ago the decision was, at the last look."""
    requests: int
    """How many were sent to its backends since then."""
    failures: int
    """Errors, failed connects, rejections and retries since then."""
    events: int
    """What concerns the group and is not counted: commands, results of probes, failed checks,
    other members or sensors, a dataplane that cannot be read or goes by something else."""
    stay_ms: int
    """How long requests stay in a backend that holds some of them, by Little's law."""
    slower: float
    """The worst latency, in times of the worst one at the decision."""
    stalled: float
    """How long machines stalled since then, in times of their thresholds."""


def plausible(sighting: Sighting) -> Sighting:
    """The sighting without values that no sensor can have meant: they become missing signals."""
    seen = sighting.seen
    if seen is not None:
        backends = {name: _backend(backend) for name, backend in seen.backends.items()}
        seen = replace(seen, backends=backends, retries=_count(seen.retries))
    readings = {name: _reading(reading) for name, reading in sighting.readings.items()}
    probed, checked = (
        tuple(Probed(p.group, p.backend, p.ok, _measure(p.latency_ms)) for p in results)
        for results in (sighting.probed, sighting.checked)
    )
    nodes = None if sighting.nodes is None else tuple(_node(node) for node in sighting.nodes)
    return replace(
        sighting, seen=seen, readings=readings, probed=probed, checked=checked, nodes=nodes
    )


def _backend(seen: BackendSeen) -> BackendSeen:
    return BackendSeen(
        min(max(0, seen.admitted), SIZE_MAX),
        _count(seen.connect_failures),
        _count(seen.consecutive_failures),
        _count(seen.successes),
        _count(seen.errors),
        None if seen.open is None else min(max(0, seen.open), SIZE_MAX),
        _count(seen.queue),
        _measure(seen.p95_ms),
        _measure(seen.rtt_ms),
        _count(seen.retransmits),
        _measure(seen.jitter_ms),
        tuple(min(max(0, held), SIZE_MAX) for held in seen.inside),
    )


def _reading(reading: Reading) -> Reading:
    return Reading(
        requests=_count(reading.requests),
        errors=_count(reading.errors),
        retries=_count(reading.retries),
        queue=_measure(reading.queue),
        p95_ms=_measure(reading.p95_ms),
        looks=reading.looks,
        at_ms=reading.at_ms,
    )


def _node(reading: NodeReading) -> NodeReading:
    totals, cpu = reading.totals, reading.cpu
    if totals is not None:
        pairs = sorted(totals.stalled_us.items())
        stalled_us = {kind: total for kind, total in pairs if _count(total) is not None}
        totals = StallTotals(totals.time_us, stalled_us) if stalled_us else None
    if cpu is not None:
        total, iowait = _measure(cpu.total), _measure(cpu.iowait)
        cpu = None if total is None or iowait is None else CpuTimes(cpu.at_ms, total, iowait)
    return NodeReading(reading.id, totals, reading.resources, cpu, reading.at_ms)


def _count(value: int | None) -> int | None:
    return value if value is not None and 0 <= value <= SIZE_MAX else None


def _measure(value: float | None) -> float | None:
    """A float, or None for what is not a finite number of at least 0."""
    return float(value) if value is not None and 0 <= value <= FLOAT_MAX else None


class NodeWindows(NamedTuple):
    """Counters of one machine over the last 10 s."""

    totals: tuple[StallTotals, ...] = ()
    psi: Psi | None = None
    cpu: tuple[CpuTimes, ...] = ()
    iowait_ratio: float | None = None
