"""Where weights are governed, PodAllocations become requests: raised, bounded, taken back."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fairlead.kube.cpu import pods as cpu_pods
from fairlead.kube.cpu import resizer
from fairlead.kube.cpu.pods import REQUESTS
from tests.kube.cpu_world import HOLD, NODE, SPACE, NodeAgent, Pods, pod, watch_requests
from tests.kube.world import Document, World, node, until

ROOM = 1000


@pytest.fixture
def pods(world: World) -> Pods:
    """On a node of one core."""
    made = Pods(world)
    patch = json.dumps({"status": {"allocatable": {"cpu": f"{ROOM}m"}}})
    world.kubectl("patch", "node", NODE, "--subresource=status", "--type=merge", "-p", patch)
    return made


def own(pods: Pods, name: str) -> dict[str, Any]:
    return dict(pods.get(name)["spec"]["containers"][0]["resources"])


def request(pods: Pods, name: str) -> int:
    return cpu_pods.asked(pods.get(name), REQUESTS)["main"]


def is_marked(pods: Pods, name: str) -> bool:
    return cpu_pods.ORIGINAL in (pods.get(name)["metadata"].get("annotations") or {})


def restore(world: World) -> list[str]:
    command = [sys.executable, "-m", "fairlead", "kube", "restore"]
    command += ["--kubeconfig", str(world.kubeconfig)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


def test_requests_follow_decisions_between_the_users_own_and_the_limit(pods: Pods) -> None:
    """Limits and QoS class stay, also of a pod without a limit; the user's own come back when a pod
    opts out, and by `fairlead kube restore`."""
    unlimited, whole = pod("unlimited", 0), pod("whole", 200)
    del unlimited["spec"]["containers"][0]["resources"]["limits"]
    for kind in ("limits", "requests"):
        whole["spec"]["containers"][0]["resources"][kind]["memory"] = "64Mi"
    pods.world.apply(unlimited, whole)
    pods.make(web=400, calm=400)
    pods.running("unlimited", "whole")
    names = ("unlimited", "web", "whole", "calm")
    before = {name: own(pods, name) for name in names}
    with pods.world.controlled():
        # One that stays as it is is watched from then on, too.
        pods.decide(resource=REQUESTS, calm=30)
        until(lambda: is_marked(pods, "calm") and pods.reason("calm") == "Applied", "it is marked")
        pods.decide(resource=REQUESTS, unlimited=300, web=250, whole=100)
        pods.applied(REQUESTS, unlimited=300, web=250, whole=100)
        pods.decide(resource=REQUESTS, unlimited=20, web=900, whole=900)
        # The user's own; the limit; the limit would make it one of the class Guaranteed.
        pods.applied(REQUESTS, unlimited=50, web=400, whole=199)
        for name in names:
            shown = pods.get(name)
            assert shown["status"]["qosClass"] == "Burstable"
            assert own(pods, name).get("limits") == before[name].get("limits")
            notes = shown["metadata"]["annotations"]
            assert json.loads(notes[cpu_pods.ORIGINAL])["main"] == before[name]
            last = 1 if name == "calm" else 3
            assert json.loads(notes[cpu_pods.RESIZE])["decision"] == f"{NODE}/{last}"
        assert (
            pods.world.get("podallocation", pods.uid("web"), SPACE)["status"]["millicores"] == 400
        )
        pods.annotate("web", f"{cpu_pods.SWITCH}=off")
        until(lambda: not is_marked(pods, "web"), "an opted-out pod is as it was")
        assert own(pods, "web") == before["web"]
        pods.decide(resource=REQUESTS, unlimited=100)
        pods.applied(REQUESTS, unlimited=100)
    assert restore(pods.world) == [f"restored {SPACE}/unlimited", f"restored {SPACE}/whole"]
    for name in names:
        assert own(pods, name) == before[name]
        assert not is_marked(pods, name)


def test_no_request_rises_above_what_the_node_has_left_for_the_scheduler(pods: Pods) -> None:
    """Pods count that the node agent knows nothing of, and requests that a resize replaces as long
    as they are in force; with an increase that waits no limit and no other pod is changed."""
    pods.world.apply(
        pod("slow", 900, annotations=HOLD),
        pod("other", 900, request=300, annotations={cpu_pods.SWITCH: "off"}),
    )
    pods.make(busy=900)
    pods.running("slow", "other")
    with pods.world.controlled(), watch_requests(pods.world, SPACE) as seen:
        pods.decide(5000, resource=REQUESTS, slow=400, busy=250)
        pods.applied(REQUESTS, busy=250)
        until(lambda: request(pods, "slow") == 400, "it is sent")
        pods.acknowledge("slow")
        pods.decide(5000, resource=REQUESTS, slow=100, busy=600)
        until(lambda: request(pods, "slow") == 100, "the decrease is sent")
        until(lambda: pods.reason("busy") == "WaitsForRoom", "the increase waits")
        assert request(pods, "busy") == 250
        pods.acknowledge("slow")
        pods.applied(REQUESTS, busy=600)
        pods.decide(5000, resource=REQUESTS, busy=650)
        until(lambda: pods.reason("busy") == "WaitsForRoom", "there is no room")
        pods.world.kubectl("-n", SPACE, "delete", "pod", "other", "--now")
        pods.applied(REQUESTS, busy=650)
        pods.decide(700, resource=REQUESTS, busy=700, slow=100)  # what the agent divides binds, too
        until(lambda: pods.reason("busy") == "WaitsForRoom", "its own capacity has no room")
    assert seen.looks > 5
    assert seen.highest <= ROOM


def test_nodes_take_turns_where_pods_are_to_be_counted_of_many(
    pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that waits for room for ever keeps no other one waiting."""
    monkeypatch.setattr(resizer, "LOOKS", 1)
    pods.world.apply(node("cpu-other"))
    there = pod("there", 900)
    there["spec"]["nodeName"] = "cpu-other"
    pods.world.apply(there, pod("full", 950, request=950, annotations={cpu_pods.SWITCH: "off"}))
    pods.make(here=900)
    pods.running("there", "full")
    with pods.world.controlled():
        pods.decide(resource=REQUESTS, here=400)
        until(lambda: pods.reason("here") == "WaitsForRoom", "there is no room here")
        pods.decide(on="cpu-other", resource=REQUESTS, there=400)
        pods.applied(REQUESTS, there=400)
        pods.world.kubectl("-n", SPACE, "delete", "pod", "full", "--now")
        pods.applied(REQUESTS, here=400)


def test_a_deferred_request_counts_and_is_shown(pods: Pods) -> None:
    pods.world.apply(pod("slow", 900, annotations=HOLD))
    pods.running("slow")
    pods.make(busy=900)
    with pods.world.controlled():
        pods.decide(resource=REQUESTS, slow=700)
        until(lambda: request(pods, "slow") == 700, "the increase is sent")
        pods.acknowledge("slow", reason="Deferred", message="no room")
        until(lambda: pods.reason("slow") == "Deferred", "it is shown")
        pods.decide(resource=REQUESTS, busy=400)
        until(lambda: pods.reason("busy") == "WaitsForRoom", "a deferred request is counted")
        pods.acknowledge("slow", reason="Infeasible", message="never")
        until(lambda: request(pods, "slow") == 50, "it is taken back")
        pods.acknowledge("slow")
        pods.applied(REQUESTS, busy=400)


def test_a_change_between_limits_and_weights_begins_with_the_users_own(pods: Pods) -> None:
    pods.make(web=800)
    before = own(pods, "web")
    with pods.world.controlled():
        pods.decide(web=200)
        pods.applied(web=200)
        pods.decide(resource=REQUESTS, web=300)
        pods.applied(REQUESTS, web=300)
        assert pods.limit("web") == 800
        pods.decide(web=100)
        pods.applied(web=100)
        assert request(pods, "web") == 50
        notes = pods.get("web")["metadata"]["annotations"]
        assert json.loads(notes[cpu_pods.ORIGINAL])["main"] == before
    assert restore(pods.world) == [f"restored {SPACE}/web"]
    assert own(pods, "web") == before


def test_containers_have_limits_or_requests(pods: Pods) -> None:
    """One PodAllocation has one kind, and each container exactly one of them."""
    pods.make(web=800)
    uid = pods.uid("web")
    both = {"name": "main", "limitMillicores": 100, "requestMillicores": 100}
    mixed = [{"name": "a", "limitMillicores": 100}, {"name": "b", "requestMillicores": 100}]
    for rows in ([both], [{"name": "main"}], mixed):
        spec: Document = {"pod": "web", "uid": uid, "node": NODE, "decision": 1}
        spec |= {"capacityMillicores": ROOM, "containers": rows}
        document = {"apiVersion": "fairlead.dev/v1alpha1", "kind": "PodAllocation", "spec": spec}
        document["metadata"] = {"name": uid, "namespace": SPACE}
        with pytest.raises(AssertionError, match="all have limitMillicores, or all"):
            pods.world.apply(document)


@pytest.mark.component("helm")
def test_the_agent_of_a_node_publishes_requests(pods: Pods, tmp_path: Path) -> None:
    """As the chart starts it. It divides what is left of the node's CPU, less the reserve, and
    counts the pods that are left alone by their requests. To an agent without its state a request
    that was raised is neither the user's own nor the pod's minimum."""
    agent, config = NodeAgent(pods.world, tmp_path), pods.world.kubeconfig
    agent.container(pods, "web", 800)
    other = pod("other", 900, request=200, annotations={cpu_pods.SWITCH: "off"})
    pods.world.apply(other)
    pods.running("other")

    def published() -> list[str]:
        found = pods.world.get("podallocations", namespace=SPACE)["items"]
        return [*found[0]["spec"]["containers"][0]] if found else []

    with pods.world.controlled():
        pods.decide(resource=REQUESTS, web=300)
        until(lambda: request(pods, "web") == 300, "it is raised")
        pods.acknowledge("web")
        until(lambda: pods.reason("web") == "Applied", "it is in force")
        with agent.running(config, actuate="weights"):
            until((agent.state / "status.json").exists, "a clearing")
            shown = agent.status()
            (web,) = shown["pods"]
            assert shown["actuate"] == "weights"
            assert shown["capacity_millicores"] == ROOM - ROOM // 10 - 200
            assert (web["min_millicores"], web["max_millicores"]) == (100, 800)
            assert (web["guarantee_millicores"], web["limit_millicores"]) == (300, 800)
            until(lambda: 100 <= request(pods, "web") < 300, "it is lowered")
        assert published() == ["name", "requestMillicores"]
        pods.acknowledge("web")
        with agent.running(config):
            until(lambda: "limitMillicores" in published(), "limits again")
            until(lambda: request(pods, "web") == 50, "the user's own comes back first")
