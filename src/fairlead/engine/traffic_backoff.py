"""Patience with backends that keep failing: each return that does not last makes the next one wait.

Without it a backend whose probes are fine and whose traffic is not would come and go every few
seconds. The first isolation is probed at once, as the health tracker asks.
"""

from dataclasses import dataclass

BASE_MS, MOST_MS = 1_000, 60_000
LASTED_MS = 60_000
"""A return that lasts this long is forgiven."""


@dataclass(slots=True)
class _Record:
    times: int = 0
    isolated_ms: int = 0
    returned_ms: int | None = None


class Backoff:
    """Counts isolations that came soon after a return."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}

    def isolated(self, name: str, clock_ms: int) -> None:
        """It is sent away now."""
        record = self._records.setdefault(name, _Record())
        lasted = record.returned_ms is None or clock_ms - record.returned_ms >= LASTED_MS
        record.times = 1 if lasted else record.times + 1
        record.isolated_ms = clock_ms

    def returned(self, name: str, clock_ms: int) -> None:
        """It is back."""
        self._records.setdefault(name, _Record()).returned_ms = clock_ms

    def away_ms(self, name: str, clock_ms: int) -> int | None:
        """How long it has been away since we sent it; None where that was not us."""
        record = self._records.get(name)
        return None if record is None else max(0, clock_ms - record.isolated_ms)

    def may_probe(self, name: str, clock_ms: int) -> bool:
        """Has it waited long enough?"""
        record = self._records.get(name)
        if record is None or record.times <= 1:
            return True
        wait_ms = min(BASE_MS << min(record.times - 1, 10), MOST_MS)
        return clock_ms - record.isolated_ms >= wait_ms

    def forget(self, name: str) -> None:
        """It left the group."""
        self._records.pop(name, None)
