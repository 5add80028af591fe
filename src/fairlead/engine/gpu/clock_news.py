"""Entries of the clock: what the ledger has to know of it now, if anything.

The first entry of a boot is one of these. Else the next process could not tell that the others are
of this boot, and the time since would be lost, or look like a jump.
"""

from fairlead.core.gpu.clock import ClockReading, ClockReason, LedgerTime
from fairlead.engine.gpu.clock import LedgerClock
from fairlead.engine.gpu.entries import SYSTEM, ClockAnchored, ClockHeld, NewEntry
from fairlead.engine.gpu.projection import Projection

SLEWED_MS = 1_000
"""An anchor that is off by more is replaced: a restart goes by it."""


def news(clock: LedgerClock, projection: Projection) -> list[NewEntry]:
    """One entry, or none."""
    found, reading = clock.time()
    if not reading.boot:
        return []
    known, jump = projection.clock, projection.clock_jump
    if found.reason.jumped:
        of_this_boot = jump is not None and jump.boot == reading.boot
        return [] if of_this_boot else [held(found, reading)]
    if known is None or known.boot != reading.boot:
        return [anchored(found, reading, ClockReason.STARTED)]
    if jump is not None or found.offset_ms != known.offset_ms:
        return [anchored(found, reading, ClockReason.RETURNED)]
    passed_ms = reading.monotonic_ms - known.monotonic_ms
    # After a boot with a wrong clock, time goes on from the last entry: what runs is not charged
    # for what came after it.
    is_old = bool(projection.running) and passed_ms >= clock.anchor_ms
    if is_old or abs(found.now_ms - known.ledger_ms - passed_ms) > SLEWED_MS:
        return [anchored(found, reading, ClockReason.STEADY)]
    return []


def first_of_boot(clock: LedgerClock, projection: Projection) -> list[NewEntry]:
    """What has to be recorded before anything else is; nothing where this boot is known."""
    boot, known, jump = clock.read().boot, projection.clock, projection.clock_jump
    if any(fact is not None and fact.boot == boot for fact in (known, jump)):
        return []
    return news(clock, projection)


def held(found: LedgerTime, reading: ClockReading) -> NewEntry:
    body = ClockHeld(
        wall_ms=reading.wall_ms,
        monotonic_ms=reading.monotonic_ms,
        boot=reading.boot,
        host=reading.host,
        ahead_ms=found.ahead_ms,
        reason=found.reason.value,
    )
    return NewEntry(body, found.now_ms)


def anchored(
    found: LedgerTime, reading: ClockReading, reason: str, author: str = SYSTEM, shift_ms: int = 0
) -> NewEntry:
    body = ClockAnchored(
        wall_ms=reading.wall_ms,
        monotonic_ms=reading.monotonic_ms,
        boot=reading.boot,
        host=reading.host,
        offset_ms=found.offset_ms,
        shift_ms=shift_ms,
        reason=str(reason),
    )
    return NewEntry(body, found.now_ms, author=author)
