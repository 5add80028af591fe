"""Numbered SQL files, each applied once, in order, in a transaction of its own."""

from importlib.resources import files
from typing import NamedTuple

from fairlead.ports.faults import PermanentFault


class Migration(NamedTuple):
    """One file: `0001_ledger.sql`."""

    number: int
    name: str
    sql: str


def migrations(database: str) -> list[Migration]:
    """All files of a database (`sqlite`, `postgres`), in order."""
    found = []
    for file in files(__package__).joinpath(database).iterdir():
        number, _, name = file.name.removesuffix(".sql").partition("_")
        found.append(Migration(int(number), name, file.read_text()))
    return sorted(found)


def missing(database: str, applied: int) -> list[Migration]:
    """Those after `applied`, the number of the last one that the database has."""
    known = migrations(database)
    if applied > known[-1].number:
        raise PermanentFault(
            f"the ledger was written by a later release (its tables are at {applied}, "
            f"this release knows {known[-1].number})"
        )
    return known[applied:]
