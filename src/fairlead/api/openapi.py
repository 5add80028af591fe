"""The OpenAPI 3.1 document, written from the table of endpoints and the msgspec types."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from fairlead import __version__
from fairlead.api.endpoint import Endpoint
from fairlead.api.shapes import Error, ObjectKind, Verb
from fairlead.schema.objects import SHAPES, Kind

_REF = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"\{(\w+)\}")
_MANIFEST = {"oneOf": [{"$ref": _REF.format(name=shape.__name__)} for shape in SHAPES.values()]}
_TITLES = {
    400: "not JSON",
    401: "a token is missing, unknown or revoked",
    403: "not allowed for this user",
    404: "not found",
    409: "refused in the present state",
    413: "too large",
    422: "bad input",
    429: "asked too often",
    500: "environment error or bug",
    503: "temporarily unavailable; retry",
}
_ROLES = {
    "user": "a user",
    "run": "a process of the run itself",
    "admin": "an admin",
    "agent": "the token of an agent",
}
_HEADERS = {
    "Fairlead-Head": "size:root of the ledger",
    "Fairlead-Ledger": "id:epoch of the ledger",
    "Fairlead-Signature": "time:key:signature of that checkpoint",
}


def document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    types = [endpoint.answer for endpoint in endpoints]
    types += [Error, ObjectKind, Kind, Verb, *SHAPES.values()]
    types += [endpoint.body for endpoint in endpoints if endpoint.body not in (None, dict)]
    types += [endpoint.query for endpoint in endpoints if endpoint.query is not None]
    documents, components = msgspec.json.schema_components(types, ref_template=_REF)
    schemas = dict(zip(map(str, types), documents, strict=True))
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        methods = paths.setdefault(endpoint.path, {})
        methods[endpoint.method.lower()] = _operation(endpoint, schemas, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Fairlead control plane",
            "version": __version__,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{}, {"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(
    endpoint: Endpoint, schemas: dict[str, Any], components: dict[str, Any]
) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": _in_path(name, endpoint, schemas)}
        for name in _PARAMETER.findall(endpoint.path)
    ]
    if endpoint.query is not None:
        shape = components[endpoint.query.__name__]
        required = shape.get("required", ())
        parameters += [
            {"name": name, "in": "query", "required": name in required, "schema": schema}
            for name, schema in shape["properties"].items()
        ]
    content = {endpoint.media: {"schema": schemas[str(endpoint.answer)]}}
    content |= {media: {"schema": {"type": "string"}} for media in endpoint.also}
    responses: dict[str, Any] = {"200": {"description": "done", "content": content}}
    error = {"application/json": {"schema": {"$ref": _REF.format(name="Error")}}}
    for status in endpoint.statuses:
        responses[str(status)] = {"description": _TITLES[status], "content": error}
    for response in responses.values():
        response["headers"] = {
            name: {"description": text, "schema": {"type": "string"}}
            for name, text in _HEADERS.items()
        }
    words = re.sub(r"[^A-Za-z0-9]+", " ", endpoint.path.removeprefix("/v1")).split()
    operation: dict[str, Any] = {
        "operationId": endpoint.method.lower() + "".join(w[:1].upper() + w[1:] for w in words),
        "summary": endpoint.summary,
        "parameters": parameters,
        "responses": responses,
    }
    if endpoint.roles:
        operation["description"] = _needs(endpoint)
        operation["security"] = [{"bearer": [role]} for role in endpoint.roles]
    if endpoint.body is not None:
        schema = _MANIFEST if endpoint.body is dict else schemas[str(endpoint.body)]
        body = {"application/json": {"schema": schema}}
        operation["requestBody"] = {"required": True, "content": body}
    return operation


def _needs(endpoint: Endpoint) -> str:
    """Who may ask at all; for which owner it may act, the handler says."""
    where = ", on the socket and without a token" if endpoint.grants else ""
    return f"Needs {' or '.join(_ROLES[role] for role in endpoint.roles)}{where}."


def _in_path(name: str, endpoint: Endpoint, schemas: dict[str, Any]) -> Any:
    if name == "seq":
        return {"type": "integer", "minimum": 1}
    known = {"kind": ObjectKind if endpoint.any_kind else Kind, "verb": Verb}
    return schemas[str(known[name])] if name in known else {"type": "string", "minLength": 1}
