"""Runs as pods: the executor of a cluster. One pod for each node of a run's leased devices.

A pod is made after its lease stands in the ledger, and names it: the annotation `fairlead.dev/job`
is the plan's id. Pods of a gang are held back by a scheduling gate until all of them exist. A pod
may run on the leased node only (required affinity), and its name is its rank's, so that a rank
never runs twice. Its devices are free when it has ended or is gone, and not while it terminates.
"""

import contextlib
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from fairlead.kube.client import MISREAD, ApiError, Document, KubeClient, gone
from fairlead.kube.kinds import GROUP, engine_name, kube_name
from fairlead.kube.watch import Key, Sources
from fairlead.ports.executor import Exit, Job
from fairlead.ports.faults import Fault, PermanentFault, TemporaryFault
from fairlead.schema.objects import API_VERSION

JOB, RANKS, LEASES = f"{GROUP}/job", f"{GROUP}/ranks", f"{GROUP}/leases"
DECISION = f"{GROUP}/decision"
RUN, RANK = f"{GROUP}/run", f"{GROUP}/rank"
GATE = f"{GROUP}/lease"
GPU = "nvidia.com/gpu"
NO_DEVICE = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
RENDEZVOUS_PORT = 29500
ENDED = ("Succeeded", "Failed")
PODS = "/api/v1/pods"
_COUNT = re.compile("[0-9]{1,6}")


@dataclass(frozen=True, slots=True)
class Rank:
    """One pod of a run: its number, its node, and how many devices it has there."""

    number: int
    node: str
    gpus: int


@dataclass(frozen=True, slots=True)
class RunObject:
    """What the cluster knows of a run: who owns its pods, and what they look like."""

    uid: str
    template: Document


def ranks_of(devices: Iterable[str]) -> list[Rank]:
    """One rank for each node, in the order of the leases."""
    counts: dict[str, int] = {}
    for slot in devices:
        node = slot.partition("#")[0]
        counts[node] = counts.get(node, 0) + 1
    return [Rank(number, node, gpus) for number, (node, gpus) in enumerate(counts.items())]


def pod_name(run: str, rank: int) -> str:
    return f"{run}-{rank}"


class PodExecutor:
    """Starts, stops and watches the pods of runs (port: `fairlead.ports.executor.Executor`)."""

    def __init__(
        self,
        client: KubeClient,
        sources: Sources,
        find: Callable[[str], RunObject | None],
        now_ms: Callable[[], int],
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """`wake` is called when the pods of a job are made."""
        self._client, self._pods, self._nodes = client, sources.pods, sources.nodes
        self._find, self._now_ms, self._wake = find, now_ms, wake
        self._lock = threading.Lock()
        self._last: dict[str, dict[int, RankPod]] = {}
        """Pods that are gone, as they were last, by job and rank, until their exit is recorded."""
        self._stopping: set[str] = set()
        """Runs that we asked to end: their pods go without a status of their own."""
        self._known: set[str] = set()
        """Jobs whose exit is recorded."""
        self._starting: dict[str, Job] = {}
        """Jobs whose pods are being made."""
        self._late: dict[str, str] = {}
        """Those of them that could not be made, and why: tried again."""
        self._refused: dict[str, Exit] = {}
        """Jobs whose pods the API server refuses for good."""

    # -- acts -------------------------------------------------------------------------------------

    def start(self, job: Job) -> None:
        """Make the pods, beside the turn; one that is refused is an exit with a reason."""
        with self._lock:
            if job.id in self._starting or job.id in self._refused:
                return
            self._starting[job.id] = job
            self._stopping.discard(job.run)
        self._client.later(self._make, job)

    def _make(self, job: Job) -> None:
        """Never raises: what may succeed later is tried again by `poll`."""
        try:
            self._make_pods(job)
        except ApiError as error:
            # 422: the template is no pod's. 403 may be a quota that has room again later.
            if error.status in (400, 413, 422):
                self._refuse(job, f"the pod is refused: {error.message}")
            else:
                self._later(job, error.message)
        except PermanentFault as fault:
            self._refuse(job, str(fault))
        except Fault as fault:
            self._later(job, str(fault))
        except MISREAD as error:
            self._refuse(job, f"the template makes no pod: {error!r}")
        else:
            self._done(job)
        self._wake()

    def _make_pods(self, job: Job) -> None:
        namespace, name = kube_name(job.run)
        run = self._find(job.run)
        if run is None:
            raise TemporaryFault(f"run {job.run} is not in the cluster")
        ranks = ranks_of(job.devices)
        for rank in ranks:
            self._refuse_older(Key(namespace, pod_name(name, rank.number)), job.id)
        if len(ranks) > 1:
            if self._fell_apart(job, run, ranks):
                return
            self._create(f"/api/v1/namespaces/{namespace}/services", service(job, run))
        made = [self._create_pod(namespace, pod(job, run, rank, ranks)) for rank in ranks]
        for document in made:
            self._lift_gate(document)

    def _fell_apart(self, job: Job, run: RunObject, ranks: list[Rank]) -> bool:
        """Whether a gang that was started lacks a rank, which went while we were not looking.

        Gates are lifted when all ranks exist. A rank that was made again would wait for ever for
        the others, which are past their beginning: it has failed, and `poll` ends the others.
        """
        found = {pod.rank: pod for pod in self._of_run(job.run) if pod.job == job.id}
        missing = [rank for rank in ranks if rank.number not in found]
        if not missing or all(
            pod.document["spec"].get("schedulingGates") for pod in found.values()
        ):
            return False
        with self._lock:
            last = self._last.setdefault(job.id, {})
            for rank in missing:
                document = pod(job, run, rank, ranks)
                last[rank.number] = RankPod(job.id, job.run, rank.number, len(ranks), document)
        return True

    def _done(self, job: Job) -> None:
        with self._lock:
            self._starting.pop(job.id, None)
            self._late.pop(job.id, None)

    def _later(self, job: Job, why: str) -> None:
        with self._lock:
            self._late[job.id] = why

    def _refuse(self, job: Job, why: str) -> None:
        with self._lock:
            self._refused[job.id] = Exit(job.id, job.run, self._now_ms(), lost=True, reason=why)
            self._starting.pop(job.id, None)
            self._late.pop(job.id, None)
        with contextlib.suppress(Fault):  # pods behind their gate hold nothing
            self._remove(job)

    def _try_again(self) -> None:
        """A run that is to end is not started any more: no exit would ever come of it."""
        with self._lock:
            late = [self._starting.pop(id) for id in self._late if id in self._starting]
            late = [job for job in late if job.run not in self._stopping]
            self._starting |= {job.id: job for job in late}
            self._late.clear()
        for job in late:
            self._client.later(self._make, job)

    def stop(self, run: str, grace_ms: int, *, decision: str) -> None:
        with self._lock:
            self._stopping.add(run)
        for pod in self._of_run(run):
            leaving = pod.leaving_within(grace_ms) and self._node_is_there(pod.document)
            if not pod.ended and not leaving:
                self._evict(pod.document, grace_ms, decision)

    def pause(self, run: str, *, decision: str) -> None:
        raise PermanentFault("pods cannot be paused: cancel the run and submit it again")

    def resume(self, run: str, *, decision: str) -> None:
        """Nothing was paused."""

    def resize(self, run: str, devices: tuple[str, ...], *, decision: str) -> None:
        raise PermanentFault("a pod keeps its devices until it ends")

    # -- what became of them ----------------------------------------------------------------------

    def running(self) -> set[str]:
        living = {pod.job for pod in self._ours() if not pod.ended}
        with self._lock:
            return living | self._starting.keys()

    def poll(self) -> list[Exit]:
        self._try_again()
        with self._lock:
            jobs = self._jobs()
            exits: list[Exit | None] = [*self._refused.values()]
            exits += [
                self._exit(job, pods)
                for job, pods in jobs.items()
                if job not in self._known and job not in self._starting
            ]
        return sorted(
            (exit for exit in exits if exit is not None), key=lambda exit: (exit.time_ms, exit.run)
        )

    def acknowledge(self, exits: Iterable[Exit]) -> None:
        with self._lock:
            for exit in exits:
                self._known.add(exit.job)
                self._last.pop(exit.job, None)
                self._refused.pop(exit.job, None)
                self._stopping.discard(exit.run)

    def log_parts(self, run: str, jobs: str = "") -> list[Path]:
        """None: `kubectl logs` has them."""
        return []

    # -- one job ----------------------------------------------------------------------------------

    def _ours(self) -> Iterator["RankPod"]:
        return filter(None, map(read_pod, self._pods.all().values()))

    def _jobs(self) -> dict[str, dict[int, "RankPod"]]:
        """The pods of every job by rank, those that are gone included."""
        for gone_pod in filter(None, map(read_pod, self._pods.take_gone().values())):
            self._last.setdefault(gone_pod.job, {})[gone_pod.rank] = gone_pod
        jobs = {job: dict(pods) for job, pods in self._last.items()}
        for living in self._ours():
            jobs.setdefault(living.job, {})[living.rank] = living
        return jobs

    def _exit(self, job: str, pods: Mapping[int, "RankPod"]) -> Exit | None:
        """How a job ended, when all of its pods have ended or are gone."""
        last = self._last.get(job, {})
        living = [pod for pod in pods.values() if not pod.ended and last.get(pod.rank) is not pod]
        fallen = [pod for pod in pods.values() if pod not in living]
        failed = [pod for pod in fallen if pod.phase != "Succeeded"]
        if living:
            if failed:  # a gang without one of its ranks waits for ever
                for pod in living:
                    if not pod.leaving:
                        with contextlib.suppress(Fault):  # the next turn asks again
                            self._evict(pod.document, None, job)
            return None
        any_pod = next(iter(pods.values()))
        if len(pods) < any_pod.ranks and not failed:
            return None  # some are still to be made
        when = max((ended_ms(pod.document) or self._now_ms() for pod in fallen), default=0)
        if not failed:
            return Exit(job, any_pod.run, when, code=0)
        first = min(failed, key=lambda pod: (ended_ms(pod.document) is None, pod.rank))
        code = exit_code(first.document)
        if code is not None:
            return Exit(job, any_pod.run, when, code=code, reason=f"rank {first.rank}")
        if any_pod.run in self._stopping:
            return Exit(job, any_pod.run, when, signal=15)
        status = first.document.get("status", {})
        why = status.get("message") or status.get("reason")
        name = first.document["metadata"]["name"]
        return Exit(job, any_pod.run, when, lost=True, reason=why or f"pod {name} was deleted")

    def _of_run(self, run: str) -> list["RankPod"]:
        return [pod for pod in self._ours() if pod.run == run]

    def _refuse_older(self, key: Key, job: str) -> None:
        """A rank's name is free, or this job's; an ended pod of an earlier start makes room."""
        document = self._pods.get(key)
        if document is None:
            return
        before = read_pod(document)
        if before is None:
            raise TemporaryFault(f"pod {key.namespace}/{key.name} is not Fairlead's")
        if before.job == job:
            return
        if before.ended and not before.leaving:
            self._client.delete(self._path(document))
        raise TemporaryFault(f"pod {key.namespace}/{key.name} of an earlier start is still there")

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

    def _lift_gate(self, document: Document) -> None:
        if document["spec"].get("schedulingGates"):
            # Of this pod only: one that came late must not let another one of its name begin.
            meta = {"uid": document["metadata"]["uid"]}
            patch = {"metadata": meta, "spec": {"schedulingGates": None}}
            self._pods.put(self._client.patch(self._path(document), patch))

    def _remove(self, job: Job) -> None:
        for pod in self._of_run(job.run):
            if pod.job == job.id:
                self._client.delete(self._path(pod.document))

    def _evict(self, document: Document, grace_ms: int | None, decision: str) -> None:
        """Ask a pod to end; no proof, no kill: the request names the recorded decision."""
        meta = document["metadata"]
        options: Document = {"preconditions": {"uid": meta["uid"]}}
        if not self._node_is_there(document):
            options["gracePeriodSeconds"] = 0  # its kubelet is gone with the node
            self._client.delete(self._path(document), options)
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
            self._client.request("POST", f"{self._path(document)}/eviction", body, retries=0)
        except ApiError as error:
            if gone(error) or error.status == 409:
                return  # it is gone, or another by now
            if error.status == 429:
                # A disruption budget of the tenant: it does not stand above a recorded decision.
                self._client.delete(self._path(document), options)
                return
            raise TemporaryFault(f"cannot evict {meta['name']}: {error.message}") from error

    def _node_is_there(self, document: Document) -> bool:
        node = document["spec"].get("nodeName")
        return node is None or self._nodes.get(Key("", node)) is not None

    def _path(self, document: Document) -> str:
        meta = document["metadata"]
        return f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"


# -- a pod, read ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RankPod:
    """A pod of ours: which rank of which start it is."""

    job: str
    run: str
    rank: int
    ranks: int
    document: Document

    @property
    def phase(self) -> str:
        return str(self.document.get("status", {}).get("phase", "Pending"))

    @property
    def ended(self) -> bool:
        return self.phase in ENDED

    @property
    def leaving(self) -> bool:
        return "deletionTimestamp" in self.document["metadata"]

    def leaving_within(self, grace_ms: int) -> bool:
        """Whether it was asked to end, and no later than it is asked to now."""
        granted = self.document["metadata"].get("deletionGracePeriodSeconds", 0)
        return self.leaving and granted <= grace_s(grace_ms)


def read_pod(document: Document) -> RankPod | None:
    """None for a pod that is not what we make: users can write our labels, in their namespaces."""
    meta = document["metadata"]
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    job, name = annotations.get(JOB, ""), labels.get(RUN, "")
    rank, ranks = labels.get(RANK, ""), annotations.get(RANKS, "")
    run = engine_name(meta["namespace"], name)
    if job.rsplit(".", 2)[0] != run or not (_COUNT.fullmatch(rank) and _COUNT.fullmatch(ranks)):
        return None
    if meta["name"] != pod_name(name, int(rank)) or int(rank) >= int(ranks):
        return None
    return RankPod(job, run, int(rank), int(ranks), document)


def grace_s(grace_ms: int) -> int:
    """At least a second: with none the server forgets the pod while it may still run."""
    return max(1, -(-grace_ms // 1000))


def _ended(document: Document) -> list[Document]:
    found = [
        status.get("state", {}).get("terminated")
        for status in document.get("status", {}).get("containerStatuses") or ()
    ]
    return [state for state in found if state]


def exit_code(document: Document) -> int | None:
    codes = [state["exitCode"] for state in _ended(document)]
    return next((code for code in codes if code), codes[0] if codes else None)


def ended_ms(document: Document) -> int | None:
    times = [parse_ms(state["finishedAt"]) for state in _ended(document) if state.get("finishedAt")]
    return max(times, default=None)


def parse_ms(time: str) -> int:
    return int(datetime.fromisoformat(time).timestamp() * 1000)


# -- a pod, made ----------------------------------------------------------------------------------


def service(job: Job, run: RunObject) -> Document:
    """A name for each rank: `RUN-RANK.RUN.NAMESPACE.svc`."""
    namespace, name = kube_name(job.run)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {RUN: name},
            "ownerReferences": [_owner(name, run)],
        },
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {RUN: name}},
    }


def pod(job: Job, run: RunObject, rank: Rank, ranks: list[Rank]) -> Document:
    """The template with what the lease adds: devices, node, rank, rendezvous, the decision's id."""
    namespace, name = kube_name(job.run)
    template = run.template
    meta, spec = dict(template.get("metadata") or {}), dict(template.get("spec") or {})
    containers = [dict(container) for container in spec.get("containers") or ()]
    initial = [dict(container) for container in spec.get("initContainers") or ()]
    if not containers:
        raise PermanentFault("spec.template.spec.containers: must not be empty")
    first = containers[0]
    resources = dict(first.get("resources") or {})
    for part in ("limits", "requests"):
        resources[part] = {**(resources.get(part) or {}), GPU: str(rank.gpus)}
    first["resources"] = resources
    environment = _environment(job, name, rank, ranks)
    for container in containers:
        own = [row for row in container.get("env") or () if row.get("name") not in environment]
        added = [{"name": key, "value": value} for key, value in environment.items()]
        container["env"] = [*own, *added]
    for container in containers[1:] + initial:
        # Where a container asks for no device, some runtimes give it all of them.
        container["env"] = [*(container.get("env") or ()), NO_DEVICE]
    spec |= {
        "containers": containers,
        "initContainers": initial,
        "restartPolicy": "Never",
        "affinity": {"nodeAffinity": _only(rank.node)},
        "hostname": pod_name(name, rank.number),
        "subdomain": name,
    }
    spec.pop("nodeName", None)
    if len(ranks) > 1:
        spec["schedulingGates"] = [{"name": GATE}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(name, rank.number),
            "namespace": namespace,
            "labels": {**(meta.get("labels") or {}), RUN: name, RANK: str(rank.number)},
            "annotations": {
                **(meta.get("annotations") or {}),
                JOB: job.id,
                DECISION: job.id,
                RANKS: str(len(ranks)),
                LEASES: ",".join(job.leases),
            },
            "ownerReferences": [_owner(name, run)],
        },
        "spec": spec,
    }


def _environment(job: Job, name: str, rank: Rank, ranks: list[Rank]) -> dict[str, str]:
    """What torchrun (PET_), MPI launchers and scripts need to find each other."""
    master = f"{pod_name(name, 0)}.{name}"
    hosts = ",".join(f"{pod_name(name, other.number)}.{name}:{other.gpus}" for other in ranks)
    return {
        **job.env,
        "FAIRLEAD_RUN": name,
        "FAIRLEAD_JOB": job.id,
        "FAIRLEAD_RANK": str(rank.number),
        "FAIRLEAD_RANKS": str(len(ranks)),
        "FAIRLEAD_WIDTH": str(len(job.devices)),
        "FAIRLEAD_HOSTS": hosts,
        "MASTER_ADDR": master,
        "MASTER_PORT": str(RENDEZVOUS_PORT),
        "PET_NNODES": str(len(ranks)),
        "PET_NODE_RANK": str(rank.number),
        "PET_NPROC_PER_NODE": str(rank.gpus),
        "PET_MASTER_ADDR": master,
        "PET_MASTER_PORT": str(RENDEZVOUS_PORT),
    }


def _only(node: str) -> Document:
    """A pod may run on the leased node, and nowhere else."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {"requiredDuringSchedulingIgnoredDuringExecution": terms}


def _owner(name: str, run: RunObject) -> dict[str, Any]:
    """Pods go with their Run; leases do not."""
    return {
        "apiVersion": API_VERSION,
        "kind": "Run",
        "name": name,
        "uid": run.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }
