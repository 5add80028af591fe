"""Two controllers as processes of their own: the leader is killed, the other one goes on."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from fairlead.host.process import spawn
from tests.kube.world import World, due_now, made, node, run, team, until


def start(world: World, data: Path, log: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "fairlead", "kube", "controller", "--qps", "0"]
    command += ["--resolver", "enforce", "--kubeconfig", str(world.kubeconfig)]
    command += ["--min-notice", "0s", "--min-runtime", "0s", "--cooldown", "0s"]
    with open(log, "ab") as output:
        return spawn([*command, "--data", str(data)], output=output)


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
