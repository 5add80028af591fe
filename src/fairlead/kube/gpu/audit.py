"""The auditor: compares leases, pods and nodes, on positive evidence only.

What it sees is recorded in the ledger and shown as an Event and in the condition `AsLeased`. It
never acts on something that is not there. A pod that runs where its run has no device, or with more
devices than it has there, is evicted, and the eviction names the ledger's entry.
"""

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fairlead.core.units import counted
from fairlead.engine.gpu import ControlPlane
from fairlead.engine.gpu.entries import PodMismatch
from fairlead.engine.gpu.state import RunState
from fairlead.kube.client import MISREAD, Document, KubeClient
from fairlead.kube.conditions import now
from fairlead.kube.gpu.pods import PODS, PodExecutor
from fairlead.kube.gpu.ranks import ENDED, GPU, RUN, RankPod, read_pod, whole
from fairlead.kube.kinds import GROUP, engine_name
from fairlead.kube.watch import Sources
from fairlead.ports.faults import Fault

SWEEP_MS = 60_000
FOREIGN_MS = 300_000
ABSENT_MS = 300_000
"""So long a lease may be without a pod before people are told; pods are made in seconds."""
ELSEWHERE, MORE_GPUS, NOT_MADE = "PodElsewhere", "MoreGPUsThanLeased", "PodsNotMade"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One thing about a run that is not as it is leased."""

    reason: str
    message: str
    pod: str = ""
    uid: str = ""
    node: str = ""


class Auditor:
    """Looks at runs whose pods changed in every turn, and at all of them every minute."""

    def __init__(
        self,
        client: KubeClient,
        plane: ControlPlane,
        sources: Sources,
        executor: PodExecutor,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._client, self._plane, self._sources, self._say = client, plane, sources, say
        self._executor, self._gangs = executor, executor.gangs
        self._swept_ms, self._asked_ms = -SWEEP_MS, -FOREIGN_MS
        self._troubles: dict[str, str] = {}
        """Why pods of a job could not be made."""
        self._absent_ms: dict[str, int] = {}
        """Since when a job has no pod."""
        self._recorded: dict[tuple[str, str], int] = {}
        """What is in the ledger, by the pod's uid and the reason: the entry's number."""
        self._lock = threading.Lock()
        self.findings: dict[str, Mismatch] = {}
        """By run; the first where there are several."""
        self.devices: dict[str, tuple[str, ...]] = {}
        """Ids of devices by lease, where the kubelet reports them."""
        self.changed: set[str] = set()
        """Runs whose findings or device ids changed; the mirror takes them out."""
        self.mismatches = 0
        self.foreign: dict[str, int] = {}
        """GPUs of pods that are not ours, by node."""

    def turn(self) -> None:
        now_ms, projection = self._plane.committer.now(), self._plane.committer.projection
        runs = {
            engine_name(key.namespace, (document or {}).get("metadata", {}).get("labels", {})[RUN])
            for key, document in self._sources.pods.take_changed().items()
            if document is not None
        }
        self._troubles = self._executor.troubles()
        runs |= self.findings.keys() | {job.rsplit(".", 2)[0] for job in self._troubles}
        if now_ms - self._swept_ms >= SWEEP_MS:
            self._swept_ms = now_ms
            runs |= projection.live.keys()
            self._forget()
        for run in sorted(runs):
            self._look(run, projection.live.get(run), self._gangs.of_run(run), now_ms)
        if now_ms - self._asked_ms >= FOREIGN_MS:
            self._asked_ms = now_ms
            self._client.later(self._count_foreign, self._strangers())

    def _look(self, run: str, state: RunState | None, pods: list[RankPod], now_ms: int) -> None:
        found: list[Mismatch] = []
        if state is not None and state.job is not None:
            mine = [pod for pod in pods if pod.job == state.job]
            found = [*self._misplaced(state, mine), *self._missing(state.job, mine, now_ms)]
            self._note_devices(run, state, mine)
        for finding in found:
            if finding.uid:
                self._act(run, finding, pods)
        first = found[0] if found else None
        if self.findings.get(run) != first:
            self.changed.add(run)
            self.findings.pop(run, None)
            if first is not None:
                self.findings[run] = first

    def _misplaced(self, state: RunState, pods: list[RankPod]) -> Iterator[Mismatch]:
        """Where pods run and with how many devices, which a user with rights may have decided."""
        leases = [lease for lease in state.leases.values() if lease.is_active]
        leased = Counter(slot.partition("#")[0] for lease in leases for slot in lease.slots)
        used: Counter[str] = Counter()
        # The youngest are one too many: who adds a pod does not have another one evicted.
        for pod in sorted(pods, key=_age):
            node, meta = pod.document["spec"].get("nodeName"), pod.document["metadata"]
            if node is None or pod.ended or pod.leaving:
                continue
            used[node] += gpus_of(pod.document)
            if node not in leased:
                said = f"pod {meta['name']} runs on node {node}, where its run has no lease"
                yield Mismatch(ELSEWHERE, said, meta["name"], meta["uid"], node)
            elif used[node] > leased[node]:
                asked = counted(used[node], "GPU")
                said = f"its pods ask for {asked} of node {node}; leased: {leased[node]}"
                yield Mismatch(MORE_GPUS, said, meta["name"], meta["uid"], node)

    def _missing(self, job: str, pods: list[RankPod], now_ms: int) -> Iterator[Mismatch]:
        why = self._troubles.get(job)
        if why is not None:
            yield Mismatch(NOT_MADE, f"its pods cannot be made: {why}")
            return
        if pods or not self._executor.wants(job):
            self._absent_ms.pop(job, None)
            return
        since_ms = self._absent_ms.setdefault(job, now_ms)
        if now_ms - since_ms >= ABSENT_MS:
            waited = counted((now_ms - since_ms) // 60_000, "minute")
            yield Mismatch(NOT_MADE, f"it has no pod, for {waited}")

    def _act(self, run: str, finding: Mismatch, pods: list[RankPod]) -> None:
        """Once for each pod: record it, and then evict what runs elsewhere or holds more than is
        leased, citing the entry."""
        key = (finding.uid, finding.reason)
        seq = self._recorded.get(key)
        if seq is None:
            body = PodMismatch(run, finding.reason, finding.message, finding.pod, finding.node)
            (entry,) = self._plane.committer.commit(lambda: [self._plane.committer.new(body)])
            seq = self._recorded[key] = entry.seq
            self.mismatches += 1
        if finding.reason in (ELSEWHERE, MORE_GPUS):
            for pod in pods:
                if pod.document["metadata"]["uid"] == finding.uid and not pod.leaving:
                    with contextlib.suppress(Fault):  # the next turn asks again
                        self._gangs.evict(pod.document, None, str(seq))

    def _note_devices(self, run: str, state: RunState, pods: list[RankPod]) -> None:
        """Which lease a device is of is known where all devices of its pod are of one lease."""
        for lease in state.leases.values():
            mine = [pod for pod in pods if pod.slots and set(pod.slots) <= set(lease.slots)]
            found = tuple(sorted(id for pod in mine for id in device_ids(pod.document)))
            if self.devices.get(lease.id, ()) != found:
                self.devices[lease.id] = found
                self.changed.add(run)

    def _forget(self) -> None:
        """What is about pods, jobs and leases that are gone."""
        projection = self._plane.committer.projection
        uids = {document["metadata"]["uid"] for document in self._sources.pods.all().values()}
        self._recorded = {key: seq for key, seq in self._recorded.items() if key[0] in uids}
        self.devices = {
            name: found for name, found in self.devices.items() if name in projection.leases
        }
        jobs = {state.job for state in projection.live.values()}
        self._absent_ms = {job: since for job, since in self._absent_ms.items() if job in jobs}

    # -- devices of others ------------------------------------------------------------------------

    def _strangers(self) -> list[Document]:
        """Pods with our label that are of no start of a run: users can write it, and change it."""
        live = self._plane.committer.projection.live
        jobs = {state.job for state in live.values()}
        found = [(read_pod(document), document) for document in self._sources.pods.all().values()]
        return [
            document
            for pod, document in found
            if (pod is None or pod.job not in jobs) and _holds_devices(document)
        ]

    def _count_foreign(self, strangers: list[Document]) -> None:
        """GPUs that pods of others hold on nodes that Fairlead gives out. Never raises."""
        running = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
        try:
            pods, _ = self._client.list(PODS, labelSelector=f"!{RUN}", fieldSelector=running)
            found: Counter[str] = Counter()
            for pod in [*pods, *strangers]:
                found[pod["spec"]["nodeName"]] += gpus_of(pod)
            self._tell_foreign({node: gpus for node, gpus in found.items() if gpus})
        except (Fault, *MISREAD) as error:
            self._say(f"pods of others are not counted: {error}")

    def _tell_foreign(self, found: dict[str, int]) -> None:
        with self._lock:
            before, self.foreign = self.foreign, found
        for node, gpus in sorted(found.items()):
            if before.get(node) != gpus and self._plane.objects.get("Node", node) is not None:
                said = f"pods that are not Fairlead's hold {gpus} of its GPUs"
                self._say(f"node {node}: {said}")
                self._client.create("/api/v1/namespaces/default/events", _event(node, said))


def _age(pod: RankPod) -> tuple[str, str]:
    meta = pod.document["metadata"]
    return str(meta.get("creationTimestamp", "")), str(meta["name"])


def _holds_devices(pod: Document) -> bool:
    """One that terminates is ours until it is gone: its run may have ended before."""
    over = pod.get("status", {}).get("phase") in ENDED or "deletionTimestamp" in pod["metadata"]
    return not over and bool(pod["spec"].get("nodeName"))


def gpus_of(pod: Document) -> int:
    """The GPUs that a pod asks for; 0 where it says none that can be read."""

    def asked(container: Document) -> int:
        with contextlib.suppress(ValueError):
            return whole(str((container.get("resources") or {}).get("limits", {}).get(GPU, "0")))
        return 0

    spec = pod["spec"]
    first = max((asked(container) for container in spec.get("initContainers") or ()), default=0)
    return max(first, sum(asked(container) for container in spec.get("containers") or ()))


def device_ids(pod: Document) -> list[str]:
    """As the kubelet reports them in the pod's status (feature ResourceHealthStatus), for devices
    of a device plugin and of DRA; else none is claimed."""
    return [
        str(row["resourceID"])
        for container in pod.get("status", {}).get("containerStatuses") or ()
        for allocated in container.get("allocatedResourcesStatus") or ()
        if allocated.get("name") == GPU or str(allocated.get("name", "")).startswith("claim:")
        for row in allocated.get("resources") or ()
    ]


def _event(node: str, message: str) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{node}.", "namespace": "default"},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node},
        "reason": "ForeignGPUs",
        "message": message,
        "type": "Warning",
        "firstTimestamp": now(),
        "lastTimestamp": now(),
        "count": 1,
        "source": {"component": GROUP.partition(".")[0]},
    }
