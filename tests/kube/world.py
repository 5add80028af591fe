"""A cluster as tests use it: objects by kubectl, nodes and pods by KWOK, our controller."""

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairlead.api.cluster_server import ClusterListen
from fairlead.compose.kube import KubeConfig, controller
from fairlead.engine.gpu import Config, ControlPlane
from fairlead.kube.client import KubeClient, connection
from fairlead.kube.controller import ClusterController
from fairlead.kube.dev.cluster import Cluster
from fairlead.kube.kinds import KINDS
from fairlead.schema.times import format_time
from tests.engine.gpu.worlds import LENIENT

Document = dict[str, Any]
WITHIN_S = 60.0
OURS = "test.fairlead.dev/node"
"""A label of the nodes that tests make."""
COORDINATION = "/apis/coordination.k8s.io/v1"
AT_ONCE = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
CLEANED = (
    *("reservations", "runs", "gpuleases", "podallocations", "pods"),
    *("budgets", "ownerbindings", "resolveroutcomes"),
)


def until(condition: Callable[[], Any], what: str, within_s: float = WITHIN_S) -> Any:
    """Wait for the world, with an end; what the condition returned at last."""
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(0.05)
    return found


def due_now(run: str) -> Document:
    """The spec of a reservation that is due at once."""
    return {"run": run, "earliestStart": format_time(int(time.time()) * 1000)}


class World:
    """One cluster, cleaned after each test."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self._folder = cluster, folder
        self._kubectl, self.kubeconfig = cluster.programs.path("kubectl"), cluster.kubeconfig
        self._client = KubeClient(connection(cluster.kubeconfig))
        self.spoken: list[str] = []

    def kubectl(self, *args: str, given: str | None = None, check: bool = True) -> str:
        command = [self._kubectl, "--kubeconfig", str(self.kubeconfig), *args]
        done = subprocess.run(
            command, check=False, input=given, capture_output=True, text=True, timeout=60
        )
        if check:
            assert done.returncode == 0, f"{' '.join(args)}: {done.stderr}"
        return done.stdout if check else done.stdout + done.stderr

    def apply(self, *documents: Document) -> None:
        items = {"apiVersion": "v1", "kind": "List", "items": list(documents)}
        self.kubectl("apply", "-f", "-", given=json.dumps(items))

    def picture(self) -> str:
        """What is there, for a failure's message."""
        rows = [f"said: {line}" for line in self.spoken[-8:]]
        for kind in ("runs", "gpuleases", "pods"):
            for item in self.get(kind)["items"]:
                meta, status = item["metadata"], item.get("status", {})
                leaving = " leaving" if "deletionTimestamp" in meta else ""
                state = f"{status.get('phase')} {status.get('reason')} {status.get('message')}"
                rows.append(f"{kind} {meta['name']}{leaving}: {state} {meta.get('finalizers')}")
        return "\n".join(rows)

    def get(self, kind: str, name: str = "", namespace: str = "") -> Document:
        """One object, or all of a kind; kinds by their plural or singular name."""
        plural = kind if kind.endswith("s") else f"{kind}s"
        where = f"/namespaces/{namespace}" if namespace else ""
        found = self._client.get(f"{_root(plural)}{where}/{plural}{f'/{name}' if name else ''}")
        assert found is not None, f"there is no {kind} {namespace}/{name}"
        return found

    def names(self, kind: str) -> list[str]:
        return [item["metadata"]["name"] for item in self.get(kind)["items"]]

    def phase(self, run: str, namespace: str = "team-a") -> str:
        status = self.get("run", run, namespace).get("status", {})
        return str(status.get("phase", ""))

    def reach(self, run: str, phase: str, namespace: str = "team-a") -> Document:
        until(lambda: self.phase(run, namespace) == phase, f"{run} is {phase}")
        return dict(self.get("run", run, namespace)["status"])

    def exit(self, pod: str, code: int, namespace: str = "team-a", *, check: bool = True) -> None:
        how = (f"sim.fairlead.dev/exit-code={code}", "sim.fairlead.dev/run-for=1ms")
        self.kubectl("-n", namespace, "annotate", "--overwrite", "pod", pod, *how, check=check)

    @contextmanager
    def controlled(
        self,
        name: str = "a",
        kubeconfig: Path | None = None,
        namespace: str | None = None,
        admin_namespace: str | None = None,
        listen: ClusterListen | None = None,
        *,
        image: str = "busybox",
        **engine: Any,
    ) -> Iterator[ClusterController]:
        """With a controller in a thread of this process."""
        settings = Config(
            **{"resolver": "enforce", "grace_ms": 1000, "preemption": LENIENT, **engine}
        )
        config = KubeConfig(
            self._folder / name,
            kubeconfig or self.kubeconfig,
            namespace=namespace,
            admin_namespace=admin_namespace,
            listen=listen,
            image=image,
            qps=None,
            engine=settings,
        )
        with controller(config, say=self.spoken.append) as made:
            faults: list[BaseException] = []

            def run() -> None:
                try:
                    made.run()
                except BaseException as error:
                    faults.append(error)
                    raise

            thread = threading.Thread(target=run, daemon=True)
            thread.start()
            try:
                yield made
            finally:
                made.stop()
                thread.join(20)
                assert not faults, faults
                assert not thread.is_alive(), "the controller does not stop"

    def clean(self) -> None:
        """What a test made, objects that wait for a controller included."""
        for kind in CLEANED:
            for item in self.get(kind)["items"]:
                self._remove(kind, item["metadata"])
        for item in self.get("nodes")["items"]:
            if OURS in item["metadata"].get("labels", {}):
                self._remove("nodes", item["metadata"])
        for item in self._client.list(f"{COORDINATION}/leases")[0]:
            if item["metadata"]["name"] == "fairlead-controller":
                self._client.delete(_path(COORDINATION, "leases", item["metadata"]))
        for name in self.names("namespaces"):
            if name.startswith("team-"):
                self._end_namespace(name)

    def _remove(self, kind: str, meta: Document) -> None:
        path = _path(_root(kind), kind, meta)
        if meta.get("finalizers") and self._client.get(path) is not None:
            self._client.patch(path, {"metadata": {"finalizers": None}})
        self._client.delete(path, AT_ONCE)

    def _end_namespace(self, name: str) -> None:
        """As the cluster's own controller does, without the 5 s for which it waits first."""
        path = f"/api/v1/namespaces/{name}"
        self._client.delete(path)
        for root, kind in self._collections():
            self._client.delete(f"{root}/namespaces/{name}/{kind}", AT_ONCE)
        if (found := self._client.get(path)) is not None:
            self._client.replace(f"{path}/finalize", {**found, "spec": {"finalizers": []}})
        until(lambda: name not in self.names("namespaces"), f"namespace {name} is gone")

    def _collections(self) -> list[tuple[str, str]]:
        """Where namespaced objects are kept: a group's path and the plural name."""
        groups = self._client.request("GET", "/apis")["groups"]
        versions = [each["preferredVersion"]["groupVersion"] for each in groups]
        roots = ["/api/v1", *(f"/apis/{version}" for version in versions)]
        return [
            (root, row["name"])
            for root in roots
            for row in self._client.request("GET", root)["resources"]
            if row["namespaced"] and "deletecollection" in row["verbs"]
        ]


def _root(kind: str) -> str:
    own = {made.plural for made in KINDS.values()}
    return "/apis/fairlead.dev/v1alpha1" if kind in own else "/api/v1"


def _path(root: str, kind: str, meta: Document) -> str:
    where = f"/namespaces/{meta['namespace']}" if "namespace" in meta else ""
    return f"{root}{where}/{kind}/{meta['name']}"


def plane_of(made: ClusterController) -> ControlPlane:
    return until(lambda: made.plane, "the controller leads")  # type: ignore[no-any-return]


# -- documents ------------------------------------------------------------------------------------


def node(name: str, *, gpus: int = 8, flavor: str = "H100", zone: str = "z1") -> Document:
    room = {"cpu": "32", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {
                OURS: "1",
                "fairlead.dev/flavor": flavor,
                "topology.kubernetes.io/zone": zone,
            },
        },
        "status": {"allocatable": room, "capacity": room},
    }


def team(owner: str, *, gpus: int = 16, flavor: str = "H100") -> list[Document]:
    """A namespace, whose it is, and its budget."""
    envelope = {"name": "main", "flavor": flavor, "concurrency": gpus}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": owner}},
        made("OwnerBinding", owner, {"namespace": owner, "owner": owner}),
        made("Budget", owner, {"owner": owner, "envelopes": [envelope]}),
    ]


def made(kind: str, name: str, spec: Document, namespace: str | None = None) -> Document:
    meta: Document = {"name": name} if namespace is None else {"name": name, "namespace": namespace}
    return {"apiVersion": "fairlead.dev/v1alpha1", "kind": kind, "metadata": meta, "spec": spec}


def run(name: str, gpus: int, namespace: str = "team-a", **spec: Any) -> Document:
    template = {"spec": {"containers": [{"name": "main", "image": "busybox"}]}}
    fields = {"flavor": "H100", "totalGPUs": gpus, "duration": "1h", "template": template, **spec}
    return made("Run", name, fields, namespace)
