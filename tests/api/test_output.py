"""The output of a run as it grows: parts put aside, the last lines; nothing twice, nothing lost."""

import io
import re
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.api import streams
from fairlead.api.streams import OutputReader


class Log:
    """A log as the executor keeps it: `output.log` grows, `output.1.log` is the part before."""

    def __init__(self, folder: Path) -> None:
        self.log, self.older = folder / "output.log", folder / "output.1.log"
        self.log.touch()

    def write(self, text: str) -> None:
        with self.log.open("ab") as file:
            file.write(text.encode())

    def put_aside(self) -> None:
        self.log.replace(self.older)
        self.log.touch()

    def parts(self) -> list[Path]:
        return [part for part in (self.older, self.log) if part.exists()]


def read(output: OutputReader) -> str:
    return b"".join(output.chunks()).decode()


def test_everything_is_read_once_across_parts(tmp_path: Path) -> None:
    """Also what was written to a part between the last look and its being put aside."""
    log = Log(tmp_path)
    log.write("one\n")
    log.put_aside()
    log.write("two\n")
    output = OutputReader(log.parts, None)
    assert read(output) == "one\ntwo\n"
    assert read(output) == ""
    log.write("three\n")
    log.put_aside()
    log.write("four\n")
    assert read(output) == "three\nfour\n"
    log.write("five\n")
    assert read(output) == "five\n"
    log.put_aside()
    log.put_aside()  # two at once: the reader held the part that is gone
    log.write("six\n")
    assert read(output) == "six\n"
    output.close()


def test_the_last_lines_reach_back_into_older_parts(tmp_path: Path) -> None:
    """Lines are counted from behind, a progress bar's carriage returns are none."""
    log = Log(tmp_path)
    log.write("1\n2\n3\n")
    log.put_aside()
    log.write("4\r4%\r5%\n5\n")
    for tail, expected in (
        (1, "5\n"),
        (2, "4\r4%\r5%\n5\n"),
        (3, "3\n4\r4%\r5%\n5\n"),
        (99, "1\n2\n3\n4\r4%\r5%\n5\n"),
        (0, ""),
    ):
        output = OutputReader(log.parts, tail)
        assert read(output) == expected, tail
        log.write("x")
        assert read(output) == "x"
        output.close()
        log.log.write_bytes(log.log.read_bytes().removesuffix(b"x"))


def test_a_run_that_has_not_started_is_waited_for(tmp_path: Path) -> None:
    """No parts yet is nothing yet; what comes then is all new, whatever the tail."""
    parts: list[Path] = []
    output = OutputReader(lambda: parts, 1)
    assert read(output) == ""
    log = Log(tmp_path)
    log.write("1\n2\n")
    parts += log.parts()
    assert read(output) == "1\n2\n"
    output.close()


@given(st.binary(max_size=40).map(lambda data: data.replace(b"x", b"\n")), st.integers(1, 12))
@pytest.mark.parametrize("chunk", [1, 3, 64])
def test_last_lines_are_those_of_the_whole(chunk: int, data: bytes, lines: int) -> None:
    """Whatever the pieces are in which they are looked for."""
    whole = re.findall(rb"[^\n]*\n|[^\n]+", data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "CHUNK", chunk)
        file = io.BytesIO(data)
        assert streams._seek_lines(file, lines) == len(whole[-lines:])
    assert file.read() == b"".join(whole[-lines:])


def test_a_line_as_long_as_its_file_is_not_kept_in_memory(tmp_path: Path) -> None:
    """One tenant's 31 requests for the tail of such an output took 1.6 GB, and kept the API from
    everybody for 40 s: each piece was added to all before it."""
    path = tmp_path / "output.log"
    path.write_bytes(bytes(8 * 2**20))
    with path.open("rb") as file:
        tracemalloc.start()
        try:
            assert streams._seek_lines(file, 1) == 1
            assert tracemalloc.get_traced_memory()[1] < 2**20
        finally:
            tracemalloc.stop()
        assert file.tell() == 0
