"""PodAllocations become resizes: in order, verified, and taken back. The node agent is the test."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fairlead.core.cpu import ResizeState
from fairlead.kube.cpu import pods as cpu_pods
from tests.kube.cpu_world import HOLD, NODE, SPACE, NodeAgent, Pods, SumWatch, pod
from tests.kube.world import Document, World, until


@pytest.fixture
def pods(world: World) -> Pods:
    return Pods(world)


def test_limits_follow_decisions_and_are_taken_back(pods: Pods) -> None:
    """Frozen and named before the first resize, no restart, requests and QoS class untouched; the
    pod's own limit comes back when it opts out and when its PodAllocation goes."""
    pods.make(idle=700, busy=800)
    with pods.world.controlled():
        pods.decide(idle=200, busy=800)
        pods.applied(idle=200, busy=800)
        pods.decide(idle=100, busy=700)
        pods.applied(idle=100, busy=700)
        uid = pods.uid("idle")
        pods.world.kubectl("-n", SPACE, "wait", "--for=condition=Applied", f"pa/{uid}")
        shown = pods.get("idle")
        assert shown["status"]["qosClass"] == "Burstable"
        assert shown["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "50m"}
        notes = shown["metadata"]["annotations"]
        assert json.loads(notes[cpu_pods.ORIGINAL])["main"]["limits"] == {"cpu": "700m"}
        assert json.loads(notes[cpu_pods.RESIZE])["decision"] == f"{NODE}/2"
        pods.annotate("idle", f"{cpu_pods.SWITCH}=off")
        until(lambda: pods.in_force("idle") == 700, "an opted-out pod has its own limit")
        until(lambda: cpu_pods.ORIGINAL not in _notes(pods, "idle"), "our marks are gone")
        assert pods.reason("idle") == "Ignored"
        pods.world.kubectl("-n", SPACE, "delete", "pa", pods.uid("busy"))
        until(lambda: pods.in_force("busy") == 800, "its own limit is back")
        until(lambda: cpu_pods.ORIGINAL not in _notes(pods, "busy"), "our marks are gone")


def _notes(pods: Pods, name: str) -> dict[str, str]:
    return dict(pods.get(name)["metadata"].get("annotations") or {})


def test_an_increase_waits_for_the_decrease_and_for_what_was_put_off(pods: Pods) -> None:
    """Deferred and Infeasible are shown; a refused resize is taken back and not sent again."""
    pods.world.apply(pod("slow", 600, annotations=HOLD))
    pods.make(busy=900)
    pods.running("slow")
    with pods.world.controlled():
        pods.decide(slow=600, busy=400)
        until(lambda: pods.reason("busy") == "Applied", "the first limits are in force")
        pods.decide(slow=200, busy=800)
        until(lambda: pods.limit("slow") == 200, "the decrease is sent")
        until(lambda: pods.reason("busy") == "WaitsForRoom", "the increase waits")
        assert pods.limit("busy") == 400
        pods.acknowledge("slow")
        pods.applied(busy=800)
        pods.decide(slow=200, busy=600)
        pods.applied(busy=600)
        pods.decide(slow=400)
        until(lambda: pods.limit("slow") == 400, "the increase is sent")
        pods.acknowledge("slow", reason="Deferred", message="no room")
        until(lambda: pods.reason("slow") == "Deferred", "it is shown")
        pods.decide(busy=800)  # 400 may still come into force
        until(lambda: pods.reason("busy") == "WaitsForRoom", "a deferred increase is counted")
        pods.acknowledge("slow", reason="Infeasible", message="never")
        until(lambda: pods.limit("slow") == 200, "it is taken back")
        until(lambda: pods.reason("slow") == "Infeasible", "it is shown")
        pods.acknowledge("slow")
        pods.applied(busy=800)
        assert (pods.limit("slow"), pods.reason("slow")) == (200, "Infeasible")
        pods.decide(slow=150)
        until(lambda: pods.limit("slow") == 150, "another decision is tried")


def test_only_burstable_pods_of_that_node_are_resized(pods: Pods) -> None:
    """Neither Guaranteed nor BestEffort, none with a container that has no limit or that restarts,
    none by the agent of another node; and no limit is below its request."""
    guaranteed, best_effort = pod("guaranteed", 500), pod("best-effort", 500)
    whole = {"cpu": "500m", "memory": "64Mi"}
    guaranteed["spec"]["containers"][0]["resources"] = {"limits": whole, "requests": whole}
    del best_effort["spec"]["containers"][0]["resources"]
    restarts, unlimited = pod("restarts", 500), pod("unlimited", 500)
    policy = {"resourceName": "cpu", "restartPolicy": "RestartContainer"}
    restarts["spec"]["containers"][0]["resizePolicy"] = [policy]
    del unlimited["spec"]["containers"][0]["resources"]["limits"]
    rows = (guaranteed, best_effort, restarts, unlimited)
    names = [row["metadata"]["name"] for row in rows]
    pods.world.apply(*rows, pod("elsewhere", 500), pod("greedy", 500, request=300))
    pods.running(*names, "elsewhere", "greedy")
    with pods.world.controlled():
        pods.decide(**dict.fromkeys(names, 100))
        pods.decide(elsewhere=100, on="another-node")
        pods.decide(greedy=100)
        pods.applied(greedy=300)
        for name in (*names, "elsewhere"):
            until(lambda name=name: pods.reason(name) == "Ignored", f"{name} is left alone")
            assert cpu_pods.ORIGINAL not in _notes(pods, name)
        assert pods.limit("elsewhere") == 500
        until(lambda: "LimitHeldAtRequest" in _events(pods), "an Event tells")


def _events(pods: Pods) -> set[str]:
    return {row["reason"] for row in pods.world.get("events", namespace=SPACE)["items"]}


def watch_limits(pods: Pods) -> SumWatch:
    """The limits of pods whose first resize is in force."""
    adopted: set[str] = set()

    def look() -> int:
        found = {row["metadata"]["name"]: row for row in _items(pods)}
        for name, row in found.items():
            last = cpu_pods.last_resize(row)
            settled = cpu_pods.resize_state(row, cpu_pods.LIMITS) is ResizeState.SETTLED
            low = cpu_pods.asked(row, cpu_pods.LIMITS)["main"] < 2000
            if last is not None and settled and low:
                adopted.add(name)
        return sum(cpu_pods.in_force(found[name])["main"] for name in adopted)

    return SumWatch(look)


def _items(pods: Pods) -> list[Document]:
    return list(pods.world.get("pods", namespace=SPACE)["items"])


def test_a_killed_controller_is_continued_and_the_sum_holds_at_every_instant(
    pods: Pods, tmp_path: Path
) -> None:
    """kill -9 in the middle of a set of resizes: the next one finishes it. `fairlead kube restore`
    puts the originals back, without a controller."""
    names = [f"p{index}" for index in range(8)]
    pods.make(**dict.fromkeys(names, 2000))
    first = {name: 225 if index < 4 else 25 for index, name in enumerate(names)}
    last = {name: 25 if index < 4 else 225 for index, name in enumerate(names)}
    first, last = ({n: max(50, m) for n, m in rows.items()} for rows in (first, last))
    capacity = 1100
    with watch_limits(pods) as watcher:
        process = _controller(pods.world, tmp_path)
        try:
            pods.decide(capacity, **first)
            pods.applied(**first)
            pods.decide(capacity, **last)
            until(lambda: any(pods.limit(name) == last[name] for name in names), "one is sent")
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(10)
        left = [name for name in names if pods.limit(name) != last[name]]
        assert left, "it was killed too late to show anything"
        pods.world.kubectl("-n", "default", "delete", "lease", "fairlead-controller")
        with pods.world.controlled("second"):
            pods.applied(**last)
    assert sum(first.values()) <= watcher.highest <= capacity
    command = [sys.executable, "-m", "fairlead", "kube", "restore"]
    done = subprocess.run(
        [*command, "--kubeconfig", str(pods.world.kubeconfig)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert sorted(done.stdout.splitlines()) == [f"restored {SPACE}/{name}" for name in names]
    assert {pods.limit(name) for name in names} == {2000}
    assert pods.world.names("podallocations") == []
    assert all(cpu_pods.ORIGINAL not in _notes(pods, name) for name in names)


def _controller(world: World, folder: Path) -> "subprocess.Popen[bytes]":
    command = [
        sys.executable,
        "-m",
        "fairlead",
        "kube",
        "controller",
        "--qps",
        "20",
        "--burst",
        "1",
    ]
    command += ["--data", str(folder / "killed"), "--kubeconfig", str(world.kubeconfig)]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


@pytest.mark.component("helm")
def test_the_agent_follows_its_node_and_an_agent_without_state_takes_no_limit_for_the_users(
    pods: Pods, tmp_path: Path
) -> None:
    """C is what the node may give, less the pods that are left alone; a PodAllocation that is
    deleted is made again; after kill -9 and the loss of its state the pod's maximum is still the
    user's own limit, and its record begins anew."""
    agent, config = NodeAgent(pods.world, tmp_path), pods.world.kubeconfig
    quota = agent.container(pods, "web", 800)
    whole = {"cpu": "2", "memory": "64Mi"}
    guaranteed = pod("guaranteed", 0)
    guaranteed["spec"]["containers"][0]["resources"] = {"limits": whole, "requests": whole}
    pods.world.apply(guaranteed)
    pods.running("guaranteed")

    def seen(name: str) -> Any:
        return (agent.status() | agent.status()["pods"][0])[name]

    def decision() -> int:
        found = pods.world.get("podallocations", namespace=SPACE)["items"]
        return int(found[0]["spec"]["decision"]) if found else -1

    with agent.running(config, signal.SIGKILL):
        until(lambda: decision() >= 0, "a PodAllocation")
        assert seen("capacity_millicores") == 32_000 - 2_000
        allocatable = {"status": {"allocatable": {"cpu": "16"}}}
        patch = ("--subresource=status", "--type=merge", "-p", json.dumps(allocatable))
        pods.world.kubectl("patch", "node", NODE, *patch)
        until(lambda: seen("capacity_millicores") == 16_000 - 2_000, "the node gives less")
        pods.world.kubectl("-n", SPACE, "delete", "pa", "--all")
        until(lambda: decision() >= 0, "it is made again")
        quota.write_text("20000 100000\n")
        until(lambda: decision() > 5, "later decisions")
        last = decision()
    shutil.rmtree(agent.state)
    pods.annotate("web", f"{cpu_pods.ORIGINAL}={cpu_pods.original_text(pods.get('web'))}")
    with agent.running(config):
        until(lambda: decision() < last, "the new record's numbers count")
        assert seen("max_millicores") == 800
        assert seen("limit_millicores") == 200
