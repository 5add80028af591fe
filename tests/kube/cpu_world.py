"""Pods on one node for tests of CPU limits; the node agent, and the kubelet if need be, is the
test."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fairlead.kube.cpu import pods as cpu_pods
from fairlead.kube.cpu.pods import LIMITS, Resource
from tests.kube import charts
from tests.kube.world import Document, World, made, node, until
from tests.node.cgroup_worlds import PlainTree

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

    def decide(
        self, capacity: int = C, *, on: str = NODE, resource: Resource = LIMITS, **millicores: int
    ) -> None:
        """One decision of the node agent."""
        self.decision += 1
        rows = []
        for name, amount in millicores.items():
            uid = self.uid(name)
            spec = {"pod": name, "uid": uid, "node": on, "decision": self.decision}
            spec |= {"capacityMillicores": capacity}
            spec |= {"containers": [{"name": "main", cpu_pods.FIELDS[resource]: amount}]}
            row = made("PodAllocation", uid, spec, SPACE)
            row["metadata"]["labels"] = {cpu_pods.NODE: on}
            rows.append(row)
        self.world.apply(*rows)

    def limit(self, name: str) -> int:
        """What the spec asks for."""
        return cpu_pods.asked(self.get(name), LIMITS)["main"]

    def in_force(self, name: str, resource: Resource = LIMITS) -> int:
        return cpu_pods.in_force(self.get(name), resource)["main"]

    def reason(self, name: str) -> str:
        found = self.world.get("podallocation", self.uid(name), SPACE)
        rows = found.get("status", {}).get("conditions") or [{"reason": ""}]
        return str(rows[0]["reason"])

    def applied(self, resource: Resource = LIMITS, **millicores: int) -> None:
        for name, amount in millicores.items():
            what = f"{name} has {amount}m: {self.world.spoken[-5:]}"
            until(lambda name=name, m=amount: self.in_force(name, resource) == m, what)
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


class SumWatch:
    """The highest sum of millicores at any look, and how many looks there were: a thread looks
    again and again until the block ends. A look that fails is told there."""

    def __init__(self, look: Callable[[], int]) -> None:
        self._look, self._failures = look, list[Exception]()
        self.highest, self.looks, self._stop = 0, 0, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "SumWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(20)
        assert not self._failures, self._failures

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self.highest, self.looks = max(self.highest, self._look()), self.looks + 1
        except Exception as error:  # noqa: BLE001 - told where the block ends
            self._failures.append(error)


def watch_requests(world: World, namespace: str) -> SumWatch:
    """The requests of all pods of a namespace, as a scheduler adds them up."""

    def look() -> int:
        rows = world.get("pods", namespace=namespace)["items"]
        return sum(cpu_pods.scheduled_millicores(row) for row in rows)

    return SumWatch(look)


class NodeAgent:
    """The node agent as the DaemonSet starts it, on files that stand for the node's cgroups."""

    def __init__(self, world: World, folder: Path) -> None:
        self._world, self.folder, self.state = world, folder, folder / "node"
        self._tree = PlainTree(2, folder / "cgroups")
        (self._tree.root / "cgroup.controllers").write_text("cpu\n")

    def container(self, pods: Pods, name: str, limit: int) -> Path:
        """Make a pod with a cgroup; the file of its limit."""
        self._world.apply(pod(name, limit, annotations=HOLD))
        pods.running(name)
        pods.acknowledge(name, containerID=f"kwok://c-{name}")
        folder = f"kubepods/burstable/pod{pods.uid(name)}/c-{name}"
        self._tree.create(folder)
        (self._tree.root / folder / "cgroup.threads").touch()
        quota = self._tree.root / folder / "cpu.max"
        quota.write_text(f"{limit * 100} 100000\n")
        return quota

    @contextmanager
    def running(
        self,
        account: Path,
        end: int = signal.SIGTERM,
        *,
        actuate: str = "limits",
        **reports: object,
    ) -> Iterator[None]:
        """`reports`: to, token_file and ca_file, instead of the chart's."""
        programs = self._world.cluster.programs
        rows = charts.rendered(programs, cpu_enabled=True, cpu_actuate=actuate)
        (manifest,) = [row for row in rows if row["kind"] == "DaemonSet"]
        (container,) = manifest["spec"]["template"]["spec"]["containers"]
        here = {"--cgroups": self._tree.root, "--state-dir": self.state, "--metrics-port": 0}
        here |= {f"--report-{name.replace('_', '-')}": value for name, value in reports.items()}
        args = []
        for text in container["args"]:
            name = text.partition("=")[0]
            args.append(f"{name}={here[name]}" if name in here else text)
        fast = {"clear_ms": 1000, "guardrails": {"cooldown_ms": 0, "grace_ms": 0}}
        settings = self.folder / "fast.yaml"
        settings.write_text(json.dumps(fast))
        command = [sys.executable, "-m", "fairlead", *args, "--config", str(settings)]
        env = {**os.environ, "NODE_NAME": NODE, "KUBECONFIG": str(account)}
        with (self.folder / "agent.log").open("ab") as log:
            process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.send_signal(end)
            code, log_text = process.wait(30), (self.folder / "agent.log").read_text()
            assert code == (0 if end == signal.SIGTERM else -end), log_text

    def status(self) -> Document:
        found = json.loads((self.state / "status.json").read_text())
        assert isinstance(found, dict)
        return found
