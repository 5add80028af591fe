"""Entries of the clock: what the ledger has to know of it now, if anything.

The first entry of a boot is one of these. Else the next process could not tell that the others are
of this boot, and the time since would be lost, or look like a jump.
"""

from fairlead.core.gpu.clock_hold import ClockDecision, ClockJudgement, ClockRecord, ClockRequest
from fairlead.engine.gpu.clock import LedgerClock
from fairlead.engine.gpu.entries import SYSTEM, ClockAnchored, ClockHeld, NewEntry
from fairlead.engine.gpu.projection import Projection
from fairlead.schema.gpu import STYLE


def news(
    clock: LedgerClock, judgement: ClockJudgement | None = None, author: str = SYSTEM
) -> list[NewEntry]:
    """One entry, or none."""
    asked, found = clock.decide(judgement)
    if found.record is None:
        return []
    body = _held(asked, found) if found.record is ClockRecord.HELD else _anchored(asked, found)
    input, reasons = STYLE.from_core(asked), (found.reason.value,)
    return [NewEntry(body, found.now_ms, author=author, input=input, reasons=reasons)]


def first_of_boot(clock: LedgerClock, projection: Projection) -> list[NewEntry]:
    """What has to be recorded before anything else is; nothing where this boot is known."""
    boot, known, jump = clock.read().boot, projection.clock, projection.clock_jump
    if any(fact is not None and fact.boot == boot for fact in (known, jump)):
        return []
    return news(clock)


def _held(asked: ClockRequest, found: ClockDecision) -> ClockHeld:
    reading = asked.reading
    return ClockHeld(
        wall_ms=reading.wall_ms,
        monotonic_ms=reading.monotonic_ms,
        boot=reading.boot,
        host=reading.host,
        ahead_ms=found.ahead_ms,
        reason=found.reason.value,
        output=STYLE.from_core(found),
    )


def _anchored(asked: ClockRequest, found: ClockDecision) -> ClockAnchored:
    reading = asked.reading
    return ClockAnchored(
        wall_ms=reading.wall_ms,
        monotonic_ms=reading.monotonic_ms,
        boot=reading.boot,
        host=reading.host,
        offset_ms=found.offset_ms,
        shift_ms=found.shift_ms,
        reason=found.reason.value,
        output=STYLE.from_core(found),
    )
