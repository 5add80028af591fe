"""The pods of one node, and what the node has to give, as the node agent asks for them."""

from collections.abc import Iterator
from datetime import datetime

from fairlead.kube.client import MISREAD, Document, KubeClient
from fairlead.kube.cpu import pods as cpu_pods
from fairlead.kube.cpu.pods import LIMITS, REQUESTS, Resource
from fairlead.kube.watch import Mirrored
from fairlead.ports.cpu import KnownContainer, KnownPod
from fairlead.ports.faults import PermanentFault

SYNC_S = 60.0


class NodePods:
    """A `PodRoster` from watches of the node and of its pods. Keeps what it made of a pod until
    the pod changes."""

    def __init__(self, client: KubeClient, node: str, resource: Resource = LIMITS) -> None:
        self._name, self._resource = node, resource
        self._pods = Mirrored(client, cpu_pods.PODS, _ignore, fields=f"spec.nodeName={node}")
        self._nodes = Mirrored(client, "/api/v1/nodes", _ignore, fields=f"metadata.name={node}")
        self._known: dict[str, tuple[str, KnownPod | None]] = {}
        """By uid: the version that was read, and what it said."""

    def start(self) -> None:
        """Raises `PermanentFault` where pods cannot be listed, or there is no such node."""
        for source in (self._pods, self._nodes):
            source.start()
        for source in (self._pods, self._nodes):
            if not source.wait(SYNC_S):
                raise PermanentFault(f"cannot list {source.path}: {source.fault or 'no answer'}")
        if self.allocatable_millicores() is None:
            raise PermanentFault(f"there is no node {self._name!r} with allocatable CPU")

    def stop(self) -> None:
        for source in (self._pods, self._nodes):
            source.stop()

    def allocatable_millicores(self) -> int | None:
        """None while the node is gone."""
        for node in self._nodes.all().values():
            try:
                return cpu_pods.millicores(node["status"]["allocatable"]["cpu"])
            except MISREAD:
                return None
        return None

    def pods(self) -> list[KnownPod]:
        for source in (self._pods, self._nodes):
            source.take_keys()
        known: dict[str, tuple[str, KnownPod | None]] = {}
        for document in self._pods.all().values():
            meta = document["metadata"]
            version, uid = meta["resourceVersion"], meta["uid"]
            before = self._known.get(uid)
            fresh = before is not None and before[0] == version
            read = before if fresh and before else (version, read_pod(document, self._resource))
            known[uid] = read
        self._known = known
        return [pod for _, pod in known.values() if pod is not None]

    def find(self, name: str) -> KnownPod | None:
        """The pod of that name (`namespace/name`) as it was in the last sample."""
        found = (pod for _, pod in self._known.values() if pod is not None and pod.name == name)
        return next(found, None)

    def governed(self) -> set[str]:
        """The uids of pods whose limits, or requests, are ours to set."""
        return {pod.uid for pod in self.pods() if not pod.opted_out}


def read_pod(document: Document, resource: Resource = LIMITS) -> KnownPod | None:
    """None: it has ended, does not run yet, or cannot be read. Where requests are governed a pod
    that does not run yet is one that is left alone: it takes its part of the node already."""
    try:
        meta, status = document["metadata"], document["status"]
        runs = status.get("phase") == "Running"
        if cpu_pods.is_over(document) or not (runs or resource == REQUESTS):
            return None
        opted_out = not runs or cpu_pods.left_alone(document, resource) is not None
        governed = resource == REQUESTS and not opted_out
        request = sum(_own_requests(document).values())
        if resource == REQUESTS and opted_out:
            request = cpu_pods.scheduled_millicores(document)
        return KnownPod(
            f"{meta['namespace']}/{meta['name']}",
            meta["uid"],
            request,
            tuple(_containers(document, resource, governed=governed)),
            document["spec"].get("priority") or 0,
            opted_out,
            _time_ms(status["startTime"]) if runs else None,
        )
    except MISREAD:
        return None


def _own_requests(document: Document) -> dict[str, int]:
    """Those of the user: a request that we raised must not become the pod's minimum."""
    own = None
    if cpu_pods.resized(document) == REQUESTS:
        own = cpu_pods.originals(document, REQUESTS)
    return cpu_pods.asked(document, REQUESTS) if own is None else own


def _containers(
    document: Document, resource: Resource, *, governed: bool
) -> Iterator[KnownContainer]:
    ids, own = cpu_pods.container_ids(document), cpu_pods.originals(document, LIMITS) or {}
    spec, actual = cpu_pods.asked(document, REQUESTS), cpu_pods.in_force(document, REQUESTS)
    for name, limit in cpu_pods.amounts(document, "limits").items():
        if governed:
            request = actual.get(name, spec[name])
            yield KnownContainer(name, ids.get(name), limit, own.get(name), request)
        elif resource == REQUESTS:
            # What it takes is its request: its limit is no part of the sum.
            yield KnownContainer(name, ids.get(name), None)
        else:
            yield KnownContainer(name, ids.get(name), limit, own.get(name))


def _time_ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def _ignore() -> None:
    """Samples come by the clock."""
