"""The runbook is complete: every condition, code, reason and log line has its row."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import fairlead
from fairlead.api import endpoint
from fairlead.core.reasons import CoverRefusal
from fairlead.engine.gpu.state import Phase

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "operate" / "conditions.md").read_text()
SOURCE = Path(fairlead.__file__).parent
# The resolver's answers have a page of their own.
FILES = [*sorted((SOURCE / "engine" / "gpu").glob("*.py")), *sorted((SOURCE / "api").glob("*.py"))]
NODES = [node for path in FILES for node in ast.walk(ast.parse(path.read_text()))]


def calls(name: str) -> Iterator[ast.Call]:
    """Calls of a function or method of that name, in the control plane's own files."""
    for node in NODES:
        if isinstance(node, ast.Call):
            called = node.func
            found = called.attr if isinstance(called, ast.Attribute) else called
            if (found.id if isinstance(found, ast.Name) else found) == name:
                yield node


def texts(name: str, place: int) -> set[str]:
    """The constant texts at one place of such calls."""
    return {
        node.args[place].value
        for node in calls(name)
        if len(node.args) > place
        and isinstance(node.args[place], ast.Constant)
        and isinstance(node.args[place].value, str)
    }


def reasons() -> set[str]:
    """What a `run.phase` entry may give as its reason."""
    found = set()
    for node in NODES:
        if isinstance(node, ast.keyword) and node.arg in ("reason", "lease_reason"):
            found |= _constants(node.value)
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "reason":
                    found |= _constants(value)
    return {each for each in found if re.fullmatch(r"[A-Z][A-Za-z]+", each)}


def _constants(node: ast.expr) -> set[str]:
    if isinstance(node, ast.IfExp):
        return _constants(node.body) | _constants(node.orelse)
    return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()


def assigned(name: str) -> tuple[str, ...]:
    """The constant of that name, wherever it stands."""
    for node in NODES:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == name:
            return tuple(ast.literal_eval(node.value))
    raise AssertionError(f"there is no {name}")


WORDS = {
    "condition": set(assigned("CONDITIONS")),
    "phase": {phase.value for phase in Phase},
    "reason": reasons(),
    "refusal": {code.value for code in CoverRefusal},
    "refused": texts("Refused", 0),
    "error": {code for _, _, code in endpoint._ERRORS if code != "Refused"} | texts("problem", 1),
    "log line": texts("warning", 0) | texts("_warn", 0) | texts("exception", 0) | texts("error", 0),
}


@pytest.mark.parametrize("kind", sorted(WORDS))
def test_every_word_has_its_row(kind: str) -> None:
    """In a table, as code, so that searching for it finds it."""
    rows = "\n".join(line for line in PAGE.splitlines() if line.startswith("|"))
    missing = sorted(word for word in WORDS[kind] if f"`{word}`" not in rows)
    assert missing == [], f"docs/operate/conditions.md says nothing of these: {missing}"
    assert len(WORDS[kind]) >= 4, "the search found too little to be right"
