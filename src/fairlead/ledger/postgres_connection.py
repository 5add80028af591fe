"""A PostgreSQL database as the ledger wants it: durable commits, one schema, faults translated."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, TypeVar

from fairlead.ledger.store import missing_migrations
from fairlead.ports.faults import RETRY_AFTER_MS, Fault, PermanentFault, TemporaryFault
from fairlead.ports.ledger import Damaged

try:
    import psycopg
    import psycopg.conninfo
    from psycopg import errors, sql
except ImportError as error:  # pragma: no cover - the extra is installed where this is tested
    raise PermanentFault(
        "a ledger in PostgreSQL needs psycopg: pip install 'fairlead[postgres]'"
    ) from error

T = TypeVar("T")
Connection = psycopg.Connection[tuple[Any, ...]]
Cursor = psycopg.Cursor[tuple[Any, ...]]

LOCK_TIMEOUT_MS = 10_000
CONNECT_TIMEOUT_S = 10
# The first half of the advisory locks' keys ("flea"); the second is the oid of a table of ours,
# so that ledgers in other schemas of the same database have other locks.
LOCK_SPACE = 0x666C6561
# Read back from the server: a commit that returned must survive the loss of power.
DURABLE = ("synchronous_commit", "fsync", "full_page_writes")
_DAMAGED = (errors.DataCorrupted, errors.IndexCorrupted)
LockNotAvailable = errors.LockNotAvailable


def fault(error: psycopg.Error, doing: str) -> Fault:
    """The fault that an error of PostgreSQL is; raise it `from error`."""
    message = f"cannot {doing}: {' '.join(str(error).split())}"
    if isinstance(error, _DAMAGED):
        return Damaged(message)
    if isinstance(error, errors.UndefinedTable):
        return PermanentFault("there is no ledger in this schema of the database")
    # OperationalError: no connection, no space, no memory, shutting down, timed out.
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return TemporaryFault(message, retry_after_ms=RETRY_AFTER_MS)
    return PermanentFault(message)


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
    try:
        yield
    except psycopg.Error as error:
        raise fault(error, doing) from error


class Database:
    """Opens connections to one schema of one database."""

    def __init__(self, dsn: str, schema: str) -> None:
        self._dsn, self.schema = dsn, schema

    def connect(self) -> Connection:
        """A connection whose commits are durable when they return; what was asked is read back."""
        with postgres_faults("connect"):
            connection = psycopg.connect(
                self._dsn,
                autocommit=True,
                connect_timeout=CONNECT_TIMEOUT_S,
                application_name="fairlead",
            )
        try:
            name = sql.Identifier(self.schema)
            connection.execute(sql.SQL("SET search_path TO {}").format(name))
            connection.execute("SET synchronous_commit = on")
            connection.execute(
                sql.SQL("SET lock_timeout = {}").format(sql.Literal(LOCK_TIMEOUT_MS))
            )
            for setting in DURABLE:
                row = connection.execute("SELECT current_setting(%s)", (setting,)).fetchone()
                if row is None or row[0] != "on":
                    raise PermanentFault(f"PostgreSQL runs with {setting} off; a ledger needs it")
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def one_moment(self) -> Iterator[Connection]:
        """A connection of its own, inside one repeatable read."""
        with closing(self.connect()) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            with connection.transaction():
                yield connection

    def migrate(self, connection: Connection) -> None:
        """Create or complete the tables; replicas that start together take turns."""
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s, 0)", (LOCK_SPACE,))
            name = sql.Identifier(self.schema)
            connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(name))
            connection.execute(
                "CREATE TABLE IF NOT EXISTS migrations (number int PRIMARY KEY, name text NOT NULL)"
            )
            for migration in missing_migrations("postgres", self.migrated(connection)):
                connection.execute(migration.sql.encode())
                connection.execute(
                    "INSERT INTO migrations VALUES (%s, %s)", (migration.number, migration.name)
                )

    def migrated(self, connection: Connection) -> int:
        """The number of the last migration that the schema has; 0 without any."""
        row = connection.execute(
            "SELECT to_regclass(%s) IS NULL", (f"{self.schema}.migrations",)
        ).fetchone()
        if row is None or row[0]:
            return 0
        found = connection.execute("SELECT coalesce(max(number), 0) FROM migrations").fetchone()
        return 0 if found is None else int(found[0])


class Session:
    """One connection, used by one thread at a time, opened again after it broke."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: Connection | None = database.connect()
        self._lock = threading.Lock()
        self._claim: Callable[[Connection], None] | None = None
        self._closed = False

    def renew(self, claim: Callable[[Connection], None]) -> None:
        """Do this first on every connection that takes the place of a broken one."""
        self._claim = claim

    def run(self, doing: str, work: Callable[[Connection], T]) -> T:
        """Do some work; if the connection turns out to be broken, once more on a new one.

        So the work must bear being done twice.
        """
        with self._lock, postgres_faults(doing):
            try:
                return work(self._open())
            except (psycopg.OperationalError, psycopg.InterfaceError):
                if self._connection is not None and not self._connection.broken:
                    raise
            return work(self._open())

    def _open(self) -> Connection:
        if self._closed:
            raise PermanentFault("the ledger is closed")
        if self._connection is None or self._connection.closed:
            connection = self._database.connect()
            try:
                if self._claim is not None:
                    self._claim(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._connection is not None:
                self._connection.close()
