"""Numbers prepared drafts, grows the tree, signs the head: the one step that all adapters share.

Nothing is stored here. An adapter calls it under its writer's lock, stores what it returns in one
transaction, and takes over the new position only when that is durable.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from fairlead.core.audit import Frontier, Head, SignedHead, leaf_hash
from fairlead.ledger.entries import Prepared, parse
from fairlead.ledger.keys import Signers, sign_head
from fairlead.ledger.statements import EPOCH, ROTATED
from fairlead.ledger.store import Found


@dataclass(frozen=True, slots=True)
class Position:
    """Where a ledger stands: all that appending needs to know."""

    ledger: str
    epoch: int
    key_id: str
    frontier: Frontier


Effect = tuple[str, str]
"""A plan and one of its effects."""

Lookup = Callable[[Sequence[Effect]], Mapping[Effect, Found]]
"""Answers which of these effects are recorded already, and where."""


class Sorted(NamedTuple):
    """Drafts without those whose effect is recorded already."""

    fresh: list[Prepared]
    places: list[Found | int]
    """For each draft given: the entry that was there, or its place among the fresh ones."""

    def found(self, rows: Sequence["Numbered"]) -> list[Found]:
        """One entry for each draft given, once the fresh ones are numbered."""
        return [
            Found(rows[place].seq, rows[place].data) if isinstance(place, int) else place
            for place in self.places
        ]


class Numbered(NamedTuple):
    """A row to be stored."""

    seq: int
    kind: str
    plan_id: str | None
    effect: str | None
    nodes: bytes
    data: bytes


class NumberedBlob(NamedTuple):
    """A large document to be stored, and the entry that it belongs to."""

    digest: str
    data: bytes
    seq: int


@dataclass(frozen=True, slots=True)
class Sequenced:
    """What to store, and the position after it."""

    position: Position
    rows: list[Numbered]
    head: SignedHead
    blobs: list[NumberedBlob]


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
        Numbered(seq, draft.kind, draft.plan_id, draft.effect, nodes, text)
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
        NumberedBlob(digest, blob, seq)
        for seq, draft in enumerate(drafts, start=first)
        for digest, blob in draft.blobs
    ]
    return Sequenced(after, rows, signed, blobs)


def _follow(position: Position, row: Numbered) -> Position:
    """The ledger's own entries change what later heads say."""
    if row.kind == ROTATED:
        return replace(position, key_id=str(parse(row.data).body["new_key_id"]))
    return replace(position, epoch=position.epoch + 1)
