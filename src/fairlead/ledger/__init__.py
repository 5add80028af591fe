"""The ledger: SQLite (the embedded default), PostgreSQL and memory behind one port. README.md.

Names are imported on use: most commands only ask `place` where a ledger is, and should not wait
for cryptography (40 ms) to learn it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairlead.ledger.keys import KeyDirectory, MemoryKeys
    from fairlead.ledger.memory import MemoryLedger
    from fairlead.ledger.sqlite import SqliteLedger, SqliteReader

_MODULES = {
    "KeyDirectory": "keys",
    "MemoryKeys": "keys",
    "MemoryLedger": "memory",
    "SqliteLedger": "sqlite",
    "SqliteReader": "sqlite",
}

__all__ = ["KeyDirectory", "MemoryKeys", "MemoryLedger", "SqliteLedger", "SqliteReader"]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
