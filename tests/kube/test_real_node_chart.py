"""The image and the chart on a real node, as users deploy them: the controller is a pod."""

import json
import os
import select
import shutil
import signal
import socket
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest

from fairlead.host.process import free_port
from fairlead.kube.dev.assets import Programs
from fairlead.kube.dev.cluster import Cluster
from fairlead.kube.dev.components import SERVICE_ADDRESS, ClusterOptions
from fairlead.kube.dev.real_node import BRIDGE, CGROUP, NAME
from fairlead.ledger.place import open_for_reading
from tests.kube import charts
from tests.kube.container_image import REFERENCE, build
from tests.kube.real_nodes import BUSYBOX, busybox_image
from tests.kube.world import Document, World, run, team, until
from tests.ledger.postgres_server import server

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
        for name in ("disk", "shared"):
            (folder / name).mkdir()
        started.apply([disk(folder / "disk"), disk(folder / "shared", "ReadWriteMany")])
        patch = [{"op": "add", "path": "/status/capacity/nvidia.com~1gpu", "value": str(GPUS)}]
        flags = ("--subresource=status", "--type=json", "-p", json.dumps(patch))
        started.kubectl("patch", "node", NAME, *flags)
        started.kubectl("label", "node", NAME, "fairlead.dev/flavor=H100")
        yield started


def disk(path: Path, mode: str = "ReadWriteOnce") -> Document:
    term = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NAME]}
    only = {"required": {"nodeSelectorTerms": [{"matchExpressions": [term]}]}}
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": [mode]}
    spec |= {"storageClassName": path.name, "local": {"path": str(path)}, "nodeAffinity": only}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": path.name},
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


def test_a_lost_volume_is_restored_by_the_page(cluster: Cluster, tmp_path: Path) -> None:
    """After the test above. A Run goes on in its pod while the ledger is lost and restored."""
    world = World(cluster, tmp_path)
    sleeping = {"name": "main", "image": BUSYBOX, "args": ["sleep", "600"]}
    spec = {"containers": [sleeping]}
    world.apply(run("kept", 1, template={"spec": spec}, checkpointGrace="1s"))
    until(lambda: world.phase("kept") == "Running", "it runs", WITHIN_S)
    until(
        lambda: world.get("pod", "kept-0", "team-a")["status"]["phase"] == "Running",
        "its pod does",
        WITHIN_S,
    )
    pod = world.get("pod", "kept-0", "team-a")
    charts.follow(cluster, "backup", folder=tmp_path)
    charts.follow(cluster, "restore, stop")
    path = cluster.get("/api/v1/persistentvolumes/disk")["spec"]["local"]["path"]
    shutil.rmtree(Path(path) / "controller")
    charts.follow(cluster, "restore", folder=tmp_path)

    inside = ("-n", charts.NAMESPACE, "exec", "deployment/fairlead-controller", "--")
    place = "/var/lib/fairlead/controller/ledger.db"
    assert cluster.kubectl(*inside, "fairlead", "audit", "verify", "--ledger", place)
    template = {"spec": {"containers": [{"name": "main", "image": BUSYBOX, "args": ["true"]}]}}
    world.apply(run("after", 1, template=template))
    until(lambda: world.phase("after") == "Completed", "the controller goes on", WITHIN_S)
    now = world.get("pod", "kept-0", "team-a")
    assert (now["metadata"]["uid"], now["status"]["phase"]) == (pod["metadata"]["uid"], "Running")
    assert now["status"]["containerStatuses"][0]["restartCount"] == 0
    assert world.phase("kept") == "Running"
    # A new ledger, as that of the next test, would start them anew.
    world.kubectl("-n", "team-a", "delete", "run", "--all", "--timeout=60s")


@contextmanager
def forwarded(address: tuple[str, int], port: int) -> Iterator[None]:
    """Connections to an address of the node reach a port of this machine's loopback."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection(("127.0.0.1", port)) as inner:
                ends = {self.request: inner, inner: self.request}
                while True:
                    for ready in select.select(list(ends), [], [])[0]:
                        data = ready.recv(65_536)
                        if not data:
                            return
                        ends[ready].sendall(data)

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """An end was cut off, as ends are."""

    with Server(address, Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()


@pytest.fixture
def service_address() -> Iterator[str]:
    """The address of the Service `kubernetes`, as kube-proxy would have pods reach it."""
    own = ("addr", "add", f"{SERVICE_ADDRESS}/32", "dev", BRIDGE)
    subprocess.run(["ip", *own], check=True)
    yield SERVICE_ADDRESS
    subprocess.run(["ip", "addr", "del", *own[2:]], check=True)


def process_of(pod: str) -> int:
    """The controller in a pod, by its number on this machine."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            env = (folder / "environ").read_bytes().split(b"\0")
            command = (folder / "cmdline").read_bytes()
            if f"HOSTNAME={pod}".encode() in env and b"controller" in command:
                return int(folder.name)
    raise AssertionError(f"{pod} has no controller")


@pytest.mark.component("postgres")
def test_a_killed_leader_is_replaced_by_the_other_replica(
    cluster: Cluster, tmp_path: Path, service_address: str
) -> None:
    """Two replicas on PostgreSQL, in pods with addresses of their own; the ledger stays whole."""
    charts.uninstall(cluster)
    cluster.kubectl("-n", charts.NAMESPACE, "delete", "lease", charts.CONTROLLER)
    cluster.kubectl("-n", charts.NAMESPACE, "delete", "pvc", "fairlead-ledger", "--timeout=60s")
    world, repository = World(cluster, tmp_path), REFERENCE.partition(":")
    with server() as database, ExitStack() as opened:
        port = int(database.rpartition(":")[2].partition("/")[0])
        opened.enter_context(forwarded((service_address, 443), cluster.port))
        opened.enter_context(forwarded((service_address, 5432), port))
        seen = database.replace(f"127.0.0.1:{port}", f"{service_address}:5432")
        secret = ("create", "secret", "generic", "ledger", f"--from-literal=url={seen}")
        cluster.kubectl("-n", charts.NAMESPACE, *secret)
        charts.install(
            cluster,
            image_repository=repository[0],
            image_tag=repository[2],
            image_pullPolicy="Never",
            controller_replicas=2,
            ledger_postgres_secretName="ledger",
            ledger_storage_className="shared",
            ledger_storage_accessMode="ReadWriteMany",
            ledger_storage_size="1Gi",
        )
        ready(cluster, "deployment/fairlead-controller")
        before = until(lambda: leader(cluster), "one of them leads", WITHIN_S)
        container = {"name": "main", "image": BUSYBOX, "args": ["true"]}
        template = {"spec": {"containers": [container]}}
        world.apply(run("third", 1, template=template))
        until(lambda: world.phase("third") == "Completed", "a Run completes", WITHIN_S)
        os.kill(process_of(before.rpartition("-")[0]), signal.SIGKILL)
        after = until(
            lambda: (found := leader(cluster)) not in ("", before) and found, "led on", WITHIN_S
        )
        assert after.rpartition("-")[0] != before.rpartition("-")[0], "it is the other pod"
        world.apply(run("fourth", 1, template=template))
        until(lambda: world.phase("fourth") == "Completed", "the other one goes on", WITHIN_S)
        charts.uninstall(cluster)
        with closing(open_for_reading(database)) as reader:
            assert reader.verify().ok
            kinds = [entry.kind for entry in reader.entries(0, 10_000)]
        assert kinds.count("lease.open") == kinds.count("lease.close") == 2
