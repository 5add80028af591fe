"""Batches that wait in the database for their numbers, and whose they are.

Another replica numbers and signs what waits. So a batch carries a signature of the replica that
wrote it, and the size of the log at that time: neither a batch that was written without the key
nor one that was kept and put back later is numbered.
"""

from collections.abc import Iterable
from hashlib import sha256
from typing import NamedTuple
from uuid import UUID, uuid4

from fairlead.core.audit import Head, statement_to_sign
from fairlead.ledger.keys import SecretKey
from fairlead.ledger.signatures import signature_holds

COLUMNS = "id, expected_size, time_ms, drafts, after, seal"
# Entries that may be recorded while a batch waits: it is older than that only if it was put back.
WAITING_MAX = 10_000


class WaitingBatch(NamedTuple):
    """A batch that waits for its numbers."""

    id: UUID
    expected_size: int | None
    time_ms: int
    drafts: bytes
    after: int | None
    """The size of the log when it was written."""
    seal: bytes | None = None

    def _to_sign(self, ledger: str) -> bytes:
        body: dict[str, object] = {
            "kind": "batch",
            "id": str(self.id),
            "expected_size": self.expected_size,
            "time_ms": self.time_ms,
            "drafts": sha256(self.drafts).hexdigest(),
            "after": self.after,
        }
        return statement_to_sign(ledger, body)

    def is_sealed(self, head: Head, keys: Iterable[bytes]) -> bool:
        """Whether a holder of one of these keys wrote it, not long before the log had this head."""
        if self.after is None or self.seal is None:
            return False
        if not 0 <= head.size - self.after <= WAITING_MAX:
            return False
        data, seal = self._to_sign(head.ledger), self.seal.hex()
        return any(signature_holds(key, data, seal) for key in keys)


def sealed(
    drafts: bytes, *, time_ms: int, expected_size: int | None, head: Head, key: SecretKey
) -> WaitingBatch:
    waiting = WaitingBatch(uuid4(), expected_size, time_ms, drafts, head.size)
    return waiting._replace(seal=key.sign(waiting._to_sign(head.ledger)))
