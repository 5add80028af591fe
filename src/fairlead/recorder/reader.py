"""Reads what a recorder wrote: whole entries, every link verified, one line in memory at a time.

    for entry in read("/var/lib/fairlead/recorder"): ...       # a directory or a single segment

Whoever wants to look uses this, while a writer is at work or after it died; it takes no lock and
changes nothing.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fairlead.ports.faults import PermanentFault, TemporaryFault
from fairlead.ports.recorder import Entry, Head
from fairlead.recorder.chain import BrokenLink, Chain, Link
from fairlead.recorder.lines import parse

_SEGMENT = re.compile(r"segment-\d{8,}\.jsonl")


class CorruptRecord(PermanentFault):
    """The record is not what was written: says in which segment and line, and what is wrong."""

    def __init__(self, segment: str, line: int, reason: str) -> None:
        super().__init__(f"{segment}, line {line}: {reason}")
        self.segment, self.line, self.reason = segment, line, reason


@dataclass(frozen=True, slots=True)
class Verified:
    """What a verification saw."""

    first_seq: int
    """The oldest link that is left."""
    head: Head
    entries: int
    anchors_met: int
    """Anchors found in the chain; those older than `first_seq` can no longer be checked."""


@dataclass(frozen=True, slots=True)
class Part:
    """A segment's place: in the directory by its number, in the chain by its first link."""

    path: Path
    number: int
    first_seq: int


def segments(directory: Path) -> list[Path]:
    """The segments of a directory, oldest first."""
    found = [path for path in directory.iterdir() if _SEGMENT.fullmatch(path.name)]
    return sorted(found, key=_number)


def parts(directory: Path) -> list[Part]:
    """The segments of a directory with their headers read, oldest first."""
    found = []
    for path in segments(directory):
        header = next(iter(Segment(path, Chain())))
        found.append(Part(path, _number(path), header.seq))
    return found


def _number(path: Path) -> int:
    return int(path.stem.removeprefix("segment-"))


class Segment:
    """One segment file, read from its beginning through a chain."""

    def __init__(self, path: Path, chain: Chain) -> None:
        self.path = path
        self.chain = chain
        self.line = 0
        self.whole_bytes = 0
        """Bytes of complete lines. What follows was never acknowledged: a writer died in it."""
        self.torn = False

    def __iter__(self) -> Iterator[Link]:
        with self.path.open("rb") as file:
            for line in file:
                self.line += 1
                if not line.endswith(b"\n"):
                    self._tear(line)
                    break
                try:
                    taken = self.chain.begin(line) if self.line == 1 else self.chain.take(line)
                except BrokenLink as error:
                    raise CorruptRecord(self.path.name, self.line, str(error)) from error
                self.whole_bytes += len(line)
                yield taken
        # Segments appear under their name with a whole header, so this was no crash of ours.
        if self.whole_bytes == 0:
            raise CorruptRecord(self.path.name, 1, "there is no header")

    def _tear(self, tail: bytes) -> None:
        """A torn write leaves a beginning of its line; a whole line and then no newline is none."""
        self.torn = True
        try:
            parse(tail[:-1])
        except (ValueError, RecursionError):
            return
        raise CorruptRecord(self.path.name, self.line, "another byte stands for its newline")


def links(paths: list[Path], chain: Chain) -> Iterator[Link]:
    """All links of these consecutive segments. Only the last segment may end in a torn line."""
    for path in paths:
        segment = Segment(path, chain)
        yield from segment
        if segment.torn and path is not paths[-1]:
            raise CorruptRecord(path.name, segment.line, "is torn, and yet a segment follows")


def read(path: str | Path) -> Iterator[Entry]:
    """The entries of a directory or of one segment, oldest first, verified as they come.

    Raises `CorruptRecord` where the chain breaks; what came before that is good.
    """
    with _opening(path) as paths:
        for found in links(paths, Chain()):
            if isinstance(found, Entry):
                yield found


def verify(path: str | Path, *, anchors: Iterable[Head] = ()) -> Verified:
    """Follow the whole chain; raises `CorruptRecord` where it breaks or misses an anchor.

    A chain alone cannot show that its end was cut off or that all of it was written anew; a head
    kept elsewhere can.
    """
    wanted = {anchor.seq: anchor.hash for anchor in anchors}
    chain, first, entries, met = Chain(), -1, 0, 0
    with _opening(path) as paths:
        for found in links(paths, chain):
            first = found.seq if first < 0 else first
            entries += isinstance(found, Entry)
            if found.seq in wanted:
                met += 1
                if wanted[found.seq] != found.hash:
                    reason = f"number {found.seq} is not the one that was anchored"
                    raise CorruptRecord(Path(path).name, 0, reason)
    if max(wanted, default=-1) > chain.seq:
        reason = f"ends at number {chain.seq}, but {max(wanted)} was anchored"
        raise CorruptRecord(Path(path).name, 0, reason)
    return Verified(first, chain.head, entries, met)


@contextmanager
def _opening(path: str | Path) -> Iterator[list[Path]]:
    """The segments to read, and the faults of reading them."""
    path = Path(path)
    try:
        yield segments(path) if path.is_dir() else [path]
    except FileNotFoundError as error:
        if not path.exists():
            raise PermanentFault(f"no record at {path}") from error
        # The writer drops its oldest segment whole when it begins a new one.
        message = f"{error.filename} was dropped while it was to be read"
        raise TemporaryFault(message, retry_after_ms=0) from error
    except OSError as error:
        raise PermanentFault(f"cannot read {path}: {error}") from error


__all__ = ["CorruptRecord", "Part", "Segment", "Verified", "links", "parts", "read", "verify"]
