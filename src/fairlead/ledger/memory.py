"""The ledger in memory: the same promises but durability, for simulation and tests."""

import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256

from fairlead.core.audit import Frontier, Node, SignedHead
from fairlead.core.invariant import InvariantBroken
from fairlead.ledger.entries import Prepared, prepare
from fairlead.ledger.keys import MemoryKeys, Signers
from fairlead.ledger.sequence import Effect, Position, Sequenced, sequence, sort_out
from fairlead.ledger.statements import KEPT_KINDS, created
from fairlead.ledger.store import Found, Kept, StoredRow
from fairlead.ledger.writing import Writing, passes_checkpoint
from fairlead.ports.ledger import HeadMoved, Snapshot


class MemoryStore:
    """Lists and dictionaries where others have tables. Its own view, because lists only grow."""

    def __init__(self) -> None:
        self.table: list[StoredRow] = []
        self.effects: dict[Effect, int] = {}
        self.heads: list[SignedHead] = []
        self.kept_blobs: dict[str, bytes] = {}
        self.blob_entry: dict[str, int | None] = {}
        """The last entry that has a blob; None: kept for its own sake."""
        self.snapshots: dict[str, Snapshot] = {}
        self.head: SignedHead | None = None
        self.archived_to = 0

    def take(self, done: Sequenced) -> None:
        """Store one step."""
        self.table += [StoredRow(*row) for row in done.rows]
        for row in done.rows:
            if row.plan_id is not None and row.effect is not None:
                self.effects[row.plan_id, row.effect] = row.seq
        for blob in done.blobs:
            self.kept_blobs[blob.digest] = blob.data
            if self.blob_entry.get(blob.digest, 0) is not None:
                self.blob_entry[blob.digest] = blob.seq
        if passes_checkpoint(done.rows[0].seq - 1, done.head.head.size):
            self.heads.append(done.head)
        self.head = done.head

    def kept(self) -> Kept:
        """The head."""
        if self.head is None:
            raise InvariantBroken("a ledger in memory begins when it is made")
        return Kept(self.head, self.archived_to)

    def found(self, seq: int) -> Found | None:
        """One entry."""
        if not 1 <= seq <= len(self.table):
            return None
        return Found(seq, self.table[seq - 1].data)

    def select(
        self, *, after: int, limit: int, kind: str | None, plan_id: str | None
    ) -> list[Found]:
        """Entries in order."""
        rows = (
            Found(row.seq, row.data)
            for row in self.table[max(after, 0) :]
            if kind in (None, row.kind) and plan_id in (None, row.plan_id)
        )
        return [row for row, _ in zip(rows, range(limit), strict=False)]

    def newest(self, kind: str) -> Found | None:
        """The last entry of a kind."""
        rows = (Found(row.seq, row.data) for row in reversed(self.table) if row.kind == kind)
        return next(rows, None)

    def blob(self, digest: str) -> bytes | None:
        """A blob."""
        return self.kept_blobs.get(digest)

    def snapshot(self, name: str) -> Snapshot | None:
        """A projection's state."""
        return self.snapshots.get(name)

    def nodes(self, nodes: Sequence[Node]) -> list[bytes]:
        """Hashes of the tree's nodes, in the order asked."""
        return [node.among(self.table[node.last_leaf].nodes) for node in nodes]

    @contextmanager
    def view(self) -> Iterator["MemoryView"]:
        """The whole at one moment."""
        yield MemoryView(self)

    def close(self) -> None:
        """Nothing to let go of."""


class MemoryView:
    """The whole at one moment: as much of each list as the head covers."""

    def __init__(self, store: MemoryStore) -> None:
        self._kept = store.kept()
        self._table = list(store.table)
        self._heads, self._blobs = list(store.heads), list(store.kept_blobs.items())

    def kept(self) -> Kept:
        """The head."""
        return self._kept

    def checkpoints(self, *, above: int) -> list[SignedHead]:
        """Signed heads on the way."""
        return [head for head in self._heads if head.head.size > above]

    def rows(self, *, after: int) -> Iterator[StoredRow]:
        """Entries in order."""
        return iter(self._table[after:])

    def blobs(self) -> Iterator[tuple[str, bytes]]:
        """Every blob."""
        return iter(self._blobs)

    def complaint(self) -> str:
        """Dictionaries do not err."""
        return ""


class MemoryLedger(Writing):
    """A ledger that lives as long as the object."""

    def __init__(
        self, signers: Signers | None = None, *, ledger_id: str | None = None, time_ms: int = 0
    ) -> None:
        self._memory, signers = MemoryStore(), signers or MemoryKeys()
        super().__init__(self._memory, signers)
        self._writer = threading.Lock()
        key, ledger = signers.create(), ledger_id or secrets.token_hex(8)
        self._position = Position(ledger, 0, key.key_id, Frontier())
        draft = prepare(created(ledger, key, time_ms=time_ms), own=True)
        self._record([draft], time_ms=time_ms, expected_size=0)

    def _record(
        self, drafts: Sequence[Prepared], *, time_ms: int, expected_size: int | None
    ) -> list[Found]:
        """Number and store."""
        with self._writer:
            size = self._position.frontier.size
            if expected_size is not None and expected_size != size:
                raise HeadMoved(expected=expected_size, size=size)
            sorted_out = sort_out(drafts, self._lookup)
            if not sorted_out.fresh:
                return sorted_out.found(())
            done = sequence(self._position, sorted_out.fresh, self._signers, time_ms=time_ms)
            self._memory.take(done)
            self._position = done.position
        return sorted_out.found(done.rows)

    def _lookup(self, effects: Sequence[Effect]) -> dict[Effect, Found]:
        known, table = self._memory.effects, self._memory.table
        return {
            effect: Found(known[effect], table[known[effect] - 1].data)
            for effect in effects
            if effect in known
        }

    def _drop_content(self, last: int) -> None:
        table = self._memory.table
        for at, row in enumerate(table[:last]):
            if row.kind not in KEPT_KINDS:
                table[at] = row._replace(data=None)
        for digest, seq in list(self._memory.blob_entry.items()):
            if seq is not None and seq <= last:
                del self._memory.kept_blobs[digest], self._memory.blob_entry[digest]
        self._memory.archived_to = last

    def blob_put(self, data: bytes) -> str:
        """Keep a blob."""
        digest = sha256(data).hexdigest()
        self._memory.kept_blobs[digest] = data
        self._memory.blob_entry[digest] = None
        return digest

    def snapshot_put(self, name: str, seq: int, state: bytes) -> None:
        """Keep a projection's state."""
        self._memory.snapshots[name] = Snapshot(name, seq, state)
