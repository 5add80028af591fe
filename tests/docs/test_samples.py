"""Files that users copy: the sample configuration says what the defaults are."""

from pathlib import Path

import msgspec

from fairlead.schema.node import NodeDocument, read_node_document

ROOT = Path(__file__).resolve().parents[2]
# What the sample itself calls an example, or has to be chosen.
EXAMPLES = {"root", "pods", "metrics_port"}


def test_the_node_agents_sample_shows_the_defaults() -> None:
    """Every setting is there, if only in a comment, and none differs from its default unsaid."""
    text = (ROOT / "deploy" / "systemd" / "node.yaml").read_text()
    given = msgspec.to_builtins(read_node_document(text.encode(), {}))
    default = msgspec.to_builtins(NodeDocument())
    assert {key for key in given if given[key] != default[key]} == EXAMPLES
    assert [key for key in given if f"{key}:" not in text] == []
