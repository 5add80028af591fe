"""The ledger in PostgreSQL: several replicas append, one at a time numbers.

    with PostgresLedger.open("postgresql://…", KeyDirectory("keys")) as ledger: ...

An append writes its drafts, without numbers, in a transaction of its own. Then it takes the
sequencer's advisory lock. Its holder numbers everything that waits, in the order of tickets, for
all replicas at once; the next one often finds its answer already there. A replica that dies loses
its lock with its connection, and what it left waiting is numbered by the next.
"""

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from hashlib import sha256
from itertools import count
from typing import NamedTuple, Self
from uuid import UUID, uuid4

import msgspec

from fairlead.core.audit import Frontier
from fairlead.host.clock import now_ms
from fairlead.ledger.entries import Position, Prepared, Sequenced, first_entry, sequence, sort_out
from fairlead.ledger.keys import Signers
from fairlead.ledger.postgres_connection import (
    LOCK_SPACE,
    Connection,
    Cursor,
    Database,
    LockNotAvailable,
    Session,
    postgres_faults,
)
from fairlead.ledger.reading import StoreReader
from fairlead.ledger.statements import KEPT_KINDS
from fairlead.ledger.store import (
    KEEP_BLOB,
    KEEP_SNAPSHOT,
    STORE_BLOB,
    Effect,
    Found,
    Row,
    SqlStore,
    SqlView,
    drop_content,
    read_kept,
    read_nodes,
    store_head,
)
from fairlead.ledger.writing import StoreWriter, check_opening
from fairlead.ports.faults import RETRY_AFTER_MS, PermanentFault, TemporaryFault
from fairlead.ports.ledger import Damaged, HeadMoved

SCHEMA = "fairlead"
# Numbered in one transaction; more wait for the next, so that no append waits for all of them.
BATCHES_AT_ONCE = 64
# Answers are kept so long for a writer that lost its connection and asks again.
ANSWERS_KEPT = "1 hour"
_LOCK = "SELECT pg_advisory_xact_lock(%s, 'kept'::regclass::oid::int)"
_SEAT = "(%s, 'snapshots'::regclass::oid::int)"
DOING = "read the ledger"
_PAGE = 2_000
_Fields = tuple[str, str | None, str | None, bytes, bytes, tuple[tuple[str, bytes], ...]]
_drafts = msgspec.msgpack.Decoder(list[_Fields])
_COPY = "COPY entries (seq, kind, plan_id, effect, nodes, data) FROM STDIN BINARY"


class PostgresReader(StoreReader):
    """Reads a ledger, without a key."""

    def __init__(self, dsn: str, *, schema: str = SCHEMA) -> None:
        database = Database(dsn, schema)
        super().__init__(SqlStore(PostgresSource(database, Session(database))))


class _Waiting(NamedTuple):
    """A batch that waits for its numbers."""

    id: UUID
    expected_size: int | None
    time_ms: int
    drafts: bytes


class PostgresLedger(StoreWriter):
    """Writes a ledger; `open` is the way to get one."""

    def __init__(
        self,
        session: Session,
        store: SqlStore,
        position: Position,
        signers: Signers,
        resources: ExitStack,
    ) -> None:
        super().__init__(store, signers)
        self._session, self._position, self._resources = session, position, resources

    @classmethod
    def open(
        cls,
        dsn: str,
        signers: Signers,
        *,
        schema: str = SCHEMA,
        ledger_id: str | None = None,
        time_ms: int | None = None,
        alone: bool = False,
    ) -> Self:
        """Open a ledger for writing, or begin one (`ledger_id`, `time_ms`: of its first entry).

        Every replica needs the key in force: any of them may be the one that numbers and signs.
        `alone`: a `TemporaryFault` while another writer is open that wants to be alone, too.
        """
        database = Database(dsn, schema)
        born_ms = now_ms() if time_ms is None else time_ms
        begin = partial(
            _begin, signers=signers, ledger=ledger_id or secrets.token_hex(8), time_ms=born_ms
        )
        with ExitStack() as resources:
            session = resources.enter_context(closing(Session(database)))
            session.run("open the ledger", database.migrate)
            session.run("begin a ledger", begin)
            if alone:
                session.run("open the ledger", _wait_for_seat)
                session.renew(_take_seat)
            # A lone writer reads on the same connection: without its seat it learns nothing.
            source = PostgresSource(database, session if alone else Session(database))
            store = resources.enter_context(closing(SqlStore(source)))
            position = check_opening(store, signers)
            return cls(session, store, position, signers, resources.pop_all())

    def _record(
        self, drafts: Sequence[Prepared], *, time_ms: int, expected_size: int | None
    ) -> list[Found]:
        """Write, then number or have it numbered. Under one id, so that asking again is safe."""
        waiting = _Waiting(uuid4(), expected_size, time_ms, _pack(drafts))
        return self._session.run("append to the ledger", partial(self._append, waiting=waiting))

    def _append(self, connection: Connection, *, waiting: _Waiting) -> list[Found]:
        connection.execute(
            "INSERT INTO batches (id, expected_size, time_ms, drafts) VALUES (%s, %s, %s, %b) "
            "ON CONFLICT (id) DO NOTHING",
            waiting,
        )
        try:
            while True:
                with connection.transaction():
                    connection.execute(_LOCK, (LOCK_SPACE,))
                    answer = _answer(connection, waiting)
                    position = self._number(connection) if answer is None else self._position
                self._position = position  # only now: what is not durable never was
                if answer is not None:
                    return answer
        except Exception:
            # Take the batch back, so that a fault means that nothing was recorded; unless another
            # replica numbered it meanwhile. Without a connection we are asked again, or give up.
            if connection.broken or _withdraw(connection, waiting):
                raise
            return _answer(connection, waiting) or []

    def _number(self, connection: Connection) -> Position:
        """Number what waits, under the lock; returns the position after it."""
        kept = read_kept(_executing(connection))
        if kept is None:
            raise Damaged("the ledger has lost its head")
        head, position = kept.head.head, self._position
        if position.frontier.root().hex() != head.root or position.key_id != head.key_id:
            frontier = Frontier.of(head.size, partial(read_nodes, _executing(connection)))
            position = Position(head.ledger, head.epoch, head.key_id, frontier)
        rows = connection.execute(
            "SELECT id, expected_size, time_ms, drafts FROM batches WHERE answered IS NULL "
            "ORDER BY ticket LIMIT %s FOR UPDATE SKIP LOCKED",
            (BATCHES_AT_ONCE,),
            binary=True,
        ).fetchall()
        for row in rows:
            position = self._number_one(connection, position, _Waiting(*row))
        connection.execute(
            f"DELETE FROM batches WHERE answered < now() - interval '{ANSWERS_KEPT}'"
        )
        return position

    def _number_one(
        self, connection: Connection, position: Position, waiting: _Waiting
    ) -> Position:
        size = position.frontier.size
        seqs, moved_to = list[int](), None
        if waiting.expected_size not in (None, size):
            moved_to = size
        else:
            sorted_out = sort_out(_unpack(waiting.drafts), partial(_lookup, connection))
            done = None
            if sorted_out.fresh:
                done = sequence(position, sorted_out.fresh, self._signers, time_ms=waiting.time_ms)
                _store(connection, done)
                position = done.position
            seqs = [found.seq for found in sorted_out.found(done.rows if done else ())]
        connection.execute(
            "UPDATE batches SET seqs = %s, moved_to = %s, drafts = '', answered = now() "
            "WHERE id = %s",
            (seqs, moved_to, waiting.id),
        )
        return position

    def _drop_content(self, last: int) -> None:
        def drop(connection: Connection) -> None:
            with connection.transaction():
                connection.execute(_LOCK, (LOCK_SPACE,))
                drop_content(_executing(connection), last, KEPT_KINDS)

        self._session.run("archive entries", drop)

    def blob_put(self, data: bytes) -> str:
        digest = sha256(data).hexdigest()
        self._session.run("keep a blob", lambda found: _executing(found)(KEEP_BLOB, digest, data))
        return digest

    def snapshot_put(self, name: str, seq: int, state: bytes) -> None:
        self._session.run(
            "keep a snapshot", lambda found: _executing(found)(KEEP_SNAPSHOT, name, seq, state)
        )

    def close(self) -> None:
        self._resources.close()


def _wait_for_seat(connection: Connection) -> None:
    """Held as long as the connection; one that just died may hold it a moment longer."""
    try:
        connection.execute(f"SELECT pg_advisory_lock{_SEAT}", (LOCK_SPACE,))
    except LockNotAvailable as error:
        raise _taken() from error


def _take_seat(connection: Connection) -> None:
    """The same after a broken connection, without waiting: the caller tries again."""
    row = connection.execute(f"SELECT pg_try_advisory_lock{_SEAT}", (LOCK_SPACE,)).fetchone()
    if row is None or not row[0]:
        raise _taken()


def _taken() -> TemporaryFault:
    text = "another control plane runs on this ledger"
    return TemporaryFault(text, retry_after_ms=RETRY_AFTER_MS)


def _begin(connection: Connection, *, signers: Signers, ledger: str, time_ms: int) -> None:
    """The first entry, unless another replica was quicker."""
    with connection.transaction():
        connection.execute(_LOCK, (LOCK_SPACE,))
        if read_kept(_executing(connection)) is None:
            _store(connection, first_entry(signers, ledger, time_ms))


def _withdraw(connection: Connection, waiting: _Waiting) -> bool:
    """Whether a batch was still waiting, and is gone. Waits for a sequencer that has it in hand."""
    done = connection.execute(
        "DELETE FROM batches WHERE id = %s AND answered IS NULL", (waiting.id,)
    )
    return done.rowcount == 1


def _answer(connection: Connection, waiting: _Waiting) -> list[Found] | None:
    row = connection.execute(
        "SELECT answered IS NOT NULL, seqs, moved_to FROM batches WHERE id = %s", (waiting.id,)
    ).fetchone()
    if row is None:
        raise PermanentFault("a batch has vanished from the database")
    answered, seqs, moved_to = row
    if not answered:
        return None
    if moved_to is not None:
        raise HeadMoved(expected=waiting.expected_size or 0, size=moved_to)
    rows = connection.execute(
        "SELECT seq, data FROM entries WHERE seq = ANY(%s)", (seqs,), binary=True
    ).fetchall()
    found = {row[0]: Found(*row) for row in rows}
    return [found[seq] for seq in seqs]


def _pack(drafts: Sequence[Prepared]) -> bytes:
    """Drafts as one value: a batch is one row, so it is there whole or not at all."""
    return msgspec.msgpack.encode(
        [
            (draft.kind, draft.plan_id, draft.effect, draft.front, draft.back, draft.blobs)
            for draft in drafts
        ]
    )


def _unpack(data: bytes) -> list[Prepared]:
    """The drafts of a batch, whichever replica wrote it."""
    return [Prepared(*fields) for fields in _drafts.decode(data)]


def _lookup(connection: Connection, effects: Sequence[Effect]) -> dict[Effect, Found]:
    rows = connection.execute(
        "SELECT plan_id, effect, seq FROM entries "
        "JOIN unnest(%s::text[], %s::text[]) AS wanted (plan, name) "
        "ON plan_id = plan AND effect = name",
        ([plan for plan, _ in effects], [name for _, name in effects]),
    ).fetchall()
    # The bytes are read with the answer, by the writer that asked.
    return {(plan, name): Found(seq, None) for plan, name, seq in rows}


def _store(connection: Connection, done: Sequenced) -> None:
    with connection.cursor() as cursor, cursor.copy(_COPY) as copy:
        copy.set_types(["int8", "text", "text", "text", "bytea", "bytea"])
        for row in done.rows:
            copy.write_row(row)
    execute = _executing(connection)
    for blob in done.blobs:
        execute(STORE_BLOB, *blob)
    store_head(execute, done.head, done.rows[0].seq - 1)


def _executing(connection: Connection) -> Callable[..., Cursor]:
    """Runs texts in which `?` stands for a value: bytes are sent as they are."""

    def execute(text: str, *values: object) -> Cursor:
        return connection.execute(_with_marks(text, values), values, binary=True)

    return execute


def _with_marks(text: str, values: Sequence[object]) -> bytes:
    for value in values:
        text = text.replace("?", "%b" if isinstance(value, bytes) else "%s", 1)
    return text.encode()


class PostgresSource:
    """Queries of one schema."""

    def __init__(self, database: Database, session: Session) -> None:
        self._database, self._session = database, session
        self.close = session.close

    def query(self, text: str, *values: object) -> list[Row]:
        return self._session.run(DOING, lambda found: _executing(found)(text, *values).fetchall())

    @contextmanager
    def view(self) -> Iterator[SqlView]:
        """One repeatable read."""
        with postgres_faults(DOING), self._database.one_moment() as connection:
            streams = count()

            def stream(text: str, *values: object) -> Iterator[Row]:
                # Page by page: a client-side cursor would hold the whole log in memory.
                name = f"stream_{next(streams)}"
                with postgres_faults(DOING), connection.cursor(name) as cursor:
                    cursor.itersize = 1 if "blobs" in text else _PAGE
                    cursor.execute(_with_marks(text, values), values, binary=True)
                    yield from cursor

            # Its indexes an operator checks with PostgreSQL's own extension, amcheck.
            yield SqlView(stream, complaint=lambda: "")
