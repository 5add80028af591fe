"""The table of equations names code and tests that exist."""

import re
from importlib import import_module
from pathlib import Path

from fairlead.core.traffic.config import NAMES

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/reference/equations.md").read_text()
TESTS = {path.name: path.read_text() for path in Path(__file__).parent.glob("test_*.py")}


def test_every_named_test_exists() -> None:
    """`file.py::test`, or `…::test` for the file named before it."""
    file, checked = "", 0
    for name, test in re.findall(r"`(test_\w+\.py|…)::(\w+)`", PAGE):
        file = file if name == "…" else name
        assert f"def {test}(" in TESTS[file], f"{file}::{test}"
        checked += 1
    assert checked > 40


def test_every_named_function_exists() -> None:
    """`module.name` of core.traffic."""
    modules = {path.stem for path in (ROOT / "src/fairlead/core/traffic").glob("*.py")}
    found = set(re.findall(r"`([a-z]+)\.([A-Za-z_]+)(?:\.\w+)?`", PAGE))
    named = {(module, name) for module, name in found if module in modules and name != "py"}
    for module, name in named:
        assert hasattr(import_module(f"fairlead.core.traffic.{module}"), name), f"{module}.{name}"
    assert len(named) > 25


def test_every_parameter_is_listed() -> None:
    """None without a place in an equation."""
    assert [name for name in NAMES if f"`{name}`" not in PAGE] == []
