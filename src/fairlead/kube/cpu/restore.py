"""The user's own CPU limits put back: what `fairlead kube restore` does, with or without a
controller."""

import threading
import time
from collections.abc import Callable

from fairlead.kube.client import KubeClient
from fairlead.kube.cpu.pods import GOVERNED, NODE, PODS
from fairlead.kube.cpu.publish import KIND
from fairlead.kube.cpu.resizer import Resizer
from fairlead.kube.watch import key_of
from fairlead.ports.faults import PermanentFault

SYNC_S, TURN_S = 60.0, 0.5


def restore(
    client: KubeClient,
    *,
    node: str | None,
    within_s: float,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[list[str], list[str]]:
    """Remove the PodAllocations (of one node), and wait until their pods have their own limits
    again. Returns the pods that have, and those that do not in time."""
    fields = {"fieldSelector": f"spec.nodeName={node}"} if node else {}
    label = {"labelSelector": f"{NODE}={node}"} if node else {}
    before = _names(client, fields)
    allocations, _ = client.list(KIND.path(), **label)
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
        deadline, left = time.monotonic() + within_s, before
        while left and time.monotonic() < deadline:
            resizer.resize()
            woken.wait(TURN_S)
            woken.clear()
            left = _names(client, fields)
    finally:
        for source in resizer.sources():
            source.stop()
    return sorted(before - left), sorted(before & left)


def _names(client: KubeClient, fields: dict[str, str]) -> set[str]:
    """Pods that have limits of ours and still run."""
    documents, _ = client.list(PODS, labelSelector=GOVERNED, **fields)
    running = [row for row in documents if row.get("status", {}).get("phase") == "Running"]
    return {"/".join(key_of(document)) for document in running}
