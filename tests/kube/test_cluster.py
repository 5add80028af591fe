"""A cluster for development: real, quick, closed to others, and gone when it stops."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.host.clock import wait_until
from fairlead.kube.dev import cluster as clusters
from fairlead.kube.dev.assets import Programs
from fairlead.kube.dev.cluster import Cluster, kubectl
from fairlead.kube.dev.components import ClusterOptions
from fairlead.kube.dev.pins import SOURCES
from fairlead.ports.faults import PermanentFault
from tests.kube.conftest import GPUS, NODES

ALL = {"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok"}


def alive(pids: Iterable[int]) -> list[int]:
    """Processes that are there and no zombies."""
    found = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state != "Z":
            found.append(pid)
    return found


def cpu_seconds(pid: int) -> float:
    """What a process has computed so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pod(name: str, namespace: str, *, gpus: int = 0, **annotations: str) -> dict[str, Any]:
    amounts = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    notes = {
        f"sim.fairlead.dev/{key.replace('_', '-')}": value for key, value in annotations.items()
    }
    container = {
        "name": "main",
        "image": "none",
        "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2", **amounts}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "annotations": notes},
        "spec": {"containers": [container], "restartPolicy": "Never"},
    }


def status(cluster: Cluster, namespace: str, name: str) -> dict[str, Any]:
    found = cluster.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
    return found["status"] if found else {}


def test_a_cluster_is_quick_and_leaves_nothing_behind(programs: Programs, tmp_path: Path) -> None:
    """Ready after 15 s of CPU, however busy the machine is; afterwards no process, file or port."""
    directory = tmp_path / "cluster"
    with Cluster(programs, directory, ClusterOptions(nodes=1)) as cluster:
        pids, port = cluster.pids(), cluster.port
        assert sum(map(cpu_seconds, pids.values())) < 15  # about 3
        assert set(pids) == ALL
        assert len(alive(pids.values())) == len(ALL)
    assert alive(pids.values()) == []
    assert list(tmp_path.iterdir()) == []
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.parametrize("name", ["kubernetes", "etcd", "kwok", "helm", "containerd", "runc"])
def test_programs_know_their_version(programs: Programs, name: str) -> None:
    """Those that are built: the one that go.mod pins."""
    (source,) = [each for each in SOURCES if each.name == name]
    program = {"kubernetes": "kubelet"}.get(name, name)
    if not os.access(programs.path(program), os.X_OK):
        pytest.skip(f"{program} is not built (fairlead kube assets --{source.wanted_for})")
    asked = ["version"] if name == "helm" else ["--version"]
    done = subprocess.run(
        [programs.path(program), *asked], capture_output=True, text=True, check=True
    )
    assert source.version in done.stdout


def test_kubectl_sees_the_pinned_version_and_ready_nodes(cluster: Cluster) -> None:
    """Server and client are of one version; every node has its GPUs."""
    versions = json.loads(cluster.kubectl("version", "-o", "json"))
    assert versions["serverVersion"]["gitVersion"] == "v1.35.4"
    assert versions["clientVersion"]["gitVersion"] == "v1.35.4"
    nodes = json.loads(cluster.kubectl("get", "nodes", "-o", "json"))["items"]
    assert len(nodes) == NODES
    for node in nodes:
        assert node["status"]["allocatable"]["nvidia.com/gpu"] == str(GPUS)
        kinds = {each["type"]: each["address"] for each in node["status"]["addresses"]}
        assert kinds.keys() == {"InternalIP", "Hostname"}


def test_pods_are_scheduled_and_run(cluster: Cluster, namespace: str) -> None:
    """GPUs are counted by the scheduler: what does not fit stays pending."""
    cluster.apply([pod("fits", namespace, gpus=GPUS), pod("large", namespace, gpus=GPUS + 1)])
    cluster.wait_for(
        lambda: status(cluster, namespace, "fits").get("phase") == "Running", "running pod"
    )
    found = status(cluster, namespace, "fits")
    assert found["containerStatuses"][0]["allocatedResources"]["nvidia.com/gpu"] == str(GPUS)
    assert found["hostIP"]
    assert found["podIP"]
    cluster.wait_for(
        lambda: bool(status(cluster, namespace, "large").get("conditions")), "answer to a pod"
    )
    (condition,) = status(cluster, namespace, "large")["conditions"]
    assert (condition["type"], condition["reason"]) == ("PodScheduled", "Unschedulable")


@pytest.mark.parametrize(("code", "phase"), [("0", "Succeeded"), ("3", "Failed")])
def test_a_simulated_pod_ends_as_its_annotations_say(
    cluster: Cluster, namespace: str, code: str, phase: str
) -> None:
    """After its time, with its exit code."""
    cluster.apply([pod("short", namespace, run_for="200ms", exit_code=code)])
    cluster.wait_for(lambda: status(cluster, namespace, "short").get("phase") == phase, phase)
    ended = status(cluster, namespace, "short")["containerStatuses"][0]["state"]["terminated"]
    assert ended["exitCode"] == int(code)


def test_a_simulated_pod_takes_its_time_to_stop(cluster: Cluster, namespace: str) -> None:
    """Terminating, and still there, until `stop-after` has passed."""
    cluster.apply([pod("slow", namespace, stop_after="2s")])
    cluster.wait_for(
        lambda: status(cluster, namespace, "slow").get("phase") == "Running", "running pod"
    )
    began = time.monotonic()
    cluster.kubectl("-n", namespace, "delete", "pod", "slow", "--wait=false")
    found = cluster.get(f"/api/v1/namespaces/{namespace}/pods/slow")
    assert found["metadata"]["deletionTimestamp"]
    cluster.wait_for(lambda: status(cluster, namespace, "slow") == {}, "end of the pod")
    assert time.monotonic() - began > 1.5


def test_a_resize_is_acknowledged_in_status(cluster: Cluster, namespace: str) -> None:
    """As a kubelet does: resources, allocated resources and the observed generation."""
    cluster.apply([pod("elastic", namespace)])
    cluster.wait_for(
        lambda: status(cluster, namespace, "elastic").get("phase") == "Running", "running pod"
    )
    patch = {
        "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1500m"}}}]}
    }
    resize = ("patch", "pod", "elastic", "--subresource=resize", "-p", json.dumps(patch))
    cluster.kubectl("-n", namespace, *resize)
    cluster.wait_for(
        lambda: status(cluster, namespace, "elastic").get("observedGeneration") == 2, "resize"
    )
    (container,) = status(cluster, namespace, "elastic")["containerStatuses"]
    assert container["resources"]["requests"]["cpu"] == "1500m"
    assert container["allocatedResources"]["cpu"] == "1500m"
    assert container["restartCount"] == 0


def test_rbac_denies_an_unknown_account(cluster: Cluster, programs: Programs) -> None:
    """And allows it what a role grants; an anonymous request is refused."""
    config = cluster.kubeconfig_for("stranger", ("visitors",))
    with pytest.raises(PermanentFault, match='User "stranger" cannot list resource "pods"'):
        kubectl(programs, config, "get", "pods")
    cluster.kubectl("create", "rolebinding", "visitors", "--clusterrole=view", "--group=visitors")
    assert wait_until(
        lambda: (
            kubectl(programs, config, "auth", "whoami").strip() != ""
            and not _denied(programs, config)
        ),
        within_s=10,
        every_s=0.2,
    )
    anonymous = subprocess.run(
        [
            programs.path("kubectl"),
            f"--server=https://127.0.0.1:{cluster.port}",
            f"--certificate-authority={cluster.directory / 'pki' / 'ca.crt'}",
            "--kubeconfig=/dev/null",
            "--username=nobody",
            "--password=nothing",
            "get",
            "pods",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert anonymous.returncode != 0
    cluster.kubectl("delete", "rolebinding", "visitors")


def _denied(programs: Programs, config: Path) -> bool:
    try:
        kubectl(programs, config, "get", "pods")
    except PermanentFault:
        return True
    return False


def test_only_its_owner_can_reach_a_cluster(cluster: Cluster) -> None:
    """Keys and etcd's socket are in a directory that is closed to other users."""
    assert stat.S_IMODE(cluster.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(cluster.kubeconfig.stat().st_mode) == 0o600
    listening = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    sockets = {
        os.readlink(link)
        for link in Path(f"/proc/{cluster.pids()['etcd']}/fd").iterdir()
        if os.path.islink(link)
    }
    ports = [row.split() for row in listening.splitlines() if " 0A " in row]
    assert not [row for row in ports if f"socket:[{row[9]}]" in sockets]


def test_a_process_can_be_restarted_in_place(programs: Programs, tmp_path: Path) -> None:
    """kill -9 of etcd and of the API server: objects stay, the kubeconfig stays valid."""
    with Cluster(programs, tmp_path / "cluster") as cluster:
        cluster.kubectl("create", "configmap", "kept")
        for name in ("etcd", "kube-apiserver"):
            cluster.end(name, signal.SIGKILL)
            cluster.run(name)
        path = "/api/v1/namespaces/default/configmaps/kept"
        cluster.wait_for(lambda: cluster.get(path) is not None, "object after the restart")


def test_a_supervised_scheduler_is_started_again(programs: Programs, tmp_path: Path) -> None:
    """One that ends by itself; else that is a fault, which names it."""
    with Cluster(programs, tmp_path / "a", ClusterOptions(supervised=True)) as cluster:
        before = cluster.pids()["kube-scheduler"]
        os.kill(before, signal.SIGKILL)

        def again() -> bool:
            cluster.check()
            return cluster.pids()["kube-scheduler"] != before

        assert wait_until(again, within_s=30, every_s=0.05)
        cluster.check()
        cluster.options = replace(cluster.options, supervised=False)
        os.kill(cluster.pids()["kube-scheduler"], signal.SIGKILL)
        with pytest.raises(PermanentFault, match="kube-scheduler ended with -9"):
            wait_until(lambda: bool(cluster.check()), within_s=30, every_s=0.05)


def test_a_kept_cluster_continues(programs: Programs, tmp_path: Path) -> None:
    """The next one in its directory has its objects; a second at the same time is refused."""
    directory = tmp_path / "kept"
    with Cluster(programs, directory, keep=True) as cluster:
        cluster.kubectl("create", "namespace", "mine")
        with (
            pytest.raises(PermanentFault, match="in use by another cluster"),
            Cluster(programs, directory, keep=True),
        ):
            pass
    assert directory.is_dir()
    with Cluster(programs, directory) as cluster:
        pass
    assert not directory.exists()


def test_a_port_that_was_taken_meanwhile_is_replaced(
    programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may take it between our choice and the server's start."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = [taken.getsockname()[1], clusters.free_port()]
        monkeypatch.setattr(clusters, "free_port", lambda: ports.pop(0))
        with Cluster(programs, tmp_path / "cluster") as cluster:
            assert cluster.port != taken.getsockname()[1]
            assert cluster.get("/api/v1/namespaces/default") is not None


def test_a_process_that_ends_by_itself_is_named(programs: Programs, tmp_path: Path) -> None:
    """With its last lines, and the others are ended."""
    options = ClusterOptions(api_flags=("--no-such-flag",))
    with (
        pytest.raises(PermanentFault, match=r"(?s)kube-apiserver ended with 1:.*no-such-flag"),
        Cluster(programs, tmp_path / "cluster", options),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


KILLED = """
import json, sys, time
from pathlib import Path
from fairlead.kube.dev.assets import Programs
from fairlead.kube.dev.cluster import Cluster
from fairlead.kube.dev.components import ClusterOptions
with Cluster(Programs(Path(sys.argv[1])), Path(sys.argv[2]), ClusterOptions(nodes=1)) as cluster:
    print(json.dumps(cluster.pids()), flush=True)
    time.sleep(600)
"""


def test_kill_9_of_the_parent_leaves_no_orphan(programs: Programs, tmp_path: Path) -> None:
    """The kernel ends every process; the next cluster clears what the killed one left."""
    directory = tmp_path / "cluster"
    command = [sys.executable, "-c", KILLED, str(programs.directory), str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pids = json.loads(parent.stdout.readline())
        assert set(pids) == ALL
        parent.kill()
    assert wait_until(lambda: not alive(pids.values()), within_s=10)
    with Cluster(programs, directory):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_runs_a_cluster_until_it_is_stopped(
    programs: Programs, tmp_path: Path, number: signal.Signals
) -> None:
    """`fairlead kube dev` prints the kubeconfig and how to stop; Ctrl-C ends everything."""
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    command = [sys.executable, "-m", "fairlead", "kube", "dev", "--nodes", "2", "--gpus", "4"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        assert line.startswith("export KUBECONFIG=")
        config = Path(line.strip().removeprefix("export KUBECONFIG="))
        path = process.stdout.readline().strip().removeprefix("export PATH=")
        assert str(Path(sys.executable).parent) in path.split(":"), "kubectl finds its plugins"
        assert len(kubectl(programs, config, "get", "nodes", "-o", "name").split()) == 2
        assert kubectl(programs, config, "get", "clusterrole", "fairlead-tenant", "-o", "name")
        process.send_signal(number)
        notes = process.stderr.read()
    assert process.returncode == 0, notes
    assert "Ctrl-C stops it" in notes
    assert not config.parent.exists()
