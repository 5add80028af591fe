"""Runs as pods: the executor of a cluster. One pod for each node of a run's leased devices.

A pod is made after its lease stands in the ledger, and names it: the annotation `fairlead.dev/job`
is the plan's id. Pods of a gang are held back by a scheduling gate until all of them exist. A pod
may run on the leased node only (required affinity), and its name is its rank's, so that a rank
never runs twice. Its devices are free when it has ended or is gone, and not while it terminates.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from fairlead.kube.client import ApiError, Document, KubeClient, gone
from fairlead.kube.kinds import GROUP, kube_name
from fairlead.kube.watch import Key, Sources
from fairlead.ports.executor import Exit, Job
from fairlead.ports.faults import Fault, PermanentFault, TemporaryFault
from fairlead.schema.objects import API_VERSION

JOB, RANKS, LEASES = f"{GROUP}/job", f"{GROUP}/ranks", f"{GROUP}/leases"
DECISION = f"{GROUP}/decision"
RUN, RANK = f"{GROUP}/run", f"{GROUP}/rank"
GATE = f"{GROUP}/lease"
GPU = "nvidia.com/gpu"
RENDEZVOUS_PORT = 29500
ENDED = ("Succeeded", "Failed")
PODS = "/api/v1/pods"


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
        self._last: dict[str, dict[int, Document]] = {}
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
            self._create(f"/api/v1/namespaces/{namespace}/services", service(job, run))
        made = [self._create_pod(namespace, pod(job, run, rank, ranks)) for rank in ranks]
        for document in made:
            self._lift_gate(document)

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
        namespace, name = kube_name(job.run)
        self._remove(namespace, name, job.id)

    def _try_again(self) -> None:
        with self._lock:
            late = [self._starting[id] for id in self._late if id in self._starting]
            self._late.clear()
        for job in late:
            self._client.later(self._make, job)

    def stop(self, run: str, grace_ms: int, *, decision: str) -> None:
        self._stopping.add(run)
        for document in self._of_run(run):
            meta = document["metadata"]
            ending = "deletionTimestamp" in meta and self._node_is_there(document)
            if phase(document) not in ENDED and not ending:
                self._evict(document, grace_ms, decision)

    def pause(self, run: str, *, decision: str) -> None:
        raise PermanentFault("pods cannot be paused: cancel the run and submit it again")

    def resume(self, run: str, *, decision: str) -> None:
        """Nothing was paused."""

    def resize(self, run: str, devices: tuple[str, ...], *, decision: str) -> None:
        raise PermanentFault("a pod keeps its devices until it ends")

    # -- what became of them ----------------------------------------------------------------------

    def running(self) -> set[str]:
        living = {
            job_of(document)
            for document in self._pods.all().values()
            if phase(document) not in ENDED and JOB in document["metadata"].get("annotations", {})
        }
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

    def _jobs(self) -> dict[str, dict[int, Document]]:
        """The pods of every job by rank, those that are gone included."""
        for document in self._pods.take_gone().values():
            if JOB in document["metadata"].get("annotations", {}):
                self._last.setdefault(job_of(document), {})[rank_of(document)] = document
        jobs = {job: dict(pods) for job, pods in self._last.items()}
        for document in self._pods.all().values():
            if JOB in document["metadata"].get("annotations", {}):
                jobs.setdefault(job_of(document), {})[rank_of(document)] = document
        return jobs

    def _exit(self, job: str, pods: Mapping[int, Document]) -> Exit | None:
        """How a job ended, when all of its pods have ended or are gone."""
        gone_now = self._last.get(job, {})
        living = [
            document
            for number, document in pods.items()
            if phase(document) not in ENDED and gone_now.get(number) is not document
        ]
        fallen = [document for document in pods.values() if document not in living]
        failed = [document for document in fallen if phase(document) != "Succeeded"]
        if living:
            if failed:  # a gang without one of its ranks waits for ever
                for document in living:
                    if "deletionTimestamp" not in document["metadata"]:
                        self._evict(document, None, job)
            return None
        ranks = int(next(iter(pods.values()))["metadata"]["annotations"][RANKS])
        if len(pods) < ranks and not failed:
            return None  # some are still to be made
        run = run_of(next(iter(pods.values())))
        when = max((ended_ms(document) or self._now_ms() for document in fallen), default=0)
        if not failed:
            return Exit(job, run, when, code=0)
        first = min(failed, key=lambda document: (ended_ms(document) is None, rank_of(document)))
        code = exit_code(first)
        if code is not None:
            return Exit(job, run, when, code=code, reason=f"rank {rank_of(first)}")
        if run in self._stopping:
            return Exit(job, run, when, signal=15)
        why = first.get("status", {}).get("message") or first.get("status", {}).get("reason")
        name = first["metadata"]["name"]
        return Exit(job, run, when, lost=True, reason=why or f"pod {name} was deleted")

    def _of_run(self, run: str) -> list[Document]:
        namespace, name = kube_name(run)
        return [
            document
            for key, document in self._pods.all().items()
            if key.namespace == namespace and document["metadata"]["labels"].get(RUN) == name
        ]

    def _refuse_older(self, key: Key, job: str) -> None:
        """A rank's name is free, or this job's; an ended pod of an earlier start makes room."""
        before = self._pods.get(key)
        if before is None:
            return
        annotations = before["metadata"].get("annotations", {})
        if annotations.get(JOB) == job:
            return
        if JOB not in annotations:
            raise PermanentFault(f"pod {key.namespace}/{key.name} is not Fairlead's")
        if phase(before) in ENDED and "deletionTimestamp" not in before["metadata"]:
            self._client.delete(self._path(before))
        raise TemporaryFault(f"pod {key.namespace}/{key.name} of an earlier start is still there")

    def _create_pod(self, namespace: str, document: Document) -> Document:
        made = self._create(f"/api/v1/namespaces/{namespace}/pods", document)
        if job_of(made) != job_of(document):
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
            patch = {"spec": {"schedulingGates": None}}
            self._pods.put(self._client.patch(self._path(document), patch))

    def _remove(self, namespace: str, name: str, job: str) -> None:
        for document in self._of_run(f"{namespace}.{name}"):
            if job_of(document) == job:
                self._client.delete(self._path(document))

    def _evict(self, document: Document, grace_ms: int | None, decision: str) -> None:
        """Ask a pod to end; no proof, no kill: the request names the recorded decision."""
        meta = document["metadata"]
        options: Document = {"preconditions": {"uid": meta["uid"]}}
        if not self._node_is_there(document):
            options["gracePeriodSeconds"] = 0  # its kubelet is gone with the node
            self._client.delete(self._path(document), options)
            return
        if grace_ms is not None:
            options["gracePeriodSeconds"] = -(-grace_ms // 1000)
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
            self._client.request("POST", f"{self._path(document)}/eviction", body)
        except ApiError as error:
            if gone(error) or error.status == 409:
                return  # it is gone, or another by now
            raise TemporaryFault(f"cannot evict {meta['name']}: {error.message}") from error

    def _node_is_there(self, document: Document) -> bool:
        node = document["spec"].get("nodeName")
        return node is None or self._nodes.get(Key("", node)) is not None

    def _path(self, document: Document) -> str:
        meta = document["metadata"]
        return f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"


# -- a pod, read ----------------------------------------------------------------------------------


def phase(document: Document) -> str:
    return str(document.get("status", {}).get("phase", "Pending"))


def job_of(document: Document) -> str:
    return str(document["metadata"]["annotations"][JOB])


def run_of(document: Document) -> str:
    return job_of(document).rsplit(".", 2)[0]


def rank_of(document: Document) -> int:
    return int(document["metadata"]["labels"][RANK])


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
    spec |= {
        "containers": containers,
        "restartPolicy": "Never",
        "affinity": {**(spec.get("affinity") or {}), "nodeAffinity": _only(rank.node)},
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
