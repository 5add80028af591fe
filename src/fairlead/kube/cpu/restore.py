"""The user's own CPU limits and requests put back: what `fairlead kube restore` does, with or
without a controller."""

import threading
import time
from collections.abc import Callable

from fairlead.core.cpu import ResizeState
from fairlead.kube.client import ApiError, Document, KubeClient
from fairlead.kube.cpu.pods import GOVERNED, NODE, PODS, asked, originals, resize_state, resized
from fairlead.kube.cpu.publish import KIND
from fairlead.kube.cpu.resizer import Resizer
from fairlead.kube.watch import key_of
from fairlead.ports.faults import PermanentFault

NO_KIND = (
    "the cluster does not have the kind PodAllocation: install it with "
    "`fairlead kube crds | kubectl apply -f -`, restore, and delete the kinds afterwards"
)
SYNC_S, TURN_S, MARKS_S = 60.0, 0.5, 5.0


def restore(
    client: KubeClient,
    *,
    node: str | None,
    within_s: float,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[list[str], list[str]]:
    """Remove the PodAllocations (of one node), and wait until their pods have their own limits
    and requests again. Returns the pods that have, and those that do not in time."""
    fields = {"fieldSelector": f"spec.nodeName={node}"} if node else {}
    label = {"labelSelector": f"{NODE}={node}"} if node else {}
    before = _names(client, fields)
    try:
        allocations, _ = client.list(KIND.path(), **label)
    except ApiError as error:
        if error.status != 404:
            raise
        raise PermanentFault(NO_KIND) from error
    for document in allocations:
        client.delete(KIND.path(*key_of(document)))
    woken = threading.Event()
    resizer = Resizer(client, woken.set, say, restore_only=True)
    try:
        for source in resizer.sources():
            source.start()
        for source in resizer.sources():
            if not source.wait(SYNC_S):
                raise PermanentFault(f"cannot list {source.path}: {source.fault or 'no answer'}")
        left = _turns(resizer, woken, within_s, lambda: _names(client, fields))
        if not left:
            # Where a policy keeps our marks for the controller they stay until it runs.
            _turns(resizer, woken, MARKS_S, lambda: _marked(client, fields))
    finally:
        for source in resizer.sources():
            source.stop()
    return sorted(before - left), sorted(before & left)


def _turns(
    resizer: Resizer, woken: threading.Event, within_s: float, find: Callable[[], set[str]]
) -> set[str]:
    """Until nothing is found; what is in the end."""
    deadline = time.monotonic() + within_s
    while (left := find()) and time.monotonic() < deadline:
        resizer.resize()
        woken.wait(TURN_S)
        woken.clear()
    return left


def _marked(client: KubeClient, fields: dict[str, str]) -> set[str]:
    documents, _ = client.list(PODS, labelSelector=GOVERNED, **fields)
    return {"/".join(key_of(row)) for row in documents}


def _names(client: KubeClient, fields: dict[str, str]) -> set[str]:
    """Pods that run with other limits or requests than their own."""
    documents, _ = client.list(PODS, labelSelector=GOVERNED, **fields)
    return {"/".join(key_of(row)) for row in documents if _is_limited(row)}


def _is_limited(pod: Document) -> bool:
    if pod.get("status", {}).get("phase") != "Running":
        return False
    resource = resized(pod)
    settled = resize_state(pod, resource) is ResizeState.SETTLED
    return not settled or asked(pod, resource) != originals(pod, resource)
