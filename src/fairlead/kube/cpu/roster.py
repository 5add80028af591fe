"""The pods of one node, and what the node has to give, as the node agent asks for them."""

from datetime import datetime

from fairlead.kube.client import MISREAD, Document, KubeClient
from fairlead.kube.cpu import pods as cpu_pods
from fairlead.kube.watch import Mirrored
from fairlead.ports.cpu import KnownContainer, KnownPod
from fairlead.ports.faults import PermanentFault

SYNC_S = 60.0


class NodePods:
    """A `PodRoster` from watches of the node and of its pods. Keeps what it made of a pod until
    the pod changes."""

    def __init__(self, client: KubeClient, node: str) -> None:
        self._name = node
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
            known[uid] = before if fresh and before else (version, read_pod(document))
        self._known = known
        return [pod for _, pod in known.values() if pod is not None]

    def find(self, name: str) -> KnownPod | None:
        """The pod of that name (`namespace/name`) as it was in the last sample."""
        found = (pod for _, pod in self._known.values() if pod is not None and pod.name == name)
        return next(found, None)

    def governed(self) -> set[str]:
        """The uids of pods whose limits are ours to set."""
        return {pod.uid for pod in self.pods() if not pod.opted_out}


def read_pod(document: Document) -> KnownPod | None:
    """None: it has ended, does not run yet, or cannot be read."""
    try:
        meta, status = document["metadata"], document["status"]
        if status.get("phase") != "Running":
            return None
        ids, own = cpu_pods.container_ids(document), cpu_pods.originals(document) or {}
        rows = cpu_pods.amounts(document, "limits").items()
        return KnownPod(
            f"{meta['namespace']}/{meta['name']}",
            meta["uid"],
            sum(cpu_pods.requests(document).values()),
            tuple(
                KnownContainer(name, ids.get(name), limit, own.get(name)) for name, limit in rows
            ),
            document["spec"].get("priority") or 0,
            cpu_pods.left_alone(document) is not None,
            _time_ms(status["startTime"]),
        )
    except MISREAD:
        return None


def _time_ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def _ignore() -> None:
    """Samples come by the clock."""
