"""A ledger and keys in memory: the same promises but durability, for tests that need no file."""

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from fairlead.ledger.entries import first_entry
from fairlead.ledger.keys import KeyDirectory, SecretKey
from fairlead.ledger.sqlite import SqliteLedger, SqliteSession, view_of
from fairlead.ledger.sqlite_schema import migrate
from fairlead.ledger.store import SqlView
from fairlead.ledger.writing import begin


class MemoryKeys(KeyDirectory):
    """Keys that live as long as the process."""

    def __init__(self) -> None:
        super().__init__("/dev/null")

    def create(self) -> SecretKey:
        key = SecretKey.generate()
        self._loaded[key.key_id] = key
        return key


class MemorySession(SqliteSession):
    """One connection for reading and writing; a view is a copy."""

    @contextmanager
    def view(self) -> Iterator[SqlView]:
        with closing(_connect()) as copy:
            with self._lock:
                self._connection.backup(copy)
            yield view_of(copy, self.path)


class MemoryLedger(SqliteLedger):
    """A ledger that lives as long as the object."""

    def __init__(
        self, signers: KeyDirectory | None = None, *, ledger_id: str = "", time_ms: int = 0
    ) -> None:
        keys, self.connection = signers or MemoryKeys(), _connect()
        migrate(self.connection)
        session = MemorySession(Path("memory"), self.connection)
        begin(session, keys, lambda keys: first_entry(keys, ledger_id, time_ms))
        super().__init__(session, session, keys, ExitStack())


def _connect() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
