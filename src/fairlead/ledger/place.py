"""Where ledgers are kept, and what opens them."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairlead.ledger.reading import Reading
    from fairlead.ledger.sqlite import SqliteLedger

FILE, KEYS = "ledger.db", "keys"


def state_directory() -> Path:
    """$FAIRLEAD_STATE; else /var/lib for root, the XDG state directory for everybody else."""
    given = os.environ.get("FAIRLEAD_STATE")
    if given:
        return Path(given)
    if os.geteuid() == 0:
        return Path("/var/lib/fairlead")
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "fairlead"


def default_ledger() -> Path:
    """The ledger of this machine's control plane."""
    return state_directory() / FILE


def open_file(path: Path) -> "SqliteLedger":
    """A ledger for writing, with its keys in the directory `keys` beside it."""
    from fairlead.ledger import KeyDirectory, SqliteLedger  # noqa: PLC0415 - see the package

    return SqliteLedger.open(path, KeyDirectory(path.parent / KEYS))


def open_for_reading(place: str | Path) -> "Reading":
    """A ledger's file, or a PostgreSQL database as `postgresql://…`."""
    if str(place).startswith(("postgresql://", "postgres://")):
        from fairlead.ledger.postgres import PostgresReader  # noqa: PLC0415 - an extra

        return PostgresReader(str(place))
    from fairlead.ledger import SqliteReader  # noqa: PLC0415 - see the package

    return SqliteReader(place)
