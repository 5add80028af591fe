"""What the CPU governor needs of a node: something that sees pods, something that limits them."""

from collections.abc import Sequence
from typing import Protocol

from fairlead.core.cpu import PodSighting
from fairlead.ports.faults import PermanentFault


class Gone(PermanentFault):
    """The container is no longer there, and its limit with it."""


class CpuSensor(Protocol):
    """Sees the pods of a node; one that cannot be read is seen with missing counters."""

    def sample(self, now_ms: int) -> Sequence[PodSighting]: ...


class CpuActuator(Protocol):
    """Puts limits in force. Idempotent: writing a limit twice is writing it once."""

    def write(self, decision: int, uid: str, container: str, millicores: int) -> int:
        """Limit one container as recorded decision `decision` says; returns the limit in force.
        Raises `Gone` when the container is no longer there, another fault when it may not be
        touched."""
