"""The runbook knows every reason and cause that an operator can meet."""

from pathlib import Path

from fairlead.core.reasons import TrafficReason
from fairlead.core.traffic import Cause

RUNBOOK = (Path(__file__).parents[3] / "docs" / "operate" / "traffic.md").read_text()


def test_every_reason_and_cause_has_its_row() -> None:
    """What it means, and what to do."""
    rows = {row.split("|")[1].strip() for row in RUNBOOK.splitlines() if row.startswith("| `")}
    for word in (*TrafficReason, *Cause):
        assert f"`{word.value}`" in rows, word
