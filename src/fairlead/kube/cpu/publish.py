"""The node agent's actuator on Kubernetes: one PodAllocation per pod, which the controller applies.

Limits of a clearing, or requests where weights are governed, are collected and written by a thread
of its own, so that a slow API server delays no sample. Only what changed is written; what could not
be is tried again.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fairlead.core.invariant import require
from fairlead.kube.client import MISREAD, ApiError, Document, KubeClient, gone
from fairlead.kube.cpu.pods import FIELDS, LIMITS, NODE, Resource
from fairlead.kube.cpu.roster import SYNC_S, NodePods
from fairlead.kube.kinds import KINDS
from fairlead.kube.watch import Key, Mirrored
from fairlead.ports.cpu import Gone
from fairlead.ports.faults import Fault, PermanentFault
from fairlead.schema.objects import API_VERSION

KIND = KINDS["PodAllocation"]
RETRY_S = 5.0


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The limits (or requests) of one pod, and the decision that they were last changed by."""

    namespace: str
    pod: str
    uid: str
    decision: int
    limits: Mapping[str, int]


class PodAllocations:
    """A `CpuActuator`. Writes the PodAllocations of one node; those of pods that left go."""

    def __init__(
        self,
        client: KubeClient,
        node: str,
        roster: NodePods,
        fault: Callable[[Fault], None],
        *,
        resource: Resource = LIMITS,
    ) -> None:
        self._client, self._node, self._roster, self._fault = client, node, roster, fault
        self._field = FIELDS[resource]
        self._shown = Mirrored(client, KIND.path(), self._wake, selector=f"{NODE}={node}")
        self._lock, self._due, self._stop = threading.Lock(), threading.Event(), threading.Event()
        self._wanted: dict[str, _Wanted] = {}
        """By the pod's uid, in the order in which they were decided."""
        self._capacity = self._sequence = 0
        self._thread = threading.Thread(target=self._run, name="pod allocations", daemon=True)

    def start(self) -> None:
        """Go on from what a predecessor wrote."""
        self._shown.start()
        if not self._shown.wait(SYNC_S):
            raise PermanentFault(f"cannot list {KIND.path()}: {self._shown.fault or 'no answer'}")
        for document in self._shown.all().values():
            if self._is_foreign(document):
                continue
            spec, namespace = document["spec"], document["metadata"]["namespace"]
            limits = {row["name"]: row[self._field] for row in spec["containers"]}
            wanted = _Wanted(namespace, spec["pod"], spec["uid"], spec["decision"], limits)
            self._wanted[wanted.uid] = wanted
        self._thread.start()

    def stop(self) -> None:
        """What is decided and not written yet is written, as far as the API server answers."""
        self._stop.set()
        self._due.set()
        if self._thread.is_alive():
            self._thread.join(RETRY_S)
        self._shown.stop()

    def write(self, decision: int, uid: str, container: str, millicores: int) -> int:
        """Ask for a limit. Which one is in force, the next sample reads from the kernel."""
        require(decision >= 0, "a limit is written for a recorded decision")
        pod = self._roster.find(uid)
        if pod is None:
            raise Gone(f"{uid} is gone")
        with self._lock:
            before = self._wanted.pop(pod.uid, None)
            limits = {**(before.limits if before else {}), container: millicores}
            namespace, name = uid.split("/")
            # The last of the order: increases come last.
            self._wanted[pod.uid] = _Wanted(namespace, name, pod.uid, decision, limits)
        return millicores

    def publish(self, sequence: int, capacity_millicores: int) -> None:
        """A clearing is complete: have its limits written."""
        self._sequence, self._capacity = sequence, capacity_millicores
        self._due.set()

    def _wake(self) -> None:
        """A PodAllocation that was changed elsewhere is put right with the next clearing."""

    def _is_foreign(self, document: Document) -> bool:
        """Whether an agent wrote it that governed by other means."""
        return any(self._field not in row for row in document["spec"]["containers"])

    def _run(self) -> None:
        while not self._stop.is_set():
            self._due.wait()
            self._due.clear()
            if not self._write_all():
                self._stop.wait(RETRY_S)
                self._due.set()

    def _write_all(self) -> bool:
        try:
            governed = self._roster.governed()
            with self._lock:
                for uid in self._wanted.keys() - governed:
                    del self._wanted[uid]
                wanted = list(self._wanted.values())
            self._shown.take_keys()
            kept = {row.uid for row in wanted}
            for key, document in self._shown.all().items():
                foreign = key.name not in kept and self._is_foreign(document)
                if foreign or key.name not in governed:
                    self._client.delete(KIND.path(*key))
            for row in wanted:
                self._write(row)
        except Fault as fault:
            self._fault(fault)
            return False
        except MISREAD as error:
            self._fault(PermanentFault(f"a PodAllocation cannot be written: {error!r}"))
            return False
        return True

    def _write(self, wanted: _Wanted) -> None:
        shown = self._shown.get(Key(wanted.namespace, wanted.uid))
        rows = [{"name": n, self._field: m} for n, m in sorted(wanted.limits.items())]
        # A later number is of a record that is lost: it would stay the newest for ever.
        lost = shown is not None and shown["spec"]["decision"] > self._sequence
        if shown is not None and shown["spec"]["containers"] == rows and not lost:
            return
        changed = {
            "decision": min(wanted.decision, self._sequence),
            "capacityMillicores": self._capacity,
            "containers": rows,
        }
        if shown is not None:
            try:
                path = KIND.path(wanted.namespace, wanted.uid)
                self._shown.put(self._client.patch(path, {"spec": changed}))
                return
            except ApiError as error:
                if not gone(error):
                    raise
        self._create(wanted, changed)

    def _create(self, wanted: _Wanted, changed: Mapping[str, object]) -> None:
        owner = {"apiVersion": "v1", "kind": "Pod", "name": wanted.pod, "uid": wanted.uid}
        spec: Document = {"pod": wanted.pod, "uid": wanted.uid, "node": self._node, **changed}
        document = {
            "apiVersion": API_VERSION,
            "kind": "PodAllocation",
            "metadata": {
                "name": wanted.uid,
                "labels": {NODE: self._node},
                # Where no agent is left to remove it, the garbage collector does.
                "ownerReferences": [owner],
            },
            "spec": spec,
        }
        try:
            self._shown.put(self._client.create(KIND.path(wanted.namespace), document))
        except ApiError as error:
            if not gone(error) and error.reason != "AlreadyExists":
                raise
