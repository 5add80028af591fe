"""The table of equations has every section, and names code, tests and defaults that are so."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from fairlead.core.traffic.admission import FALLBACK_AFTER_MS, HOLD_AFTER_MS
from fairlead.core.traffic.config import DEFAULT_CONFIG, NAMES

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/reference/equations.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and line.count("|") == 6
]
HERE = "tests/core/traffic"

# Every numbered section of the equations as they were handed to us, but 14 to 16, which are about
# the document itself.
SECTIONS = [
    f"{chapter}.{number}"
    for chapter, last in enumerate((4, 3, 4, 4, 2, 3, 3, 4, 3, 2, 2, 3, 3, 1))
    for number in range(1, last + 1)
]


@pytest.mark.parametrize("section", SECTIONS)
def test_every_section_has_its_row(section: str) -> None:
    """With code that computes it and a test that defends it."""
    found = [row for row in ROWS if section in re.findall(r"\d+\.\d+", row[0])]
    assert found, f"section {section} is nowhere"
    for _, code, test, _, _ in found:
        assert code
        assert test or section == "0.2"  # symbols are only names


def test_every_named_test_exists() -> None:
    """`file.py::test` here or elsewhere, or `…::test` for the file named before it."""
    file, checked = "", 0
    for name, test in re.findall(r"`((?:[\w/]+/)?\w+\.py|…)::(\w+)`", PAGE):
        file = file if name == "…" else name if "/" in name else f"{HERE}/{name}"
        assert f"def {test}(" in (ROOT / file).read_text(), f"{file}::{test}"
        checked += 1
    assert checked > 50


def test_every_named_function_exists() -> None:
    """`module.name` of core.traffic."""
    modules = {path.stem for path in (ROOT / "src/fairlead/core/traffic").glob("*.py")}
    found = set(re.findall(r"`([a-z]+)\.([A-Za-z_]+(?:\.\w+)?)`", PAGE))
    named = {(module, name) for module, name in found if module in modules and name != "py"}
    for module, name in named:
        here = import_module(f"fairlead.core.traffic.{module}")
        for step in name.split("."):
            assert hasattr(here, step), f"{module}.{name}"
            here = getattr(here, step)
    assert len(named) > 25


def test_every_parameter_is_listed() -> None:
    """None without a place in an equation, and none with another value than the code's."""
    defaults = " ".join(row[3] for row in ROWS)
    told = {name: float(value) for name, value in re.findall(r"`(\w+)` (-?[\d.]+)", defaults)}
    # An object, a part of another parameter, and one that is not set.
    for name in set(NAMES) - {"theta", "delta_max", "inside_max"}:
        assert told.get(name) == getattr(DEFAULT_CONFIG, name), name
    for kind, value in re.findall(r"(\w+_(?:some|full)) ([\d.]+)", defaults):
        assert float(value) == getattr(DEFAULT_CONFIG.theta, kind), kind
    assert "`inside_max` none" in defaults
    assert DEFAULT_CONFIG.inside_max is None
    assert "`delta_max` s_total/64" in defaults
    assert DEFAULT_CONFIG.step == DEFAULT_CONFIG.s_total / 64
    assert f"tau1 {HOLD_AFTER_MS}, tau2 {FALLBACK_AFTER_MS}" in defaults
