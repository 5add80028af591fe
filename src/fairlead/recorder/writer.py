"""The file adapter of the `Recorder` port: one writer, a bounded series of hash-chained segments.

The newest segment is plain lines, each durable by itself; a full one is compressed whole. Opening
verifies the newest segment, which it goes on writing; `verify` follows the whole chain.
"""

import gzip
import os
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Self

from fairlead.core.canonical import Rendered, canonical
from fairlead.core.invariant import known, require
from fairlead.host import files
from fairlead.ports.faults import faults
from fairlead.ports.recorder import Mark, RecordEntry, RecordHead, Status
from fairlead.recorder.chain import FORMAT, GENESIS, Document, Link, RecordChain, seal
from fairlead.recorder.reader import GZ, CorruptRecord, RecordSegment, links, number_of, segments

LOCK = "recorder.lock"
SEGMENT_BYTES = 2**20
BYTES_MAX = 64 * 2**20
# 6 keeps a CPU life in as many bytes as format 1 did; sealing 1 MiB takes 5 to 15 ms.
_LEVEL = 6
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC


class _Part(NamedTuple):
    """A segment's place, in the directory and in the chain."""

    path: Path
    first_seq: int
    disk_bytes: int


class _End(NamedTuple):
    """Where the chain ends. One value, so that it changes at once or not at all."""

    seq: int
    hash: bytes
    segment_bytes: int


class FileRecorder:
    """Appends to a directory of segments; see the port for the promises.

    A segment ends once it has `segment_bytes`; it is then compressed, and the oldest are dropped
    whole so that all of them take `bytes_max` on disk at most, or two segments. Without
    `sync_each` lines are left to the kernel until `sync`: for a governor of five ticks a second,
    which must not wait for a slow disk.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        bytes_max: int = BYTES_MAX,
        sync_each: bool = True,
    ) -> None:
        self._directory, self._sync_each = Path(directory), sync_each
        self._segment_bytes, self._bytes_max = segment_bytes, bytes_max
        self._file: int | None = None
        self._lock: int | None = None
        try:
            with faults(f"open the recorder in {directory}"):
                self._directory.mkdir(parents=True, exist_ok=True)
                self._lock = files.lock_alone(self._directory / LOCK, of=self._directory)
                self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        """Stand at the end of the newest segment, its torn line cut off; or begin the first."""
        chain, whole_bytes = RecordChain(), 0
        self._kinds: set[str] = set()
        self._parts = [_part(path) for path in segments(self._directory)]
        for before, after in pairwise(self._parts):
            if number_of(after.path) != number_of(before.path) + 1:
                raise CorruptRecord(after.path.name, 1, "the segment before it is missing")
        if self._parts:
            newest = RecordSegment(self._parts[-1].path, chain)
            self._kinds = {found.kind for found in newest if isinstance(found, RecordEntry)}
            whole_bytes = newest.whole_bytes
            if newest.path.suffix != GZ:
                self._file = os.open(newest.path, _APPEND)
                _cut(self._file, whole_bytes)
        self._end = _End(chain.seq, chain.hash or GENESIS, whole_bytes)
        self._pending = chain.pending
        # A crash may have come between a new segment and the durability of its name.
        self._names_durable = False
        if self._parts:
            self._forget_dropped()
        if self._file is None:
            self._begin_segment()

    def append(
        self,
        kind: str,
        *,
        version: int,
        time_ms: int,
        input: Document | Rendered,
        output: Document | Rendered,
    ) -> int:
        """Record a decision; raises `NotCanonical` for documents that JSON cannot carry."""
        entry: Document = {"kind": kind, "version": version, "time_ms": time_ms}
        entry |= {"input": input, "output": output}
        if self._full():
            canonical(entry)  # what cannot be recorded begins no segment
            self._begin_segment()
        self._write(entry, doing=f"record {kind}")
        self._kinds.add(kind)
        self._pending.add(self._end.seq)
        return self._end.seq

    def begins_segment(self, kind: str) -> bool:
        return self._full() or kind not in self._kinds

    def mark(self, seq: int, status: Status, *, time_ms: int, note: str = "") -> None:
        """Record what became of an entry. One that was dropped meanwhile may still be marked."""
        waits = seq in self._pending or 0 < seq < self._parts[0].first_seq
        require(waits, f"an entry {seq} waits for a mark")
        # However full the segment is: a mark stays in the segment of its entry.
        mark = {"mark": seq, "note": note, "status": status, "time_ms": time_ms}
        self._write(mark, doing=f"mark {seq} as {status}")
        self._pending.discard(seq)

    def unapplied(self) -> list[RecordEntry]:
        """Entries without a mark, oldest first, read and verified anew."""
        if not self._pending:
            return []
        later = sum(part.first_seq > min(self._pending) for part in self._parts)
        found = self._entries(self._parts[-later - 1 :])
        return [entry for entry in found if entry.seq in self._pending]

    def head(self) -> RecordHead:
        return RecordHead(self._end.seq, self._end.hash.hex())

    def tail(self, kind: str) -> list[RecordEntry]:
        """All entries of a kind in the newest segment that has one, read and verified anew."""
        for part in reversed(self._parts):
            found = [entry for entry in self._entries([part]) if entry.kind == kind]
            if found:
                return found
        return []

    def was_applied(self, seq: int) -> bool:
        later = sum(part.first_seq > seq for part in self._parts)
        marks = (link for link in self._links(self._parts[-later - 1 :]) if isinstance(link, Mark))
        return any((mark.entry_seq, mark.status) == (seq, "applied") for mark in marks)

    def _entries(self, parts: list[_Part]) -> list[RecordEntry]:
        return [link for link in self._links(parts) if isinstance(link, RecordEntry)]

    def _links(self, parts: list[_Part]) -> list[Link]:
        with faults(f"read {self._directory}"):
            return list(links([part.path for part in parts], RecordChain()))

    def sync(self) -> None:
        with faults("sync the record"):
            os.fdatasync(known(self._file, "an open recorder is synced"))

    def close(self) -> None:
        descriptors, self._file, self._lock = (self._file, self._lock), None, None
        for descriptor in descriptors:
            if descriptor is not None:
                os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _full(self) -> bool:
        empty = self._end.seq == self._parts[-1].first_seq
        return not empty and self._end.segment_bytes >= self._segment_bytes

    def _write(self, document: Document, *, doing: str) -> None:
        """Make a line the end of the chain, durably, or raise a fault and leave all as it was."""
        file, end = known(self._file, "an open recorder is written to"), self._end
        line, hash = seal(end.hash, {**document, "seq": end.seq + 1})
        with faults(doing):
            if not self._names_durable:
                files.sync_directory(self._directory)
                self._names_durable = True
            _append(file, line, at=end.segment_bytes, sync=self._sync_each)
        self._end = _End(end.seq + 1, hash, end.segment_bytes + len(line))

    def _begin_segment(self) -> None:
        """Make room, then go on in a new segment, and compress the one before."""
        number = number_of(self._parts[-1].path) + 1 if self._parts else 1
        path = self._directory / f"segment-{number:08d}.jsonl"
        seq, chain = self._end.seq + 1, self._end.hash
        with faults(f"begin {path.name}"):
            # First make room: on a full disk that is what lets us go on.
            self._drop_oldest()
            if self._file is not None and not self._sync_each:
                os.fdatasync(self._file)  # only the newest segment may end in what a machine forgot
            # What it continues from, and which entries had no mark by then.
            about = {"chain": chain.hex(), "format": FORMAT, "pending": sorted(self._pending)}
            line, hash = seal(chain, {"header": about, "seq": seq})
            file = _create(path, line)
        old, self._file = self._file, file
        self._end = _End(seq, hash, len(line))
        self._parts.append(_Part(path, seq, self._segment_bytes))
        self._kinds, self._names_durable = set(), False
        if old is not None:
            os.close(old)
        self._seal()

    def _drop_oldest(self) -> None:
        """Two are kept however large they are: the entry being applied is in the newest one."""
        room = self._bytes_max - self._segment_bytes
        while len(self._parts) >= 2 and sum(part.disk_bytes for part in self._parts) > room:
            self._parts[0].path.unlink(missing_ok=True)
            del self._parts[0]
            self._forget_dropped()

    def _seal(self) -> None:
        """Compress full segments. What fails on a full disk is tried next time.

        Two at a time, newest first: a caller must not wait for all that an earlier release left.
        """
        plain = [part for part in self._parts[:-1] if part.path.suffix != GZ]
        for part in plain[-2:]:
            with suppress(OSError):
                target = part.path.with_name(part.path.name + GZ)
                with files.draft(target) as draft:
                    data = gzip.compress(part.path.read_bytes(), _LEVEL, mtime=0)
                    Path(draft).write_bytes(data)
                index = self._parts.index(part)
                self._parts[index] = part._replace(path=target, disk_bytes=len(data))
                part.path.unlink()

    def _forget_dropped(self) -> None:
        """A plan older than everything that is kept has been superseded: it is not healed."""
        oldest = self._parts[0].first_seq
        self._pending = {seq for seq in self._pending if seq >= oldest}


def _part(path: Path) -> _Part:
    if path.suffix == GZ:  # its writer died before it removed the plain one
        path.with_name(path.name.removesuffix(GZ)).unlink(missing_ok=True)
    header = next(iter(RecordSegment(path, RecordChain())))
    return _Part(path, header.seq, path.stat().st_size)


def _create(path: Path, header: bytes) -> int:
    """Make a segment appear under its name with its header whole, or not at all; open it."""
    draft = path.with_suffix(".draft")
    descriptor = os.open(draft, _APPEND | os.O_CREAT | os.O_TRUNC, 0o640)
    try:
        files.write_all(descriptor, header)
        os.fdatasync(descriptor)
        draft.rename(path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _append(descriptor: int, line: bytes, *, at: int, sync: bool) -> None:
    """Write a line after the first `at` bytes; durable when it returns, else not there.

    Whatever lies beyond `at` belongs to an append that failed and was never acknowledged. Every
    line is synced by itself, so a sync that fails concerns this line alone; cutting it off and
    writing again makes its pages dirty again, where a second sync alone would report success for
    data that the kernel has given up.
    """
    _cut(descriptor, at)
    try:
        files.write_all(descriptor, line)
        if sync:
            os.fdatasync(descriptor)
    except BaseException:
        with suppress(OSError):  # if not now, then before the next line or at the next opening
            _cut(descriptor, at)
        raise


def _cut(descriptor: int, at: int) -> None:
    if os.fstat(descriptor).st_size != at:
        os.ftruncate(descriptor, at)
