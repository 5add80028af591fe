"""The ledger's clock: readings of the machine become the time of entries, and entries of its own.

`core.gpu.clock_hold` decides; here are its input and what it remembers.
"""

import threading
from collections.abc import Callable
from dataclasses import replace

from fairlead.core.gpu.clock import (
    ClockAnchor,
    ClockPolicy,
    ClockReading,
    ClockReason,
    LedgerTime,
    OpenRun,
)
from fairlead.core.gpu.clock_hold import (
    ClockDecision,
    ClockJudgement,
    ClockMemory,
    ClockRecord,
    ClockRequest,
    follow_clock,
    judge_clock,
)
from fairlead.core.invariant import known
from fairlead.engine.gpu.entries import SYSTEM, Body, ClockAnchored, ClockHeld, NewEntry
from fairlead.engine.gpu.projection import Projection
from fairlead.schema.gpu import STYLE


class LedgerClock:
    """The time of entries, as a callable. Any thread may ask."""

    def __init__(
        self,
        read: Callable[[], ClockReading],
        policy: ClockPolicy | None = None,
        *,
        elsewhere: bool = False,
    ) -> None:
        """`elsewhere`: other machines run the processes, so that no boot of this one ends them."""
        self.read, self.policy, self._elsewhere = read, policy or ClockPolicy(), elsewhere
        self._lock = threading.Lock()
        self._projection: Projection | None = None
        self._known: ClockAnchor | None = None
        """The last recorded anchor that this clock goes by."""
        self._memory = ClockMemory()

    def __call__(self) -> int:
        return self.time()[0].now_ms

    def follow(self, projection: Projection) -> None:
        """Go by what this projection knows, from now on."""
        with self._lock:
            self._projection, self._memory = projection, ClockMemory()

    def time(self) -> tuple[LedgerTime, ClockReading]:
        with self._lock:
            reading, projection = self.read(), self._projection
            if projection is None or not reading.boot:
                return LedgerTime(reading.wall_ms, 0, 0, ClockReason.STEADY), reading
            found, self._memory = follow_clock(self._request(projection, reading))
            return found, reading

    def decide(self, judgement: ClockJudgement | None = None) -> tuple[ClockRequest, ClockDecision]:
        """Whether runs may start, and what is to be recorded; with its whole input."""
        with self._lock:
            projection = known(self._projection, "the clock follows a ledger")
            asked = replace(self._request(projection, self.read()), judgement=judgement)
            _, self._memory = follow_clock(asked)
            return asked, judge_clock(asked)

    def _request(self, projection: Projection, reading: ClockReading) -> ClockRequest:
        anchor = projection.clock
        if anchor is not self._known:
            self._known, self._memory = anchor, ClockMemory()
        of_boot = anchor is not None and anchor.boot == reading.boot
        return ClockRequest(
            reading,
            projection.time_ms,
            self.policy,
            anchor,
            projection.clock_jump,
            self._memory,
            bool(projection.running),
            self._elsewhere,
            () if of_boot else self._open_runs(projection, reading),
        )

    def _open_runs(self, projection: Projection, reading: ClockReading) -> tuple[OpenRun, ...]:
        """A process ends with the boot of its machine, and only with that: what another host led
        before may still run."""
        anchor = projection.clock
        moved = self._elsewhere or (anchor is not None and anchor.host != reading.host)
        found: dict[OpenRun, None] = {}
        for run, state in projection.running.items():
            command = bool(projection.run_spec(run).command)
            for lease in state.leases.values():
                ends_ms = None if command else lease.expected_end_ms
                found[OpenRun(moved or not command, ends_ms)] = None
        return tuple(found)


def one_clock(now_ms: Callable[[], int]) -> LedgerClock:
    """A clock that is believed: virtual time, and tests."""

    def read() -> ClockReading:
        wall_ms = now_ms()
        return ClockReading(wall_ms, wall_ms, "")

    return LedgerClock(read)


# -- its entries ----------------------------------------------------------------------------------


def news(
    clock: LedgerClock, judgement: ClockJudgement | None = None, author: str = SYSTEM
) -> list[NewEntry]:
    """What the ledger has to know of the clock now: one entry, or none."""
    asked, found = clock.decide(judgement)
    if found.record is None:
        return []
    read, document = asked.reading, STYLE.from_core(found)
    seen = (read.wall_ms, read.monotonic_ms, read.boot, read.host)
    body: Body = ClockAnchored(*seen, found.offset_ms, found.shift_ms, found.reason.value, document)
    if found.record is ClockRecord.HELD:
        body = ClockHeld(*seen, found.ahead_ms, found.reason.value, document)
    input, reasons = STYLE.from_core(asked), (found.reason.value,)
    return [NewEntry(body, found.now_ms, author=author, input=input, reasons=reasons)]


def first_of_boot(clock: LedgerClock, projection: Projection) -> list[NewEntry]:
    """What has to be recorded before anything else is; nothing where this boot is known. Without
    it the next process could not tell that the other entries are of this boot: the time since would
    be lost, or look like a jump."""
    boot, known, jump = clock.read().boot, projection.clock, projection.clock_jump
    if any(fact is not None and fact.boot == boot for fact in (known, jump)):
        return []
    return news(clock)
