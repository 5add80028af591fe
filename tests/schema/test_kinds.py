"""What every kind of decision does with documents that no field alone shows to be wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from fairlead.schema.border import BadInput
from fairlead.schema.kinds import KINDS

GOLDEN = Path(__file__).parents[1] / "golden"
LAST = "9999-12-31T23:59:59.999Z"


def golden(kind: str) -> Any:
    return json.loads((GOLDEN / f"{kind}.jsonl").read_text().splitlines()[0])["input"]


def test_a_time_at_the_end_of_the_calendar_is_refused() -> None:
    """What comes after it cannot be written: `fairlead decide` ended with 70."""
    reserve = golden("gpu.reserve") | {"now": LAST, "earliest_start": "2026-01-01T00:00:00Z"}
    idle = golden("gpu.idle")
    idle["runs"] = [
        {
            "run": "a",
            "job": "a.1",
            "before": {"since": LAST, "read": "2026-01-01T09:00:00Z"},
            "spans": [{"from": "2026-01-01T09:05:00Z", "to": "2026-01-01T09:06:00Z"}],
        }
    ]
    refund = golden("gpu.refund")
    refund["budget"]["envelopes"][0]["recurrence"] = "daily"
    refund["accounts"][0]["period"] = LAST
    for kind, document in (("gpu.reserve", reserve), ("gpu.idle", idle), ("gpu.refund", refund)):
        with pytest.raises(BadInput, match="beyond the year 9999"):
            KINDS[kind].run(json.dumps(document).encode())
