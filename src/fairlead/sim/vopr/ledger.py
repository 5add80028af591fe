"""The real ledger on a simulated disk: one connection, opened again after each crash."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fairlead.ledger.entries import first_entry
from fairlead.ledger.keys import KeyDirectory, SecretKey
from fairlead.ledger.sqlite import SqliteLedger, SqliteSession, view_of
from fairlead.ledger.sqlite_schema import migrate
from fairlead.ledger.store import Found, SqlView
from fairlead.ledger.witness import Witness
from fairlead.ledger.writing import begin
from fairlead.ports.ledger import Draft, Entry
from fairlead.sim.vopr.disk import SimDisk

FILE, LEDGER = Path("/ledger.db"), "5e11edce00000000"
READ_AT_ONCE = 100_000
CHECKPOINT_EVERY = 12
"""Appends between checkpoints of SQLite's log; more often than on a machine: they are crashed into,
too."""


def open_sim(disk: SimDisk) -> Any:
    """A connection to the ledger's file."""
    connection = cast(Any, disk.connect(str(FILE)))
    # In the exclusive mode the log needs no memory that is shared with other processes.
    for pragma in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = FULL"):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    # By hand, below: apsw would raise what SQLite ignores when its own checkpoint fails.
    connection.execute("PRAGMA wal_autocheckpoint = 0").fetchall()
    return connection


class SimKeys(KeyDirectory):
    """Keys that follow from a seed and survive every crash."""

    def __init__(self, seed: int) -> None:
        super().__init__("/dev/null")
        self._seed = seed

    def create(self) -> SecretKey:
        secret = sha256(b"%d %d" % (self._seed, len(self._loaded))).digest()
        key = SecretKey(Ed25519PrivateKey.from_private_bytes(secret))
        self._loaded[key.key_id] = key
        return key


class SimSession(SqliteSession):
    """Views look through the one connection: no other thread writes meanwhile."""

    heads_every = 50
    """An opening verifies what came after the last kept head. At the distance of a real ledger no
    schedule would have one."""

    @contextmanager
    def view(self) -> Iterator[SqlView]:
        yield view_of(self._connection, self.path)


class SimLedger(SqliteLedger):
    """A ledger on a simulated disk. `acknowledged`: what `append` returned, for a checker."""

    def __init__(self, disk: SimDisk, keys: KeyDirectory, *, time_ms: int) -> None:
        connection = open_sim(disk)
        self._connection, self._since = connection, 0
        migrate(connection)
        disk.sync()  # as `sync_recovered` does
        session = SimSession(FILE, connection)
        begin(session, keys, lambda keys: first_entry(keys, LEDGER, time_ms))
        self.acknowledged: list[Entry] = []
        super().__init__(session, session, keys, ExitStack())

    def stored(self) -> list[Found]:
        """The bytes of all entries, as the head covers them; nothing is parsed."""
        return Witness(self._query, self._covering).run(0, READ_AT_ONCE)

    def append(self, drafts: Sequence[Draft], *, expected_size: int | None = None) -> list[Entry]:
        made = super().append(drafts, expected_size=expected_size)
        self.acknowledged += made
        self._since += 1
        if self._since >= CHECKPOINT_EVERY:
            self._since = 0
            with suppress(sqlite3.Error):
                self._connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
        return made
