"""The auditor: leases, pods and nodes compared, and nothing done without proof."""

import json
from typing import Any

import pytest

from fairlead.kube.client import Document
from fairlead.kube.gpu.audit import ABSENT_MS, device_ids, gpus_of
from fairlead.kube.gpu.ranks import DECISION
from tests.kube.small import Small, put
from tests.kube.world import World, node, plane_of, run, team, until


def container(gpus: Any) -> Document:
    return {"name": "main", "resources": {"limits": {"nvidia.com/gpu": gpus}}}


@pytest.mark.parametrize(
    ("spec", "gpus"),
    [
        ({"containers": [container("2"), container("1"), {"name": "x"}]}, 3),
        ({"containers": [container("1")], "initContainers": [container("4")]}, 4),
        ({"containers": [container("none"), {"name": "x", "resources": None}]}, 0),
        ({}, 0),
    ],
)
def test_gpus_of_a_pod_are_counted_as_the_scheduler_does(spec: Document, gpus: int) -> None:
    assert gpus_of({"spec": spec}) == gpus


def rows(*ids: str, name: str = "nvidia.com/gpu") -> list[Document]:
    return [{"name": name, "resources": [{"resourceID": id, "health": "Healthy"} for id in ids]}]


def test_device_ids_are_the_kubelets_or_none() -> None:
    assert device_ids({"status": {"containerStatuses": [{"name": "main"}]}}) == []
    shown = [{"allocatedResourcesStatus": rows("GPU-a", "GPU-b")}]
    assert device_ids({"status": {"containerStatuses": shown}}) == ["GPU-a", "GPU-b"]
    other = [{"allocatedResourcesStatus": rows("x", name="example.com/disk")}]
    assert device_ids({"status": {"containerStatuses": other}}) == []


def test_device_ids_stand_in_the_lease_whose_pod_has_them(small: Small) -> None:
    """And not where a pod has devices of several leases: which are whose is not known."""
    started(small)
    (pod,) = small.sources.pods.all().values()
    shown = [{"allocatedResourcesStatus": rows("GPU-a", "GPU-b")}]
    put(small.sources.pods, {**pod, "status": {"containerStatuses": shown}}, version=5000)
    small.turn()
    (lease,) = small.plane.objects.list("Lease")
    assert small.auditor.devices == {lease["metadata"]["name"]: ("GPU-a", "GPU-b")}
    statuses = [body["status"] for _, path, body in small.client.sent if "gpuleases/" in path]
    assert statuses[-1]["devices"] == ["GPU-a", "GPU-b"]


def started(small: Small, gpus: int = 2) -> None:
    small.add("team-a", run("train", gpus))
    put(small.sources.nodes, node("n1"))
    small.turn()
    until(small.sources.pods.all, "its pod is made")
    until(lambda: not small.executor._making, "and nothing is written to it any more")


def findings(small: Small) -> list[str]:
    small.turn()
    return [finding.reason for finding in small.auditor.findings.values()]


def recorded(small: Small) -> list[Document]:
    found = small.plane.committer.ledger.entries(0, 1000)
    return [entry.body for entry in found if entry.kind == "pod.mismatch"]


def test_a_pod_on_another_node_is_recorded_and_then_evicted(small: Small) -> None:
    """Once; the eviction names the entry. One that is where it should be is left alone."""
    started(small)
    (pod,) = small.sources.pods.all().values()
    bound = {**pod, "spec": {**pod["spec"], "nodeName": "n1"}}
    put(small.sources.nodes, node("n9", flavor="other"))
    put(small.sources.pods, bound, version=5000)
    assert findings(small) == []
    put(small.sources.pods, {**pod, "spec": {**pod["spec"], "nodeName": "n9"}}, version=5001)
    small.client.sent.clear()
    assert findings(small) == ["PodElsewhere"]
    assert findings(small) == ["PodElsewhere"]
    (body,) = recorded(small)
    assert (body["run"], body["node"]) == ("team-a.train", "n9")
    evictions = [body for _, path, body in small.client.sent if path.endswith("/eviction")]
    cited = {body["metadata"]["annotations"][DECISION] for body in evictions}
    assert [small.plane.committer.ledger.entry(int(seq)).kind for seq in cited] == ["pod.mismatch"]


def test_a_pod_with_more_devices_than_are_leased_is_evicted_citing_the_entry(small: Small) -> None:
    started(small)
    (pod,) = small.sources.pods.all().values()
    spec = {**pod["spec"], "nodeName": "n1", "containers": [container("8")]}
    put(small.sources.pods, {**pod, "spec": spec}, version=5000)
    small.client.sent.clear()
    assert findings(small) == ["MoreGPUsThanLeased"]
    assert len(recorded(small)) == 1
    evictions = [body for _, path, body in small.client.sent if path.endswith("/eviction")]
    cited = {body["metadata"]["annotations"][DECISION] for body in evictions}
    assert [small.plane.committer.ledger.entry(int(seq)).kind for seq in cited] == ["pod.mismatch"]


def test_devices_that_pods_of_others_hold_are_not_given_out(small: Small) -> None:
    """As a fact of the node in the ledger; when they are free again, they are."""
    put(small.sources.nodes, node("n1"))
    small.auditor.foreign = {"n1": 6, "n9": 1}
    small.add("team-a", run("wide", 4), run("small", 2))
    small.turn()
    assert small.node("n1")["spec"]["foreign"] == 6
    assert small.status("team-a.wide")["reason"] == "NoDevices"
    assert small.status("team-a.small")["phase"] == "Running"
    assert small.node("n1")["status"]["free"] == 0
    entries = small.plane.committer.ledger.entries(0, 1000)
    assert any(entry.body.get("spec", {}).get("foreign") == 6 for entry in entries)
    small.auditor.foreign = {}
    small.turn()
    assert small.status("team-a.wide")["phase"] == "Running"
    before = len(small.plane.committer.ledger.entries(0, 1000))
    small.turn()
    assert len(small.plane.committer.ledger.entries(0, 1000)) == before, "it is said once"


def test_a_lease_without_a_pod_is_told_after_a_while_and_nothing_else(small: Small) -> None:
    """That something is not there is no proof."""
    started(small)
    for key in small.sources.pods.all():
        del small.sources.pods._objects[key]
        small.sources.pods._note(key)  # who knows of it by now is told, and of no end
    small.auditor._swept_ms = 0
    assert findings(small) == []
    small.now_ms += ABSENT_MS
    small.client.sent.clear()
    assert findings(small) == ["PodsNotMade"]
    assert recorded(small) == []
    assert not [
        path for method, path, _ in small.client.sent if method != "GET" and "/pods" in path
    ]


@pytest.mark.parametrize("mark", ["job", "run"])
def test_gpus_of_a_pod_that_only_bears_our_label_are_those_of_others(
    small: Small, mark: str
) -> None:
    """Its user may change its marks: one that no run's start has made, or that outlives its run."""

    def answer(method: str, path: str, body: Any) -> Document | None:
        none: Document = {"items": [], "metadata": {"resourceVersion": "1"}}
        return none if method == "GET" and path.startswith("/api/v1/pods?") else None

    small.client.answer = answer
    started(small)
    (pod,) = small.sources.pods.all().values()
    bound = {**pod, "spec": {**pod["spec"], "nodeName": "n1"}, "status": {"phase": "Running"}}
    put(small.sources.pods, bound, version=5000)
    small.auditor._asked_ms = 0
    small.turn()
    small.client.close()
    assert small.auditor.foreign == {}
    meta = bound["metadata"]
    if mark == "job":
        meta = {**meta, "annotations": {**meta["annotations"], "fairlead.dev/job": "mine"}}
    else:
        meta = {**meta, "labels": {**meta["labels"], "fairlead.dev/run": "mine"}}
    put(small.sources.pods, {**bound, "metadata": meta}, version=5001)
    small.auditor._count_foreign(small.auditor._strangers())
    assert small.auditor.foreign == {"n1": 2}


def test_one_that_was_bound_elsewhere_and_gpus_of_others_are_seen(world: World) -> None:
    """By a client with the scheduler's rights: the run says so, and the pod is evicted."""
    tainted = node("n1")
    tainted["spec"] = {"taints": [{"key": "test.fairlead.dev/none", "effect": "NoSchedule"}]}
    other = {"containers": [{**container("3"), "image": "busybox"}], "nodeName": "n2"}
    world.apply(tainted, node("n2", flavor="other"), *team("team-a"), run("train", 8))
    alone = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "own", "namespace": "team-a"}}
    until(lambda: "default" in str(world.get("serviceaccounts", namespace="team-a")), "an account")
    world.apply({**alone, "spec": other})
    until(lambda: world.get("pod", "own", "team-a")["status"].get("phase") == "Running", "it runs")
    with world.controlled() as controller:
        world.reach("train", "Running")
        until(lambda: "train-0" in world.names("pods"), "its pod waits")
        first = world.get("pod", "train-0", "team-a")["metadata"]["uid"]
        target = {"apiVersion": "v1", "kind": "Node", "name": "n2"}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "train-0"}}
        where = "/api/v1/namespaces/team-a/pods/train-0/binding"
        given = json.dumps({**binding, "target": target})
        world.kubectl("create", "--raw", where, "-f", "-", given=given)
        status = world.reach("train", "Failed")
        assert "pod train-0 was deleted" in status["message"]
        assert first not in [row["metadata"]["uid"] for row in world.get("pods")["items"]]
        plane = plane_of(controller)
        kinds = [entry.kind for entry in plane.committer.ledger.entries(0, 1000)]
        assert kinds.count("pod.mismatch") == 1
        reasons = until(lambda: _reasons(world, "team-a"), "Events")
        assert "PodElsewhere" in reasons
        until(lambda: "ForeignGPUs" in _reasons(world, "default"), "the GPUs of others are seen")
        assert controller.auditor is not None
        assert controller.auditor.foreign == {"n2": 3}


def _reasons(world: World, namespace: str) -> set[str]:
    return {event["reason"] for event in world.get("events", namespace=namespace)["items"]}
