"""Virtual time: an event queue in integer milliseconds. Nothing here reads another clock."""

from collections.abc import Callable
from enum import IntEnum
from heapq import heappop, heappush

from fairlead.core.invariant import require


class Turn(IntEnum):
    """Who goes first when several things are due in the same millisecond."""

    KERNEL = 0
    """The period that ends now is accounted before anybody looks at it."""
    WORLD = 1
    """Pods come and go, acts begin."""
    WRITE = 2
    """Limits that were on their way arrive."""
    SAMPLE = 3
    CLEAR = 4
    """After the sample of the same instant, as in the agent's own loop."""
    FRAME = 5
    """Last: the picture of a second shows what the second led to."""


class VirtualClock:
    """Runs actions in the order (time, turn, arrival); the order never depends on anything else.

    An action may itself call `run_until`: that is how somebody blocks while the world goes on.
    """

    def __init__(self) -> None:
        self.now_ms = 0
        self._queue: list[tuple[int, Turn, int, Callable[[], None]]] = []
        self._arrivals = 0

    def at(self, time_ms: int, turn: Turn, action: Callable[[], None]) -> None:
        """Do `action` at `time_ms`, which may be now but not earlier."""
        require(time_ms >= self.now_ms, "virtual time never runs backwards")
        heappush(self._queue, (time_ms, turn, self._arrivals, action))
        self._arrivals += 1

    def every(self, step_ms: int, turn: Turn, action: Callable[[], None]) -> None:
        """Do `action` at each multiple of `step_ms` from the next one on (now included)."""
        first = -(-self.now_ms // step_ms) * step_ms

        def again() -> None:
            action()
            self.at(self.now_ms + step_ms, turn, again)

        self.at(first, turn, again)

    def run_until(self, end_ms: int) -> None:
        """Do all that is due up to and including `end_ms`."""
        while self._queue and self._queue[0][0] <= end_ms:
            self.now_ms, _, _, action = heappop(self._queue)
            action()
        self.now_ms = max(self.now_ms, end_ms)
