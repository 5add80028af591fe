"""What the CPU governor needs of a node: something that sees pods, something that limits them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from fairlead.core.cpu import Counters
from fairlead.ports.faults import PermanentFault


@dataclass(frozen=True, slots=True)
class ContainerSighting:
    """One container in one sample, with the limit in force (None: unlimited). Counters that could
    not be read are None: a missing signal, and never a zero."""

    name: str
    limit_millicores: int | None
    counters: Counters | None


@dataclass(frozen=True, slots=True)
class PodSighting:
    """One pod in one sample. Limits at first sight are the user's own and become its maximum."""

    uid: str
    request_millicores: int
    containers: tuple[ContainerSighting, ...]
    priority: int = 0
    opted_out: bool = False
    started_ms: int | None = None
    """Where the start-up grace counts from (None: first sight): an agent that starts on a busy node
    must not treat every old pod as a newcomer."""
    identity: str = ""  # tells a pod from a later one of the same name

    @property
    def limit_millicores(self) -> int | None:
        """The sum of its containers' limits, None when one of them is unlimited."""
        total = 0
        for container in self.containers:
            if container.limit_millicores is None:
                return None
            total += container.limit_millicores
        return total

    @property
    def reserved_millicores(self) -> int:
        """What an opted-out pod takes from the capacity: its limit, else its request."""
        limit = self.limit_millicores
        return self.request_millicores if limit is None else limit


class Gone(PermanentFault):
    """The container is no longer there, and its limit with it."""


class CpuSensor(Protocol):
    """Sees the pods of a node; one that cannot be read is seen with missing counters."""

    def sample(self, now_ms: int) -> Sequence[PodSighting]: ...


class CpuActuator(Protocol):
    """Puts limits in force. Idempotent: writing a limit twice is writing it once."""

    def write(self, decision: int, uid: str, container: str, millicores: int) -> int:
        """Limit one container as recorded decision `decision` says; returns the limit in force.

        Raises `Gone` when the container is no longer there, another `PermanentFault` when it may
        not be touched, `TemporaryFault` when trying again may help.
        """
