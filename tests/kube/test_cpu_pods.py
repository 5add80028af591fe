"""What a Pod document says about CPU."""

import json
from typing import Any

import pytest

from fairlead.core.cpu import ResizeState
from fairlead.kube.cpu import pods as cpu_pods
from fairlead.kube.cpu.restore import restore
from fairlead.kube.cpu.roster import read_pod
from fairlead.ports.faults import PermanentFault
from tests.kube.small import Server

Document = dict[str, Any]


def container(name: str, limit: str, request: str, **more: Any) -> Document:
    return {
        "name": name,
        "resources": {"limits": {"cpu": limit}, "requests": {"cpu": request}},
        **more,
    }


def document(*rows: Document, status: Document | None = None, **spec: Any) -> Document:
    return {
        "metadata": {
            "name": "web",
            "namespace": "team-a",
            "uid": "u1",
            "resourceVersion": "7",
            "generation": 2,
        },
        "spec": {"containers": list(rows), **spec},
        "status": {
            "phase": "Running",
            "qosClass": "Burstable",
            "startTime": "2026-01-01T00:00:10Z",
            **(status or {}),
        },
    }


def shown(*limits: str, generation: int = 2, **conditions: str) -> Document:
    names = ("app", "side")
    statuses = [
        {"name": name, "resources": {"limits": {"cpu": limit}}}
        for name, limit in zip(names, limits, strict=False)
    ]
    rows = [{"type": type, "status": "True", "reason": why} for type, why in conditions.items()]
    return {"containerStatuses": statuses, "observedGeneration": generation, "conditions": rows}


APP, SIDE = container("app", "500m", "100m"), container("side", "100m", "50m")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("2", 2000), ("250m", 250), ("0.1", 100), ("1.5", 1500), ("100u", 1), ("3k", 3_000_000)),
        *(("1e1", 10_000), ("5E-1", 500), (".5", 500), ("1.", 1000), ("1Ki", 1_024_000), ("0", 0)),
    ],
)
def test_quantities_are_read_as_the_api_server_rounds_them(text: str, expected: int) -> None:
    assert cpu_pods.millicores(text) == expected


@pytest.mark.parametrize("text", ["", "x", "-1", "1e3x", ".", "m", "1Gx", "٣"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no quantity of CPU"):
        cpu_pods.millicores(text)


@pytest.mark.parametrize(
    ("status", "state"),
    [
        (shown("500m", "100m"), ResizeState.SETTLED),
        (shown("500m", "200m"), ResizeState.MOVING),
        (shown("500m"), ResizeState.MOVING),
        (shown("500m", "100m", generation=1), ResizeState.MOVING),
        (shown("500m", "100m", PodResizeInProgress=""), ResizeState.MOVING),
        (shown("300m", "100m", PodResizePending="Deferred"), ResizeState.DEFERRED),
        (shown("300m", "100m", PodResizePending="Infeasible"), ResizeState.INFEASIBLE),
        (shown("300m", "100m", generation=1, PodResizePending="Deferred"), ResizeState.MOVING),
    ],
)
def test_a_resize_is_in_force_when_every_container_shows_it(
    status: Document, state: ResizeState
) -> None:
    """And the kubelet has seen the latest spec: an older verdict is none."""
    assert cpu_pods.resize_state(document(APP, SIDE, status=status), cpu_pods.LIMITS) is state


def test_a_sidecar_is_a_container_like_the_others() -> None:
    """Init containers that end are not: they hold no CPU while the pod runs."""
    proxy = container("proxy", "200m", "50m", restartPolicy="Always")
    pod = document(APP, initContainers=[proxy, container("setup", "4", "1")])
    assert cpu_pods.asked(pod, cpu_pods.LIMITS) == {"app": 500, "proxy": 200}
    assert sum(cpu_pods.asked(pod, cpu_pods.REQUESTS).values()) == 150
    mark = cpu_pods.PodResize("n1/7", {}, first=True).text()
    pod["metadata"]["annotations"] = {cpu_pods.RESIZE: mark}
    patch = cpu_pods.resize_patch(
        pod, {"app": 300, "proxy": 80}, resource=cpu_pods.LIMITS, decision="n1/7"
    )
    assert [row["name"] for row in patch["spec"]["initContainers"]] == ["proxy"]
    assert patch["spec"]["containers"][0]["resources"] == {"limits": {"cpu": "300m"}}
    assert patch["metadata"] == {"resourceVersion": "7"}


def test_the_class_burstable_is_kept() -> None:
    """With memory limits that are the requests, CPU limits that are too would make it another."""
    pod = document(container("app", "500m", "100m"))
    assert cpu_pods.floors(pod) == {"app": 100}
    for kind in ("limits", "requests"):
        pod["spec"]["containers"][0]["resources"][kind]["memory"] = "64Mi"
    assert cpu_pods.floors(pod) == {"app": 101}


def test_a_pod_is_known_by_its_requests_priority_and_start() -> None:
    status = {"containerStatuses": [{"name": "app", "containerID": "containerd://abc"}]}
    status["containerStatuses"][0]["state"] = {"running": {}}  # type: ignore[assignment]
    found = read_pod(document(APP, status=status, priority=1000))
    assert found is not None
    assert (found.name, found.uid, found.request_millicores) == ("team-a/web", "u1", 100)
    assert (found.priority, found.opted_out) == (1000, False)
    assert found.started_ms == 1767225610000
    assert (found.containers[0].cgroup, found.containers[0].limit_millicores) == ("abc", 500)


def test_a_pod_takes_of_its_node_what_the_scheduler_counts() -> None:
    """The largest of what runs and of what an init container takes beside the sidecars before it;
    requests that a resize replaces, as long as they are in force; overhead."""
    proxy = container("proxy", "200m", "50m", restartPolicy="Always")
    setup = container("setup", "4", "1")
    assert cpu_pods.scheduled_millicores(document(APP, SIDE)) == 150
    assert cpu_pods.scheduled_millicores(document(APP, initContainers=[setup, proxy])) == 1000
    assert cpu_pods.scheduled_millicores(document(APP, initContainers=[proxy, setup])) == 1050
    status = {"containerStatuses": [{"name": "app", "resources": {"requests": {"cpu": "300m"}}}]}
    assert cpu_pods.scheduled_millicores(document(APP, SIDE, status=status)) == 350
    assert cpu_pods.scheduled_millicores(document(APP, overhead={"cpu": "25m"})) == 125
    whole = {"requests": {"cpu": "2"}}
    assert cpu_pods.scheduled_millicores(document(APP, resources=whole)) == 2000


def test_where_requests_are_governed_a_pod_that_waits_to_start_takes_its_part() -> None:
    """A limit is no part of the sum; a request that we raised is not the user's own."""
    pending = read_pod(document(APP, status={"phase": "Pending"}), cpu_pods.REQUESTS)
    assert pending is not None
    assert (pending.opted_out, pending.request_millicores) == (True, 100)
    assert pending.containers[0].limit_millicores is None
    over = document(APP, status={"phase": "Succeeded"})
    assert read_pod(over, cpu_pods.REQUESTS) is None
    raised = document(container("app", "500m", "300m"))
    text = json.dumps({"app": APP["resources"]})
    mark = cpu_pods.PodResize("n1/7", {}, first=False, resource=cpu_pods.REQUESTS).text()
    for notes in (
        {cpu_pods.ORIGINAL: text, cpu_pods.RESIZE: mark},
        {cpu_pods.ORIGINAL: text, cpu_pods.RESIZE: "no mark of ours"},
    ):
        raised["metadata"]["annotations"] = notes
        for resource in (cpu_pods.LIMITS, cpu_pods.REQUESTS):
            found = read_pod(raised, resource)
            assert found is not None
            assert found.request_millicores == 100


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"containers": [{"name": "app", "resources": {"limits": {"cpu": "?"}}}]}},
        {"spec": None},
        {"status": {"phase": "Pending"}},
        {"metadata": {}},
    ],
)
def test_a_pod_that_cannot_be_read_is_not_governed(change: Document) -> None:
    """And keeps no other from being read."""
    assert read_pod(document(APP) | change) is None


@pytest.mark.parametrize("text", ["", "[]", '{"decision":1}', '{"unseen":{"a":"x"}}', "null"])
def test_a_mark_that_is_not_ours_counts_as_none(text: str) -> None:
    pod = document(APP)
    pod["metadata"]["annotations"] = {cpu_pods.RESIZE: text, cpu_pods.ORIGINAL: text}
    assert cpu_pods.last_resize(pod) is None
    assert cpu_pods.originals(pod, cpu_pods.LIMITS) is None


def test_a_restore_without_the_kinds_says_how_to_have_them() -> None:
    """An operator deleted the kinds first: the pods still have their limits and annotations."""

    def answer(method: str, path: str, body: Any) -> Document | None:
        pods = path.startswith("/api/v1/pods")
        return {"items": [], "metadata": {"resourceVersion": "1"}} if pods else None

    client = Server(answer)
    with pytest.raises(PermanentFault, match="the kind PodAllocation: install it with"):
        restore(client, node=None, within_s=1)
    client.close()
