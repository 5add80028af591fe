"""The ledger in one SQLite file: the embedded default.

    with SqliteLedger.open("ledger.db", KeyDirectory("keys")) as ledger: ...
    with SqliteReader("ledger.db") as reader: ...        # beside a running writer, without a key

One process writes, which a lock beside the file makes sure of; it keeps the tree's frontier in
memory, so an append reads nothing but the effects it must not repeat.
"""

import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from hashlib import sha256
from pathlib import Path
from typing import Self

from fairlead.core.audit import Frontier
from fairlead.ledger.entries import Prepared, prepare
from fairlead.ledger.keys import Signers
from fairlead.ledger.opening import check_opening
from fairlead.ledger.reading import Reading
from fairlead.ledger.sequence import (
    Effect,
    Lookup,
    Position,
    Sequenced,
    nothing_recorded,
    sequence,
    sort_out,
)
from fairlead.ledger.sqlite_file import create, lock, open_writer, transaction
from fairlead.ledger.sqlite_store import SqliteStore, read_kept
from fairlead.ledger.statements import KEPT_KINDS, created
from fairlead.ledger.store import HEAD_COLUMNS, Found, head_row
from fairlead.ledger.writing import Writing, passes_checkpoint
from fairlead.ports.faults import PermanentFault
from fairlead.ports.ledger import HeadMoved

_MARKS = ", ".join("?" * len(HEAD_COLUMNS.split(",")))
_EXCLUDED = "(" + ", ".join(f"excluded.{name.strip()}" for name in HEAD_COLUMNS.split(",")) + ")"


class _Repeated(Exception):
    """An effect is recorded already."""


class SqliteReader(Reading):
    """Reads a ledger's file."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(SqliteStore(Path(path)))


class SqliteLedger(Writing):
    """Writes a ledger's file; `open` is the way to get one."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        store: SqliteStore,
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
            try:
                create(path)
                descriptor = lock(path)
            except OSError as error:
                raise PermanentFault(f"cannot open {path}: {error.strerror}") from error
            resources.callback(os.close, descriptor)
            connection = resources.enter_context(closing(open_writer(path)))
            if read_kept(connection) is None:
                now_ms = time.time_ns() // 1_000_000 if time_ms is None else time_ms
                _begin(connection, signers, ledger_id or secrets.token_hex(8), now_ms)
            store = resources.enter_context(closing(SqliteStore(path)))
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
            self._connection.execute(
                "UPDATE entries SET data = NULL WHERE seq <= ? AND data IS NOT NULL "
                f"AND kind NOT IN ({', '.join('?' * len(KEPT_KINDS))})",
                (last, *KEPT_KINDS),
            )
            self._connection.execute("DELETE FROM blobs WHERE seq <= ?", (last,))
            self._connection.execute("UPDATE kept SET archived_to = ?", (last,))

    def blob_put(self, data: bytes) -> str:
        """Keep a blob durably, once."""
        digest = sha256(data).hexdigest()
        with self._writer, transaction(self._connection, "keep a blob"):
            self._connection.execute(
                "INSERT INTO blobs (digest, data) VALUES (?, ?) ON CONFLICT DO UPDATE "
                "SET seq = NULL",
                (digest, data),
            )
        return digest

    def snapshot_put(self, name: str, seq: int, state: bytes) -> None:
        """Keep a projection's state durably in place of its last one."""
        with self._writer, transaction(self._connection, "keep a snapshot"):
            self._connection.execute(
                "INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?)", (name, seq, state)
            )

    def close(self) -> None:
        """Let another writer in; closing again does nothing."""
        with self._writer:
            self._resources.close()


def _begin(connection: sqlite3.Connection, signers: Signers, ledger: str, time_ms: int) -> None:
    """The first entry, which introduces the ledger and its key."""
    key = signers.create()
    draft = prepare(created(ledger, key, time_ms=time_ms), own=True)
    done = sequence(Position(ledger, 0, key.key_id, Frontier()), [draft], signers, time_ms=time_ms)
    with transaction(connection, "begin a ledger"):
        _store(connection, done)


def _store(connection: sqlite3.Connection, done: Sequenced) -> None:
    """All rows of a step, inside the caller's transaction."""
    connection.executemany("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)", done.rows)
    if done.blobs:
        connection.executemany(
            "INSERT INTO blobs (digest, data, seq) VALUES (?, ?, ?) ON CONFLICT DO UPDATE "
            "SET seq = excluded.seq WHERE seq IS NOT NULL",
            done.blobs,
        )
    head, size = head_row(done.head), done.rows[0].seq - 1
    connection.execute(
        f"INSERT INTO kept (one, {HEAD_COLUMNS}) VALUES (1, {_MARKS}) ON CONFLICT DO UPDATE SET "
        f"({HEAD_COLUMNS}) = {_EXCLUDED}",
        head,
    )
    if passes_checkpoint(size, done.head.head.size):
        connection.execute(f"INSERT INTO checkpoints ({HEAD_COLUMNS}) VALUES ({_MARKS})", head)
