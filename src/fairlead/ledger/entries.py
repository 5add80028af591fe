"""Entries as bytes, and the one step that all adapters share: number drafts, grow the tree, sign.

A draft becomes canonical JSON in which only the number is missing. The number is known last, under
the writer's lock; everything else is rendered before, so that the lock is held for as short as
possible. "seq" stands between "reasons" and "time_ms" in the order of keys, so the two parts around
it are plain byte strings.
Nothing is stored here. An adapter calls `sequence` under its writer's lock, stores what it returns
in one transaction, and takes over the new position only when that is durable.
"""

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from fairlead.core.audit import Frontier, Head, SignedHead, leaf_hash
from fairlead.core.canonical import canonical
from fairlead.core.invariant import require
from fairlead.core.units import INTEGER_MAX
from fairlead.host.clock import now_ms
from fairlead.ledger.keys import Signers, sign_head
from fairlead.ledger.statements import EPOCH, ROTATED, created
from fairlead.ledger.store import Effect, Found, StoredBlob, StoredRow
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
        return b"%b%d%b" % (self.front, seq, self.back)


class _Fields(msgspec.Struct, forbid_unknown_fields=True):
    """The fields of an entry's canonical JSON, in their order."""

    author: str
    body: dict[str, Any]
    effect: str | None
    input_digest: str | None
    kind: str
    plan_id: str | None
    reasons: tuple[str, ...]
    seq: int
    time_ms: int
    version: int


class Index(msgspec.Struct):
    """What a store keeps beside the bytes to find them by; a verifier compares the two."""

    effect: str | None
    kind: str
    plan_id: str | None
    seq: int


_row = msgspec.json.Decoder(_Fields)
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
    return Entry(**msgspec.structs.asdict(row), data=data)


@dataclass(frozen=True, slots=True)
class Position:
    """Where a ledger stands: all that appending needs to know."""

    ledger: str
    epoch: int
    key_id: str
    frontier: Frontier


Lookup = Callable[[Sequence[Effect]], Mapping[Effect, Found]]
"""Answers which of these effects are recorded already, and where."""


class Sorted(NamedTuple):
    """Drafts without those whose effect is recorded already."""

    fresh: list[Prepared]
    places: list[Found | int]
    """For each draft given: the entry that was there, or its place among the fresh ones."""

    def found(self, rows: Sequence[StoredRow]) -> list[Found]:
        """One entry for each draft given, once the fresh ones are numbered."""
        return [
            Found(rows[place].seq, rows[place].data) if isinstance(place, int) else place
            for place in self.places
        ]


@dataclass(frozen=True, slots=True)
class Sequenced:
    """What to store, and the position after it."""

    position: Position
    rows: list[StoredRow]
    head: SignedHead
    blobs: list[StoredBlob]


def nothing_recorded(_: Sequence[Effect]) -> Mapping[Effect, Found]:
    """A lookup that knows of nothing."""
    return {}


def sort_out(drafts: Sequence[Prepared], lookup: Lookup) -> Sorted:
    """Leave out effects that are recorded already, in the ledger or earlier in the same batch."""
    wanted = [
        (draft.plan_id, draft.effect)
        for draft in drafts
        if draft.plan_id is not None and draft.effect is not None
    ]
    if not wanted:
        return Sorted(list(drafts), list(range(len(drafts))))
    known: dict[Effect, Found | int] = dict(lookup(wanted))
    fresh, places = list[Prepared](), list[Found | int]()
    for draft in drafts:
        place: Found | int = len(fresh)
        if draft.plan_id is not None and draft.effect is not None:
            place = known.setdefault((draft.plan_id, draft.effect), place)
        if place == len(fresh):
            fresh.append(draft)
        places.append(place)
    return Sorted(fresh, places)


def sequence(
    position: Position, drafts: Sequence[Prepared], signers: Signers, *, time_ms: int
) -> Sequenced:
    """Put drafts behind what is there. `time_ms` is the newest one's."""
    first = position.frontier.size + 1
    data = [draft.data(seq) for seq, draft in enumerate(drafts, start=first)]
    frontier, completed = position.frontier.extend(map(leaf_hash, data))
    rows = [
        StoredRow(seq, draft.kind, draft.plan_id, draft.effect, nodes, text)
        for seq, (draft, nodes, text) in enumerate(
            zip(drafts, completed, data, strict=True), start=first
        )
    ]
    after = replace(position, frontier=frontier)
    for row in rows:
        if row.kind in (ROTATED, EPOCH):
            after = _follow(after, row)
    head = Head(
        ledger=after.ledger,
        epoch=after.epoch,
        size=frontier.size,
        root=frontier.root().hex(),
        time_ms=time_ms,
        key_id=after.key_id,
    )
    signed = sign_head(head, signers.load(after.key_id))
    blobs = [
        StoredBlob(digest, blob, seq)
        for seq, draft in enumerate(drafts, start=first)
        for digest, blob in draft.blobs
    ]
    return Sequenced(after, rows, signed, blobs)


def _follow(position: Position, row: StoredRow) -> Position:
    """The ledger's own entries change what later heads say."""
    if row.kind == ROTATED:
        return replace(position, key_id=str(parse(row.data or b"").body["new_key_id"]))
    return replace(position, epoch=position.epoch + 1)


def first_entry(signers: Signers, ledger: str | None, time_ms: int | None) -> Sequenced:
    """What begins a ledger: its first entry, which introduces it and its key. None: new, now."""
    key, ledger = signers.create(), ledger or secrets.token_hex(8)
    time_ms = now_ms() if time_ms is None else time_ms
    draft = prepare(created(ledger, key, time_ms=time_ms), own=True)
    start = Position(ledger, 0, key.key_id, Frontier())
    return sequence(start, [draft], signers, time_ms=time_ms)
