"""The HTTP API as a page, from the OpenAPI document that the control plane serves.

`make docs` puts it into the site. It is not kept in the repository: each build makes it anew.
"""

import re
from collections.abc import Iterator
from typing import Any

from fairlead.api.app import ENDPOINTS
from fairlead.api.openapi import document

HEAD = """# HTTP API

The control plane serves this API on its Unix socket and on `http://127.0.0.1:8470`;
`GET /openapi.json` gives the same as OpenAPI 3.1. On the socket the kernel says who calls;
elsewhere a token does: `Authorization: Bearer …`. Each request says which role it needs; one that
says none is answered without a token. For which owners a user acts, and what it is shown, is in
[who may do what](../operate/security.md).
Every answer carries the ledger's checkpoint in `Fairlead-Head`, `Fairlead-Ledger` and
`Fairlead-Signature`. Errors have the shape [`Error`](#error).
"""


def kind_of(schema: dict[str, Any]) -> str:
    """A type in words, with links to the shapes below."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        anchor = re.sub(r"[^\w-]", "", name.lower())
        return f"[`{name}`](#{anchor})"
    for union in ("oneOf", "anyOf"):
        if union in schema:
            return " or ".join(kind_of(one) for one in schema[union])
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {kind_of(schema.get('items') or {})}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"map to {kind_of(schema['additionalProperties'])}"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _cell(text: object) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


def operations(described: dict[str, Any]) -> Iterator[str]:
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            yield f"### `{method.upper()} {path}`\n"
            needs = operation.get("description")
            yield f"{operation['summary']}.{' ' + needs if needs else ''}\n"
            if operation["parameters"]:
                yield "| parameter | in | type |\n|---|---|---|"
                for row in operation["parameters"]:
                    name = f"`{row['name']}`" + (" (required)" if row["required"] else "")
                    yield f"| {name} | {row['in']} | {_cell(kind_of(row['schema']))} |"
                yield ""
            if "requestBody" in operation:
                (body,) = operation["requestBody"]["content"].values()
                yield f"Body: {kind_of(body['schema'])}\n"
            answers = operation["responses"]["200"]["content"]
            shown = (f"`{media}`: {kind_of(body['schema'])}" for media, body in answers.items())
            yield f"Answer: {'; '.join(shown)}\n"
            errors = (code for code in operation["responses"] if code != "200")
            yield f"Errors: {', '.join(errors)}\n"


def shapes(described: dict[str, Any]) -> Iterator[str]:
    for name, schema in sorted(described["components"]["schemas"].items()):
        yield f"### {name}\n"
        if "description" in schema:
            yield schema["description"] + "\n"
        if "properties" not in schema:
            yield kind_of(schema) + "\n"
            continue
        yield "| field | type | meaning |\n|---|---|---|"
        required = schema.get("required", ())
        for field, row in schema["properties"].items():
            title = f"`{field}`" + (" (required)" if field in required else "")
            yield f"| {title} | {_cell(kind_of(row))} | {_cell(row.get('description', ''))} |"
        yield ""


def page() -> str:
    """The page as Markdown."""
    described = document(ENDPOINTS)
    parts = ("\n## Requests\n", *operations(described), "## Shapes\n", *shapes(described))
    return HEAD + "\n".join(parts) + "\n"
