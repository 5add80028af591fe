"""The controller behind an API server that fails: the same end state as without faults."""

import json
import os
import random
import time
from pathlib import Path

import pytest

from fairlead.kube.client import connection
from tests.kube.faulty import Faults, faulty
from tests.kube.world import World, node, run, team, until

RUNS = 8
SEEDS = range(int(os.environ.get("FAIRLEAD_KUBE_SEEDS", "3")))
"""`make soak` runs 200."""


def kubeconfig(port: int, path: Path) -> Path:
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    document = {
        "clusters": [cluster],
        "users": [{"name": "u", "user": {}}],
        "contexts": [context],
        "current-context": "c",
    }
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("seed", SEEDS)
def test_faults_change_nothing_in_the_end(world: World, tmp_path: Path, seed: int) -> None:
    """Runs of every fate end as they would have; no device is leased or used twice."""
    chance = random.Random(seed)
    fates = [chance.choice(("complete", "fail", "delete", "stay")) for _ in range(RUNS)]
    sizes = [chance.choice((1, 2, 4)) for _ in range(RUNS)]
    world.apply(node("n1"), node("n2"), *team("team-a"))
    faults = Faults(seed, 0.05)
    with faulty(connection(world.kubeconfig), faults) as proxied:
        through = kubeconfig(proxied.port, tmp_path / "kubeconfig")
        names = [f"r{i}" for i in range(RUNS)]
        wanted = dict(zip(names, fates, strict=True))
        restarts = chance.randint(0, 2)
        for life in range(restarts + 1):
            with world.controlled("same", kubeconfig=through):
                due = names[life :: restarts + 1]
                for name in due:
                    world.apply(run(name, sizes[names.index(name)]))
                deadline = time.monotonic() + 4
                while time.monotonic() < deadline:
                    _play(world, wanted)
                if life == restarts:
                    faults.rate = 0.0
                    try:
                        until(lambda: _ended(world, wanted), f"the end of seed {seed}", 60)
                    except AssertionError as error:
                        raise AssertionError(f"{error}\n{wanted}\n{world.picture()}") from None
    assert faults.count > 0, "nothing failed: the test shows nothing"
    _no_device_twice(world)


def _play(world: World, fates: dict[str, str]) -> None:
    """Let what runs meet its fate."""
    for item in world.get("runs")["items"]:
        name, phase = item["metadata"]["name"], item.get("status", {}).get("phase")
        fate = fates.get(name)
        if phase != "Running" or fate in (None, "stay"):
            continue
        if fate == "delete":
            world.kubectl(
                "-n", "team-a", "delete", "run", name, "--wait=false", "--ignore-not-found"
            )
        else:
            world.exit(f"{name}-0", 0 if fate == "complete" else 1, check=False)


def _ended(world: World, fates: dict[str, str]) -> bool:
    _no_device_twice(world)
    _play(world, fates)
    found = {
        item["metadata"]["name"]: item.get("status", {}).get("phase")
        for item in world.get("runs")["items"]
    }
    shown = {"complete": "Completed", "fail": "Failed", "stay": "Running"}
    wanted = {name: shown[fate] for name, fate in fates.items() if fate != "delete"}
    if found != wanted:
        return False
    staying = sorted(name for name, fate in fates.items() if fate == "stay")
    leases = sorted(lease["spec"]["run"] for lease in world.get("gpuleases")["items"])
    living = sorted(
        pod["metadata"]["labels"]["fairlead.dev/run"]
        for pod in world.get("pods", namespace="team-a")["items"]
        if pod["status"]["phase"] not in ("Succeeded", "Failed")
    )
    return leases == living == staying


def _no_device_twice(world: World) -> None:
    leases = world.get("gpuleases")["items"]
    slots = [slot for lease in leases for slot in lease["spec"]["slots"]]
    assert len(slots) == len(set(slots)), f"a device is leased twice: {sorted(slots)}"
