"""The preemption runbook is complete: every state, reason and refusal has its row."""

import ast
from collections.abc import Iterator
from pathlib import Path

import fairlead
from fairlead.schema.metrics import METRICS, Process
from tests.docs.test_conditions import ROOT

PAGE = (ROOT / "docs" / "operate" / "preemption.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("|")]
ENGINE = Path(fairlead.__file__).parent / "engine" / "gpu"
FILES = [ENGINE / "reservations.py", *sorted((ENGINE / "resolver").glob("*.py"))]


def arguments(name: str) -> Iterator[list[ast.expr]]:
    """The arguments of every call of that name in the resolver."""
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and name in (
                getattr(node.func, "id", None),
                getattr(node.func, "attr", None),
            ):
                yield node.args


def constants(node: ast.expr) -> set[str]:
    """The texts that an expression may be."""
    if isinstance(node, ast.IfExp):
        return constants(node.body) | constants(node.orelse)
    return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()


def assigned(name: str) -> set[str]:
    """The texts that a variable of that name is given."""
    return {
        text
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == name
        for text in constants(node.value)
    }


def missing(words: set[str], rows: list[str]) -> list[str]:
    return sorted(word for word in words if not any(f"`{word}`" in row for row in rows))


def test_every_state_and_reason_of_a_reservation_has_its_row() -> None:
    """As code in the table, so that searching for it finds it."""
    found = [args for args in arguments("ReservationChange") if len(args) > 1]
    found += [args[2:] for args in arguments("ReservationState")]
    states = set().union(*(constants(args[0]) for args in found))
    reasons = set().union(*(constants(args[1]) for args in found)) | assigned("reason")
    # Why there is no resolve is a refusal, which a reservation records as its reason.
    reasons |= set().union(*(constants(args[0]) for args in arguments("Refused") if args))
    assert {"Pending", "Blocked", "Active", "Released"} <= states
    assert len(reasons) >= 8, "the search found too little to be right"
    assert missing(states | reasons | {"NotDue"}, ROWS) == []


def test_every_refusal_of_the_resolver_has_its_row() -> None:
    """What a command of the resolver may answer with exit code 1."""
    codes = set().union(*(constants(args[0]) for args in arguments("Refused") if args))
    assert len(codes) >= 8, "the search found too little to be right"
    assert missing(codes, ROWS) == []


def test_every_metric_of_the_resolver_is_watched() -> None:
    """By name."""
    rows = METRICS[Process.CONTROL_PLANE]
    counted = {row.name for row in rows if row.name.startswith("resolver_")}
    assert len(counted) == 4
    assert missing(counted, ROWS) == []
