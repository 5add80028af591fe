"""The port of notices: events delivered to receivers outside, at least once."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Notification:
    """One message to one receiver, who tells a repetition from news by its id."""

    id: str
    receiver: str
    body: bytes


class Notifier(Protocol):
    """Delivers notices. Raises `TemporaryFault` or `PermanentFault` when it could not."""

    def deliver(self, notice: Notification, now_ms: int) -> None:
        """Returns when the receiver has acknowledged it."""
