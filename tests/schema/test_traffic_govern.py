"""`traffic.govern`: a stored life still replays, byte for byte. A change of what is decided raises
the version and keeps the old decision for old records.
"""

import json
from pathlib import Path

from fairlead.schema.replay import Replayer, Verdict
from fairlead.schema.traffic_govern import KIND, VERSION

STORED = Path(__file__).resolve().parents[1] / "data" / "traffic.govern.jsonl"


def test_a_stored_life_replays() -> None:
    """Forty ticks: an outlier, an operator's order, a member that joins, a restart."""
    replayer = Replayer()
    entries = [json.loads(line) for line in STORED.read_text().splitlines()]
    assert len(entries) == 40
    for number, entry in enumerate(entries):
        answer = replayer.run(number, KIND, VERSION, entry["input"], entry["output"])
        assert answer.verdict is Verdict.SAME, (number, answer.detail)
    whole = [number for number, entry in enumerate(entries) if entry["input"]["memory"]]
    assert whole[0] == 0
    assert len(whole) > 1
    reasons = {reason for entry in entries for reason in entry["output"]["reasons"]}
    assert {"isolation", "steady"} <= reasons


def test_an_unknown_version_is_unknown() -> None:
    """Nothing can be said about a decision of a later release."""
    assert Replayer().run(1, KIND, VERSION + 1, {}, {}).verdict is Verdict.UNKNOWN
