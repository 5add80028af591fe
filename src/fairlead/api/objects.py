"""Objects, plans and actions. Nothing here decides: the control plane does."""

from typing import Any

from fairlead.api.endpoint import Call, Endpoint
from fairlead.api.service import Service
from fairlead.api.shapes import (
    ApplyBody,
    Change,
    Changes,
    DryRunQuery,
    ObjectDocument,
    ObjectList,
    OwnerQuery,
    Plan,
    PutQuery,
)
from fairlead.engine.gpu import Applied, Author, NotFound
from fairlead.schema.border import BadInput
from fairlead.schema.objects import read_manifest

KINDS = ("Budget", "Run", "Node", "Lease")
_PRIVATE: dict[str, Any] = {"command": [], "env": {}, "secretEnv": {}, "workingDirectory": None}


def seen_by(author: Author, document: dict[str, Any]) -> dict[str, Any]:
    """An object without what only those who act for its owner may see."""
    spec = document["spec"]
    if document["kind"] != "Run" or author.may_act_for(spec["owner"]):
        return document
    hidden = {key: value for key, value in _PRIVATE.items() if key in spec}
    return {**document, "spec": {**spec, **hidden}}


def known_kind(call: Call, *, writable: bool = False) -> str:
    """The kind that a path names."""
    kind = call.path["kind"]
    if kind not in KINDS:
        raise BadInput("path.kind", f"must be one of {', '.join(KINDS)}, got {kind!r}")
    if writable and kind == "Lease":
        raise BadInput("path.kind", "leases are written by the control plane alone")
    return kind


def list_objects(service: Service, call: Call) -> dict[str, Any]:
    """All of a kind."""
    found = service.plane.list(known_kind(call), owner=call.query.owner)
    return {"items": [seen_by(call.author, each) for each in found]}


def get_object(service: Service, call: Call) -> dict[str, Any]:
    """One."""
    kind, name = known_kind(call), call.path["name"]
    found = service.plane.get(kind, name)
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
    applied = service.plane.apply(
        manifest, author=call.author, dry_run=call.query.dry_run,
        expected_version=call.query.expected_version,
    )  # fmt: skip
    service.wake.set()
    return _change(applied)


def apply_objects(service: Service, call: Call) -> dict[str, Any]:
    """Several: all are tried dry before the first is written."""
    body: ApplyBody = call.body
    tried = []
    for i, manifest in enumerate(body.manifests):
        try:
            tried.append(service.plane.apply(manifest, author=call.author, dry_run=True))
        except BadInput as error:
            path = "" if error.path == "$" else f".{error.path}"
            raise BadInput(f"manifests[{i}]{path}", error.message) from None
    if body.dry_run:
        return {"items": [_change(each) for each in tried]}
    done = [service.plane.apply(each, author=call.author) for each in body.manifests]
    service.wake.set()
    return {"items": [_change(each) for each in done]}


def delete_object(service: Service, call: Call) -> dict[str, Any]:
    """Remove one that nothing uses."""
    kind, name = known_kind(call, writable=True), call.path["name"]
    found = service.plane.delete(kind, name, author=call.author, dry_run=call.query.dry_run)
    service.wake.set()
    return seen_by(call.author, found)


def act_on_object(service: Service, call: Call) -> dict[str, Any]:
    """A verb on one."""
    kind = known_kind(call, writable=True)
    found = service.plane.act(kind, call.path["name"], call.path["verb"], author=call.author)
    service.wake.set()
    return seen_by(call.author, found)


def plan_run(service: Service, call: Call) -> dict[str, Any]:
    """What submitting a run would lead to."""
    return service.plane.plan(call.body, author=call.author)


def explain_object(service: Service, call: Call) -> dict[str, Any]:
    """Why an object is as it is."""
    kind = known_kind(call, writable=True)
    found = service.plane.explain(kind, call.path["name"])
    return {**found, "object": seen_by(call.author, found["object"])}


def _change(applied: Applied) -> dict[str, Any]:
    return {"object": applied.object, "change": applied.change, "preview": applied.preview}


_ONE = "/v1/objects/{kind}/{name}"
ENDPOINTS = (
    Endpoint(
        "GET", "/v1/objects/{kind}", "Objects of a kind", list_objects, ObjectList, OwnerQuery,
        any_kind=True,
    ),
    Endpoint("GET", _ONE, "One object", get_object, ObjectDocument, any_kind=True),
    Endpoint(
        "PUT", _ONE, "Create or change an object", put_object, Change, PutQuery, dict, "user",
        errors=(409,),
    ),
    Endpoint(
        "DELETE", _ONE, "Remove an object that nothing uses", delete_object, ObjectDocument,
        DryRunQuery, None, "user", errors=(409,),
    ),
    Endpoint(
        "POST", "/v1/apply", "Create or change several objects", apply_objects, Changes, None,
        ApplyBody, "user", errors=(409,),
    ),
    Endpoint(
        "POST", _ONE + "/actions/{verb}",
        "Run: cancel, pause, resume. Node: cordon, uncordon, drain, fail", act_on_object,
        ObjectDocument, None, None, "user", errors=(409,),
    ),
    Endpoint(
        "POST", "/v1/plan", "What submitting a run would lead to now", plan_run, Plan, None, dict,
        "user",
    ),
    Endpoint(
        "GET", "/v1/explain/{kind}/{name}", "Why an object is as it is", explain_object,
        dict[str, Any],
    ),
)  # fmt: skip
