"""The ledger in one SQLite file: the embedded default.

WAL, synced in full. One process writes, which a lock beside the file makes sure of; it keeps the
tree's frontier in memory, so an append reads nothing but the effects it must not repeat. Reads have
a connection of their own: they see what is durable and never wait for the writer, nor it for them.

A backup is a whole ledger as of one moment. Restoring one loses what came after it; the restored
ledger says so in a signed entry that begins a new epoch, so that a holder of a later head learns
that entries are gone, and how many, instead of finding a log that seems to be forged.
"""

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Self

from fairlead.core.audit import Head, SignedHead
from fairlead.host import files
from fairlead.ledger import sqlite_schema, store
from fairlead.ledger.entries import Numbered, Prepared, number, store_beside
from fairlead.ledger.keys import KeyDirectory
from fairlead.ledger.reading import StoreReader
from fairlead.ledger.writing import StoreWriter, begin
from fairlead.ports.faults import Fault, PermanentFault, TemporaryFault, faults
from fairlead.ports.ledger import Damaged, Entry, HeadMoved
from fairlead.schema.border import printable

BUSY_TIMEOUT_S = 5.0
# Pages that may wait in the log before they are moved into the file: a bulk of appends then
# syncs the file once per 16 MiB rather than once per 4.
WAL_PAGES = 4_000
CACHE_KIB = 1_024
"""Pages in memory of each connection: the upper levels of the indexes. What is below them, the
kernel has: 4 MiB append no faster."""

_NO_ROOM = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_IOERR_SHMSIZE}
"""The last: a full disk when the shared-memory file beside the log has to grow."""
_TEMPORARY = _NO_ROOM | {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_INTERRUPT}
_DURABLE = (("journal_mode", "WAL", "wal"), ("synchronous", "FULL", 2), ("foreign_keys", "ON", 1))
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


class SqliteReader(StoreReader):
    """Reads a ledger's file. `inspect`: also one with foreign tables, to be verified: the answer
    says so."""

    def __init__(self, path: str | Path, *, inspect: bool = False) -> None:
        connection = open_reader(Path(path), inspect=inspect)
        super().__init__(SqliteSession(Path(path), connection, inspect=inspect))


class SqliteLedger(StoreWriter[sqlite3.Connection]):
    """Writes a ledger's file; `open` is the way to get one."""

    @classmethod
    def open(cls, path: str | Path, signers: KeyDirectory) -> Self:
        """Open a ledger for writing, or begin one.

        Damage at the end of the log, where a crash may have left it, is found here (`Damaged`).
        """
        path = Path(path)
        with ExitStack() as resources:
            with faults(f"open {path}"):
                path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
                # SQLite's own lock is held per transaction only; between two of ours no other
                # writer may append, because the frontier is kept in memory.
                resources.callback(os.close, files.lock_alone(lock_file(path), of=path))
                create(path)
            session = resources.enter_context(closing(SqliteSession(path, open_writer(path))))
            with faults(f"sync {path}"):
                sync_recovered(path)
            begin(session, signers)
            source = resources.enter_context(closing(SqliteSession(path, open_reader(path))))
            return cls(session, source, signers, resources)

    def head(self) -> SignedHead:
        self._source.query("SELECT 1")  # a closed ledger has no head
        return self._position.signed

    def _covering(self, seq: int) -> Head:
        """No other process writes. An append that is being made is waited for."""
        if seq > self._position.signed.head.size:
            self._session.run("wait for an append", lambda _: None)
        return self._position.signed.head

    def _record(
        self, drafts: Sequence[Prepared], *, time_ms: int, expected_size: int | None
    ) -> list[store.Found]:
        """Hardly any effect is a repeated one, and the index over them is written anyway: only
        when it refuses are they looked up."""

        def append(connection: sqlite3.Connection) -> list[store.Found]:
            size = self._position.frontier.size
            if expected_size not in (None, size):
                raise HeadMoved(expected=expected_size or 0, size=size)
            try:
                return self._store(connection, drafts, {}, time_ms)
            except sqlite3.IntegrityError:
                known = dict(_recorded(connection, drafts))
                return self._store(connection, drafts, known, time_ms)

        return self._session.run("append to the ledger", append)

    def _store(
        self,
        connection: sqlite3.Connection,
        drafts: Sequence[Prepared],
        known: Mapping[store.Effect, store.Found],
        time_ms: int,
    ) -> list[store.Found]:
        done = number(self._position, drafts, known, self._signers, time_ms=time_ms)
        if done.rows:
            with self._session.changing(connection):
                self._session.store(connection, done)
            self._position = done.position  # only now: what is not durable never was
        return done.answers


def _recorded(
    connection: sqlite3.Connection, drafts: Sequence[Prepared]
) -> Iterator[tuple[store.Effect, store.Found]]:
    sql = "SELECT seq, data FROM entries WHERE plan_id = ? AND effect = ?"
    for draft in drafts:
        for row in connection.execute(sql, (draft.plan_id, draft.effect)):
            yield (draft.plan_id, draft.effect), store.Found(*row)


class SqliteSession:
    """A connection to one file, for writing or for reading."""

    heads_every: int | None = None
    """Entries from one kept head to the next; None: as the store has it."""

    def __init__(
        self, path: Path, connection: sqlite3.Connection, *, inspect: bool = False
    ) -> None:
        self.path, self._connection, self._lock = path, connection, threading.Lock()
        self._inspect = inspect

    def run(self, doing: str, work: Callable[[sqlite3.Connection], store.T]) -> store.T:
        with self._lock, sqlite_faults(doing):
            return work(self._connection)

    def query(self, text: str, *values: object) -> list[store.Row]:
        return self.run(f"read {self.path}", lambda found: found.execute(text, values).fetchall())

    @contextmanager
    def view(self) -> Iterator[store.SqlView]:
        opening = open_reader(self.path, inspect=self._inspect)
        with closing(opening) as connection, sqlite_faults(f"read {self.path}"):
            connection.execute("BEGIN")
            yield view_of(connection, self.path)

    @contextmanager
    def changing(self, connection: sqlite3.Connection) -> Iterator[store.Execute]:
        """All of it, durably, or nothing: also when what goes wrong is an interrupt."""
        try:
            connection.execute("BEGIN IMMEDIATE")
            yield _executing(connection)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def store(self, connection: sqlite3.Connection, done: Numbered) -> None:
        connection.executemany("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)", done.rows)
        store_beside(_executing(connection), done, heads_every=self.heads_every)

    def close(self) -> None:
        with self._lock:
            self._connection.close()


def _executing(connection: sqlite3.Connection) -> store.Execute:
    return lambda text, *values: connection.execute(text, values)


def view_of(connection: sqlite3.Connection, path: Path) -> store.SqlView:
    def stream(text: str, *values: object) -> Iterator[store.Row]:
        with sqlite_faults(f"read {path}"):
            yield from connection.execute(text, values)

    def complaint() -> str:
        if problem := sqlite_schema.problem(connection):
            return problem
        # An index that lost an effect would let it be recorded twice.
        ((first,),) = stream("PRAGMA integrity_check(1)")
        return "" if first == "ok" else str(first)

    # NOT INDEXED: the order of the table itself, whatever an index may claim.
    return store.SqlView(stream, hint="NOT INDEXED", complaint=complaint)


@contextmanager
def sqlite_faults(doing: str) -> Iterator[None]:
    """Translate SQLite's errors inside into faults."""
    try:
        yield
    except UnicodeDecodeError as error:  # in a name of the schema, as the editor of a file wrote it
        raise Damaged(f"cannot {doing}: a text in it is not UTF-8") from error
    except MemoryError as error:  # a row whose edited length is larger than any
        why = "a row takes more memory than there is; it may be damaged"
        raise PermanentFault(f"cannot {doing}: {why}") from error
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
        kind: type[Fault] = PermanentFault
        if {code, code & 0xFF} & _TEMPORARY:
            kind = TemporaryFault
        elif code & 0xFF in _DAMAGED:
            kind = Damaged
        full = " (the disk is full)" if code == sqlite3.SQLITE_IOERR_SHMSIZE else ""
        # Python quotes a column that is no text, as the editor of a file wrote it.
        raise kind(f"cannot {doing}: {printable(str(error))}{full}") from error


def lock_file(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def create(path: Path) -> None:
    """Make an empty file under its name, durably; nothing if there is one."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640))
    files.sync_directory(path.parent)


def sync_recovered(path: Path) -> None:
    """Make durable what is read at an opening. A process that was killed between a write and its
    sync, or whose disk was full, leaves a log that SQLite recovers from and does not sync: what we
    show from it, and sign, would be gone after a power loss."""
    for file in (path.with_name(f"{path.name}-wal"), path):
        with suppress(FileNotFoundError):
            files.sync_file(file)


def open_writer(path: Path) -> sqlite3.Connection:
    """A connection that writes. Pragmas are read back: a refused one is no error to SQLite."""
    with sqlite_faults(f"open {path}"), _opening(path, "rw") as connection:
        for pragma, value, wanted in _DURABLE:
            connection.execute(f"PRAGMA {pragma} = {value}")
            (found,) = connection.execute(f"PRAGMA {pragma}").fetchone()
            if found != wanted:
                problem = f"SQLite refuses {pragma} = {value} (it stays {found!r})"
                raise PermanentFault(f"{path}: {problem}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        sqlite_schema.migrate(connection)
    return connection


def open_reader(path: Path, *, inspect: bool = False) -> sqlite3.Connection:
    if not path.is_file():
        raise PermanentFault(f"there is no ledger at {path} (--ledger says where)")
    with sqlite_faults(f"read {path}"), _opening(path, "ro", inspect=inspect) as connection:
        connection.execute("PRAGMA query_only = ON")
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        if sqlite_schema.missing(connection):
            raise PermanentFault(f"{path} is not a ledger, or one of an earlier release")
    return connection


@contextmanager
def _opening(path: Path, mode: str, *, inspect: bool = False) -> Iterator[sqlite3.Connection]:
    """A new connection, closed again if it cannot be prepared."""
    with ExitStack() as undo:
        connection = undo.enter_context(closing(_connect(path, mode)))
        if problem := sqlite_schema.guard(connection):
            raise PermanentFault(f"{path}: {problem}")
        sqlite_schema.missing(connection)  # of a later release: its tables may be others
        if not inspect:
            sqlite_schema.check(connection)
        yield connection
        undo.pop_all()


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,  # each connection is used under a lock of its own
    )


def backup(path: Path, target: Path) -> SignedHead:
    """Copy a ledger as it is now into a file that appears whole or not at all; returns its head."""
    if target.exists():
        raise PermanentFault(f"{target} is there already")
    with faults(f"write {target}"), files.draft(target) as draft:
        return _copy(path, Path(draft))


def restore(
    source: Path,
    path: Path,
    signers: KeyDirectory,
    *,
    time_ms: int,
    author: str,
    reason: str,
    lost: SignedHead | None = None,
    drop_snapshots: bool = False,
) -> Entry:
    """Put a backup where a ledger is to be, and begin a new epoch; returns the entry that says so.

    `lost`: the newest head that is known of the ledger that went. Refuses one that does not verify;
    `drop_snapshots`: the states that it keeps are not looked at, and not taken over.
    """
    if path.exists():
        raise PermanentFault(f"{path} is there already; move it away first")
    with SqliteReader(source) as reader:
        found = reader.verify(snapshots=not drop_snapshots)
        if not found.ok:
            raise Damaged(f"the backup {source} does not verify: {found.problem}")
        signers.load(reader.head().head.key_id)
    with faults(f"write {path}"), files.draft(path) as name:
        draft = Path(name)
        _copy(source, draft)
        # The epoch begins before the file gets its name: no crash leaves a restored ledger that
        # does not say so. Closing moves the log into the file, which is then whole by itself.
        with SqliteLedger.open(draft, signers) as ledger:
            if drop_snapshots:
                ledger.snapshots_drop()
            # Verifiers refuse an entry that is earlier than the one before it.
            time_ms = max(time_ms, ledger.head().head.time_ms)
            entry = ledger.begin_epoch(time_ms=time_ms, author=author, reason=reason, lost=lost)
        lock_file(draft).unlink()
    return entry


def _copy(source: Path, target: Path) -> SignedHead:
    with (
        closing(open_reader(source)) as reader,
        sqlite_faults(f"write {target}"),
        closing(sqlite3.connect(target)) as copy,
    ):
        reader.backup(copy)
        return store.read_kept(copy.execute)[0]
