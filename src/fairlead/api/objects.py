"""Objects, plans and verbs. The control plane decides; this translates."""

from collections.abc import Iterable
from typing import Any, get_args

from fairlead.api import shapes
from fairlead.api.endpoint import Call, Routes
from fairlead.api.feed import redact
from fairlead.api.service import Service
from fairlead.engine.gpu import Applied, Author, Denied, Forbidden, NotFound, Refused, job_prefix
from fairlead.schema.border import BadInput
from fairlead.schema.objects import RunManifest, parse_duration, read_manifest
from fairlead.schema.times import format_time, parse_time
from fairlead.schema.yaml import parse_yaml_documents

routes = Routes()
_ONE, _ACT = "/v1/objects/{kind}/{name}", "/v1/objects/{kind}/{name}/actions/{verb}"
KINDS: tuple[str, ...] = get_args(shapes.ObjectKind)
_PRIVATE: dict[str, Any] = {"command": [], "env": {}, "secretEnv": {}, "workingDirectory": None}


class UnknownWord(NotFound):
    """The path names an unknown kind or verb."""

    def __init__(self, reason: str, word: str, known: Iterable[str]) -> None:
        message = f"unknown {word}: expected {', '.join(known) or 'none'}"
        Denied.__init__(self, reason, message)


def visible_to(author: Author, document: dict[str, Any]) -> dict[str, Any]:
    """A run without its command and variables, for a user that does not act for its owner."""
    spec = document["spec"]
    if document["kind"] != "Run" or author.may_see(document["metadata"]["name"], spec["owner"]):
        return document
    hidden = {key: value for key, value in _PRIVATE.items() if key in spec}
    status = document["status"]
    public = {"exitReason": None, "message": redact(status["message"], status["exitReason"])}
    return {**document, "spec": {**spec, **hidden}, "status": {**status, **public}}


def known_kind(call: Call, *, writable: bool = False) -> str:
    kind = call.path["kind"]
    if kind not in KINDS:
        raise UnknownWord("UnknownKind", f"kind {kind!r}", KINDS)
    if writable and kind == "Lease":
        raise Forbidden("only the control plane writes leases")
    return kind


def found(service: Service, kind: str, name: str) -> dict[str, Any]:
    document = service.plane.objects.get(kind, name)
    if document is None:
        raise NotFound(kind, name)
    return document


@routes("GET /v1/objects/{kind}", shapes.ObjectList, shapes.ListQuery, any_kind=True)
def list_objects(service: Service, call: Call) -> dict[str, Any]:
    """List objects of a kind by page."""
    query: shapes.ListQuery = call.query
    objects = service.plane.objects.list(
        known_kind(call),
        owner=query.owner,
        label=query.label,
        after=query.cursor,
        limit=query.limit + 1,
    )
    page, more = objects[: query.limit], len(objects) > query.limit
    return {
        "items": [visible_to(call.author, document) for document in page],
        "next": page[-1]["metadata"]["name"] if more else None,
    }


@routes(f"GET {_ONE}", shapes.ObjectDocument, any_kind=True)
def get_object(service: Service, call: Call) -> dict[str, Any]:
    """Show one object."""
    return visible_to(call.author, found(service, known_kind(call), call.path["name"]))


@routes(f"PUT {_ONE}", shapes.Change, shapes.PutQuery, body=dict, needs="user", errors=(409,))
def put_object(service: Service, call: Call) -> Applied:
    """Create or change an object; path and manifest must name the same."""
    kind, name, manifest = known_kind(call, writable=True), call.path["name"], call.body
    read = read_manifest(manifest)
    if read.kind != kind:
        raise BadInput("kind", f"must be {kind}, as in the path")
    if read.metadata.name != name:
        raise BadInput("metadata.name", f"must be {name!r}, as in the path")
    return service.plane.objects.apply(
        manifest, expected_version=call.query.expected_version, **call.by
    )


@routes("POST /v1/apply", shapes.Changes, None, body=shapes.ApplyBody, needs="user", errors=(409,))
def apply_objects(service: Service, call: Call) -> dict[str, Any]:
    """Create or change several objects, all or none."""
    body: shapes.ApplyBody = call.body
    apply_all = service.plane.objects.apply_all
    return {"items": apply_all(body.manifests, author=call.author, dry_run=body.dry_run)}


@routes("POST /v1/manifests", shapes.Manifests, None, body=shapes.YamlBody, needs="user")
def read_yaml(service: Service, call: Call) -> dict[str, Any]:
    """Read YAML as manifests; nothing is applied."""
    documents = parse_yaml_documents(call.body.text.encode("utf-8", "surrogatepass"))
    manifests = [document for document in documents if document is not None]
    if not manifests:
        raise BadInput("text", "has no manifest")
    return {"manifests": manifests}


@routes(f"DELETE {_ONE}", shapes.Change, shapes.DryRunQuery, needs="user", errors=(409,))
def delete_object(service: Service, call: Call) -> dict[str, Any]:
    """Delete an object that nothing uses."""
    kind, name = known_kind(call, writable=True), call.path["name"]
    deleted = service.plane.objects.delete(kind, name, **call.by)
    return {"object": visible_to(call.author, deleted), "change": "deleted", "preview": None}


@routes(
    f"POST {_ACT}", shapes.Change, shapes.ActionQuery, needs="user", own_run=True, errors=(409,)
)
def act_on_object(service: Service, call: Call) -> Applied:
    """Act on a run or node: cancel, nominate, shrink, cordon, drain, …"""
    kind, name, verb = known_kind(call), call.path["name"], call.path["verb"]
    verbs = shapes.VERBS.get(kind, ())
    if all(verb not in known for known in shapes.VERBS.values()) or kind == "Lease":
        raise UnknownWord("UnknownVerb", f"verb {verb!r} of {kind}", verbs)
    if verb not in verbs:
        raise Refused("UnknownVerb", f"{verb!r} is not a verb of {kind}")
    more: dict[str, Any] = {} if call.query.width is None else {"width": call.query.width}
    if (verb == "shrink") != bool(more):
        raise BadInput("query.width", "is required by shrink and refused by other verbs")
    if call.query.force and verb != "cancel":
        raise BadInput("query.force", "is for cancel, and refused by other verbs")
    return service.plane.verbs.act(kind, name, verb, **call.by, **more, force=call.query.force)


@routes("POST /v1/plan", shapes.RunPlan, None, body=dict, needs="user")
def plan_run(service: Service, call: Call) -> dict[str, Any]:
    """Plan a run: who would pay, and where it would start."""
    plan = service.plane.objects.plan(call.body, author=call.author)
    return {**plan, "warnings": plan["warnings"] + _closing(service, call.body, plan["plan"])}


def _closing(service: Service, manifest: Any, lines: list[dict[str, Any]]) -> list[str]:
    """Warnings about windows that close before the run ends: a window gates only the start."""
    read = read_manifest(manifest)
    duration = read.spec.duration if isinstance(read, RunManifest) else None
    until_ms = None if duration is None else service.now_ms() + parse_duration(duration, "")
    warnings = []
    for line in lines:
        budget = service.plane.objects.get("Budget", line["budget"])
        for envelope in budget["spec"]["envelopes"] if budget else ():
            window = envelope["window"]
            if envelope["name"] != line["envelope"] or window is None:
                continue
            end_ms = parse_time(window["end"], "window.end")
            if until_ms is None or until_ms > end_ms:
                length = "no duration" if duration is None else f"a duration of {duration}"
                warnings.append(
                    f"envelope {line['budget']}/{line['envelope']} closes at "
                    f"{format_time(end_ms)}, and the run has {length}"
                )
    return warnings


@routes("GET /v1/explain/{kind}/{name}", dict[str, Any], any_kind=True)
def explain_object(service: Service, call: Call) -> dict[str, Any]:
    """Explain the state of an object; of a lease, by its run."""
    kind, name = known_kind(call), call.path["name"]
    if kind != "Lease":
        reply = service.plane.reports.explain(kind, name)
        reply["forecast"] = _forecast(service, reply["object"])
        reply["may"] = _may(service, call.author, reply["object"])
        if kind == "Reservation" and reply["run"] is not None:
            reply["run"] = visible_to(call.author, reply["run"])
        return {**reply, "object": visible_to(call.author, reply["object"])}
    lease = found(service, kind, name)
    try:
        run = service.plane.reports.explain("Run", lease["spec"]["run"])
    except NotFound:
        return {"object": lease}
    metadata = run["object"]["metadata"]
    if not name.startswith(job_prefix(metadata["name"], metadata["uid"])):
        return {"object": lease}  # the name belongs to another run now
    return {"object": lease, "cover": run["cover"], "placement": run["placement"]}


def _may(service: Service, author: Author, document: dict[str, Any]) -> list[str]:
    """What the reader may do about an object: nothing else is offered."""
    if author.admin:
        return ["budget", "nonce", "replay", "reserve", "resolve", "uncordon"]
    owner = document["spec"].get("owner")
    if document["kind"] != "Run" or not author.may_act_for(owner):
        return []
    resolves = owner in service.plane.config.may_resolve
    return ["nonce", "reserve", *(["resolve"] if resolves else [])]


def _forecast(service: Service, document: dict[str, Any]) -> dict[str, Any] | None:
    """The preview of a pending run or reservation; None for others."""
    kind, name, status = document["kind"], document["metadata"]["name"], document["status"]
    waits = {
        "Run": status.get("phase") in ("Pending", "Reserved"),
        "Reservation": status.get("state") in ("Pending", "Blocked"),
    }
    try:
        return service.plane.resolver.preview(kind, name) if waits.get(kind) else None
    except (Refused, NotFound):
        return None  # it started or was deleted in between
