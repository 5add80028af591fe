"""A life of a group replays from its record alone, and a record that was changed does not."""

import copy
from pathlib import Path

import pytest

from fairlead.ports.recorder import RecordEntry
from fairlead.recorder import read, replay
from fairlead.schema.traffic_govern import KIND
from tests.engine.traffic_life import live, verdicts


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1 000 ticks; `make soak` lives 100 000."""
    folder = tmp_path_factory.mktemp("life")
    live(folder, 1_000)
    return folder


def ticks(record: Path) -> list[RecordEntry]:
    return [entry for entry in read(record) if entry.kind == KIND]


def test_a_life_replays_from_its_record_alone(record: Path) -> None:
    """Faults, restarts, members and rules that change, segments: byte for byte."""
    assert verdicts(record) == {"same": 1_000}
    entries = ticks(record)
    whole = [entry for entry in entries if entry.input["memory"] is not None]
    assert len(list(record.glob("segment-*"))) > 3
    assert 10 < len(whole) < len(entries) / 4


def test_what_is_left_after_old_segments_are_dropped_replays(record: Path, tmp_path: Path) -> None:
    """The first entry of each segment holds the whole memory."""
    segments = sorted(record.glob("segment-*"))
    for segment in segments[2:]:
        (tmp_path / segment.name).write_bytes(segment.read_bytes())
    assert verdicts(tmp_path).keys() == {"same"}


def changed(entries: list[RecordEntry], index: int, *path: str) -> list[RecordEntry]:
    """The entries with one bit of one number of a sighting flipped."""
    entry = entries[index]
    input = copy.deepcopy(dict(entry.input))
    here = input
    for step in path[:-1]:
        here = here[step]
    here[path[-1]] ^= 1
    fields = {name: getattr(entry, name) for name in entry.__slots__} | {"input": input}
    return [*entries[:index], RecordEntry(**fields), *entries[index + 1 :]]


@pytest.mark.parametrize("field", ["successes", "admitted", "open", "errors"])
def test_a_flipped_bit_in_one_sighting_is_found(record: Path, field: str) -> None:
    """In the entry itself, whatever the chain of hashes says."""
    entries = ticks(record)[:400]
    index, name = next(
        (index, name)
        for index, entry in enumerate(entries)
        if index > 100 and entry.input["memory"] is None and entry.input["sighting"]["seen"]
        for name in entry.input["sighting"]["seen"]["backends"]
        if not entry.input["sighting"]["covered"]
    )
    altered = changed(entries, index, "sighting", "seen", "backends", name, field)
    found = next(each.seq for each in replay(altered) if each.verdict != "same")
    assert found == entries[index].seq


def test_an_entry_whose_predecessor_is_missing_is_refused(record: Path) -> None:
    """From the next whole memory on the life is known again."""
    entries = ticks(record)
    first = next(i for i, entry in enumerate(entries) if i and entry.input["memory"] is None)
    found = list(replay(entries[first : first + 300]))
    assert found[0].verdict == "different"
    assert "the entry that it follows from" in found[0].detail
    assert found[-1].verdict == "same"


def test_a_memory_that_the_entries_do_not_lead_to_is_found(record: Path) -> None:
    """The first entry of a segment holds what the one before it led to, or the record lies."""
    entries = ticks(record)
    index = next(
        i
        for i, entry in enumerate(entries)
        if entry.input["memory"] is not None and entry.input["applied"] is not None
    )
    altered = changed(entries, index, "memory", "clock_ms")
    refused = next(each for each in replay(altered) if each.verdict == "different")
    assert refused.seq == entries[index].seq
    assert "memory" in refused.detail
