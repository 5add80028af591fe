"""The ledger's clock: readings of the machine become the time of entries. Writes nothing."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

from fairlead.core.gpu.clock import (
    ClockAnchor,
    ClockPolicy,
    ClockReading,
    ClockReason,
    LedgerTime,
    OpenRun,
    charges_gap,
    ledger_time,
)
from fairlead.engine.gpu.projection import Projection

REBASE_MS = 1_000
"""From so long ago on the last reading is replaced by the new one: slews are whole milliseconds."""


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
        self.anchor_ms = self.policy.anchor_ms(elsewhere=elsewhere)
        self._lock = threading.Lock()
        self._projection: Projection | None = None
        self._known: ClockAnchor | None = None
        """The last recorded anchor that this clock goes by."""
        self._base: ClockAnchor | None = None
        self._before: tuple[ClockAnchor | None, int] | None = None
        """What was known before this boot, where the monotonic clock does not reach back to it."""

    def __call__(self) -> int:
        return self.time()[0].now_ms

    def follow(self, projection: Projection) -> None:
        """Go by what this projection knows, from now on."""
        with self._lock:
            self._projection, self._base = projection, None

    def time(self) -> tuple[LedgerTime, ClockReading]:
        with self._lock:
            reading, projection = self.read(), self._projection
            if projection is None or not reading.boot:
                return LedgerTime(reading.wall_ms, 0, 0, ClockReason.STEADY), reading
            if projection.clock is not self._known:
                self._known, self._base = projection.clock, None
            return self._judge(projection, reading), reading

    def _judge(self, projection: Projection, reading: ClockReading) -> LedgerTime:
        policy, base = self.policy, self._base
        last_ms, jump = projection.time_ms, projection.clock_jump
        if base is None:
            known = self._known
            same = known is not None and known.boot == reading.boot
            self._before = None if same else (known, last_ms)
            # The anchor may be a day old: making up for a difference begins now, not then.
            policy = replace(policy, slew_ppm=0)
            if same or jump is None or jump.boot != reading.boot:
                asked = self._asks(projection, reading)
                return self._rebased(
                    ledger_time(known, last_ms, reading, policy, asked=asked), reading
                )
            # An earlier process of this boot has seen the jump: time goes on from there.
            self._before = (known, jump.time_ms)
            offset_ms = 0 if known is None else known.offset_ms
            at = (jump.time_ms, jump.monotonic_ms, jump.boot, jump.host)
            base = self._base = ClockAnchor(*at, offset_ms)
        found = ledger_time(base, last_ms, reading, policy)
        if found.reason.jumped and self._before is not None:
            # The clock may be set right after the boot: then it was off, and did not jump.
            asked = self._asks(projection, reading)
            late = ledger_time(*self._before, reading, policy, asked=asked)
            # Time that was read is not taken back, recorded or not: accounts went by it.
            if not late.reason.jumped and late.now_ms >= found.now_ms:
                return self._rebased(late, reading)
        passed_ms = reading.monotonic_ms - base.monotonic_ms
        if found.reason is ClockReason.STEADY and passed_ms >= REBASE_MS:
            return self._rebased(found, reading)
        return found

    def _asks(self, projection: Projection, reading: ClockReading) -> bool:
        """Whether a gap is not believed to be downtime: a jump of an earlier boot is not judged
        yet, or a lease would be charged for it."""
        jump = projection.clock_jump
        if jump is not None and (jump.asked or jump.boot != reading.boot):
            return True
        return charges_gap(self._open_runs(projection, reading), projection.time_ms, self.policy)

    def _open_runs(self, projection: Projection, reading: ClockReading) -> Iterator[OpenRun]:
        """A process ends with the boot of its machine, and only with that: what another host led
        before may still run."""
        known = projection.clock
        moved = self._elsewhere or (known is not None and known.host != reading.host)
        for run, state in projection.running.items():
            command = bool(projection.run_spec(run).command)
            for lease in state.leases.values():
                yield OpenRun(moved or not command, None if command else lease.expected_end_ms)

    def _rebased(self, found: LedgerTime, reading: ClockReading) -> LedgerTime:
        at, boot = (found.now_ms, reading.monotonic_ms), (reading.boot, reading.host)
        self._base = ClockAnchor(*at, *boot, found.offset_ms)
        return found


def one_clock(now_ms: Callable[[], int]) -> LedgerClock:
    """A clock that is believed: virtual time, and tests."""

    def read() -> ClockReading:
        wall_ms = now_ms()
        return ClockReading(wall_ms, wall_ms, "")

    return LedgerClock(read)
