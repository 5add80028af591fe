"""One place per adapter where a ledger can be opened, left and opened again."""

import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fairlead.ledger.keys import KeyDirectory
from fairlead.ledger.sqlite import SqliteLedger
from fairlead.ledger.writing import StoreWriter
from tests.ledger.drafts import TIME_MS
from tests.ledger.memory import MemoryKeys, MemoryLedger


class World(Protocol):
    """Where a ledger is kept."""

    name: str

    def open(self) -> StoreWriter:
        """Open it, or begin it. Opening again after `close` finds what was there."""


@dataclass
class MemoryWorld:
    """Memory forgets when it is let go, so the one ledger is handed out again."""

    name: str = "memory"
    _ledger: MemoryLedger | None = None

    def open(self) -> StoreWriter:
        self._ledger = self._ledger or MemoryLedger(MemoryKeys(), ledger_id="l", time_ms=TIME_MS)
        return self._ledger


@dataclass
class SqliteWorld:
    """A file and a directory of keys."""

    directory: Path
    name: str = "sqlite"
    keys: KeyDirectory = field(init=False)

    def __post_init__(self) -> None:
        self.keys = KeyDirectory(self.directory / "keys")

    @property
    def path(self) -> Path:
        return self.directory / "ledger.db"

    def open(self) -> StoreWriter:
        return SqliteLedger.open(self.path, self.keys)


@dataclass
class PostgresWorld:
    """A schema of its own, and a directory of keys that all replicas share."""

    address: str
    directory: Path
    name: str = "postgres"
    schema: str = field(default_factory=lambda: f"test_{secrets.token_hex(8)}")

    def open(self) -> StoreWriter:
        from fairlead.ledger.postgres import PostgresLedger  # noqa: PLC0415 - an extra

        return PostgresLedger.open(
            self.address, KeyDirectory(self.directory / "keys"), schema=self.schema
        )
