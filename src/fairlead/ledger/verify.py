"""Follows a whole ledger: every entry, every node of its tree, every signature on the way.

What is streamed in order is compared in bulk: the tree is grown again from the entries in batches,
and the nodes that this completes must be those that are stored with them. A batch ends where a head
is to be compared, and around each of the ledger's own entries, which may change the key.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from fairlead.core.audit import Frontier, SignedHead, leaf_hash
from fairlead.core.audit.tree import HASH_BYTES
from fairlead.ledger.bindings import SnapshotBinding, archive_problem, position_sealed
from fairlead.ledger.coverage import CoverageList
from fairlead.ledger.entries import index_of, parse
from fairlead.ledger.statements import ARCHIVED, OWN_KINDS, SNAPSHOT, LedgerIdentity
from fairlead.ledger.store import SqlView, StoredRow
from fairlead.ports.ledger import BLOBS, Damaged, Entry, Progress, Verification, unpacked

BATCH = 2_000
_MARK = f'"{BLOBS}":'.encode()
"""In the bytes of every entry that names blobs; looked for before anything is parsed."""


def answer(frontier: Frontier, damage: Damaged | None = None) -> Verification:
    """What following the log up to this frontier showed."""
    seq = damage.seq if damage else None
    return Verification(frontier.size, frontier.root().hex(), str(damage or ""), seq)


class LedgerWalk:
    """One pass over a view; with `start`, over what came after a checkpoint that was verified."""

    def __init__(
        self,
        view: SqlView,
        held: Sequence[SignedHead] = (),
        *,
        start: tuple[Frontier, LedgerIdentity] | None = None,
        progress: Progress | None = None,
        snapshots: bool = True,
    ) -> None:
        self.view, self.held, self.progress = view, held, progress
        self.snapshots = snapshots
        self.frontier, self.identity = start or (Frontier(), LedgerIdentity())
        self.whole = start is None
        self.named: dict[str, tuple[int, int]] = {}
        """Blobs that entries name: the entry, and how many bytes it says."""
        self.bound: set[SnapshotBinding] = set()
        """Snapshots that entries confirm."""
        self.archives: list[Entry] = []
        self.coverage = CoverageList()

    def run(self) -> Verification:
        """The answer; only environment errors are raised."""
        try:
            self._entries()
            self._held()
            if self.whole:
                self._beside()
        except Damaged as damage:
            return answer(self.frontier, damage)
        covered, not_covered = self.coverage.done, self.coverage.left_out
        return replace(answer(self.frontier), covered=covered, not_covered=not_covered)

    def _entries(self) -> None:
        newest, archived_to = self.view.kept()
        total, start = newest.head.size, self.frontier.size
        heads = {head.head.size: head for head in self.view.checkpoints(above=start)}
        heads[total] = newest
        cuts = heads.keys() | {head.head.size for head in self.held}
        self.roots = {start: self.frontier.root()}
        for batch in _batches(self.view.rows(after=start), cuts):
            self._batch(batch, archived_to)
            size = self.frontier.size
            if size in cuts:
                self.roots[size] = self.frontier.root()
            if size in heads:
                self._head(heads[size], "the head" if size == total else "the checkpoint")
            if self.progress:
                self.progress(size, total)
        if self.frontier.size != total:
            raise Damaged(f"ends after entry {self.frontier.size}, but the head covers {total}")
        if self.whole and (problem := archive_problem(self.archives, archived_to)):
            raise Damaged(problem)
        self.coverage.log(total, archived_to, len(heads), len(self.identity.keys))

    def _batch(self, batch: list[StoredRow], archived_to: int) -> None:
        size = self.frontier.size
        leaves = []
        for seq, row in enumerate(batch, start=size + 1):
            if row.seq != seq:
                raise Damaged(f"entry {seq} is missing", seq)
            if row.data is not None:
                leaves.append(leaf_hash(row.data))
                _check_index(row, row.data)
                if _MARK in row.data and seq > archived_to:  # blobs go, whatever entries stay
                    named = _entry(row).blobs
                    self.named |= {digest: (seq, size) for digest, size in named.items()}
            elif seq <= archived_to:
                leaves.append(row.nodes[:HASH_BYTES])
            else:
                raise Damaged(f"the content of entry {seq} is missing", seq)
        if batch[0].kind in OWN_KINDS or size == 0:
            root = self.frontier.root()
            entry = _entry(batch[0])
            if problem := self.identity.follow(entry, root_before=root):
                raise Damaged(f"entry {entry.seq}: {problem}", entry.seq)
            if entry.kind == ARCHIVED:
                self.archives.append(entry)
            elif entry.kind == SNAPSHOT:
                self.bound.add(SnapshotBinding.said_by(entry))
        frontier, completed = self.frontier.extend(leaves)
        if completed != [row.nodes for row in batch]:
            for row, nodes in zip(batch, completed, strict=True):
                _check_nodes(row, nodes)
        self.frontier = frontier

    def _head(self, signed: SignedHead, which: str) -> None:
        size = signed.head.size
        if signed.head.root != self.roots[size].hex():
            raise Damaged(f"the entries up to {size} are not those of {which}")
        if problem := self.identity.check(signed):
            raise Damaged(f"{which} of size {size} {problem}")

    def _held(self) -> None:
        for signed in self.held:
            head, identity = signed.head, self.identity
            what = f"the head held elsewhere (size {head.size})"
            if head.ledger != identity.ledger:
                raise Damaged(f"{what} is of ledger {head.ledger}, this is {identity.ledger}")
            # The size to which a later epoch was restored may cut off what the head covers.
            lost = min(identity.restored_from[head.epoch :], default=head.size)
            if lost < head.size:
                gone = f"the ledger was restored from a backup of {lost} entries"
                raise Damaged(f"{what} covers entries that are gone: {gone}", lost + 1)
            if head.epoch > identity.epoch or head.size > self.frontier.size:
                raise Damaged(f"{what} covers more than the {self.frontier.size} entries here")
            if problem := identity.check_signature(signed):
                raise Damaged(f"{what} {problem}")
            if self.roots[head.size].hex() != head.root:
                raise Damaged(f"the entries up to {head.size} are not those of {what}")

    def _beside(self) -> None:
        if self.snapshots:
            self._snapshots()
        blobs = 0
        for digest, stored in self.view.blobs():
            blobs += 1
            data = unpacked(digest, stored)
            seq, size = self.named.pop(digest, (None, len(data)))
            if size != len(data):
                raise Damaged(f"a blob of entry {seq} is not as long as it says", seq)
        for seq, _ in self.named.values():
            raise Damaged(f"a blob of entry {seq} is missing", seq)
        if complaint := self.view.complaint():
            raise Damaged(f"the database is damaged: {complaint}")
        self.coverage.beside(blobs)

    def _snapshots(self) -> None:
        """Rows that a control plane goes on from must be those that entries confirm."""
        names = {binding.name for binding in self.bound}
        for name, seq, state in self.view.snapshots():
            confirmed = SnapshotBinding.of(name, seq, state) in self.bound
            ledger, keys = self.identity.ledger, self.identity.keys
            sealed = not confirmed and position_sealed(ledger, name, seq, state, keys)
            if not confirmed and not sealed and name in names:
                raise Damaged(
                    f"the snapshot {name!r} after entry {seq} is not one that an entry confirms: "
                    "it was changed, or written by an earlier release"
                )
            self.coverage.snapshot(name, seq, confirmed=confirmed, sealed=sealed)


def _batches(rows: Iterable[StoredRow], cuts: Iterable[int]) -> Iterator[list[StoredRow]]:
    ends, batch = set(cuts), list[StoredRow]()
    for row in rows:
        own = row.kind in OWN_KINDS
        if own and batch:
            yield batch
            batch = []
        batch.append(row)
        if own or row.seq in ends or len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _entry(row: StoredRow) -> Entry:
    if row.data is None:
        raise Damaged(f"the content of entry {row.seq} is missing", row.seq)
    return parse(row.data, row.seq)


def _check_index(row: StoredRow, data: bytes) -> None:
    """What an entry is found by must be what it says."""
    index = index_of(data, row.seq)
    if (index.seq, index.kind, index.plan_id, index.effect) != row[:4]:
        raise Damaged(f"entry {row.seq} is kept under other names than it says", row.seq)


def _check_nodes(row: StoredRow, nodes: bytes) -> None:
    """The nodes that grow again from the entries must be the stored ones."""
    if row.nodes[:HASH_BYTES] != nodes[:HASH_BYTES]:
        raise Damaged(f"entry {row.seq} is not the one that the tree was built from", row.seq)
    if row.nodes != nodes:
        raise Damaged(f"a node of the tree above entry {row.seq} was changed", row.seq)
