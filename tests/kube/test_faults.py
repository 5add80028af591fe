"""Random schedules of faults: the same end state as without them, and no device used twice.

A proxy cuts connections and watches, delays, repeats and swaps; beside it the API server and etcd
are killed, leaders are killed and halted, nodes go and return, pods are deleted behind our back,
others' webhooks and quotas refuse, and the kinds are upgraded.
"""

import json
import os
import random
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fairlead.kube.client import connection
from fairlead.kube.dev.assets import Programs
from fairlead.kube.dev.cluster import Cluster
from fairlead.kube.dev.components import ClusterOptions
from fairlead.kube.gpu.ranks import DECISION
from fairlead.kube.kinds import crds
from fairlead.ledger.place import open_for_reading
from tests.kube.disasters import Disasters
from tests.kube.faulty import Faults
from tests.kube.replicas import Replicas
from tests.kube.witness import Witness
from tests.kube.world import World, due_now, made, node, run, team, until
from tests.ledger.postgres_server import server

RUNS, GPUS, STRIKES, STAYING = 8, 4, 3, 10
SEEDS = range(int(os.environ.get("FAIRLEAD_KUBE_SEEDS", "3")))
"""`make soak` runs 200."""
FATES = ("complete", "fail", "delete", "lose", "lose by force", "stay", "stay", "stay")
SHOWN = {"complete": "Completed", "stay": "Running"}
"""What becomes of a run by its fate; else it has failed."""


def seeds() -> list[object]:
    """Every other one has its ledger in PostgreSQL, and a second replica beside the first."""
    marks = (pytest.mark.component("postgres"),)
    return [pytest.param(seed, marks=marks if seed % 2 else ()) for seed in SEEDS]


@pytest.fixture(scope="module")
def own_cluster(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Its servers are killed: what they acknowledged has to be on disk."""
    options = ClusterOptions(nodes=1, gpus=1, fsync=True)
    with Cluster(programs, tmp_path_factory.mktemp("faults") / "cluster", options) as started:
        started.apply(crds())
        started.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        yield started


@pytest.fixture
def own_world(own_cluster: Cluster, tmp_path: Path) -> World:
    """Cleaned before, not after: the cluster goes with the module."""
    found = World(own_cluster, tmp_path)
    found.clean()
    return found


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with server() as address:
        yield address


class Schedule:
    """The runs of a seed, and what is to become of them."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self._world = world
        names = [f"r{i}" for i in range(RUNS)]
        self.fates = {name: chance.choice(FATES) for name in names}
        self.sizes = {name: chance.choice((1, 2, 3, 6)) for name in names}
        room = STAYING
        for name in names:  # what stays leaves room for the others
            room -= self.sizes[name] if self.fates[name] == "stay" else 0
            if room < 0 or (self.fates[name], self.sizes[name]) == ("stay", 6):
                room, self.fates[name] = max(room, 0), "complete"
        self.due = names

    def submit(self, count: int) -> None:
        now, self.due = self.due[:count], self.due[count:]
        self._world.apply(*(run(name, self.sizes[name]) for name in now))

    def reserve(self) -> None:
        """A reservation of another team, for which what stays may have to go, until it is over."""
        self.fates["big"] = "complete"
        self._world.apply(
            run("big", 8, "team-b"), made("Reservation", "now", due_now("big"), "team-b")
        )

    def play(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.step()
            time.sleep(0.1)

    def step(self) -> None:
        """Let what runs meet its fate."""
        for item in self._world.get("runs")["items"]:
            name, phase = item["metadata"]["name"], item.get("status", {}).get("phase")
            fate = self.fates[name]
            if (
                phase == "Running"
                and fate != "stay"
                and "deletionTimestamp" not in item["metadata"]
            ):
                self._meet(name, fate)

    def _meet(self, name: str, fate: str) -> None:
        world, own = self._world, ("-n", namespace_of(name))
        if fate == "delete":
            world.kubectl(*own, "delete", "run", name, "--wait=false", check=False)
        elif fate == "lose":
            world.kubectl(*own, "delete", "pod", f"{name}-0", "--wait=false", check=False)
        elif fate == "lose by force":
            how = ("--force", "--grace-period=0", "--wait=false")
            world.kubectl(*own, "delete", "pod", f"{name}-0", *how, check=False)
        else:
            code = 0 if fate == "complete" else 1
            for pod in world.get("pods", namespace=own[1])["items"]:
                if pod["metadata"]["labels"]["fairlead.dev/run"] == name:
                    world.exit(pod["metadata"]["name"], code, own[1], check=False)

    def ended(self) -> bool:
        """The end state of a world without faults."""
        self.step()
        world = self._world
        found = {
            item["metadata"]["name"]: item.get("status", {}).get("phase")
            for item in world.get("runs")["items"]
        }
        wanted = {
            name: SHOWN.get(fate, "Failed") for name, fate in self.fates.items() if fate != "delete"
        }
        if found != wanted:
            return False
        staying = {name for name, fate in self.fates.items() if fate == "stay"}
        leases = {lease["spec"]["run"] for lease in world.get("gpuleases")["items"]}
        living = {
            pod["metadata"]["labels"]["fairlead.dev/run"]
            for pod in world.get("pods")["items"]
            if pod["status"]["phase"] not in ("Succeeded", "Failed")
        }
        return leases == living == staying

    def nothing_left(self) -> bool:
        kinds = ("runs", "gpuleases", "pods")
        return not any(self._world.names(kind) for kind in kinds)


@pytest.mark.parametrize("seed", seeds())
def test_faults_change_nothing_in_the_end(
    own_world: World, tmp_path: Path, request: pytest.FixtureRequest, seed: int
) -> None:
    """Runs of every fate end as they would have; no device is leased or used twice."""
    world, chance = own_world, random.Random(seed)
    ledger = new_database(request.getfixturevalue("database"), seed) if seed % 2 else None
    world.apply(*(node(f"n{i}", gpus=GPUS) for i in (1, 2, 3, 4)))
    world.apply(*team("team-a"), *team("team-b"))
    schedule, faults = Schedule(world, chance), Faults(seed, 0.05)
    to = connection(world.kubeconfig)
    replicas, witness = Replicas(to, faults, tmp_path, ledger), Witness(to, GPUS)
    disasters = Disasters(world, replicas, chance, schedule.play)
    reserving = chance.choice((1, 2))
    struck = chance.sample(disasters.names(replicas=ledger is not None), STRIKES)
    with closing(replicas):
        try:
            for _ in range(2 if ledger else 1):
                replicas.start()
            schedule.submit(2)
            assert replicas.leader
            for names in (struck[:1], struck[1:]):  # the last two at once
                schedule.submit(3)
                schedule.play(chance.uniform(0, 3))
                if reserving == len(names):
                    schedule.reserve()
                disasters.strike(*names)
            schedule.play(1)
            faults.rate = 0.0
            until(lambda: replicas.leader and schedule.ended(), "the end of a world without", 180)
            world.kubectl("delete", "reservations,runs", "-A", "--all", "--wait=false")
            until(schedule.nothing_left, "nothing is left behind", 120)
            for replica in replicas.all:
                code = replica.end()
                known = (0, 3, -9) if replica.log else (-15,)  # one that has hardly begun
                assert code in known, f"ended with {code}:\n{replica.log[-2000:]}"
            witness.stop()
            check_ledger(ledger or str(replicas.data / "ledger.db"), witness, replicas)
        except AssertionError as error:
            facts = f"{struck}\n{schedule.fates}\n{world.picture()}\n{replicas.logs()}"
            (tmp_path / "failure").write_text(f"seed {seed}: {error}\n{facts}")  # at once
            raise AssertionError(f"seed {seed}: {error}\n{facts}") from None
    assert faults.count > 0, "nothing failed: the test shows nothing"


def namespace_of(run: str) -> str:
    return "team-b" if run == "big" else "team-a"


def new_database(address: str, seed: int) -> str:
    import psycopg  # noqa: PLC0415 - an extra

    with psycopg.connect(address, autocommit=True) as made:
        made.execute(f"CREATE DATABASE seed_{seed}")
    return address.rpartition("/")[0] + f"/seed_{seed}"


def check_ledger(place: str, witness: Witness, replicas: Replicas) -> None:
    """It verifies, no slot was two pods', and each eviction names an entry of it."""
    with closing(open_for_reading(place)) as reader:
        verified = reader.verify()
        assert verified.ok, verified
        entries, after = [], 0
        while part := reader.entries(after, 10_000):
            entries += part
            after = part[-1].seq
    opened = {e.body["lease"]: e.body["slots"] for e in entries if e.kind == "lease.open"}
    closed = {e.body["lease"] for e in entries if e.kind == "lease.close"}
    assert opened.keys() == closed, "every lease that was opened is closed"
    witness.check(opened)
    known = {e.plan_id for e in entries} | {str(e.seq) for e in entries}
    for replica in replicas.all:
        for write in replica.writes:
            if write.path.endswith("/eviction"):
                meta = json.loads(write.body)["metadata"]
                decision = meta["annotations"][DECISION]
                assert decision in known, f"{meta['name']} was evicted without a decision"
