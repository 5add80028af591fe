"""The machines under the backends, as a tick wants them: stalls and I/O wait as shares of the last
10 s.

Called by the traffic loop once per tick, for all groups together.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from fairlead.core.traffic import Node, Psi, StallTotals, observe_totals
from fairlead.ports.traffic import CpuTimes, NodeReading

WINDOW_MS = 10_000


class NodeWatch:
    """Differences every machine's counters."""

    def __init__(self) -> None:
        self._times: dict[str, deque[CpuTimes]] = {}
        self._windows: dict[str, tuple[StallTotals, ...]] = {}
        self._psi: dict[str, Psi | None] = {}

    def observe(self, readings: Sequence[NodeReading]) -> tuple[Node, ...]:
        """The machines that can be seen; the windows of those that cannot begin again."""
        seen = {reading.id: reading for reading in readings}
        for name in self._windows.keys() - seen.keys():
            del self._windows[name], self._psi[name], self._times[name]
        return tuple(
            Node(
                name,
                psi=self._stalls(reading),
                resources=reading.resources,
                iowait_ratio=self._iowait(reading),
            )
            for name, reading in sorted(seen.items())
        )

    def _iowait(self, reading: NodeReading) -> float | None:
        """None until time has passed. The kernel's own count of it may fall: then it is 0."""
        times, now = self._times.setdefault(reading.id, deque()), reading.cpu
        if now is None or (times and (now.total < times[-1].total or now.at_ms < times[-1].at_ms)):
            times.clear()
        if now is None:
            return None
        times.append(now)
        while len(times) > 1 and times[1].at_ms <= now.at_ms - WINDOW_MS:
            times.popleft()
        passed = now.total - times[0].total
        return min(1.0, max(0.0, now.iowait - times[0].iowait) / passed) if passed > 0 else None

    def _stalls(self, reading: NodeReading) -> Psi | None:
        window = self._windows.get(reading.id, ())
        totals = reading.totals
        if totals is None:
            self._windows[reading.id], self._psi[reading.id] = (), None
            return None
        if window and totals == replace(window[-1]):
            return self._psi[reading.id]  # a remote machine that was not asked again meanwhile
        self._windows[reading.id], psi = observe_totals(window, totals)
        self._psi[reading.id] = psi
        return psi
