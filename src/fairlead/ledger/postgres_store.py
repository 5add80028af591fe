"""The store's questions as SQL on PostgreSQL."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from psycopg import IsolationLevel, sql

from fairlead.core.audit import Node, SignedHead
from fairlead.ledger.postgres_db import Connection, Database, Session, faults
from fairlead.ledger.store import HEAD_COLUMNS, Found, Kept, StoredRow, pick, signed_head
from fairlead.ports.ledger import Damaged, Snapshot

DOING = "read the ledger"
_PAGE = 2_000


def read_kept(connection: Connection) -> Kept | None:
    """The head, unless the ledger was never begun."""
    row = connection.execute(f"SELECT archived_to, {HEAD_COLUMNS} FROM kept").fetchone()
    return None if row is None else Kept(signed_head(row[1:]), row[0])


def read_nodes(connection: Connection, nodes: Sequence[Node]) -> list[bytes]:
    """Hashes of the tree's nodes, in the order asked."""
    seqs = [node.last_leaf + 1 for node in nodes]
    rows = connection.execute(
        "SELECT seq, nodes FROM entries WHERE seq = ANY(%s)", (seqs,), binary=True
    ).fetchall()
    return pick(nodes, dict(rows))


class PostgresStore:
    """Lookups. May be used from several threads."""

    def __init__(self, database: Database, session: Session | None = None) -> None:
        self._database, self._session = database, session or Session(database)

    def kept(self) -> Kept:
        """The head."""
        kept = self._session.run(DOING, read_kept)
        if kept is None:
            raise Damaged("there is no ledger in this schema")
        return kept

    def _rows(self, query: sql.Composed | sql.SQL, *given: object) -> list[tuple[Any, ...]]:
        return self._session.run(DOING, lambda each: each.execute(query, given).fetchall())

    def found(self, seq: int) -> Found | None:
        """One entry."""
        rows = self._rows(sql.SQL("SELECT seq, data FROM entries WHERE seq = %s"), seq)
        return Found(*rows[0]) if rows else None

    def select(
        self, *, after: int, limit: int, kind: str | None, plan_id: str | None
    ) -> list[Found]:
        """Entries in order."""
        wanted: dict[str, object] = {"kind": kind, "plan_id": plan_id}
        given = {name: value for name, value in wanted.items() if value is not None}
        where = sql.SQL("").join(
            sql.SQL(" AND {} = %s").format(sql.Identifier(name)) for name in given
        )
        query = sql.SQL("SELECT seq, data FROM entries WHERE seq > %s{} ORDER BY seq LIMIT %s")
        rows = self._rows(query.format(where), after, *given.values(), limit)
        return [Found(*row) for row in rows]

    def newest(self, kind: str) -> Found | None:
        """The last entry of a kind."""
        query = "SELECT seq, data FROM entries WHERE kind = %s ORDER BY seq DESC LIMIT 1"
        rows = self._rows(sql.SQL(query), kind)
        return Found(*rows[0]) if rows else None

    def nodes(self, nodes: Sequence[Node]) -> list[bytes]:
        """Hashes of the tree's nodes, in the order asked."""
        return self._session.run(DOING, lambda each: read_nodes(each, nodes))

    def blob(self, digest: str) -> bytes | None:
        """A blob."""
        rows = self._rows(sql.SQL("SELECT data FROM blobs WHERE digest = %s"), digest)
        return rows[0][0] if rows else None

    def snapshot(self, name: str) -> Snapshot | None:
        """A projection's state."""
        rows = self._rows(sql.SQL("SELECT name, seq, state FROM snapshots WHERE name = %s"), name)
        return Snapshot(*rows[0]) if rows else None

    @contextmanager
    def view(self) -> Iterator["PostgresView"]:
        """The whole at one moment, on a connection that does not hold up the others."""
        with faults(DOING), closing(self._database.connect()) as connection:
            connection.isolation_level = IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            with connection.transaction():
                yield PostgresView(connection)

    def close(self) -> None:
        """Let go."""
        self._session.close()


class PostgresView:
    """One repeatable read."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._streams = connection, 0

    def kept(self) -> Kept:
        """The head at that moment."""
        kept = read_kept(self._connection)
        if kept is None:
            raise Damaged("there is no ledger in this schema")
        return kept

    def checkpoints(self, *, above: int) -> list[SignedHead]:
        """Signed heads on the way."""
        query = f"SELECT {HEAD_COLUMNS} FROM checkpoints WHERE size > %s ORDER BY size"
        return [signed_head(row) for row in self._connection.execute(query, (above,))]

    def rows(self, *, after: int) -> Iterator[StoredRow]:
        """Entries in order."""
        query = sql.SQL(
            "SELECT seq, kind, plan_id, effect, nodes, data FROM entries "
            "WHERE seq > %s ORDER BY seq"
        )
        return map(StoredRow._make, self._stream(query, after))

    def blobs(self) -> Iterator[tuple[str, bytes]]:
        """Every blob."""
        return self._stream(sql.SQL("SELECT digest, data FROM blobs"), page=1)

    def complaint(self) -> str:
        """PostgreSQL checks its indexes with an extension of its own (amcheck), by an operator."""
        return ""

    def _stream(self, query: sql.SQL, *given: object, page: int = _PAGE) -> Iterator[Any]:
        """Page by page: a client-side cursor would hold the whole log in memory."""
        self._streams += 1
        with faults(DOING), self._connection.cursor(f"stream_{self._streams}") as cursor:
            cursor.itersize = page
            cursor.execute(query, given, binary=True)
            yield from cursor
