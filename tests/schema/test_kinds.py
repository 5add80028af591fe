"""What every kind of decision does with documents that no field alone shows to be wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from fairlead.schema.border import BadInput
from fairlead.schema.kinds import KINDS
from fairlead.schema.objects import API_VERSION, read_manifest
from fairlead.schema.times import format_time, parse_kept_time, parse_time

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


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59-00:01", "0001-01-01T00:00:00+00:01"])
def test_a_time_that_its_zone_moves_off_the_calendar_is_refused(text: str) -> None:
    """In UTC it could not be written: a reservation at such a time was answered with 500."""
    last, first = "9999-12-31T23:59:59.999Z", "0001-01-01T00:00:00Z"
    for same in (last, first):
        assert format_time(parse_kept_time(same, "at")) == same
    head = {"apiVersion": API_VERSION, "metadata": {"name": "x"}}
    slot = {"run": "x", "earliestStart": text}
    with pytest.raises(
        BadInput, match=r"^spec\.earliestStart: must be between the years 1 and 9999"
    ):
        read_manifest({**head, "kind": "Reservation", "spec": slot})
    window = {"start": first, "end": text} if text.startswith("9") else {"start": text, "end": last}
    windows = (("a", None), ("b", {"start": first, "end": last}), ("c", window))
    envelopes = [
        {"name": name, "flavor": "H100", "concurrency": 1, "window": each} for name, each in windows
    ]
    budget = {**head, "kind": "Budget", "spec": {"owner": "x", "envelopes": envelopes}}
    with pytest.raises(BadInput, match=r"^spec\.envelopes\[2\]\.window\.(start|end): must be betw"):
        read_manifest(budget)
    envelopes.pop()
    read_manifest(budget)


def test_what_was_decided_about_such_a_time_is_decided_again() -> None:
    """Budgets with such windows were kept, and covered runs: their records replay."""
    document = golden("gpu.cover")
    document["request"]["gpus"] = 2
    before = KINDS["gpu.cover"].run(json.dumps(document).encode())
    assert before.result["funded"]
    for budget in document["budgets"]:
        for envelope in budget["envelopes"]:
            envelope["window"] = {
                "start": "0001-01-01T00:00:00+00:01",
                "end": "9999-12-31T23:59:59-00:01",
            }
    assert KINDS["gpu.cover"].run(json.dumps(document).encode()) == before


def test_minutes_of_a_zone_are_below_sixty() -> None:
    """`+01:60` was read as two hours. What was kept of it is read so."""
    two_hours = parse_time("2026-01-01T00:00:00+02:00", "at")
    assert parse_time("2026-01-01T00:00:00+01:60", "at") == two_hours
    with pytest.raises(BadInput, match=r"^at: must have a zone of at most 59 minutes, got"):
        parse_kept_time("2026-01-01T00:00:00+01:60", "at")
    same = parse_time("2026-01-01T00:00:00Z", "at")
    assert parse_kept_time("2026-01-01T23:59:00+23:59", "at") == same


@pytest.mark.parametrize("bad", ["1.5", "-1", '"1"', "null", "true", "[]", "1e999", "9" * 500])
def test_a_number_of_a_free_form_object_is_named_by_its_key(bad: str) -> None:
    """The answer was `slots[...]: expected `int`, got `float`, got an object`."""
    slots = f'{{"group": "w", "backends": ["a", "b"], "slots": {{"b": 1, "%s": {bad}}}}}'
    for key, path in (("a", "slots.a"), ("", 'slots.""')):
        with pytest.raises(BadInput) as refused:
            KINDS["traffic.configure"].run((slots % key).encode())
        assert refused.value.path == path
        assert refused.value.message.startswith("must be an integer between 0 and 1000000, got ")
    backfill = golden("gpu.backfill")
    pool = next(iter(backfill["run"]["gpus"]))
    backfill["run"]["gpus"][pool] = "BAD"
    with pytest.raises(BadInput) as refused:
        KINDS["gpu.backfill"].run(json.dumps(backfill).replace('"BAD"', bad).encode())
    assert refused.value.path == f"run.gpus.{pool}"


def test_a_result_that_json_cannot_carry_is_bad_input() -> None:
    """Sums of numbers that are in range may not be: `fairlead decide` ended with 70."""
    ahead = golden("gpu.clock")
    ahead["reading"]["boot"] = ahead["known"]["boot"]
    ahead["known"]["offset_ms"] = 2**53 - 1
    often = {"policy": {"max_restarts": 1}, "restarts": 0, "exit_code": 1}
    often |= {"backoff": {}, "delays": 2**53 - 1}
    for kind, document in (("gpu.clock", ahead), ("gpu.restart", often)):
        with pytest.raises(BadInput, match=r"^\$: leads to .* integer beyond 2\^53 - 1: 9"):
            KINDS[kind].run(json.dumps(document).encode()).written()


@pytest.mark.parametrize("spares", [8, 10**13])
def test_a_recall_of_less_than_the_spares_is_refused(spares: int) -> None:
    """Less than one GPU is left to place: with many spares `fairlead decide` ended with 70."""
    document = golden("gpu.recall")
    node = {"name": "n1", "flavor": "H100", "location": {}, "free": [0, 1, 2, 3, 4, 5, 6, 7]}
    shape = {"group_gpus": None, "spares_per_group": spares}
    document["room"] = {"nodes": [node], "shape": shape}
    with pytest.raises(BadInput, match=r"^request\.gpus: must leave 1 to 100000 GPUs without the"):
        KINDS["gpu.recall"].run(json.dumps(document).encode())
