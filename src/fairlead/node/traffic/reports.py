"""What the traffic agent reports: a status document, and Prometheus metrics.

Metrics are computed when they are scraped. Labels are `group` and `backend` and nothing else that
grows: no flows, no addresses, no reasons but the closed list. What each means is in
`docs/operate/traffic.md`.
"""

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fairlead.core.reasons import TrafficReason
from fairlead.core.traffic import AdmissionMode, Backend, TickPlan
from fairlead.core.traffic.sighting import Liveness
from fairlead.engine.traffic import GroupRound, TickRound
from fairlead.node.state import fields
from fairlead.schema.traffic import from_pressure

if TYPE_CHECKING:
    from fairlead.node.traffic.agent import TrafficAgent

_PREFIX = "fairlead_traffic_"
# Name, meaning, and where it stands in a `GroupRound`; what is not known is not exposed.
_GROUP_GAUGES = (
    ("admission_rate_per_second", "admitted per second if restricted", "plan.admission.rate_per_s"),
    ("inside_max", "how many may be inside at once", "snapshot.config.inside_max"),
    ("conductance_ratio", "how easily requests flow; soft below 0.3", "plan.conductance"),
    ("skew_ratio", "how far requests are from the weights", "plan.skew"),
    ("time_to_failure_seconds", "until a resource of a machine runs out", "plan.ttf_s"),
    ("stalled", "1 while a machine stalls", "plan.stall"),
)
_GROUP_COUNTERS = (
    ("requests_admitted", "admitted", "seen.admitted"),
    ("requests_refused_soft", "told to try again", "seen.refused_soft"),
    ("requests_refused_hard", "refused", "seen.refused_hard"),
)
_BACKEND_GAUGES: tuple[tuple[str, str, Callable[[TickPlan, Backend], float | None]], ...] = (
    ("slots", "of the group's slots", lambda plan, backend: plan.slots[backend.id]),
    ("target_slots", "where its slots are going", lambda plan, backend: plan.target[backend.id]),
    ("pressure", "P of the equations", lambda plan, backend: plan.pressure[backend.id].total),
    (
        "p95_seconds",
        "of successes, over 5 s",
        lambda _, backend: None if backend.p95_ms is None else backend.p95_ms / 1000,
    ),
    ("error_ratio", "of requests, over 5 s", lambda _, backend: backend.error_rate),
    ("queue_requests", "waiting for it and in it", lambda _, backend: backend.queue),
    ("isolated", "1 while it gets nothing", lambda _, backend: backend.isolated),
)


def status_document(round: TickRound, agent: "TrafficAgent") -> dict[str, Any]:
    """The last tick with what is known of every group and backend, for `traffic status`."""
    dataplane = agent.loop.plane
    return {
        "version": 1,
        "time_ms": round.time_ms,
        "agent": agent.config.name,
        "plane": dataplane.name,
        "sources": dict(dataplane.sources),
        "tick_ms": agent.config.tick_ms,
        **fields(agent, "ticks", "early_ticks", "missed_ticks", "flips", "faults"),
        "problems": list(round.faults),
        "groups": [group_document(round.groups[name], agent) for name in sorted(round.groups)],
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


class TrafficCollector(Collector):
    """Turns the agent's last round into metric families."""

    def __init__(self, agent: "TrafficAgent") -> None:
        self._agent = agent

    def collect(self) -> Iterator[Metric]:
        yield from self._agent_metrics()
        round = self._agent.last_round
        if round is not None:
            yield from _admissions(round)
            yield from _groups(round)
            yield from _backends(round)

    def _agent_metrics(self) -> Iterator[Metric]:
        agent = self._agent
        for name, text, value in (
            ("ticks", "ticks decided", agent.ticks),
            ("ticks_early", "ticks ahead of time, for urgent signals", agent.early_ticks),
            ("ticks_missed", "ticks skipped because the agent was late", agent.missed_ticks),
            ("tick_seconds", "time spent in ticks", agent.tick_seconds),
            ("flips", "tables applied", agent.flips),
            ("faults", "environment errors that the agent survived", agent.faults),
        ):
            yield CounterMetricFamily(_PREFIX + name, text, value=value)
        changes = _counter("transitions", "changes of admission, isolation or liveness", "what")
        # A copy: the agent goes on counting in its own thread.
        for (group, what), count in sorted(dict(agent.transitions).items()):
            changes.add_metric([group, what], count)
        yield changes


def _admissions(round: TickRound) -> Iterator[Metric]:
    mode = _gauge("mode", "1 for the admission mode", "mode")
    alive = _gauge("plane_liveness", "1 for what the heartbeat's age shows", "liveness")
    reason = _gauge("reason", "1 for the reasons of the last tick", "reason")
    for name, made in round.groups.items():
        for kind in AdmissionMode:
            mode.add_metric([name, kind.value], float(kind is made.plan.admission.mode))
        for liveness in Liveness:
            known = made.seen is not None and made.seen.liveness is liveness
            alive.add_metric([name, liveness.value], float(known))
        for why in TrafficReason:
            reason.add_metric([name, why.value], float(why.value in made.reasons))
    yield from (mode, alive, reason)


def _groups(round: TickRound) -> Iterator[Metric]:
    families: list[tuple[GaugeMetricFamily | CounterMetricFamily, str]] = [
        (_gauge(name, text), path) for name, text, path in _GROUP_GAUGES
    ]
    families += [(_counter(name, text), path) for name, text, path in _GROUP_COUNTERS]
    for family, path in families:
        for name, made in round.groups.items():
            part, _, rest = path.partition(".")
            value = getattr(made, part)
            if value is not None and (number := attrgetter(rest)(value)) is not None:
                family.add_metric([name], float(number))
        yield family
    in_force = _gauge("in_force", "1 while the last decision is in force")
    for name, made in round.groups.items():
        in_force.add_metric([name], float(not made.fault))
    yield in_force
    hint = _gauge("scale_hint", "1 while more backends or machines are needed")
    for name, made in round.groups.items():
        hint.add_metric([name], float(made.scale_hint is not None))
    yield hint


def _backends(round: TickRound) -> Iterator[Metric]:
    for kind, text, value_of in _BACKEND_GAUGES:
        family = _gauge(f"backend_{kind}", text, "backend")
        for name, made in round.groups.items():
            for backend in made.snapshot.backends:
                if (value := value_of(made.plan, backend)) is not None:
                    family.add_metric([name, backend.id], float(value))
        yield family
    sent = _counter("backend_requests", "sent to it", "backend")
    for name, made in round.groups.items():
        for backend in made.snapshot.backends:
            counted = None if made.seen is None else made.seen.backends.get(backend.id)
            if counted is not None:
                sent.add_metric([name, backend.id], counted.admitted)
    yield sent


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(_PREFIX + name, text, labels=["group", *labels])


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(_PREFIX + name, text, labels=["group", *labels])
