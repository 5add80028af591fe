"""Keeps copies of a cluster's RouteGroups, Services and EndpointSlices for one traffic agent.

A thread makes groups of them when they change, so that the agent's ticks do not wait for it. While
the API server is away the agent goes on with the groups that it has.
"""

import threading
import time
from collections.abc import Callable, Mapping

from fairlead.kube.client import KubeClient
from fairlead.kube.kinds import KINDS
from fairlead.kube.traffic.groups import (
    SERVICE_NAME,
    ZONE,
    AgentPlace,
    FollowedGroups,
    TrafficObjects,
    follow_groups,
)
from fairlead.kube.watch import Mirrored
from fairlead.ports.faults import PermanentFault
from fairlead.schema.traffic_agent import TrafficDocument

SYNC_S = 30.0
SETTLE_S = 0.5
"""Endpoints change many at a time: a proxy is reloaded once for them."""
RETRY_S = 10.0


def read_zone(client: KubeClient, node: str) -> str | None:
    """The zone of this machine, by the label of its node; None where it has none."""
    nodes, _ = client.list("/api/v1/nodes", fieldSelector=f"metadata.name={node}")
    labels = (nodes[0]["metadata"].get("labels") or {}) if nodes else {}
    zone = labels.get(ZONE)
    return None if zone is None else str(zone)


class GroupFollower:
    """The groups that a cluster asks one agent for. `changed` is called when they differ."""

    def __init__(self, client: KubeClient, document: TrafficDocument, node: str) -> None:
        self._client, self._document, self.node = client, document, node
        self._woken, self._stop = threading.Event(), threading.Event()
        wake = self._woken.set
        self.route_groups = Mirrored(client, KINDS["RouteGroup"].path(), wake)
        self._services = Mirrored(client, "/api/v1/services", wake)
        self._slices = Mirrored(
            client, "/apis/discovery.k8s.io/v1/endpointslices", wake, selector=SERVICE_NAME
        )
        self._place: AgentPlace | None = None
        self.current = FollowedGroups()
        self.changed: Callable[[], None] = lambda: None
        self.unsettled: Callable[[], bool] = lambda: False
        """Whether the agent could not take the last groups as they were."""
        self._thread = threading.Thread(target=self._follow, name="route groups", daemon=True)

    def start(self) -> None:
        """Read the cluster. Raises `PermanentFault` where it lacks our kinds or our rights."""
        self._place = AgentPlace(self._document, self.node, read_zone(self._client, self.node))
        sources = (self.route_groups, self._services, self._slices)
        for source in sources:
            source.start()
        for source in sources:
            if not source.wait(SYNC_S):
                raise PermanentFault(f"cannot list {source.path}: {source.fault or 'no answer'}")
        self._woken.clear()
        self.current = self._read(self._place)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._woken.set()
        for source in (self.route_groups, self._services, self._slices):
            source.stop()

    def drains(self) -> Mapping[str, Mapping[str, str]]:
        return self.current.drains

    def _read(self, place: AgentPlace) -> FollowedGroups:
        objects = TrafficObjects(self.route_groups.all(), self._services.all(), self._slices.all())
        return follow_groups(objects, place)

    def _follow(self) -> None:
        while not self._stop.is_set():
            woken = self._woken.wait(RETRY_S)
            self._woken.clear()
            place = self._place
            if self._stop.is_set() or place is None:
                return
            before = self.current.groups
            if woken:
                self.current = self._read(place)
            if self.current.groups != before or (not woken and self.unsettled()):
                self.changed()
            time.sleep(SETTLE_S)
