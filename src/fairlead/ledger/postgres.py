"""The ledger in PostgreSQL: several replicas append, one at a time numbers.

An append writes its drafts, without numbers, in a transaction of its own. Then it takes the
sequencer's advisory lock. Its holder numbers everything that waits, in the order of tickets, for
all replicas at once; the next one often finds its answer already there. A replica that dies loses
its lock with its connection, and what it left waiting is numbered by the next.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import count
from typing import Any, Self

import msgspec

from fairlead.core.audit import Frontier, Head, SignedHead, check_consistency, consistency_proof
from fairlead.host.log import Log
from fairlead.ledger import postgres_schema, store
from fairlead.ledger.entries import Numbered, Position, Prepared, number, store_beside
from fairlead.ledger.keys import KeyDirectory
from fairlead.ledger.postgres_batches import COLUMNS, WaitingBatch, sealed
from fairlead.ledger.reading import StoreReader, identity_at
from fairlead.ledger.writing import StoreWriter, begin
from fairlead.ports.faults import Fault, PermanentFault, TemporaryFault
from fairlead.ports.ledger import Damaged, HeadMoved

try:
    import psycopg
    import psycopg.conninfo
    from psycopg import errors, sql
except ImportError as error:  # pragma: no cover - the extra is installed where this is tested
    raise PermanentFault(
        "a ledger in PostgreSQL needs psycopg: pip install 'fairlead[postgres]'"
    ) from error

Connection = psycopg.Connection[tuple[Any, ...]]
Execute = Callable[..., psycopg.Cursor[tuple[Any, ...]]]

LOCK_TIMEOUT_MS = 10_000
CONNECT_TIMEOUT_S = 10
# The first half of the advisory locks' keys ("flea"); the second is the oid of a table of ours,
# so that ledgers in other schemas of the same database have other locks.
LOCK_SPACE = 0x666C6561
# Read back from the server: a commit that returned must survive the loss of power.
DURABLE = ("synchronous_commit", "fsync", "full_page_writes")
# No connection, no space, no memory, shutting down, timed out.
_LOST = (psycopg.OperationalError, psycopg.InterfaceError)
SCHEMA = "fairlead"
# Numbered in one transaction; more wait for the next, so that no append waits for all of them.
BATCHES_AT_ONCE = 64
# Answers are kept so long for a writer that lost its connection and asks again.
ANSWERS_KEPT = "1 hour"
DOING = "read the ledger"
_log = Log("fairlead.ledger")
_PAGE = 2_000
# Drafts as one value: a batch is one row, so it is there whole or not at all.
_drafts = msgspec.msgpack.Decoder(list[Prepared])
_COPY = "COPY entries (seq, kind, plan_id, effect, nodes, data) FROM STDIN BINARY"


def is_address(dsn: str) -> bool:
    """Whether PostgreSQL's own library can read it; it may hold a password, so it is not shown."""
    try:
        ports = str(psycopg.conninfo.conninfo_to_dict(dsn).get("port") or "")
    except psycopg.Error:
        return False
    # A / in a password ends the host, and what follows the colon before it is then the port.
    return all(port.isdecimal() for port in ports.split(",") if port)


@contextmanager
def postgres_faults(doing: str) -> Iterator[None]:
    """Translate PostgreSQL's errors inside into faults."""
    try:
        yield
    except errors.UndefinedTable as error:
        raise PermanentFault("there is no ledger in this schema of the database") from error
    except psycopg.Error as error:
        kind: type[Fault] = PermanentFault
        if isinstance(error, (errors.DataCorrupted, errors.IndexCorrupted)):
            kind = Damaged
        elif isinstance(error, _LOST):
            kind = TemporaryFault
        raise kind(f"cannot {doing}: {' '.join(str(error).split())}") from error


class Session:
    """One connection to one schema, used by one thread at a time, opened again after it broke."""

    def __init__(self, dsn: str, schema: str) -> None:
        self._dsn, self._schema = dsn, sql.Identifier(schema)
        self._lock, self._closed = threading.Lock(), False
        self.claim: Callable[[Connection], None] = lambda _: None
        """Done first on every connection that takes the place of a broken one."""
        self._connection = self._connect()

    def _connect(self) -> Connection:
        """A connection whose commits are durable when they return; what was asked is read back."""
        with postgres_faults("connect"):
            connection = psycopg.connect(
                self._dsn,
                autocommit=True,
                connect_timeout=CONNECT_TIMEOUT_S,
                application_name="fairlead",
            )
        with ExitStack() as undo:
            undo.callback(connection.close)
            # Of two tables of a name, a temporary one would be found first.
            connection.execute(sql.SQL("SET search_path TO {}, pg_temp").format(self._schema))
            connection.execute("SET synchronous_commit = on")
            connection.execute(sql.SQL("SET lock_timeout = {}").format(LOCK_TIMEOUT_MS))
            for setting in DURABLE:
                row = connection.execute("SELECT current_setting(%s)", (setting,)).fetchone()
                if row != ("on",):
                    raise PermanentFault(f"PostgreSQL runs with {setting} off; a ledger needs it")
            undo.pop_all()
        return connection

    def run(self, doing: str, work: Callable[[Connection], store.T]) -> store.T:
        """Do some work; if the connection turns out to be broken, once more on a new one."""
        with self._lock, postgres_faults(doing):
            try:
                return work(self._open())
            except _LOST:
                if not self._connection.broken:
                    raise
            return work(self._open())

    def _open(self) -> Connection:
        if self._closed:
            raise PermanentFault("the ledger is closed")
        if self._connection.closed:
            connection = self._connect()
            with ExitStack() as undo:
                undo.callback(connection.close)
                self.claim(connection)
                undo.pop_all()
            self._connection = connection
        return self._connection

    def query(self, text: str, *values: object) -> list[store.Row]:
        return self.run(DOING, lambda found: _executing(found)(text, *values).fetchall())

    @contextmanager
    def view(self) -> Iterator[store.SqlView]:
        """One repeatable read, on a connection of its own."""
        with postgres_faults(DOING), closing(self._connect()) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            streams = count()

            def stream(text: str, *values: object) -> Iterator[store.Row]:
                # Page by page: a client-side cursor would hold the whole log in memory.
                name = f"stream_{next(streams)}"
                with postgres_faults(DOING), connection.cursor(name) as cursor:
                    cursor.itersize = 1 if "blobs" in text else _PAGE
                    cursor.execute(_marked(text, values), values, binary=True)
                    yield from cursor

            with connection.transaction():
                # Its indexes an operator checks with PostgreSQL's own extension, amcheck.
                yield store.SqlView(stream, complaint=lambda: postgres_schema.problem(stream))

    @contextmanager
    def changing(self, connection: Connection) -> Iterator[Execute]:
        """Under the lock of the one that numbers, which ends with the transaction."""
        execute = _executing(connection)
        with connection.transaction():
            execute("SELECT pg_advisory_xact_lock(?, 'kept'::regclass::oid::int)", LOCK_SPACE)
            yield execute

    def store(self, connection: Connection, done: Numbered) -> None:
        with connection.cursor() as cursor, cursor.copy(_COPY) as copy:
            copy.set_types(["int8", "text", "text", "text", "bytea", "bytea"])
            for row in done.rows:
                copy.write_row(row)
        store_beside(_executing(connection), done)

    def migrate(self, connection: Connection) -> None:
        """Create or complete the tables; replicas that start together take turns."""
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s, 0)", (LOCK_SPACE,))
            connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(self._schema))
            connection.execute(
                "CREATE TABLE IF NOT EXISTS migrations (number int PRIMARY KEY, name text NOT NULL)"
            )
            ((applied,),) = connection.execute("SELECT coalesce(max(number), 0) FROM migrations")
            for version, name, text in store.missing_migrations("postgres", applied):
                connection.execute(text.encode())
                connection.execute("INSERT INTO migrations VALUES (%s, %s)", (version, name))
        if problem := postgres_schema.problem(_executing(connection)):
            raise Damaged(problem)

    def check_tables(self, connection: Connection) -> None:
        """A reader changes nothing: tables of another release are refused."""
        ((applied,),) = connection.execute("SELECT coalesce(max(number), 0) FROM migrations")
        if store.missing_migrations("postgres", applied):
            raise PermanentFault("this schema holds no ledger, or one of an earlier release")
        if problem := postgres_schema.problem(_executing(connection)):
            raise Damaged(problem)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._connection.close()


class PostgresReader(StoreReader):
    """Reads a ledger, without a key."""

    def __init__(self, dsn: str, *, schema: str = SCHEMA, inspect: bool = False) -> None:
        with ExitStack() as undo:
            session = undo.enter_context(closing(Session(dsn, schema)))
            if not inspect:
                session.run(DOING, session.check_tables)
            undo.pop_all()
        super().__init__(session)


class PostgresLedger(StoreWriter[Connection]):
    """Writes a ledger; `open` is the way to get one."""

    @classmethod
    def open(
        cls,
        dsn: str,
        signers: KeyDirectory,
        *,
        schema: str = SCHEMA,
        alone: bool = False,
        take_over: bool = False,
    ) -> Self:
        """Open a ledger for writing, or begin one.

        Every replica needs the key in force: any of them may be the one that numbers and signs.
        `alone`: a `TemporaryFault` while another writer is open that wants to be alone, too.
        `take_over`: that one's connection is ended, and it learns and writes nothing any more.
        """
        with ExitStack() as resources:
            session = source = resources.enter_context(closing(Session(dsn, schema)))
            session.run("open the ledger", session.migrate)
            begin(session, signers)
            if alone:
                if take_over:
                    session.run("take the ledger over", _end_holder)
                session.run("open the ledger", partial(_take_seat, wait=True))
                session.claim = _take_seat
            else:  # a lone writer reads on the same connection: without its seat it learns nothing
                source = resources.enter_context(closing(Session(dsn, schema)))
            ledger = cls(session, source, signers, resources)
            ledger._alone = alone
            return ledger

    _alone = False
    """Whether no other writer numbers: then what others left waiting is not numbered here."""

    def head(self) -> SignedHead:
        """The newest of all replicas, once it is shown to continue what this one knows."""
        known = self._position  # before the database is asked: another thread may append meanwhile
        signed, _ = store.read_kept(self._query)
        if signed != known.signed:
            self._move(self._continued(self._query, signed, known.signed.head))
        return signed

    def _covering(self, seq: int) -> Head:
        known = self._position.signed.head
        return known if seq <= known.size else self.head().head

    def _continued(self, query: store.Execute, signed: SignedHead, known: Head) -> Position:
        """The position of a head that another replica wrote; raises `Damaged` if it is none that a
        holder of the key signed, or does not continue the log that this process knows."""
        head = signed.head
        nodes = partial(store.read_nodes, query)
        if problem := identity_at(query, head.size).check(signed):
            raise Damaged(f"the head of size {head.size} {problem}")
        if known.size > head.size:
            raise Damaged(f"the ledger has {head.size} entries; this process knows {known.size}")
        if known.key_id != head.key_id:
            self._signers.load(head.key_id)
        if not check_consistency(
            old_size=known.size,
            old_root=bytes.fromhex(known.root),
            new_size=head.size,
            new_root=bytes.fromhex(head.root),
            proof=consistency_proof(known.size, head.size, nodes),
        ):
            raise Damaged(f"the log of {head.size} entries does not continue that of {known.size}")
        frontier = Frontier.of(head.size, nodes)
        if frontier.root().hex() != head.root:
            raise Damaged(f"the tree is not that of the head of size {head.size}")
        return Position(signed, frontier)

    def _move(self, position: Position) -> None:
        """Forward only: another thread may have been quicker."""
        if position.frontier.size >= self._position.frontier.size:
            self._position = position

    def _record(
        self, drafts: Sequence[Prepared], *, time_ms: int, expected_size: int | None
    ) -> list[store.Found]:
        """Write, then number or have it numbered. Under one id, so that asking again is safe."""
        head = (self._position.signed if self._alone else self.head()).head
        key, data = self._signers.load(head.key_id), msgspec.msgpack.encode(drafts)
        times: dict[str, Any] = {"time_ms": time_ms, "expected_size": expected_size}
        waiting = sealed(data, **times, head=head, key=key)
        return self._session.run("append to the ledger", partial(self._append, waiting=waiting))

    def _append(self, connection: Connection, *, waiting: WaitingBatch) -> list[store.Found]:
        execute = _executing(connection)
        execute(
            f"INSERT INTO batches ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (id) DO NOTHING",
            *waiting,
        )
        try:
            while True:
                with self._session.changing(connection):
                    position, answer = self._position, _answer(execute, waiting)
                    if answer is None:
                        position = self._number(connection, waiting)
                self._move(position)  # only now: what is not durable never was
                if answer is not None:
                    return answer
        except Exception:
            # Take the batch back, so that a fault means that nothing was recorded; unless another
            # replica numbered it meanwhile. Without a connection we are asked again, or give up.
            if connection.broken or _withdraw(execute, waiting):
                raise
            return _answer(execute, waiting) or []

    def _number(self, connection: Connection, own: WaitingBatch) -> Position:
        """Number what waits, under the lock; returns the position after it."""
        execute, position = _executing(connection), self._position
        signed, _ = store.read_kept(execute)
        if position.signed != signed:
            position = self._continued(execute, signed, position.signed.head)
        whose = "AND id = ?" if self._alone else ""
        for row in execute(
            f"SELECT {COLUMNS} FROM batches WHERE answered IS NULL {whose} "
            f"ORDER BY ticket LIMIT {BATCHES_AT_ONCE} FOR UPDATE SKIP LOCKED",
            *([own.id] if self._alone else []),
        ).fetchall():
            waiting = own if row[0] == own.id else WaitingBatch(*row)
            if waiting is own or self._is_ours(execute, waiting, position.signed.head):
                position = self._number_one(connection, position, waiting)
            else:
                _log.warning("batch refused", why="no holder of the key wrote it just now")
                execute("DELETE FROM batches WHERE id = ?", waiting.id)
        execute(f"DELETE FROM batches WHERE answered < now() - interval '{ANSWERS_KEPT}'")
        return position

    def _is_ours(self, execute: store.Execute, waiting: WaitingBatch, head: Head) -> bool:
        """Whether a replica with our key wrote this batch; the key may have changed since."""
        then = identity_at(execute, min(waiting.after or 0, head.size))
        keys = [self._signers.load(head.key_id).public_key, then.keys.get(then.key_id, b"")]
        return waiting.is_sealed(head, keys)

    def _number_one(
        self, connection: Connection, position: Position, waiting: WaitingBatch
    ) -> Position:
        execute, size = _executing(connection), position.frontier.size
        seqs, moved_to = list[int](), None
        if waiting.expected_size not in (None, size):
            moved_to = size
        else:
            drafts = _drafts.decode(waiting.drafts)
            known = _recorded(execute, drafts)
            done = number(position, drafts, known, self._signers, time_ms=waiting.time_ms)
            if done.rows:
                self._session.store(connection, done)
            position, seqs = done.position, [found.seq for found in done.answers]
        answer = "seqs = ?, moved_to = ?, drafts = '', answered = now()"
        execute(f"UPDATE batches SET {answer} WHERE id = ?", seqs, moved_to, waiting.id)
        return position


def _take_seat(connection: Connection, *, wait: bool = False) -> None:
    """Held as long as the connection. `wait`: one that just died may hold it a moment longer."""
    lock = "pg_advisory_lock" if wait else "pg_try_advisory_lock"
    seat = f"SELECT {lock}(%s, 'snapshots'::regclass::oid::int)"
    try:
        taken = connection.execute(seat, (LOCK_SPACE,)).fetchone() == (False,)
    except errors.LockNotAvailable:
        taken = True
    if taken:
        raise TemporaryFault("another control plane runs on this ledger")


def _end_holder(connection: Connection) -> None:
    """A process that is halted, or behind a cut network, would hold its seat for hours."""
    connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted "
        "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
        "AND classid = %s::int::oid AND objid = 'snapshots'::regclass::oid",
        (LOCK_SPACE,),
    )


def _withdraw(execute: Execute, waiting: WaitingBatch) -> bool:
    """Whether a batch was still waiting, and is gone. Waits for a sequencer that has it in hand."""
    done = execute("DELETE FROM batches WHERE id = ? AND answered IS NULL", waiting.id)
    return done.rowcount == 1


def _answer(execute: Execute, waiting: WaitingBatch) -> list[store.Found] | None:
    text = "SELECT answered IS NOT NULL, seqs, moved_to FROM batches WHERE id = ?"
    row = execute(text, waiting.id).fetchone()
    if row is None:
        raise PermanentFault("a batch has vanished from the database")
    answered, seqs, moved_to = row
    if not answered:
        return None
    if moved_to is not None:
        raise HeadMoved(expected=waiting.expected_size or 0, size=moved_to)
    rows = execute("SELECT seq, data FROM entries WHERE seq = ANY(?)", seqs)
    found = {row[0]: store.Found(*row) for row in rows}
    return [found[seq] for seq in seqs]


def _recorded(execute: Execute, drafts: Sequence[Prepared]) -> dict[store.Effect, store.Found]:
    """Which of the drafts' effects are recorded; the writer that asked reads their bytes."""
    effects = [(draft.plan_id, draft.effect) for draft in drafts if draft.effect is not None]
    if not effects:
        return {}
    rows = execute(
        "SELECT plan_id, effect, seq FROM entries "
        "JOIN unnest(?::text[], ?::text[]) AS wanted (plan, name) "
        "ON plan_id = plan AND effect = name",
        [plan for plan, _ in effects],
        [name for _, name in effects],
    )
    return {(plan, name): store.Found(seq, None) for plan, name, seq in rows}


def _executing(connection: Connection) -> Execute:
    return lambda text, *values: connection.execute(_marked(text, values), values, binary=True)


def _marked(text: str, values: Sequence[object]) -> bytes:
    """psycopg's marks in place of `?`: bytes are sent as they are."""
    for value in values:
        text = text.replace("?", "%b" if isinstance(value, bytes) else "%s", 1)
    return text.encode()
