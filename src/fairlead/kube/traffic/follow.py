"""Keeps copies of a cluster's RouteGroups, Services and EndpointSlices for one traffic agent.

A thread makes groups of them when they change, so that the agent's ticks do not wait for it. While
the API server is away the agent goes on with the groups that it has; they are kept in a file, so
that an agent which starts then has them, too.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from fairlead.host import files
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
from fairlead.ports.faults import Fault, PermanentFault
from fairlead.schema.convert import decode_json
from fairlead.schema.traffic_agent import GroupDocument, TrafficDocument

SYNC_S, SYNC_KEPT_S = 30.0, 5.0
"""How long a start waits for the API server; shorter where the groups before it are known: after
15 s without an agent a dataplane goes by a hash of the flow."""
SETTLE_S = 0.5
"""Endpoints change many at a time: a proxy is reloaded once for them."""
RETRY_S = 10.0


def read_zone(client: KubeClient, node: str) -> str | None:
    """The zone of this machine, by the label of its node; None where it has none."""
    nodes, _ = client.list("/api/v1/nodes", fieldSelector=f"metadata.name={node}")
    labels = (nodes[0]["metadata"].get("labels") or {}) if nodes else {}
    zone = labels.get(ZONE)
    return None if zone is None else str(zone)


class KeptGroups(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The groups that an agent served last."""

    zone: str | None
    groups: list[GroupDocument]
    drains: dict[str, dict[str, str]]


class GroupFollower:
    """The groups that a cluster asks one agent for. `changed` is called when they differ."""

    def __init__(
        self, client: KubeClient, document: TrafficDocument, node: str, kept: Path
    ) -> None:
        self._client, self._document, self.node, self._kept = client, document, node, kept
        self._woken, self._stop = threading.Event(), threading.Event()
        wake = self._woken.set
        self.route_groups = Mirrored(client, KINDS["RouteGroup"].path(), wake)
        self._services = Mirrored(client, "/api/v1/services", wake)
        self.slices = Mirrored(
            client, "/apis/discovery.k8s.io/v1/endpointslices", wake, selector=SERVICE_NAME
        )
        self._sources = (self.route_groups, self._services, self.slices)
        self._zone: str | None = None
        self.current = FollowedGroups()
        self.changed: Callable[[], None] = lambda: None
        self.unsettled: Callable[[], bool] = lambda: False
        """Whether the agent could not take the last groups as they were."""
        self._bug: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="route groups", daemon=True)

    def start(self) -> None:
        """Read the cluster, or what was kept of it while the API server is away.

        Raises a fault where there is neither, and where the cluster lacks our kinds or our rights.
        """
        kept = self._load()
        for source in self._sources:
            source.start()
        deadline = time.monotonic() + (SYNC_S if kept is None else SYNC_KEPT_S)
        for source in self._sources:
            if not source.wait(max(0.0, deadline - time.monotonic())) and kept is None:
                raise PermanentFault(f"cannot list {source.path}: {source.fault or 'no answer'}")
        self._woken.clear()
        try:
            if self._synced():
                self._zone = read_zone(self._client, self.node)
                self.current = self._read()
                self._keep()
                kept = None
        except Fault:
            if kept is None:
                raise
        if kept is not None:
            self._zone = kept.zone
            self.current = FollowedGroups(tuple(kept.groups), kept.drains)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._woken.set()
        for source in self._sources:
            source.stop()

    def check(self) -> None:
        """Raise what ended the thread: an agent that follows nothing must not look alive."""
        if self._bug is not None:
            raise self._bug

    def drains(self) -> Mapping[str, Mapping[str, str]]:
        return self.current.drains

    def _synced(self) -> bool:
        return all(source.wait(0) for source in self._sources)

    def _read(self) -> FollowedGroups:
        for source in self._sources:
            source.take_keys()
        objects = TrafficObjects(self.route_groups.all(), self._services.all(), self.slices.all())
        return follow_groups(objects, AgentPlace(self._document, self.node, self._zone))

    def _take(self, current: FollowedGroups) -> None:
        before, self.current = self.current, current
        if (before.groups, before.drains) != (current.groups, current.drains):
            self._keep()

    def _keep(self) -> None:
        drains = {name: dict(ids) for name, ids in self.current.drains.items()}
        kept = KeptGroups(self._zone, list(self.current.groups), drains)
        with contextlib.suppress(OSError):  # a full disk: the next start asks the cluster
            self._kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            files.replace(self._kept, msgspec.json.encode(kept), durable=False)

    def _load(self) -> KeptGroups | None:
        try:
            return decode_json(self._kept.read_bytes(), KeptGroups)
        except (OSError, msgspec.MsgspecError):  # none, or of another release
            return None

    def _run(self) -> None:
        try:
            self._follow()
        except BaseException as error:
            self._bug = error
            raise

    def _follow(self) -> None:
        while True:
            woken = self._woken.wait(RETRY_S)
            self._woken.clear()
            if self._stop.is_set():
                return
            before = self.current.groups
            if woken and self._synced():
                self._take(self._read())
            if self.current.groups != before or (not woken and self.unsettled()):
                self.changed()
            self._stop.wait(SETTLE_S)
