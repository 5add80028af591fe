"""Makes the states of the control plane again from every entry, those of archives included.

A start does this by itself while the ledger has its entries. Where they are archived and no entry
confirms a kept state (a ledger of an earlier release, a row that was changed), it needs the
segments, which only an operator can name.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fairlead.api import access
from fairlead.engine.gpu import checkpoint
from fairlead.engine.gpu.projection import Projection
from fairlead.ledger.segment import open_segment
from fairlead.ledger.writing import StoreWriter
from fairlead.ports.ledger import Damaged, Entry, Progress

PAGE = 1_000


def rebuild(
    ledger: StoreWriter[Any],
    archive: Path | None,
    progress: Progress | None,
    *,
    dry_run: bool = False,
) -> int:
    """Fold everything, keep the states, and record what they are; returns the last entry."""
    if ledger.archived_to():
        if archive is None:
            raise Damaged(f"entries 1 to {ledger.archived_to()} are archived: say where")
        in_archive = ledger.verify_archive(archive)
        if not in_archive.ok:
            raise Damaged(f"the archive does not verify: {in_archive.problem}")
    rights, projection, total = access.AccessState(), Projection(), ledger.head().head.size
    for entry in _all(ledger, archive):
        projection.apply(entry)
        if entry.kind in access.KINDS:
            rights.fold(entry)
        if progress is not None and entry.seq % PAGE == 0:
            progress(entry.seq, total)
    seq = projection.seq
    if dry_run:
        return seq
    ledger.snapshot_put(checkpoint.NAME, seq, checkpoint.packed(projection))
    ledger.snapshot_put(access.SNAPSHOT, seq, access.encode(rights))
    return seq


def _all(ledger: StoreWriter[Any], archive: Path | None) -> Iterator[Entry]:
    """In order, none left out and none twice; what the segments hold was compared with the tree."""
    last, end = 0, ledger.archived_to()
    if archive is not None and end:
        name = ledger.head().head.ledger
        for path in sorted(archive.glob(f"{name}-*.jsonl")):
            with open_segment(path) as segment:
                for entry in segment.entries():
                    if entry.seq == last + 1:
                        last = entry.seq
                        yield entry
    while page := ledger.entries(last, PAGE):
        yield from page
        last = page[-1].seq
