"""The ledger in one SQLite file: the embedded default.

    with SqliteLedger.open("ledger.db", KeyDirectory("keys")) as ledger: ...
    with SqliteReader("ledger.db") as reader: ...        # beside a running writer, without a key

WAL, synced in full. One process writes, which a lock beside the file makes sure of; it keeps the
tree's frontier in memory, so an append reads nothing but the effects it must not repeat. Reads have
a connection of their own: they see what is durable and never wait for the writer, nor it for them.
"""

import os
import secrets
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Self

from fairlead.host import files
from fairlead.host.clock import now_ms
from fairlead.ledger.entries import (
    Lookup,
    Position,
    Prepared,
    Sequenced,
    first_entry,
    nothing_recorded,
    sequence,
    sort_out,
)
from fairlead.ledger.keys import Signers
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
    missing_migrations,
    read_kept,
    store_head,
)
from fairlead.ledger.writing import StoreWriter, check_opening
from fairlead.ports.faults import RETRY_AFTER_MS, Fault, PermanentFault, TemporaryFault, faults
from fairlead.ports.ledger import Damaged, HeadMoved

BUSY_TIMEOUT_S = 5.0
# Pages that may wait in the log before they are moved into the file: a bulk of appends then
# syncs the file once per 16 MiB rather than once per 4.
WAL_PAGES = 4_000

_TEMPORARY = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_INTERRUPT,
    # How a full disk shows itself when the shared-memory file beside the log has to grow.
    sqlite3.SQLITE_IOERR_SHMSIZE,
}
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


class _Repeated(Exception):
    """An effect is recorded already."""


class SqliteReader(StoreReader):
    """Reads a ledger's file."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(SqlStore(SqliteSource(Path(path))))


class SqliteLedger(StoreWriter):
    """Writes a ledger's file; `open` is the way to get one."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        store: SqlStore,
        position: Position,
        signers: Signers,
        resources: ExitStack,
    ) -> None:
        super().__init__(store, signers)
        self._connection, self._position, self._resources = connection, position, resources
        self._writer = threading.Lock()

    @classmethod
    def open(
        cls,
        path: str | Path,
        signers: Signers,
        *,
        ledger_id: str | None = None,
        time_ms: int | None = None,
    ) -> Self:
        """Open a ledger for writing, or begin one (`ledger_id`, `time_ms`: of its first entry).

        Verifies what came after the last checkpoint, so that damage at the end of the log, where
        a crash may have left it, is found before anything is built on it.
        """
        path = Path(path)
        with ExitStack() as resources:
            resources.callback(os.close, _lock(path))
            connection = resources.enter_context(closing(open_writer(path)))
            if read_kept(_executing(connection)) is None:
                born_ms = now_ms() if time_ms is None else time_ms
                first = first_entry(signers, ledger_id or secrets.token_hex(8), born_ms)
                with transaction(connection, "begin a ledger"):
                    _store(connection, first)
            store = resources.enter_context(closing(SqlStore(SqliteSource(path))))
            position = check_opening(store, signers)
            return cls(connection, store, position, signers, resources.pop_all())

    def _record(
        self, drafts: Sequence[Prepared], *, time_ms: int, expected_size: int | None
    ) -> list[Found]:
        """Number and store under the writer's lock.

        Hardly any effect is a repeated one, and the index over them is written anyway: only when
        it refuses are they looked up.
        """
        with self._writer:
            try:
                return self._try(drafts, time_ms, expected_size, nothing_recorded)
            except _Repeated:
                return self._try(drafts, time_ms, expected_size, self._lookup)

    def _try(
        self, drafts: Sequence[Prepared], time_ms: int, expected_size: int | None, lookup: Lookup
    ) -> list[Found]:
        with transaction(self._connection, "append to the ledger"):
            size = self._position.frontier.size
            if expected_size is not None and expected_size != size:
                raise HeadMoved(expected=expected_size, size=size)
            sorted_out = sort_out(drafts, lookup)
            if not sorted_out.fresh:
                return sorted_out.found(())
            done = sequence(self._position, sorted_out.fresh, self._signers, time_ms=time_ms)
            try:
                _store(self._connection, done)
            except sqlite3.IntegrityError as error:
                if lookup is nothing_recorded:
                    raise _Repeated from error
                raise
        self._position = done.position  # only now: what is not durable never was
        return sorted_out.found(done.rows)

    def _lookup(self, effects: Sequence[Effect]) -> dict[Effect, Found]:
        sql = "SELECT seq, data FROM entries WHERE plan_id = ? AND effect = ?"
        execute, found = self._connection.execute, {}
        for effect in effects:
            row = execute(sql, effect).fetchone()
            if row is not None:
                found[effect] = Found(*row)
        return found

    def _drop_content(self, last: int) -> None:
        with self._writer, transaction(self._connection, "archive entries"):
            drop_content(_executing(self._connection), last, KEPT_KINDS)

    def blob_put(self, data: bytes) -> str:
        digest = sha256(data).hexdigest()
        with self._writer, transaction(self._connection, "keep a blob"):
            self._connection.execute(KEEP_BLOB, (digest, data))
        return digest

    def snapshot_put(self, name: str, seq: int, state: bytes) -> None:
        with self._writer, transaction(self._connection, "keep a snapshot"):
            self._connection.execute(KEEP_SNAPSHOT, (name, seq, state))

    def close(self) -> None:
        with self._writer:
            self._resources.close()


def _executing(connection: sqlite3.Connection) -> Callable[..., sqlite3.Cursor]:
    return lambda text, *values: connection.execute(text, values)


def _store(connection: sqlite3.Connection, done: Sequenced) -> None:
    """All rows of a step, inside the caller's transaction."""
    connection.executemany("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)", done.rows)
    if done.blobs:
        connection.executemany(STORE_BLOB, done.blobs)
    store_head(_executing(connection), done.head, done.rows[0].seq - 1)


class SqliteSource:
    """Queries of one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection: sqlite3.Connection | None = open_reader(path)
        self._lock = threading.Lock()

    def query(self, text: str, *values: object) -> list[Row]:
        with self._lock, sqlite_faults(f"read {self.path}"):
            if self._connection is None:
                raise sqlite3.ProgrammingError("the ledger is closed")
            return self._connection.execute(text, values).fetchall()

    @contextmanager
    def view(self) -> Iterator[SqlView]:
        with closing(open_reader(self.path)) as connection, sqlite_faults(f"read {self.path}"):
            connection.execute("BEGIN")

            def stream(text: str, *values: object) -> Iterator[Row]:
                with sqlite_faults(f"read {self.path}"):
                    yield from connection.execute(text, values)

            def complaint() -> str:
                # An index that lost an effect would let it be recorded twice.
                ((first,),) = stream("PRAGMA integrity_check(1)")
                return "" if first == "ok" else str(first)

            # NOT INDEXED: the order of the table itself, whatever an index may claim.
            yield SqlView(stream, hint="NOT INDEXED", complaint=complaint)

    def close(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def fault(error: sqlite3.Error, doing: str) -> Fault:
    """The fault that an error of SQLite is; raise it `from error`."""
    message = f"cannot {doing}: {error}"
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return PermanentFault(message)
    if code in _TEMPORARY or code & 0xFF in _TEMPORARY:
        return TemporaryFault(message, retry_after_ms=RETRY_AFTER_MS)
    if code & 0xFF in _DAMAGED:
        return Damaged(message)
    return PermanentFault(message)


@contextmanager
def sqlite_faults(doing: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise fault(error, doing) from error


@contextmanager
def transaction(connection: sqlite3.Connection, doing: str) -> Iterator[None]:
    """All of it, durably, or nothing: also when what goes wrong is an interrupt."""
    with sqlite_faults(doing):
        try:
            connection.execute("BEGIN IMMEDIATE")
            yield
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def lock_file(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def _lock(path: Path) -> int:
    """Be the only writer, of a file that is made if it is missing.

    SQLite's own lock is held per transaction only; between two of ours no other writer may append,
    because the frontier is kept in memory.
    """
    with faults(f"open {path}"):
        try:
            path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            descriptor = files.lock_alone(lock_file(path))
        except files.LockHeld as held:
            message = f"{path} has another writer: process {held.holder}"
            raise PermanentFault(message) from held
        create(path)
        return descriptor


def create(path: Path) -> None:
    """Make an empty file under its name, durably; nothing if there is one."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640))
    files.sync_directory(path.parent)


def open_writer(path: Path) -> sqlite3.Connection:
    """A connection that writes; what was asked of SQLite is read back."""
    with sqlite_faults(f"open {path}"):
        connection = _connect(path, "rw")
        try:
            _set(connection, path, "journal_mode", "WAL", reads="wal")
            _set(connection, path, "synchronous", "FULL", reads=2)
            _set(connection, path, "foreign_keys", "ON", reads=1)
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
            connection.execute("PRAGMA cache_size = -65536")  # KiB
            _migrate(connection)
        except BaseException:
            connection.close()
            raise
    return connection


def open_reader(path: Path) -> sqlite3.Connection:
    if not path.is_file():
        raise PermanentFault(f"there is no ledger at {path}")
    with sqlite_faults(f"read {path}"):
        connection = _connect(path, "ro")
        try:
            connection.execute("PRAGMA query_only = ON")
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA cell_size_check = ON")
            (applied,) = connection.execute("PRAGMA user_version").fetchone()
            if missing_migrations("sqlite", applied):
                raise PermanentFault(f"{path} is not a ledger, or one of an earlier release")
        except BaseException:
            connection.close()
            raise
    return connection


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,  # each connection is used under a lock of its own
    )


def _set(
    connection: sqlite3.Connection, path: Path, pragma: str, value: str, *, reads: object
) -> None:
    """A pragma that cannot be had is no error to SQLite; the row it answers with says so."""
    connection.execute(f"PRAGMA {pragma} = {value}")
    (found,) = connection.execute(f"PRAGMA {pragma}").fetchone()
    if found != reads:
        raise PermanentFault(f"{path}: SQLite refuses {pragma} = {value} (it stays {found!r})")


def _migrate(connection: sqlite3.Connection) -> None:
    (applied,) = connection.execute("PRAGMA user_version").fetchone()
    for migration in missing_migrations("sqlite", applied):
        connection.executescript(
            f"BEGIN IMMEDIATE;\n{migration.sql}\nPRAGMA user_version = {migration.number};\nCOMMIT;"
        )
