"""The recorder as its caller sees it: what was appended is read, marked, healed, bounded."""

import gzip
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.canonical import NotCanonical, canonical
from fairlead.core.invariant import InvariantBroken
from fairlead.ports.faults import PermanentFault, TemporaryFault
from fairlead.ports.recorder import Recorder, RecordHead
from fairlead.recorder import FileRecorder, read, verify
from tests.recorder.documents import record, small
from tests.recorder.strategies import json_objects

drafts = st.lists(st.tuples(st.sampled_from(["cpu", "traffic"]), json_objects), max_size=6)


@given(drafts)
def test_everything_appended_is_read_back(drafts: list[tuple[str, Any]]) -> None:
    """Any documents, kinds mixed, reopened in the middle, over segments of any length."""
    outputs = [*(document for _, document in drafts[1:]), {}]
    steps = [(kind, input, output) for (kind, input), output in zip(drafts, outputs, strict=False)]
    with TemporaryDirectory() as directory:
        for half in (steps[:3], steps[3:]):
            with FileRecorder(directory, segment_bytes=600) as recorder:
                for kind, input, output in half:
                    recorder.append(kind, version=2, time_ms=7, input=input, output=output)
                head = recorder.head()
        found = [(entry.kind, entry.input, entry.output) for entry in read(directory)]
        assert [canonical(each) for each in found] == [canonical(each) for each in steps]
        assert verify(directory, anchors=[head]).anchors_met == 1


def test_an_empty_record_has_a_head(tmp_path: Path) -> None:
    """So that it can be anchored from the beginning; the first entry gets number 1."""
    with FileRecorder(tmp_path / "deep" / "recorder") as opened:
        recorder: Recorder = opened  # the adapter is one of the port
        assert recorder.head().seq == 0
        assert recorder.append(**small(0)) == 1
        assert recorder.unapplied()[0].hash == recorder.head().hash
    assert next(read(tmp_path / "deep" / "recorder")).seq == 1


def test_what_is_neither_applied_nor_voided_is_healed_at_the_next_start(tmp_path: Path) -> None:
    """Across a restart and several segments, whole and in order."""
    ring = {"segment_bytes": 700}
    with FileRecorder(tmp_path, **ring) as recorder:
        numbers = [recorder.append(**small(number)) for number in range(30)]
        for number in numbers[3:]:
            recorder.mark(number, "applied", time_ms=5)
        recorder.mark(numbers[1], "voided", time_ms=5, note="the pod is gone")
    assert len(list(tmp_path.glob("segment-*"))) > 5
    with FileRecorder(tmp_path, **ring) as recorder:
        left = recorder.unapplied()
        assert [entry.seq for entry in left] == [numbers[0], numbers[2]]
        assert [entry.input["number"] for entry in left] == [0, 2]
        for entry in left:
            recorder.mark(entry.seq, "applied", time_ms=6)
        assert recorder.unapplied() == []
    with FileRecorder(tmp_path) as recorder:
        assert recorder.unapplied() == []


def test_marking_what_is_not_there_is_a_bug(tmp_path: Path) -> None:
    """A plan applied twice, or one that was never recorded, must not pass quietly."""
    with FileRecorder(tmp_path) as recorder:
        seq = recorder.append(**small(0))
        recorder.mark(seq, "applied", time_ms=1)
        for number in (seq, seq + 1, 99, 0, -1):
            with pytest.raises(InvariantBroken):
                recorder.mark(number, "applied", time_ms=2)
    with pytest.raises(InvariantBroken):
        recorder.append(**small(1))
    recorder.close()


def test_the_record_is_bounded_and_what_is_left_verifies(tmp_path: Path) -> None:
    """Oldest segments go whole; a plan older than the ring is nobody's to heal any more."""
    numbers = record(tmp_path, 400, segment_bytes=2_000, bytes_max=6_000)
    files = sorted(tmp_path.glob("segment-*"))
    assert len(files) > 3
    assert [file.suffix for file in files] == [*[".gz"] * (len(files) - 1), ".jsonl"]
    line = max(len(line) for line in files[-1].read_bytes().splitlines())
    assert sum(file.stat().st_size for file in files) <= 6_000 + 2 * line
    entries = list(read(tmp_path))
    assert [entry.seq for entry in entries] == numbers[-len(entries) :]
    assert entries[-1].input["number"] == 399
    seen = verify(
        tmp_path, anchors=[RecordHead(1, "00"), RecordHead(entries[0].seq, entries[0].hash)]
    )
    assert seen.first_seq > 1
    assert seen.entries == len(entries)
    assert seen.anchors_met == 1, "an anchor older than the record cannot be checked any more"
    alone = [entry.seq for file in files for entry in read(file)]
    assert alone == [entry.seq for entry in entries], "each segment can be read by itself"
    with FileRecorder(tmp_path, segment_bytes=2_000, bytes_max=0) as recorder:
        assert {entry.seq for entry in recorder.unapplied()} < set(alone)
        recorder.mark(numbers[0], "voided", time_ms=0, note="long gone")
        for number in range(20):
            recorder.append(**small(number))
    assert len(list(tmp_path.glob("segment-*"))) == 2, "a smaller bound takes effect"


def test_an_entry_larger_than_a_segment_has_one_for_itself(tmp_path: Path) -> None:
    """A governor that could not record could not act, so the limit yields."""
    big = {"text": "x" * 5_000}
    with FileRecorder(tmp_path, segment_bytes=1_000) as recorder:
        for letter in "abc":
            recorder.append(letter, version=1, time_ms=0, input=big, output={})
            recorder.append(**small(1))
    assert len(list(read(tmp_path))) == 6


def test_a_full_segment_is_compressed(tmp_path: Path) -> None:
    """Whole, under another name; the newest one stays plain lines."""
    whole = {"table": {f"key{each}": each for each in range(100)}}
    with FileRecorder(tmp_path, segment_bytes=20_000) as recorder:
        for number in range(60):
            input = {**whole, "number": number}
            recorder.append("cpu", version=1, time_ms=number, input=input, output={})
    *sealed, live = sorted(tmp_path.glob("segment-*"))
    assert live.read_bytes().count(b"\n") > 1
    for file in sealed:
        plain = gzip.decompress(file.read_bytes())
        assert len(plain) >= 20_000 > 5 * file.stat().st_size
    assert [entry.input["number"] for entry in read(tmp_path)] == list(range(60))


def test_segments_that_were_left_plain_are_compressed_later(tmp_path: Path) -> None:
    """By an earlier release, or because the disk was full: two whenever a segment begins."""
    record(tmp_path, 60, segment_bytes=2_000)
    *sealed, _ = sorted(tmp_path.glob("segment-*"))
    for file in sealed:
        file.with_suffix("").write_bytes(gzip.decompress(file.read_bytes()))
        file.unlink()
    assert len(sealed) > 4
    record(tmp_path, 60, segment_bytes=2_000)
    *older, _ = sorted(tmp_path.glob("segment-*"))
    assert [file.suffix for file in older] == [".gz"] * len(older)
    assert verify(tmp_path).entries == 120


def test_a_record_that_ends_in_a_compressed_segment_is_gone_on_with(tmp_path: Path) -> None:
    """A copy without its newest segment, say; the chain continues in a new one."""
    record(tmp_path, 60, segment_bytes=2_000)
    sorted(tmp_path.glob("segment-*"))[-1].unlink()
    count = verify(tmp_path).entries
    record(tmp_path, 3)
    assert verify(tmp_path).entries == count + 3


def test_the_first_entry_of_each_segment_is_announced(tmp_path: Path) -> None:
    """So that a caller puts into it what later ones leave out, and each segment stands alone."""

    def step(recorder: FileRecorder) -> None:
        recorder.append("other", version=1, time_ms=0, input={}, output={})
        first = recorder.begins_segment("k")
        recorder.append("k", version=1, time_ms=0, input={"first": first}, output={})

    for _ in range(3):
        with FileRecorder(tmp_path, segment_bytes=1_000) as recorder:
            for _ in range(9):
                step(recorder)
    files = sorted(tmp_path.glob("segment-*"))
    assert len(files) > 3
    for file in files:
        flags = [entry.input["first"] for entry in read(file) if entry.kind == "k"]
        assert flags == [True, *[False] * (len(flags) - 1)][: len(flags)]


def test_a_document_changed_by_its_owner_afterwards_changes_nothing(tmp_path: Path) -> None:
    """The recorder keeps what a reader will see, not the caller's objects."""
    input: dict[str, Any] = {"pods": {"a": [1]}, "other": list(range(50))}
    with FileRecorder(tmp_path) as recorder:
        for number in range(4):
            recorder.append("k", version=1, time_ms=0, input=input, output={})
            input["pods"][f"n{number}"] = [number]
            input["pods"]["a"].append(number)
    assert [len(entry.input["pods"]) for entry in read(tmp_path)] == [1, 2, 3, 4]


def test_what_json_cannot_carry_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    """And the next entry follows the last good one."""
    with FileRecorder(tmp_path) as recorder:
        first = recorder.append(**small(0))
        with pytest.raises(NotCanonical):
            recorder.append("k", version=1, time_ms=0, input={"x": float("nan")}, output={})
        assert recorder.append(**small(1)) == first + 1
    assert verify(tmp_path).entries == 2


def test_a_second_writer_is_refused_by_name(tmp_path: Path) -> None:
    """In this process and in another one; the first is not disturbed, and the next may come."""
    with FileRecorder(tmp_path) as recorder:
        with pytest.raises(PermanentFault, match=r"has another writer: process [0-9]+"):
            FileRecorder(tmp_path)
        script = f"from fairlead.recorder import FileRecorder; FileRecorder({str(tmp_path)!r})"
        other = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=False
        )
        assert "has another writer" in other.stderr
        recorder.append(**small(0))
    with FileRecorder(tmp_path) as recorder:
        recorder.append(**small(1))
    assert verify(tmp_path).entries == 2


def test_a_place_that_cannot_be_used_is_a_permanent_fault(tmp_path: Path) -> None:
    """A file in the way, or nothing to read."""
    (tmp_path / "file").write_text("")
    with pytest.raises(PermanentFault, match="cannot open the recorder"):
        FileRecorder(tmp_path / "file")
    with pytest.raises(PermanentFault, match="no record at"):
        list(read(tmp_path / "nothing"))


def test_a_reader_beside_a_writer_sees_whole_entries(tmp_path: Path) -> None:
    """No lock is needed to look; a segment dropped under the reader is a reason to try again."""
    with FileRecorder(tmp_path, segment_bytes=2_000, bytes_max=0) as recorder:
        first = recorder.append(**small(0))
        reading = read(tmp_path)
        assert next(reading).seq == first
        recorder.append(**small(1))
        assert verify(tmp_path).entries == 2
        while len(list(tmp_path.glob("segment-*"))) < 2:
            recorder.append(**small(2))
        reading = read(tmp_path)
        next(reading)
        for number in range(50):
            recorder.append(**small(number))
        with pytest.raises(TemporaryFault, match="was dropped"):
            list(reading)
        assert [entry.input["number"] for entry in read(tmp_path)][-3:] == [47, 48, 49]


def test_the_last_entry_is_known_however_full_its_segment_is(tmp_path: Path) -> None:
    """A mark stays with its entry: a segment that began with it would have none to go on from."""
    for size in range(600, 1_400, 20):
        place = tmp_path / str(size)
        with FileRecorder(place, segment_bytes=size) as recorder:
            for number in range(8):
                seq = recorder.append(**small(number))
                recorder.mark(seq, "applied", time_ms=number, note="x" * 80)
                assert recorder.tail("test.small")[-1].input["number"] == number
        with FileRecorder(place, segment_bytes=size) as recorder:
            assert recorder.tail("test.small")[-1].input["number"] == 7
        verify(place)


def test_what_became_of_an_entry_is_known_after_a_restart(tmp_path: Path) -> None:
    """Applied, voided or neither, in whichever segment it is."""
    with FileRecorder(tmp_path, segment_bytes=600) as recorder:
        applied, voided, open_ = (recorder.append(**small(number)) for number in range(3))
        recorder.mark(applied, "applied", time_ms=1)
        recorder.mark(voided, "voided", time_ms=1, note="not applied")
    with FileRecorder(tmp_path, segment_bytes=600) as recorder:
        assert [recorder.was_applied(seq) for seq in (applied, voided, open_)] == [
            True,
            False,
            False,
        ]
