"""Backups of a SQLite ledger, taken beside a running writer, and the way back.

A backup is a whole ledger as of one moment. Restoring one loses what came after it; the restored
ledger says so in a signed entry that begins a new epoch, so that a holder of a later head learns
that entries are gone, and how many, instead of finding a log that seems to be forged.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from fairlead.core.audit import SignedHead
from fairlead.host import files
from fairlead.ledger.keys import KeyDirectory
from fairlead.ledger.sqlite import SqliteLedger, SqliteReader, lock_file, open_reader, sqlite_faults
from fairlead.ledger.store import read_kept
from fairlead.ports.faults import PermanentFault, faults
from fairlead.ports.ledger import Damaged, Entry


def backup(path: Path, target: Path) -> SignedHead:
    """Copy a ledger as it is now into a file that appears whole or not at all; returns its head."""
    if target.exists():
        raise PermanentFault(f"{target} is there already")
    with closing(open_reader(path)) as source, _whole(target) as draft:
        return _copy(source, draft)


def restore(
    source: Path,
    path: Path,
    signers: KeyDirectory,
    *,
    time_ms: int,
    author: str,
    reason: str,
    lost: SignedHead | None = None,
) -> Entry:
    """Put a backup where a ledger is to be, and begin a new epoch; returns the entry that says so.

    `lost`: the newest head that is known of the ledger that went. A backup that does not verify is
    refused, and nothing is written.
    """
    if path.exists():
        raise PermanentFault(f"{path} is there already; move it away first")
    with SqliteReader(source) as reader:
        found = reader.verify()
        if not found.ok:
            raise Damaged(f"the backup {source} does not verify: {found.problem}")
        signers.load(reader.head().head.key_id)
    with closing(open_reader(source)) as connection, _whole(path) as draft:
        _copy(connection, draft)
        # The epoch begins before the file gets its name: no crash leaves a restored ledger that
        # does not say so. Closing moves the log into the file, which is then whole by itself.
        with SqliteLedger.open(draft, signers) as ledger:
            entry = ledger.begin_epoch(time_ms=time_ms, author=author, reason=reason, lost=lost)
        lock_file(draft).unlink()
    return entry


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    with faults(f"write {path}"), files.draft(path) as draft:
        yield Path(draft)


def _copy(source: sqlite3.Connection, target: Path) -> SignedHead:
    with sqlite_faults(f"write {target}"), closing(sqlite3.connect(target)) as copy:
        source.backup(copy)
        return read_kept(copy.execute)[0]
