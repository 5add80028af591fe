"""The pods of one job, written to the API server: made, told of each other, released, evicted.

Every step may be taken again after a crash in the middle of it:

    make      ranks that have no pod yet; those of a gang wait behind a scheduling gate
    release   pods of devices that are given up are marked, with the decision's id
    tell      ranks that stay are told who is there: annotations, which are files in the pod
    lift      the gates, when all ranks exist and know of each other
    evict     what is released, with its grace
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fairlead.kube.client import ApiError, Document, KubeClient, gone
from fairlead.kube.gpu.build import WARNING, RunObject, is_gang, pod, service, told
from fairlead.kube.gpu.ranks import (
    DECISION,
    RELEASED,
    Rank,
    RankPod,
    grace_s,
    lost_ranks,
    pod_name,
    ranks_of,
    read_pod,
)
from fairlead.kube.kinds import kube_name
from fairlead.kube.watch import Key, Mirrored, Sources
from fairlead.ports.executor import Job
from fairlead.ports.faults import TemporaryFault


@dataclass(frozen=True, slots=True)
class Target:
    """What the pods of a job are to be."""

    job: Job
    decision: str
    """The recorded one by which it has these devices and no others."""
    until_ms: int = 0
    """When pods of devices that it gave up are to be gone."""
    resized: bool = False


class PodIndex:
    """Pods by job and rank, for any thread. Of thousands, a few are worth a look: those of jobs
    that stir."""

    def __init__(self, pods: Mirrored) -> None:
        self._pods, self._changed = pods, pods.follow()
        self._lock = threading.Lock()
        self._known: dict[Key, RankPod] = {}
        self._jobs: dict[str, dict[int, RankPod]] = {}
        self._runs: dict[str, set[str]] = {}
        self._stirring: set[str] = set()

    def jobs(self) -> set[str]:
        with self._current():
            return set(self._jobs)

    def stirring(self) -> set[str]:
        """Jobs of which a pod has ended, or is given up."""
        with self._current():
            return set(self._stirring)

    def living(self) -> set[str]:
        """Jobs that have a pod which has not ended."""
        with self._current():
            over = [job for job in self._stirring if all(map(_ended, self._jobs[job].values()))]
            return self._jobs.keys() - over

    def of_job(self, job: str) -> dict[int, RankPod]:
        with self._current():
            return dict(self._jobs.get(job, {}))

    def of_run(self, run: str) -> list[RankPod]:
        with self._current():
            jobs = sorted(self._runs.get(run, ()))
            return [pod for job in jobs for pod in self._jobs[job].values()]

    @contextmanager
    def _current(self) -> Iterator[None]:
        """Each pod is read once until it changes: every turn asks."""
        with self._lock:
            for key in self._changed():
                document = self._pods.get(key)
                self._put(key, None if document is None else read_pod(document))
            yield

    def _put(self, key: Key, pod: RankPod | None) -> None:
        """A pod as it is from now on; None: it is gone, or not ours."""
        before = self._known.pop(key, None)
        if before is not None:
            self._drop(before)
        if pod is not None:
            self._known[key] = pod
            self._jobs.setdefault(pod.job, {})[pod.rank] = pod
            self._runs.setdefault(pod.run, set()).add(pod.job)
            self._look(pod.job)

    def _drop(self, pod: RankPod) -> None:
        ranks, jobs = self._jobs[pod.job], self._runs[pod.run]
        del ranks[pod.rank]
        if not ranks:
            del self._jobs[pod.job]
            jobs.discard(pod.job)
            if not jobs:
                del self._runs[pod.run]
        self._look(pod.job)

    def _look(self, job: str) -> None:
        if any(pod.ended or pod.released for pod in self._jobs.get(job, {}).values()):
            self._stirring.add(job)
        else:
            self._stirring.discard(job)


def _ended(pod: RankPod) -> bool:
    return pod.ended


class GangWriter:
    """Brings the pods of a job to its target."""

    def __init__(self, client: KubeClient, sources: Sources) -> None:
        self._client, self._pods, self._nodes = client, sources.pods, sources.nodes
        self.index = PodIndex(sources.pods)
        """All that are ours."""

    def of_run(self, run: str) -> list[RankPod]:
        return self.index.of_run(run)

    def _of_job(self, job: Job) -> list[RankPod]:
        if job.widths is not None:
            return [pod for pod in self.of_run(job.run) if pod.job == job.id]
        # By name: to look through all pods of a cluster for each start would take too long.
        namespace, name = kube_name(job.run)
        keys = (Key(namespace, pod_name(name, rank.number)) for rank in ranks_of(job))
        found = (read_pod(document) for document in map(self._pods.get, keys) if document)
        return [pod for pod in found if pod is not None and pod.job == job.id]

    def bring(self, target: Target, run: RunObject, now_ms: int) -> set[int]:
        """All steps, as far as they are not taken. Returns ranks that have begun and are gone:
        then nothing is done, because the others would wait for them for ever."""
        job = target.job
        found = self._of_job(job)
        ranks = ranks_of(job, found)
        lost = lost_ranks(found)
        if lost:
            return lost
        names = {rank.number for rank in ranks}
        surplus = [pod for pod in found if pod.rank not in names] if target.resized else []
        made = self._make(target, run, ranks)
        released = [self._release(pod, target.decision) for pod in surplus]
        if job.widths is not None:
            made = [self._tell(document, told(job, ranks)) for document in made]
        for document in made:
            self._lift_gate(document)
        for document in released:
            self._end(document, max(0, target.until_ms - now_ms), target.decision)
        return set()

    def _make(self, target: Target, run: RunObject, ranks: list[Rank]) -> list[Document]:
        job = target.job
        namespace, name = kube_name(job.run)
        keys = {rank.number: Key(namespace, pod_name(name, rank.number)) for rank in ranks}
        older = [key for key in keys.values() if not self._makes_room(key, job.id)]
        if older:
            where = f"{older[0].namespace}/{older[0].name}"
            raise TemporaryFault(f"pod {where} of an earlier start is still there")
        if is_gang(job, ranks) and not target.resized:
            self._create(f"/api/v1/namespaces/{namespace}/services", service(job, run))
        made = []
        for rank in ranks:
            document = self._pods.get(keys[rank.number]) if target.resized else None
            if document is None:
                document = self._create_pod(namespace, pod(job, run, rank, ranks))
            made.append(document)
        return made

    def _makes_room(self, key: Key, job: str) -> bool:
        """Whether a rank's name is free, or this job's; an ended pod of another makes room."""
        document = self._pods.get(key)
        if document is None:
            return True
        before = read_pod(document)
        if before is None:
            raise TemporaryFault(f"pod {key.namespace}/{key.name} is not Fairlead's")
        if before.job == job and not before.released:
            return True
        if before.ended and not before.leaving:
            self._client.delete(path_of(document), only(document))
        return False

    def _create_pod(self, namespace: str, document: Document) -> Document:
        made = self._create(f"/api/v1/namespaces/{namespace}/pods", document)
        found, wanted = read_pod(made), read_pod(document)
        if found is None or wanted is None or found.job != wanted.job:
            raise TemporaryFault(f"pod {namespace}/{document['metadata']['name']} is another's")
        self._pods.put(made)
        return made

    def _create(self, path: str, document: Document) -> Document:
        try:
            return self._client.create(path, document)
        except ApiError as error:
            if error.status != 409:
                raise
        found = self._client.get(f"{path}/{document['metadata']['name']}")
        if found is None:
            raise TemporaryFault(f"{path} changes while it is read")
        return found

    def _release(self, pod: RankPod, decision: str) -> Document:
        """No rank that stays may be told of it any more, before it is asked to end."""
        if pod.released:
            return pod.document
        return self._annotate(pod.document, {RELEASED: decision, DECISION: decision})

    def _tell(self, document: Document, wanted: dict[str, str]) -> Document:
        known = document["metadata"].get("annotations") or {}
        changed = {name: text for name, text in wanted.items() if known.get(name) != text}
        return self._annotate(document, changed) if changed else document

    def notify(self, pod: RankPod, notice: str) -> None:
        """Tell what may happen to its run."""
        try:
            self._tell(pod.document, {WARNING: notice})
        except ApiError as error:
            if not is_another(error):
                raise

    def _annotate(self, document: Document, annotations: dict[str, str]) -> Document:
        # Of this pod only: one that came late must not mark another one of its name.
        meta = {"uid": document["metadata"]["uid"], "annotations": annotations}
        changed = self._client.patch(path_of(document), {"metadata": meta})
        self._pods.put(changed)
        return changed

    def _lift_gate(self, document: Document) -> None:
        if document["spec"].get("schedulingGates"):
            # Of this pod only: one that came late must not let another one of its name begin.
            meta = {"uid": document["metadata"]["uid"]}
            patch = {"metadata": meta, "spec": {"schedulingGates": None}}
            self._pods.put(self._client.patch(path_of(document), patch))

    def remove(self, job: Job) -> None:
        for found in self.of_run(job.run):
            if found.job == job.id:
                self._client.delete(path_of(found.document), only(found.document))

    # -- ends -------------------------------------------------------------------------------------

    def _end(self, document: Document, grace_ms: int, decision: str) -> None:
        found = read_pod(document)
        if found is not None and not found.ended and not self.is_leaving(found, grace_ms):
            self.evict(document, grace_ms, decision)

    def is_leaving(self, pod: RankPod, grace_ms: int) -> bool:
        """Whether it ends within the grace without being asked again."""
        return pod.leaving_within(grace_ms) and self._node_is_there(pod.document)

    def evict(self, document: Document, grace_ms: int | None, decision: str) -> None:
        """Ask a pod to end; no proof, no kill: the request names the recorded decision."""
        meta = document["metadata"]
        options = only(document)
        if not self._node_is_there(document):
            options["gracePeriodSeconds"] = 0  # its kubelet is gone with the node
            self._delete(document, options, decision)
            return
        if grace_ms is not None:
            options["gracePeriodSeconds"] = grace_s(grace_ms)
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {
                "name": meta["name"],
                "namespace": meta["namespace"],
                "annotations": {DECISION: decision},
            },
            "deleteOptions": options,
        }
        try:
            self._client.request("POST", f"{path_of(document)}/eviction", body, retries=0)
        except ApiError as error:
            if is_another(error):
                return
            if error.status == 429:
                # A disruption budget of the tenant: it does not stand above a recorded decision.
                self._delete(document, options, decision)
                return
            raise TemporaryFault(f"cannot evict {meta['name']}: {error.message}") from error

    def _delete(self, document: Document, options: Document, decision: str) -> None:
        """A delete carries no annotations: the pod is told the decision before."""
        annotations = document["metadata"].get("annotations") or {}
        if annotations.get(DECISION) != decision:
            try:
                self._annotate(document, {DECISION: decision})
            except ApiError as error:
                if is_another(error):
                    return
                raise
        self._client.delete(path_of(document), options)

    def _node_is_there(self, document: Document) -> bool:
        node = document["spec"].get("nodeName")
        return node is None or self._nodes.get(Key("", node)) is not None


def only(document: Document) -> Document:
    """Options of a delete that comes late: it must not hit the next pod of the same name."""
    return {"preconditions": {"uid": document["metadata"]["uid"]}}


def is_another(error: ApiError) -> bool:
    """Whether the pod that a request names is gone, or another one has its name by now."""
    return gone(error) or error.status == 409


def path_of(document: Document) -> str:
    meta = document["metadata"]
    return f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
