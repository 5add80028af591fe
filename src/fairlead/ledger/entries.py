"""Entries as bytes, and the one step that all adapters share: number drafts, grow the tree, sign.

A draft becomes canonical JSON in which only the number is missing, which is known last, under the
writer's lock. "seq" stands between "reasons" and "time_ms" in the order of keys, so the two parts
around it are plain byte strings. Nothing is stored here: an adapter calls `number` under its lock,
stores what it returns in one transaction, and takes over the position when that is durable.
"""

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import msgspec

from fairlead.core.audit import Frontier, Head, SignedHead, leaf_hash
from fairlead.core.canonical import canonical
from fairlead.core.invariant import require
from fairlead.core.units import INTEGER_MAX
from fairlead.host.clock import now_ms
from fairlead.ledger.keys import KeyDirectory, sign_head
from fairlead.ledger.statements import CREATED, EPOCH, ROTATED, statement
from fairlead.ledger.store import STORE_BLOB, Effect, Execute, Found, StoredRow, store_head
from fairlead.ports.ledger import BLOBS, Archived, Blob, Damaged, Draft, Entry, EntryFields

T = TypeVar("T")
RESERVED = ("ledger.", "key.")
_FRONT = ("author", "effect", "input_digest", "kind", "plan_id", "reasons")
_front = attrgetter(*_FRONT)
_is_kind = lru_cache(1_024)(re.compile(r"[a-z][a-z0-9-]*(\.[a-z][a-z0-9-]*)+").fullmatch)
_is_digest = re.compile(r"[0-9a-f]{64}").fullmatch


class Prepared(NamedTuple):
    """A draft that waits for its number."""

    kind: str
    plan_id: str | None
    effect: str | None
    front: bytes
    back: bytes
    blobs: tuple[tuple[str, bytes], ...] = ()
    """Compressed documents under their digests, stored with the entry."""

    def data(self, seq: int) -> bytes:
        return b"%b%d%b" % (self.front, seq, self.back)


class Index(msgspec.Struct):
    """What a store keeps beside the bytes to find them by; a verifier compares the two."""

    effect: str | None
    kind: str
    plan_id: str | None
    seq: int


_fields = msgspec.json.Decoder(EntryFields)


def prepare(draft: Draft, *, own: bool = False) -> Prepared:
    """Check and render a draft (`own`: of the ledger's own kinds); raises `NotCanonical`."""
    require(bool(_is_kind(draft.kind)), "a kind is words joined by dots")
    require(own or not draft.kind.startswith(RESERVED), "the ledger's own kinds are its own")
    require(0 <= draft.time_ms <= INTEGER_MAX, "a time is milliseconds since 1970")
    require(draft.version >= 1, "versions count from 1")
    require(draft.effect is None or draft.plan_id is not None, "an effect belongs to a plan")
    # PostgreSQL has no text with a NUL; what one adapter cannot keep, none may.
    plain = "\0" not in (draft.plan_id or "") + (draft.effect or "")
    require(plain, "plans and effects have no NUL in their names")
    digest = draft.input_digest
    require(digest is None or bool(_is_digest(digest)), "a digest is 64 hex digits")
    body = _naming(draft.body, draft.blobs) if draft.blobs else draft.body
    front = canonical({**dict(zip(_FRONT, _front(draft), strict=True)), "body": body})
    back = b',"time_ms":%d,"version":%d}' % (draft.time_ms, draft.version)
    names = (draft.kind, draft.plan_id, draft.effect)
    blobs = tuple((blob.digest, blob.packed) for blob in draft.blobs)
    return Prepared(*names, front[:-1] + b',"seq":', back, blobs)


def _naming(body: dict[str, Any], blobs: Sequence[Blob]) -> dict[str, Any]:
    """The body with the names of what is kept beside it, by which the tree covers that too."""
    require(BLOBS not in body, "the ledger names an entry's blobs itself")
    return {**body, BLOBS: {blob.digest: blob.size for blob in blobs}}


def parse(data: bytes, seq: int) -> Entry:
    """The entry that stored bytes are, which should be that of this number; raises `Damaged`."""
    return Entry(**msgspec.structs.asdict(_decoded(_fields, data, seq)), data=data)


def _decoded(decoder: msgspec.json.Decoder[T], data: bytes, seq: int) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Damaged(f"entry {seq} cannot be read: {error}", seq) from error


index_of = partial(_decoded, msgspec.json.Decoder(Index))


def entry_of(found: Found) -> Entry:
    if found.data is None:
        raise Archived(f"the content of entry {found.seq} was moved to an archive segment")
    entry = parse(found.data, found.seq)
    if entry.seq != found.seq:
        raise Damaged(f"entry {found.seq} says that it is entry {entry.seq}")
    return entry


class Position(NamedTuple):
    """Where a ledger stands: all that appending needs to know."""

    signed: SignedHead
    frontier: Frontier


class Numbered(NamedTuple):
    """What to store in one transaction, the position after it, and an entry for each draft."""

    position: Position
    answers: list[Found]
    rows: Sequence[StoredRow] = ()
    blobs: Sequence[tuple[str, bytes, int]] = ()
    """Compressed documents under their digests, each with the entry that it belongs to."""


def number(
    position: Position,
    drafts: Sequence[Prepared],
    known: Mapping[Effect, Found],
    signers: KeyDirectory,
    *,
    time_ms: int,
) -> Numbered:
    """Put drafts behind what is there. `time_ms` is the newest one's.

    Effects that are recorded already, in the ledger (`known`) or earlier in the same batch, are
    answered with their entry.
    """
    seen, answers, fresh = dict(known), list[Found](), list[tuple[Prepared, int, bytes]]()
    for draft in drafts:
        effect = (draft.plan_id, draft.effect)
        found = seen.get(effect) if draft.effect is not None else None
        if found is None:
            seq = position.frontier.size + len(fresh) + 1
            fresh.append((draft, seq, draft.data(seq)))
            found = seen[effect] = Found(seq, fresh[-1][2])
        answers.append(found)
    if not fresh:
        return Numbered(position, answers)
    frontier, completed = position.frontier.extend(leaf_hash(data) for *_, data in fresh)
    head, root = position.signed.head, frontier.root().hex()
    # Of several writers one may have a clock that is behind: the time of heads never goes back.
    head = replace(head, size=frontier.size, root=root, time_ms=max(head.time_ms, time_ms))
    rows = [
        StoredRow(seq, draft.kind, draft.plan_id, draft.effect, nodes, data)
        for (draft, seq, data), nodes in zip(fresh, completed, strict=True)
    ]
    blobs = [(*blob, seq) for draft, seq, _ in fresh for blob in draft.blobs]
    for draft, seq, data in fresh:
        if draft.kind == ROTATED:  # the ledger's own entries change what heads say
            head = replace(head, key_id=str(parse(data, seq).body["new_key_id"]))
        elif draft.kind == EPOCH:
            head = replace(head, epoch=head.epoch + 1)
    position = Position(sign_head(head, signers.load(head.key_id)), frontier)
    return Numbered(position, answers, rows, blobs)


def store_beside(execute: Execute, done: Numbered, *, heads_every: int | None = None) -> None:
    """The blobs and the head of a step, after its rows, inside the caller's transaction."""
    for blob in done.blobs:
        execute(STORE_BLOB, *blob)
    store_head(execute, done.position.signed, done.rows[0].seq - 1, every=heads_every)


def first_entry(signers: KeyDirectory, ledger: str = "", time_ms: int | None = None) -> Numbered:
    """What begins a ledger: its first entry, which introduces it and its key."""
    key, ledger = signers.create(), ledger or secrets.token_hex(8)
    time_ms = now_ms() if time_ms is None else time_ms
    body = {"format": 1, "ledger": ledger, "public_key": key.public_key.hex()}
    draft = statement(CREATED, ledger, body, key, time_ms=time_ms, author="ledger")
    head = Head(ledger=ledger, epoch=0, size=0, root="", time_ms=time_ms, key_id=key.key_id)
    start = Position(SignedHead(head, ""), Frontier())
    return number(start, [prepare(draft, own=True)], {}, signers, time_ms=time_ms)
