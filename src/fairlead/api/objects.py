"""Objects, plans and actions. Nothing here decides: the control plane does."""

from typing import Any

from fairlead.api.endpoint import Call, Endpoint
from fairlead.api.queries import ActionQuery, DryRunQuery, OwnerQuery, PutQuery
from fairlead.api.service import Service
from fairlead.api.shapes import VERBS, ApplyBody, Change, Changes, ObjectDocument, ObjectList, Plan
from fairlead.engine.gpu import Applied, Author, Denied, Forbidden, NotFound, Refused, job_prefix
from fairlead.schema.border import BadInput
from fairlead.schema.objects import RunManifest, parse_duration, read_manifest
from fairlead.schema.times import format_time, parse_time

KINDS = ("Budget", "Run", "Node", "Reservation", "Lease")
_PRIVATE: dict[str, Any] = {"command": [], "env": {}, "secretEnv": {}, "workingDirectory": None}


class NoSuchKind(NotFound):
    """A path that names no kind of ours."""

    def __init__(self, kind: str) -> None:
        Denied.__init__(self, "UnknownKind", f"there are {', '.join(KINDS)}; no kind {kind!r}")


class NoSuchVerb(NotFound):
    """A path that names no verb of ours."""

    def __init__(self, kind: str, verb: str) -> None:
        known = ", ".join(VERBS.get(kind, ())) or "nothing"
        Denied.__init__(self, "UnknownVerb", f"a {kind} can be asked to: {known}; not {verb!r}")


def seen_by(author: Author, document: dict[str, Any]) -> dict[str, Any]:
    """An object without what only those who act for its owner may see."""
    spec = document["spec"]
    if document["kind"] != "Run" or author.may_act_for(spec["owner"]):
        return document
    hidden = {key: value for key, value in _PRIVATE.items() if key in spec}
    status = document["status"]
    told = {"exitReason": None, "message": untold(status["message"], status["exitReason"])}
    return {**document, "spec": {**spec, **hidden}, "status": {**status, **told}}


def untold(message: str, exit_reason: str | None) -> str:
    """Without why a command could not be started: that names the program, files and variables."""
    return message if exit_reason is None else message.removesuffix(f": {exit_reason}")


def known_kind(call: Call, *, writable: bool = False) -> str:
    """The kind that a path names."""
    kind = call.path["kind"]
    if kind not in KINDS:
        raise NoSuchKind(kind)
    if writable and kind == "Lease":
        raise Forbidden("leases are written by the control plane alone")
    return kind


def list_objects(service: Service, call: Call) -> dict[str, Any]:
    """All of a kind."""
    found = service.plane.objects.list(known_kind(call), owner=call.query.owner)
    return {"items": [seen_by(call.author, each) for each in found]}


def get_object(service: Service, call: Call) -> dict[str, Any]:
    """One."""
    kind, name = known_kind(call), call.path["name"]
    found = service.plane.objects.get(kind, name)
    if found is None:
        raise NotFound(kind, name)
    return seen_by(call.author, found)


def put_object(service: Service, call: Call) -> dict[str, Any]:
    """Create or change one; the path and the manifest must name the same."""
    kind, name, manifest = known_kind(call, writable=True), call.path["name"], call.body
    given = read_manifest(manifest)
    if given.kind != kind:
        raise BadInput("kind", f"must be {kind}, as in the path")
    if given.metadata.name != name:
        raise BadInput("metadata.name", f"must be {name!r}, as in the path")
    applied = service.plane.objects.apply(
        manifest,
        author=call.author,
        dry_run=call.query.dry_run,
        expected_version=call.query.expected_version,
    )
    service.wake.set()
    return _change(applied)


def apply_objects(service: Service, call: Call) -> dict[str, Any]:
    """Several in one step: all of them, or none."""
    body: ApplyBody = call.body
    done = service.plane.objects.apply_all(body.manifests, author=call.author, dry_run=body.dry_run)
    service.wake.set()
    return {"items": [_change(each) for each in done]}


def delete_object(service: Service, call: Call) -> dict[str, Any]:
    """Remove one that nothing uses."""
    kind, name = known_kind(call, writable=True), call.path["name"]
    found = service.plane.objects.delete(kind, name, author=call.author, dry_run=call.query.dry_run)
    service.wake.set()
    return {"object": seen_by(call.author, found), "change": "deleted", "preview": None}


def act_on_object(service: Service, call: Call) -> dict[str, Any]:
    """A verb on one."""
    kind, name, verb = call.path["kind"], call.path["name"], call.path["verb"]
    if kind not in KINDS:
        raise NoSuchKind(kind)
    if all(verb not in known for known in VERBS.values()) or kind == "Lease":
        raise NoSuchVerb(kind, verb)
    if verb not in VERBS.get(kind, ()):
        raise Refused("UnknownVerb", f"a {kind} cannot {verb}")
    width = {} if call.query.width is None else {"width": call.query.width}
    if (verb == "shrink") != bool(width):
        raise BadInput("query.width", "is required to shrink, and for nothing else")
    done = service.plane.verbs.act(
        kind, name, verb, author=call.author, dry_run=call.query.dry_run, **width
    )
    service.wake.set()
    return _change(done)


def plan_run(service: Service, call: Call) -> dict[str, Any]:
    """What submitting a run would lead to."""
    found = service.plane.objects.plan(call.body, author=call.author)
    return {**found, "warnings": _closing(service, call.body, found["plan"])}


def _closing(service: Service, manifest: Any, lines: list[dict[str, Any]]) -> list[str]:
    """Windows that end before the run does: a window gates at the start only, so it is said."""
    given = read_manifest(manifest)
    duration = given.spec.duration if isinstance(given, RunManifest) else None
    until_ms = None if duration is None else service.now_ms() + parse_duration(duration, "")
    found = []
    for line in lines:
        budget = service.plane.objects.get("Budget", line["budget"])
        for envelope in budget["spec"]["envelopes"] if budget else ():
            window = envelope["window"]
            if envelope["name"] != line["envelope"] or window is None:
                continue
            end_ms = parse_time(window["end"], "window.end")
            if until_ms is None or until_ms > end_ms:
                length = "no duration" if duration is None else f"a duration of {duration}"
                found.append(
                    f"envelope {line['budget']}/{line['envelope']} closes at "
                    f"{format_time(end_ms)}, and the run has {length}"
                )
    return found


def explain_object(service: Service, call: Call) -> dict[str, Any]:
    """Why an object is as it is; a lease is as it is because of its run."""
    kind, name = known_kind(call), call.path["name"]
    if kind != "Lease":
        found = service.plane.reports.explain(kind, name)
        found["forecast"] = _forecast(service, found["object"])
        if kind == "Reservation" and found["run"] is not None:
            found["run"] = seen_by(call.author, found["run"])
        return {**found, "object": seen_by(call.author, found["object"])}
    lease = service.plane.objects.get(kind, name)
    if lease is None:
        raise NotFound(kind, name)
    try:
        run = service.plane.reports.explain("Run", lease["spec"]["run"])
    except NotFound:
        return {"object": lease}
    metadata = run["object"]["metadata"]
    if not name.startswith(job_prefix(metadata["name"], metadata["uid"])):
        return {"object": lease}  # another run that has its name by now
    return {"object": lease, "cover": run["cover"], "placement": run["placement"]}


def _forecast(service: Service, document: dict[str, Any]) -> dict[str, Any] | None:
    """What a run that waits, or a reservation that is not over, would take to start."""
    kind, name, status = document["kind"], document["metadata"]["name"], document["status"]
    waits = {
        "Run": status.get("phase") in ("Pending", "Reserved"),
        "Reservation": status.get("state") in ("Pending", "Blocked"),
    }
    try:
        return service.plane.resolver.preview(kind, name) if waits.get(kind) else None
    except (Refused, NotFound):
        return None  # it started, or went, in between


def _change(applied: Applied) -> dict[str, Any]:
    return {"object": applied.object, "change": applied.change, "preview": applied.preview}


_ONE = "/v1/objects/{kind}/{name}"
ENDPOINTS = (
    Endpoint(
        "GET",
        "/v1/objects/{kind}",
        "Objects of a kind",
        list_objects,
        ObjectList,
        OwnerQuery,
        any_kind=True,
    ),
    Endpoint("GET", _ONE, "One object", get_object, ObjectDocument, any_kind=True),
    Endpoint(
        "PUT",
        _ONE,
        "Create or change an object",
        put_object,
        Change,
        PutQuery,
        dict,
        "user",
        errors=(409,),
    ),
    Endpoint(
        "DELETE",
        _ONE,
        "Remove an object that nothing uses",
        delete_object,
        Change,
        DryRunQuery,
        None,
        "user",
        errors=(409,),
    ),
    Endpoint(
        "POST",
        "/v1/apply",
        "Create or change several objects, all or none",
        apply_objects,
        Changes,
        None,
        ApplyBody,
        "user",
        errors=(409,),
    ),
    Endpoint(
        "POST",
        _ONE + "/actions/{verb}",
        "Run: cancel, pause, resume, nominate, withdraw, shrink, resolve. "
        "Node: cordon, uncordon, drain, fail",
        act_on_object,
        Change,
        ActionQuery,
        None,
        "user",
        errors=(409,),
    ),
    Endpoint(
        "POST",
        "/v1/plan",
        "What submitting a run would lead to now",
        plan_run,
        Plan,
        None,
        dict,
        "user",
    ),
    Endpoint(
        "GET",
        "/v1/explain/{kind}/{name}",
        "Why an object is as it is",
        explain_object,
        dict[str, Any],
        any_kind=True,
    ),
)
