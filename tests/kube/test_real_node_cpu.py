"""CPU limits of real pods follow their load, and Σ limits ≤ C holds in the kernel throughout.

The seeds' integration tests, load spike and contention, with a real kubelet: the node agent is a
process of this machine, as the DaemonSet's would be; the controller runs in the test.
"""

import json
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fairlead.cli.kube.commands import node_agent_command
from fairlead.host.process import free_port
from fairlead.kube.cpu.pods import REQUESTS, container_ids, in_force, millicores
from fairlead.kube.dev.assets import Programs
from fairlead.kube.dev.cluster import Cluster
from fairlead.kube.dev.components import ClusterOptions
from fairlead.kube.dev.real_node import CGROUP, NAME
from fairlead.kube.kinds import crds
from tests.kube.cpu_world import watch_requests
from tests.kube.real_nodes import busybox_image, cgroups, found, phase, pod
from tests.kube.world import World, until

pytestmark = [
    pytest.mark.component("real-node"),
    pytest.mark.usefixtures("only_real_node"),
    pytest.mark.timeout(600),
]

# Small, so that the quotas bind and nothing else does.
C, LIMIT, REQUEST = 400, 350, 20
GUARANTEED, RIVAL = 600, 100
IDLE, BUSY, SHARE = (1, 160), (225, LIMIT), (150, 250)
LENDING = (180, 320)
"""Of 300m each, for a need of 350m, a part is lent: what they lack."""
WITHIN_S = 120.0
WORK = """
while :; do
  if [ -e /go ]; then
    i=0; while [ $i -lt 500 ]; do i=$((i+1)); done
    echo >> /count
  else /busybox sleep 0.2; fi
done
"""
"""Burns CPU while /go is there; /count grows by a byte for each piece of work."""
SETTINGS = {
    "sample_ms": 500,
    "clear_ms": 1000,
    "guardrails": {"cooldown_ms": 1500, "grace_ms": 1000, "step_ratio": 4.0},
    "smoothing": {"hold_ms": 3000, "down": 0.5},
}


class Node:
    """The pods of the real node as the kernel has them."""

    def __init__(self, cluster: Cluster, world: World, folder: Path) -> None:
        self.cluster, self.world, self.state = cluster, world, folder / "node"
        self.config = folder / "node.yaml"
        self.config.write_text(json.dumps(SETTINGS))
        self.port = free_port()

    def run(self, name: str, request: int, limit: int | None, *command: str, **notes: str) -> None:
        document = pod(name, *command, **({} if limit is None else {"cpu": f"{limit}m"}))
        document["spec"]["containers"][0]["resources"]["requests"] = {"cpu": f"{request}m"}
        document["metadata"]["annotations"] = notes
        self.cluster.apply([document])
        self.cluster.wait_for(lambda: phase(self.cluster, name) == "Running", name)

    def files(self, name: str) -> tuple[Path, Path]:
        """The quota files of a pod and of its container."""
        # On a busy machine the kubelet's word on a container is missing now and then.
        (cgroup,) = until(lambda: container_ids(found(self.cluster, name)).values(), name)
        shown = found(self.cluster, name)
        pod_folder = f"pod{shown['metadata']['uid']}"
        for folder in cgroups():
            for quota in ("cpu.cfs_quota_us", "cpu.max"):
                inner = folder / cgroup / quota
                if folder.name == pod_folder and inner.exists():
                    return folder / quota, inner
        raise AssertionError(f"no cgroup of {name}")

    def weight(self, name: str) -> int:
        """What the kernel shares by; of a pod of one container the pod's own is the same."""
        pod_quota, quota = self.files(name)
        file = "cpu.weight" if quota.name == "cpu.max" else "cpu.shares"
        weights = {int((path.parent / file).read_text()) for path in (pod_quota, quota)}
        return weights.pop() if len(weights) == 1 else 0

    def request(self, name: str) -> int:
        """The one in force."""
        (amount,) = in_force(found(self.cluster, name), REQUESTS).values()
        return amount

    def limit(self, name: str) -> int:
        return read_millicores(self.files(name)[1])

    def allocatable(self) -> int:
        shown = self.cluster.get(f"/api/v1/nodes/{NAME}") or {}
        return millicores(shown["status"]["allocatable"]["cpu"])

    def shell(self, name: str, *command: str) -> str:
        return self.cluster.kubectl("exec", name, "--", "/busybox", *command)

    def done(self, name: str) -> int:
        return int(self.shell(name, "wc", "-c", "/count").split()[0])

    def rate(self, name: str, over_s: float = 4.0) -> float:
        """Work that was done per second."""
        began, before = time.monotonic(), self.done(name)
        time.sleep(over_s)
        after = self.done(name)
        return (after - before) / (time.monotonic() - began)

    def status(self) -> dict[str, Any]:
        done = fairlead("node", "status", "--state-dir", str(self.state), "-o", "json")
        return dict(json.loads(done))

    @contextmanager
    def governed(self, *options: str) -> Iterator["subprocess.Popen[bytes]"]:
        command = node_agent_command(self.state, self.cluster.kubeconfig)
        command += ["--config", str(self.config), "--metrics-port", str(self.port), *options]
        with (self.state.parent / "agent.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0, (self.state.parent / "agent.log").read_text()


def fairlead(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "fairlead", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def read_millicores(path: Path) -> int:
    text = path.read_text().split()
    if path.name == "cpu.max":
        return int(text[0]) * 1000 // int(text[1])
    return int(text[0]) * 1000 // int((path.parent / "cpu.cfs_period_us").read_text())


class Sampler:
    """Reads the kernel's quotas as fast as it can: of the containers, and of their pods."""

    def __init__(self, files: list[tuple[Path, Path]]) -> None:
        self._files, self._stop = files, threading.Event()
        self.highest, self.samples = [0, 0], 0
        self.seen: set[tuple[int, ...]] = set()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Sampler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(20)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stop.is_set():
            for level in (0, 1):
                limits = tuple(read_millicores(pair[level]) for pair in self._files)
                self.highest[level] = max(self.highest[level], sum(limits))
            self.seen.add(limits)
            self.samples += 1
            time.sleep(0.0005)


@pytest.fixture(scope="module")
def node(node_programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("real-cpu")
    options = ClusterOptions(real_node=True, images=(busybox_image(folder),))
    with Cluster(node_programs, folder / "cluster", options) as cluster:
        _first_in_line()
        cluster.apply(crds())
        cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        yield Node(cluster, World(cluster, folder), folder)


def _first_in_line() -> None:
    """Pods get CPU before the rest of the machine: their limits bind even where it is busy."""
    most = {"cpu.shares": "262144", "cpu.weight": "10000"}
    for folder in cgroups():
        for name, weight in most.items():
            if folder.name == CGROUP and (folder / name).exists():
                (folder / name).write_text(weight)


def test_limits_follow_a_load_spike_and_contention(node: Node) -> None:
    """The idle pod has less, the busy one more, as far as C allows; work that is done follows."""
    node.run("ballast", 10, node.allocatable() - C, "sleep", "3600", **{"fairlead.dev/cpu": "off"})
    for name in ("a", "b"):
        node.run(name, REQUEST, LIMIT, "sh", "-c", WORK)

    def reach(what: str, **bounds: tuple[int, int]) -> None:
        def inside() -> bool:
            limits = {name: node.limit(name) for name in bounds}
            seen.append(f"{what}: {limits}")
            return all(low <= limits[name] <= high for name, (low, high) in bounds.items())

        seen: list[str] = []
        deadline = time.monotonic() + WITHIN_S
        while not inside():
            assert time.monotonic() < deadline, [*seen[-3:], node.status(), node.world.spoken[-5:]]
            time.sleep(0.2)

    with node.world.controlled(), node.governed() as agent:
        reach("idle pods have less", a=IDLE, b=IDLE)
        with Sampler([node.files("a"), node.files("b")]) as sampler:
            fairlead("node", "observe-only", "on", "--state-dir", str(node.state))
            time.sleep(2 * SETTINGS["clear_ms"] / 1000)  # its next clearing
            node.shell("a", "touch", "/go")
            until(lambda: node.shell("a", "ls", "/").count("count"), "it works")
            slow = node.rate("a")
            fairlead("node", "observe-only", "off", "--state-dir", str(node.state))
            reach("load spike", a=BUSY, b=IDLE)
            fast = node.rate("a")
            node.shell("b", "touch", "/go")
            until(lambda: node.status()["mode"] == "congested", "both want more", WITHIN_S)
            reach("contention", a=SHARE, b=SHARE)
            node.shell("a", "rm", "/go")
            reach("the load ends", a=IDLE, b=BUSY)
            text = _metrics(node.port)
        memory_mb = _resident_mb(agent.pid)
    assert fast > 1.5 * slow, f"{slow} of work a second before, {fast} after"
    assert max(sampler.highest) <= C, f"{sampler.highest} of {C} in {sampler.samples} samples"
    assert len(sampler.seen) > 5, "limits moved while they were sampled"
    for name in ("a", "b", "ballast"):
        (status,) = found(node.cluster, name)["status"]["containerStatuses"]
        assert status["restartCount"] == 0
    assert node.limit("ballast") == node.allocatable() - C
    assert _names(text) >= {
        "apex_allocation_mode",
        "apex_need_milli",
        "apex_allocation_milli",
        "apex_nash_reduction_ratio",
        "apex_headroom_utilization",
    }
    assert 'apex_allocation_milli{namespace="default",pod="b"}' in text
    assert memory_mb < 60, memory_mb
    _recorded(node, "b")
    node.world.kubectl("-n", "default", "delete", "lease", "fairlead-controller", check=False)
    fairlead("kube", "restore", "--kubeconfig", str(node.cluster.kubeconfig))
    assert [node.limit(name) for name in ("a", "b")] == [LIMIT, LIMIT]


@contextmanager
def one_core() -> Iterator[None]:
    """What the node's Burstable pods compete for, without the rest of the machine."""
    quotas = {"cpu.cfs_quota_us": ("100000", "-1"), "cpu.max": ("100000 100000", "max 100000")}
    rows = [(folder / name, name) for folder in cgroups() for name in quotas]
    files = {path: quotas[name] for path, name in rows if path.parent.name == "burstable"}
    present = [path for path in files if path.exists()]
    assert present
    for path in present:
        path.write_text(files[path][0])
    yield
    for path in present:
        path.write_text(files[path][1])


def test_weights_follow_the_load_by_requests(node: Node) -> None:
    """The kernel's weight of a busy pod rises against a rival's, and its work; it falls when the
    load ends. No limit changes, no pod restarts, and the scheduler never sees more requests than
    the node has."""
    off = {"fairlead.dev/cpu": "off"}
    cores = node.allocatable()
    spin = f"for n in $(seq {2 * (cores // 1000)}); do while :; do :; done & done; wait"
    # What the test before this one left is no part of this one's sums.
    node.cluster.kubectl("delete", "pod", "--all", "--now")
    node.run("ballast", cores - GUARANTEED - RIVAL, None, "sleep", "3600", **off)
    for name in ("a", "b"):
        node.run(name, REQUEST, LIMIT, "sh", "-c", WORK)
    quiet = node.weight("a")

    def reach(what: str, **bounds: tuple[int, int]) -> None:
        def inside() -> bool:
            requests = {name: node.request(name) for name in bounds}
            seen.append(f"{what}: {requests}")
            return all(low <= requests[name] <= high for name, (low, high) in bounds.items())

        seen: list[str] = []
        deadline = time.monotonic() + WITHIN_S
        while not inside():
            assert time.monotonic() < deadline, [*seen[-3:], node.status(), node.world.spoken[-5:]]
            # Requests in force are shown by the API server alone: it is asked again.
            time.sleep(0.2)

    with one_core(), node.world.controlled(), watch_requests(node.world, "default") as sums:
        node.run("rival", RIVAL, None, "sh", "-c", spin, **off)
        node.shell("a", "touch", "/go")
        until(lambda: node.shell("a", "ls", "/").count("count"), "it works")
        slow = node.rate("a")
        with node.governed("--actuate", "weights", "--reserve", "0"):
            reach("load spike", a=BUSY, b=IDLE)
            fast, loud = node.rate("a"), node.weight("a")
            node.shell("b", "touch", "/go")
            reach("contention", a=LENDING, b=LENDING)
            node.shell("a", "rm", "/go")
            reach("the load ends", a=IDLE, b=BUSY)
            assert node.weight("a") < loud
        # While it is bounded: it would take the machine from all other tests.
        node.cluster.kubectl("delete", "pod", "rival", "--now")
    assert loud > 3 * quiet
    assert fast > 1.5 * slow, f"{slow} of work a second before, {fast} after"
    assert sums.looks > 5
    assert sums.highest <= cores
    for name in ("a", "b"):
        shown = found(node.cluster, name)
        (status,) = shown["status"]["containerStatuses"]
        assert (status["restartCount"], shown["status"]["qosClass"]) == (0, "Burstable")
        assert node.limit(name) == LIMIT
    _recorded(node, "b")
    node.world.kubectl("-n", "default", "delete", "lease", "fairlead-controller", check=False)
    fairlead("kube", "restore", "--kubeconfig", str(node.cluster.kubeconfig))
    assert [node.request(name) for name in ("a", "b")] == [REQUEST, REQUEST]
    assert [node.weight(name) for name in ("a", "b")] == [quiet, quiet]


def _recorded(node: Node, name: str) -> None:
    """The decision that a pod's resize names is in the agent's record, which replays."""
    note = json.loads(
        found(node.cluster, name)["metadata"]["annotations"]["fairlead.dev/cpu-resize"]
    )
    where, _, number = note["decision"].partition("/")
    assert where == NAME
    assert int(number) <= node.status()["sequence"]
    assert fairlead("replay", str(node.state / "record"))


def _metrics(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def _names(text: str) -> set[str]:
    return {line.partition("{")[0] for line in text.splitlines() if not line.startswith("#")}


def _resident_mb(pid: int) -> float:
    fields = Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()
    return int(fields[0]) / 1024
