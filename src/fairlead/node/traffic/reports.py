"""What the traffic agent reports: a status document, and Prometheus metrics.

Metrics are computed when they are scraped. Labels are `group` and `backend` and nothing else that
grows: no flows, no addresses, no reasons but the closed list. What each means is in
`docs/operate/traffic.md`.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from fairlead.core.reasons import TrafficReason
from fairlead.core.traffic import AdmissionMode
from fairlead.engine.traffic import GroupRound, Round
from fairlead.ports.dataplane import Liveness
from fairlead.ports.faults import PermanentFault
from fairlead.schema.traffic import from_pressure

if TYPE_CHECKING:
    from fairlead.node.traffic.agent import TrafficAgent

_GROUP, _BACKEND = ["group"], ["group", "backend"]
_PREFIX = "fairlead_traffic_"


def status_document(round: Round, agent: "TrafficAgent") -> dict[str, Any]:
    """The last tick with what is known of every group and backend, for `traffic status`."""
    dataplane = agent.loop.plane
    return {
        "version": 1,
        "time_ms": round.time_ms,
        "agent": agent.config.name,
        "plane": dataplane.name,
        "sources": dict(dataplane.sources),
        "tick_ms": agent.config.tick_ms,
        "ticks": agent.ticks,
        "early_ticks": agent.early_ticks,
        "missed_ticks": agent.missed_ticks,
        "flips": agent.flips,
        "faults": agent.faults,
        "problems": list(round.faults),
        "groups": [group_document(round.groups[name], agent) for name in sorted(round.groups)],
    }


def group_document(made: GroupRound, agent: "TrafficAgent") -> dict[str, Any]:
    """One group."""
    plan, snapshot, seen = made.plan, made.snapshot, made.seen
    group = agent.loop.groups[snapshot.group]
    admission = plan.admission
    return {
        "group": snapshot.group,
        "vip": group.route.vip,
        "port": group.route.port,
        "proto": group.route.proto.value,
        "mode": admission.mode.value,
        "rate_per_s": admission.rate_per_s,
        "burst": admission.burst,
        "inside_max": snapshot.config.inside_max,
        "regime": plan.regime.value,
        "reasons": list(made.reasons),
        "liveness": None if seen is None else seen.liveness.value,
        "epoch": None if seen is None else seen.epoch,
        "admitted": None if seen is None else seen.admitted,
        "refused_soft": None if seen is None else seen.refused_soft,
        "refused_hard": None if seen is None else seen.refused_hard,
        "stall": plan.stall,
        "ttf_s": plan.ttf_s,
        "skew": plan.skew,
        "conductance": plan.conductance,
        "retry_index": snapshot.retry_index,
        "scale_hint": plan.scale_hint,
        "sequence": made.sequence,
        "fault": made.fault,
        "backends": [_backend(made, agent, backend.id) for backend in snapshot.backends],
    }


def _backend(made: GroupRound, agent: "TrafficAgent", name: str) -> dict[str, Any]:
    plan, governor = made.plan, agent.loop.groups[made.snapshot.group].governor
    seen = next(backend for backend in made.snapshot.backends if backend.id == name)
    cause, pressure = governor.isolated.get(name), plan.pressure[name]
    counted = None if made.seen is None else made.seen.backends.get(name)
    command = agent.commands.get(made.snapshot.group, {}).get(name)
    return {
        "backend": name,
        "slots": plan.slots[name],
        "target": plan.target[name],
        "weight": plan.weights[name],
        "pressure": from_pressure(pressure),
        "queue": seen.queue,
        "p95_ms": seen.p95_ms,
        "error_rate": seen.error_rate,
        "requests": seen.requests,
        "age_ms": seen.age_ms,
        "open": None if counted is None else counted.open,
        "isolated": None if cause is None else cause.value,
        "order": command,
    }


class TrafficCollector:
    """Turns the agent's last round into metric families."""

    def __init__(self, agent: "TrafficAgent") -> None:
        self._agent = agent

    def collect(self) -> Iterator[Metric]:
        """All families; those of groups are empty until the first tick."""
        yield from self._agent_metrics()
        round = self._agent.last_round
        if round is not None:
            yield from self._admissions(round)
            yield from self._groups(round)
            yield from self._backends(round)

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
        changes = CounterMetricFamily(
            _PREFIX + "transitions",
            "changes of admission, isolation or liveness",
            labels=["group", "what"],
        )
        # A copy: the agent goes on counting in its own thread.
        for (group, what), count in sorted(dict(agent.transitions).items()):
            changes.add_metric([group, what], count)
        yield changes

    def _admissions(self, round: Round) -> Iterator[Metric]:
        mode = _gauge("mode", "1 for the admission mode", ["group", "mode"])
        alive = _gauge(
            "plane_liveness",
            "1 for the agent's liveness as the dataplane judges it",
            ["group", "liveness"],
        )
        reason = _gauge("reason", "1 for the reasons of the last tick", ["group", "reason"])
        for name, made in round.groups.items():
            for kind in AdmissionMode:
                mode.add_metric([name, kind.value], float(kind is made.plan.admission.mode))
            for liveness in Liveness:
                known = made.seen is not None and made.seen.liveness is liveness
                alive.add_metric([name, liveness.value], float(known))
            for why in TrafficReason:
                reason.add_metric([name, why.value], float(why.value in made.reasons))
        yield from (mode, alive, reason)

    def _groups(self, round: Round) -> Iterator[Metric]:
        for family, value in (
            (
                _gauge("admission_rate_per_second", "admitted per second, while not normal"),
                lambda made: made.plan.admission.rate_per_s,
            ),
            (
                _gauge("inside_max", "how many may be inside at once"),
                lambda made: made.snapshot.config.inside_max,
            ),
            (
                _gauge("conductance_ratio", "how easily requests flow; soft below 0.3"),
                lambda made: made.plan.conductance,
            ),
            (
                _gauge("skew_ratio", "how far requests are from the weights"),
                lambda made: made.plan.skew,
            ),
            (
                _gauge("time_to_failure_seconds", "until something of a machine runs out"),
                lambda made: made.plan.ttf_s,
            ),
            (_gauge("stalled", "1 while a machine stalls"), lambda made: made.plan.stall),
            (
                _gauge("in_force", "1 while the last decision is in force"),
                lambda made: not made.fault,
            ),
            (_counter("requests_admitted", "let in", _GROUP), _seen("admitted")),
            (_counter("requests_refused_soft", "told to try again", _GROUP), _seen("refused_soft")),
            (_counter("requests_refused_hard", "refused", _GROUP), _seen("refused_hard")),
        ):
            for name, made in round.groups.items():
                number = value(made)
                if number is not None:
                    family.add_metric([name], float(number))
            yield family

    def _backends(self, round: Round) -> Iterator[Metric]:
        slots = _gauge("backend_slots", "of the group's slots", _BACKEND)
        target = _gauge("backend_target_slots", "where its slots are going", _BACKEND)
        pressure = _gauge("backend_pressure", "P of the equations", _BACKEND)
        p95 = _gauge("backend_p95_seconds", "of successes, over 5 s", _BACKEND)
        errors = _gauge("backend_error_ratio", "of requests, over 5 s", _BACKEND)
        queue = _gauge("backend_queue_requests", "waiting for it and in it", _BACKEND)
        isolated = _gauge("backend_isolated", "1 while it gets nothing", _BACKEND)
        sent = _counter("backend_requests", "sent to it", _BACKEND)
        for name, made in round.groups.items():
            plan = made.plan
            for backend in made.snapshot.backends:
                labels = [name, backend.id]
                slots.add_metric(labels, plan.slots[backend.id])
                target.add_metric(labels, plan.target[backend.id])
                pressure.add_metric(labels, plan.pressure[backend.id].total)
                isolated.add_metric(labels, float(backend.isolated))
                if backend.p95_ms is not None:
                    p95.add_metric(labels, backend.p95_ms / 1000)
                if backend.error_rate is not None:
                    errors.add_metric(labels, backend.error_rate)
                if backend.queue is not None:
                    queue.add_metric(labels, backend.queue)
                counted = None if made.seen is None else made.seen.backends.get(backend.id)
                if counted is not None:
                    sent.add_metric(labels, counted.admitted)
        yield from (slots, target, pressure, p95, errors, queue, isolated, sent)


def _gauge(name: str, text: str, labels: list[str] = _GROUP) -> GaugeMetricFamily:
    return GaugeMetricFamily(_PREFIX + name, text, labels=labels)


def _counter(name: str, text: str, labels: list[str]) -> CounterMetricFamily:
    return CounterMetricFamily(_PREFIX + name, text, labels=labels)


def _seen(field: str) -> Callable[[GroupRound], int | None]:
    def value(made: GroupRound) -> int | None:
        return None if made.seen is None else int(getattr(made.seen, field))

    return value


def serve_metrics(agent: "TrafficAgent", address: str, port: int) -> int:
    """Serve /metrics in a background thread; returns the port (0 asks for any free one)."""
    registry = CollectorRegistry()
    registry.register(TrafficCollector(agent))
    try:
        server, _ = start_http_server(port, addr=address, registry=registry)
    except OSError as error:
        raise PermanentFault(f"metrics on {address}:{port}: {error.strerror}") from error
    return int(server.server_port)
