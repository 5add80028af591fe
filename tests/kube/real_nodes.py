"""What a real node needs of this machine, and its cgroups, for tests marked `real-node`."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fairlead.kube.dev.assets import explain_missing
from fairlead.kube.dev.cluster import Cluster
from fairlead.kube.dev.images import write_image
from fairlead.kube.dev.pins import AssetSet
from fairlead.kube.dev.real_node import CGROUP

BUSYBOX = "fairlead.dev/busybox:test"


def missing_real_node() -> str | None:
    """What is missing, and how to get it; None when a real node can run here."""
    if os.geteuid() != 0:
        return "a real node needs root"
    if not os.access("/sys/fs/cgroup", os.W_OK):
        return "a real node needs writable cgroups"
    return missing_busybox() or explain_missing(frozenset({AssetSet.NODE}))


def missing_busybox() -> str | None:
    """A static one, which runs in an empty image."""
    found = shutil.which("busybox")
    if found is None or b"/ld-linux" in Path(found).read_bytes():
        return "a static busybox is missing (apt-get install busybox-static)"
    return None


def busybox_image(folder: Path) -> Path:
    """An image with busybox alone; its entry point takes an applet's name."""
    found = shutil.which("busybox")
    assert found is not None
    target = folder / "busybox.tar"
    write_image(target, BUSYBOX, entrypoint=["/busybox"], programs={"busybox": Path(found)})
    return target


def cgroups() -> Iterator[Path]:
    """Every cgroup that a real node has made."""
    for pattern in (f"*/{CGROUP}", CGROUP):
        for root in Path("/sys/fs/cgroup").glob(pattern):
            yield from (Path(folder) for folder, _, _ in os.walk(root))


def cpu_quota_us(pod_uid: str) -> int | None:
    """The quota of a pod, from the kernel: v1 or v2; None without one."""
    for folder in cgroups():
        if folder.name != f"pod{pod_uid}":
            continue
        if (folder / "cpu.cfs_quota_us").exists():
            return int((folder / "cpu.cfs_quota_us").read_text())
        if (folder / "cpu.max").exists():
            quota = (folder / "cpu.max").read_text().split()[0]
            return -1 if quota == "max" else int(quota)
    return None


def pod(name: str, *command: str, **limits: str) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": BUSYBOX,
        "args": list(command),
        "resources": {"limits": limits, "requests": {}},
    }
    spec = {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 1}
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def found(cluster: Cluster, name: str) -> dict[str, Any]:
    document = cluster.get(f"/api/v1/namespaces/default/pods/{name}") or {}
    assert isinstance(document, dict)
    return document


def phase(cluster: Cluster, name: str) -> str | None:
    status = found(cluster, name).get("status", {})
    return str(status.get("phase")) if status else None
