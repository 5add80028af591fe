"""What users copy or look up: the sample configuration, and the fields of manifests."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from fairlead.schema.node import NodeAgentDocument, read_node_document
from fairlead.schema.objects import SPECS

ROOT = Path(__file__).resolve().parents[2]
# What the sample itself calls an example, or has to be chosen.
EXAMPLES = {"root", "pods", "metrics_port"}


def test_the_node_agents_sample_shows_the_defaults() -> None:
    """Every setting is there, if only in a comment, and none differs from its default unsaid."""
    text = (ROOT / "deploy" / "systemd" / "node.yaml").read_text()
    given = msgspec.to_builtins(read_node_document(text.encode(), {}))
    default = msgspec.to_builtins(NodeAgentDocument())
    assert {key for key in given if given[key] != default[key]} == EXAMPLES
    assert [key for key in given if f"{key}:" not in text] == []


def test_every_field_of_a_manifest_is_explained() -> None:
    """In the section of its kind, whatever it lies in."""
    page = (ROOT / "docs" / "reference" / "manifests.md").read_text()
    for kind, shape in SPECS.items():
        _, _, section = page.partition(f"## {kind}\n")
        section = section.partition("\n## ")[0]
        missing = [name for name in fields(shape) if name not in section]
        assert missing == [], kind


def fields(shape: Any) -> Iterator[str]:
    """The names that users write, those of inner objects too."""
    schema = msgspec.json.schema(shape)
    for definition in schema["$defs"].values():
        yield from definition.get("properties", ())
