"""The chart's admission policy, on a real API server, against a tenant with every right in its
namespace: what RBAC allows, the policy refuses."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.kube.client import ApiError, KubeClient
from fairlead.kube.cpu.pods import GOVERNED, LIMITS, ORIGINAL, asked
from fairlead.kube.dev.cluster import Cluster
from fairlead.kube.kinds import KINDS
from fairlead.kube.kubeconfig import connection
from tests.kube import charts
from tests.kube.world import Document, World, made, node, run, team, until

pytestmark = [pytest.mark.component("helm")]
GPU = {"nvidia.com/gpu": "1"}
DEVICES = ["nvidia.com/", "deviceclass.resource.kubernetes.io/", "example.com/accelerator"]
"""As `admissionPolicy.deviceResources` has them, with one of an operator's own."""
TENANT = "team-a"


class Kubectl:
    """kubectl as one account."""

    def __init__(self, cluster: Cluster, config: Path, namespace: str = TENANT) -> None:
        self.config = config
        kubectl = cluster.programs.path("kubectl")
        self._command = [kubectl, "--kubeconfig", str(config), "-n", namespace]

    def __call__(self, *args: str, given: Document | None = None) -> str | None:
        """None where the API server took it, else what it said."""
        done = subprocess.run(
            [*self._command, *args],
            input=None if given is None else json.dumps(given),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return None if done.returncode == 0 else done.stderr

    def create(self, document: Document) -> str | None:
        return self("create", "-f", "-", given=document)

    def patch(self, what: str, patch: Document, *flags: str, type: str = "merge") -> str | None:
        return self("patch", *what.split("/"), f"--type={type}", "-p", json.dumps(patch), *flags)


@pytest.fixture(scope="module")
def guarded(deployed: charts.Deployed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """With the policy in force, and a tenant who may do anything in its namespace."""
    folder, cluster = tmp_path_factory.mktemp("guarded"), deployed.cluster
    values = {"controller_replicas": 0, "cpu_enabled": True, "traffic_enabled": True}
    policy = {"admissionPolicy_enabled": True, "admissionPolicy_deviceResources": DEVICES}
    charts.install(cluster, **policy, **values)
    world = World(cluster, folder)
    world.apply(*team(TENANT), node("n1"), node("n2"))
    cluster.kubectl("-n", TENANT, "create", "serviceaccount", "tenant")
    flags = ("--clusterrole=cluster-admin", f"--serviceaccount={TENANT}:tenant")
    cluster.kubectl("-n", TENANT, "create", "rolebinding", "tenant", *flags)
    tenant, probe = tenant_of(world, folder), pod("probe", container(limits=GPU))
    flags = ("--dry-run=server", "-f", "-")
    for document in (probe, labelled("probe"), lease("probe")):
        until(lambda d=document: tenant("create", *flags, given=d), "the policy is in force")
    yield world
    charts.install(cluster, **values)
    admin = Kubectl(cluster, cluster.kubeconfig, "default")
    until(lambda: admin("create", *flags, given=probe) is None, "the policy is gone")
    world.clean()


def tenant_of(world: World, folder: Path) -> Kubectl:
    return Kubectl(world.cluster, charts.account(world.cluster, TENANT, "tenant", folder))


def controller_of(world: World, folder: Path) -> Kubectl:
    config = charts.account(world.cluster, charts.NAMESPACE, charts.CONTROLLER, folder)
    return Kubectl(world.cluster, config)


# -- documents ------------------------------------------------------------------------------------


def container(name: str = "main", **resources: Any) -> Document:
    return {"name": name, "image": "busybox", "resources": resources}


def pod(name: str, *containers: Document, **spec: Any) -> Document:
    fields = {"containers": list(containers) or [container()], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": fields}


def labelled(name: str, field: str = "labels", **entries: str) -> Document:
    document = pod(name)
    document["metadata"][field] = entries or {"fairlead.dev/run": "other"}
    return document


def lease(name: str) -> Document:
    payer = {"budget": "b", "envelope": "e"}
    spec = {"run": "r", "owner": "o", "role": "active", "group": 0, "slots": ["n#0"]}
    spec |= {"payer": payer, "borrowed": False, "start": "2026-01-01T00:00:00Z", "reason": "x"}
    return made("GPULease", name, spec)


def allocation(uid: str, node: str) -> Document:
    limits = [{"name": "main", "limitMillicores": 100}]
    spec = {"pod": "p", "uid": uid, "node": node, "decision": 1, "capacityMillicores": 1000}
    return {**spec, "containers": limits}


def finalized(name: str) -> Document:
    document = pod(name)
    document["metadata"]["finalizers"] = ["fairlead.dev/ledger"]
    return document


CLAIM = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
CREATED: dict[str, tuple[Document, str]] = {
    "limits alone": (pod("a", container(limits=GPU)), "asks for devices"),
    "requests and limits": (pod("a", container(limits=GPU, requests=GPU)), "asks for devices"),
    "a part of a device": (
        pod("a", container(limits={"nvidia.com/mig-1g.5gb": "1"})),
        "asks for devices",
    ),
    "the second container": (pod("a", container(), container("b", limits=GPU)), "asks for devices"),
    "an init container": (
        pod("a", initContainers=[container("init", limits=GPU)]),
        "asks for devices",
    ),
    "a sidecar": (
        pod("a", initContainers=[{**container("s", limits=GPU), "restartPolicy": "Always"}]),
        "asks for devices",
    ),
    "a claim of the pod": (pod("a", resourceClaims=CLAIM), "asks for devices"),
    "a claim of a container": (
        pod("a", container(claims=[{"name": "gpu"}]), resourceClaims=CLAIM),
        "asks for devices",
    ),
    "a device class as extended resource": (
        pod("a", container(limits={"deviceclass.resource.kubernetes.io/gpu": "1"})),
        "asks for devices",
    ),
    "a device that the operator named": (
        pod("a", initContainers=[container("i", limits={"example.com/accelerator": "1"})]),
        "by another name than nvidia.com/gpu|asks for devices",
    ),
    "devices behind our gate": (
        pod("a", container(limits=GPU), schedulingGates=[{"name": "fairlead.dev/lease"}]),
        "schedulingGates of fairlead.dev/|asks for devices",
    ),
    "our gate": (pod("a", schedulingGates=[{"name": "fairlead.dev/lease"}]), "schedulingGates"),
    "our label": (labelled("a"), "metadata.labels"),
    "our annotation": (
        labelled("a", "annotations", **{"fairlead.dev/job": "1"}),
        "metadata.annotations",
    ),
    "our finalizer": (finalized("a"), "metadata.finalizers"),
    "a lease": (lease("a"), "the controller writes this"),
    "an allocation": (
        made("PodAllocation", "u", allocation("u", "n1")),
        "PodAllocations are the node agent's",
    ),
    "an outcome": (
        made("ResolverOutcome", "outcome-1", {"outcome": 1, "chain": "c", "k": 1}),
        "the controller writes this",
    ),
}


def test_what_a_tenant_creates_is_refused(guarded: World, tmp_path: Path) -> None:
    """By each way to ask for a device, and in each field of ours; the message says why."""
    tenant, admin = tenant_of(guarded, tmp_path), Kubectl(guarded.cluster, guarded.kubeconfig)
    for name, (document, why) in CREATED.items():
        who = admin if document["kind"] == "ResolverOutcome" else tenant
        said = who.create(document)
        assert said is not None, f"{name}: was created"
        assert any(part in said for part in why.split("|")), f"{name}: {said}"
    assert tenant.create(pod("plain")) is None
    assert tenant.create(pod("limited", container(limits={"cpu": "1", "memory": "1Gi"}))) is None
    others = {"fairlead.devs/run": "x", "app": "mine", "sim.fairlead.dev/run-for": "1h"}
    others |= {"fairlead.dev/cpu": "off"}  # the one that is the user's
    assert tenant.create(labelled("labelled", "annotations", **others)) is None


def test_what_a_tenant_changes_is_refused(guarded: World, tmp_path: Path) -> None:
    """Of a pod of ours: its gate, labels, annotations, by every subresource; not the rest of it."""
    tenant, controller = tenant_of(guarded, tmp_path), controller_of(guarded, tmp_path)
    mine = pod("train-0", container(limits=GPU), schedulingGates=[{"name": "fairlead.dev/lease"}])
    mine["metadata"] |= {
        "namespace": TENANT,
        "labels": {"fairlead.dev/run": "train", "app": "x"},
        "annotations": {"fairlead.dev/job": "1"},
    }
    assert controller.create(mine) is None
    asks = {"name": "debug", "image": "busybox", "resources": {"limits": GPU}}
    resized = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "2"}}}
    refused: dict[str, str | None] = {
        "gate": tenant.patch("pod/train-0", {"spec": {"schedulingGates": None}}),
        "label removed": tenant.patch(
            "pod/train-0", {"metadata": {"labels": {"fairlead.dev/run": None}}}
        ),
        "label changed": tenant.patch(
            "pod/train-0", {"metadata": {"labels": {"fairlead.dev/run": "other"}}}
        ),
        "label added": tenant.patch(
            "pod/train-0", {"metadata": {"labels": {"fairlead.dev/x": "y"}}}
        ),
        "labels removed": tenant.patch("pod/train-0", {"metadata": {"labels": None}}),
        "label by status": tenant.patch(
            "pod/train-0",
            {"metadata": {"labels": {"fairlead.dev/run": None}}},
            "--subresource=status",
        ),
        "annotation": tenant.patch(
            "pod/train-0", {"metadata": {"annotations": {"fairlead.dev/job": "2"}}}
        ),
        "finalizer": tenant.patch(
            "pod/train-0", {"metadata": {"finalizers": ["fairlead.dev/ledger"]}}
        ),
        "ephemeral container": tenant.patch(
            "pod/train-0",
            {"spec": {"ephemeralContainers": [asks]}},
            "--subresource=ephemeralcontainers",
            type="strategic",
        ),
        "resize": tenant.patch(
            "pod/train-0",
            {"spec": {"containers": [resized]}},
            "--subresource=resize",
            type="strategic",
        ),
    }
    assert {name for name, said in refused.items() if said is None} == set()
    ours = ("fairlead-fields", "fairlead-devices")
    by_server = {name for name, said in refused.items() if not any(o in str(said) for o in ours)}
    assert by_server == {"ephemeral container", "resize"}, refused  # refused by Kubernetes itself
    debug = {"name": "debug", "image": "busybox"}
    allowed = {
        "another label": tenant.patch("pod/train-0", {"metadata": {"labels": {"app": "y"}}}),
        "the controller's gate": controller.patch(
            "pod/train-0", {"spec": {"schedulingGates": None}}
        ),
        "a debug container": tenant.patch(
            "pod/train-0",
            {"spec": {"ephemeralContainers": [debug]}},
            "--subresource=ephemeralcontainers",
            type="strategic",
        ),
        "deletion": tenant("delete", "pod", "train-0", "--wait=false"),
    }
    assert allowed == dict.fromkeys(allowed)


def test_the_controller_asks_for_no_other_devices_than_leases_are_of(
    guarded: World, tmp_path: Path
) -> None:
    """A template is a tenant's: what it names in the first container, the controller would ask."""
    controller = controller_of(guarded, tmp_path)
    for name in ("nvidia.com/mig-1g.5gb", "deviceclass.resource.kubernetes.io/gpu"):
        said = controller.create(pod("other", container(limits={name: "1"})))
        assert "by another name than nvidia.com/gpu" in str(said)
    said = controller.create(pod("claims", resourceClaims=CLAIM))
    assert "by another name" in str(said)
    assert controller.create(pod("leased", container(limits=GPU))) is None
    assert controller("delete", "pod", "leased", "--wait=false") is None


def test_pods_of_kubernetes_controllers_are_held_to_it(guarded: World, tmp_path: Path) -> None:
    """A Job or a Deployment of a tenant launders neither devices nor our fields; others work."""
    tenant = tenant_of(guarded, tmp_path)
    template = {
        "metadata": {"labels": {"app": "d"}},
        "spec": pod("x", container(limits=GPU))["spec"],
    }
    laundered = {"metadata": {"labels": {"app": "l", "fairlead.dev/run": "r"}}}
    laundered["spec"] = pod("x")["spec"]
    plain = {"metadata": {"labels": {"app": "p"}}, "spec": pod("x")["spec"]}
    for name, made_of in (("d", template), ("l", laundered), ("p", plain)):
        spec = {"selector": {"matchLabels": {"app": name}}, "template": made_of}
        meta = {"name": name}
        document = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}
        assert tenant.create(document) is None
    spec = {"selector": {"matchLabels": {"app": "d"}}, "template": template, "replicas": 1}
    sets = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "set"}}
    assert tenant.create({**sets, "spec": spec}) is None
    job = {"template": {"spec": {**template["spec"], "restartPolicy": "Never"}}}
    meta = {"name": "job"}
    assert (
        tenant.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": job})
        is None
    )

    def said() -> str:
        return " ".join(row["message"] for row in guarded.get("events", namespace=TENANT)["items"])

    def refused() -> set[str]:
        events = guarded.get("events", namespace=TENANT)["items"]
        said = [row for row in events if "asks for devices" in row["message"]]
        return {row["involvedObject"]["kind"] + row["involvedObject"]["name"][:3] for row in said}

    wanted = {"Jobjob", "ReplicaSetset"}  # and that of the Deployment, by its own name
    until(lambda: wanted < refused(), "the Job and both ReplicaSets are refused")
    until(lambda: "labels of fairlead.dev/" in said(), "the laundered label is refused")
    until(lambda: owned(guarded, "p"), "the plain pod is made")
    names = [
        name for name in guarded.names("pods") if name.startswith(("d-", "l-", "job-", "set-"))
    ]
    assert names == []
    tenant("delete", "deployment", "p", "--wait=false")
    until(lambda: not owned(guarded, "p"), "the garbage collector has done its work")


def owned(world: World, app: str) -> list[str]:
    pods = world.get("pods", namespace=TENANT)["items"]
    metas = [row["metadata"] for row in pods]
    return [meta["name"] for meta in metas if meta.get("labels", {}).get("app") == app]


def test_runs_work_under_the_policy_and_what_is_shown_is_ours(
    guarded: World, tmp_path: Path
) -> None:
    """As the real account: a gang runs; nobody else writes what the ledger says; and a namespace
    can be deleted."""
    tenant, admin = tenant_of(guarded, tmp_path), Kubectl(guarded.cluster, guarded.kubeconfig)
    account = controller_of(guarded, tmp_path).config
    with guarded.controlled(kubeconfig=account, namespace=charts.NAMESPACE):
        assert tenant.create(run("gang", 16, groupGPUs=8)) is None
        guarded.reach("gang", "Running")
        leases = until(lambda: guarded.names("gpuleases"), "leases are shown")
        shown: dict[str, Callable[[], str | None]] = {
            "a Run's status": lambda: tenant.patch(
                "run/gang", {"status": {"phase": "Completed"}}, "--subresource=status"
            ),
            "a Run's finalizer": lambda: tenant.patch(
                "run/gang", {"metadata": {"finalizers": None}}
            ),
            "a lease's label": lambda: tenant.patch(
                f"gpulease/{leases[0]}", {"metadata": {"labels": {"fairlead.dev/run": "x"}}}
            ),
            "a lease's status": lambda: tenant.patch(
                f"gpulease/{leases[0]}", {"status": {"open": False}}, "--subresource=status"
            ),
            "a deleted lease": lambda: tenant("delete", "gpulease", leases[0]),
            "a budget's status": lambda: admin.patch(
                f"budget/{TENANT}", {"status": {"x": "y"}}, "--subresource=status"
            ),
            "a binding's status": lambda: admin.patch(
                f"ownerbinding/{TENANT}", {"status": {"namespaceUID": "x"}}, "--subresource=status"
            ),
        }
        for name, attempt in shown.items():
            assert "fairlead-" in str(attempt()), f"{name}: was written"
        guarded.exit("gang-0", 0)
        guarded.exit("gang-1", 0)
        guarded.reach("gang", "Completed")
        assert tenant.create(run("leaving", 8)) is None
        guarded.reach("leaving", "Running")
        guarded.kubectl("delete", "namespace", TENANT, "--wait=false")
        until(lambda: TENANT not in guarded.names("namespaces"), "the namespace is gone", 60)


def test_a_node_agent_writes_about_its_own_node(guarded: World, tmp_path: Path) -> None:
    """By the node that its token names; a token that names none writes nothing."""
    cluster, where = guarded.cluster, f"/api/v1/namespaces/{charts.NAMESPACE}/pods"

    def name_of(node: str) -> str | None:
        rows = cluster.get(where)["items"]
        there = [row["metadata"]["name"] for row in rows if row["spec"].get("nodeName") == node]
        return next((name for name in there if name.startswith("fairlead-node-")), None)

    space, account = charts.NAMESPACE, "fairlead-node"

    def agent_of(node: str) -> Kubectl:
        name = until(lambda: name_of(node), f"the agent of {node} is there")
        bound = ("--bound-object-kind=Pod", f"--bound-object-name={name}")
        folder = tmp_path / node
        folder.mkdir()
        return Kubectl(cluster, charts.account(cluster, space, account, folder, *bound), "default")

    node_agent = agent_of("n1")
    assert node_agent.create(made("PodAllocation", "mine", allocation("mine", "n1"))) is None
    said = node_agent.create(made("PodAllocation", "other", allocation("other", "n2")))
    assert "spec.node must be the node that the agent runs on" in str(said)
    loose = Kubectl(cluster, charts.account(cluster, space, account, tmp_path), "default")
    said = loose.create(made("PodAllocation", "loose", allocation("loose", "n1")))
    assert "spec.node must be the node" in str(said)
    # Nor does it take over or remove what another one wrote.
    neighbour = KubeClient(connection(agent_of("n2").config))
    path = KINDS["PodAllocation"].path("default", "mine")
    for patch in ({"node": "n2"}, {"capacityMillicores": 1_000_000_000}):
        with pytest.raises(ApiError, match=r"spec.node must be the node|node is immutable"):
            neighbour.patch(path, {"spec": patch})
    with pytest.raises(ApiError, match=re.escape("spec.node must be the node")):
        neighbour.delete(path)
    neighbour.close()
    own = KubeClient(connection(node_agent.config))
    assert own.delete(path)
    own.close()
    # Nor does it get further than that.
    assert "forbidden" in str(node_agent.create(pod("gpu", container(limits=GPU))))


def test_a_traffic_agent_writes_the_status_of_route_groups_only(
    guarded: World, tmp_path: Path
) -> None:
    cluster = guarded.cluster
    config = charts.account(cluster, charts.NAMESPACE, "fairlead-traffic", tmp_path)
    admin = Kubectl(cluster, cluster.kubeconfig, "default")
    spec = {"service": {"name": "web", "port": 80}, "dataplane": "ebpf"}
    assert admin.create(made("RouteGroup", "web", spec)) is None
    status = {"status": {"agents": {}}}
    path = KINDS["RouteGroup"].path("default", "web", "status")
    assert KubeClient(connection(config)).patch(path, status)["status"] == status["status"]
    said = admin.patch("routegroup/web", {"status": {"x": "y"}}, "--subresource=status")
    assert "the controller writes this" in str(said)
    assert admin("delete", "routegroup", "web") is None


def test_a_device_class_gives_devices_no_other_name(guarded: World) -> None:
    admin = Kubectl(guarded.cluster, guarded.kubeconfig)
    document: Document = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "gpu"},
        "spec": {"extendedResourceName": "example.com/gpu"},
    }
    flags = ("--dry-run=server", "-f", "-")
    assert "must begin with one of: nvidia.com/" in str(admin("create", *flags, given=document))
    document["spec"]["extendedResourceName"] = "nvidia.com/gpu"
    assert admin("create", *flags, given=document) is None


def test_the_policy_has_no_faults_of_types(guarded: World) -> None:
    """The API server checks the expressions against the kinds that they are about."""
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"

    def rows() -> list[Document]:
        found = guarded.cluster.get(path)["items"]
        return [row for row in found if row["metadata"]["name"].startswith("fairlead-")]

    def checked() -> bool:
        return all(row.get("status", {}).get("observedGeneration") for row in rows())

    until(checked, "the policies are checked")
    assert len(rows()) == 5
    assert {row["metadata"]["name"]: row["status"].get("typeChecking") for row in rows()} == {
        row["metadata"]["name"]: {} for row in rows()
    }


def test_an_admin_restores_cpu_limits_and_the_marks_stay_the_controllers(
    guarded: World, tmp_path: Path
) -> None:
    """Break-glass works without a controller: the policy does not stand in its way."""
    guarded.apply(*team(TENANT))  # it may have been deleted
    until(lambda: "default" in str(guarded.get("serviceaccounts", namespace=TENANT)), "an account")
    own, now = ({"cpu": f"{limit}m"} for limit in (800, 300))
    document = pod("limited", container(limits=now, requests={"cpu": "50m"}))
    name = document["spec"]["containers"][0]["name"]
    original = json.dumps({name: {"limits": own, "requests": {"cpu": "50m"}}})
    document["metadata"] |= {"labels": {GOVERNED: "true"}, "annotations": {ORIGINAL: original}}
    document["spec"]["nodeName"] = "n1"
    assert controller_of(guarded, tmp_path).create(document) is None
    found = lambda: guarded.get("pod", "limited", TENANT)  # noqa: E731
    until(lambda: found()["status"].get("phase") == "Running", "it runs")
    admin = Kubectl(guarded.cluster, guarded.cluster.kubeconfig)
    assert admin("label", "pod", "limited", f"{GOVERNED}-") is not None
    command = [sys.executable, "-m", "fairlead", "kube", "restore", "--kubeconfig"]
    done = subprocess.run(
        [*command, str(guarded.cluster.kubeconfig)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, f"restored {TENANT}/limited\n"), done.stderr
    assert asked(found(), LIMITS) == {name: 800}
    assert GOVERNED in found()["metadata"]["labels"]
