"""Reading the output of a run while it grows, part by part.

A part that is full is put aside under another name as the same file, so parts are known by what
they are on disk and not by what they are called.
"""

import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

CHUNK = 64 * 1024
_LINE = re.compile(rb"[^\n]*\n|[^\n]+")
_LOOKS = 10  # at files that are being put aside while they are opened


class Output:
    """All that is kept of a run's output, or its last lines; then what is new."""

    def __init__(self, parts: Callable[[], Sequence[Path]], tail: int | None) -> None:
        self._parts, self._tail = parts, tail
        self._files: deque[BinaryIO] = deque()

    def chunks(self) -> Iterator[bytes]:
        """What was not read yet. The newest part is held: it may grow even while it is replaced."""
        while self._look():
            while True:
                while data := self._files[0].read(CHUNK):
                    yield data
                if len(self._files) == 1:
                    break
                self._files.popleft().close()
        if self._files:
            yield from iter(lambda: self._files[0].read(CHUNK), b"")

    def close(self) -> None:
        """Let go of the files."""
        while self._files:
            self._files.pop().close()

    def _look(self) -> bool:
        """Take up the parts behind the newest that is held; whether there are any."""
        fresh = deque(self._open())
        if self._files:
            held, names = _identity(self._files[-1]), [_identity(each) for each in fresh]
            for _ in range(names.index(held) + 1 if held in names else 0):
                fresh.popleft().close()
        elif self._tail is not None:
            _seek_tail(fresh, self._tail)
        self._tail = None  # of what comes later, everything is new
        self._files.extend(fresh)
        return bool(fresh)

    def _open(self) -> list[BinaryIO]:
        """The parts as they are at one moment."""
        found: list[BinaryIO] = []
        for _ in range(_LOOKS):
            for path in self._parts():
                with suppress(FileNotFoundError):
                    found.append(path.open("rb"))
            if _on_disk(self._parts()) == [_identity(each) for each in found]:
                break
            while found:
                found.pop().close()
        return found


def _identity(file: BinaryIO) -> tuple[int, int]:
    found = os.fstat(file.fileno())
    return found.st_dev, found.st_ino


def _on_disk(paths: Sequence[Path]) -> list[tuple[int, int]]:
    found = []
    for path in paths:
        with suppress(FileNotFoundError):
            status = path.stat()
            found.append((status.st_dev, status.st_ino))
    return found


def _seek_tail(files: deque[BinaryIO], lines: int) -> None:
    """To the beginning of the last lines, from behind; parts before them are let go."""
    left, kept = lines, list[BinaryIO]()
    while files and left > 0:
        kept.append(files.pop())
        left -= _seek_lines(kept[-1], left)
    if not kept and files:  # no lines at all, but what comes next
        kept.append(files.pop())
        kept[0].seek(0, os.SEEK_END)
    while files:
        files.pop().close()
    files.extend(reversed(kept))


def _seek_lines(file: BinaryIO, lines: int) -> int:
    """To the beginning of the last lines of one file; how many it has of them."""
    end = at = file.seek(0, os.SEEK_END)
    data = b""
    while at > 0 and data.count(b"\n") <= lines:
        step = min(CHUNK, at)
        at = file.seek(at - step)
        data = file.read(step) + data
    # Lines end with a newline; a carriage return is a progress bar's.
    parts = _LINE.findall(data)[-lines:]
    file.seek(end - sum(map(len, parts)))
    return len(parts)
