"""`traffic.govern`: a stored life still replays, byte for byte. A change of what is decided raises
the version and keeps the old decision for old records.
"""

import itertools
import json
from pathlib import Path
from typing import Any

from fairlead.core.traffic.memory import EDITION
from fairlead.schema.replay import Replayer, Verdict
from fairlead.schema.traffic_govern import KIND, VERSION

DATA = Path(__file__).resolve().parents[1] / "data"
STORED, CHECKED = DATA / "traffic.govern.jsonl", DATA / "traffic.govern.checks.jsonl"
"""Both of version 1."""
SECOND, THIRD = DATA / "traffic.govern.2.jsonl", DATA / "traffic.govern.3.jsonl"
FOURTH, FIFTH = DATA / "traffic.govern.4.jsonl", DATA / "traffic.govern.5.jsonl"
SIXTH, SEVENTH = DATA / "traffic.govern.6.jsonl", DATA / "traffic.govern.7.jsonl"


def replayed(path: Path, version: int = 1) -> list[dict[str, Any]]:
    """The entries of a stored life, each of which is decided again as it was."""
    replayer = Replayer()
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    for number, entry in enumerate(entries):
        answer = replayer.run(number, KIND, version, entry["input"], entry["output"])
        assert answer.verdict is Verdict.SAME, (number, answer.detail)
    return entries


def test_a_stored_life_replays() -> None:
    """Forty ticks: an outlier, an operator's order, a member that joins, a restart."""
    entries = replayed(STORED)
    assert len(entries) == 40
    whole = [number for number, entry in enumerate(entries) if entry["input"]["memory"]]
    assert whole[0] == 0
    assert len(whole) > 1
    reasons = {reason for entry in entries for reason in entry["output"]["reasons"]}
    assert {"isolation", "steady"} <= reasons


def test_a_stored_life_with_verdicts_of_health_checks_replays() -> None:
    """Version 1 recorded what the adapter made of its checks; a segment ends in between."""
    entries = replayed(CHECKED)
    verdicts = [entry["input"]["sighting"]["checks"].get("b") for entry in entries]
    assert {None, True, False} == set(verdicts)
    failed = verdicts.index(False)
    assert entries[failed - 1]["output"]["slots"]["b"] > 0
    assert entries[failed]["output"]["slots"]["b"] == 0
    assert any(entry["input"]["memory"] for entry in entries[1:])


def test_a_stored_life_of_version_2_replays() -> None:
    """Before servers had a room each, and before early ticks said why."""
    entries = replayed(SECOND, 2)
    bounds = [entry["output"]["limits"]["concurrency"] for entry in entries]
    assert any(bounds)
    assert not any("by_server" in bound for bound in bounds if bound)
    assert "urgent" not in entries[0]["output"]


def test_a_stored_life_of_version_3_replays() -> None:
    """Before a group had a bound without its agent: the retries that one backend of three reported
    closed admission, and the replay of that record still says so."""
    entries = replayed(THIRD, 3)
    assert entries[-1]["output"]["admission"]["mode"] == "hard"
    assert entries[-1]["output"]["reasons"] == ["retry_storm"]
    assert "bound" not in entries[-1]["output"]["limits"]["fallback"]


def test_a_stored_life_of_version_4_replays() -> None:
    """Before proxies could repeat requests: neither memory nor limits speak of it."""
    entries = replayed(FOURTH, 4)
    assert len(entries) == 30
    assert not any("retries" in entry["output"]["limits"] for entry in entries)
    assert not any("retry" in (entry["input"]["memory"] or {}) for entry in entries)


def test_a_stored_life_of_version_5_replays() -> None:
    """Before waits were recorded: calm ticks have no entry, and nothing says why."""
    entries = replayed(FIFTH, 5)
    times = [entry["input"]["sighting"]["now_ms"] for entry in entries]
    assert max(b - a for a, b in itertools.pairwise(times)) == 1_000
    assert not any("waited" in entry["input"] for entry in entries)
    assert not any("rests" in entry["output"] for entry in entries)


def test_a_stored_life_of_version_6_replays() -> None:
    """At twice the capacity rooms added up to half more than may be inside, and what the servers of
    the resting side held counted whole. With rules of today other limits would follow."""
    entries = replayed(SIXTH, 6)
    bounds = [entry["output"]["limits"]["concurrency"] for entry in entries]
    assert any(sum(bound["room"].values()) > bound["inside_max"] + 4 for bound in bounds)
    first = entries[0]
    assert first["input"]["rules"]["edition"] == 2
    first["input"]["rules"]["edition"] = EDITION
    answer = Replayer().run(0, KIND, VERSION, first["input"], first["output"])
    assert answer.verdict is Verdict.DIFFERENT


def test_a_stored_life_of_version_7_replays() -> None:
    """Slots of backends that are alike followed latencies of three requests a tick."""
    entries = replayed(SEVENTH, 7)
    assert len({str(entry["output"]["slots"]) for entry in entries}) > 5
    first = entries[0]
    assert first["input"]["rules"]["edition"] == 3
    first["input"]["rules"]["edition"] = EDITION
    again, verdicts = Replayer(), set[Verdict]()
    for number, each in enumerate(entries):
        verdicts.add(again.run(number, KIND, VERSION, each["input"], each["output"]).verdict)
    assert Verdict.DIFFERENT in verdicts


def test_a_damaged_verdict_is_refused() -> None:
    """A record is input like any other, also of the former version."""
    entry = json.loads(CHECKED.read_text().splitlines()[0])
    entry["input"]["sighting"]["checks"] = {"a": "fine"}
    answer = Replayer().run(0, KIND, 1, entry["input"], entry["output"])
    assert answer.verdict is Verdict.DIFFERENT
    assert "checked" in answer.detail


def test_a_machine_that_names_a_resource_twice_is_refused() -> None:
    """What a decision makes of a sighting is checked like the sighting itself."""
    entry = json.loads(STORED.read_text().splitlines()[0])
    memory = {"name": "memory", "limit": 2, "used": 1}
    entry["input"]["sighting"]["nodes"] = [{"id": "n1", "resources": [memory, memory]}]
    answer = Replayer().run(0, KIND, 1, entry["input"], entry["output"])
    assert answer.verdict is Verdict.DIFFERENT
    assert "refused" in answer.detail


def test_an_unknown_version_is_unknown() -> None:
    """Nothing can be said about a decision of a later release."""
    assert Replayer().run(1, KIND, VERSION + 1, {}, {}).verdict is Verdict.UNKNOWN
