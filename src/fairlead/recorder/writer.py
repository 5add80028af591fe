"""The file adapter of the `Recorder` port: one writer, a bounded ring of hash-chained segments.

    with FileRecorder("/var/lib/fairlead/recorder") as recorder:
        for entry in recorder.unapplied(): ...        # heal what a crash left behind

Opening verifies the newest segment, which it goes on writing; `verify` follows the whole chain.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from fairlead.core.canonical import canonical
from fairlead.core.invariant import InvariantBroken, require
from fairlead.ports.faults import Fault
from fairlead.ports.recorder import Entry, Head, Status
from fairlead.recorder import disk
from fairlead.recorder.chain import Chain
from fairlead.recorder.delta import diff_documents, patch_documents
from fairlead.recorder.lines import GENESIS, header_body, link, mark_body, parse, patch_body, seal
from fairlead.recorder.reader import CorruptRecord, Part, Segment, links, parts

SEGMENT_BYTES = 4 * 2**20
SEGMENTS = 16


@dataclass(frozen=True, slots=True)
class _End:
    """Where the chain ends. One value, so that it changes at once or not at all."""

    seq: int
    hash: bytes
    segment_bytes: int

    def after(self, line: "_Line") -> "_End":
        return _End(self.seq + 1, line.hash, self.segment_bytes + len(line.text))


@dataclass(frozen=True, slots=True)
class _Line:
    """A line to be written, its link's hash, and what the next patch of its kind starts from."""

    text: bytes
    hash: bytes
    base: dict[str, Any] | None = None


class FileRecorder:
    """Appends to a directory of segments; see the port for the promises.

    The oldest segment is dropped whole once `segment_count` are full: about the last 64 MiB of
    decisions are kept by default. An entry larger than a segment has one for itself. Without
    `sync_each` lines are left to the kernel until `sync`: for a governor of five ticks a second,
    to which a slow disk must not happen.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        segment_count: int = SEGMENTS,
        sync_each: bool = True,
    ) -> None:
        # With a single one, beginning the next would drop the entry that is being applied.
        require(segment_count >= 2, "a recorder keeps at least two segments")
        self._directory = Path(directory)
        self._segment_bytes, self._segment_count = segment_bytes, segment_count
        self._sync_each = sync_each
        self._file: disk.SegmentFile | None = None
        self._lock: int | None = None
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._lock = disk.lock(self._directory)
            self._open()
        except OSError as error:
            self.close()
            raise disk.fault(error, f"open the recorder in {directory}") from error
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        """Stand at the end of the newest segment, its torn line cut off; or begin the first."""
        chain, whole_bytes = Chain(), 0
        self._parts = parts(self._directory)
        for before, after in pairwise(self._parts):
            if after.number != before.number + 1:
                raise CorruptRecord(after.path.name, 1, "the segment before it is missing")
        if self._parts:
            newest = Segment(self._parts[-1].path, chain)
            for _ in newest:
                pass
            whole_bytes = newest.whole_bytes
            self._file = disk.SegmentFile.open(newest.path, whole_bytes=whole_bytes)
        self._end = _End(chain.seq, chain.hash or GENESIS, whole_bytes)
        self._pending, self._bases = chain.pending, chain.bases
        # A crash may have come between a new segment and the durability of its name.
        self._names_durable = False
        if self._parts:
            self._forget_dropped()
        else:
            self._begin_segment()

    def append(
        self,
        kind: str,
        *,
        version: int,
        time_ms: int,
        input: dict[str, Any],
        output: dict[str, Any],
        opening: Callable[[], dict[str, Any]] | None = None,
    ) -> int:
        """Record a decision; raises `NotCanonical` for documents that JSON cannot carry."""
        documents = {"input": input, "output": output}
        if opening is not None and kind not in self._bases:
            documents["input"] = opening()
        given = {"kind": kind, "version": version, "time_ms": time_ms}
        line = self._entry(given, documents)
        if not self._fits(line):
            self._begin_segment()
            if opening is not None:
                documents["input"] = opening()
            line = self._entry(given, documents)
        # Out while the disk works: if we are interrupted there, the next entry is a full one
        # rather than a patch of something that may not be in the file.
        base = self._bases.pop(kind, None)
        try:
            self._write(line, doing=f"record {kind}")
        except Fault:
            if base is not None:
                self._bases[kind] = base
            raise
        if line.base is not None:
            self._bases[kind] = line.base
        self._pending.add(self._end.seq)
        return self._end.seq

    def mark(self, seq: int, status: Status, *, time_ms: int, note: str = "") -> None:
        """Record what became of an entry. One that was dropped meanwhile may still be marked."""
        known = seq in self._pending or 0 < seq < self._parts[0].first_seq
        require(known, f"an entry {seq} waits for a mark")
        given: dict[str, Any] = {
            "time_ms": time_ms,
            "entry_seq": seq,
            "status": status,
            "note": note,
        }
        line = self._seal(mark_body(self._end.seq + 1, **given))
        # However full the segment is: one that began with a mark would not have its entry, and
        # whoever asks for the last one, after a crash above all, would be told that there is none.
        self._write(line, doing=f"mark {seq} as {status}")
        self._pending.discard(seq)

    def unapplied(self) -> list[Entry]:
        """Entries without a mark, oldest first, read and verified anew."""
        if not self._pending:
            return []
        oldest = min(self._pending)
        later = sum(part.first_seq > oldest for part in self._parts)
        paths = [part.path for part in self._parts[-later - 1 :]]
        try:
            return [
                found
                for found in links(paths, Chain())
                if isinstance(found, Entry) and found.seq in self._pending
            ]
        except OSError as error:
            raise disk.fault(error, f"read {self._directory}") from error

    def head(self) -> Head:
        """The end of the chain."""
        return Head(self._end.seq, self._end.hash.hex())

    def last(self, kind: str) -> Mapping[str, Any] | None:
        """Its documents; None where the newest segment has no entry of that kind."""
        return self._bases.get(kind)

    def sync(self) -> None:
        """Have the disk take what the kernel still holds."""
        if self._file is None:
            raise InvariantBroken("an open recorder is synced")
        try:
            self._file.sync()
        except OSError as error:
            raise disk.fault(error, "sync the record") from error

    def close(self) -> None:
        """Let another writer in; closing again does nothing."""
        file, self._file = self._file, None
        lock, self._lock = self._lock, None
        if file is not None:
            file.close()
        if lock is not None:
            os.close(lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _entry(self, given: dict[str, Any], documents: dict[str, Any]) -> _Line:
        """The next line for an entry: a patch where that is shorter, else the whole.

        The hash covers what the caller gave. The base is what a reader makes of the line, so that
        a document that the caller changes afterwards changes nothing here.
        """
        seq, base = self._end.seq + 1, self._bases.get(given["kind"])
        body = canonical({**documents, **given, "seq": seq})
        hash = link(self._end.hash, body)
        if base is not None:
            short = patch_body(seq, **given, patch=diff_documents(base, documents))
            if len(short) < len(body):
                base = patch_documents(base, parse(short)["patch"])
                return _Line(seal(short, hash.hex()), hash, base)
        whole = parse(body)
        base = {"input": whole["input"], "output": whole["output"]}
        return _Line(seal(body, hash.hex()), hash, base)

    def _seal(self, body: bytes) -> _Line:
        hash = link(self._end.hash, body)
        return _Line(seal(body, hash.hex()), hash)

    def _fits(self, line: _Line) -> bool:
        empty = self._end.seq == self._parts[-1].first_seq
        return empty or self._end.segment_bytes + len(line.text) <= self._segment_bytes

    def _write(self, line: _Line, *, doing: str) -> None:
        """Make a line the end of the chain, durably, or raise a fault and leave all as it was."""
        if self._file is None:
            raise InvariantBroken("an open recorder is written to")
        try:
            if not self._names_durable:
                disk.sync_directory(self._directory)
                self._names_durable = True
            self._file.append(line.text, at=self._end.segment_bytes, sync=self._sync_each)
        except OSError as error:
            raise disk.fault(error, doing) from error
        self._end = self._end.after(line)

    def _begin_segment(self) -> None:
        """Drop the oldest segments, then go on in a new one, which begins with full entries."""
        number = self._parts[-1].number + 1 if self._parts else 1
        path = self._directory / f"segment-{number:08d}.jsonl"
        try:
            # First make room: on a full disk that is what lets us go on.
            while len(self._parts) >= self._segment_count:
                self._parts[0].path.unlink(missing_ok=True)
                del self._parts[0]
                self._forget_dropped()
            if self._file is not None and not self._sync_each:
                self._file.sync()  # only the newest segment may end in what a machine forgot
            seq, chain = self._end.seq + 1, self._end.hash
            header = self._seal(header_body(seq, chain=chain, pending=sorted(self._pending)))
            file = disk.SegmentFile.create(path, header.text)
        except OSError as error:
            raise disk.fault(error, f"begin {path.name}") from error
        old, self._file = self._file, file
        self._end = _End(seq, header.hash, len(header.text))
        self._parts.append(Part(path, number, seq))
        self._bases, self._names_durable = {}, False
        if old is not None:
            old.close()

    def _forget_dropped(self) -> None:
        """A plan that is older than the whole ring has been superseded: nobody heals it."""
        oldest = self._parts[0].first_seq
        self._pending = {seq for seq in self._pending if seq >= oldest}
