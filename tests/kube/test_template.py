"""What tenants write in a template, and pods that only look like ours; no server is needed."""

from typing import Any

import pytest

from fairlead.kube.pods import JOB, RANK, RANKS, RUN, Rank, RunObject, pod, read_pod
from fairlead.kube.template import BYTES_MAX, read_template
from fairlead.ports.executor import Job
from fairlead.schema.border import BadInput

PLAIN = {"spec": {"containers": [{"name": "main", "image": "x", "args": ["a"]}]}}
GPU = {"nvidia.com/gpu": "1"}
MIG = {"nvidia.com/mig-1g.5gb": 1}


def contained(**container: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "main", **container}]}}


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
        (contained(args=["a" * BYTES_MAX]), "spec.template"),
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
    ranks = [Rank(0, "n1", 2), Rank(1, "n2", 1)]
    made = pod(job, RunObject("uid", template.document), ranks[1], ranks)
    container = made["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    env = {row["name"]: row["value"] for row in container["env"]}
    assert env["MASTER_ADDR"] == "a-0.a"
    assert env["FAIRLEAD_HOSTS"] == "a-0.a:2,a-1.a:1"
    found = read_pod({**made, "status": {}})
    assert found is not None
    assert (found.job, found.run, found.rank, found.ranks) == (job.id, "team.a", 1, 2)


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
