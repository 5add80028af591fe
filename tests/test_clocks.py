"""No test asks how fast something was: `make check` runs everything at once, on any machine.

What must be cheap is counted (`tests/work.py`), what must come is waited for, what has a rate runs
on a virtual clock. How fast it is on a quiet machine is measured in `bench`.
"""

import ast
from pathlib import Path

TESTS = Path(__file__).resolve().parent
CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns"}


def test_no_assertion_bounds_time_that_passed() -> None:
    """`assert time.monotonic() - began < 5` fails where the machine is busy."""
    found = [
        f"{path.relative_to(TESTS)}:{node.lineno}"
        for path in sorted(TESTS.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assert) and _bounds_time(node.test)
    ]
    assert found == []


def test_the_rule_sees_what_it_forbids() -> None:
    for text, forbidden in (
        ("time.monotonic() - began < 5", True),
        ("3 > perf_counter() - began", True),
        ("time.monotonic() < deadline", False),
        ("time.monotonic() - began > 1", False),
    ):
        assert _bounds_time(ast.parse(text, mode="eval").body) is forbidden, text


def _bounds_time(test: ast.expr) -> bool:
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return False
    (op,), (right,) = test.ops, test.comparators
    less = test.left if isinstance(op, ast.Lt | ast.LtE) else right
    more = isinstance(op, ast.Gt | ast.GtE)
    return (more or less is test.left) and isinstance(less, ast.BinOp) and _passed(less)


def _passed(difference: ast.BinOp) -> bool:
    """Whether it is a clock's reading less another."""
    call = difference.left
    if not isinstance(difference.op, ast.Sub) or not isinstance(call, ast.Call):
        return False
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name in CLOCKS
