"""What the traffic agent reports: a status document, and Prometheus metrics.

Metrics are computed when they are scraped. Labels are `group` and `backend` and nothing else that
grows: no flows, no addresses, no reasons but the closed list. `fairlead.schema.metrics` lists them.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

from prometheus_client.registry import Collector

from fairlead.core.reasons import TrafficReason
from fairlead.core.traffic import AdmissionMode, Backend
from fairlead.core.traffic.sighting import Liveness
from fairlead.engine.traffic import GroupRound, TickRound
from fairlead.node.state import fields
from fairlead.ports.traffic import CHANGES
from fairlead.schema.exposition import TableCollector
from fairlead.schema.metrics import Process
from fairlead.schema.samples import Samples
from fairlead.schema.traffic import from_pressure

if TYPE_CHECKING:
    from fairlead.node.traffic.agent import TrafficAgent

_PREFIX = "fairlead_traffic_"
# Name, and where it stands in a `GroupRound`; what is not known is not exposed.
_GROUP_VALUES = {
    "admission_rate_per_second": "plan.admission.rate_per_s",
    "inside_max": "snapshot.config.inside_max",
    "conductance_ratio": "plan.conductance",
    "skew_ratio": "plan.skew",
    "time_to_failure_seconds": "plan.ttf_s",
    "stalled": "plan.stall",
    "requests_admitted_total": "seen.admitted",
    "requests_refused_soft_total": "seen.refused_soft",
    "requests_refused_hard_total": "seen.refused_hard",
}


def _sent(made: GroupRound, backend: Backend) -> float | None:
    counted = None if made.seen is None else made.seen.backends.get(backend.id)
    return None if counted is None else counted.admitted


_BACKEND_VALUES: dict[str, Callable[[GroupRound, Backend], float | None]] = {
    "slots": lambda made, backend: made.plan.slots[backend.id],
    "target_slots": lambda made, backend: made.plan.target[backend.id],
    "pressure": lambda made, backend: made.plan.pressure[backend.id].total,
    "p95_seconds": lambda _, backend: None if backend.p95_ms is None else backend.p95_ms / 1000,
    "error_ratio": lambda _, backend: backend.error_rate,
    "queue_requests": lambda _, backend: backend.queue,
    "isolated": lambda _, backend: backend.isolated,
    "requests_total": _sent,
}


def status_document(round: TickRound, agent: "TrafficAgent") -> dict[str, Any]:
    """The last tick with what is known of every group and backend, for `traffic status`."""
    dataplane, latest = agent.loop.plane, round.latest
    return {
        "version": 1,
        "time_ms": round.time_ms,
        "agent": agent.config.name,
        "plane": dataplane.name,
        "sources": dict(dataplane.sources),
        "tick_ms": agent.config.tick_ms,
        **fields(agent, "ticks", "early_ticks", "missed_ticks", "flips", "faults"),
        "problems": list(round.faults),
        "groups": [group_document(latest[name], agent) for name in sorted(latest)],
    }


def group_document(made: GroupRound, agent: "TrafficAgent") -> dict[str, Any]:
    plan, snapshot = made.plan, made.snapshot
    return {
        "group": snapshot.group,
        **fields(agent.loop.groups[snapshot.group].route, "vip", "port", "proto"),
        **fields(plan.admission, "mode", "rate_per_s", "burst"),
        "inside_max": snapshot.config.inside_max,
        "reasons": list(made.reasons),
        **fields(made.seen, "liveness", "epoch", "admitted", "refused_soft", "refused_hard"),
        **fields(plan, "regime", "stall", "ttf_s", "skew", "conductance", "scale_hint"),
        "retry_index": snapshot.retry_index,
        **fields(made, "sequence", "fault"),
        "backends": [_backend(made, agent, backend) for backend in snapshot.backends],
    }


def _backend(made: GroupRound, agent: "TrafficAgent", backend: Backend) -> dict[str, Any]:
    plan, name, group = made.plan, backend.id, made.snapshot.group
    pressure = plan.pressure[name]
    counted = None if made.seen is None else made.seen.backends.get(name)
    return {
        "backend": name,
        "slots": plan.slots[name],
        "target": plan.target[name],
        "weight": plan.weights[name],
        "pressure": from_pressure(pressure),
        **fields(backend, "queue", "p95_ms", "error_rate", "requests", "age_ms"),
        **fields(counted, "open"),
        "isolated": agent.loop.groups[group].governor.isolated.get(name),
        "order": agent.commands.get(group, {}).get(name),
    }


class CountingTrafficAgent(Protocol):
    """What is read of an agent: on a machine, or simulated."""

    @property
    def last_round(self) -> TickRound | None: ...

    @property
    def transitions(self) -> Mapping[tuple[str, str], int]: ...

    @property
    def tick_seconds(self) -> float | None: ...

    ticks: int
    early_ticks: int
    missed_ticks: int
    flips: int
    faults: int


def traffic_collector(agent: CountingTrafficAgent) -> Collector:
    return TableCollector(Process.TRAFFIC_AGENT, lambda: _samples(agent))


def _samples(agent: CountingTrafficAgent) -> Samples:
    """The agent's counters and its last round."""
    values = {
        "ticks_total": agent.ticks,
        "ticks_early_total": agent.early_ticks,
        "ticks_missed_total": agent.missed_ticks,
        "tick_seconds_total": agent.tick_seconds,
        "flips_total": agent.flips,
        "faults_total": agent.faults,
    }
    round = agent.last_round
    latest = {} if round is None else round.latest
    # A series that began with its first change would hide it from `increase`. And a copy: the
    # agent goes on counting in its own thread.
    counted = dict.fromkeys(product(latest, CHANGES), 0) | dict(agent.transitions)
    changes = [
        ({"group": group, "what": what}, float(count))
        for (group, what), count in sorted(counted.items())
    ]
    samples: dict[str, list[tuple[Mapping[str, str], float]]] = {
        **{name: [({}, float(value))] for name, value in values.items() if value is not None},
        "transitions_total": [*changes],
    }
    for name, made in latest.items():
        for metric, labels, value in (*_admission(made), *_group(made), *_backends(made)):
            samples.setdefault(metric, []).append(({"group": name, **labels}, value))
    return {_PREFIX + name: rows for name, rows in samples.items()}


Row = tuple[str, dict[str, str], float]
"""A metric, its labels beside `group`, its value."""


def _admission(made: GroupRound) -> Iterator[Row]:
    for kind in AdmissionMode:
        yield "mode", {"mode": kind.value}, float(kind is made.plan.admission.mode)
    for liveness in Liveness:
        known = made.seen is not None and made.seen.liveness is liveness
        yield "plane_liveness", {"liveness": liveness.value}, float(known)
    for why in TrafficReason:
        yield "reason", {"reason": why.value}, float(why.value in made.reasons)


def _group(made: GroupRound) -> Iterator[Row]:
    for name, path in _GROUP_VALUES.items():
        part, _, rest = path.partition(".")
        value = getattr(made, part)
        if value is not None and (number := attrgetter(rest)(value)) is not None:
            yield name, {}, float(number)
    yield "in_force", {}, float(not made.fault)
    yield "scale_hint", {}, float(made.scale_hint is not None)


def _backends(made: GroupRound) -> Iterator[Row]:
    for backend in made.snapshot.backends:
        for name, value_of in _BACKEND_VALUES.items():
            if (value := value_of(made, backend)) is not None:
                yield f"backend_{name}", {"backend": backend.id}, float(value)
