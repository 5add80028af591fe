"""What a Pod document says about CPU, in millicores by container. Reads documents; writes none."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from fairlead.core.cpu import ResizeState
from fairlead.core.invariant import require
from fairlead.core.units import SIZE_MAX
from fairlead.kube.client import MISREAD, Document
from fairlead.kube.kinds import GROUP

PODS = "/api/v1/pods"
Resource = Literal["limits", "requests"]
"""What of a pod is governed: its limits or, where weights are, the requests that the kubelet makes
them of."""
LIMITS: Resource = "limits"
REQUESTS: Resource = "requests"
FIELDS = {LIMITS: "limitMillicores", REQUESTS: "requestMillicores"}
"""Of the containers of a PodAllocation."""
SWITCH = f"{GROUP}/cpu"
"""`off` leaves a pod alone."""
ORIGINAL, RESIZE = f"{GROUP}/cpu-original", f"{GROUP}/cpu-resize"
RESTORE = "restore"
"""In place of a decision, where a pod gets its own limits back."""
GOVERNED = f"{GROUP}/cpu-governed"
"""A label of the pods that we resize; its annotation ORIGINAL is made with it."""
NODE = f"{GROUP}/node"
"""A label of PodAllocations."""
MIRROR = "kubernetes.io/config.mirror"
_ENDED = ("Succeeded", "Failed")
_QUANTITY = re.compile(
    r"([0-9]{0,18})(?:\.([0-9]{0,18}))?(?:[eE]([+-]?[0-9]{1,2})|([numkMGTPE]|[KMGTPE]i))?", re.ASCII
)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def millicores(quantity: str) -> int:
    """A quantity of CPU, rounded up as the API server does. Raises `ValueError`."""
    found = _QUANTITY.fullmatch(quantity)
    if found is None or not (found[1] or found[2]):
        raise ValueError(f"{quantity!r} is no quantity of CPU")
    whole, fraction, exponent, suffix = found.groups("")
    tens = int(exponent or 0) + _DECIMAL.get(suffix, 0) + 3 - len(fraction)
    binary = 1024 ** (_BINARY.index(suffix) + 1) if suffix in _BINARY else 1
    digits = int(whole + fraction) * binary
    return int(digits * 10**tens) if tens >= 0 else -(-digits // 10**-tens)


def path_of(document: Document, sub: str = "") -> str:
    meta = document["metadata"]
    path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
    return f"{path}/{sub}" if sub else path


def containers(pod: Document) -> Iterator[tuple[str, Document]]:
    """Those that run as long as the pod does, each with its list in the spec."""
    for container in pod["spec"]["containers"]:
        yield "containers", container
    for container in pod["spec"].get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            yield "initContainers", container


def _quantities(pod: Document, kind: str, resource: str) -> dict[str, str | None]:
    return {
        container["name"]: ((container.get("resources") or {}).get(kind) or {}).get(resource)
        for _, container in containers(pod)
    }


def amounts(pod: Document, kind: str) -> dict[str, int | None]:
    """`limits` or `requests` of each container."""
    rows = _quantities(pod, kind, "cpu").items()
    return {name: None if given is None else millicores(given) for name, given in rows}


def asked(pod: Document, resource: Resource) -> dict[str, int]:
    """What the spec asks for; of a pod that we may govern each container has one."""
    return {name: amount or 0 for name, amount in amounts(pod, resource).items()}


def scheduled_millicores(pod: Document) -> int:
    """What the pod takes of its node for the scheduler, and for a kubelet that admits a resize: its
    requests, those that a resize replaces as long as they are in force, and those of init
    containers before they end."""
    spec, actual = pod["spec"], in_force(pod, REQUESTS)
    running = sum(max(m, actual.get(name, 0)) for name, m in asked(pod, REQUESTS).items())
    most, sidecars = running, 0
    for container in spec.get("initContainers") or ():
        quantity = ((container.get("resources") or {}).get("requests") or {}).get("cpu", "0")
        if container.get("restartPolicy") == "Always":
            sidecars += millicores(quantity)
        else:
            most = max(most, sidecars + millicores(quantity))
    whole = ((spec.get("resources") or {}).get("requests") or {}).get("cpu")
    total = most if whole is None else millicores(whole)
    return total + millicores((spec.get("overhead") or {}).get("cpu", "0"))


def _statuses(pod: Document) -> Iterator[Document]:
    status = pod.get("status", {})
    for group in ("containerStatuses", "initContainerStatuses"):
        yield from status.get(group) or ()


def in_force(pod: Document, resource: Resource = LIMITS) -> dict[str, int]:
    """What the kubelet says that each container has; one that does not run has nothing."""
    found = {}
    for status in _statuses(pod):
        quantity = ((status.get("resources") or {}).get(resource) or {}).get("cpu")
        if quantity is not None:
            found[status["name"]] = millicores(quantity)
    return found


def container_ids(pod: Document) -> dict[str, str]:
    """The ids that the runtime gave those that run."""
    rows = [status for status in _statuses(pod) if "running" in (status.get("state") or {})]
    ids = {status["name"]: status.get("containerID", "").rpartition("//")[2] for status in rows}
    return {name: found for name, found in ids.items() if found}


def is_over(pod: Document) -> bool:
    return pod.get("status", {}).get("phase") in _ENDED


def is_seen(pod: Document) -> bool:
    """Whether the kubelet has seen the spec as it is now."""
    generation = pod["metadata"].get("generation", 0)
    return bool(pod.get("status", {}).get("observedGeneration", generation) >= generation)


def resize_state(pod: Document, resource: Resource) -> ResizeState:
    """From status alone: conditions, and the resources of every container."""
    rows = pod.get("status", {}).get("conditions") or ()
    held = {row["type"]: row.get("reason", "") for row in rows if row["status"] == "True"}
    if not is_seen(pod):
        return ResizeState.MOVING
    if (why := held.get("PodResizePending")) is not None:
        return ResizeState.INFEASIBLE if why == "Infeasible" else ResizeState.DEFERRED
    if "PodResizeInProgress" in held:
        return ResizeState.MOVING
    spec, actual = asked(pod, resource), in_force(pod, resource)
    same = all(actual.get(name) == amount for name, amount in spec.items())
    return ResizeState.SETTLED if same else ResizeState.MOVING


def left_alone(pod: Document, resource: Resource) -> str | None:
    """Why a pod's limits, or its requests, are not ours to set; None: they are."""
    meta, spec = pod["metadata"], pod["spec"]
    annotations = meta.get("annotations") or {}
    policies = [row for _, c in containers(pod) for row in c.get("resizePolicy") or ()]
    restarts = {row["restartPolicy"] for row in policies if row["resourceName"] == "cpu"}
    reasons = {
        "opted out": annotations.get(SWITCH) == "off",
        "its QoS class is not Burstable": pod["status"].get("qosClass") != "Burstable",
        "a static pod": MIRROR in annotations,
        "it has CPU resources of the pod": "cpu" in _pod_resources(spec),
        # Kubernetes takes neither from a container that has one: it could not be put back.
        f"a container has no CPU {resource[:-1]}": None in amounts(pod, resource).values(),
        "a container restarts when it is resized": restarts - {"NotRequired"} != set(),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _pod_resources(spec: Document) -> set[str]:
    resources = spec.get("resources") or {}
    return {name for kind in resources.values() if isinstance(kind, dict) for name in kind}


def _would_be_guaranteed(pod: Document) -> bool:
    """Whether CPU limits that are the requests would make it one of the class Guaranteed."""
    memory = [_quantities(pod, kind, "memory") for kind in (LIMITS, REQUESTS)]
    return memory[0] == memory[1] and None not in memory[0].values()


def floors(pod: Document) -> dict[str, int]:
    """The lowest limits that the API server takes: the requests, a millicore more where these
    would change the class."""
    would = _would_be_guaranteed(pod)
    return {name: request + would for name, request in asked(pod, REQUESTS).items()}


def ceilings(pod: Document, own: dict[str, int]) -> dict[str, int]:
    """The highest requests that the API server takes, given the pod's own: the limits, a millicore
    less where these would change the class. Without a limit there is no bound."""
    would = _would_be_guaranteed(pod)
    rows = amounts(pod, LIMITS).items()
    return {n: SIZE_MAX if most is None else max(most - would, own[n]) for n, most in rows}


# -- what we write down with a pod ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PodResize:
    """The annotation of a pod's last resize, made before it is sent."""

    decision: str
    """`NODE/NUMBER`: the entry of the node agent's record."""
    unseen: dict[str, int]
    """Limits that the kubelet may still put in force while it has not seen this one."""
    first: bool
    """No resize of this pod was in force before."""
    resource: Resource = LIMITS

    def text(self) -> str:
        row = {"decision": self.decision, "unseen": self.unseen, "first": self.first}
        if self.resource != LIMITS:
            row["resource"] = self.resource
        return json.dumps(row, separators=(",", ":"), sort_keys=True)


def last_resize(pod: Document) -> PodResize | None:
    """A text that is not ours counts as none: it is written anew with the next resize."""
    text = (pod["metadata"].get("annotations") or {}).get(RESIZE, "")
    try:
        row = json.loads(text)
        unseen = {str(name): int(limit) for name, limit in row["unseen"].items()}
        resource = row.get("resource", LIMITS)
        if resource not in get_args(Resource):
            return None
        return PodResize(str(row["decision"]), unseen, bool(row["first"]), resource)
    except MISREAD:
        return None


def resized(pod: Document) -> Resource:
    """What we resized of a pod that has our marks. Where a mark was changed: what differs from the
    pod's own."""
    last = last_resize(pod)
    if last is not None:
        return last.resource
    own = originals(pod, REQUESTS)
    return LIMITS if own in (None, asked(pod, REQUESTS)) else REQUESTS


def original_text(pod: Document) -> str:
    """The resources that the user gave each container, as they were."""
    rows = {container["name"]: container.get("resources") or {} for _, container in containers(pod)}
    return json.dumps(rows, separators=(",", ":"), sort_keys=True)


def originals(pod: Document, resource: Resource) -> dict[str, int] | None:
    """The user's own limits or requests; None where they were never frozen, or cannot be read any
    more."""
    text = (pod["metadata"].get("annotations") or {}).get(ORIGINAL)
    if text is None:
        return None
    try:
        rows = json.loads(text)
        return {
            container["name"]: millicores(rows[container["name"]][resource]["cpu"])
            for _, container in containers(pod)
        }
    except MISREAD:
        return None


def resize_patch(
    pod: Document, wanted: dict[str, int], *, resource: Resource, decision: str
) -> Document:
    """For `pods/resize`; refused where the pod has changed since we read it. The pod is marked with
    its decision by then, unless it only gets its own limits back."""
    last = last_resize(pod)
    marked = decision == RESTORE or (last is not None and last.decision == decision)
    require(marked, "a pod is marked with its decision before it is resized")
    rows: Document = {}
    for group, container in containers(pod):
        amount = {resource: {"cpu": f"{wanted[container['name']]}m"}}
        rows.setdefault(group, []).append({"name": container["name"], "resources": amount})
    return {"metadata": {"resourceVersion": pod["metadata"]["resourceVersion"]}, "spec": rows}
