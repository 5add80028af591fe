"""What may be in a ledger's SQLite file: exactly what its migrations make, and nothing else.

A trigger could change what is appended, a view could take the place of a table, an index over an
expression runs code of its maker. So a file is compared, before the first query, with one that the
migrations made in memory.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import lru_cache
from typing import NamedTuple

from fairlead.ledger import store
from fairlead.ports.ledger import Damaged

# As SQLite's security page advises for files that others may have written. Read back where SQLite
# has an answer: a refused pragma is no error to it.
GUARDS = (("trusted_schema", "OFF", 0), ("cell_size_check", "ON", 1), ("mmap_size", "0", 0))


class Defined(NamedTuple):
    """One object of a schema."""

    type: str
    table: str
    sql: str


Schema = dict[str, Defined]


def guard(connection: sqlite3.Connection) -> str:
    """Set what protects a connection from a hostile file; answers what SQLite refused."""
    if hasattr(connection, "enable_load_extension"):
        connection.enable_load_extension(False)
    config: Callable[[int, bool], None] | None = getattr(connection, "setconfig", None)
    if config is not None:  # Python 3.12 and later
        config(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)  # type: ignore[attr-defined,unused-ignore]
    for pragma, value, wanted in GUARDS:
        connection.execute(f"PRAGMA {pragma} = {value}")
        row = connection.execute(f"PRAGMA {pragma}").fetchone()
        if row is not None and row[0] != wanted:
            return f"SQLite refuses {pragma} = {value} (it stays {row[0]!r})"
    return ""


def version_of(connection: sqlite3.Connection) -> int:
    (applied,) = connection.execute("PRAGMA user_version").fetchone()
    return int(applied)


def missing(connection: sqlite3.Connection) -> list[tuple[int, str, str]]:
    """The migrations that a file lacks; refuses one of a later release."""
    return store.missing_migrations("sqlite", version_of(connection))


def migrate(connection: sqlite3.Connection) -> None:
    for version, _, sql in missing(connection):
        connection.executescript(
            f"BEGIN IMMEDIATE;\n{sql}\nPRAGMA user_version = {version};\nCOMMIT;"
        )


def check(connection: sqlite3.Connection) -> None:
    """Raises `Damaged` for anything that the migrations so far do not make."""
    if found := problem(connection):
        raise Damaged(found)


def problem(connection: sqlite3.Connection) -> str:
    """What a file has that the migrations so far do not make, or lacks; empty if nothing."""
    version = version_of(connection)
    found, wanted = _read(connection), _expected(version)
    for name in sorted(found.keys() - wanted.keys()):
        type, table, _ = found[name]
        where = f" on {table}" if table != name else ""
        return (
            f"the ledger's file has a {type} that is not of this release: {name!r}{where}; it "
            "could change what is recorded. Find out who made it, then restore a backup, or drop it"
        )
    for name, defined in sorted(wanted.items()):
        if name not in found:
            return f"the ledger's file lacks its {defined.type} {name!r}"
        if found[name] != defined:
            return f"the {defined.type} {name!r} of the ledger's file was changed"
    return ""


def _read(connection: sqlite3.Connection) -> Schema:
    rows = connection.execute("SELECT name, type, tbl_name, coalesce(sql, '') FROM sqlite_master")
    return {name: Defined(type, table, " ".join(sql.split())) for name, type, table, sql in rows}


@lru_cache
def _expected(version: int) -> Schema:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for number, _, sql in store.missing_migrations("sqlite", 0):
            if number <= version:
                connection.executescript(sql)
        return _read(connection)
