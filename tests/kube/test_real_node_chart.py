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
from typing import Any

import pytest

from fairlead.host.process import free_port
from fairlead.kube.cpu.pods import millicores
from fairlead.kube.dev.assets import Programs
from fairlead.kube.dev.cluster import Cluster
from fairlead.kube.dev.components import SERVICE_ADDRESS, ClusterOptions
from fairlead.kube.dev.real_node import ADDRESS, BRIDGE, CGROUP, NAME
from fairlead.ledger.place import open_for_reading
from fairlead.ports.dataplane import Backend
from fairlead.ports.faults import PermanentFault
from tests.dataplane.ebpf.places import Place, own_cgroup
from tests.kube import charts
from tests.kube.container_image import REFERENCE, build
from tests.kube.monitors import endpoints, scrape_job
from tests.kube.network_policy import enforced
from tests.kube.real_nodes import BUSYBOX, busybox_image
from tests.kube.traffic_world import TrafficWorld, route_group, service
from tests.kube.world import Document, World, run, team, until
from tests.ledger.postgres_server import server
from tests.monitoring.prometheus import Prometheus

pytestmark = [
    pytest.mark.component("real-node"),
    pytest.mark.component("helm"),
    pytest.mark.component("image"),
    pytest.mark.usefixtures("only_real_node"),
    pytest.mark.timeout(900),  # a cold build takes minutes
]
WITHIN_S = 120.0
PINS = "/sys/fs/bpf"
GPUS = 2
OTHER_PORT = 9999


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


def values(cluster: Cluster) -> dict[str, Any]:
    """All in the node's network."""
    repository, _, tag = REFERENCE.partition(":")
    return {
        "image_repository": repository,
        "image_tag": tag,
        "image_pullPolicy": "Never",
        "controller_hostNetwork": True,
        "controller_resolver": "enforce",
        "kubernetes_host": "127.0.0.1",
        "kubernetes_port": cluster.port,
        "ledger_storage_className": "disk",
        "ledger_storage_size": "1Gi",
        "admissionPolicy_enabled": True,
        "cpu_enabled": True,
        "cpu_hostNetwork": True,
        "cpu_cgroupRoot": CGROUP,
        "cpu_config": {"clear_ms": 1000, "guardrails": {"cooldown_ms": 0, "grace_ms": 0}},
    }


def install(cluster: Cluster, folder: Path) -> None:
    state = str(folder / "state")
    charts.install(cluster, api_port=free_port(), cpu_stateDirectory=state, **values(cluster))


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
    sleeping = ["sh", "-c", "trap 'exit 0' TERM; sleep 600 & wait"]  # it ends at once when asked to
    spec = {"containers": [{"name": "main", "image": BUSYBOX, "args": sleeping}]}
    world.apply(run("kept", 1, template={"spec": spec}))
    until(lambda: world.phase("kept") == "Running", "it runs", WITHIN_S)
    until(lambda: "kept-0" in world.names("pod"), "its pod is made", WITHIN_S)
    until(
        lambda: world.get("pod", "kept-0", "team-a")["status"]["phase"] == "Running",
        "its pod runs",
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


@pytest.mark.component("prometheus")
def test_prometheus_scrapes_what_the_monitors_of_the_chart_find(
    cluster: Cluster, tmp_path: Path
) -> None:
    """After the tests above. A Prometheus with the jobs that the operator makes of the chart's
    monitors finds one controller and one node agent, trusts the certificate, and is let in by the
    role of the page alone."""
    rows = charts.rendered(cluster.programs, serviceMonitor_enabled=True, **values(cluster))
    (service,) = [row for row in rows if row["kind"] == "ServiceMonitor"]
    (pod,) = [row for row in rows if row["kind"] == "PodMonitor"]
    for command in (
        ("create", "serviceaccount", "prometheus"),
        ("create", "serviceaccount", "another"),
        (
            *("create", "clusterrolebinding", "prometheus", "--clusterrole=fairlead-metrics"),
            "--serviceaccount=default:prometheus",
        ),
    ):
        cluster.kubectl("-n", "default", *command)
    # Of the same pods, and not the Service that is meant.
    meta = {"name": "decoy", "namespace": charts.NAMESPACE, "labels": {"app": "decoy"}}
    rule = {"selector": service["spec"]["selector"]["matchLabels"]}
    rule["ports"] = [{"name": "api", "port": 443, "targetPort": "api"}]
    cluster.apply([{"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": rule}])
    until(lambda: len(endpoints(cluster, charts.NAMESPACE)) == 2, "both Services have endpoints")
    mine, other = (
        cluster.kubectl("-n", "default", "create", "token", name).strip()
        for name in ("prometheus", "another")
    )
    jobs = [scrape_job(cluster, row, tmp_path, mine) for row in (service, pod)]
    refused = scrape_job(cluster, service, tmp_path, other) | {"job_name": "refused"}
    refused["relabel_configs"].append({"target_label": "job", "replacement": "refused"})
    prometheus = Prometheus(tmp_path / "prometheus", {}, [*jobs, refused])

    def up(job: str) -> list[str]:
        return [row["value"][1] for row in prometheus.query(f'up{{job="{job}"}}')]

    try:
        for name in ("fairlead-controller", "fairlead-node"):
            prometheus.until(f"{name} is scraped", lambda name=name: up(name) == ["1"])
        prometheus.until("the other account is refused", lambda: up("refused") == ["0"])
        for job_name, metric in (
            ("fairlead-controller", "fairlead_kube_pod_mismatches_total"),
            ("fairlead-node", "apex_allocation_mode"),
        ):
            expression = f'{metric}{{job="{job_name}"}}'
            prometheus.until(expression, lambda text=expression: prometheus.query(text))
    finally:
        prometheus.stop()


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


def test_the_charts_node_agent_governs_weights(cluster: Cluster, tmp_path: Path) -> None:
    """After the tests above. `cpu.actuate=weights` puts the limit back that was lowered, and raises
    the request; the agent's pod sees how long the threads of other pods waited."""
    state = {"cpu_stateDirectory": str(tmp_path / "state"), "cpu_actuate": "weights"}
    charts.install(cluster, **values(cluster) | state)
    ready(cluster, "daemonset/fairlead-node")
    ready(cluster, "deployment/fairlead-controller")

    def resources() -> Document:
        (row,) = cluster.get("/api/v1/namespaces/team-a/pods/idle")["spec"]["containers"]
        return dict(row["resources"])

    raised = until(
        lambda: millicores(resources()["requests"]["cpu"]) > 50 and resources(),
        "it is raised",
        WITHIN_S,
    )
    assert raised["limits"]["cpu"] == "500m"
    inside = ("-n", charts.NAMESPACE, "exec", "daemonset/fairlead-node", "--")
    where = ("--state-dir", "/var/lib/fairlead/node", "-o", "json")
    shown = json.loads(cluster.kubectl(*inside, "fairlead", "node", "status", *where))
    reasons = {pod["pod"]: pod["reasons"] for pod in shown["pods"]}
    assert reasons["team-a/idle"] == ["demand-driven"], "else signal-missing"


@pytest.mark.component("iptables")
def test_the_network_policy_lets_in_the_api_port_and_out_what_the_controller_needs(
    cluster: Cluster, tmp_path: Path, service_address: str
) -> None:
    """After the tests above, in a pod with an address of its own. In force, the policy keeps a
    second pod from all ports but the API's, and the controller from all but `egressPorts`; a
    controller that starts under it leads and completes a Run."""
    world = World(cluster, tmp_path)
    other = Neighbour(cluster, world)
    with ExitStack() as opened:
        opened.enter_context(forwarded((service_address, 443), cluster.port))
        own = {"controller_hostNetwork": False, "kubernetes_host": "", "cpu_enabled": False}
        charts.install(cluster, **values(cluster) | own | {"networkPolicy_egressPorts": [443]})
        ready(cluster, "deployment/fairlead-controller")
        path = f"/apis/networking.k8s.io/v1/namespaces/{charts.NAMESPACE}/networkpolicies"
        policy = cluster.get(f"{path}/{charts.CONTROLLER}")
        (selector,) = policy["spec"]["podSelector"]["matchLabels"].items()
        pods = f"/api/v1/namespaces/{charts.NAMESPACE}/pods?labelSelector={'='.join(selector)}"
        (pod,) = cluster.get(pods)["items"]
        address = pod["status"]["podIP"]
        opened.enter_context(other.listening())

        def ways() -> tuple[bool, bool, bool]:
            let_in = (other.let_in(address, port) for port in (8443, OTHER_PORT))
            return (*let_in, other.let_out())

        until(lambda: ways() == (True, True, True), "all is open", WITHIN_S)
        with enforced(policy, [address]):
            assert ways() == (True, False, False)
            before = leader(cluster)
            os.kill(process_of(pod["metadata"]["name"]), signal.SIGKILL)
            until(lambda: leader(cluster) not in ("", before), "it leads again", WITHIN_S)
            ready(cluster, "deployment/fairlead-controller")
            args = {"name": "main", "image": BUSYBOX, "args": ["true"]}
            world.apply(run("guarded", 1, template={"spec": {"containers": [args]}}))
            until(lambda: world.phase("guarded") == "Completed", "a Run completes", WITHIN_S)
            # A new ledger, as that of the next test, would start it anew.
            world.kubectl("-n", "team-a", "delete", "run", "--all", "--timeout=60s")


class Neighbour:
    """A pod that talks to the controller's, and listens as that does."""

    def __init__(self, cluster: Cluster, world: World) -> None:
        self._cluster, self._world = cluster, world
        server = {"name": "main", "image": BUSYBOX, "args": ["httpd", "-f", "-p", str(OTHER_PORT)]}
        meta = {"name": "other", "namespace": "team-a"}
        spec = {"containers": [server], "terminationGracePeriodSeconds": 1}
        world.apply({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
        self._inside = ("-n", charts.NAMESPACE, "exec", "deployment/fairlead-controller", "--")

    @contextmanager
    def listening(self) -> Iterator[None]:
        """On another port in the controller's pod."""
        command = (*self._inside, "python3", "-m", "http.server", str(OTHER_PORT))
        kubectl = [
            self._cluster.programs.path("kubectl"),
            f"--kubeconfig={self._cluster.kubeconfig}",
        ]
        quiet = subprocess.DEVNULL
        with subprocess.Popen([*kubectl, *command], stdout=quiet, stderr=quiet) as listener:
            yield
            listener.kill()

    def let_in(self, address: str, port: int) -> bool:
        command = ("/busybox", "nc", "-w", "2", address, str(port), "-e", "/busybox", "true")
        return self._does("-n", "team-a", "exec", "other", "--", *command)

    def let_out(self) -> bool:
        where = (self._world.get("pod", "other", "team-a")["status"].get("podIP"), OTHER_PORT)
        code = f"import socket; socket.create_connection({where!r}, 2)"
        return self._does(*self._inside, "python3", "-c", code)

    def _does(self, *command: str) -> bool:
        try:
            self._cluster.kubectl(*command)
        except PermanentFault:
            return False
        return True


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


@pytest.fixture
def place() -> Iterator[Place]:
    """A cgroup of our own, whose processes alone are balanced."""
    with own_cgroup() as cgroup:
        made = Place(cgroup, Path(PINS), [], [])
        yield made
        made.end()


def on_node(cluster: Cluster, *command: str) -> str:
    """What a command prints that sees the node's mounts."""
    target = ("nsenter", "--mount", f"--target={cluster.pids()['node']}")
    done = subprocess.run([*target, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.component("ebpf")
def test_the_charts_traffic_agent_balances_in_the_kernel_and_leaves_nothing(
    cluster: Cluster, place: Place
) -> None:
    """A Service's address leads to its endpoints, without the pod too; by the page's commands the
    kernel is as it was."""
    on_node(cluster, "mount", "-t", "bpf", "bpf", PINS)  # it goes with the node
    empty = on_node(cluster, "ls", PINS)  # but for files of the kernel's own
    repository, _, tag = REFERENCE.partition(":")
    charts.install(
        cluster,
        image_repository=repository,
        image_tag=tag,
        image_pullPolicy="Never",
        controller_replicas=0,
        ledger_storage_existingClaim="not-used",
        kubernetes_host="127.0.0.1",
        kubernetes_port=cluster.port,
        traffic_enabled=True,
        traffic_config={"plane": {"kind": "ebpf", "cgroup": str(place.cgroup)}},
    )
    cluster.kubectl("create", "namespace", "team-t")
    world = TrafficWorld(cluster, "team-t")
    ports = place.talker("tests.dataplane.ebpf.servers", "2", ADDRESS).hello
    world.apply(service("team-t"), route_group("team-t", dataplane="ebpf", config={"warmup_ms": 0}))
    world.endpoints([Backend(id, ADDRESS, port) for id, port in zip("ab", ports, strict=True)])
    client, address = place.client(), world.address("web")

    def reached() -> set[str]:
        return set(client.do("tcp", host=address, port=80, count=64))

    try:
        ready(cluster, "daemonset/fairlead-traffic")
        until(lambda: world.condition("Programmed").get("status") == "True", "served", WITHIN_S)
        until(lambda: reached() == {"0", "1"}, "both are probed and in use", 30.0)
    except AssertionError as error:
        logs = cluster.kubectl("-n", charts.NAMESPACE, "logs", "daemonset/fairlead-traffic")
        raise AssertionError(f"{error}\n{world.status()}\n{logs}\n{reached()}") from error
    cluster.kubectl("-n", charts.NAMESPACE, "delete", "pod", "--all", "--force")
    assert reached() == {"0", "1"}
    charts.follow(cluster, "uninstall, traffic")
    assert on_node(cluster, "ls", PINS) == empty
    attached = subprocess.run(
        ["bpftool", "cgroup", "show", str(place.cgroup)], capture_output=True, text=True, check=True
    )
    assert attached.stdout == ""
    listed = cluster.get(f"/apis/apps/v1/namespaces/{charts.NAMESPACE}/daemonsets")
    assert listed["items"] == []
    world.client.close()
