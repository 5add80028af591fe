"""Transitions and anchors into the ledger, from a thread of its own: a tick never waits for a disk.

Each entry names its tick by the hash of the flight recorder's chain, so that sending it twice
records it once.
"""

import queue
import threading
from collections.abc import Callable, Mapping

from fairlead.node.state import fields
from fairlead.ports.faults import Fault, TemporaryFault
from fairlead.ports.ledger import Draft, Ledger
from fairlead.ports.recorder import RecordHead
from fairlead.ports.traffic import Transition

AUTHOR = "traffic-agent"
WAITING_MAX = 10_000
_RETRY_S_MAX, _POLL_S = 5.0, 0.2


class LedgerEventLog:
    """The `EventLog` port on a ledger."""

    def __init__(
        self, ledger: Ledger, *, agent: str, fault: Callable[[str], None] = lambda _: None
    ) -> None:
        self.dropped = 0
        """Entries lost, because the ledger was unavailable for too long."""
        self._ledger, self._agent, self._fault = ledger, agent, fault
        self._waiting: queue.Queue[Draft] = queue.Queue(WAITING_MAX)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="event log", daemon=True)
        self._thread.start()

    def transition(self, transition: Transition) -> None:
        record, backend = transition.record, transition.backend
        effect = transition.what if backend is None else f"{transition.what} {backend}"
        self._put(
            Draft(
                kind="traffic.transition",
                time_ms=transition.time_ms,
                author=AUTHOR,
                body={
                    "agent": self._agent,
                    **fields(transition, "group", "what", "backend", "before", "after"),
                    "record": _head(record),
                },
                plan_id=None if record is None else f"traffic {transition.group} {record.hash}",
                effect=None if record is None else effect,
                reasons=transition.reasons,
            )
        )

    def anchor(self, now_ms: int, heads: Mapping[str, RecordHead]) -> None:
        ends = {name: _head(head) for name, head in sorted(heads.items())}
        self._put(
            Draft(
                kind="traffic.anchor",
                time_ms=now_ms,
                author=AUTHOR,
                body={"agent": self._agent, "heads": ends},
            )
        )

    def close(self) -> None:
        self._closing.set()
        self._thread.join(timeout=2 * _RETRY_S_MAX)
        self._ledger.close()

    def _put(self, draft: Draft) -> None:
        try:
            self._waiting.put_nowait(draft)
        except queue.Full:
            self.dropped += 1
            self._fault(f"the ledger has been unavailable for too long; dropped {draft.kind}")

    def _run(self) -> None:
        while True:
            try:
                self._append(self._waiting.get(timeout=_POLL_S))
            except queue.Empty:
                if self._closing.is_set():
                    return

    def _append(self, draft: Draft) -> None:
        """Retry while it may help. What can never be written is reported."""
        while True:
            try:
                self._ledger.append([draft])
                return
            except TemporaryFault as fault:
                self._fault(f"{draft.kind} waits: {fault}")
                if self._closing.wait(min(_RETRY_S_MAX, max(0.1, fault.retry_after_ms / 1000))):
                    self.dropped += 1
                    return
            except Fault as fault:
                self.dropped += 1
                self._fault(f"{draft.kind} is lost: {fault}")
                return


def _head(head: RecordHead | None) -> dict[str, object] | None:
    return None if head is None else {"seq": head.seq, "hash": head.hash}
