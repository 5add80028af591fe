"""The newest checkpoint that a control plane saw, in a file beside its keys, not in the database.

An older copy of a whole ledger is true to itself: all its signatures hold, and rights that were
taken away since are there again. Only what was kept elsewhere shows it; this is the control plane's
own memory. A restore by `fairlead audit restore` records itself, and is no such copy.
"""

from pathlib import Path

from fairlead.core.audit import Head, check_consistency
from fairlead.core.canonical import canonical
from fairlead.host import files
from fairlead.ledger.reading import StoreReader
from fairlead.ports.faults import PermanentFault, faults
from fairlead.ports.ledger import Damaged, LedgerReader
from fairlead.schema.audit import read_head
from fairlead.schema.border import BadInput

SEEN = "ledger.seen"


def check_seen(ledger: StoreReader, directory: Path) -> None:
    """Raises `Damaged` where the ledger does not continue what was seen here."""
    path = directory / SEEN
    try:
        seen = read_head(path.read_bytes()).head
    except FileNotFoundError:
        return
    except (OSError, BadInput) as error:
        raise PermanentFault(f"cannot read {path}: {error}") from error
    head = ledger.head().head
    if seen.ledger != head.ledger or ledger.restored_after(seen.epoch):
        return
    if not _continues(ledger, seen, head):
        raise Damaged(
            f"the ledger, of {head.size} entries, does not continue the {seen.size} that this "
            "control plane saw: it was put back to an earlier state, or replaced. Restore it with "
            f"`fairlead audit restore`, which records that; or, to accept the loss, remove {path}"
        )


def _continues(ledger: StoreReader, seen: Head, head: Head) -> bool:
    return seen.size <= head.size and check_consistency(
        old_size=seen.size,
        old_root=bytes.fromhex(seen.root),
        new_size=head.size,
        new_root=bytes.fromhex(head.root),
        proof=ledger.consistency(seen.size, head.size),
    )


def remember(ledger: LedgerReader, directory: Path) -> None:
    """Keep the newest checkpoint, durably."""
    data, path = canonical(ledger.head().as_document()), directory / SEEN
    with faults(f"write {path}"):
        if not path.exists() or path.read_bytes() != data:
            files.replace(path, data)
