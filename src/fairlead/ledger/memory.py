"""The ledger in memory: the same promises but durability, for simulation and tests."""

import secrets
import threading
from collections.abc import Sequence
from hashlib import sha256

from fairlead.ledger.entries import Prepared, first_entry, sequence, sort_out
from fairlead.ledger.keys import MemoryKeys, Signers
from fairlead.ledger.statements import KEPT_KINDS
from fairlead.ledger.store import Effect, Found, MemoryStore
from fairlead.ledger.writing import StoreWriter
from fairlead.ports.ledger import HeadMoved, ProjectionSnapshot


class MemoryLedger(StoreWriter):
    """A ledger that lives as long as the object."""

    def __init__(
        self, signers: Signers | None = None, *, ledger_id: str | None = None, time_ms: int = 0
    ) -> None:
        self._memory, signers = MemoryStore(), signers or MemoryKeys()
        super().__init__(self._memory, signers)
        self._writer = threading.Lock()
        first = first_entry(signers, ledger_id or secrets.token_hex(8), time_ms)
        self._memory.take(first.rows, first.head, first.blobs)
        self._position = first.position

    def _record(
        self, drafts: Sequence[Prepared], *, time_ms: int, expected_size: int | None
    ) -> list[Found]:
        with self._writer:
            size = self._position.frontier.size
            if expected_size is not None and expected_size != size:
                raise HeadMoved(expected=expected_size, size=size)
            sorted_out = sort_out(drafts, self._lookup)
            if not sorted_out.fresh:
                return sorted_out.found(())
            done = sequence(self._position, sorted_out.fresh, self._signers, time_ms=time_ms)
            self._memory.take(done.rows, done.head, done.blobs)
            self._position = done.position
        return sorted_out.found(done.rows)

    def _lookup(self, effects: Sequence[Effect]) -> dict[Effect, Found]:
        recorded, table = self._memory.effects, self._memory.table
        return {
            effect: Found(recorded[effect], table[recorded[effect] - 1].data)
            for effect in effects
            if effect in recorded
        }

    def _drop_content(self, last: int) -> None:
        memory = self._memory
        for at, row in enumerate(memory.table[:last]):
            if row.kind not in KEPT_KINDS:
                memory.table[at] = row._replace(data=None)
        for digest, seq in list(memory.blob_entry.items()):
            if seq is not None and seq <= last:
                del memory.blob_data[digest], memory.blob_entry[digest]
        memory.archived_to = last

    def blob_put(self, data: bytes) -> str:
        digest = sha256(data).hexdigest()
        self._memory.blob_data[digest], self._memory.blob_entry[digest] = data, None
        return digest

    def snapshot_put(self, name: str, seq: int, state: bytes) -> None:
        self._memory.snapshots[name] = ProjectionSnapshot(name, seq, state)
