"""What reading and verifying need of a place where a ledger is kept; SQLite, PostgreSQL or memory.

An adapter answers these few questions, and `reading.Reading` makes the port of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from fairlead.core.audit import Head, Node, SignedHead
from fairlead.core.audit.tree import HASH_BYTES
from fairlead.ports.ledger import Damaged, Snapshot


class StoredRow(NamedTuple):
    """One entry as it is kept: what it is found by, and its bytes (None: moved to an archive)."""

    seq: int
    kind: str
    plan_id: str | None
    effect: str | None
    nodes: bytes
    """The nodes of the tree that the entry completes: its leaf, then one per level above."""
    data: bytes | None


class Found(NamedTuple):
    """One entry that was looked up."""

    seq: int
    data: bytes | None


@dataclass(frozen=True, slots=True)
class Kept:
    """The one changing row of a ledger: its head, and how far its content was archived."""

    head: SignedHead
    archived_to: int


HEAD_COLUMNS = "ledger, epoch, size, root, time_ms, key_id, signature"
"""Of a signed head, in tables."""


def signed_head(row: Sequence[Any]) -> SignedHead:
    """A head from its columns."""
    ledger, epoch, size, root, time_ms, key_id, signature = row
    head = Head(ledger=ledger, epoch=epoch, size=size, root=root, time_ms=time_ms, key_id=key_id)
    return SignedHead(head, signature)


def pick(nodes: Sequence[Node], completed: Mapping[int, bytes]) -> list[bytes]:
    """The hashes of nodes, from what is kept with the entries that complete them, by number."""
    try:
        hashes = [node.among(completed[node.last_leaf + 1]) for node in nodes]
    except KeyError as error:
        raise Damaged(f"entry {error} of the tree is missing") from error
    if any(len(each) != HASH_BYTES for each in hashes):
        raise Damaged("nodes of the tree are missing")
    return hashes


def head_row(signed: SignedHead) -> tuple[Any, ...]:
    """The columns of a head."""
    head = signed.head
    return (
        head.ledger,
        head.epoch,
        head.size,
        head.root,
        head.time_ms,
        head.key_id,
        signed.signature,
    )


class View(Protocol):
    """The whole ledger at one moment, to be streamed; nothing that comes later is in it."""

    def kept(self) -> Kept:
        """The head at that moment."""

    def checkpoints(self, *, above: int) -> list[SignedHead]:
        """The signed heads that were kept on the way, by size."""

    def rows(self, *, after: int) -> Iterator[StoredRow]:
        """Entries with a number above `after`, in order."""

    def blobs(self) -> Iterator[tuple[str, bytes]]:
        """Every blob with the digest it is kept under."""

    def complaint(self) -> str:
        """What the database finds wrong with itself, its indexes above all; or nothing."""


class Store(Protocol):
    """Lookups. Each sees the newest durable state."""

    def kept(self) -> Kept:
        """The head."""

    def found(self, seq: int) -> Found | None:
        """One entry."""

    def select(
        self, *, after: int, limit: int, kind: str | None, plan_id: str | None
    ) -> list[Found]:
        """Entries in order."""

    def newest(self, kind: str) -> Found | None:
        """The last entry of a kind."""

    def nodes(self, nodes: Sequence[Node]) -> list[bytes]:
        """Hashes of the tree's nodes, in the order asked; `Damaged` if one is missing."""

    def blob(self, digest: str) -> bytes | None:
        """A blob."""

    def snapshot(self, name: str) -> Snapshot | None:
        """A projection's state."""

    def view(self) -> AbstractContextManager[View]:
        """The whole at one moment."""

    def close(self) -> None:
        """Let go."""
