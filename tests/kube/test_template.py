"""What tenants write in a template, and pods that only look like ours; no server is needed."""

from typing import Any

import pytest

from fairlead.kube.gpu.build import RunObject, pod
from fairlead.kube.gpu.pod_fields import refuse_fields
from fairlead.kube.gpu.ranks import JOB, RANK, RANKS, RUN, Rank, read_pod
from fairlead.kube.gpu.template import BYTES_MAX, DEPTH_MAX, read_template
from fairlead.ports.executor import Job
from fairlead.schema.border import BadInput

PLAIN = {"spec": {"containers": [{"name": "main", "image": "x", "args": ["a"]}]}}
GPU = {"nvidia.com/gpu": "1"}
ALL = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
MIG = {"nvidia.com/mig-1g.5gb": 1}


def contained(**container: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "main", **container}]}}


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


def test_a_template_may_be_nested_as_pods_are() -> None:
    assert read_template({"x": nested(DEPTH_MAX - 1), **PLAIN})


@pytest.mark.parametrize(
    ("template", "path"),
    [
        ("text", "spec.template"),
        ([], "spec.template"),
        ({}, "spec.template.spec"),
        ({"spec": []}, "spec.template.spec"),
        ({"spec": {"containers": {}}}, "spec.template.spec.containers"),
        ({"spec": {"containers": [None]}}, "spec.template.spec.containers[0]"),
        ({"spec": {"containers": []}}, "spec.template.spec.containers"),
        ({"metadata": [], **PLAIN}, "spec.template.metadata"),
        ({"metadata": {"labels": ["a"]}, **PLAIN}, "spec.template.metadata.labels"),
        ({"metadata": {"labels": {RUN: "x"}}, **PLAIN}, "spec.template.metadata.labels"),
        ({"metadata": {"annotations": {JOB: "x"}}, **PLAIN}, "spec.template.metadata.annotations"),
        (contained(env={"A": "b"}), "spec.template.spec.containers[0].env"),
        (contained(env=["A"]), "spec.template.spec.containers[0].env[0]"),
        (contained(command="sh"), "spec.template.spec.containers[0].command"),
        (contained(resources="all"), "spec.template.spec.containers[0].resources"),
        (contained(resources={"limits": GPU}), "spec.template.spec.containers[0].resources.limits"),
        (
            contained(resources={"requests": MIG}),
            "spec.template.spec.containers[0].resources.requests",
        ),
        (
            contained(resources={"claims": [{"name": "a"}]}),
            "spec.template.spec.containers[0].resources.claims",
        ),
        (
            {
                "spec": {
                    **PLAIN["spec"],
                    "initContainers": [{"name": "i", "resources": {"limits": GPU}}],
                }
            },
            "spec.template.spec.initContainers[0].resources.limits",
        ),
        ({"spec": {**PLAIN["spec"], "nodeName": "n1"}}, "spec.template.spec.nodeName"),
        ({"spec": {**PLAIN["spec"], "affinity": "n1"}}, "spec.template.spec.affinity"),
        (
            {"spec": {**PLAIN["spec"], "schedulingGates": [{"name": "a"}]}},
            "spec.template.spec.schedulingGates",
        ),
        (
            {"spec": {**PLAIN["spec"], "affinity": {"podAntiAffinity": {}}}},
            "spec.template.spec.affinity",
        ),
        (
            {"spec": {**PLAIN["spec"], "priorityClassName": "system-node-critical"}},
            "spec.template.spec.priorityClassName",
        ),
        ({"spec": {**PLAIN["spec"], "priority": 0}}, "spec.template.spec.priority"),
        (
            {"spec": {**PLAIN["spec"], "preemptionPolicy": "Never"}},
            "spec.template.spec.preemptionPolicy",
        ),
        (contained(env=[ALL]), "spec.template.spec.containers[0].env"),
        (
            {"spec": {**PLAIN["spec"], "initContainers": [{"name": "i", "env": [ALL]}]}},
            "spec.template.spec.initContainers[0].env",
        ),
        (
            contained(envFrom=[{"prefix": "APP_"}, {"configMapRef": {"name": "a"}}]),
            "spec.template.spec.containers[0].envFrom[1].prefix",
        ),
        (
            contained(envFrom=[{"prefix": "NVIDIA_", "configMapRef": {"name": "a"}}]),
            "spec.template.spec.containers[0].envFrom[0].prefix",
        ),
        (
            {"spec": {**PLAIN["spec"], "volumes": [{"name": "fairlead-run"}]}},
            "spec.template.spec.volumes[0].name",
        ),
        (contained(args=["a" * BYTES_MAX]), "spec.template"),
        ({"x": nested(DEPTH_MAX), **PLAIN}, "spec.template"),
    ],
)
def test_a_template_that_is_none_or_goes_around_the_lease_is_refused(
    template: Any, path: str
) -> None:
    with pytest.raises(BadInput) as refused:
        read_template(template)
    assert refused.value.path.removesuffix(".$") == path


def test_the_lease_adds_devices_node_and_rank() -> None:
    """And wins over what the template says of them."""
    template = read_template(contained(image="x", env=[{"name": "MASTER_ADDR", "value": "me"}]))
    job = Job("team.a.0123abcd.1", "team.a", "team", ("x",), ("n1#0", "n1#1", "n2#0"), ("l0",))
    ranks = [Rank(0, "n1", ("n1#0", "n1#1")), Rank(1, "n2", ("n2#0",))]
    made = pod(job, RunObject("uid", template.document), ranks[1], ranks)
    container = made["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    env = {row["name"]: row["value"] for row in container["env"]}
    assert env["MASTER_ADDR"] == "a-0.a"
    assert env["FAIRLEAD_HOSTS"] == "a-0.a:2,a-1.a:1"
    found = read_pod({**made, "status": {}})
    assert found is not None
    assert (found.job, found.run, found.rank, found.ranks) == (job.id, "team.a", 1, 2)


def test_a_container_without_devices_sees_none() -> None:
    """The runtime would give it those of the whole node."""
    containers = [{"name": "main", "image": "x"}, {"name": "side", "image": "x"}]
    template = read_template(
        {"spec": {"containers": containers, "initContainers": [{"name": "first", "image": "x"}]}}
    )
    job = Job("team.a.0123abcd.1", "team.a", "team", ("x",), ("n1#0",))
    rank = Rank(0, "n1", ("n1#0",))
    spec = pod(job, RunObject("uid", template.document), rank, [rank])["spec"]
    seen = {
        container["name"]: [row["value"] for row in container["env"] if row["name"] == ALL["name"]]
        for container in spec["containers"] + spec["initContainers"]
    }
    assert seen == {"main": [], "side": ["void"], "first": ["void"]}
    assert "env" not in containers[1]


@pytest.mark.parametrize(
    ("name", "gpus", "fits"),
    [
        *[("train", 8, True), ("train.v2", 8, False), ("a" * 61, 10, True), ("a" * 61, 11, False)],
        *[("1st", 1, True), ("1st", 2, False)],
    ],
)
def test_a_runs_name_is_part_of_a_host_name(name: str, gpus: int, fits: bool) -> None:
    if fits:
        refuse_fields(name, {"totalGPUs": gpus})
    else:
        with pytest.raises(BadInput, match=r"metadata\.name"):
            refuse_fields(name, {"totalGPUs": gpus})


@pytest.mark.parametrize(
    "change",
    [
        {"namespace": "other"},
        {"name": "a-1"},
        {"labels": {RUN: "b", RANK: "0"}},
        {"labels": {RUN: "a", RANK: "-1"}},
        {"labels": {RUN: "a"}},
        {"annotations": {JOB: "other.a.0123abcd.1", RANKS: "1"}},
        {"annotations": {JOB: "team.a.0123abcd.1", RANKS: "0"}},
        {"annotations": {JOB: "team.a.0123abcd.1"}},
        {"annotations": {}},
        {"annotations": None, "labels": None},
    ],
)
def test_a_pod_that_only_looks_like_ours_is_not(change: dict[str, Any]) -> None:
    """Users can write our labels and annotations; they cannot speak for another namespace's run."""
    meta: dict[str, Any] = {
        "name": "a-0",
        "namespace": "team",
        "labels": {RUN: "a", RANK: "0"},
        "annotations": {JOB: "team.a.0123abcd.1", RANKS: "1"},
    }
    assert read_pod({"metadata": meta}) is not None
    assert read_pod({"metadata": {**meta, **change}}) is None
