"""Replay: recorded decisions are decided again, byte for byte, or there is a plain answer."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.core.canonical import canonical
from fairlead.ports.recorder import Mark, RecordEntry
from fairlead.recorder import FileRecorder, read, replay, verify
from fairlead.recorder.chain import RecordChain
from fairlead.recorder.reader import links
from fairlead.schema.replay import SHIPPED, Verdict
from tests.recorder.fill_golden import FORMAT_1, GOLDEN


@pytest.mark.parametrize("golden", [FORMAT_1, GOLDEN], ids=["format 1", "format 2"])
def test_the_golden_segment_verifies_and_replays(golden: Path) -> None:
    """What was written by the first release is read and decided the same by every later one."""
    seen = verify(golden)
    assert seen.entries > 6
    entries, results = list(read(golden)), list(replay(read(golden)))
    assert len(results) == seen.entries
    for entry, result in zip(entries, results, strict=True):
        assert result.verdict is Verdict.SAME, result.seq
        assert result.result is not None
        assert canonical(result.result) == canonical(entry.output)


def test_both_formats_hold_the_same_entries() -> None:
    """Only how they are kept differs."""
    one, two = ([replace(entry, hash="") for entry in read(each)] for each in (FORMAT_1, GOLDEN))
    assert canonical([entry.input for entry in one]) == canonical([entry.input for entry in two])
    assert canonical([entry.output for entry in one]) == canonical([entry.output for entry in two])
    assert [entry.seq for entry in one] == [entry.seq for entry in two]


def test_a_record_of_format_1_is_gone_on_with(tmp_path: Path) -> None:
    """An upgrade loses nothing: the chain continues, and segments of both formats replay."""
    shutil.copy(FORMAT_1, tmp_path / GOLDEN.name)
    count = verify(tmp_path).entries
    entry = next(read(GOLDEN))
    with FileRecorder(tmp_path, segment_bytes=1_000) as recorder:
        assert recorder.tail("cpu.clear")
        for _ in range(5):
            recorder.append(
                entry.kind,
                version=1,
                time_ms=entry.time_ms,
                input=dict(entry.input),
                output=dict(entry.output),
            )
    assert len(list(tmp_path.glob("segment-*"))) > 2
    results = list(replay(read(tmp_path)))
    assert len(results) == count + 5
    assert {result.verdict for result in results} == {Verdict.SAME}


def test_the_golden_segment_is_what_is_written_today(tmp_path: Path) -> None:
    """The same entries and marks, the same bytes: lines and hashes are part of the format."""
    with FileRecorder(tmp_path) as recorder:
        for link in links([GOLDEN], RecordChain()):
            if isinstance(link, RecordEntry):
                recorder.append(
                    link.kind,
                    version=link.version,
                    time_ms=link.time_ms,
                    input=dict(link.input),
                    output=dict(link.output),
                )
            elif isinstance(link, Mark):
                recorder.mark(link.entry_seq, link.status, time_ms=link.time_ms, note=link.note)
    assert (tmp_path / GOLDEN.name).read_bytes() == GOLDEN.read_bytes()


def test_a_decision_that_differs_is_shown_beside_the_one_of_today() -> None:
    """One millicore is enough; so is an input that the border refuses."""
    entry = next(read(GOLDEN))
    other = {**entry.output, "total_need": entry.output["total_need"] + 1}
    (changed,) = replay([replace(entry, output=other)])
    assert changed.verdict is Verdict.DIFFERENT
    assert changed.result is not None
    assert canonical(changed.result) == canonical(entry.output)
    (refused,) = replay([replace(entry, input={**entry.input, "capacity_millicores": -1})])
    assert refused.verdict is Verdict.DIFFERENT
    assert refused.result is None
    assert "capacity_millicores" in refused.detail


def test_what_is_not_shipped_is_unknown_not_different() -> None:
    """A kind or a version that this release does not have."""
    entry = next(read(GOLDEN))
    kind, version = replay([replace(entry, kind="cpu.guess"), replace(entry, version=9)], SHIPPED)
    assert (kind.verdict, kind.detail) == (
        Verdict.UNKNOWN,
        "cpu.guess: there is no decision of that name here",
    )
    assert (version.verdict, version.detail) == (
        Verdict.UNKNOWN,
        "cpu.clear: there is no version 9 here",
    )
    assert (version.seq, version.kind, version.version) == (entry.seq, "cpu.clear", 9)
