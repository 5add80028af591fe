"""A proxy that died is started again by the next heartbeat, but not in every tick."""

import contextlib
import time
from collections.abc import Iterator

from fairlead.ports.faults import Fault, TemporaryFault

_PAUSE_S = 5.0


class Pause:
    """Between attempts that failed."""

    def __init__(self) -> None:
        self._until = 0.0
        self._why = ""

    @contextlib.contextmanager
    def over(self) -> Iterator[None]:
        """Refuse for a while after an attempt that failed."""
        left_s = self._until - time.monotonic()
        if left_s > 0:
            raise TemporaryFault(self._why, retry_after_ms=round(left_s * 1000))
        try:
            yield
        except Fault as fault:
            self._until, self._why = time.monotonic() + _PAUSE_S, f"it died, and: {fault}"
            raise
