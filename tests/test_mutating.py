"""`make mutants` finds what tests notice, and says what they do not."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mutmut", reason="mutants are made by mutmut: make .venv/.mutants")

MODULE = '''
"""A module to change."""

class Counter:
    def __init__(self, start: int = 0) -> None:
        self.value = start

    def advance(self) -> int:
        self.value += 2
        return self.value


def double(number: int) -> int:
    if number > 100:
        return 200
    return number * 2


def count_down(number: int) -> int:
    while number:
        number = number - 1
    return number


def unused(number: int) -> int:
    return number + 1
'''
TESTS = """
from sample import Counter, count_down, double


def test_double() -> None:
    assert double(3) == 6


def test_counter() -> None:
    assert (Counter().value, Counter(1).advance()) == (0, 3)


def test_count_down() -> None:
    assert count_down(3) == 0
"""


def test_changes_are_killed_survive_or_never_end(tmp_path: Path) -> None:
    """A change that no test reaches survives, and one that hangs is told apart from a failure."""
    module = tmp_path / "src" / "sample.py"
    module.parent.mkdir()
    module.write_text(MODULE)
    tests, result = tmp_path / "test_sample.py", tmp_path / "result.json"
    tests.write_text(TESTS)
    command = [sys.executable, "-m", "tests.mutating", str(module), str(result), str(tests)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(result.read_text())
    survived = set(found["survived"].values())
    assert survived == {
        "- if number > 100:\n+ if number >= 100:",
        "- if number > 100:\n+ if number > 101:",
        "- return 200\n+ return 201",
        "- return number + 1\n+ return number - 1",
        "- return number + 1\n+ return number + 2",
    }
    outcomes = found["outcomes"]
    assert outcomes["sample.x_count_down__mutmut_2"] == "timeout"  # number + 1
    assert outcomes["sample.xǁCounterǁadvance__mutmut_1"] == "killed"
    assert outcomes["sample.xǁCounterǁ__init____mutmut_1"] == "killed"  # the default
