"""Malleable runs as pods: they shrink, they grow, and every rank is told."""

import json
from typing import Any

from fairlead.kube.controller import ClusterController
from tests.kube.world import World, due_now, made, node, plane_of, run, team, until

ELASTIC = {"groupGPUs": 2, "malleable": {"minTotalGPUs": 2, "stepGPUs": 2}}


def width(pod: dict[str, Any]) -> dict[str, Any]:
    found = json.loads(pod["metadata"]["annotations"]["fairlead.dev/width"])
    assert isinstance(found, dict)
    return found


def ranks(world: World, of: str = "train") -> dict[str, dict[str, Any]]:
    pods = world.get("pods", namespace="team-a")["items"]
    mine = [pod for pod in pods if pod["metadata"]["labels"]["fairlead.dev/run"] == of]
    return {pod["metadata"]["name"]: pod for pod in mine}


def all_know(world: World, gpus: int) -> bool:
    """Whether the run has one pod for each group, all begun, and each knows the width."""
    pods = ranks(world)
    return len(pods) == gpus // 2 and all(
        width(pod)["width"] == gpus and "nodeName" in pod["spec"] for pod in pods.values()
    )


def leaves(world: World) -> bool:
    return "deletionTimestamp" in ranks(world)["train-3"]["metadata"]


def mismatches(controller: ClusterController) -> list[dict[str, Any]]:
    """What the auditor has found and evicted for, of this ledger."""
    found = plane_of(controller).committer.ledger.entries(0, 10_000)
    return [entry.body for entry in found if entry.kind == "pod.mismatch"]


def test_an_elastic_run_shrinks_and_grows_and_its_ranks_are_told(world: World) -> None:
    """An outcome takes two groups, and they come back; the others run on and know."""
    world.apply(node("n1"), *team("team-a", gpus=8), *team("team-b", gpus=8))
    world.apply(run("train", 8, **ELASTIC))
    with world.controlled() as controller:
        world.reach("train", "Running")
        until(lambda: all_know(world, 8), "one rank for each group")
        first = ranks(world)
        keep = '{"metadata":{"finalizers":["test.fairlead.dev/keep"]}}'
        world.kubectl("-n", "team-a", "patch", "pod", "train-3", "--type=merge", "-p", keep)
        world.apply(run("big", 4, "team-b"), made("Reservation", "soon", due_now("big"), "team-b"))
        until(lambda: "train-2" not in ranks(world) and leaves(world), "two ranks are evicted")
        pod = ranks(world)["train-3"]
        outcome = pod["metadata"]["annotations"]["fairlead.dev/released"]
        entry = plane_of(controller).committer.ledger.entry(int(outcome))
        assert entry.kind == "gpu.resolve.commit", "no proof, no kill"
        held = [
            slot
            for lease in world.get("gpuleases")["items"]
            for slot in lease["spec"]["slots"]
            if lease["spec"]["run"] == "train"
        ]
        assert set(pod["metadata"]["annotations"]["fairlead.dev/slots"].split(",")) <= set(held)
        assert world.phase("big", "team-b") in ("", "Pending", "Reserved"), "it still terminates"
        drop = '{"metadata":{"finalizers":null}}'
        world.kubectl("-n", "team-a", "patch", "pod", "train-3", "--type=merge", "-p", drop)
        world.reach("big", "Running", "team-b")
        assert world.reach("train", "Shrunk")["width"] == 4
        until(lambda: all_know(world, 4), "the ranks that stay are told")
        world.exit("big-0", 0, "team-b")
        world.reach("train", "Running")
        until(lambda: all_know(world, 8), "the run has grown and all know")
        last = ranks(world)
        for name in ("train-0", "train-1"):
            assert last[name]["metadata"]["uid"] == first[name]["metadata"]["uid"], "it ran on"
        env = {row["name"]: row["value"] for row in last["train-3"]["spec"]["containers"][0]["env"]}
        assert env["PET_NNODES"] == "1:4"
        assert env["PET_RDZV_ENDPOINT"] == "train-0.train:29500"
        assert env["FAIRLEAD_WIDTH_FILE"] == "/etc/fairlead/width.json"
        assert world.get("run", "train", "team-a")["status"]["attempts"] == 1
        for name in last:
            world.exit(name, 0)
        world.reach("train", "Completed")
        assert mismatches(controller) == [], "at no moment has it more pods than leases"


def test_a_controller_that_died_in_the_middle_goes_on(world: World) -> None:
    """In a shrink: its successor ends it, and neither fails the run nor makes ranks again."""
    world.apply(node("n1"), *team("team-a", gpus=8), *team("team-b", gpus=8))
    world.apply(run("train", 8, **ELASTIC))
    with world.controlled():
        world.reach("train", "Running")
        until(lambda: all_know(world, 8), "one rank for each group")
        keep = '{"metadata":{"finalizers":["test.fairlead.dev/keep"]}}'
        world.kubectl("-n", "team-a", "patch", "pod", "train-3", "--type=merge", "-p", keep)
        world.apply(run("big", 4, "team-b"), made("Reservation", "soon", due_now("big"), "team-b"))
        until(lambda: leaves(world), "it is asked to end")
    drop = '{"metadata":{"finalizers":null}}'
    world.kubectl("-n", "team-a", "patch", "pod", "train-3", "--type=merge", "-p", drop)
    with world.controlled():
        world.reach("big", "Running", "team-b")
        world.reach("train", "Shrunk")
        until(lambda: all_know(world, 4), "two ranks, told")
        world.exit("big-0", 0, "team-b")
        until(lambda: world.phase("train") == "Running", "the run grows")
    with world.controlled() as last:  # which may have been before its new pods were made
        until(lambda: all_know(world, 8), "all ranks are there")
        assert world.get("run", "train", "team-a")["status"]["attempts"] == 1
        assert mismatches(last) == []
