"""Follows the lines of segments, in order: rebuilds whole entries and verifies every link.

The reader and the opening writer both drive it; it knows lines, not files.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fairlead.core.canonical import canonical
from fairlead.ports.recorder import Entry, Head, Mark
from fairlead.recorder.delta import patch_documents
from fairlead.recorder.lines import FORMAT, GENESIS, Renderer, link, parse, seal

_HEADER = {"header": dict, "seq": int}
_FULL = {"input": dict, "kind": str, "output": dict, "seq": int, "time_ms": int, "version": int}
_PATCH = {"kind": str, "patch": dict, "seq": int, "time_ms": int, "version": int}
_MARK = {"mark": int, "note": str, "seq": int, "status": str, "time_ms": int}
_IN_HEADER = {"chain": str, "format": int, "pending": list}


class BrokenLink(ValueError):
    """A line that is not the next one of the chain; says why."""


@dataclass(frozen=True, slots=True)
class Header:
    """The first link of a segment."""

    seq: int
    pending: tuple[int, ...]
    """Entries of earlier segments that had no mark when this one began."""
    hash: str


Link = Header | Entry | Mark
Document = dict[str, Any]


class Chain:
    """The end of the chain so far, and what the next line needs: the last entry of each kind."""

    def __init__(self) -> None:
        self.seq = -1
        self.hash: bytes | None = None
        """None until a first header says what it continues from."""
        self.pending: set[int] = set()
        self.bases: dict[str, Document] = {}
        """The last input and output of each kind in this segment: what a patch is applied to."""
        self._renderers: dict[str, Renderer] = {}

    @property
    def head(self) -> Head:
        """The last link that was taken."""
        return Head(self.seq, (self.hash or GENESIS).hex())

    def begin(self, line: bytes) -> Header:
        """The first line of a segment, newline included; raises `BrokenLink`."""
        with _reading():
            document, body, claimed = _open(line)
            if not _has(document, _HEADER) or not _has(document["header"], _IN_HEADER):
                raise BrokenLink("is not a segment's header")
            pending = document["header"]["pending"]
            if not all(type(seq) is int for seq in pending):
                raise BrokenLink("is not a segment's header")
            self._continue(document["header"], document["seq"])
            self._advance(body, claimed)
            self.pending, self.bases, self._renderers = set(pending), {}, {}
            return Header(self.seq, tuple(pending), claimed)

    def take(self, line: bytes) -> Entry | Mark:
        """The next line of a segment, newline included; raises `BrokenLink`."""
        with _reading():
            document, body, claimed = _open(line)
            if document.get("seq") != self.seq + 1:
                raise BrokenLink(f"has number {document.get('seq')}, expected {self.seq + 1}")
            if _has(document, _PATCH):
                return self._patch(document, claimed)
            if _has(document, _FULL):
                self._advance(body, claimed)
                return self._entry(document, claimed)
            if _has(document, _MARK):
                return self._mark(document, body, claimed)
            raise BrokenLink("is neither an entry nor a mark")

    def _continue(self, header: Document, seq: int) -> None:
        """Check what a header claims to continue, then stand there."""
        if header["format"] != FORMAT:
            raise BrokenLink(f"has format {header['format']}, this reads {FORMAT}")
        chain = bytes.fromhex(header["chain"])
        if (seq == 0) != (chain == GENESIS):
            raise BrokenLink("begins in the middle")
        if self.hash is not None and (seq, chain) != (self.seq + 1, self.hash):
            raise BrokenLink("does not continue the segment before")
        self.seq, self.hash = seq - 1, chain

    def _patch(self, document: Document, claimed: str) -> Entry:
        kind = document["kind"]
        if kind not in self.bases:
            raise BrokenLink(f"changes an entry of {kind!r}, of which there is none")
        base, changes = self.bases[kind], document.pop("patch")
        entry = {**document, **patch_documents(base, changes)}
        self._advance(self._renderers.setdefault(kind, Renderer()).render(entry), claimed)
        return self._entry(entry, claimed)

    def _entry(self, entry: Document, claimed: str) -> Entry:
        kind, input, output = entry["kind"], entry["input"], entry["output"]
        self.bases[kind] = {"input": input, "output": output}
        self.pending.add(self.seq)
        return Entry(self.seq, entry["time_ms"], kind, entry["version"], input, output, claimed)

    def _mark(self, document: Document, body: bytes, claimed: str) -> Mark:
        status = document["status"]
        if status not in ("applied", "voided"):
            raise BrokenLink(f"marks an entry as {status!r}")
        self._advance(body, claimed)
        self.pending.discard(document["mark"])
        time_ms, note = document["time_ms"], document["note"]
        return Mark(self.seq, time_ms, document["mark"], status, note, claimed)

    def _advance(self, body: bytes, claimed: str) -> None:
        """One link further, if its hash is the one the line claims."""
        hash = link(self.hash or GENESIS, body)
        if hash.hex() != claimed:
            raise BrokenLink("does not match its hash: it, or a line before it, was changed")
        self.seq, self.hash = self.seq + 1, hash


def _open(line: bytes) -> tuple[Document, bytes, str]:
    """A line's document without its hash, the same as bytes, and the hash."""
    document = parse(line)
    if not isinstance(document, dict):
        raise BrokenLink("is not an object")
    claimed = document.pop("hash", None)
    body = canonical(document)
    # Another way to write the same values is not what we wrote: no byte may change unseen.
    if not isinstance(claimed, str) or seal(body, claimed) != line:
        raise BrokenLink("is not in canonical form")
    return document, body, claimed


@contextmanager
def _reading() -> Iterator[None]:
    """Whatever a line may hold, a reader hears of it as a `BrokenLink`."""
    try:
        yield
    except BrokenLink:
        raise
    except RecursionError as error:
        raise BrokenLink("is nested too deeply") from error
    except ValueError as error:  # not UTF-8, not JSON, no canonical form, a patch that fits nothing
        raise BrokenLink(f"cannot be read: {error}") from error


def _has(document: Document, shape: Mapping[str, type]) -> bool:
    """Exactly these members, of exactly these types (a bool is no number)."""
    return document.keys() == shape.keys() and all(
        type(document[key]) is kind for key, kind in shape.items()
    )
