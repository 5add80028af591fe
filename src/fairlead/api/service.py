"""What the handlers work on: the control plane and its neighbours, put together by `compose.up`."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.api.access import Access
from fairlead.engine.gpu import ControlPlane
from fairlead.ports.ledger import Ledger


class Bell:
    """Tells any number of waiting requests that the ledger grew, without a thread for each."""

    def __init__(self) -> None:
        self.seq = 0
        self.closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._rung = asyncio.Event()
        self._lock = threading.Lock()

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Where those who wait live."""
        self._loop = loop

    def ring(self, seq: int, *, close: bool = False) -> None:
        """From any thread: the ledger has this size; `close`: nobody need wait any more.

        Both are set at once: whoever waits for a higher number must not ring again and again
        until the loop has heard. So many calls fill its pipe, and a signal then gets lost.
        """
        with self._lock:
            self.seq = max(self.seq, seq)
            self.closed = self.closed or close
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        rung, self._rung = self._rung, asyncio.Event()
        rung.set()

    async def above(self, after: int, timeout_s: float) -> bool:
        """Wait for an entry above `after`; False when the time is over or the server ends."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while self.seq <= after and not self.closed:
            left = deadline - loop.time()
            if left <= 0:
                return False
            try:
                await asyncio.wait_for(self._rung.wait(), left)
            except TimeoutError:
                return self.seq > after
        return self.seq > after


@dataclass(slots=True)
class Service:
    """One control plane, as the API sees it."""

    plane: ControlPlane
    ledger: Ledger
    access: Access
    log_parts: Callable[[str, str], list[Path]]
    """Where a run's output is kept, oldest part first; of jobs whose ids begin like this."""
    now_ms: Callable[[], int]
    prune: Callable[[], object] | None = None
    """Forgets output that was kept long enough; None: all of it is kept."""
    fault: str = ""
    """What the last turn failed at; empty after one that did not."""
    wake: threading.Event = field(default_factory=threading.Event)
    """Set it, and the loop takes a turn at once."""
    bell: Bell = field(default_factory=Bell)

    def head_headers(self) -> dict[str, str]:
        """The signed head, for every reply: whoever keeps it will notice a changed past."""
        signed = self.ledger.head()
        head = signed.head
        return {
            "Fairlead-Head": f"{head.size}:{head.root}",
            "Fairlead-Ledger": f"{head.ledger}:{head.epoch}",
            "Fairlead-Signature": f"{head.time_ms}:{head.key_id}:{signed.signature}",
        }
