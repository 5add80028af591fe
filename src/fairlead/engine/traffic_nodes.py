"""The machines under the backends, as a tick wants them: stalls as shares of the last 10 s.

Called by the traffic loop once per tick, for all groups together.
"""

from collections.abc import Sequence
from dataclasses import replace

from fairlead.core.traffic import Node, Psi, StallTotals, observe_totals
from fairlead.ports.traffic import NodeReading


class NodeWatch:
    """Differences every machine's counters of stalled time."""

    def __init__(self) -> None:
        self._windows: dict[str, tuple[StallTotals, ...]] = {}
        self._psi: dict[str, Psi | None] = {}

    def observe(self, readings: Sequence[NodeReading]) -> tuple[Node, ...]:
        """The machines that can be seen; the windows of those that cannot begin again."""
        seen = {reading.id: reading for reading in readings}
        for name in self._windows.keys() - seen.keys():
            del self._windows[name], self._psi[name]
        return tuple(
            Node(name, psi=self._stalls(reading), resources=reading.resources)
            for name, reading in sorted(seen.items())
        )

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
