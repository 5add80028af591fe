"""What the handlers work on: the control plane, its ledger and access; wired by `compose.up`."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fairlead.api.access import Access, SubmittedRun
from fairlead.api.peers import JobOf
from fairlead.core.audit import check_consistency
from fairlead.engine.gpu import ControlPlane, Refused, job_prefix
from fairlead.ports.executor import JobOutput, Keyboard
from fairlead.ports.ledger import Archived, Ledger
from fairlead.schema.border import BadInput


class LedgerSignal:
    """Wakes any number of waiting requests when the ledger grows, without a thread for each."""

    def __init__(self) -> None:
        self.seq = 0
        self.closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._grown = asyncio.Event()
        self._lock = threading.Lock()

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def notify(self, seq: int, *, close: bool = False) -> None:
        """From any thread: the ledger has this size; `close`: waiting ends.

        The size is set at once and not in the loop: a thread that waits for a higher one would
        otherwise notify again and again, fill the loop's pipe, and a signal would be lost.
        """
        with self._lock:
            self.seq = max(self.seq, seq)
            self.closed = self.closed or close
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        grown, self._grown = self._grown, asyncio.Event()
        grown.set()

    async def above(self, after: int, timeout_s: float) -> bool:
        """Wait for an entry above `after`; False at the timeout or when the server stops."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while self.seq <= after and not self.closed:
            left = deadline - loop.time()
            if left <= 0:
                return False
            try:
                await asyncio.wait_for(self._grown.wait(), left)
            except TimeoutError:
                return self.seq > after
        return self.seq > after


class Console(Protocol):
    """What the API needs of an executor whose jobs are processes of this machine."""

    def newest_job(self, run: str) -> str:
        """The id of a run's latest start; empty where there was none."""

    def output(self, job: str) -> JobOutput | None: ...

    def press(self, run: str, keys: Keyboard) -> int | None: ...

    def job_of(self, pid: int) -> str | None: ...


@dataclass(slots=True)
class Service:
    """One control plane, as the API sees it."""

    plane: ControlPlane
    ledger: Ledger
    access: Access
    log_parts: Callable[[str, str], list[Path]]
    """(run, prefix of its job ids) to the files of its output, oldest first."""
    now_ms: Callable[[], int]
    chores: tuple[tuple[Callable[[], object], float], ...] = ()
    """Work beside the turns, each with the seconds until it is done again."""
    fault: str = ""
    """Why the last turn failed; empty after a good one."""
    requests_per_s: int | None = None
    """Of one user that is no admin; None: not bounded here."""
    console: Console | None = None
    """The output and the keyboard of jobs; None: they are elsewhere, in pods."""
    wake: threading.Event = field(default_factory=threading.Event)
    """Set it for a turn at once."""
    signal: LedgerSignal = field(default_factory=LedgerSignal)

    @property
    def job_of(self) -> JobOf | None:
        return None if self.console is None else self.console.job_of

    def submission(self, job: str) -> SubmittedRun | None:
        """The run of a job as it was submitted; None where its name is another run's by now. Takes
        no lock: it is asked before a request is read."""
        name = job.rsplit(".", 2)[0]
        stored = self.plane.committer.projection.get("Run", name)
        if stored is None or not job.startswith(job_prefix(name, stored.uid)):
            return None
        return SubmittedRun(name, stored.token)

    def check_held(self, text: str) -> None:
        """Refuse a change where our ledger does not continue the checkpoint that the client holds:
        it would be done in another history than the one that the client knows."""
        try:
            ledger, epoch, size, root = text.split(":")
            old, old_root = int(size), bytes.fromhex(root)
        except ValueError:
            raise BadInput("headers.fairlead-held", "must be LEDGER:EPOCH:SIZE:ROOT") from None
        head = self.ledger.head().head
        same = (ledger, epoch) == (head.ledger, str(head.epoch)) and 1 <= old <= head.size
        if same and old == head.size:
            same = root == head.root
        elif same:
            with suppress(Archived):  # then the client alone can tell, by the reply
                same = check_consistency(
                    old_size=old,
                    old_root=old_root,
                    new_size=head.size,
                    new_root=bytes.fromhex(head.root),
                    proof=self.ledger.consistency(old, head.size),
                )
        if not same:
            raise Refused(
                "LedgerChanged",
                f"nothing was changed: you hold a checkpoint of {size} entries of ledger {ledger}, "
                f"and the ledger here, {head.ledger} with {head.size}, does not continue it",
            )

    def head_headers(self) -> dict[str, str]:
        """The checkpoint as headers of every reply: clients that keep it detect a changed past."""
        signed = self.ledger.head()
        head = signed.head
        return {
            "Fairlead-Head": f"{head.size}:{head.root}",
            "Fairlead-Ledger": f"{head.ledger}:{head.epoch}",
            "Fairlead-Signature": f"{head.time_ms}:{head.key_id}:{signed.signature}",
        }
