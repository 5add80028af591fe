"""The tables of a ledger, in SQL that SQLite and PostgreSQL share; a source runs it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields
from functools import cache
from importlib.resources import files as resources
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from fairlead.core.audit import Head, SignedHead, TreeNode
from fairlead.core.audit.tree import HASH_BYTES
from fairlead.core.units import INTEGER_MAX
from fairlead.ports.faults import PermanentFault
from fairlead.ports.ledger import Damaged

if TYPE_CHECKING:
    from fairlead.ledger.entries import Numbered

C = TypeVar("C")
T = TypeVar("T")
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


Effect = tuple[str | None, str | None]
"""A plan and one of its effects."""
Row = tuple[Any, ...]


Execute = Callable[..., Iterable[Row]]
"""A text, in which `?` stands for a value, and its values to its rows."""


class SqlSession(Protocol[C]):
    """One connection to the tables, used by one thread at a time."""

    def query(self, text: str, *values: object) -> list[Row]:
        """All rows, of the newest durable state."""

    def view(self) -> AbstractContextManager["SqlView"]:
        """The whole at one moment, on a connection that does not hold up the others."""

    def run(self, doing: str, work: Callable[[C], T]) -> T:
        """Do some work, which must bear being done twice."""

    def changing(self, connection: C) -> AbstractContextManager[Execute]:
        """A transaction beside which no other appends: all of it, durably, or nothing."""

    def store(self, connection: C, done: "Numbered") -> None:
        """All rows of a step, inside such a transaction."""

    def close(self) -> None:
        """Let go."""


_COLUMNS = (*(field.name for field in fields(Head)), "signature")
_fields = attrgetter(*_COLUMNS[:-1])
_HEAD, _MARKS = ", ".join(_COLUMNS), ", ".join("?" * len(_COLUMNS))
_EXCLUDED = ", ".join(f"excluded.{name}" for name in _COLUMNS)
_STORE_HEAD = (
    f"INSERT INTO kept (one, {_HEAD}) VALUES (1, {_MARKS}) ON CONFLICT (one) "
    f"DO UPDATE SET ({_HEAD}) = ({_EXCLUDED})"
)
_STORE_CHECKPOINT = f"INSERT INTO checkpoints ({_HEAD}) VALUES ({_MARKS})"


class SqlView:
    """The whole ledger at one moment, to be streamed; nothing that comes later is in it."""

    def __init__(
        self, stream: Execute, *, hint: str = "", complaint: Callable[[], str] = lambda: ""
    ) -> None:
        self._stream, self._hint, self.complaint = stream, hint, complaint
        """`complaint`: what the database finds wrong with itself, its indexes above all."""

    def kept(self) -> tuple[SignedHead, int]:
        return read_kept(self._stream)

    def checkpoints(self, *, above: int) -> list[SignedHead]:
        text = f"SELECT {_HEAD} FROM checkpoints WHERE size > ? ORDER BY size"
        return [_signed_head(row) for row in self._stream(text, above)]

    def rows(self, *, after: int) -> Iterator[StoredRow]:
        text = f"SELECT seq, kind, plan_id, effect, nodes, data FROM entries {self._hint}"
        return map(_stored_row, self._stream(f"{text} WHERE seq > ? ORDER BY seq", after))

    def snapshots(self) -> Iterator[tuple[str, int, bytes]]:
        rows = self._stream("SELECT name, seq, state FROM snapshots ORDER BY name")
        return ((row[0], row[1], row[2]) for row in rows)

    def blobs(self) -> Iterator[tuple[str, bytes]]:
        return ((row[0], row[1]) for row in self._stream("SELECT digest, data FROM blobs"))


def _stored_row(found: Row) -> StoredRow:
    """Raises `Damaged` for another type than it was written with: who edits a file may choose."""
    row = StoredRow._make(found)
    shaped = isinstance(row.nodes, bytes) and isinstance(row.data, bytes | None)
    if not (shaped and isinstance(row.seq, int)):
        raise Damaged(f"entry {row.seq} is not stored as it was written")
    return row


def read_kept(query: Execute) -> tuple[SignedHead, int]:
    """The head, and the last entry whose content was archived."""
    for row in query(f"SELECT archived_to, {_HEAD} FROM kept"):
        return _signed_head(row[1:]), row[0]
    raise Damaged("there is no head: the ledger was never begun, or lost it")


def read_nodes(query: Execute, nodes: Sequence[TreeNode]) -> list[bytes]:
    """Hashes of the tree's nodes, in the order asked; `Damaged` if one is missing."""
    seqs = sorted({node.last_leaf + 1 for node in nodes})
    marks = ", ".join("?" * len(seqs))
    text = f"SELECT seq, nodes FROM entries WHERE seq IN ({marks})"
    completed: dict[int, bytes] = {row[0]: row[1] for row in (query(text, *seqs) if seqs else ())}
    try:
        hashes = [node.among(completed[node.last_leaf + 1]) for node in nodes]
    except KeyError as error:
        raise Damaged(f"entry {error} of the tree is missing") from error
    if any(len(hash) != HASH_BYTES for hash in hashes):
        raise Damaged("nodes of the tree are missing")
    return hashes


def store_head(
    execute: Execute, signed: SignedHead, old_size: int, *, every: int | None = None
) -> None:
    """The new head, inside the caller's transaction; kept for good where it passes a checkpoint."""
    row, size = (*_fields(signed.head), signed.signature), signed.head.size
    execute(_STORE_HEAD, *row)
    every = every or CHECKPOINT_EVERY
    if size // every > old_size // every:
        execute(_STORE_CHECKPOINT, *row)


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


def drop_content(execute: Execute, last: int, kinds: Sequence[str]) -> None:
    """Forget the bytes of entries up to `last`, but for these kinds, and their blobs."""
    old = f"seq <= ? AND data IS NOT NULL AND kind NOT IN ({', '.join('?' * len(kinds))})"
    execute(f"UPDATE entries SET data = NULL WHERE {old}", last, *kinds)
    execute("DELETE FROM blobs WHERE seq <= ?", last)
    execute("UPDATE kept SET archived_to = ?", last)


def _signed_head(row: Sequence[Any]) -> SignedHead:
    head = Head(**dict(zip(_COLUMNS[:-1], row, strict=False)))
    numbers = (head.epoch, head.size, head.time_ms)
    if not all(type(each) is int and 0 <= each <= INTEGER_MAX for each in numbers):
        raise Damaged("a head has a number that no signed head can have")
    return SignedHead(head, row[-1])


def missing_migrations(database: str, applied: int) -> list[tuple[int, str, str]]:
    """Number, name and SQL of a database's files (`0001_ledger.sql`, …) after the last applied."""
    found = _migrations(database)
    if applied < 0:
        raise PermanentFault(f"this is no ledger: its tables have the number {applied}")
    if applied > len(found):
        raise PermanentFault(
            f"the ledger was written by a later release (its tables are at {applied}, "
            f"this release knows {len(found)})"
        )
    return found[applied:]


@cache
def _migrations(database: str) -> list[tuple[int, str, str]]:
    found = []
    for file in resources("fairlead.ledger").joinpath("migrations", database).iterdir():
        number, _, name = file.name.removesuffix(".sql").partition("_")
        found.append((int(number), name, file.read_text()))
    return sorted(found)
