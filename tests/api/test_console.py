"""Output by position: no byte lost or repeated, whatever was dropped or started meanwhile."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.api.console import READ_MAX, read_output
from fairlead.api.shapes import OutputQuery
from fairlead.engine.gpu import NotFound
from fairlead.executor.shim import OutputFile
from fairlead.host import files
from fairlead.ports.executor import JobOutput, Keyboard
from fairlead.schema.border import BadInput


class Jobs:
    """Jobs whose output the shim's own writer keeps."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.newest = folder, ""
        self.files: dict[str, OutputFile] = {}

    def begin(self, job: str, most: int) -> OutputFile:
        (self._folder / job).mkdir()
        self.newest, self.files[job] = job, OutputFile(str(self._folder / job), most)
        return self.files[job]

    def newest_job(self, run: str) -> str:
        return self.newest

    def output(self, job: str) -> JobOutput | None:
        if job not in self.files:
            return None
        parts = (self._folder / job / name for name in ("output.1.log", "output.log"))
        dropped = files.read_json(self._folder / job / "dropped.json") or {"bytes": 0}
        return JobOutput(job, tuple(part for part in parts if part.exists()), dropped["bytes"])

    def press(self, run: str, keys: Keyboard) -> int | None:
        return None


@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(8, 60))
def test_what_is_read_is_what_was_written_but_for_what_was_dropped(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], most: int
) -> None:
    """A reader that keeps up sees all of it; one that begins late sees the end, in order."""
    jobs = Jobs(tmp_path_factory.mktemp("jobs"))
    output, seen, at, written = jobs.begin("r.u.1", most), b"", 0, b""
    for piece in pieces:
        # In pieces that the writer keeps, as the shim's reads are small beside its bound.
        for start in range(0, len(piece), max(1, most // 4)):
            part = piece[start : start + max(1, most // 4)]
            output.write(part)
            written += part
            found = read_output(jobs, "r", "r.u.", OutputQuery(job="r.u.1", after=at))
            seen, at = seen + found.data, found.next
    assert seen == written
    late = read_output(jobs, "r", "r.u.", OutputQuery())
    assert written.endswith(late.data)
    assert late.next == len(written)


def test_a_job_is_read_to_its_end_before_the_next_one(tmp_path: Path) -> None:
    """Restarts, the start before the latest, and jobs that are not this run's."""
    jobs = Jobs(tmp_path)
    jobs.begin("r.u.1", 1000).write(b"one\ntwo\n")
    jobs.begin("r.u.2", 1000).write(b"three\n")
    first = read_output(jobs, "r", "r.u.", OutputQuery(job="r.u.1", after=4))
    assert (first.job, first.data) == ("r.u.1", b"two\n")
    then = read_output(jobs, "r", "r.u.", OutputQuery(job=first.job, after=first.next))
    assert (then.job, then.data, then.next) == ("r.u.2", b"three\n", 6)
    before = read_output(jobs, "r", "r.u.", OutputQuery(previous=True, tail=1))
    assert before.data == b"two\n"
    with pytest.raises(BadInput, match="must be a job of this run"):
        read_output(jobs, "r", "r.u.", OutputQuery(job="r.other.1"))
    assert read_output(jobs, "r", "r.new.", OutputQuery()).data == b""
    with pytest.raises(NotFound):
        read_output(jobs, "r", "r.new.", OutputQuery(previous=True))


def test_a_reply_is_bounded_and_a_tail_begins_at_a_line(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    jobs.begin("r.u.1", 8 * READ_MAX).write(b"x" * READ_MAX + b"\nlast\n")
    found = read_output(jobs, "r", "r.u.", OutputQuery())
    assert len(found.data) == READ_MAX
    assert read_output(jobs, "r", "r.u.", OutputQuery(tail=1)).data == b"last\n"
    assert read_output(jobs, "r", "r.u.", OutputQuery(tail=0)).data == b""
