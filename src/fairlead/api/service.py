"""What the handlers work on: the control plane, its ledger and access; wired by `compose.up`."""

import asyncio
import itertools
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec, Protocol, TypeVar

from starlette.concurrency import run_in_threadpool

from fairlead.api.access import Access, SubmittedRun
from fairlead.api.browser_sessions import Sessions
from fairlead.api.feed import FeedEvent, ReportLine, ReportPlace, SharedReads, event_feed
from fairlead.api.fleet_history import FleetHistory
from fairlead.api.peers import JobOf
from fairlead.api.rates import WorkShares
from fairlead.api.story_acts import Story
from fairlead.core.audit import check_consistency
from fairlead.engine.gpu import ControlPlane, Refused, job_prefix
from fairlead.ports.executor import JobOutput, Keyboard
from fairlead.ports.faults import TemporaryFault
from fairlead.ports.ledger import Archived, Ledger
from fairlead.ports.tracing import NoTracer, Tracer
from fairlead.schema.border import BadInput

HEAD = "Fairlead-Head"
Given = ParamSpec("Given")
Answer = TypeVar("Answer")
REPLAY_WAIT_S = 5.0
GATHER_S, LANES = 0.02, 8
"""A turn records one entry after the other: what follows at once is told together. Not to all
readers at the same moment, however: two hundred would keep a request waiting for 40 ms."""


class GrowthSignal:
    """Wakes any number of waiting requests when a number grows (the ledger's size, the count of
    reported changes), without a thread for each."""

    def __init__(self, lanes: int = LANES) -> None:
        self.seq = 0
        self.closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._grown = asyncio.Event()
        self._lock = threading.Lock()
        self._lanes = [GrowthSignal(0) for _ in range(lanes)]
        self._next_lane = itertools.cycle(self._lanes)
        self._due: set[int] = set()
        """Lanes that will be told."""

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        with self._lock:
            for lane in self._lanes:  # of what was notified before this
                lane.seq, lane.closed = self.seq, self.closed

    def notify(self, seq: int, *, close: bool = False) -> None:
        """From any thread: the number is this; `close`: waiting ends.

        It is set at once and not in the loop: a thread that waits for a higher one would
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
        for number in range(len(self._lanes)):
            if self.closed:
                self._tell(number)
            elif number not in self._due:
                self._due.add(number)
                later_s = GATHER_S * (1 + number)
                asyncio.get_running_loop().call_later(later_s, self._tell, number)

    def _tell(self, number: int) -> None:
        self._due.discard(number)
        lane = self._lanes[number]
        lane.seq, lane.closed = self.seq, self.closed
        lane._wake()

    def lane(self) -> "GrowthSignal":
        """The number as one reader that follows is to hear of it: a little later, and only in part
        at the same moment as the others. Readers are woken once for all that grew meanwhile."""
        return next(self._next_lane)

    async def above(self, after: int, timeout_s: float) -> bool:
        """Wait for a number above `after`; False at the timeout or when the server stops."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while self.seq <= after and not self.closed:
            left = deadline - loop.time()
            if left <= 0:
                return False
            try:
                async with asyncio.timeout(left):  # `wait_for` would make a task of each wait
                    await self._grown.wait()
            except TimeoutError:
                return self.seq > after
        return self.seq > after


class OpenStreams:
    """Replies that go on until their reader leaves, at most so many of a peer. For one event
    loop."""

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self._open: Counter[Hashable] = Counter()

    @property
    def open(self) -> int:
        return self._open.total()

    def count(self, lines: AsyncIterator[bytes], peer: Hashable) -> AsyncIterator[bytes]:
        """The same lines. `TemporaryFault` where so many are open already."""
        if self.most is not None and self._open[peer] >= self.most:
            raise TemporaryFault(
                f"{self._open[peer]} readers of yours follow live already, which is all that you "
                "may have: close some of them",
                retry_after_ms=1_000,
            )
        return self._counted(lines, peer)

    async def _counted(self, lines: AsyncIterator[bytes], peer: Hashable) -> AsyncIterator[bytes]:
        self._open[peer] += 1
        try:
            async for line in lines:
                yield line
        finally:
            self._open[peer] -= 1
            if not self._open[peer]:
                del self._open[peer]


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
    address: str | None = None
    """Of the page, such as `http://127.0.0.1:8470`; None: it is not served."""
    sessions: Sessions = field(default_factory=Sessions)
    console: Console | None = None
    """The output and the keyboard of jobs; None: they are elsewhere, in pods."""
    tracer: Tracer = field(default_factory=NoTracer)
    story: Story | None = None
    """What happens in the demo, act by act; None: this is no demo."""
    wake: threading.Event = field(default_factory=threading.Event)
    """Set it for a turn at once."""
    signal: GrowthSignal = field(default_factory=GrowthSignal)
    fleet: FleetHistory = field(default_factory=FleetHistory)
    """What node and traffic agents reported."""
    reported: GrowthSignal = field(default_factory=GrowthSignal)
    """Follows the version of `fleet`."""
    streams: OpenStreams = field(default_factory=OpenStreams)
    """Of readers over TCP."""
    shares: WorkShares = field(default_factory=WorkShares)
    """Of the threads that work on requests."""
    feed: SharedReads[int, FeedEvent] = field(init=False)
    """What happens, for all who follow it live."""
    report_feed: SharedReads[ReportPlace, ReportLine] = field(init=False)
    """What agents report, for all who follow it live; made by the application."""

    _replay: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __post_init__(self) -> None:
        self.feed = event_feed(self.plane.events.read)

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Requests wait in this loop."""
        self.signal.attach(loop)
        self.reported.attach(loop)

    def close(self) -> None:
        """Requests that wait end now."""
        self.signal.notify(0, close=True)
        self.reported.notify(0, close=True)

    async def work_for(
        self,
        account: Hashable,
        work: Callable[Given, Answer],
        *given: Given.args,
        **more: Given.kwargs,
    ) -> Answer:
        """Work in a thread, while the event loop takes other requests; one of those that the
        account may have at a time."""
        async with self.shares.of(account):
            return await run_in_threadpool(work, *given, **more)

    def note_stale(self) -> None:
        """Tell those who follow reports which of them do not come any more."""
        self.fleet.note_stale(self.now_ms())
        self.reported.notify(self.fleet.version)

    @contextmanager
    def replaying(self) -> Iterator[None]:
        """One replay at a time: it computes, and every reader may ask."""
        if not self._replay.acquire(timeout=REPLAY_WAIT_S):
            raise TemporaryFault("another decision is being replayed", retry_after_ms=1_000)
        try:
            yield
        finally:
            self._replay.release()

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
            HEAD: f"{head.size}:{head.root}",
            "Fairlead-Ledger": f"{head.ledger}:{head.epoch}",
            "Fairlead-Signature": f"{head.time_ms}:{head.key_id}:{signed.signature}",
        }
