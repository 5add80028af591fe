"""The image and the chart on a real node, as users deploy them: the controller is a pod."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.host.process import free_port
from fairlead.kube.dev.assets import Programs
from fairlead.kube.dev.cluster import Cluster
from fairlead.kube.dev.components import ClusterOptions
from fairlead.kube.dev.real_node import CGROUP, NAME
from tests.kube import charts
from tests.kube.container_image import REFERENCE, build
from tests.kube.real_nodes import BUSYBOX, busybox_image
from tests.kube.world import Document, World, run, team, until

pytestmark = [
    pytest.mark.component("real-node"),
    pytest.mark.component("helm"),
    pytest.mark.component("image"),
    pytest.mark.usefixtures("only_real_node"),
    pytest.mark.timeout(900),  # a cold build takes minutes
]
WITHIN_S = 120.0
GPUS = 2


@pytest.fixture(scope="module")
def cluster(node_programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A real node with a disk for the ledger, and as many GPUs as it says."""
    folder = tmp_path_factory.mktemp("chart")
    archive = build()
    options = ClusterOptions(real_node=True, images=(busybox_image(folder),))
    with Cluster(node_programs, folder / "cluster", options) as started:
        started.real_node.import_image(archive)
        (folder / "disk").mkdir()
        started.apply([disk(folder / "disk")])
        patch = [{"op": "add", "path": "/status/capacity/nvidia.com~1gpu", "value": str(GPUS)}]
        flags = ("--subresource=status", "--type=json", "-p", json.dumps(patch))
        started.kubectl("patch", "node", NAME, *flags)
        started.kubectl("label", "node", NAME, "fairlead.dev/flavor=H100")
        yield started


def disk(path: Path) -> Document:
    term = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NAME]}
    only = {"required": {"nodeSelectorTerms": [{"matchExpressions": [term]}]}}
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}
    spec |= {"storageClassName": "disk", "local": {"path": str(path)}, "nodeAffinity": only}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "disk"},
        "spec": spec,
    }


def install(cluster: Cluster, folder: Path) -> None:
    repository, _, tag = REFERENCE.partition(":")
    charts.install(
        cluster,
        image_repository=repository,
        image_tag=tag,
        image_pullPolicy="Never",
        api_port=free_port(),
        controller_hostNetwork=True,
        controller_resolver="enforce",
        kubernetes_host="127.0.0.1",
        kubernetes_port=cluster.port,
        ledger_storage_className="disk",
        ledger_storage_size="1Gi",
        admissionPolicy_enabled=True,
        cpu_enabled=True,
        cpu_hostNetwork=True,
        cpu_cgroupRoot=CGROUP,
        cpu_stateDirectory=str(folder / "state"),
        cpu_config={"clear_ms": 1000, "guardrails": {"cooldown_ms": 0, "grace_ms": 0}},
    )


def ready(cluster: Cluster, what: str) -> None:
    flags = ("rollout", "status", what, f"--timeout={WITHIN_S:.0f}s")
    try:
        cluster.kubectl("-n", charts.NAMESPACE, *flags)
    except Exception as error:
        shown = cluster.kubectl("-n", charts.NAMESPACE, "describe", "pods")
        logs = cluster.kubectl("-n", charts.NAMESPACE, "logs", what, "--tail=20")
        raise AssertionError(f"{error}\n{shown}\n{logs}") from error


def leader(cluster: Cluster) -> str:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{charts.NAMESPACE}/leases/{charts.CONTROLLER}"
    found = cluster.get(path)
    return "" if found is None else str(found["spec"]["holderIdentity"])


def test_the_chart_runs_a_run_on_a_real_node(cluster: Cluster, tmp_path: Path) -> None:
    """The pods start without root and with nothing writable but their volumes; the controller
    leads, a Run completes, and a controller that is started again continues its ledger."""
    install(cluster, tmp_path)
    for what in ("deployment/fairlead-controller", "daemonset/fairlead-node"):
        ready(cluster, what)
    world = World(cluster, tmp_path)
    until(lambda: leader(cluster), "the controller leads", WITHIN_S)
    world.apply(*team("team-a", gpus=GPUS))
    container = {"name": "main", "image": BUSYBOX, "args": ["echo", "done"]}
    template = {"spec": {"containers": [container]}}
    world.apply(run("first", GPUS, template=template))
    until(lambda: world.phase("first") == "Completed", "the Run is completed", WITHIN_S)
    assert world.kubectl("-n", "team-a", "logs", "first-0") == "done\n"

    inside = ("-n", charts.NAMESPACE, "exec", "deployment/fairlead-controller", "--")
    assert cluster.kubectl(*inside, "id", "-u").strip() == "65532"
    bundle = cluster.kubectl(
        *("-n", charts.NAMESPACE, "get", "configmap", "fairlead-controller-ca"),
        *("-o", "jsonpath={.data.ca\\.crt}"),
    )
    assert "BEGIN CERTIFICATE" in bundle  # and the kubelet's probes succeeded by it
    said = world.kubectl(*inside, "touch", "/opt/fairlead/x", check=False)
    assert "Read-only file system" in said

    # The agent of the node asks for limits, and the controller sets them.
    resources = {"limits": {"cpu": "500m"}, "requests": {"cpu": "50m"}}
    idle = {"name": "main", "image": BUSYBOX, "args": ["sleep", "600"], "resources": resources}
    meta = {"name": "idle", "namespace": "team-a"}
    spec = {"containers": [idle], "terminationGracePeriodSeconds": 1}
    world.apply({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})

    def limited() -> bool:
        (row,) = world.get("pod", "idle", "team-a")["spec"]["containers"]
        return bool(row["resources"]["limits"]["cpu"] != "500m")

    until(limited, "the idle pod has another limit", WITHIN_S)

    charts.follow(cluster, "backup", folder=tmp_path)  # and the copy is verified
    assert (tmp_path / "keys" / "chance.key").exists()

    before = leader(cluster)
    restart = ("rollout", "restart", "deployment/fairlead-controller")
    cluster.kubectl("-n", charts.NAMESPACE, *restart)
    ready(cluster, "deployment/fairlead-controller")
    until(lambda: leader(cluster) not in ("", before), "the next controller leads", WITHIN_S)
    world.apply(run("second", 1, template=template))
    until(lambda: world.phase("second") == "Completed", "and goes on", WITHIN_S)
