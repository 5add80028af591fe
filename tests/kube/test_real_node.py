"""A real kubelet with containerd and runc: real pods, and nothing left behind."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.kube.dev.assets import Programs
from fairlead.kube.dev.cluster import Cluster
from fairlead.kube.dev.components import ClusterOptions
from fairlead.kube.dev.real_node import BRIDGE
from fairlead.ports.faults import PermanentFault
from tests.kube.real_nodes import busybox_image, cpu_quota_us, found, phase, pod

pytestmark = pytest.mark.component("real-node")


@pytest.fixture(scope="module")
def real(
    only_real_node: None, node_programs: Programs, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """A cluster whose one node is real."""
    folder = tmp_path_factory.mktemp("real")
    options = ClusterOptions(real_node=True, images=(busybox_image(folder),))
    with Cluster(node_programs, folder / "cluster", options) as started:
        yield started


def test_a_real_pod_runs_and_its_output_and_exit_code_are_seen(real: Cluster) -> None:
    """Through the kubelet: logs by the API server, the exit code in status."""
    real.apply([pod("talks", "sh", "-c", "echo hello; exit 3")])
    real.wait_for(lambda: phase(real, "talks") == "Failed", "end of the pod")
    (container,) = found(real, "talks")["status"]["containerStatuses"]
    assert container["state"]["terminated"]["exitCode"] == 3
    assert real.kubectl("logs", "talks") == "hello\n"


def test_a_resize_moves_the_quota_in_the_kernel(real: Cluster) -> None:
    """Without a restart; and the kubelet acknowledges it in status."""
    real.apply([pod("elastic", "sleep", "600", cpu="200m")])
    real.wait_for(lambda: phase(real, "elastic") == "Running", "running pod")
    uid = found(real, "elastic")["metadata"]["uid"]
    assert cpu_quota_us(uid) == 20_000
    resources = {"requests": {"cpu": "500m"}, "limits": {"cpu": "500m"}}
    patch = {"spec": {"containers": [{"name": "main", "resources": resources}]}}
    real.kubectl("patch", "pod", "elastic", "--subresource=resize", "-p", json.dumps(patch))
    real.wait_for(lambda: cpu_quota_us(uid) == 50_000, "quota after the resize", within_s=20)
    real.wait_for(
        lambda: (
            found(real, "elastic")["status"]["containerStatuses"][0]["resources"]["limits"]["cpu"]
            == "500m"
        ),
        "resize in status",
        within_s=20,
    )
    (container,) = found(real, "elastic")["status"]["containerStatuses"]
    assert container["restartCount"] == 0


def test_a_command_runs_in_a_container(real: Cluster) -> None:
    """`kubectl exec`, with certificates checked in both directions."""
    real.apply([pod("shell", "sleep", "600")])
    real.wait_for(lambda: phase(real, "shell") == "Running", "running pod")
    assert real.kubectl("exec", "shell", "--", "/busybox", "echo", "inside") == "inside\n"


def test_one_real_node_per_machine(real: Cluster, node_programs: Programs, tmp_path: Path) -> None:
    """A second one is refused; the first is left alone."""
    with (
        pytest.raises(PermanentFault, match="another real node runs on this machine"),
        Cluster(node_programs, tmp_path / "second", ClusterOptions(real_node=True)),
    ):
        pass
    real.check()
    assert Path(f"/sys/class/net/{BRIDGE}").exists()
