"""A real kubelet with containerd and runc: real pods, and nothing left behind."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from fairlead.kube.dev.assets import Programs
from fairlead.kube.dev.cluster import Cluster
from fairlead.kube.dev.components import ClusterOptions
from fairlead.kube.dev.real_node import BRIDGE
from fairlead.kube.kinds import crds
from fairlead.ports.faults import PermanentFault
from tests.kube.plugins import tenant
from tests.kube.real_nodes import BUSYBOX, busybox_image, cpu_quota_us, found, phase, pod
from tests.kube.world import World, run, team, until

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


def test_kubectl_runs_prints_the_output_of_a_rank(real: Cluster, tmp_path: Path) -> None:
    """By a tenant; also of the container before a restart, and of one that does not exist."""
    world = World(real, tmp_path)
    real.apply(crds())
    real.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
    two = {"nvidia.com/gpu": "2"}
    patch = json.dumps({"status": {"capacity": two, "allocatable": two}})
    real.kubectl("patch", "node", "real", "--subresource=status", "--type=merge", "-p", patch)
    real.kubectl("label", "node", "real", "fairlead.dev/flavor=H100", "--overwrite")
    world.apply(*team("team-a"))
    ana = tenant(world, tmp_path, "team-a")

    def container(name: str, script: str) -> dict[str, object]:
        mount = [{"name": "keep", "mountPath": "/keep"}]
        args = ["sh", "-c", f"echo {name} of $HOSTNAME; {script}"]
        return {"name": name, "image": BUSYBOX, "args": args, "volumeMounts": mount}

    once = "test -e /keep/seen && exec sleep 600; : > /keep/seen; exit 1"
    template = {
        "spec": {
            "initContainers": [{**container("side", once), "restartPolicy": "Always"}],
            "containers": [container("main", "exec sleep 600")],
            "volumes": [{"name": "keep", "emptyDir": {}}],
        }
    }
    with world.controlled():
        given = yaml.safe_dump(run("train", 2, template=template))
        ana.runs("submit", "-f", "-", given=given)

        def restarted() -> bool:
            rows = json.loads(ana.runs("pods", "train", "-o", "json").out)
            return bool(rows) and rows[0]["restarts"] == 1 and rows[0]["phase"] == "Running"

        until(restarted, "the container restarted", within_s=60)
        for words in ((), ("--rank", "0", "--tail", "1"), ("-c", "main")):
            assert ana.runs("logs", "train", *words).out == "main of train-0\n"
        assert ana.runs("logs", "train", "-c", "side", "--previous").out == "side of train-0\n"
        assert "previous" in ana.runs("logs", "train", "--previous", code=2).err
        assert "no pod of rank 7" in ana.runs("logs", "train", "--rank", "7", code=2).err
        assert "no-such" in ana.runs("logs", "train", "-c", "no-such", code=2).err
        ana.fairlead("cancel", "train")
        world.reach("train", "Failed")
