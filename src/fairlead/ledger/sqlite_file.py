"""A SQLite file as the ledger wants it: WAL, synced in full, one writer, faults translated."""

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairlead.ledger.disk import sync_directory
from fairlead.ledger.migrations import missing
from fairlead.ports.faults import Fault, PermanentFault, TemporaryFault
from fairlead.ports.ledger import Damaged

BUSY_TIMEOUT_S = 5.0
# Space comes back when somebody cleans up: no use in trying sooner.
RETRY_AFTER_MS = 1_000
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
def faults(doing: str) -> Iterator[None]:
    """Translate whatever SQLite raises inside."""
    try:
        yield
    except sqlite3.Error as error:
        raise fault(error, doing) from error


@contextmanager
def transaction(connection: sqlite3.Connection, doing: str) -> Iterator[None]:
    """All of it, durably, or nothing: also when what goes wrong is an interrupt."""
    with faults(doing):
        try:
            connection.execute("BEGIN IMMEDIATE")
            yield
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def lock_file(path: Path) -> Path:
    """The file beside a ledger that its writer holds locked."""
    return path.with_name(path.name + ".lock")


def lock(path: Path) -> int:
    """Be the only writer as long as the returned descriptor is open. The kernel forgets the dead.

    SQLite's own lock is held per transaction only; between two of ours nobody may append, because
    the frontier is kept in memory.
    """
    descriptor = os.open(lock_file(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.read(descriptor, 20).decode("ascii", "replace").strip() or "unknown"
        os.close(descriptor)
        raise PermanentFault(f"{path} has another writer: process {holder}") from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
    return descriptor


def create(path: Path) -> None:
    """Make an empty file under its name, durably; nothing if there is one."""
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640))
    sync_directory(path.parent)


def open_writer(path: Path) -> sqlite3.Connection:
    """A connection that writes; what was asked of SQLite is read back."""
    with faults(f"open {path}"):
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
    """A connection that only reads."""
    if not path.is_file():
        raise PermanentFault(f"there is no ledger at {path}")
    with faults(f"read {path}"):
        connection = _connect(path, "ro")
        try:
            connection.execute("PRAGMA query_only = ON")
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA cell_size_check = ON")
            (applied,) = connection.execute("PRAGMA user_version").fetchone()
            if missing("sqlite", applied):
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
    for migration in missing("sqlite", applied):
        connection.executescript(
            f"BEGIN IMMEDIATE;\n{migration.sql}\nPRAGMA user_version = {migration.number};\nCOMMIT;"
        )
