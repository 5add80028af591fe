"""The form of a line, and the chain that lines make: whole entries out, every link verified.

README.md has the format. The reader and the opening writer both drive a `RecordChain`; it knows
lines, not files.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, NoReturn

from fairlead.core.canonical import canonical
from fairlead.core.units import INTEGER_MAX
from fairlead.ports.recorder import Mark, RecordEntry, RecordHead
from fairlead.recorder.format1 import patch_documents

FORMAT = 2
_FORMATS = (1, FORMAT)
GENESIS = bytes(32)
"""What the first header continues from."""
Document = dict[str, Any]

_HEADER = {"header": dict, "seq": int}
_ENTRY = {"input": dict, "kind": str, "output": dict, "seq": int, "time_ms": int, "version": int}
_PATCH = {"kind": str, "patch": dict, "seq": int, "time_ms": int, "version": int}
_MARK = {"mark": int, "note": str, "seq": int, "status": str, "time_ms": int}
_IN_HEADER = {"chain": str, "format": int, "pending": list}
_HASH = re.compile(rb'\{"hash":"([0-9a-f]{64})",')
# Sixteen digits that are not a fraction: perhaps an integer that JSON readers would round.
_LONG = re.compile(r"(?<![.\d])\d{16}")


class BrokenLink(ValueError):
    """A line that is not the next one of the chain; says why."""


Link = RecordHead | RecordEntry | Mark
"""A header, an entry or a mark."""


def seal(previous: bytes, document: Document) -> tuple[bytes, bytes]:
    """The next line of a chain, canonical because "hash" sorts first, and its hash."""
    body = canonical(document)
    hash = sha256(previous + body).digest()
    return b'{"hash":"%s",%s\n' % (hash.hex().encode(), body[1:]), hash


def parse(data: bytes) -> Any:
    """Parse a line; ValueError or RecursionError for what is none.

    `canonical` prints the double 1e17 in digits only; such a number comes back as the double.
    """
    text = data.decode()
    integers = _integer if _LONG.search(text) else None
    return json.loads(text, parse_int=integers, parse_constant=_refuse)


def _integer(text: str) -> float:
    value = int(text)
    return value if -INTEGER_MAX <= value <= INTEGER_MAX else float(text)


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


class RecordChain:
    """The end of the chain so far, and the entries that wait for a mark."""

    def __init__(self) -> None:
        self.seq = -1
        self.hash: bytes | None = None  # until a first header says what it continues from
        self.pending: set[int] = set()
        self._format = FORMAT
        # Format 1: the last documents of each kind in this segment, which a patch changes.
        self._last: dict[str, Document] = {}

    @property
    def head(self) -> RecordHead:
        return RecordHead(self.seq, (self.hash or GENESIS).hex())

    def begin(self, line: bytes) -> RecordHead:
        """The first line of a segment, newline included; raises `BrokenLink`."""
        with _reading():
            document, body, claimed = _open(line)
            header: Document = document["header"] if _has(document, _HEADER) else {}
            pending = header.get("pending", ())
            if not _has(header, _IN_HEADER) or not all(type(seq) is int for seq in pending):
                raise BrokenLink("is not a segment's header")
            self._continue(header, document["seq"])
            self._advance(body, claimed)
            self.pending, self._last = set(pending), {}
            return self.head

    def take(self, line: bytes) -> RecordEntry | Mark:
        """The next line of a segment, newline included; raises `BrokenLink`."""
        with _reading():
            document, body, claimed = _open(line)
            if document.get("seq") != self.seq + 1:
                raise BrokenLink(f"has number {document.get('seq')}, expected {self.seq + 1}")
            if _has(document, _ENTRY):
                return self._entry(document, body, claimed)
            if _has(document, _MARK):
                return self._mark(document, body, claimed)
            if self._format == 1 and _has(document, _PATCH):
                whole = self._patched(document)
                return self._entry(whole, canonical(whole), claimed)
            raise BrokenLink("is neither an entry nor a mark")

    def _continue(self, header: Document, seq: int) -> None:
        """Check what a header claims to continue, then stand there."""
        if header["format"] not in _FORMATS:
            raise BrokenLink(f"has format {header['format']}, this release reads 1 and {FORMAT}")
        chain = bytes.fromhex(header["chain"])
        if (seq == 0) != (chain == GENESIS):
            raise BrokenLink("begins in the middle")
        if self.hash is not None and (seq, chain) != (self.seq + 1, self.hash):
            raise BrokenLink("does not continue the segment before")
        self.seq, self.hash, self._format = seq - 1, chain, header["format"]

    def _patched(self, document: Document) -> Document:
        last = self._last.get(document["kind"])
        if last is None:
            raise BrokenLink(f"changes an entry of {document['kind']!r}, of which there is none")
        changes = document.pop("patch")
        return {**document, **patch_documents(last, changes)}

    def _entry(self, entry: Document, body: bytes, claimed: str) -> RecordEntry:
        self._advance(body, claimed)
        if self._format == 1:
            self._last[entry["kind"]] = {"input": entry["input"], "output": entry["output"]}
        self.pending.add(self.seq)
        return RecordEntry(hash=claimed, **entry)

    def _mark(self, document: Document, body: bytes, claimed: str) -> Mark:
        status = document["status"]
        if status not in ("applied", "voided"):
            raise BrokenLink(f"marks an entry as {status!r}")
        self._advance(body, claimed)
        self.pending.discard(document["mark"])
        return Mark(hash=claimed, entry_seq=document.pop("mark"), **document)

    def _advance(self, body: bytes, claimed: str) -> None:
        """One link further, if its hash is the one the line claims."""
        hash = sha256((self.hash or GENESIS) + body).digest()
        if hash.hex() != claimed:
            raise BrokenLink("does not match its hash: it, or a line before it, was changed")
        self.seq, self.hash = self.seq + 1, hash


def _open(line: bytes) -> tuple[Document, bytes, str]:
    """A line's document without its hash, its body as it stands in the file, and the hash."""
    document = parse(line)
    if not isinstance(document, dict):
        raise BrokenLink("is not an object")
    found = _HASH.match(line)
    if found is None or not line.endswith(b"}\n"):
        raise BrokenLink("is not in canonical form")
    del document["hash"]
    return document, b"{" + line[found.end() : -1], found[1].decode()


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
