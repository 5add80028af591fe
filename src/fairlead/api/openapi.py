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
    401: "a token is needed, or opens nothing",
    403: "not yours",
    404: "there is none",
    409: "not in the present state",
    413: "too large",
    422: "bad input",
    500: "a fault",
    503: "try again",
}
_HEADERS = {
    "Fairlead-Head": "size:root of the ledger",
    "Fairlead-Ledger": "id:epoch of the ledger",
    "Fairlead-Signature": "time:key:signature of that head",
}


def document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Everything a client needs to know."""
    types = [each.answer for each in endpoints] + [Error, ObjectKind, Kind, Verb, *SHAPES.values()]
    types += [each.body for each in endpoints if each.body not in (None, dict)]
    types += [each.query for each in endpoints if each.query is not None]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    shown = dict(zip(map(str, types), schemas, strict=True))
    paths: dict[str, Any] = {}
    for each in endpoints:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, shown, components)
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


def _operation(each: Endpoint, shown: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    parameters = [_path_parameter(name, each, shown) for name in _PARAMETER.findall(each.path)]
    if each.query is not None:
        shape = components[each.query.__name__]
        parameters += [
            {
                "name": name,
                "in": "query",
                "required": name in shape.get("required", ()),
                "schema": schema,
            }
            for name, schema in shape["properties"].items()
        ]
    schema = shown[str(each.answer)]
    content = {each.media: {"schema": schema}}
    content |= {media: {"schema": {"type": "string"}} for media in each.also}
    responses: dict[str, Any] = {"200": {"description": "done", "content": content}}
    for status in each.statuses:
        body = {"application/json": {"schema": {"$ref": _REF.format(name="Error")}}}
        responses[str(status)] = {"description": _TITLES[status], "content": body}
    for response in responses.values():
        response["headers"] = {
            name: {"description": text, "schema": {"type": "string"}}
            for name, text in _HEADERS.items()
        }
    found: dict[str, Any] = {
        "operationId": _operation_id(each),
        "summary": each.summary,
        "parameters": parameters,
        "responses": responses,
    }
    if each.needs != "nothing":
        found["security"] = [{"bearer": []}]
    if each.body is not None:
        body_schema = _MANIFEST if each.body is dict else shown[str(each.body)]
        found["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": body_schema}},
        }
    return found


def _path_parameter(name: str, each: Endpoint, shown: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string", "minLength": 1}
    if name == "kind":
        schema = shown[str(ObjectKind if each.any_kind else Kind)]
    elif name == "seq":
        schema = {"type": "integer", "minimum": 1}
    elif name == "verb":
        schema = shown[str(Verb)]
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _operation_id(each: Endpoint) -> str:
    words = re.sub(r"[^A-Za-z0-9]+", " ", each.path.removeprefix("/v1")).split()
    return each.method.lower() + "".join(word[:1].upper() + word[1:] for word in words)
