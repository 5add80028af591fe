"""Requests that come through Kubernetes: the same endpoints, for a namespace or for an admin.

The HTTP API lets every reader see all budgets and runs. A tenant of a cluster sees its owner's: the
table below names the endpoints that it may use, and what is removed from their answers. What is not
in the table is an admin's.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast
from urllib.parse import unquote

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fairlead.api import decisions, fleet, listings, objects, overview, preemption, shapes, tables
from fairlead.api.endpoint import Call, Endpoint, Routes, failure, read_body, read_query
from fairlead.api.service import Service
from fairlead.api.streams import read_events
from fairlead.core.invariant import InvariantBroken
from fairlead.engine.gpu import Author, Denied, Forbidden, NotFound
from fairlead.engine.gpu.resolver.preview import without_names
from fairlead.kube.kinds import as_named_in
from fairlead.ports.faults import Fault, PermanentFault

own = Routes()
HIDDEN = "(another owner)"
Values = dict[str, Any]


@own("GET /v1/events", shapes.Events, shapes.EventsQuery)
def events(service: Service, call: Call) -> Values:
    """List events after a number, without waiting."""
    items = read_events(service, call.author, call.query.after, call.query.limit)
    return {"items": items, "next": items[-1]["seq"] if items else call.query.after}


ENDPOINTS = (
    *(*objects.routes, *preemption.routes, *tables.routes),
    *(*listings.routes, *overview.routes, *decisions.routes, *fleet.routes),
    *own,
)
ELSEWHERE = {
    "PUT /v1/objects/{kind}/{name}",
    "DELETE /v1/objects/{kind}/{name}",
    "POST /v1/apply",
    "GET /v1/users",
    "PUT /v1/users/{name}",
    "DELETE /v1/users/{name}",
    "GET /v1/tokens",
    "POST /v1/tokens",
    "DELETE /v1/tokens/{id}",
    "POST /v1/reports",
    "POST /v1/groups/{name}/backends/{backend}/orders/{order}",
}
"""Objects are written as Kubernetes objects, and its RBAC says who may what. Agents report to the
controller's own port, where their tokens name their nodes."""


@dataclass(frozen=True, slots=True)
class Asker:
    """For whom a request is made. `namespace` None: an admin, who sees all."""

    author: Author
    namespace: str | None = None

    @property
    def owner(self) -> str:
        (owner,) = self.author.owners
        return owner

    def name(self, name: str) -> str:
        """A namespace's own objects, by their names in it or in the ledger."""
        prefix = f"{self.namespace}."
        return name if name.startswith(prefix) else prefix + name


@dataclass(frozen=True, slots=True)
class Ask:
    """One request."""

    method: str
    path: str
    query: Mapping[str, str]
    body: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """A status code, headers and a body, as over HTTP."""

    code: int
    headers: dict[str, str]
    body: bytes


def answer(service: Service, asker: Asker, ask: Ask) -> Result:
    """One request, answered. Raises `InvariantBroken`, and faults of the ledger."""
    try:
        reply = _respond(service, asker, ask)
    except (InvariantBroken, PermanentFault):
        raise
    except Exception as error:
        refused = failure(error)
        if refused is None:
            raise
        reply = refused if asker.namespace is None else _told_in(asker.namespace, refused)
    headers: dict[str, str] = {}
    with suppress(Fault):  # without a checkpoint; a client that had one refuses the answer
        headers = service.head_headers()
    return Result(reply.status_code, headers, bytes(reply.body))


def _told_in(namespace: str, refused: Response) -> Response:
    """A refusal that calls a namespace's objects as they are called there."""
    said = as_named_in(namespace, msgspec.json.decode(bytes(refused.body)))
    return Response(msgspec.json.encode(said), refused.status_code, media_type="application/json")


def _respond(service: Service, asker: Asker, ask: Ask) -> Response:
    endpoint, path = find(ask.method, ask.path)
    route = f"{endpoint.method} {endpoint.path}"
    if route in ELSEWHERE:
        raise Forbidden(f"{route}: through Kubernetes' own objects and RBAC only")
    rule = RULES.get(route)
    if asker.namespace is not None and rule is None:
        raise Forbidden(f"{route}: only in the admin namespace")
    call = Call(
        asker.author,
        path,
        read_query(list(ask.query.items()), endpoint.query),
        None if endpoint.body is None else read_body(ask.body.encode(), endpoint.body),
        cast(Request, None),
        lambda: asker.author,
    )
    if endpoint.needs == "admin" and not asker.author.admin:
        raise Forbidden(f"{asker.author.user} is not an admin")
    if path.get("verb") and path["kind"] == "Node":
        raise Forbidden("nodes are Kubernetes' own: use kubectl cordon and kubectl drain")
    if asker.namespace is not None and rule is not None:
        call = rule.ask(asker, call)
    result = endpoint.handle(service, call)
    if ask.method != "GET":
        service.wake.set()
    if isinstance(result, Response):
        return result
    made = msgspec.to_builtins(result)
    if asker.namespace is not None and rule is not None:
        made = as_named_in(asker.namespace, rule.show(asker, made))
    return Response(msgspec.json.encode(made), media_type="application/json")


def find(method: str, target: str) -> tuple[Endpoint, dict[str, str]]:
    """The endpoint of a request and the values in its path."""
    parts = target.split("/")
    for endpoint in ENDPOINTS:
        wanted = endpoint.path.split("/")
        if endpoint.method != method or len(wanted) != len(parts):
            continue
        pairs = list(zip(wanted, parts, strict=True))
        if all(name == part or re.fullmatch(r"\{\w+\}", name) for name, part in pairs):
            return endpoint, {n[1:-1]: unquote(p) for n, p in pairs if n.startswith("{")}
    raise UnknownPath(f"there is no {method} {target}")


class UnknownPath(NotFound):
    """There is no such endpoint."""

    def __init__(self, message: str) -> None:
        Denied.__init__(self, "NotFound", message)


# -- what a tenant may ask, and what it sees -------------------------------------------------------


def _as_asked(_: Asker, call: Call) -> Call:
    return call


def _as_is(_: Asker, made: Any) -> Any:
    return made


@dataclass(frozen=True, slots=True)
class Rule:
    """How a tenant's request is narrowed to its owner, and its answer."""

    ask: Callable[[Asker, Call], Call] = _as_asked
    show: Callable[[Asker, Any], Any] = _as_is


def _own_rows(*columns: str) -> Callable[[Asker, Any], Any]:
    def show(asker: Asker, rows: Any) -> Any:
        return [row for row in rows if asker.owner in (row[column] for column in columns)]

    return show


def _own_name(asker: Asker, call: Call) -> Call:
    """Objects of the namespace, and the owner's budgets."""
    kind = call.path.get("kind", "Run")
    if kind == "Node":
        raise Forbidden("nodes are shown in the admin namespace")
    if kind == "Budget":
        return call
    return replace(call, path={**call.path, "name": asker.name(call.path["name"])})


def _own_object(asker: Asker, made: Any) -> Any:
    """An explanation without other owners' runs, and without what decisions looked at."""
    shown = dict(made)
    document = shown["object"]
    owner = document["spec"].get("owner", asker.owner)
    if owner != asker.owner:
        name = document["metadata"]["name"]
        raise Forbidden(f"{document['kind']} {name!r} is another owner's")
    if document["kind"] == "Reservation":
        status = document["status"]
        status = {**status, "message": without_names(status["message"] or "")}
        shown["object"] = {**document, "status": status}
    shown["object"] = own_queue(asker, shown["object"])
    for step in ("cover", "placement"):
        if shown.get(step) is not None:
            kept = ("seq", "kind", "time", "input_digest")
            shown[step] = {field: shown[step][field] for field in kept}
    if shown.get("forecast") is not None:
        shown["forecast"] = own_forecast(asker, shown["forecast"])
    if "cordoned" in shown:  # nodes are the admin's to see
        shown["cordoned"] = []
    if "leases" in shown and document["kind"] == "Budget":
        shown["leases"] = [_own_lease(asker, row) for row in shown["leases"]]
    return shown


def own_queue(asker: Asker, document: Any) -> Any:
    """An object; of a run in the queue without the name of another owner's run."""
    queue = document["status"].get("queue")
    if not queue or queue.get("afterOwner") in (None, asker.owner):
        return document
    hidden = {**queue, "after": HIDDEN, "afterOwner": HIDDEN}
    return {**document, "status": {**document["status"], "queue": hidden}}


def _own_lease(asker: Asker, row: Values) -> Values:
    """A borrower's lease is charged to our budget: its size is ours to know, its run is not."""
    if row["owner"] == asker.owner:
        return row
    return {**row, "run": HIDDEN, "lease": HIDDEN, "slots": [HIDDEN]}


def own_forecast(asker: Asker, forecast: Any) -> Any:
    """Who would be preempted: the odds of all, the names of the own."""
    shown = dict(forecast)
    for part in ("cuts", "atRisk"):
        shown[part] = [
            row
            if row["owner"] == asker.owner
            else {**row, **{field: HIDDEN for field in ("run", "owner", "lease") if field in row}}
            for row in shown.get(part, ())
        ]
    return shown


def _own_change(asker: Asker, made: Any) -> Any:
    shown = dict(made)
    if shown.get("object") is not None:
        shown["object"] = own_queue(asker, shown["object"])
    preview = shown.get("preview")
    if preview and preview.get("forecast") is not None:
        shown["preview"] = {**preview, "forecast": own_forecast(asker, preview["forecast"])}
    return shown


def _own_manifest(asker: Asker, call: Call) -> Call:
    """A Run as it is written to Kubernetes, as the engine takes it."""
    manifest = call.body
    if isinstance(manifest, dict) and isinstance(manifest.get("metadata"), dict):
        meta, spec = dict(manifest["metadata"]), manifest.get("spec")
        meta.pop("namespace", None)
        if isinstance(meta.get("name"), str):
            meta["name"] = asker.name(meta["name"])
        manifest = {**manifest, "metadata": meta}
        if isinstance(spec, dict):
            kept = {field: value for field, value in spec.items() if field != "template"}
            kept.setdefault("command", ["template"] if "template" in spec else [])
            if isinstance(after := kept.get("after"), list):
                kept["after"] = [_own_row(asker, row) for row in after]
            manifest["spec"] = {"owner": asker.owner, **kept}
    return replace(call, body=manifest)


def _own_row(asker: Asker, row: Any) -> Any:
    """A run that another one starts after."""
    if isinstance(row, dict) and isinstance(row.get("run"), str):
        return {**row, "run": asker.name(row["run"])}
    return row


def _own_owner(asker: Asker, call: Call) -> Call:
    if call.query.owner != asker.owner:
        raise Forbidden(f"query.owner: must be the namespace's owner, {asker.owner!r}")
    return call


def _own_events(asker: Asker, made: Any) -> Any:
    items = [row for row in made["items"] if row["owner"] == asker.owner]
    return {**made, "items": [_own_event(row) for row in items]}


def _own_event(row: Values) -> Values:
    shown = {**row, "message": without_names(row["message"] or "")}
    if isinstance(row["body"].get("message"), str):
        shown["body"] = {**row["body"], "message": without_names(row["body"]["message"])}
    return shown


def _own_policy(asker: Asker, made: Any) -> Any:
    """Which other owners may preempt at once is not a tenant's to know."""
    return {**made, "mayResolve": [name for name in made["mayResolve"] if name == asker.owner]}


RULES: dict[str, Rule] = {
    "GET /v1/whoami": Rule(),
    "GET /v1/head": Rule(),
    "GET /v1/policy": Rule(show=_own_policy),
    "GET /v1/consistency": Rule(),
    "GET /v1/ledger": Rule(),
    "GET /v1/outcomes": Rule(),
    "GET /v1/outcomes/{seq}": Rule(),
    "GET /v1/outcomes/{seq}/export": Rule(),
    "GET /v1/budgets": Rule(show=_own_rows("owner")),
    "GET /v1/leases": Rule(show=_own_rows("owner")),
    "GET /v1/owes": Rule(show=_own_rows("borrower", "lender")),
    "GET /v1/sponsors": Rule(ask=_own_owner),
    "GET /v1/events": Rule(show=_own_events),
    "GET /v1/explain/{kind}/{name}": Rule(_own_name, _own_object),
    "GET /v1/runs/{name}/forecast": Rule(_own_name, own_forecast),
    "GET /v1/reservations/{name}/forecast": Rule(_own_name, own_forecast),
    "POST /v1/plan": Rule(_own_manifest),
    "POST /v1/objects/{kind}/{name}/actions/{verb}": Rule(_own_name, _own_change),
    "PUT /v1/nonces/{owner}": Rule(),
    "PUT /v1/owner-keys/{owner}": Rule(),
}
