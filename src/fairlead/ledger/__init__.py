"""The ledger: SQLite (the embedded default), PostgreSQL and memory behind one port. README.md."""

from fairlead.ledger.keys import KeyDirectory, MemoryKeys
from fairlead.ledger.memory import MemoryLedger
from fairlead.ledger.sqlite import SqliteLedger, SqliteReader

__all__ = ["KeyDirectory", "MemoryKeys", "MemoryLedger", "SqliteLedger", "SqliteReader"]
