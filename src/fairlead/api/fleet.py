"""Reports of node and traffic agents: what one page shows of a whole small fleet.

An agent pushes with a token of its own, which may report its node and its groups and nothing else.
What is reported is kept in bounded memory (`fleet_history`).
"""

from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any

import msgspec

from fairlead.api import fleet_shapes as shapes
from fairlead.api.endpoint import Call, Routes
from fairlead.api.fleet_history import KeptBackend, KeptGroup, KeptNode, Moment, Subject
from fairlead.api.objects import UnknownWord
from fairlead.api.service import Service
from fairlead.api.shapes import DryRunQuery
from fairlead.core.canonical import canonical
from fairlead.engine.gpu import Author, Forbidden, NotFound
from fairlead.schema.border import BadInput, check_shape
from fairlead.schema.convert import decode_json
from fairlead.schema.replay import Replayer
from fairlead.schema.reports import (
    AgentReport,
    BackendOrder,
    BackendReport,
    GroupReport,
    NodeReport,
)
from fairlead.schema.times import format_time

routes = Routes()
RECENT_MAX = 90
"""Moments of each row that a list can draw."""
_ORDERS: dict[str, BackendOrder | None] = {"isolate": "isolate", "drain": "drain", "restore": None}


@routes("POST /v1/reports", shapes.ReportTaken, None, body=dict, needs="agent", errors=(409,))
def take_report(service: Service, call: Call) -> shapes.ReportTaken:
    """Take the report of a node or traffic agent (schema/reports.py, versioned)."""
    return take_agent_report(service, call.author, check_shape(call.body, AgentReport))


def take_agent_report(service: Service, author: Author, report: AgentReport) -> shapes.ReportTaken:
    """Keep a report, if it is about what its author may speak for."""
    _check_rights(author, report)
    taken = service.fleet.take(report, service.now_ms())
    service.reported.notify(service.fleet.version)
    orders = {group.name: service.access.orders(group.name) for group in report.groups}
    return shapes.ReportTaken(taken, orders)


def _check_rights(author: Author, report: AgentReport) -> None:
    """An agent speaks for itself, its node and its groups: a thief of its token can lie about those
    only."""
    if author.admin:
        return
    if report.agent != author.agent:
        raise Forbidden(f"agent: must be {author.agent!r}, as in the token; got {report.agent!r}")
    for kind, parts in (("node", report.nodes), ("group", report.groups)):
        for part in parts:
            if f"{kind}/{part.name}" not in author.reports:
                raise Forbidden(f"the token of {author.agent!r} does not report {kind} {part.name}")


# --- nodes


@routes("GET /v1/nodes", list[shapes.MachineRow], shapes.FleetQuery)
def list_nodes(service: Service, call: Call) -> list[shapes.MachineRow]:
    """List machines: their GPU devices, and their CPU governors."""
    gpus = {
        document["metadata"]["name"]: _gpu(document)
        for document in service.plane.objects.list("Node")
    }
    cpus: dict[str, list[Subject | None]] = {}
    for subject in service.fleet.subjects("node", service.now_ms()):
        cpus.setdefault(subject.key.name, []).append(subject)
    return [
        shapes.MachineRow(
            name, gpus.get(name), cpu_row(service, governor, recent=call.query.recent)
        )
        for name in sorted(gpus.keys() | cpus.keys())
        for governor in cpus.get(name, [None])
    ]


@routes("GET /v1/nodes/{name}", shapes.NodeDetail, shapes.AgentQuery)
def show_node(service: Service, call: Call) -> shapes.NodeDetail:
    """Show a machine with every pod that its CPU governor limits."""
    name, subject = call.path["name"], None
    document = service.plane.objects.get("Node", name)
    try:
        subject = service.fleet.subject("node", name, call.query.agent)
    except NotFound:
        if document is None:
            raise
    gpu = None if document is None else _gpu(document)
    state = None if subject is None else _node_state(subject)
    return shapes.NodeDetail(name, gpu, cpu_row(service, subject), state)


@routes("GET /v1/nodes/{name}/series", shapes.NodeSeries, shapes.NodeSeriesQuery)
def node_series(service: Service, call: Call) -> shapes.NodeSeries:
    """Show need, allocation, usage and throttling over time, of a node or of a pod."""
    subject = service.fleet.subject("node", call.path["name"], call.query.agent)
    moments = service.fleet.moments(subject, call.query.after)[-call.query.limit :]
    points = [point for moment in moments for point in _node_points(moment, call.query.pod)]
    return shapes.NodeSeries(subject.key.agent, points)


@routes("GET /v1/nodes/{name}/decisions/{number}", shapes.AgentDecision, shapes.AgentDecisionQuery)
def node_decision(service: Service, call: Call) -> dict[str, Any]:
    """Show a recent decision of a node agent: its input and its output."""
    return _decision(service, service.fleet.subject("node", call.path["name"]), call)


@routes(
    "GET /v1/nodes/{name}/decisions/{number}/replay", shapes.AgentReplay, shapes.AgentDecisionQuery
)
def replay_node_decision(service: Service, call: Call) -> shapes.AgentReplay:
    """Decide a recent decision of a node agent again, and compare the bytes."""
    return _replay(service, node_decision(service, call))


# --- groups


@routes("GET /v1/groups", list[shapes.GroupRow], shapes.FleetQuery)
def list_groups(service: Service, call: Call) -> list[shapes.GroupRow]:
    """List route groups as their traffic agents report them."""
    found = service.fleet.subjects("group", service.now_ms())
    recent = call.query.recent
    return [shapes.GroupRow(**group_row(service, subject, recent=recent)) for subject in found]


@routes("GET /v1/groups/{name}", shapes.GroupDetail, shapes.AgentQuery)
def show_group(service: Service, call: Call) -> shapes.GroupDetail:
    """Show a route group with every backend."""
    subject = service.fleet.subject("group", call.path["name"], call.query.agent)
    row, orders = group_row(service, subject), service.access.orders(subject.key.name)
    return shapes.GroupDetail(**row, state=_group_state(subject), orders=orders)


@routes("GET /v1/groups/{name}/series", shapes.GroupSeries, shapes.GroupSeriesQuery)
def group_series(service: Service, call: Call) -> shapes.GroupSeries:
    """Show slots, pressure, admission, latency and errors of a route group over time."""
    subject = service.fleet.subject("group", call.path["name"], call.query.agent)
    moments = service.fleet.moments(subject, call.query.after)[-call.query.limit :]
    return shapes.GroupSeries(subject.key.agent, [_group_point(moment) for moment in moments])


@routes(
    "POST /v1/groups/{name}/backends/{backend}/orders/{order}",
    shapes.Ordered,
    DryRunQuery,
    needs="admin",
    errors=(409,),
)
def order_backend(service: Service, call: Call) -> shapes.Ordered:
    """Eject a backend (isolate, drain), or lift that order (restore)."""
    name, backend, verb = (call.path[part] for part in ("name", "backend", "order"))
    if verb not in _ORDERS:
        raise UnknownWord("UnknownVerb", f"order {verb!r}", _ORDERS)
    order = _ORDERS[verb]
    # An order can be lifted also where no agent reports the backend any more.
    if backend not in service.access.orders(name):
        state = _group_state(service.fleet.subject("group", name))
        if backend not in {row.backend for row in state.backends}:
            raise NotFound("backend", f"{name}/{backend}")
    changed = service.access.order(name, backend, order, **call.by)
    return shapes.Ordered(name, backend, order, "ordered" if changed else "unchanged")


@routes("GET /v1/groups/{name}/decisions/{number}", shapes.AgentDecision, shapes.AgentDecisionQuery)
def group_decision(service: Service, call: Call) -> dict[str, Any]:
    """Show a recent decision of a traffic agent: its input and its output."""
    return _decision(service, service.fleet.subject("group", call.path["name"]), call)


@routes(
    "GET /v1/groups/{name}/decisions/{number}/replay", shapes.AgentReplay, shapes.AgentDecisionQuery
)
def replay_group_decision(service: Service, call: Call) -> shapes.AgentReplay:
    """Decide a recent decision of a traffic agent again, and compare the bytes."""
    return _replay(service, group_decision(service, call))


# --- what is shown


def _heard(service: Service, subject: Subject) -> dict[str, Any]:
    since_ms = subject.stale_since_ms(service.now_ms())
    return {
        "agent": subject.key.agent,
        "time": format_time(max(0, subject.time_ms)),
        "received": format_time(subject.received_ms),
        "stale_since": None if since_ms is None else format_time(since_ms),
        "every_ms": subject.every_ms,
        "dropped": subject.dropped,
        "decision": subject.number,
    }


def _gpu(document: dict[str, Any]) -> shapes.GpuRow:
    spec, status = document["spec"], document["status"]
    return shapes.GpuRow(
        flavor=spec["flavor"],
        location=spec["location"],
        devices=spec["devices"],
        free=status["free"],
        cordoned=spec["cordoned"],
        virtual=bool(status["virtual"]),
    )


def _node_state(subject: Subject) -> NodeReport | None:
    return subject.state if isinstance(subject.state, NodeReport) else None


def _recent(service: Service, subject: Subject) -> list[tuple[int, float | None]]:
    """The need of a node, or the p95 of the worst backend in service, as the row has it."""
    moments = service.fleet.moments(subject, 0)[-RECENT_MAX:]
    if subject.key.kind == "node":
        return [(each.time_ms, decode_json(each.point, KeptNode).need) for each in moments]
    return [
        (each.time_ms, _worst_p95_ms(decode_json(each.point, KeptGroup).backends))
        for each in moments
    ]


def _worst_p95_ms(backends: Iterable[KeptBackend | BackendReport]) -> float | None:
    rows = (row.p95_ms for row in backends if row.isolated is None)
    return max((p95_ms for p95_ms in rows if p95_ms is not None), default=None)


def cpu_row(
    service: Service, subject: Subject | None, *, recent: bool = False
) -> shapes.CpuRow | None:
    state = None if subject is None else _node_state(subject)
    if subject is None or state is None:
        return None
    shares = [pod.throttling for pod in state.pods if pod.throttling is not None]
    return shapes.CpuRow(
        **_heard(service, subject),
        mode=state.mode,
        policy=state.policy,
        capacity_millicores=state.capacity_millicores,
        need_millicores=state.need_millicores,
        allocation_millicores=sum(pod.allocation_millicores for pod in state.pods),
        usage_millicores=sum(pod.usage_millicores or 0 for pod in state.pods),
        limits_millicores=state.limits_millicores,
        throttling=max(shares, default=None),
        shadow_price=state.shadow_price,
        pods=len(state.pods) + state.pods_left_out,
        observed_only=state.observed_only,
        problems=state.problems,
        recent=_recent(service, subject) if recent else [],
    )


def _node_points(moment: Moment, pod: str | None) -> Iterator[shapes.NodePoint]:
    """One; none where the pod was not there yet."""
    point = decode_json(moment.point, KeptNode)
    pods = [row for row in point.pods if pod in (None, row.pod)]
    if pod is not None and not pods:
        return
    usages = [row.usage for row in pods if row.usage is not None]
    shares = [row.throttling for row in pods if row.throttling is not None]
    limits = [row.limit for row in pods if row.limit is not None]
    yield shapes.NodePoint(
        time_ms=moment.time_ms,
        decision=moment.number,
        mode=point.mode,
        capacity=point.capacity,
        need=point.need if pod is None else pods[0].need,
        allocation=sum(row.allocation for row in pods),
        limit=point.limits if pod is None else (limits[0] if limits else None),
        usage=sum(usages) if usages else None,
        throttling=max(shares, default=None),
        price=point.price,
    )


def _group_state(subject: Subject) -> GroupReport:
    if not isinstance(subject.state, GroupReport):
        raise NotFound("group", subject.key.name)
    return subject.state


def group_row(service: Service, subject: Subject, *, recent: bool = False) -> dict[str, Any]:
    state = _group_state(subject)
    refused = (state.refused_soft, state.refused_hard)
    known = [count for count in refused if count is not None]
    rows = [row for row in state.backends if row.isolated is None]
    return {
        **_heard(service, subject),
        "name": subject.key.name,
        "plane": state.plane,
        "mode": state.mode,
        "regime": state.regime,
        "stall": state.stall,
        "ttf_s": state.ttf_s,
        "conductance": state.conductance,
        "rate_per_s": state.rate_per_s,
        "scale_hint": state.scale_hint,
        "liveness": state.liveness,
        "admitted": state.admitted,
        "refused": sum(known) if known else None,
        "backends": len(state.backends) + state.backends_left_out,
        "ejected": [row.backend for row in state.backends if row.isolated is not None],
        "p95_ms": _worst_p95_ms(rows),
        "error_rate": max(
            (row.error_rate for row in rows if row.error_rate is not None), default=None
        ),
        "reasons": state.reasons,
        "fault": state.fault,
        "recent": _recent(service, subject) if recent else [],
    }


def _group_point(moment: Moment) -> shapes.GroupPoint:
    point = decode_json(moment.point, KeptGroup)
    return shapes.GroupPoint(
        time_ms=moment.time_ms,
        decision=moment.number,
        mode=point.mode,
        regime=point.regime,
        stall=point.stall,
        conductance=point.conductance,
        admitted=point.admitted,
        refused_soft=point.refused_soft,
        refused_hard=point.refused_hard,
        reasons=point.reasons,
        backends={
            row.backend: shapes.BackendPoint(
                row.slots, row.pressure, row.queue, row.p95_ms, row.error_rate, row.isolated
            )
            for row in point.backends
        },
    )


def _decision(service: Service, subject: Subject, call: Call) -> dict[str, Any]:
    text = call.path["number"]
    if not (text.isascii() and text.isdigit() and len(text) < 17):
        raise BadInput("number", f"must be the number of a decision, got {text!r}")
    if call.query.agent is not None:
        subject = service.fleet.subject(subject.key.kind, subject.key.name, call.query.agent)
    found = service.fleet.decision(subject, int(text), call.query.at)
    time = format_time(found.pop("time_ms"))
    kind, name, agent = subject.key
    return {"subject": kind, "name": name, "agent": agent, "time": time, **found}


def _replay(service: Service, decision: dict[str, Any]) -> shapes.AgentReplay:
    about = (decision["number"], decision["kind"], decision["version"])
    with service.replaying():
        found = Replayer().run(*about, decision["input"], decision["output"])
    recorded = canonical(decision["output"])
    decided = None if found.result is None else canonical(found.result)
    return shapes.AgentReplay(
        *about,
        verdict=found.verdict.value,
        detail=found.detail,
        recorded_sha256=sha256(recorded).hexdigest(),
        decided_sha256=None if decided is None else sha256(decided).hexdigest(),
        bytes=len(recorded),
        decided=None if decided is None else dict(msgspec.json.decode(decided)),
    )
