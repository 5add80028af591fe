"""What the CPU governor needs of a node: something that sees pods, something that limits them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from fairlead.core.cpu import PodSighting
from fairlead.ports.faults import PermanentFault


class Gone(PermanentFault):
    """The container is no longer there, and its limit with it."""


class CpuSensor(Protocol):
    """Sees the pods of a node; one that cannot be read is seen with missing counters."""

    def sample(self, now_ms: int) -> Sequence[PodSighting]: ...


class CpuActuator(Protocol):
    """Puts limits, or guarantees, in force. Idempotent: writing one twice is writing it once."""

    def write(self, decision: int, uid: str, container: str, millicores: int) -> int:
        """Limit one container as recorded decision `decision` says, or guarantee it that much;
        returns what is in force. Raises `Gone` when the container is no longer there, another
        fault when it may not be touched."""


class LimitActuator(Protocol):
    """Contains pods with limits where their guarantees are governed. Idempotent."""

    def contain(
        self, decision: int, uid: str, container: str, limit_millicores: int | None
    ) -> None:
        """Limit one container as recorded decision `decision` says; None: put its user's own limit
        back. Raises as `CpuActuator.write`."""


@dataclass(frozen=True, slots=True)
class KnownContainer:
    """A container as an orchestrator describes it. `cgroup` is its id, None while it does not run;
    `limit_millicores` what its spec says; `original_millicores` the user's own limit, where the
    orchestrator remembers it; `guarantee_millicores` the request in force, where these are
    governed."""

    name: str
    cgroup: str | None
    limit_millicores: int | None
    original_millicores: int | None = None
    guarantee_millicores: int | None = None


@dataclass(frozen=True, slots=True)
class KnownPod:
    """A pod of this node as an orchestrator describes it; `name` is unique at any one time."""

    name: str
    uid: str
    request_millicores: int
    containers: tuple[KnownContainer, ...]
    priority: int = 0
    opted_out: bool = False
    started_ms: int | None = None


class PodRoster(Protocol):
    """Knows the pods of this node."""

    def pods(self) -> Sequence[KnownPod]: ...
