"""What users and operators ask, by the numbers of a step."""

from collections.abc import Callable
from typing import Any

from fairlead.api.peers import Peer
from fairlead.schema.times import format_time
from fairlead.sim.vopr.actors import (
    NODES,
    OWNERS,
    SHAPES,
    USERS,
    Actors,
    VoprStep,
    bind,
    budget,
    judgement,
    run_request,
    void,
)
from fairlead.sim.vopr.api import OPERATOR, ApiRequest, act, delete, put

Ask = Callable[[Actors, VoprStep], list[ApiRequest]]


def _verb(verb: str) -> Ask:
    """An operator's, or that of the run's own user."""

    def ask(on: Actors, step: VoprStep) -> list[ApiRequest]:
        name = on.run_name(step.a)
        owner = on.owner_of(name) if step.c % 2 else None
        peer = OPERATOR if owner is None else on.of(owner)
        return [act("Run", name, verb.format(width=1 + step.b % 3), peer)]

    return ask


def _submit(on: Actors, step: VoprStep) -> list[ApiRequest]:
    owner = OWNERS[step.b % len(OWNERS)]
    shape = SHAPES[step.c % len(SHAPES)]
    gpus = (1, 1, 2, 2, 4, 6)[step.c // len(SHAPES) % 6]
    return [run_request(on.run_name(step.a), owner, gpus, shape, on.of(owner))]


def _reserve(on: Actors, step: VoprStep) -> list[ApiRequest]:
    name, in_ms = on.run_name(step.a), (0, 20_000, 90_000)[step.b % 3]
    start = format_time(on.plane.committer.now() + in_ms)
    return [put("Reservation", f"{name}-slot", {"run": name, "earliestStart": start})]


def _delete(on: Actors, step: VoprStep) -> list[ApiRequest]:
    name = on.run_name(step.a)
    slot = f"{name}-slot"
    taken = step.b % 2 and on.checker.stored("Reservation", slot) is not None
    return [*([delete("Reservation", slot)] if taken else []), delete("Run", name)]


def _edit(on: Actors, step: VoprStep) -> list[ApiRequest]:
    """Another cap: leases lose their funding, or have it again."""
    hours = (None, 0.01, 1, 8)[step.c % 4]
    return [budget(OWNERS[step.a % len(OWNERS)], 1 + step.b % 10, hours)]


def _node(on: Actors, step: VoprStep) -> list[ApiRequest]:
    verb = ("cordon", "uncordon", "uncordon", "drain", "fail")[step.b % 5]
    return [act("Node", NODES[step.a % len(NODES)][0], verb)]


def _resolve_request(gpus: int, location: dict[str, str], peer: Peer = OPERATOR) -> ApiRequest:
    body = {"flavor": "H100", "gpus": gpus, "location": location}
    return ApiRequest("POST", "/v1/resolve", body, peer)


def _resolve(on: Actors, step: VoprStep) -> list[ApiRequest]:
    location = ({}, {"region": "west"}, {"region": "east"})[step.b % 3]
    return [_resolve_request(1 + step.a % 4, dict(location))]


def _void(on: Actors, step: VoprStep) -> list[ApiRequest]:
    """The operator gives an outcome up, and says that its round is lost, or not."""
    waiting = sorted(on.plane.committer.projection.resolver.open_seqs.values())
    lost = step.b % 3 == 0
    return [void(seq, "given up", beacon_lost=lost) for seq in waiting[: 1 + step.a % 2]]


READS = (
    "/v1/objects/{kind}",
    "/v1/objects/{kind}/{name}",
    "/v1/objects/{kind}/{name}",
    "/v1/objects/{kind}/{name}",
    "/v1/explain/{kind}/{name}",
    "/v1/runs/{name}/forecast",
    "/v1/runs/{name}/history",
    "/v1/objects/Lease",
    "/v1/outcomes",
    "/v1/budgets",
    "/v1/owes",
    "/v1/report",
    "/v1/ledger",
    "/v1/clock",
    "/v1/users",
    "/v1/policy",
    "/healthz",
    "/metrics",
    "/v1/overview",
    "/v1/runs",
    "/v1/queue",
    "/v1/devices",
    "/v1/timeline",
    "/v1/burndown",
    "/v1/entries",
)


def _read(on: Actors, step: VoprStep) -> list[ApiRequest]:
    """Anybody looks: an operator, a user of an owner, or one of whom nothing is known."""
    kind = ("Run", "Run", "Run", "Budget", "Node", "Reservation")[step.a % 6]
    run = on.run_name(step.b)
    names = {"Budget": OWNERS[step.b % 3], "Node": f"n{step.b % 4}", "Reservation": f"{run}-slot"}
    peer = (OPERATOR, OPERATOR, *USERS.values(), None)[step.a // 6 % 6]
    path = READS[step.c % len(READS)].format(kind=kind, name=names.get(kind, run))
    return [ApiRequest("GET", path, peer=peer)]


HOSTILE: tuple[dict[str, Any], ...] = (
    {"owner": "a\0b"},
    {"owner": "a\x1b[2J"},
    {"totalGPUs": 10**12},
    {"totalGPUs": -1},
    {"checkpointGrace": "25d"},
    {"checkpointGrace": "100000000d"},
    {"duration": "0s"},
    {"maxRuntime": "9999999999d"},
    {"env": {"A\0": "b"}},
    {"command": ["x", "a\0b"]},
    {"env": {"A": "b" * 300_000}},
    {"command": ["x"] * 5_000},
    {"location": {"region": "west\n"}},
    {"malleable": {"minTotalGPUs": 10**9, "stepGPUs": 0}, "groupGPUs": 1},
)


def _hostile(on: Actors, step: VoprStep) -> list[ApiRequest]:
    """A tenant sends what no honest one does: it is refused, or it is a run like any other."""
    owner, shape = OWNERS[step.b % len(OWNERS)], HOSTILE[step.c % len(HOSTILE)]
    peer = USERS[owner] if "owner" in shape else on.of(owner)  # an operator may name any
    shape = {"env": {"KIND": "deaf"}, **shape}
    return [run_request(on.run_name(step.a), owner, 1, shape, peer)]


def trespass(on: Actors, step: VoprStep) -> ApiRequest:
    """What only another, or an operator, may ask."""
    who, name = OWNERS[step.b % len(OWNERS)], on.run_name(step.a)
    user, other = USERS[who], OWNERS[(step.b + 1) % len(OWNERS)]
    owner = on.owner_of(name)
    requests = [
        run_request(f"{name}-x", other, 1, {}, user),
        budget(other, 12, None, user),
        act("Node", NODES[0][0], "fail", user),
        _resolve_request(1, {}, user),
        judgement(accepts=True, peer=user),
    ]
    if owner is not None and owner != who:
        requests += [
            act("Run", name, "cancel?force=true", user),
            act("Run", name, "pause", user),
            delete("Run", name, user),
        ]
    if owner is not None:
        requests += [act("Run", name, "cancel")._replace(peer=None)]
        requests += [act("Run", name, "cancel")._replace(token="flt_unknown")]
    requests += [run_request(f"{name}-x", who, 1, {}, user._replace(in_run=True))]
    if who in on.unbound:
        requests += [run_request(f"{name}-x", who, 1, {}, user)]
    return requests[step.c % len(requests)]


ASKS: dict[str, Ask] = {
    "submit": _submit,
    "cancel": _verb("cancel"),
    "force": _verb("cancel?force=true"),
    "pause": _verb("pause"),
    "resume": _verb("resume"),
    "shrink": _verb("shrink?width={width}"),
    "nominate": _verb("nominate"),
    "start": _verb("resolve"),
    "delete": _delete,
    "reserve": _reserve,
    "edit": _edit,
    "node": _node,
    "resolve": _resolve,
    "read": _read,
    "bind": lambda on, step: [bind(OWNERS[step.a % len(OWNERS)], binds=step.b % 4 > 0)],
    "void": _void,
    "hostile": _hostile,
    "judge": lambda on, step: [judgement(accepts=bool(step.a % 2))],
}
"""What users and operators ask."""
