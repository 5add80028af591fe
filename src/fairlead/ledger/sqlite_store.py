"""The store's questions as SQL on a SQLite file. Reads have a connection of their own: they see
what is durable and never wait for the writer, nor it for them.
"""

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairlead.core.audit import Node, SignedHead
from fairlead.ledger.sqlite_file import faults, open_reader
from fairlead.ledger.store import HEAD_COLUMNS, Found, Kept, StoredRow, pick, signed_head
from fairlead.ports.ledger import Damaged, Snapshot


def read_kept(connection: sqlite3.Connection) -> Kept | None:
    """The head, unless the ledger was never begun."""
    row = connection.execute(f"SELECT archived_to, {HEAD_COLUMNS} FROM kept").fetchone()
    return None if row is None else Kept(signed_head(row[1:]), row[0])


class SqliteStore:
    """Lookups in one file. May be used from several threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection: sqlite3.Connection | None = open_reader(path)
        self._lock = threading.Lock()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock, faults(f"read {self.path}"):
            if self._connection is None:
                raise sqlite3.ProgrammingError("the ledger is closed")
            yield self._connection

    def kept(self) -> Kept:
        """The head."""
        with self._reading() as connection:
            kept = read_kept(connection)
        if kept is None:
            raise Damaged(f"{self.path} has no head")
        return kept

    def found(self, seq: int) -> Found | None:
        """One entry."""
        with self._reading() as connection:
            row = connection.execute(
                "SELECT seq, data FROM entries WHERE seq = ?", (seq,)
            ).fetchone()
        return None if row is None else Found(*row)

    def select(
        self, *, after: int, limit: int, kind: str | None, plan_id: str | None
    ) -> list[Found]:
        """Entries in order."""
        wanted: dict[str, object] = {"kind": kind, "plan_id": plan_id}
        given = {name: value for name, value in wanted.items() if value is not None}
        where = "".join(f" AND {name} = ?" for name in given)
        with self._reading() as connection:
            rows = connection.execute(
                f"SELECT seq, data FROM entries WHERE seq > ?{where} ORDER BY seq LIMIT ?",
                (after, *given.values(), limit),
            ).fetchall()
        return [Found(*row) for row in rows]

    def newest(self, kind: str) -> Found | None:
        """The last entry of a kind."""
        with self._reading() as connection:
            row = connection.execute(
                "SELECT seq, data FROM entries WHERE kind = ? ORDER BY seq DESC LIMIT 1", (kind,)
            ).fetchone()
        return None if row is None else Found(*row)

    def nodes(self, nodes: Sequence[Node]) -> list[bytes]:
        """Hashes of the tree's nodes, in the order asked."""
        seqs = {node.last_leaf + 1 for node in nodes}
        marks = ",".join("?" * len(seqs))
        with self._reading() as connection:
            rows = connection.execute(
                f"SELECT seq, nodes FROM entries WHERE seq IN ({marks})", list(seqs)
            ).fetchall()
        return pick(nodes, dict(rows))

    def blob(self, digest: str) -> bytes | None:
        """A blob."""
        with self._reading() as connection:
            row = connection.execute(
                "SELECT data FROM blobs WHERE digest = ?", (digest,)
            ).fetchone()
        return None if row is None else row[0]

    def snapshot(self, name: str) -> Snapshot | None:
        """A projection's state."""
        with self._reading() as connection:
            row = connection.execute(
                "SELECT name, seq, state FROM snapshots WHERE name = ?", (name,)
            ).fetchone()
        return None if row is None else Snapshot(*row)

    @contextmanager
    def view(self) -> Iterator["SqliteView"]:
        """The whole at one moment, on a connection that does not hold up the others."""
        connection = open_reader(self.path)
        try:
            with faults(f"read {self.path}"):
                connection.execute("BEGIN")
                yield SqliteView(self.path, connection)
        finally:
            connection.close()

    def close(self) -> None:
        """Let go."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class SqliteView:
    """One read transaction."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path, self._connection = path, connection

    def kept(self) -> Kept:
        """The head at that moment."""
        kept = read_kept(self._connection)
        if kept is None:
            raise Damaged(f"{self._path} has no head")
        return kept

    def checkpoints(self, *, above: int) -> list[SignedHead]:
        """Signed heads on the way."""
        rows = self._stream(
            f"SELECT {HEAD_COLUMNS} FROM checkpoints WHERE size > ? ORDER BY size", above
        )
        return [signed_head(row) for row in rows]

    def rows(self, *, after: int) -> Iterator[StoredRow]:
        """Entries in order."""
        # NOT INDEXED: the order of the table itself, whatever an index may claim.
        sql = "SELECT seq, kind, plan_id, effect, nodes, data FROM entries NOT INDEXED"
        return map(StoredRow._make, self._stream(sql + " WHERE seq > ? ORDER BY seq", after))

    def blobs(self) -> Iterator[tuple[str, bytes]]:
        """Every blob."""
        return self._stream("SELECT digest, data FROM blobs")

    def complaint(self) -> str:
        """An index that lost an effect would let it be recorded twice; SQLite compares them."""
        ((first,),) = self._stream("PRAGMA integrity_check(1)")
        return "" if first == "ok" else str(first)

    def _stream(self, sql: str, *parameters: object) -> Iterator[tuple[Any, ...]]:
        with faults(f"read {self._path}"):
            yield from self._connection.execute(sql, parameters)
