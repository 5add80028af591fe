"""Pods on one node for tests of CPU limits; the node agent, and the kubelet if need be, is the
test."""

import json

from fairlead.kube.cpu import pods as cpu_pods
from tests.kube.world import Document, World, made, node, until

NODE, SPACE, C = "cpu-node", "team-cpu", 1000
HOLD = {"sim.fairlead.dev/resize": "hold"}
"""The kubelet of this pod is the test: KWOK acknowledges no resize of it."""


class Pods:
    """Pods on one node, and what a node agent would write about them."""

    def __init__(self, world: World) -> None:
        self.world, self.decision = world, 0
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}}
        world.apply(node(NODE), space)
        account = ["-n", SPACE, "get", "serviceaccount", "default"]
        until(lambda: "default" in world.kubectl(*account, check=False), "the namespace is ready")

    def make(self, **limits: int) -> None:
        self.world.apply(*(pod(name, limit) for name, limit in limits.items()))
        self.running(*limits)

    def running(self, *names: str) -> None:
        for name in names:
            until(lambda name=name: self.get(name)["status"].get("phase") == "Running", name)

    def get(self, name: str) -> Document:
        return self.world.get("pod", name, SPACE)

    def uid(self, name: str) -> str:
        return str(self.get(name)["metadata"]["uid"])

    def decide(self, capacity: int = C, *, on: str = NODE, **limits: int) -> None:
        """One decision of the node agent."""
        self.decision += 1
        rows = []
        for name, limit in limits.items():
            uid = self.uid(name)
            spec = {"pod": name, "uid": uid, "node": on, "decision": self.decision}
            spec |= {"capacityMillicores": capacity}
            spec |= {"containers": [{"name": "main", "limitMillicores": limit}]}
            rows.append(made("PodAllocation", uid, spec, SPACE))
        self.world.apply(*rows)

    def limit(self, name: str) -> int:
        """What the spec asks for."""
        return cpu_pods.limits(self.get(name))["main"]

    def in_force(self, name: str) -> int:
        return cpu_pods.in_force(self.get(name))["main"]

    def reason(self, name: str) -> str:
        found = self.world.get("podallocation", self.uid(name), SPACE)
        rows = found.get("status", {}).get("conditions") or [{"reason": ""}]
        return str(rows[0]["reason"])

    def applied(self, **limits: int) -> None:
        for name, limit in limits.items():
            what = f"{name} has {limit}m: {self.world.spoken[-5:]}"
            until(lambda name=name, limit=limit: self.in_force(name) == limit, what)
            until(lambda name=name: self.reason(name) == "Applied", f"{name} is shown")

    def annotate(self, name: str, *what: str) -> None:
        self.world.kubectl("-n", SPACE, "annotate", "--overwrite", "pod", name, *what)

    def acknowledge(self, name: str, containerID: str = "", **pending: str) -> None:  # noqa: N803
        """As the kubelet says it: in force, or put off with a reason."""
        found = self.get(name)
        rows = [row for row in found["status"]["conditions"] if "Resize" not in row["type"]]
        if pending:
            row = {"type": "PodResizePending", "status": "True", **pending}
            rows.append({**row, "lastTransitionTime": "2026-01-01T00:00:00Z"})
        statuses = found["status"]["containerStatuses"]
        if not pending:
            statuses[0]["resources"] = found["spec"]["containers"][0]["resources"]
        if containerID:
            statuses[0]["containerID"] = containerID
        status = {"conditions": rows, "containerStatuses": statuses}
        status["observedGeneration"] = found["metadata"]["generation"]
        patch = ("--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))
        self.world.kubectl("-n", SPACE, "patch", "pod", name, *patch)


def pod(
    name: str, limit: int, *, request: int = 50, annotations: dict[str, str] | None = None
) -> Document:
    resources = {"limits": {"cpu": f"{limit}m"}, "requests": {"cpu": f"{request}m"}}
    container = {"name": "main", "image": "busybox", "resources": resources}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": SPACE, "annotations": annotations or {}},
        "spec": {"nodeName": NODE, "containers": [container]},
    }
