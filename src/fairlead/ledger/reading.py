"""The reading half of the port, as queries that every database answers."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Self

from fairlead.core.audit import Proof, SignedHead, consistency_proof, inclusion_proof
from fairlead.core.invariant import require
from fairlead.core.units import INTEGER_MAX
from fairlead.host import files
from fairlead.host.log import Log
from fairlead.ledger.bindings import newest_binding, position_sealed, problem_of
from fairlead.ledger.entries import entry_of
from fairlead.ledger.segment import open_segment, verify_archive, write_segment
from fairlead.ledger.statements import CREATED, EPOCH, ROTATED, LedgerIdentity
from fairlead.ledger.store import Execute, Found, SqlSession, read_kept, read_nodes
from fairlead.ledger.verify import LedgerWalk
from fairlead.ledger.witness import Witness
from fairlead.ports.faults import faults
from fairlead.ports.ledger import (
    Damaged,
    Entry,
    Progress,
    ProjectionSnapshot,
    Verification,
    unpacked,
)

LIMIT_MAX = 100_000
"""Entries in one answer: a projection reads page by page."""
_PAGE = 2_000
_log = Log("fairlead.ledger")


class StoreReader:
    """A `LedgerReader` over the tables of any database. May be used from several threads."""

    def __init__(self, source: SqlSession[Any]) -> None:
        self._source, self._query = source, source.query
        self._nodes = partial(read_nodes, source.query)
        self._witness: Witness | None = None
        """Of a writer: what it reads is compared with the head that it knows."""

    def entry(self, seq: int) -> Entry | None:
        found = min(seq, INTEGER_MAX)  # no database takes any number
        return self._one("SELECT seq, data FROM entries WHERE seq = ?", found)

    def entries(
        self,
        after: int = 0,
        limit: int = 1_000,
        *,
        kind: str | None = None,
        plan_id: str | None = None,
    ) -> list[Entry]:
        require(1 <= limit <= LIMIT_MAX, f"between 1 and {LIMIT_MAX} entries in one answer")
        filters = {"kind": kind, "plan_id": plan_id}
        wanted = {name: value for name, value in filters.items() if value is not None}
        if self._witness is not None and not wanted:
            found = self._witness.run(min(max(after, 0), INTEGER_MAX), limit)
            return [entry_of(row) for row in found]
        where = "".join(f" AND {name} = ?" for name in wanted)
        text = f"SELECT seq, data FROM entries WHERE seq > ?{where} ORDER BY seq LIMIT ?"
        rows = self._query(text, min(after, INTEGER_MAX), *wanted.values(), limit)
        return self._witnessed([entry_of(Found(*row)) for row in rows])

    def following(self, after: int, kinds: Sequence[str]) -> Iterator[Entry]:
        marks = [f'"kind":"{kind}"'.encode() for kind in kinds]
        source = self._witness or Witness(self._query, lambda _: self.head().head)
        for row in source.all_after(after):
            # Looked for in the bytes first: few entries have these kinds, and parsing costs more
            # than comparing. What was archived may be one of them.
            if row.data is None or any(mark in row.data for mark in marks):
                entry = entry_of(row)
                if entry.kind in kinds:
                    yield entry

    def _witnessed(self, entries: list[Entry]) -> list[Entry]:
        if self._witness is not None:
            self._witness.included(entries)
        return entries

    def last(self, kind: str) -> Entry | None:
        text = "SELECT seq, data FROM entries WHERE kind = ? ORDER BY seq DESC LIMIT 1"
        return self._one(text, kind)

    def _one(self, text: str, value: object) -> Entry | None:
        rows = self._query(text, value)
        found = self._witnessed([entry_of(Found(*row)) for row in rows])
        return found[0] if found else None

    def archived_to(self) -> int:
        return read_kept(self._query)[1]

    def head(self) -> SignedHead:
        return read_kept(self._query)[0]

    def keys(self) -> Mapping[str, bytes]:
        return identity_at(self._query, self.head().head.size).keys

    def restored_after(self, epoch: int) -> bool:
        """Whether the ledger was restored from a backup, and says so, since that epoch."""
        return identity_at(self._query, self.head().head.size).epoch > epoch

    def inclusion(self, seq: int, size: int) -> Proof:
        """Proof that entry `seq` is in the log of that size, from O(log n) stored nodes."""
        require(1 <= seq <= size <= self.head().head.size, "a proof is about what is there")
        return inclusion_proof(seq - 1, size, self._nodes)

    def consistency(self, old_size: int, new_size: int) -> Proof:
        require(0 <= old_size <= new_size <= self.head().head.size, "a log only grows")
        return consistency_proof(old_size, new_size, self._nodes)

    def blob_get(self, digest: str) -> bytes | None:
        rows = self._query("SELECT data FROM blobs WHERE digest = ?", digest)
        return unpacked(digest, rows[0][0]) if rows else None

    def snapshot_get(self, name: str) -> ProjectionSnapshot | None:
        rows = self._query("SELECT name, seq, state FROM snapshots WHERE name = ?", name)
        if not rows:
            return None
        kept = ProjectionSnapshot(*rows[0])
        if problem := problem_of(self._query, kept, self.head().head):
            _log.warning("snapshot not believed", name=name, after=kept.seq, why=problem)
            return None
        return kept

    def position_get(self, name: str) -> int | None:
        head = self.head().head
        bound = newest_binding(self._query, name, head)
        rows = self._query("SELECT seq, state FROM snapshots WHERE name = ?", name)
        for seq, seal in rows:
            if bound is not None and seq < bound:
                break  # an older one put back: the entry knows better
            if position_sealed(head.ledger, name, seq, seal, self.keys()):
                return seq if seq <= head.size else bound
            _log.warning("position not believed", name=name, position=seq, instead=bound)
        return bound

    def verify(
        self,
        held: Sequence[SignedHead] = (),
        *,
        progress: Progress | None = None,
        snapshots: bool = True,
    ) -> Verification:
        """Follow the whole log as it is now; what is appended meanwhile is not looked at.

        `snapshots`: whether the states kept beside it are compared with what entries say.
        """
        with self._source.view() as view:
            return LedgerWalk(view, held, progress=progress, snapshots=snapshots).run()

    def verify_archive(self, directory: Path, *, progress: Progress | None = None) -> Verification:
        head, archived_to = self.head().head, self.archived_to()
        segments = sorted(directory.glob(f"{head.ledger}-*.jsonl"))
        found = verify_archive(segments, archived_to, self._nodes, self.keys(), progress)
        # Their rows stay: by plan and effect nothing is recorded twice.
        renamed = self._renamed(segments, archived_to) if found.ok else None
        if renamed is None:
            return found
        problem = f"entry {renamed} is kept under other names than it says"
        return Verification(renamed - 1, found.root, problem, renamed)

    def _renamed(self, segments: Sequence[Path], archived_to: int) -> int | None:
        """The first archived entry whose row has other names than the segment says."""
        text = "SELECT seq, kind, plan_id, effect FROM entries WHERE seq > ? AND seq <= ?"
        for path in segments:
            with open_segment(path) as segment:
                if segment.header.first > archived_to:
                    break
                entries = (each for each in segment.entries() if each.seq <= archived_to)
                while page := list(islice(entries, _PAGE)):
                    said = [(each.seq, each.kind, each.plan_id, each.effect) for each in page]
                    rows = set(self._query(text, page[0].seq - 1, page[-1].seq))
                    for names in said:
                        if names not in rows:
                            return names[0]
        return None

    def export(
        self,
        out: BinaryIO | Path,
        *,
        first: int = 1,
        last: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Write a run of entries as a segment; a file appears whole, durably, or not at all."""
        size = self.head().head.size
        last = size if last is None else last
        require(1 <= first <= last <= size, "a run of entries that are there")
        run = range(first, last + 1)
        if not isinstance(out, Path):
            write_segment(self, self._nodes, run, out, progress)
            return
        with faults(f"write {out}"), files.draft(out) as draft, open(draft, "wb") as file:
            write_segment(self, self._nodes, run, file, progress)

    def close(self) -> None:
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def identity_at(query: Execute, size: int) -> LedgerIdentity:
    """The identity after `size` entries, from the few that change it; signatures are checked."""
    text = "SELECT seq, data FROM entries WHERE kind IN (?, ?, ?) AND seq <= ? ORDER BY seq"
    identity = LedgerIdentity()
    for row in query(text, CREATED, ROTATED, EPOCH, size):
        entry = entry_of(Found(*row))
        if problem := identity.follow(entry):
            raise Damaged(f"entry {entry.seq}: {problem}")
    return identity
