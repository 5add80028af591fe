"""Where ledgers are kept, and what opens them.

Adapters are imported on use: most commands only ask where a ledger is, and should not wait for
cryptography (40 ms) to learn it.
"""

from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlead.host import files
from fairlead.host.paths import state_directory
from fairlead.ports.faults import Fault, PermanentFault

if TYPE_CHECKING:
    from fairlead.ledger.reading import StoreReader
    from fairlead.ledger.sqlite import SqliteLedger
    from fairlead.ledger.writing import StoreWriter

FILE, KEYS, ELSEWHERE = "ledger.db", "keys", "ledger.elsewhere"


def default_ledger() -> Path:
    return state_directory() / FILE


def is_postgres(place: str | Path) -> bool:
    return str(place).startswith(("postgresql://", "postgres://"))


def file_of(place: str) -> Path:
    """The file of a ledger that is kept in one, for what can be done to files alone."""
    if is_postgres(place):
        raise PermanentFault("this is done to a ledger's file, and not to one in PostgreSQL")
    return Path(place)


def open_up(data: Path, address: str | None, *, take_over: bool = False) -> "StoreWriter[Any]":
    """The ledger of the control plane of a directory; in PostgreSQL where there is an address.

    `take_over`: the caller leads by an election; one in PostgreSQL is taken from its last leader.
    A directory stays with its ledger: runs that another one knows nothing of would be ended. One
    that does not continue what was seen here before is refused.
    """
    from fairlead.ledger.seen import check_seen, remember  # noqa: PLC0415 - loads the keys

    ledger = _open_up(data, address, take_over=take_over)
    with ExitStack() as undo:
        undo.callback(ledger.close)
        check_seen(ledger, data)
        with suppress(Fault):  # no room for it: the next start compares with what is there
            remember(ledger, data)
        undo.pop_all()
    return ledger


def _open_up(data: Path, address: str | None, *, take_over: bool) -> "StoreWriter[Any]":
    file, mark = data / FILE, data / ELSEWHERE
    if address is None:
        if mark.exists():
            raise PermanentFault(f"the ledger of {data} is in PostgreSQL: say where with --ledger")
        return open_file(file)
    if file.exists():
        raise PermanentFault(f"{file} is the ledger of this directory; take another with --data")
    from fairlead.ledger.keys import KeyDirectory  # noqa: PLC0415 - as above
    from fairlead.ledger.postgres import PostgresLedger  # noqa: PLC0415 - an extra

    ledger = PostgresLedger.open(
        address, KeyDirectory(data / KEYS), alone=True, take_over=take_over
    )
    try:
        files.replace(mark, b"")  # durable: a directory that forgot it would begin another ledger
    except OSError as error:
        ledger.close()
        raise PermanentFault(f"cannot write {mark}: {error.strerror}") from error
    return ledger


def open_file(path: Path) -> "SqliteLedger":
    """A ledger for writing, with its keys in the directory `keys` beside it."""
    from fairlead.ledger.keys import KeyDirectory  # noqa: PLC0415 - as above
    from fairlead.ledger.sqlite import SqliteLedger  # noqa: PLC0415 - as above

    return SqliteLedger.open(path, KeyDirectory(path.parent / KEYS))


def open_for_reading(place: str | Path, *, inspect: bool = False) -> "StoreReader":
    """A ledger's file, or a PostgreSQL database as `postgresql://…`. `inspect`: to be verified,
    whatever else is in the database."""
    if is_postgres(place):
        from fairlead.ledger.postgres import PostgresReader  # noqa: PLC0415 - an extra

        return PostgresReader(str(place), inspect=inspect)
    from fairlead.ledger.sqlite import SqliteReader  # noqa: PLC0415 - as above

    return SqliteReader(place, inspect=inspect)
