"""Reads what a recorder wrote: whole entries, every link verified, one line in memory at a time.

A reader takes no lock and changes nothing; a writer may be at work meanwhile.
"""

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from fairlead.ports.faults import PermanentFault, TemporaryFault
from fairlead.ports.recorder import RecordEntry, RecordHead
from fairlead.recorder.chain import BrokenLink, Link, RecordChain, parse
from fairlead.schema.replay import SHIPPED, Replayed, Replayer, Shipped

_SEGMENT = re.compile(r"segment-(\d{8,})\.jsonl(\.gz)?")
GZ = ".gz"


class CorruptRecord(PermanentFault):
    """The record is not what was written: says in which segment and line, and what is wrong."""

    def __init__(self, segment: str, line: int, reason: str) -> None:
        super().__init__(f"{segment}, line {line}: {reason}")
        self.segment, self.line, self.reason = segment, line, reason


@dataclass(frozen=True, slots=True)
class RecordVerified:
    """What a verification saw."""

    first_seq: int
    """The oldest link that is left."""
    head: RecordHead
    entries: int
    anchors_met: int
    """Anchors found in the chain; those older than `first_seq` can no longer be checked."""


def segments(directory: Path) -> list[Path]:
    """The segments of a directory, oldest first.

    One that was being compressed when its writer died is there twice; the compressed one, which
    appeared whole, is listed.
    """
    names = sorted(directory.iterdir())  # NAME.jsonl before NAME.jsonl.gz
    found = {number_of(path): path for path in names if _SEGMENT.fullmatch(path.name)}
    return [found[number] for number in sorted(found)]


def number_of(path: Path) -> int:
    return int(path.name.removeprefix("segment-").partition(".")[0])


class RecordSegment:
    """One segment file, read from its beginning through a chain."""

    def __init__(self, path: Path, chain: RecordChain) -> None:
        self.path, self.chain, self.line = path, chain, 0
        self.whole_bytes = 0
        """Bytes of complete lines. What follows was never acknowledged: a writer died in it."""
        self.torn = False

    def __iter__(self) -> Iterator[Link]:
        try:
            with self._open() as file:
                for line in file:
                    self.line += 1
                    if not line.endswith(b"\n"):
                        self._tear(line)
                        break
                    taken = self.chain.begin(line) if self.line == 1 else self.chain.take(line)
                    self.whole_bytes += len(line)
                    yield taken
        except BrokenLink as error:
            raise CorruptRecord(self.path.name, self.line, str(error)) from error
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            reason = f"cannot be decompressed: {error}"
            raise CorruptRecord(self.path.name, self.line + 1, reason) from error
        # Segments appear under their name with a whole header, so this was no crash of ours.
        if self.whole_bytes == 0:
            raise CorruptRecord(self.path.name, 1, "there is no header")

    def _open(self) -> BinaryIO:
        if self.path.suffix != GZ:
            try:
                return self.path.open("rb")
            except FileNotFoundError:
                packed = self.path.with_name(self.path.name + GZ)
                if not packed.exists():
                    raise
                self.path = packed  # the writer compressed it since it was listed
        return cast(BinaryIO, gzip.open(self.path, "rb"))

    def _tear(self, tail: bytes) -> None:
        """A torn write leaves a beginning of its line; a whole line and then no newline is none."""
        self.torn = True
        try:
            parse(tail[:-1])
        except (ValueError, RecursionError):
            return
        raise CorruptRecord(self.path.name, self.line, "another byte stands for its newline")


def links(paths: list[Path], chain: RecordChain) -> Iterator[Link]:
    """All links of these consecutive segments. Only the last segment may end in a torn line."""
    for path in paths:
        segment = RecordSegment(path, chain)
        yield from segment
        if segment.torn and path is not paths[-1]:
            raise CorruptRecord(path.name, segment.line, "is torn, and yet a segment follows")


def read(path: str | Path) -> Iterator[RecordEntry]:
    """The entries of a directory or a segment, verified as they come; raises `CorruptRecord`."""
    with _opening(path) as paths:
        for found in links(paths, RecordChain()):
            if isinstance(found, RecordEntry):
                yield found


def replay(entries: Iterable[RecordEntry], kinds: Shipped = SHIPPED) -> Iterator[Replayed]:
    """Run recorded decisions again, in order, and compare their bytes."""
    replayer = Replayer(kinds)
    for entry in entries:
        yield replayer.run(entry.seq, entry.kind, entry.version, entry.input, entry.output)


def verify(path: str | Path, *, anchors: Iterable[RecordHead] = ()) -> RecordVerified:
    """Follow the whole chain; raises `CorruptRecord` where it breaks or misses an anchor.

    A chain alone cannot show that its end was cut off or that all of it was written anew; a head
    kept elsewhere can.
    """
    wanted = {anchor.seq: anchor.hash for anchor in anchors}
    chain, first, entries, met = RecordChain(), -1, 0, 0
    with _opening(path) as paths:
        for found in links(paths, chain):
            first = found.seq if first < 0 else first
            entries += isinstance(found, RecordEntry)
            if found.seq in wanted:
                met += 1
                if wanted[found.seq] != found.hash:
                    reason = f"number {found.seq} is not the one that was anchored"
                    raise CorruptRecord(Path(path).name, 0, reason)
    if max(wanted, default=-1) > chain.seq:
        reason = f"ends at number {chain.seq}, but {max(wanted)} was anchored"
        raise CorruptRecord(Path(path).name, 0, reason)
    return RecordVerified(first, chain.head, entries, met)


@contextmanager
def _opening(path: str | Path) -> Iterator[list[Path]]:
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
