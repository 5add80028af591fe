"""The reading half of the port, made of a store's few lookups; every adapter inherits it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Self

from fairlead.core.audit import Proof, SignedHead, consistency_proof, inclusion_proof
from fairlead.core.invariant import require
from fairlead.core.units import INTEGER_MAX
from fairlead.host import files
from fairlead.ledger.entries import NotAnEntry, parse
from fairlead.ledger.segment import verify_archive, write_segment
from fairlead.ledger.statements import CREATED, EPOCH, ROTATED, LedgerIdentity
from fairlead.ledger.store import Found, Store
from fairlead.ledger.verify import verify
from fairlead.ports.faults import faults
from fairlead.ports.ledger import (
    Archived,
    Damaged,
    Entry,
    Progress,
    ProjectionSnapshot,
    Verification,
)

LIMIT_MAX = 100_000
"""Entries in one answer: a projection reads page by page."""


class StoreReader:
    """A `LedgerReader` over any store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def entry(self, seq: int) -> Entry | None:
        found = self._store.found(min(seq, INTEGER_MAX))  # no database takes any number
        return None if found is None else entry_of(found)

    def entries(
        self,
        after: int = 0,
        limit: int = 1_000,
        *,
        kind: str | None = None,
        plan_id: str | None = None,
    ) -> list[Entry]:
        require(1 <= limit <= LIMIT_MAX, f"between 1 and {LIMIT_MAX} entries in one answer")
        after = min(after, INTEGER_MAX)
        found = self._store.select(after=after, limit=limit, kind=kind, plan_id=plan_id)
        return [entry_of(row) for row in found]

    def last(self, kind: str) -> Entry | None:
        found = self._store.newest(kind)
        return None if found is None else entry_of(found)

    def archived_to(self) -> int:
        return self._store.kept().archived_to

    def head(self) -> SignedHead:
        return self._store.kept().head

    def keys(self) -> Mapping[str, bytes]:
        return identity_at(self._store, self.head().head.size).keys

    def inclusion(self, seq: int, size: int) -> Proof:
        """Proof that entry `seq` is in the log of that size, from O(log n) stored nodes."""
        require(1 <= seq <= size <= self.head().head.size, "a proof is about what is there")
        return inclusion_proof(seq - 1, size, self._store.nodes)

    def consistency(self, old_size: int, new_size: int) -> Proof:
        require(0 <= old_size <= new_size <= self.head().head.size, "a log only grows")
        return consistency_proof(old_size, new_size, self._store.nodes)

    def blob_get(self, digest: str) -> bytes | None:
        return self._store.blob(digest)

    def snapshot_get(self, name: str) -> ProjectionSnapshot | None:
        return self._store.snapshot(name)

    def verify(
        self, held: Sequence[SignedHead] = (), *, progress: Progress | None = None
    ) -> Verification:
        """Follow the whole log as it is now; what is appended meanwhile is not looked at."""
        with self._store.view() as view:
            return verify(view, held, progress=progress)

    def verify_archive(self, directory: Path, *, progress: Progress | None = None) -> Verification:
        return verify_archive(directory, self._store, self.keys(), progress)

    def export(
        self,
        out: BinaryIO,
        *,
        first: int = 1,
        last: int | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Write a run of entries as a segment, which verifies by itself; returns the last."""
        size = self.head().head.size
        last = size if last is None else last
        require(1 <= first <= last <= size, "a run of entries that are there")
        write_segment(self, self._store, first, last, out, progress=progress)
        return last

    def export_file(
        self,
        path: Path,
        *,
        first: int = 1,
        last: int | None = None,
        progress: Progress | None = None,
    ) -> int:
        """The same into a file that appears whole, durably, or not at all."""
        with faults(f"write {path}"), files.draft(path) as draft, open(draft, "wb") as out:
            return self.export(out, first=first, last=last, progress=progress)

    def close(self) -> None:
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def identity_at(store: Store, size: int) -> LedgerIdentity:
    """The identity after `size` entries, from the few that change it; signatures are checked."""
    identity, own = LedgerIdentity(), list[Entry]()
    for kind in (CREATED, ROTATED, EPOCH):
        found = store.select(after=0, limit=LIMIT_MAX, kind=kind, plan_id=None)
        own += [entry_of(row) for row in found if row.seq <= size]
    for entry in sorted(own, key=lambda each: each.seq):
        if problem := identity.follow(entry):
            raise Damaged(f"entry {entry.seq}: {problem}")
    return identity


def entry_of(found: Found) -> Entry:
    if found.data is None:
        raise Archived(f"the content of entry {found.seq} was moved to an archive segment")
    try:
        entry = parse(found.data)
    except NotAnEntry as error:
        raise Damaged(f"entry {found.seq} cannot be read: {error}") from error
    if entry.seq != found.seq:
        raise Damaged(f"entry {found.seq} says that it is entry {entry.seq}")
    return entry
