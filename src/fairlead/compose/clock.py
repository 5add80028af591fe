"""The ledger's clock on this machine."""

from fairlead.core.gpu.clock import ClockAnchor, ClockPolicy, ClockReading, ledger_time
from fairlead.engine.gpu.clock import LedgerClock
from fairlead.engine.gpu.entries import ClockAnchored
from fairlead.host.clock import read_clocks
from fairlead.ports.ledger import Archived, LedgerReader


def machine_clock(policy: ClockPolicy, *, elsewhere: bool = False) -> LedgerClock:
    return LedgerClock(lambda: ClockReading(*read_clocks()), policy, elsewhere=elsewhere)


def upkeep_time_ms(ledger: LedgerReader, reading: ClockReading | None = None) -> int:
    """The time of an entry that upkeep makes while no control plane runs, never before the newest.
    Ledger time goes on from there, and running runs are charged for it: so a wall clock that jumped
    since the last anchor is not believed."""
    reading = reading or ClockReading(*read_clocks())
    last_ms = ledger.head().head.time_ms
    try:
        entry = ledger.last(ClockAnchored.ENTRY)
    except Archived:
        return last_ms
    if entry is None:  # no control plane wrote it
        return max(last_ms, reading.wall_ms)
    said = ClockAnchored.of(entry.body)
    anchor = ClockAnchor(entry.time_ms, said.monotonic_ms, said.boot, said.host, said.offset_ms)
    return ledger_time(anchor, last_ms, reading, ClockPolicy(), asked=True).now_ms
