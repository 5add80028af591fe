"""docs/promises.md names tests that exist: a promise whose test was renamed is a hope again."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "promises.md"
# `tests/x/test_y.py::test_z`, also with a class; `…::test_z` for the file named last in its row, or
# for a suite that the section's text names.
NAMED = re.compile(r"`(tests/[\w/]+\.py|…)::(?:(Test\w+)::)?(\w+)`")


@cache
def functions(path: Path) -> frozenset[str]:
    """Functions and classes of a file."""
    return frozenset(
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    )


@cache
def anywhere() -> frozenset[str]:
    """Functions of all tests: suites are inherited."""
    return frozenset().union(*map(functions, (ROOT / "tests").rglob("*.py")))


def rows() -> list[tuple[int, str]]:
    return [
        (number, line)
        for number, line in enumerate(PAGE.read_text().splitlines(), 1)
        if line.startswith("|") and "::" in line
    ]


def is_there(file: str, suite: str, test: str) -> bool:
    """Whether there is such a test; one of a class may be inherited."""
    if not file:
        return test in anywhere()
    path = ROOT / file
    if suite:
        return path.is_file() and suite in functions(path) and test in anywhere()
    return path.is_file() and test in functions(path)


def test_every_named_test_exists() -> None:
    """By file and function."""
    missing, named = [], 0
    for number, line in rows():
        file = ""
        for place, suite, test in NAMED.findall(line):
            file = file if place == "…" else place
            named += 1
            if not is_there(file, suite, test):
                missing.append(f"{PAGE.name}:{number}: {place}::{test}")
    assert missing == []
    assert named > 150


def test_every_row_names_a_test_in_a_form_that_is_checked() -> None:
    """No row with a `::` that the check above would pass over."""
    odd = [
        f"{n}: {line}"
        for n, line in rows()
        if line.count("`tests/") + line.count("`…::")
        > len(NAMED.findall(line)) + len(re.findall(r"`tests/[\w/]+\.py`", line))
    ]
    assert odd == []


@pytest.mark.parametrize("part", ["Control plane", "Command line", "Web page"])
def test_the_control_plane_has_promises(part: str) -> None:
    """Each part has its section."""
    assert f"## {part}" in PAGE.read_text()
