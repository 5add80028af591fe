"""A rank's pod and the service of its gang: the run's template with what the lease adds."""

import json
from dataclasses import dataclass
from typing import Any

from fairlead.kube.client import Document
from fairlead.kube.gpu.ranks import (
    DECISION,
    GPU,
    JOB,
    LEASES,
    MEMBERS,
    RANK,
    RANKS,
    RUN,
    SLOTS,
    Rank,
    pod_name,
)
from fairlead.kube.kinds import GROUP, kube_name
from fairlead.ports.executor import Job
from fairlead.ports.faults import PermanentFault
from fairlead.schema.objects import API_VERSION

GATE = f"{GROUP}/lease"
HOSTFILE, WIDTH = f"{GROUP}/hostfile", f"{GROUP}/width"
WARNING = f"{GROUP}/warning"
"""What may happen to the run, as JSON; a pod that asked for it sees it as a file."""
FOLDER, VOLUME = "/etc/fairlead", "fairlead-run"
NO_DEVICE = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
RENDEZVOUS_PORT = 29500
HOSTFILES = (
    "FAIRLEAD_HOSTFILE",
    *("OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile"),
    *("HYDRA_HOST_FILE", "I_MPI_HYDRA_HOST_FILE"),
)
"""Variables by which Open MPI 4 and 5, MPICH and Intel MPI find the hosts."""


@dataclass(frozen=True, slots=True)
class RunObject:
    """What the cluster knows of a run: who owns its pods, and what they look like."""

    uid: str
    template: Document


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


def is_gang(job: Job, ranks: list[Rank]) -> bool:
    """Whether its ranks have to find each other, now or when it grows."""
    return len(ranks) > 1 or job.widths is not None


def told(job: Job, ranks: list[Rank]) -> dict[str, str]:
    """What every rank of a gang is told of the others, as annotations: at a resize these change,
    and the files that show them."""
    name = kube_name(job.run)[1]
    hosts = [f"{pod_name(name, rank.number)}.{name}" for rank in ranks]
    lines = [f"{host} slots={rank.gpus}\n" for host, rank in zip(hosts, ranks, strict=True)]
    found = {RANKS: str(len(ranks)), HOSTFILE: "".join(lines)}
    if job.widths is not None:
        width = {"devices": list(job.devices), "hosts": hosts, "width": len(job.devices)}
        found[WIDTH] = json.dumps(width, separators=(",", ":"))
        found[MEMBERS] = ",".join(str(rank.number) for rank in ranks)
    return found


def pod(job: Job, run: RunObject, rank: Rank, ranks: list[Rank]) -> Document:
    """The template with what the lease adds: devices, node, rank, rendezvous, the decision's id."""
    namespace, name = kube_name(job.run)
    template, gang = run.template, is_gang(job, ranks)
    meta, spec = dict(template.get("metadata") or {}), dict(template.get("spec") or {})
    spec |= _containers(job, spec, name, rank, ranks)
    spec |= {
        "restartPolicy": "Never",
        "affinity": {"nodeAffinity": _only(rank.node)},
        "hostname": pod_name(name, rank.number),
        "subdomain": name,
    }
    spec.pop("nodeName", None)
    if gang:
        spec["schedulingGates"] = [{"name": GATE}]
    if files := _files(job, ranks):
        items = [
            {"path": path, "fieldRef": {"fieldPath": f"metadata.annotations['{name}']"}}
            for path, name in files.items()
        ]
        volume = {"name": VOLUME, "downwardAPI": {"items": items}}
        spec["volumes"] = [*(spec.get("volumes") or ()), volume]
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
                LEASES: ",".join(job.leases),
                SLOTS: ",".join(rank.slots),
                **(told(job, ranks) if gang else {RANKS: "1"}),
            },
            "ownerReferences": [_owner(name, run)],
        },
        "spec": spec,
    }


def _containers(job: Job, spec: Document, name: str, rank: Rank, ranks: list[Rank]) -> Document:
    containers = [dict(container) for container in spec.get("containers") or ()]
    initial = [dict(container) for container in spec.get("initContainers") or ()]
    if not containers:
        raise PermanentFault("spec.template.spec.containers: must not be empty")
    first = containers[0] = _as_asked(containers[0], job)
    for part in ("limits", "requests"):
        first["resources"][part] = {**(first["resources"].get(part) or {}), GPU: str(rank.gpus)}
    environment = _environment(job, name, rank, ranks)
    for container in containers:
        own = [row for row in container.get("env") or () if row.get("name") not in environment]
        added = [{"name": key, "value": value} for key, value in environment.items()]
        container["env"] = [*own, *added]
        if _files(job, ranks):
            mount = {"name": VOLUME, "mountPath": FOLDER, "readOnly": True}
            container["volumeMounts"] = [*(container.get("volumeMounts") or ()), mount]
    for container in containers[1:] + initial:
        # Where a container asks for no device, some runtimes give it all of them.
        container["env"] = [*(container.get("env") or ()), NO_DEVICE]
    return {"containers": containers, "initContainers": initial}


def _as_asked(container: Document, job: Job) -> Document:
    """The first container with what the Run says and its template does not."""
    wanted: dict[str, str] = {}
    if job.cpu_millicores is not None:
        wanted["cpu"] = f"{job.cpu_millicores}m"
    if job.memory_bytes is not None:
        wanted["memory"] = str(job.memory_bytes)
    resources = dict(container.get("resources") or {})
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    added = {name: most for name, most in wanted.items() if name not in {**limits, **requests}}
    if added:  # the API server makes the requests the same
        resources["limits"] = {**limits, **added}
    made = {**container, "resources": resources}
    if job.working_directory is not None:
        made.setdefault("workingDir", job.working_directory)
    if job.terminal:  # `kubectl attach -it`
        made |= {"stdin": True, "tty": True}
    return made


def _environment(job: Job, name: str, rank: Rank, ranks: list[Rank]) -> dict[str, str]:
    """What torchrun (PET_), MPI launchers and scripts need to find each other."""
    master = f"{pod_name(name, ranks[0].number)}.{name}"
    hosts = ",".join(f"{pod_name(name, other.number)}.{name}:{other.gpus}" for other in ranks)
    found = {
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
    if is_gang(job, ranks):
        found |= dict.fromkeys(HOSTFILES, f"{FOLDER}/hostfile")
    if job.warns:
        found["FAIRLEAD_WARNING_FILE"] = f"{FOLDER}/warning.json"
    widths = job.widths
    if widths is not None:
        # Elastic torchrun numbers its nodes itself, and admits any number in between.
        least = max(1, len(ranks) * widths.min_gpus // len(job.devices))
        most = -(-len(ranks) * widths.max_gpus // len(job.devices))
        found |= {
            "FAIRLEAD_WIDTH_FILE": f"{FOLDER}/width.json",
            "PET_NNODES": f"{least}:{most}",
            "PET_RDZV_BACKEND": "c10d",
            "PET_RDZV_ENDPOINT": f"{master}:{RENDEZVOUS_PORT}",
            "PET_RDZV_ID": job.id,
        }
    return found


def _files(job: Job, ranks: list[Rank]) -> dict[str, str]:
    """Annotations of the pod as files, by name: the kubelet writes them again when they change; one
    that is not there yet is an empty file."""
    gang = {"hostfile": HOSTFILE} if is_gang(job, ranks) else {}
    width = {"width.json": WIDTH} if job.widths is not None else {}
    return {**gang, **width, **({"warning.json": WARNING} if job.warns else {})}


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
