"""A real node of a development cluster: kubelet, containerd and runc, as root, on this machine.

Real pods in real cgroups. The node has mounts and processes of its own, so that nothing of it
outlives its first process; outside it makes one bridge and one cgroup per hierarchy, which `remove`
takes away, or the next start after a kill. One real node per machine.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairlead.host import files
from fairlead.host.clock import wait_until
from fairlead.kube.certificates import Authority
from fairlead.kube.dev.assets import Programs
from fairlead.kube.dev.images import write_image
from fairlead.ports.faults import PermanentFault, faults

NAME, BRIDGE, ADDRESS, NETWORK = "real", "flkube0", "10.245.0.1", "10.245.0.0/24"
CGROUP = "fairlead-kube"
"""The pods' cgroups are below /fairlead-kube/kubepods."""
LABEL = "fairlead.dev/real-node"
PAUSE = "fairlead.dev/pause:dev"
LOCK = Path("/run/fairlead-kube-node.lock")
SOCKETS = Path("/run/fairlead-kube")
"""Beside the cluster's directory, whose path may be longer than a socket's name can be."""
_SOCKET = SOCKETS / "containerd.sock"
REMOVE_S = 10.0
_HIDDEN = (Path("/run"), Path("/var/run"), Path("/var/lib"), Path("/proc"), Path("/sys"))
_UNUSED_PLUGINS = (
    *(f"io.containerd.snapshotter.v1.{name}" for name in ("btrfs", "devmapper", "zfs", "erofs")),
    "io.containerd.nri.v1.nri",
)


class RealNode:
    """Files and commands of the node; `cluster` runs and ends its first process."""

    def __init__(self, programs: Programs, directory: Path, images: Sequence[Path] = ()) -> None:
        self.programs, self.directory = programs, directory
        self._images, self._lock = images, -1

    def prepare(self, authority: Authority, kubeconfig: Path, *, tainted: bool) -> list[str]:
        """Everything up to the command that runs the node."""
        self._refuse()
        with faults("prepare the real node"):
            descriptor = files.try_lock(LOCK)
            if descriptor is None:
                raise PermanentFault("another real node runs on this machine")
            self._lock = descriptor
            self._clear()
            self.directory.mkdir(exist_ok=True)
            SOCKETS.mkdir(mode=0o700)
            for folder in ("cni", "images", "pod-logs"):
                (self.directory / folder).mkdir(exist_ok=True)
        pair = authority.server(NAME, (NAME,), (ADDRESS,))
        authority.write("kubelet", pair)
        self._write_configuration(authority.folder, tainted=tainted)
        with faults("prepare the real node"):
            _bridge()
            _make_cgroups()
        spec = self.directory / "spec.json"
        files.replace_json(spec, self._spec(kubeconfig), durable=False)
        isolated = ("--mount", "--pid", "--fork", "--kill-child=SIGKILL")
        unshare = str(shutil.which("unshare"))
        return [unshare, *isolated, sys.executable, "-m", "fairlead.kube.dev.node_init", str(spec)]

    def remove(self) -> None:
        """What the node made outside its namespaces; its processes have ended."""
        if self._lock < 0:
            return
        self._clear()
        os.close(self._lock)
        LOCK.unlink(missing_ok=True)
        self._lock = -1

    def ctr(self, *arguments: str) -> list[str]:
        """A command of containerd's own client."""
        return [self.programs.path("ctr"), "-a", str(_SOCKET), "-n", "k8s.io", *arguments]

    def import_image(self, archive: Path) -> None:
        """Make an image known to the running node."""
        command = self.ctr("images", "import", "--local", str(archive))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise PermanentFault(f"cannot import {archive}: {done.stderr.strip()}")

    def _refuse(self) -> None:
        if os.geteuid() != 0:
            raise PermanentFault("a real node needs root: mounts, cgroups and a bridge")
        for program in ("unshare", "ip", "mount"):
            if shutil.which(program) is None:
                raise PermanentFault(f"{program} is missing (apt-get install util-linux iproute2)")
        for path in (self.directory, self.programs.directory, Path(sys.prefix)):
            for hidden in _HIDDEN:
                if path.resolve().is_relative_to(hidden):
                    raise PermanentFault(f"{path} may not be below {hidden}: the node hides that")

    def _clear(self) -> None:
        subprocess.run(["ip", "link", "del", BRIDGE], capture_output=True, check=False)
        if not wait_until(_no_cgroups, within_s=REMOVE_S, every_s=0.05):
            raise PermanentFault(f"a cgroup {CGROUP} still has processes")
        for folder in (self.directory, SOCKETS):
            shutil.rmtree(folder, ignore_errors=True)

    def _spec(self, kubeconfig: Path) -> dict[str, Any]:
        pause = self.directory / "images" / "pause.tar"
        write_image(
            pause,
            PAUSE,
            entrypoint=["/pause"],
            programs={"pause": self.programs.directory / "pause"},
        )
        kubelet = [
            self.programs.path("kubelet"),
            f"--config={self.directory / 'kubelet.json'}",
            f"--kubeconfig={kubeconfig}",
            f"--hostname-override={NAME}",
            f"--node-ip={ADDRESS}",
            f"--node-labels={LABEL}=true",
        ]
        return {
            "directory": str(self.directory),
            "sockets": str(SOCKETS),
            "programs": str(self.programs.directory),
            "log": str(self.directory.parent / "log"),
            "images": [str(pause), *map(str, self._images)],
            "containerd": [
                self.programs.path("containerd"),
                "-c",
                str(self.directory / "containerd.toml"),
            ],
            "ctr": self.ctr()[:3],
            "kubelet": kubelet,
        }

    def _write_configuration(self, pki: Path, *, tainted: bool) -> None:
        (self.directory / "resolv.conf").write_text("nameserver 127.0.0.1\n")
        (self.directory / "containerd.toml").write_text(self._containerd())
        files.replace_json(
            self.directory / "kubelet.json", self._kubelet(pki, tainted=tainted), durable=False
        )
        files.replace_json(self.directory / "cni" / "10-bridge.conflist", _cni(), durable=False)

    def _containerd(self) -> str:
        # Overlay on overlay does not work: inside a container the layers are copied instead.
        snapshotter = "native" if _file_system(self.directory) == "overlay" else "overlayfs"
        unused = ", ".join(f'"{name}"' for name in _UNUSED_PLUGINS)
        images = 'plugins."io.containerd.cri.v1.images"'
        runtime = 'plugins."io.containerd.cri.v1.runtime"'
        return f"""version = 3
root = "{self.directory / "containerd"}"
state = "/run/containerd"
disabled_plugins = [{unused}]
[grpc]
  address = "{_SOCKET}"
[{images}]
  snapshotter = "{snapshotter}"
[{images}.pinned_images]
  sandbox = "{PAUSE}"
[{runtime}]
  disable_apparmor = true
  restrict_oom_score_adj = true
[{runtime}.cni]
  bin_dirs = ["{self.programs.directory}"]
  conf_dir = "{self.directory / "cni"}"
[{runtime}.containerd]
  default_runtime_name = "runc"
[{runtime}.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[{runtime}.containerd.runtimes.runc.options]
  BinaryName = "{self.programs.path("runc")}"
  SystemdCgroup = false
"""

    def _kubelet(self, pki: Path, *, tainted: bool) -> dict[str, Any]:
        taint = {"key": LABEL, "value": "true", "effect": "NoSchedule"}
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": False,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{CGROUP}",
            "containerRuntimeEndpoint": f"unix://{_SOCKET}",
            "address": ADDRESS,
            "healthzPort": 0,
            "readOnlyPort": 0,
            "tlsCertFile": str(pki / "kubelet.crt"),
            "tlsPrivateKeyFile": str(pki / "kubelet.key"),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(pki / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "enforceNodeAllocatable": ["pods"],
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": "1%",
                "imagefs.available": "1%",
            },
            "podLogsDir": str(self.directory / "pod-logs"),
            "resolvConf": str(self.directory / "resolv.conf"),
            "clusterDomain": "cluster.local",
            "registerWithTaints": [taint] if tainted else [],
        }


def _cni() -> dict[str, Any]:
    addresses = {
        "type": "host-local",
        "dataDir": "/run/cni",
        "ranges": [[{"subnet": NETWORK, "gateway": ADDRESS}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    plugin = {"type": "bridge", "bridge": BRIDGE, "isGateway": True, "ipam": addresses}
    return {"cniVersion": "1.0.0", "name": "fairlead", "plugins": [plugin]}


def _bridge() -> None:
    """A node's address may not be loopback: this bridge carries it, and its pods."""
    for arguments in (
        ("link", "add", BRIDGE, "type", "bridge"),
        ("addr", "add", f"{ADDRESS}/24", "dev", BRIDGE),
        ("link", "set", BRIDGE, "up"),
    ):
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            raise PermanentFault(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def _hierarchies() -> list[Path]:
    """Mount points of cgroup hierarchies, v1 and v2; hybrid machines have both."""
    rows = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return list(dict.fromkeys(Path(row[1]) for row in rows if row[2] in ("cgroup", "cgroup2")))


def _make_cgroups() -> None:
    """The kubelet wants its root to exist; a cpuset of v1 begins empty and admits no process."""
    for root in _hierarchies():
        (root / CGROUP).mkdir(exist_ok=True)
        for name in ("cpuset.mems", "cpuset.cpus"):
            with contextlib.suppress(FileNotFoundError):
                (root / CGROUP / name).write_text((root / name).read_text())


def _no_cgroups() -> bool:
    """Whether none of ours is left; those that are empty go."""
    left = [root / CGROUP for root in _hierarchies() if (root / CGROUP).exists()]
    for path in left:
        _remove_tree(path)
    return not left


def _remove_tree(root: Path) -> None:
    for folder, _, _ in os.walk(root, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def _file_system(path: Path) -> str:
    """The type of the file system that holds a path."""
    rows = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    holding = [row for row in rows if path.resolve().is_relative_to(row[1])]
    return max(holding, key=lambda row: len(row[1]))[2] if holding else ""
