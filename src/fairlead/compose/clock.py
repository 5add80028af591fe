"""The ledger's clock on this machine."""

from fairlead.core.gpu.clock import ClockPolicy, ClockReading
from fairlead.engine.gpu.clock import LedgerClock
from fairlead.host.clock import read_clocks


def machine_clock(policy: ClockPolicy, *, elsewhere: bool = False) -> LedgerClock:
    return LedgerClock(lambda: ClockReading(*read_clocks()), policy, elsewhere=elsewhere)
