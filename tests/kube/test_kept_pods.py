"""What is kept of a pod is all that is read of it; and which jobs a turn looks at."""

import json
from typing import Any

import pytest

from fairlead.kube.gpu.audit import device_ids, gpus_of
from fairlead.kube.gpu.gangs import PodIndex
from fairlead.kube.gpu.ranks import ended_ms, exit_code, kept_pod, read_pod
from fairlead.kube.watch import Key, Mirrored
from tests.kube.small import Server

RUNNING: dict[str, Any] = {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}
ENDED: dict[str, Any] = {
    "phase": "Failed",
    "message": "it was told to",
    "reason": "Error",
    "containerStatuses": [
        {"state": {"terminated": {"exitCode": 3, "finishedAt": "2026-01-01T00:00:00Z"}}},
        {
            "state": {"terminated": {"exitCode": 0, "finishedAt": "2026-01-01T00:00:09Z"}},
            "allocatedResourcesStatus": [
                {"name": "nvidia.com/gpu", "resources": [{"resourceID": "GPU-1"}]}
            ],
        },
    ],
}


def pod(name: str, rank: int = 0, version: int = 1, **more: Any) -> dict[str, Any]:
    """As a server shows it, with much that is not read."""
    asks = {"resources": {"limits": {"nvidia.com/gpu": "2", "cpu": "1"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{name}-{rank}",
            "namespace": "team-a",
            "uid": f"uid-{name}-{rank}",
            "resourceVersion": str(version),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "generation": 1,
            "labels": {"fairlead.dev/run": name, "fairlead.dev/rank": str(rank), "app": "x"},
            "annotations": {
                "fairlead.dev/job": f"team-a.{name}.abc.1",
                "fairlead.dev/ranks": "2",
                "fairlead.dev/slots": "n1#0,n1#1",
                "example.com/notes": "long",
            },
            **more.get("meta", {}),
        },
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "main", "image": "busybox", **asks}, {"name": "side"}],
            "initContainers": [{"name": "first", **asks}],
            "volumes": [{"name": "token"}],
            **more.get("spec", {}),
        },
        "status": {"podIP": "10.0.0.1", **more.get("status", RUNNING)},
    }


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"status": ENDED},
        {"spec": {"schedulingGates": [{"name": "fairlead.dev/gang"}], "nodeName": None}},
        {"meta": {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 9}},
        {"status": {}, "spec": {"containers": [], "initContainers": None}},
    ],
)
def test_what_is_kept_reads_as_the_whole(more: dict[str, Any]) -> None:
    whole = pod("train", **more)
    kept = kept_pod(whole)
    for read in (gpus_of, device_ids, exit_code, ended_ms):
        assert read(kept) == read(whole)
    mine, full = read_pod(kept), read_pod(whole)
    assert mine is not None
    assert full is not None
    for name in ("job", "run", "rank", "ranks", "phase", "ended", "leaving", "begun", "released"):
        assert getattr(mine, name) == getattr(full, name), name
    assert (mine.slots, set(mine.members)) == (full.slots, set(full.members))
    assert mine.leaving_within(10_000) == full.leaving_within(10_000)
    for field in ("message", "reason"):
        assert kept["status"].get(field) == whole["status"].get(field)
    assert len(json.dumps(kept)) < len(json.dumps(whole))


def test_a_pod_of_a_tenant_that_is_none_of_ours_is_kept_without_a_fault() -> None:
    odd = {"metadata": {"name": "x", "namespace": "a", "uid": "u", "labels": None}, "spec": None}
    assert read_pod(kept_pod(odd)) is None


def test_the_index_knows_jobs_that_stir() -> None:
    pods = Mirrored(Server(), "/", lambda: None, shape=kept_pod, gone=True)
    index = PodIndex(pods)
    for number in range(3):
        pods.put(pod("train", number))
        pods.put(pod("other", number))
    train, other = "team-a.train.abc.1", "team-a.other.abc.1"
    # Ranks beyond what they were told of are not ours.
    assert {pod.rank for pod in index.of_run("team-a.train")} == {0, 1}
    assert index.jobs() == index.living() == {train, other}
    assert index.stirring() == set()
    pods.put(pod("train", 0, 2, status=ENDED))
    assert index.stirring() == {train}
    assert index.living() == {train, other}, "its other rank lives"
    pods.put(pod("train", 1, 2, status=ENDED))
    assert index.living() == {other}
    released = {
        "annotations": {**pod("other")["metadata"]["annotations"], "fairlead.dev/released": "7"}
    }
    pods.put(pod("other", 1, 2, meta=released))
    assert index.stirring() == {train, other}
    for number in range(3):
        pods._drop(Key("team-a", f"train-{number}"))
    assert index.jobs() == {other}
    assert index.of_run("team-a.train") == []
    assert index.stirring() == {other}
