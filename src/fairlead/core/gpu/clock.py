"""The ledger's time: how a reading of the machine's clocks becomes the time of an entry.

Ledger time passes as the monotonic clock does, and follows the wall clock by at most a thousandth:
what a lease is charged is time that really passed. It never goes back. A wall clock that differs by
more than a bound decides nothing until an operator has said which of the two is right.

    anchor    a moment at which ledger time and both clocks were known; recorded in the ledger
    offset    ledger time less wall time, where the operator let them differ
    span      a boot as the ledger knows it: what ended in it is placed by its monotonic clock
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from fairlead.core.units import Count, Integer

PARTS = 1_000_000
BOOTS_KEPT = 16
"""Of an earlier one no process is left whose end is not recorded."""


@dataclass(frozen=True, slots=True)
class ClockPolicy:
    """From when on a difference is a jump, and how fast a smaller one is made up for."""

    jump_ms: Count = 300_000
    downtime_ms: Count = 90 * 86_400_000
    """A machine may have been off for so long without a question: nothing ran, nothing is charged.
    A longer gap is more often a wrong clock."""
    slew_ppm: Count = 1_000
    """Twice what time servers do (500 ppm): a correct clock is never left behind."""

    def anchor_ms(self, *, elsewhere: bool) -> int:
        """How old an anchor may be while runs are running. Where other machines run them, a
        failover has the rest of the bound: the ledger knows no later time than its last entry."""
        return self.jump_ms // 5 if elsewhere else self.jump_ms


@dataclass(frozen=True, slots=True)
class ClockReading:
    """What a machine's clocks say."""

    wall_ms: Integer
    monotonic_ms: Count
    """Since the boot, time asleep included; the same for all processes of the machine."""
    boot: str
    """Which boot that counts from. Empty: there is one clock only, and it is believed."""
    host: str = ""


@dataclass(frozen=True, slots=True)
class ClockAnchor:
    """A moment that the ledger knows."""

    ledger_ms: Integer
    monotonic_ms: Count
    boot: str
    host: str = ""
    offset_ms: Integer = 0


@dataclass(frozen=True, slots=True)
class ClockJump:
    """A jump of the wall clock that no operator has judged; `seq`: the entry that says so."""

    seq: Count
    time_ms: Integer
    ahead_ms: Integer
    boot: str = ""
    monotonic_ms: Count = 0
    host: str = ""
    asked: bool = False
    """Whether a jump of an earlier boot was not judged either."""


@dataclass(frozen=True, slots=True)
class BootSpan:
    """A boot, in ledger time."""

    boot: str
    before_ms: int
    """The last entry before it, and its first one."""
    first_ms: int
    ledger_ms: int
    """Its last anchor, and what the monotonic clock showed then."""
    monotonic_ms: int
    host: str = ""

    def restated(self, shift_ms: int) -> "BootSpan":
        return replace(
            self,
            before_ms=self.before_ms + shift_ms,
            first_ms=self.first_ms + shift_ms,
            ledger_ms=self.ledger_ms + shift_ms,
        )


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run that holds a lease while the time between two boots is judged."""

    outlives: bool
    """It may have gone on: another machine runs its process, or it has none."""
    ends_ms: Integer | None = None
    """When it ends without being told; None: it does not."""


class ClockReason(StrEnum):
    """How a reading fits the last anchor."""

    STEADY = "Steady"
    STARTED = "Started"
    """Another boot, or another machine: the monotonic clock says nothing about the time between."""
    RETURNED = "Returned"
    """The wall clock shows ledger time again, without an offset."""
    JUMPED_AHEAD = "JumpedAhead"
    JUMPED_BACK = "JumpedBack"
    ACCEPTED = "Accepted"
    """An operator says that the wall clock is right."""
    REJECTED = "Rejected"
    """An operator says that it is not."""

    @property
    def jumped(self) -> bool:
        return self in (ClockReason.JUMPED_AHEAD, ClockReason.JUMPED_BACK)


@dataclass(frozen=True, slots=True)
class LedgerTime:
    """The time of an entry made now; `ahead_ms`: by how much the wall clock is ahead of it."""

    now_ms: int
    ahead_ms: int
    offset_ms: int
    reason: ClockReason

    @property
    def admits(self) -> bool:
        """Whether runs may be started and preempted: no jump is to be judged."""
        return not self.reason.jumped


def ledger_time(
    anchor: ClockAnchor | None,
    last_ms: int,
    reading: ClockReading,
    policy: ClockPolicy,
    *,
    asked: bool = False,
) -> LedgerTime:
    """The ledger's time now. `last_ms`: the time of its last entry, 0 without one. `asked`: a jump
    of an earlier boot is not judged yet, or `charges_gap`. Then no gap is believed to be
    downtime."""
    if anchor is None or anchor.boot != reading.boot:
        if asked:
            policy = replace(policy, downtime_ms=policy.jump_ms)
        return _after_boot(anchor, last_ms, reading, policy)
    offset_ms = anchor.offset_ms
    passed_ms = max(0, reading.monotonic_ms - anchor.monotonic_ms)
    steady_ms = max(last_ms, anchor.ledger_ms + passed_ms)
    ahead_ms = reading.wall_ms + offset_ms - steady_ms
    if abs(ahead_ms) <= policy.jump_ms:
        slew_ms = passed_ms * policy.slew_ppm // PARTS
        now_ms = max(last_ms, steady_ms + min(max(ahead_ms, -slew_ms), slew_ms))
        return LedgerTime(now_ms, ahead_ms, offset_ms, ClockReason.STEADY)
    if abs(reading.wall_ms - steady_ms) <= policy.jump_ms:
        return LedgerTime(steady_ms, reading.wall_ms - steady_ms, 0, ClockReason.RETURNED)
    return LedgerTime(steady_ms, ahead_ms, offset_ms, _jump(ahead_ms))


def _after_boot(
    anchor: ClockAnchor | None, last_ms: int, reading: ClockReading, policy: ClockPolicy
) -> LedgerTime:
    """The first reading: there is only the wall clock, and what the kernel says of its boot."""
    offsets = (0,) if anchor is None else (anchor.offset_ms, 0)
    for offset_ms in offsets:
        if _is_plausible(anchor, last_ms, reading, offset_ms, policy):
            now_ms = max(last_ms, reading.wall_ms + offset_ms)
            return LedgerTime(now_ms, 0, offset_ms, ClockReason.STARTED)
    ahead_ms = reading.wall_ms + offsets[0] - last_ms
    return LedgerTime(last_ms, ahead_ms, offsets[0], _jump(ahead_ms))


def _is_plausible(
    anchor: ClockAnchor | None,
    last_ms: int,
    reading: ClockReading,
    offset_ms: int,
    policy: ClockPolicy,
) -> bool:
    if not last_ms:
        return True
    gap_ms = reading.wall_ms + offset_ms - last_ms
    if not -policy.jump_ms <= gap_ms <= policy.downtime_ms:
        return False
    # The last entry is from before this boot, so the boot came after it: else a clock is wrong.
    same_host = anchor is not None and anchor.host == reading.host
    return not same_host or gap_ms - reading.monotonic_ms >= -policy.jump_ms


def charges_gap(runs: Iterable[OpenRun], last_ms: int, policy: ClockPolicy) -> bool:
    """Whether a lease would be charged for more of the time between two boots than the bound. No
    monotonic clock has counted that time: only the wall clocks of two boots say how long it was."""
    until_ms = last_ms + policy.jump_ms
    return any(run.outlives and (run.ends_ms is None or run.ends_ms > until_ms) for run in runs)


def follow_boot(
    spans: Sequence[BootSpan], anchor: ClockAnchor, last_ms: int
) -> tuple[BootSpan, ...]:
    """The boots that are known, with an anchor of the last one. `last_ms`: of the entry before."""
    at = (anchor.ledger_ms, anchor.monotonic_ms)
    if spans and spans[-1].boot == anchor.boot:
        return (*spans[:-1], replace(spans[-1], ledger_ms=at[0], monotonic_ms=at[1]))
    began = BootSpan(anchor.boot, last_ms, at[0], *at, anchor.host)
    return (*spans, began)[-BOOTS_KEPT:]


def time_in_boot(spans: Sequence[BootSpan], boot: str, since_boot_ms: int) -> int | None:
    """When something was, of which a boot's monotonic clock says so; None: of an unknown boot."""
    for span in spans:
        if span.boot == boot:
            return span.ledger_ms + since_boot_ms - span.monotonic_ms
    return None


def time_elsewhere(wall_ms: int, policy: ClockPolicy, *, began_ms: int, now_ms: int) -> int:
    """When something ended of which only another machine's wall clock says so. A clock that places
    the end further before the beginning than the bound is not ours: then it was there until now."""
    return now_ms if wall_ms < began_ms - policy.jump_ms else wall_ms


def is_of_earlier_boot(spans: Sequence[BootSpan], began_ms: int) -> bool:
    """Whether this machine has restarted since: no process from then is left."""
    present = spans[-1:]
    earlier = [span for span in spans if span.first_ms <= began_ms]
    return any(
        span.boot != now.boot and span.host == now.host for span in earlier[-1:] for now in present
    )


def seen_in_boot(spans: Sequence[BootSpan], began_ms: int, seen_ms: int) -> int:
    """When something that began in one boot was there for the last time. Seen in a later one only,
    it was there until the last entry of its own."""
    for later in spans:
        if began_ms < later.first_ms <= seen_ms:
            return max(began_ms, later.before_ms)
    return seen_ms


def _jump(ahead_ms: int) -> ClockReason:
    return ClockReason.JUMPED_AHEAD if ahead_ms > 0 else ClockReason.JUMPED_BACK
