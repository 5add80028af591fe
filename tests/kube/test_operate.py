"""The procedures of docs/kubernetes-operate.md, by its very commands."""

import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.kube.client import KubeClient, connection
from fairlead.kube.kinds import KINDS
from tests.kube import charts
from tests.kube.charts import CONTROLLER, NAMESPACE
from tests.kube.world import World, node, run, team, until

pytestmark = pytest.mark.component("helm")
RUNS = KINDS["Run"].path("team-a")


@pytest.fixture
def world(deployed: charts.Deployed, tmp_path: Path) -> Iterator[World]:
    """Nothing is installed."""
    made = World(deployed.cluster, tmp_path)
    remove(made)
    yield made
    remove(made)


def remove(world: World) -> None:
    cluster = world.cluster
    if "fairlead" in charts.run(
        cluster.programs, "helm", "list", "-q", "-n", NAMESPACE, config=cluster.kubeconfig
    ):
        charts.uninstall(cluster)
    if cluster.get("/apis/fairlead.dev/v1alpha1/runs") is not None:
        world.clean()
        charts.follow(cluster, "remove everything")
    world.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found")


def left(world: World) -> list[str]:
    """Whatever in the cluster has our name."""
    kinds = "crd,clusterrole,clusterrolebinding,namespace,validatingadmissionpolicy"
    kinds += ",validatingadmissionpolicybinding"
    return [
        name for name in world.kubectl("get", kinds, "-o", "name").split() if "fairlead" in name
    ]


def test_install_policy_upgrade_uninstall(
    world: World, deployed: charts.Deployed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From an older chart: the kinds are upgraded, values are kept, and no write fails meanwhile;
    in the end nothing is left, and namespaces can be deleted."""
    older = tmp_path / "older"
    shutil.copytree(charts.CHART, older)
    kinds = older / "files" / "crds.yaml"
    text = kinds.read_text()
    column = "    - name: Flavor\n      type: string\n      jsonPath: .spec.flavor\n"
    assert column in text
    kinds.write_text(text.replace(column, ""))
    with monkeypatch.context() as now:
        now.setattr(charts, "CHART", older)
        charts.install(deployed.cluster, controller_qps=20)

    world.apply(node("n1"), node("n2"), *team("team-a"))
    account = charts.account(deployed.cluster, NAMESPACE, CONTROLLER, tmp_path)
    with world.controlled(kubeconfig=account, namespace=NAMESPACE), Writer(world) as writer:
        writer.go_on()
        charts.follow(deployed.cluster, "upgrade")
        columns = deployed.cluster.get(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/runs.fairlead.dev"
        )["spec"]["versions"][0]["additionalPrinterColumns"]
        assert "Flavor" in [row["name"] for row in columns]
        charts.follow(deployed.cluster, "policy")
        writer.go_on()
        path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{CONTROLLER}"
        (container,) = deployed.cluster.get(path)["spec"]["template"]["spec"]["containers"]
        assert "--qps=20" in container["args"]
    assert writer.failed == []

    world.apply(run("train", 8))
    with world.controlled(kubeconfig=account, namespace=NAMESPACE):
        world.reach("train", "Running")
        charts.follow(deployed.cluster, "uninstall, with the controller")
        assert world.names("runs") == world.names("gpuleases") == []
    charts.follow(deployed.cluster, "uninstall")
    assert world.names("resolveroutcomes") == []
    charts.follow(deployed.cluster, "remove everything")
    assert left(world) == []
    world.kubectl("delete", "namespace", "team-a", "--timeout=60s")


class Writer:
    """A client that creates and deletes Runs all the time."""

    def __init__(self, world: World) -> None:
        self._client = KubeClient(connection(world.kubeconfig))
        self.done, self.failed = 0, []  # type: ignore[var-annotated]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Writer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)

    def go_on(self) -> None:
        """Until some more are written."""
        many = self.done + 5
        until(lambda: self.done > many or self.failed, "Runs are written")

    def _run(self) -> None:
        while not self._stop.is_set():
            name = f"written-{self.done}"
            try:
                self._client.create(RUNS, run(name, 1))
                self._client.delete(f"{RUNS}/{name}")
                self.done += 1
            except Exception as error:  # noqa: BLE001 - whatever a user would see
                self.failed.append(repr(error))
                return


def test_break_glass(world: World, deployed: charts.Deployed, tmp_path: Path) -> None:
    """With the policy on and no controller: by the page everything is free again."""
    charts.follow(deployed.cluster, "install")
    charts.follow(deployed.cluster, "policy")
    account = charts.account(deployed.cluster, NAMESPACE, CONTROLLER, tmp_path)
    world.apply(node("n1"), *team("team-a"))
    with world.controlled(kubeconfig=account, namespace=NAMESPACE):
        world.apply(run("train", 8))
        world.reach("train", "Running")
        until(lambda: world.get("run", "train", "team-a")["metadata"].get("finalizers"), "held")
    gated = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "gang-0", "namespace": "team-a", "labels": {"fairlead.dev/run": "g"}},
        "spec": {
            "schedulingGates": [{"name": "fairlead.dev/lease"}],
            "containers": [{"name": "main", "image": "busybox"}],
        },
    }
    client = KubeClient(connection(account))
    client.create("/api/v1/namespaces/team-a/pods", gated)
    patch = '{"metadata":{"finalizers":null}}'
    held = ("-n", "team-a", "patch", "run", "train", "--type=merge", "-p", patch)
    held = (*held, "--dry-run=server")  # one that passes takes nothing away from the next
    until(lambda: "fairlead-fields" in world.kubectl(*held, check=False), "the policy is in force")

    charts.follow(deployed.cluster, "break-glass, policy")
    until(lambda: "fairlead-fields" not in world.kubectl(*held, check=False), "it is not")
    charts.follow(deployed.cluster, "break-glass, finalizers")
    for kind in ("runs", "budgets"):
        assert [row["metadata"].get("finalizers") for row in world.get(kind)["items"]] == [None]
    charts.follow(deployed.cluster, "break-glass, pods")
    assert "schedulingGates" not in world.get("pod", "gang-0", "team-a")["spec"]
    assert world.get("pod", "train-0", "team-a")["status"]["phase"] == "Running"
    world.kubectl("delete", "namespace", "team-a", "--timeout=60s")


def test_every_command_of_the_page_is_run() -> None:
    """Each block is marked, and each mark is followed by a test."""
    text = (charts.ROOT / "docs" / "kubernetes-operate.md").read_text()
    marks = re.findall(r"<!-- proven: (.*?) -->", text)
    assert text.count("```sh\n") == len(marks) == len(set(marks))
    here = Path(__file__)
    tests = here.read_text() + here.with_name("test_real_node_chart.py").read_text()
    assert [mark for mark in marks if f'"{mark}"' not in tests] == []
