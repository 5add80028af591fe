"""Clock hold: whether the wall clock jumped, so that no run is started or preempted, and what the
ledger has to know of it.

While a jump is not judged, time goes on by the monotonic clock. An operator's judgement, or a wall
clock that is right again, ends the hold.

    known     the last recorded anchor
    memory    what the process goes by since: a later reading, and what was known before this boot
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum

from fairlead.core.gpu.clock import (
    ClockAnchor,
    ClockJump,
    ClockPolicy,
    ClockReading,
    ClockReason,
    LedgerTime,
    OpenRun,
    charges_gap,
    ledger_time,
)
from fairlead.core.units import Integer

REBASE_MS = 1_000
"""From so long ago on the last reading is replaced by the new one: slews are whole milliseconds."""
SLEWED_MS = 1_000
"""An anchor that is off by more is replaced: a restart goes by it."""


class ClockJudgement(StrEnum):
    """What an operator says of the wall clock: it is right, or it is not."""

    ACCEPT = "accept"
    REJECT = "reject"


class ClockRecord(StrEnum):
    """What is recorded: a jump, or a moment that is known."""

    HELD = "held"
    ANCHORED = "anchored"


@dataclass(frozen=True, slots=True)
class BeforeBoot:
    """The last anchor before this boot, and the time from which on nothing was known."""

    known: ClockAnchor | None
    last_ms: Integer


@dataclass(frozen=True, slots=True)
class ClockMemory:
    """What a process goes by between two anchors; nothing at its start, and after an anchor."""

    base: ClockAnchor | None = None
    """Its last reading."""
    before: BeforeBoot | None = None
    """None where the monotonic clock reaches back to the last anchor."""


@dataclass(frozen=True, slots=True)
class ClockRequest:
    """All that the ledger's time, and a hold, are decided on."""

    reading: ClockReading
    last_ms: Integer
    """The time of the last entry, 0 without one."""
    policy: ClockPolicy = field(default_factory=ClockPolicy)
    known: ClockAnchor | None = None
    jump: ClockJump | None = None
    """A jump that is recorded and not judged."""
    memory: ClockMemory = field(default_factory=ClockMemory)
    running: bool = False
    """Runs are running: an anchor may be only so old."""
    elsewhere: bool = False
    """Other machines run them."""
    runs: tuple[OpenRun, ...] = ()
    """Where the last anchor is of another boot: runs that hold leases, alike ones once."""
    judgement: ClockJudgement | None = None


@dataclass(frozen=True, slots=True)
class ClockDecision:
    """The ledger's time, whether runs may start, and what is to be recorded; None: nothing new."""

    now_ms: int
    ahead_ms: int
    offset_ms: int
    shift_ms: int
    """By how much ledger time is set forward."""
    reason: ClockReason
    admits: bool
    """Runs may be started and preempted."""
    record: ClockRecord | None


def follow_clock(asked: ClockRequest) -> tuple[LedgerTime, ClockMemory]:
    """The ledger's time now, and what the next reading goes by."""
    reading, known, jump, policy = asked.reading, asked.known, asked.jump, asked.policy
    base, before = asked.memory.base, asked.memory.before
    if not reading.boot:
        return LedgerTime(reading.wall_ms, 0, 0, ClockReason.STEADY), asked.memory
    if base is None:
        same = known is not None and known.boot == reading.boot
        before = None if same else BeforeBoot(known, asked.last_ms)
        # The anchor may be a day old: making up for a difference begins now, not then.
        policy = replace(policy, slew_ppm=0)
        if same or jump is None or jump.boot != reading.boot:
            found = ledger_time(known, asked.last_ms, reading, policy, asked=_asks(asked))
            return found, _rebased(found, reading, before)
        # An earlier process of this boot has seen the jump: time goes on from there.
        before = BeforeBoot(known, jump.time_ms)
        offset_ms = 0 if known is None else known.offset_ms
        base = ClockAnchor(jump.time_ms, jump.monotonic_ms, jump.boot, jump.host, offset_ms)
    found = ledger_time(base, asked.last_ms, reading, policy)
    if found.reason.jumped and before is not None:
        # The clock may be set right after the boot: then it was off, and did not jump.
        late = ledger_time(before.known, before.last_ms, reading, policy, asked=_asks(asked))
        # Time that was read is not taken back, recorded or not: accounts went by it.
        if not late.reason.jumped and late.now_ms >= found.now_ms:
            return late, _rebased(late, reading, before)
    passed_ms = reading.monotonic_ms - base.monotonic_ms
    if found.reason is ClockReason.STEADY and passed_ms >= REBASE_MS:
        return found, _rebased(found, reading, before)
    return found, ClockMemory(base, before)


def _asks(asked: ClockRequest) -> bool:
    """Whether a gap is not believed to be downtime: a jump of an earlier boot is not judged yet,
    or a lease would be charged for it."""
    jump = asked.jump
    if jump is not None and (jump.asked or jump.boot != asked.reading.boot):
        return True
    return charges_gap(asked.runs, asked.last_ms, asked.policy)


def _rebased(found: LedgerTime, reading: ClockReading, before: BeforeBoot | None) -> ClockMemory:
    at, boot = (found.now_ms, reading.monotonic_ms), (reading.boot, reading.host)
    return ClockMemory(ClockAnchor(*at, *boot, found.offset_ms), before)


def judge_clock(asked: ClockRequest) -> ClockDecision:
    """A judgement of a clock that agrees, or of a boot with one clock, records nothing."""
    found, _ = follow_clock(asked)
    if asked.judgement is not None:
        return _judged(asked.judgement, asked.reading.wall_ms, found)
    record, reason = _news(asked, found)
    clocks = (found.now_ms, found.ahead_ms, found.offset_ms)
    return ClockDecision(*clocks, 0, reason, found.admits, record)


def _news(asked: ClockRequest, found: LedgerTime) -> tuple[ClockRecord | None, ClockReason]:
    """What the ledger does not know yet, and why it has to."""
    reading, known, jump = asked.reading, asked.known, asked.jump
    if not reading.boot:
        return None, found.reason
    if found.reason.jumped:
        is_known = jump is not None and jump.boot == reading.boot
        return None if is_known else ClockRecord.HELD, found.reason
    if known is None or known.boot != reading.boot:
        return ClockRecord.ANCHORED, ClockReason.STARTED
    if jump is not None or found.offset_ms != known.offset_ms:
        return ClockRecord.ANCHORED, ClockReason.RETURNED
    passed_ms = reading.monotonic_ms - known.monotonic_ms
    # After a boot with a wrong clock, time goes on from the last entry: what runs is not charged
    # for what came after it.
    is_old = asked.running and passed_ms >= asked.policy.anchor_ms(elsewhere=asked.elsewhere)
    if is_old or abs(found.now_ms - known.ledger_ms - passed_ms) > SLEWED_MS:
        return ClockRecord.ANCHORED, ClockReason.STEADY
    return None, found.reason


def _judged(judgement: ClockJudgement, wall_ms: int, found: LedgerTime) -> ClockDecision:
    difference_ms, jumped = wall_ms - found.now_ms, found.reason.jumped
    if judgement is ClockJudgement.ACCEPT and (jumped or found.offset_ms):
        # Behind the wall clock, ledger time catches up, and open leases are restated: they began as
        # long ago as they did. Ahead of it, ledger time goes on, for it never goes back.
        shift_ms, offset_ms = max(0, difference_ms), max(0, -difference_ms)
        judged = (found.now_ms + shift_ms, 0, offset_ms, shift_ms, ClockReason.ACCEPTED)
        return ClockDecision(*judged, True, ClockRecord.ANCHORED)
    if judgement is ClockJudgement.REJECT and jumped:
        kept = (found.now_ms, 0, -difference_ms, 0, ClockReason.REJECTED)
        return ClockDecision(*kept, True, ClockRecord.ANCHORED)
    clocks = (found.now_ms, found.ahead_ms, found.offset_ms)
    return ClockDecision(*clocks, 0, found.reason, found.admits, None)
