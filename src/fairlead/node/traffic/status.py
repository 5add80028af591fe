"""What the traffic agent knows, as a document: for `traffic status`, `traffic explain`, metrics."""

from typing import TYPE_CHECKING, Any

from fairlead.engine.traffic import GroupRound, Round

if TYPE_CHECKING:
    from fairlead.node.traffic.agent import TrafficAgent


def status_document(round: Round, agent: "TrafficAgent") -> dict[str, Any]:
    """The last tick with what is known of every group and backend; plain data."""
    plane = agent.loop.plane
    return {
        "version": 1,
        "time_ms": round.time_ms,
        "agent": agent.config.name,
        "plane": plane.name,
        "sources": dict(plane.sources),
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
    door = plan.admission
    return {
        "group": snapshot.group,
        "vip": group.route.vip,
        "port": group.route.port,
        "proto": group.route.proto.value,
        "mode": door.mode.value,
        "rate_per_s": door.rate_per_s,
        "burst": door.burst,
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
    order = agent.orders.get(made.snapshot.group, {}).get(name)
    return {
        "backend": name,
        "slots": plan.slots[name],
        "target": plan.target[name],
        "weight": plan.weights[name],
        "pressure": {
            "total": pressure.total,
            "queue": pressure.queue,
            "latency": pressure.latency,
            "error": pressure.error,
            "penalty": pressure.penalty,
            **dict(pressure.layers),
        },
        "queue": seen.queue,
        "p95_ms": seen.p95_ms,
        "error_rate": seen.error_rate,
        "requests": seen.requests,
        "age_ms": seen.age_ms,
        "open": None if counted is None else counted.open,
        "isolated": None if cause is None else cause.value,
        "order": order,
    }
