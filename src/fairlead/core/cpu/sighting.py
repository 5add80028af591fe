"""What a sensor sees of a node in one sample: its pods, their containers, their counters."""

from collections.abc import Mapping
from typing import NamedTuple

from fairlead.core.cpu.model import Actuation
from fairlead.core.cpu.signal import Counters


class ContainerSighting(NamedTuple):
    """One container in one sample.

    `limit_millicores` is the limit in force (None: unlimited). `counters` None: they could not be
    read, which is a missing signal and never a zero. Without either the limit is not known.
    """

    name: str
    limit_millicores: int | None
    counters: Counters | None
    guarantee_millicores: int | None = None
    """Its weight in force, as millicores; None where weights are not governed."""

    def in_force(self, actuate: Actuation) -> int | None:
        """What the governor moves: the limit, or the guarantee."""
        return self.limit_millicores if actuate is Actuation.LIMITS else self.guarantee_millicores

    @property
    def is_unread(self) -> bool:
        return self.limit_millicores is None and self.counters is None


class PodSighting(NamedTuple):
    """One pod in one sample.

    Limits at first sight are the user's own and become the pod's maximum for good. `identity`
    tells a pod from a later one of the same name. `started_ms` (None: now, at first sight) is
    where the start-up grace counts from: an agent that starts on a busy node must not treat every
    old pod as a newcomer.
    """

    uid: str
    request_millicores: int
    containers: tuple[ContainerSighting, ...]
    priority: int = 0
    opted_out: bool = False
    started_ms: int | None = None
    identity: str = ""
    originals: Mapping[str, int | None] = {}
    """The user's own limits of containers, where they are known from before: at first sight a pod
    that was governed once has limits of ours in force."""
    latency_target_ms: int | None = None
    """How long its threads may wait for a CPU on average; None: no target."""

    @property
    def limit_millicores(self) -> int | None:
        return together([container.limit_millicores for container in self.containers])

    def in_force(self, actuate: Actuation) -> int | None:
        return together([container.in_force(actuate) for container in self.containers])

    @property
    def original_limit_millicores(self) -> int | None:
        return together([self.original_of(container) for container in self.containers])

    def original_of(self, container: ContainerSighting) -> int | None:
        return self.originals.get(container.name, container.limit_millicores)

    @property
    def reserved_millicores(self) -> int:
        """What an opted-out pod takes from the capacity: its limit, else its request."""
        limit = self.limit_millicores
        return self.request_millicores if limit is None else limit


class NodeSample(NamedTuple):
    """All pods of the node, as the sensor saw them at one time."""

    now_ms: int
    pods: tuple[PodSighting, ...]


def together(limits: list[int | None]) -> int | None:
    """The limit of a pod: the sum of its containers', None when one of them is unlimited."""
    return None if None in limits else sum(filter(None, limits))
