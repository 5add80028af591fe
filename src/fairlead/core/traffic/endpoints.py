"""Which endpoints of a service are backends of its group, and which of them drain.

An endpoint is in one of three states: *ready*; *draining* (it terminates and still serves: what is
in it ends there, nothing new comes); or of no use, and left out. Where a service hints which zone
or node its endpoints are for, those for ours are used as long as there is one.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServiceEndpoint:
    """A place that serves; what is not known of its state is as Kubernetes reads it."""

    host: str
    port: int
    ready: bool = True
    serving: bool = True
    terminating: bool = False
    node: str | None = None
    zone: str | None = None
    for_zones: tuple[str, ...] = ()
    for_nodes: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def rank(self) -> int:
        """Of several reports about one place the best holds: it moves between two lists."""
        if self.ready and not self.terminating:
            return 2
        return int(self.serving and self.terminating)


@dataclass(frozen=True, slots=True)
class ChosenEndpoints:
    """The backends of a group in the order of their addresses; those that drain are among them."""

    backends: tuple[ServiceEndpoint, ...]
    draining: tuple[str, ...] = ()


def choose_endpoints(
    endpoints: Iterable[ServiceEndpoint], *, zone: str | None = None, node: str | None = None
) -> ChosenEndpoints:
    """The backends for an agent in this zone, on this node.

    Where none is ready, those that terminate and still serve take what comes: they are better than
    no backend at all.
    """
    places: dict[tuple[str, int], ServiceEndpoint] = {}
    for endpoint in sorted(endpoints, key=_order):
        places.setdefault((endpoint.host, endpoint.port), endpoint)
    ready = [endpoint for endpoint in places.values() if endpoint.rank == 2]
    ending = [endpoint for endpoint in places.values() if endpoint.rank == 1]
    if not ready:
        return ChosenEndpoints(tuple(ending))
    ours = _hinted(ready, lambda e: e.for_nodes, node) or _hinted(
        ready, lambda e: e.for_zones, zone
    )
    if ours:  # what drains elsewhere was never ours
        ending = [endpoint for endpoint in ending if endpoint.zone in (zone, None)]
    chosen = sorted([*(ours or ready), *ending], key=_order)
    return ChosenEndpoints(tuple(chosen), tuple(endpoint.id for endpoint in ending))


def _order(endpoint: ServiceEndpoint) -> tuple[object, ...]:
    """By address, the best report about it first."""
    about = (endpoint.node or "", endpoint.zone or "", endpoint.for_zones, endpoint.for_nodes)
    return (endpoint.host, endpoint.port, -endpoint.rank, *about)


def _hinted(
    ready: list[ServiceEndpoint],
    hints: Callable[[ServiceEndpoint], tuple[str, ...]],
    own: str | None,
) -> list[ServiceEndpoint]:
    """Those for us. One endpoint without a hint makes the hints of the others incomplete: they
    were meant to share the load in proportion, and say nothing then."""
    if own is None or not all(hints(endpoint) for endpoint in ready):
        return []
    return [endpoint for endpoint in ready if own in hints(endpoint)]
