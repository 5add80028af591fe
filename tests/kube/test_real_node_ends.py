"""A real node takes everything with it when it ends, however it ends."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fairlead.host.clock import wait_until
from fairlead.kube.dev.assets import Programs
from fairlead.kube.dev.cluster import Cluster, apply, kubectl
from fairlead.kube.dev.components import ClusterOptions
from fairlead.kube.dev.node_init import SYSCTLS
from fairlead.kube.dev.real_node import BRIDGE, LOCK, SOCKETS
from tests.kube.real_nodes import busybox_image, cgroups, phase, pod

pytestmark = [pytest.mark.component("real-node"), pytest.mark.usefixtures("only_real_node")]


# Where the node mounts something, in a namespace of its own.
MOUNTS = ("/run", "/var/lib", "/proc")


def outside() -> dict[str, Any]:
    """What a real node could change for the rest of the machine."""
    mounts = [line.split()[:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    return {
        "sysctls": {name: Path(f"/proc/sys/{name}").read_text() for name in SYSCTLS},
        "bridge": Path(f"/sys/class/net/{BRIDGE}").exists(),
        "mounts": [row for row in mounts if row[1].startswith(MOUNTS) or "cluster/" in row[1]],
        "cgroups": list(cgroups()),
        "lock": LOCK.exists(),
        "sockets": SOCKETS.exists(),
        "kubelet": Path("/var/lib/kubelet").exists(),
    }


KILLED = """
import json, sys, time
from pathlib import Path
from fairlead.kube.dev.assets import Programs
from fairlead.kube.dev.cluster import Cluster, apply, kubectl
from fairlead.kube.dev.components import ClusterOptions
programs, directory, image = map(Path, sys.argv[1:])
with Cluster(Programs(programs), directory, ClusterOptions(real_node=True, images=(image,))) as up:
    sys.stdin.readline()
    print(json.dumps(up.pids()), flush=True)
    time.sleep(600)
"""


def processes_with(text: str) -> list[int]:
    """Processes whose command line holds this text."""
    rows = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if text in line:
            rows.append(int(path.parent.name))
    return rows


def test_nothing_is_left_behind(node_programs: Programs, tmp_path: Path) -> None:
    """No process, mount, cgroup, bridge, file, and no sysctl of the machine is changed.

    In a directory whose path is longer than the name of a socket may be.
    """
    image = busybox_image(tmp_path)
    directory = tmp_path / ("long-" * 20 + "cluster")
    before = outside()
    options = ClusterOptions(real_node=True, images=(image,))
    with Cluster(node_programs, directory, options) as cluster:
        cluster.apply([pod("stays", "sleep", "600")])
        cluster.wait_for(lambda: phase(cluster, "stays") == "Running", "running pod")
        during = outside()
    assert during["sysctls"] == before["sysctls"]
    assert during["mounts"] == before["mounts"]
    assert during["cgroups"]
    assert during["bridge"]
    assert outside() == before
    assert processes_with(str(tmp_path)) == []
    assert [path.name for path in tmp_path.iterdir()] == ["busybox.tar"]


def test_kill_9_ends_every_process_of_the_node(node_programs: Programs, tmp_path: Path) -> None:
    """Containers included; the next real node removes what is left."""
    image, directory = busybox_image(tmp_path), tmp_path / "cluster"
    before = outside()
    command = [sys.executable, "-c", KILLED, str(node_programs.directory)]
    with subprocess.Popen(
        [*command, str(directory), str(image)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdin.write("\n")
        parent.stdin.flush()
        assert "node" in json.loads(parent.stdout.readline())
        assert processes_with(f"{directory}/node")
        parent.send_signal(signal.SIGKILL)
    assert wait_until(lambda: processes_with(str(directory)) == [], within_s=20)
    options = ClusterOptions(real_node=True)
    with Cluster(node_programs, directory, options):
        pass
    assert outside() == before


def test_the_command_adds_a_real_node_and_its_agent(
    node_programs: Programs, tmp_path: Path
) -> None:
    """`fairlead kube dev --real-node`: an image is imported as the page says, a pod runs as a
    process of this machine, and its CPU limit is governed. Ctrl-C ends everything."""
    before, image = outside(), busybox_image(tmp_path)
    command = [sys.executable, "-m", "fairlead", "kube", "dev", "--nodes", "0", "--real-node"]
    command += ["--dir", str(tmp_path / "cluster")]
    log = (tmp_path / "log").open("w+")
    with log, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("export KUBECONFIG="), (tmp_path / "log").read_text()
            _is_governed(
                node_programs, Path(line.strip().removeprefix("export KUBECONFIG=")), image
            )
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)
        log.seek(0)
        assert process.returncode == 0, log.read()
    assert outside() == before


def _is_governed(programs: Programs, config: Path, image: Path) -> None:
    """A pod of the image is a process, and soon has another limit."""
    ctr = [programs.path("ctr"), "-a", str(SOCKETS / "containerd.sock"), "-n", "k8s.io"]
    subprocess.run([*ctr, "images", "import", str(image)], check=True, capture_output=True)
    idle = pod("idle", "sleep", "600", cpu="500m")
    idle["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "50m"}
    apply(programs, config, [idle])

    def limit() -> str:
        path = "jsonpath={.status.containerStatuses[0].resources.limits.cpu}"
        return kubectl(programs, config, "get", "pod", "idle", "-o", path)

    assert wait_until(lambda: limit() not in ("", "500m"), within_s=90), limit()
    assert processes_with("sleep 600"), "it is a process of this machine"
