"""Where a ledger is kept, as reading and verifying see it: in memory, or in tables.

`SqlStore` asks its few questions in SQL that SQLite and PostgreSQL share; a source runs them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, NamedTuple, Protocol

from fairlead.core.audit import Head, SignedHead, TreeNode
from fairlead.core.audit.tree import HASH_BYTES
from fairlead.core.invariant import known
from fairlead.ports.faults import PermanentFault
from fairlead.ports.ledger import Damaged, ProjectionSnapshot

CHECKPOINT_EVERY = 10_000
"""A signed head is kept each time the log passes a multiple of this: an opening verifies at most
about so many entries, 0.1 s."""


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


class StoredBlob(NamedTuple):
    """A large document, and the last entry that it belongs to."""

    digest: str
    data: bytes
    seq: int


Effect = tuple[str, str]
"""A plan and one of its effects."""
Row = tuple[Any, ...]


def passes_checkpoint(old_size: int, new_size: int) -> bool:
    return new_size // CHECKPOINT_EVERY > old_size // CHECKPOINT_EVERY


class MemoryStore:
    """Lists and dictionaries where others have tables; a copy of it is a view."""

    def __init__(self) -> None:
        self.table: list[StoredRow] = []
        self.effects: dict[Effect, int] = {}
        self.heads: list[SignedHead] = []
        self.blob_data: dict[str, bytes] = {}
        self.blob_entry: dict[str, int | None] = {}
        """The last entry that has a blob; None: kept for its own sake."""
        self.snapshots: dict[str, ProjectionSnapshot] = {}
        self.head: SignedHead | None = None
        self.archived_to = 0

    def take(self, rows: Sequence[StoredRow], head: SignedHead, blobs: list[StoredBlob]) -> None:
        self.table += rows
        for row in rows:
            if row.plan_id is not None and row.effect is not None:
                self.effects[row.plan_id, row.effect] = row.seq
        for blob in blobs:
            self.blob_data[blob.digest] = blob.data
            if self.blob_entry.get(blob.digest, 0) is not None:
                self.blob_entry[blob.digest] = blob.seq
        if passes_checkpoint(rows[0].seq - 1, head.head.size):
            self.heads.append(head)
        self.head = head

    def kept(self) -> Kept:
        return Kept(known(self.head, "a ledger in memory begins when it is made"), self.archived_to)

    def found(self, seq: int) -> Found | None:
        return Found(seq, self.table[seq - 1].data) if 1 <= seq <= len(self.table) else None

    def select(
        self, *, after: int, limit: int, kind: str | None, plan_id: str | None
    ) -> list[Found]:
        rows = (
            Found(row.seq, row.data)
            for row in self.table[max(after, 0) :]
            if kind in (None, row.kind) and plan_id in (None, row.plan_id)
        )
        return [row for row, _ in zip(rows, range(limit), strict=False)]

    def newest(self, kind: str) -> Found | None:
        rows = (Found(row.seq, row.data) for row in reversed(self.table) if row.kind == kind)
        return next(rows, None)

    def blob(self, digest: str) -> bytes | None:
        return self.blob_data.get(digest)

    def snapshot(self, name: str) -> ProjectionSnapshot | None:
        return self.snapshots.get(name)

    def nodes(self, nodes: Sequence[TreeNode]) -> list[bytes]:
        return [node.among(self.table[node.last_leaf].nodes) for node in nodes]

    @contextmanager
    def view(self) -> Iterator["MemoryStore"]:
        view = copy(self)
        view.table, view.heads = list(self.table), list(self.heads)
        view.blob_data = dict(self.blob_data)
        yield view

    def checkpoints(self, *, above: int) -> list[SignedHead]:
        return [head for head in self.heads if head.head.size > above]

    def rows(self, *, after: int) -> Iterator[StoredRow]:
        return iter(self.table[after:])

    def blobs(self) -> Iterator[tuple[str, bytes]]:
        return iter(self.blob_data.items())

    def complaint(self) -> str:
        return ""

    def close(self) -> None:
        """Nothing to let go of."""


class SqlSource(Protocol):
    """Runs queries in which `?` stands for a value; each sees the newest durable state."""

    def query(self, text: str, *values: object) -> list[Row]:
        """All rows."""

    def view(self) -> AbstractContextManager["SqlView"]:
        """The whole at one moment, on a connection that does not hold up the others."""

    def close(self) -> None:
        """Let go."""


Query = Callable[..., Iterable[Row]]
"""A query's text and values to its rows."""
_HEAD = "ledger, epoch, size, root, time_ms, key_id, signature"
_EXCLUDED = ", ".join(f"excluded.{name}" for name in _HEAD.split(", "))
_MARKS = ", ".join("?" for _ in _HEAD.split(", "))
_STORE_HEAD = (
    f"INSERT INTO kept (one, {_HEAD}) VALUES (1, {_MARKS}) ON CONFLICT (one) "
    f"DO UPDATE SET ({_HEAD}) = ({_EXCLUDED})"
)
_STORE_CHECKPOINT = f"INSERT INTO checkpoints ({_HEAD}) VALUES ({_MARKS})"


class SqlStore:
    """Lookups in tables. May be used from several threads."""

    def __init__(self, source: SqlSource) -> None:
        self._source, self._query = source, source.query
        self.view, self.close = source.view, source.close

    def kept(self) -> Kept:
        return _begun(self._query)

    def found(self, seq: int) -> Found | None:
        return _first(self._query("SELECT seq, data FROM entries WHERE seq = ?", seq))

    def select(
        self, *, after: int, limit: int, kind: str | None, plan_id: str | None
    ) -> list[Found]:
        wanted = {"kind": kind, "plan_id": plan_id}
        given = {name: value for name, value in wanted.items() if value is not None}
        where = "".join(f" AND {name} = ?" for name in given)
        text = f"SELECT seq, data FROM entries WHERE seq > ?{where} ORDER BY seq LIMIT ?"
        return [Found(*row) for row in self._query(text, after, *given.values(), limit)]

    def newest(self, kind: str) -> Found | None:
        text = "SELECT seq, data FROM entries WHERE kind = ? ORDER BY seq DESC LIMIT 1"
        return _first(self._query(text, kind))

    def nodes(self, nodes: Sequence[TreeNode]) -> list[bytes]:
        return read_nodes(self._query, nodes)

    def blob(self, digest: str) -> bytes | None:
        rows = self._query("SELECT data FROM blobs WHERE digest = ?", digest)
        return rows[0][0] if rows else None

    def snapshot(self, name: str) -> ProjectionSnapshot | None:
        rows = self._query("SELECT name, seq, state FROM snapshots WHERE name = ?", name)
        return ProjectionSnapshot(*rows[0]) if rows else None


class SqlView:
    """The whole ledger at one moment, to be streamed; nothing that comes later is in it."""

    def __init__(self, stream: Query, *, hint: str = "", complaint: Callable[[], str]) -> None:
        self._stream, self._hint, self.complaint = stream, hint, complaint
        """`complaint`: what the database finds wrong with itself, its indexes above all."""

    def kept(self) -> Kept:
        return _begun(self._stream)

    def checkpoints(self, *, above: int) -> list[SignedHead]:
        text = f"SELECT {_HEAD} FROM checkpoints WHERE size > ? ORDER BY size"
        return [_signed_head(row) for row in self._stream(text, above)]

    def rows(self, *, after: int) -> Iterator[StoredRow]:
        text = f"SELECT seq, kind, plan_id, effect, nodes, data FROM entries {self._hint}"
        return map(StoredRow._make, self._stream(f"{text} WHERE seq > ? ORDER BY seq", after))

    def blobs(self) -> Iterator[tuple[str, bytes]]:
        return ((row[0], row[1]) for row in self._stream("SELECT digest, data FROM blobs"))


Store = MemoryStore | SqlStore
View = MemoryStore | SqlView


def read_kept(query: Query) -> Kept | None:
    """The head, unless the ledger was never begun."""
    for row in query(f"SELECT archived_to, {_HEAD} FROM kept"):
        return Kept(_signed_head(row[1:]), row[0])
    return None


def read_nodes(query: Query, nodes: Sequence[TreeNode]) -> list[bytes]:
    """Hashes of the tree's nodes, in the order asked; `Damaged` if one is missing."""
    seqs = sorted({node.last_leaf + 1 for node in nodes})
    marks = ", ".join("?" * len(seqs))
    completed: Mapping[int, bytes] = {}
    if seqs:
        rows = query(f"SELECT seq, nodes FROM entries WHERE seq IN ({marks})", *seqs)
        completed = {row[0]: row[1] for row in rows}
    try:
        hashes = [node.among(completed[node.last_leaf + 1]) for node in nodes]
    except KeyError as error:
        raise Damaged(f"entry {error} of the tree is missing") from error
    if any(len(hash) != HASH_BYTES for hash in hashes):
        raise Damaged("nodes of the tree are missing")
    return hashes


def store_head(execute: Callable[..., object], signed: SignedHead, old_size: int) -> None:
    """The new head, inside the caller's transaction; kept for good where it passes a checkpoint."""
    head = signed.head
    row = (head.ledger, head.epoch, head.size, head.root, head.time_ms, head.key_id)
    execute(_STORE_HEAD, *row, signed.signature)
    if passes_checkpoint(old_size, head.size):
        execute(_STORE_CHECKPOINT, *row, signed.signature)


STORE_BLOB = (
    "INSERT INTO blobs (digest, data, seq) VALUES (?, ?, ?) ON CONFLICT (digest) "
    "DO UPDATE SET seq = excluded.seq WHERE blobs.seq IS NOT NULL"
)
KEEP_BLOB = (
    "INSERT INTO blobs (digest, data) VALUES (?, ?) ON CONFLICT (digest) DO UPDATE SET seq = NULL"
)
KEEP_SNAPSHOT = (
    "INSERT INTO snapshots VALUES (?, ?, ?) ON CONFLICT (name) "
    "DO UPDATE SET seq = excluded.seq, state = excluded.state"
)


def drop_content(execute: Callable[..., object], last: int, kinds: Sequence[str]) -> None:
    """Forget the bytes of entries up to `last`, but for these kinds, and their blobs."""
    marks = ", ".join("?" * len(kinds))
    execute(
        "UPDATE entries SET data = NULL WHERE seq <= ? AND data IS NOT NULL "
        f"AND kind NOT IN ({marks})",
        last,
        *kinds,
    )
    execute("DELETE FROM blobs WHERE seq <= ?", last)
    execute("UPDATE kept SET archived_to = ?", last)


def _first(rows: Sequence[Row]) -> Found | None:
    return Found(*rows[0]) if rows else None


def _begun(query: Query) -> Kept:
    kept = read_kept(query)
    if kept is None:
        raise Damaged("there is no head: the ledger was never begun, or lost it")
    return kept


def _signed_head(row: Sequence[Any]) -> SignedHead:
    ledger, epoch, size, root, time_ms, key_id, signature = row
    head = Head(ledger=ledger, epoch=epoch, size=size, root=root, time_ms=time_ms, key_id=key_id)
    return SignedHead(head, signature)


class Migration(NamedTuple):
    """A numbered SQL file, `0001_ledger.sql`, applied once in a transaction of its own."""

    number: int
    name: str
    sql: str


def missing_migrations(database: str, applied: int) -> list[Migration]:
    """The files of a database (`sqlite`, `postgres`) after `applied`, the last one that it has."""
    found = []
    for file in files("fairlead.ledger").joinpath("migrations", database).iterdir():
        number, _, name = file.name.removesuffix(".sql").partition("_")
        found.append(Migration(int(number), name, file.read_text()))
    if applied > max(migration.number for migration in found):
        raise PermanentFault(
            f"the ledger was written by a later release (its tables are at {applied}, "
            f"this release knows {len(found)})"
        )
    return sorted(found)[applied:]
