"""Two controllers as processes of their own: the leader is killed, the other one goes on."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from fairlead.host.process import spawn
from tests.kube.world import Document, World, due_now, made, node, run, team, until


def start(world: World, data: Path, log: Path, *flags: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "fairlead", "kube", "controller", "--qps", "0"]
    command += ["--resolver", "enforce", "--kubeconfig", str(world.kubeconfig)]
    command += ["--min-notice", "0s", "--min-runtime", "0s", "--cooldown", "0s"]
    with open(log, "ab") as output:
        return spawn([*command, "--data", str(data), *flags], output=output)


def test_a_killed_leader_is_replaced_and_runs_go_on(world: World, tmp_path: Path) -> None:
    """kill -9 while preempted runs have their grace: the next one carries the outcome out."""
    world.apply(node("n1"), *team("team-a", gpus=8), *team("team-b", gpus=8))
    world.apply(*(run(f"small-{i}", 1, checkpointGrace="20s") for i in range(8)))
    data, log = tmp_path / "data", tmp_path / "log"
    first = start(world, data, log)
    second = None
    try:
        for i in range(8):
            world.reach(f"small-{i}", "Running")
        for pod in world.names("pods"):
            world.kubectl("-n", "team-a", "annotate", "pod", pod, "sim.fairlead.dev/stop-after=5s")
        reserve = due_now("big")
        world.apply(run("big", 4, "team-b"), made("Reservation", "now", reserve, "team-b"))
        until(lambda: len(leaving(world)) == 4, "four pods have their grace")
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        preempted = leaving(world)
        second = start(world, data, log)
        world.reach("big", "Running", "team-b")
        until(lambda: waiting(world) == preempted, "the outcome that was drawn is carried out")
        until(lambda: len(world.names("resolveroutcomes")) == 1, "the one outcome is shown")
    finally:
        for process in (first, second):
            if process is not None and process.poll() is None:
                process.terminate()
                process.wait(20)


def waiting(world: World) -> set[str]:
    return {f"small-{i}-0" for i in range(8) if world.phase(f"small-{i}") == "Pending"}


def leaving(world: World) -> set[str]:
    return {
        pod["metadata"]["name"]
        for pod in world.get("pods", namespace="team-a")["items"]
        if "deletionTimestamp" in pod["metadata"]
    }


def test_a_second_controller_waits(world: World, tmp_path: Path) -> None:
    world.apply(node("n1"), *team("team-a", gpus=8), run("first", 1))
    with world.controlled("leader"):
        world.reach("first", "Running")
        log = tmp_path / "log"
        other = start(world, tmp_path / "other", log)
        try:
            until(lambda: "the cluster is read" in log.read_text(), "the other one watches")
            world.apply(run("second", 1))
            world.reach("second", "Running")
            assert "leads" not in log.read_text()
            assert not (tmp_path / "other" / "ledger.db").exists()
        finally:
            other.terminate()
            assert other.wait(20) == 0


def test_a_controller_with_another_image_takes_over(world: World, tmp_path: Path) -> None:
    """As in an upgrade: it starts while the old one lives. Runs without a template keep the image
    that they were accepted with, also those that start or restart under the new one."""
    world.apply(node("n1", gpus=2), *team("team-a", gpus=8))
    data, logs = tmp_path / "data", [tmp_path / "old", tmp_path / "new"]
    processes = [start(world, data, logs[0], "--image", "app:1")]
    again = {"failurePolicy": {"maxRestarts": 1}}
    try:
        world.apply(bare("runs", **again))
        world.reach("runs", "Running")
        world.apply(bare("waits"))
        until(lambda: world.phase("waits") == "Pending", "it is accepted")
        processes.append(start(world, data, logs[1], "--image", "app:2"))
        until(lambda: "the cluster is read" in logs[1].read_text(), "the new one watches")
        uid = world.get("pod", "runs-0", "team-a")["metadata"]["uid"]
        assert "leads" not in logs[1].read_text()
        processes[0].terminate()
        assert processes[0].wait(60) == 0
        until(lambda: "leads" in logs[1].read_text(), "the new one leads", 60)
        world.apply(bare("late"))
        until(lambda: world.phase("late") == "Pending", "the new one accepts runs")
        assert world.get("pod", "runs-0", "team-a")["metadata"]["uid"] == uid, "it runs on"
        world.exit("runs-0", 1)
        until(lambda: image_of(world, "runs-0", other_than=uid) == "app:1", "it starts again")
        for name, image in (("waits", "app:1"), ("late", "app:2")):
            world.kubectl("-n", "team-a", "delete", "run", "runs" if name == "waits" else "waits")
            world.reach(name, "Running")
            until(lambda name=name: image_of(world, f"{name}-0"), f"{name} has its pod")
            assert image_of(world, f"{name}-0") == image
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
                process.wait(60)


def bare(name: str, **spec: object) -> Document:
    """A Run without a template."""
    fields = {"flavor": "H100", "totalGPUs": 2, "command": ["train"], **spec}
    return made("Run", name, fields, "team-a")


def image_of(world: World, pod: str, other_than: str = "") -> str | None:
    for item in world.get("pods", namespace="team-a")["items"]:
        meta = item["metadata"]
        if meta["name"] == pod and meta["uid"] != other_than and "deletionTimestamp" not in meta:
            return str(item["spec"]["containers"][0]["image"])
    return None
