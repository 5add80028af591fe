"""The port of notices: events delivered to receivers outside.

A notice is delivered at least once. Its id is the same however often it is tried, so that a
receiver can tell a repetition from news.
"""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Notification:
    """One message to one receiver."""

    id: str
    receiver: str
    body: bytes


class Notifier(Protocol):
    """Delivers notices. Raises `TemporaryFault` or `PermanentFault` when it could not."""

    def deliver(self, notice: Notification, now_ms: int) -> None:
        """Returns when the receiver has acknowledged it."""
