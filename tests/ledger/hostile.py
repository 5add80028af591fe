"""An attacker who may write to the database, knows SQL, and leaves no trace in the schema."""

import sqlite3
from contextlib import closing
from pathlib import Path


def attack(path: Path, script: str, *values: object) -> None:
    """Run SQL on a ledger's file without the guards against our own mistakes, then put them back.

    With values: one statement that has marks for them.
    """
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA ignore_check_constraints = ON")
        guards = database.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
        ).fetchall()
        for name, _ in guards:
            database.execute(f"DROP TRIGGER {name}")
        if values:
            database.execute(script, values)
        else:
            database.executescript(script)
        for _, sql in guards:
            database.execute(sql)
