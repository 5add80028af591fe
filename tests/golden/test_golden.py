"""Byte-exact decisions: what was decided once is decided for ever, or the change is deliberate.

Each line of `<kind>.jsonl` is {"name", "input", "output"}; outputs are compared as canonical bytes.
To add a case, append a line with the output left out and run `python -m tests.golden.fill`.
"""

import json
from pathlib import Path

import pytest

from fairlead.core.canonical import canonical
from fairlead.schema.kinds import KINDS

FILES = sorted(Path(__file__).parent.glob("*.jsonl"))
CASES = [
    pytest.param(file.stem, case, id=f"{file.stem}:{case['name']}")
    for file in FILES
    for case in map(json.loads, file.read_text().splitlines())
]


@pytest.mark.parametrize(("kind", "case"), CASES)
def test_the_decision_is_the_recorded_one(kind: str, case: dict[str, object]) -> None:
    """Same document, same bytes."""
    outcome = KINDS[kind].run(json.dumps(case["input"]).encode())
    assert canonical(outcome.result) == canonical(case["output"])


def test_every_kind_has_golden_decisions() -> None:
    """A kind without golden decisions could change unseen."""
    assert {file.stem for file in FILES} == set(KINDS)
