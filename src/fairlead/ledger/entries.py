"""Entries as bytes: a draft becomes canonical JSON in which only the number is missing.

The number is known last, under the writer's lock. Everything else is rendered before, so that the
lock is held for as short as possible; "seq" stands between "reasons" and "time_ms" in the order of
keys, so the two parts around it are plain byte strings.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from fairlead.core.canonical import canonical
from fairlead.core.invariant import require
from fairlead.core.units import INTEGER_MAX
from fairlead.ports.ledger import Draft, Entry
from fairlead.schema.border import DOCUMENT_BYTES_MAX

RESERVED = ("ledger.", "key.")
BLOBS = "blobs"
"""In the body of an entry with blobs: their digests and sizes."""
_KIND = re.compile(r"[a-z][a-z0-9-]*(\.[a-z][a-z0-9-]*)+")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Prepared(NamedTuple):
    """A draft that waits for its number."""

    kind: str
    plan_id: str | None
    effect: str | None
    front: bytes
    back: bytes
    blobs: tuple[tuple[str, bytes], ...] = ()
    """Large documents under their digests, stored with the entry."""

    def data(self, seq: int) -> bytes:
        """The canonical bytes of entry `seq`."""
        return b"%b%d%b" % (self.front, seq, self.back)


class Row(msgspec.Struct, forbid_unknown_fields=True):
    """The fields of an entry's canonical JSON, in their order."""

    author: str
    body: dict[str, object]
    effect: str | None
    input_digest: str | None
    kind: str
    plan_id: str | None
    reasons: list[str]
    seq: int
    time_ms: int
    version: int


class Index(msgspec.Struct):
    """What a store keeps beside the bytes to find them by; a verifier compares the two."""

    effect: str | None
    kind: str
    plan_id: str | None
    seq: int


_row = msgspec.json.Decoder(Row)
index_of = msgspec.json.Decoder(Index).decode


class NotAnEntry(ValueError):
    """Bytes that are no entry."""


def prepare(draft: Draft, *, own: bool = False) -> Prepared:
    """Check and render a draft; `own` for the ledger's own kinds.

    Raises `NotCanonical` for a body that JSON cannot carry.
    """
    require(_is_kind(draft.kind), "a kind is words joined by dots")
    require(own or not draft.kind.startswith(RESERVED), "the ledger's own kinds are its own")
    require(0 <= draft.time_ms <= INTEGER_MAX, "a time is milliseconds since 1970")
    require(draft.version >= 1, "versions count from 1")
    require(draft.effect is None or draft.plan_id is not None, "an effect belongs to a plan")
    # PostgreSQL has no text with a NUL; what one adapter cannot keep, none may.
    names = (draft.plan_id or "") + (draft.effect or "")
    require("\0" not in names, "plans and effects have no NUL in their names")
    digest = draft.input_digest
    require(digest is None or _DIGEST.fullmatch(digest) is not None, "a digest is 64 hex digits")
    blobs = tuple((sha256(data).hexdigest(), data) for data in draft.blobs)
    body = _naming(draft.body, blobs) if blobs else draft.body
    front = canonical(
        {
            "author": draft.author,
            "body": body,
            "effect": draft.effect,
            "input_digest": digest,
            "kind": draft.kind,
            "plan_id": draft.plan_id,
            "reasons": draft.reasons,
        }
    )
    return Prepared(
        draft.kind,
        draft.plan_id,
        draft.effect,
        front=front[:-1] + b',"seq":',
        back=b',"time_ms":%d,"version":%d}' % (draft.time_ms, draft.version),
        blobs=blobs,
    )


def _naming(body: dict[str, Any], blobs: Sequence[tuple[str, bytes]]) -> dict[str, Any]:
    """The body with the names of what is kept beside it, by which the tree covers that too."""
    require(BLOBS not in body, "the ledger names an entry's blobs itself")
    for _, data in blobs:
        # Each becomes a line of an export, which must be read back.
        require(len(data) < DOCUMENT_BYTES_MAX, f"a blob has less than {DOCUMENT_BYTES_MAX} bytes")
        require(b"\n" not in data, "a blob is one line of canonical JSON")
    return {**body, BLOBS: {digest: len(data) for digest, data in blobs}}


def blobs_named(entry: Entry) -> Mapping[str, int]:
    """The digests and sizes of what an entry keeps beside the log."""
    named = entry.body.get(BLOBS)
    return named if isinstance(named, dict) else {}


@lru_cache(maxsize=1_024)
def _is_kind(text: str) -> bool:
    return _KIND.fullmatch(text) is not None


def parse(data: bytes) -> Entry:
    """The entry that stored bytes are; raises `NotAnEntry`."""
    try:
        row = _row.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotAnEntry(str(error)) from error
    return Entry(
        seq=row.seq,
        kind=row.kind,
        time_ms=row.time_ms,
        author=row.author,
        body=row.body,
        plan_id=row.plan_id,
        effect=row.effect,
        input_digest=row.input_digest,
        version=row.version,
        reasons=tuple(row.reasons),
        data=data,
    )
