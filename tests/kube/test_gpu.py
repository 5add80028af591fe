"""GPU runs on a real API server, scheduler and controller manager; KWOK plays the nodes."""

import json
from typing import Any

import pytest

from tests.kube.world import Document, World, made, node, plane_of, run, team, until

DEEP = '{"a":' * 5000 + "1" + "}" * 5000


def test_a_run_is_leased_started_and_settled(world: World) -> None:
    """Leases before pods, pods on the leased nodes only, accounts settled at the end."""
    world.apply(node("n1"), node("n2"), *team("team-a"), run("train", 16, groupGPUs=8))
    with world.controlled() as controller:
        world.reach("train", "Running")
        pods = until(lambda: _bound(world), "both pods are bound")
        leases = world.get("gpuleases")["items"]
        slots = {slot.partition("#")[0] for lease in leases for slot in lease["spec"]["slots"]}
        assert slots == {"n1", "n2"}
        for pod in pods:
            leased = pod["metadata"]["annotations"]["fairlead.dev/leases"].split(",")
            assert sorted(leased) == sorted(lease["metadata"]["name"] for lease in leases)
            assert "schedulingGates" not in pod["spec"]
            env = {row["name"]: row["value"] for row in pod["spec"]["containers"][0]["env"]}
            assert env["MASTER_ADDR"] == "train-0.train"
            assert env["PET_NODE_RANK"] == pod["metadata"]["labels"]["fairlead.dev/rank"]
            assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "8"
        for rank in (0, 1):
            world.exit(f"train-{rank}", 0)
        world.kubectl("-n", "team-a", "wait", "--for=condition=Completed", "run/train")
        until(lambda: not world.names("gpuleases"), "the leases are closed")
        plane = plane_of(controller)
        assert not plane.objects.list("Lease")
        (row,) = plane.objects.get("Budget", "team-a")["status"]["headroom"]
        assert row["concurrencyUsed"] == 0
        assert row["gpuHoursHeld"] == 0


def _bound(world: World) -> list[dict[str, object]] | None:
    pods = world.get("pods")["items"]
    return pods if len(pods) == 2 and all("nodeName" in pod["spec"] for pod in pods) else None


def test_a_rank_that_fails_ends_the_gang(world: World) -> None:
    world.apply(node("n1"), node("n2"), *team("team-a"), run("train", 16, groupGPUs=8))
    with world.controlled():
        world.reach("train", "Running")
        until(lambda: _bound(world), "both pods are bound")
        world.exit("train-1", 3)
        status = world.reach("train", "Failed")
        assert status["exitCode"] == 3
        assert "rank 1" in status["message"]
        until(lambda: "train-0" not in world.names("pods"), "the other rank is ended")


def test_a_rank_that_exits_follows_its_failure_policy(world: World) -> None:
    """The gang starts again on its devices, as often as the policy says; then it has failed."""
    policy = {"maxRestarts": 1, "failExitCodes": [42]}
    world.apply(node("n1"), node("n2"), *team("team-a"))
    world.apply(run("train", 16, groupGPUs=8, failurePolicy=policy))
    with world.controlled() as controller:
        world.reach("train", "Running")
        first = {pod["metadata"]["uid"] for pod in until(lambda: _bound(world), "both are bound")}
        world.exit("train-1", 1)

        def again() -> bool:
            pods = _bound(world) or ()
            return bool(pods) and not first & {pod["metadata"]["uid"] for pod in pods}

        until(again, "both ranks are made again")
        status = world.reach("train", "Running")
        assert (status["restarts"], status["attempts"]) == (1, 2)
        events = [event["reason"] for event in world.get("events", namespace="team-a")["items"]]
        assert "Restarted" in events
        world.exit("train-0", 1)
        assert world.reach("train", "Failed")["exitCode"] == 1
        world.apply(run("second", 8, failurePolicy=policy))
        world.reach("second", "Running")
        until(lambda: "second-0" in world.names("pods"), "its pod is there")
        world.exit("second-0", 42)
        assert world.reach("second", "Failed")["restarts"] == 0
        kinds = [entry.kind for entry in plane_of(controller).committer.ledger.entries(0, 1000)]
        assert kinds.count("gpu.restart") == 3


@pytest.mark.parametrize(
    ("spec", "reason", "says"),
    [
        ({"owner": "team-b"}, "Invalid", "must be the namespace's owner, 'team-a'"),
        ({"template": {"spec": {"containers": []}}}, "Invalid", "must name a container"),
        (
            {"template": {"spec": {"containers": [{"name": "m"}], "nodeName": "n1"}}},
            "Invalid",
            "nodeName: is Fairlead's to set",
        ),
    ],
)
def test_what_a_tenant_may_not_say_is_refused(
    world: World, spec: dict[str, object], reason: str, says: str
) -> None:
    world.apply(node("n1"), *team("team-a"), *team("team-b"), run("train", 8, **spec))
    with world.controlled():
        status = world.reach("train", "Refused")
        (accepted,) = [row for row in status["conditions"] if row["type"] == "Accepted"]
        assert accepted["status"] == "False"
        assert accepted["reason"] == reason
        assert says in accepted["message"]
        assert not world.names("pods")


def test_a_namespace_without_a_binding_has_no_owner(world: World) -> None:
    """And one that was deleted and made again under its name does not inherit the owner."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a"}}
    world.apply(node("n1"), namespace, run("train", 8))
    with world.controlled():
        status = world.reach("train", "Pending")
        assert status["reason"] == "NoOwner"
        world.apply(*team("team-a"))
        world.reach("train", "Running")
        world.kubectl("-n", "team-a", "delete", "run", "train")
        world.kubectl("delete", "namespace", "team-a")
        world.apply(namespace)

        def replaced() -> bool:
            rows = world.get("ownerbinding", "team-a").get("status", {}).get("conditions", ())
            return any(row["reason"] == "NamespaceReplaced" for row in rows)

        until(replaced, "the binding no longer holds")
        world.apply(run("again", 8))
        assert world.reach("again", "Pending")["reason"] == "NoOwner"


def test_devices_are_free_when_the_pod_is_gone(world: World) -> None:
    """A finalizer keeps the Run until its accounts are settled; a pod that terminates holds."""
    world.apply(node("n1"), *team("team-a", gpus=8), run("first", 8))
    with world.controlled(grace_ms=60_000):
        world.reach("first", "Running")
        until(lambda: world.names("pods") == ["first-0"], "the pod is there")
        keep = '{"metadata":{"finalizers":["test.fairlead.dev/keep"]}}'
        world.kubectl("-n", "team-a", "patch", "pod", "first-0", "--type=merge", "-p", keep)
        world.apply(run("second", 8))
        world.kubectl("-n", "team-a", "delete", "run", "first", "--wait=false")

        def terminating() -> bool:
            (pod,) = world.get("pods")["items"]
            return "deletionTimestamp" in pod["metadata"]

        until(terminating, "the pod terminates")
        for _ in range(20):
            assert world.phase("second") in ("", "Pending")
            assert "first" in world.names("runs")
        drop = '{"metadata":{"finalizers":null}}'
        world.kubectl("-n", "team-a", "patch", "pod", "first-0", "--type=merge", "-p", drop)
        world.reach("second", "Running")
        until(lambda: world.names("runs") == ["second"], "the first run is gone")


def test_a_spare_replaces_a_deleted_node_and_nothing_else_does(world: World) -> None:
    """Not ready and cordoned are no failure; a deleted node is."""
    world.apply(*(node(f"n{i}", gpus=4) for i in (1, 2, 3)), *team("team-a"))
    world.apply(run("train", 8, groupGPUs=8, sparesPerGroup=4))
    with world.controlled() as controller:
        world.reach("train", "Running")
        until(lambda: _bound(world), "both pods are bound")
        world.kubectl("cordon", "n1")
        world.kubectl("taint", "node", "n1", "node.kubernetes.io/unreachable:NoSchedule")
        plane = plane_of(controller)
        until(lambda: plane.objects.get("Node", "n1")["spec"]["cordoned"], "n1 is cordoned")
        assert world.get("run", "train", "team-a")["status"]["attempts"] == 1
        world.kubectl("delete", "node", "n1")

        def moved() -> bool:
            pods = world.get("pods")["items"]
            nodes = {pod["spec"].get("nodeName") for pod in pods}
            return len(pods) == 2 and nodes == {"n2", "n3"}

        until(moved, "the ranks run on the other nodes")
        status = world.get("run", "train", "team-a")["status"]
        assert status["attempts"] == 2
        assert status["phase"] == "Running"
        until(lambda: plane.objects.get("Node", "n1") is None, "the node is forgotten")


def test_a_node_that_is_declared_out_of_service_has_failed_until_it_is_back(world: World) -> None:
    """The taint is the admin's word that nothing runs there any more; nothing is placed there."""
    world.apply(*(node(f"n{i}", gpus=4) for i in (1, 2, 3)), *team("team-a"))
    world.apply(run("train", 8, groupGPUs=8, sparesPerGroup=4))
    taint = "node.kubernetes.io/out-of-service"
    with world.controlled() as controller:
        world.reach("train", "Running")
        until(lambda: _bound(world), "both pods are bound")
        world.kubectl("taint", "node", "n1", f"{taint}=nodeshutdown:NoExecute")
        until(lambda: _on(world) == {"n2", "n3"}, "the ranks run on the other nodes")
        assert world.reach("train", "Running")["attempts"] == 2
        world.apply(run("next", 4))
        until(lambda: world.phase("next") == "Pending", "it waits for a node")
        turns = controller.turns
        until(lambda: controller.turns > turns + 3, "some turns")
        assert world.phase("next") == "Pending"
        world.kubectl("taint", "node", "n1", f"{taint}-")
        world.reach("next", "Running")
        until(lambda: "n1" in _on(world), "its pod is bound")


def test_a_node_that_went_while_no_controller_ran_has_failed(world: World) -> None:
    """Also where another one has its name by now: what ran on the one does not run there."""
    world.apply(*(node(f"n{i}", gpus=4) for i in (1, 2, 3)), *team("team-a"))
    world.apply(run("train", 8, groupGPUs=8, sparesPerGroup=4))
    with world.controlled():
        world.reach("train", "Running")
        until(lambda: _bound(world), "both pods are bound")
    world.kubectl("delete", "node", "n1")
    world.apply(node("n1", gpus=4))
    with world.controlled() as controller:
        until(lambda: _on(world) == {"n2", "n3"}, "the ranks run on the other nodes")
        assert world.reach("train", "Running")["attempts"] == 2
        plane = plane_of(controller)
        until(lambda: plane.objects.get("Node", "n1")["status"]["free"] == 4, "n1 serves again")
    world.kubectl("delete", "node", "n2")
    with world.controlled() as controller:
        world.reach("train", "Pending")
        plane = plane_of(controller)
        until(lambda: plane.objects.get("Node", "n2") is None, "n2 is forgotten")


def _on(world: World) -> set[str | None]:
    return {pod["spec"].get("nodeName") for pod in world.get("pods")["items"]}


def test_manifests_are_refused_by_the_server_itself(world: World) -> None:
    """Even while no controller runs: the CRD holds what the manifest's type says."""
    world.apply(*team("team-a"))
    for spec, says in (
        ({"totalGPUs": 0}, "totalGPUs"),
        ({"totalGPUs": 8, "groupGPUs": 9}, "groupGPUs must be at most totalGPUs"),
        ({"totalGPUs": 8, "typo": 1}, "typo"),
        ({"totalGPUs": 8, "flavor": None}, "flavor"),
    ):
        document = run("train", 8)
        document["spec"] |= spec
        out = _refused(world, document)
        assert says in out, out
    world.apply(run("train", 8))
    assert "totalGPUs is immutable" in _refused(world, run("train", 4))
    assert "spec.earliestStart" in _refused(world, made("Reservation", "r", {"run": "x"}, "team-a"))


def test_each_form_that_a_field_has_is_the_servers_to_check(world: World) -> None:
    """Durations, times and what fields say of each other; good ones of each form are stored."""
    world.apply(*team("team-a"))
    duration, elastic = "must be a duration like 90m", {"minTotalGPUs": 3, "stepGPUs": 2}
    bad: list[tuple[dict[str, Any], str, str]] = [
        *(
            (_with(run("x", 8), duration=text), "spec.duration", duration)
            for text in ("soon", "0s", "367d", "1m2h", "-1h", "1", "9" * 30 + "h", "1 h")
        ),
        (_with(run("x", 8), checkpointGrace="5"), "spec.checkpointGrace", duration),
        (_with(run("x", 8), workingDirectory="work"), "spec.workingDirectory", "should match"),
        (_with(run("x", 8), malleable=elastic), "spec", "plus a multiple of stepGPUs"),
        (_with(run("x", 8), command=[""]), "spec", "command[0] must be a program"),
        *(
            (_reservation(text), "spec.earliestStart", "date-time")
            for text in ("tomorrow", "2026-01-01T00:00:00", "2026-02-31T00:00:00Z", "2026-01-01")
        ),
        (_window("2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z"), "window", "after its start"),
    ]
    for number, (document, _, _) in enumerate(bad):
        document["metadata"]["name"] = f"bad-{number}"
    items = {"apiVersion": "v1", "kind": "List", "items": [row[0] for row in bad]}
    said = world.kubectl("apply", "-f", "-", given=json.dumps(items), check=False)
    refusals = [part for part in said.split('"bad-')[1:] if "is invalid" in part]
    assert len(refusals) == len(bad), said
    for (document, field, why), refusal in zip(bad, refusals, strict=True):
        assert field in refusal, (document, refusal)
        assert why in refusal, (document, refusal)
    good = ("366d", "1d2h3m4s5ms", "90m", "500ms", "0d1s")
    world.apply(
        *(_with(run(f"good-{i}", 8), duration=text) for i, text in enumerate(good)),
        _reservation("2026-01-01T00:00:00.25+01:00"),
        _window("2026-01-01T00:00:00Z", "2026-01-01T00:00:00.001Z"),
    )


def _with(document: Document, **spec: Any) -> Document:
    return {**document, "spec": {**document["spec"], **spec}}


def _reservation(start: str) -> Document:
    return made("Reservation", "good", {"run": "good-0", "earliestStart": start}, "team-a")


def _window(start: str, end: str) -> Document:
    window = {"start": start, "end": end}
    envelope = {"name": "main", "flavor": "gpu", "concurrency": 8, "window": window}
    return made("Budget", "good", {"owner": "team-a", "envelopes": [envelope]})


def _refused(world: World, document: dict[str, object]) -> str:
    return world.kubectl("apply", "-f", "-", given=json.dumps(document), check=False)


def test_a_namespace_without_room_keeps_no_other_one_waiting(world: World) -> None:
    """Its run waits for its quota, with its leases; deleted, it gives them back."""
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "none", "namespace": "team-a"},
        "spec": {"hard": {"pods": "0", "count/gpuleases.fairlead.dev": "0"}},
    }
    world.apply(node("n1"), *team("team-a"), *team("team-b"))
    world.apply(quota)
    until(
        lambda: world.get("resourcequotas", "none", "team-a").get("status", {}).get("hard"),
        "the quota holds",
    )
    with world.controlled() as controller:
        world.apply(run("stuck", 4))
        world.reach("stuck", "Running")
        until(lambda: _not_made(world), "the run says why it has no pods")
        world.apply(run("fine", 4, "team-b"))
        world.reach("fine", "Running", "team-b")
        until(lambda: world.names("pods") == ["fine-0"], "the other run has its pod")
        world.exit("fine-0", 0, "team-b")
        world.reach("fine", "Completed", "team-b")
        world.kubectl("-n", "team-a", "delete", "run", "stuck", "--timeout=20s")
        assert not plane_of(controller).objects.list("Lease")


def _not_made(world: World) -> bool:
    rows = world.get("run", "stuck", "team-a")["status"]["conditions"]
    said = [
        row["message"] for row in rows if row["type"] == "AsLeased" and row["status"] == "False"
    ]
    return any("exceeded quota" in message for message in said)


def test_a_namespace_that_is_deleted_gives_its_devices_back(world: World) -> None:
    world.apply(node("n1"), *team("team-a"), *team("team-b"), run("train", 8))
    with world.controlled() as controller:
        world.reach("train", "Running")
        until(lambda: world.names("pods") == ["train-0"], "the pod is there")
        world.kubectl("delete", "namespace", "team-a", "--timeout=40s")
        until(lambda: not plane_of(controller).objects.list("Lease"), "nothing is leased")
        world.apply(run("next", 8, "team-b"))
        world.reach("next", "Running", "team-b")


def test_a_run_that_is_nested_too_deeply_is_refused_alone(world: World) -> None:
    """The API server stores it; it must not keep the controller from reading the others."""
    world.apply(node("n1"), *team("team-a"), run("fine", 4))
    deep = json.dumps(run("deep", 4)).replace('"main"', '"main", "x": ' + DEEP, 1)
    with world.controlled():
        world.reach("fine", "Running")
        world.kubectl("create", "-f", "-", "--validate=false", given=deep)
        assert "nested" in world.reach("deep", "Refused")["message"]
        world.apply(run("next", 4))
        world.reach("next", "Running")
    with world.controlled():  # reads it again, from a list
        world.exit("fine-0", 0)
        world.reach("fine", "Completed")
