"""Replay: recorded decisions are decided again, byte for byte, or there is a plain answer."""

from dataclasses import replace
from pathlib import Path

from fairlead.core.canonical import canonical
from fairlead.ports.recorder import Entry, Mark
from fairlead.recorder import SHIPPED, FileRecorder, Verdict, read, replay, verify
from fairlead.recorder.chain import Chain
from fairlead.recorder.reader import links
from tests.recorder.fill_golden import GOLDEN


def test_the_golden_segment_verifies_and_replays() -> None:
    """What was written by the first release is read and decided the same by every later one."""
    seen = verify(GOLDEN)
    assert seen.entries > 6
    results = list(replay(read(GOLDEN)))
    assert len(results) == seen.entries
    for result in results:
        assert result.verdict is Verdict.SAME, result.seq
        assert result.result is not None
        assert canonical(result.result) == canonical(result.entry.output)


def test_the_golden_segment_is_what_is_written_today(tmp_path: Path) -> None:
    """The same entries and marks, the same bytes: patches and hashes are part of the format."""
    with FileRecorder(tmp_path) as recorder:
        for link in links([GOLDEN], Chain()):
            if isinstance(link, Entry):
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
