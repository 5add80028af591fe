"""kill -9 of the leader at every append of a resolve: the one outcome is carried out, once."""

import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fairlead.kube.client import connection
from fairlead.ledger.place import open_for_reading
from fairlead.ports.ledger import Entry
from tests.kube.faulty import Faults
from tests.kube.replicas import Replicas
from tests.kube.witness import Witness
from tests.kube.world import World, due_now, made, node, run, team, until

SMALL, BIG, DEATHS_MAX = 8, 4, 60
COUNT = int(os.environ.get("FAIRLEAD_KUBE_CRASHES", "0"))
"""Appends at which one leader dies; 0: a sample. `make soak` runs them all."""
CHAINS = [(1, "after"), (2, "before")] if COUNT else [(1, "after")]
POINTS = [(n, when) for n in range(1, COUNT + 1) for when in ("before", "after")] or [(2, "before")]


class Resolve:
    """Eight small runs, and a reservation for which four of them have to go."""

    def __init__(self, world: World, folder: Path) -> None:
        self._world, to = world, connection(world.kubeconfig)
        self.replicas = Replicas(to, Faults(0, 0.0), folder, None)
        self._witness = Witness(to, SMALL)

    def prepare(self) -> None:
        world = self._world
        world.apply(node("n1"), *team("team-a", gpus=8), *team("team-b", gpus=8))
        world.apply(*(run(f"small-{i}", 1) for i in range(SMALL)))
        first = self.replicas.start()
        for i in range(SMALL):
            world.reach(f"small-{i}", "Running")
        until(lambda: len(world.names("pods")) == SMALL, "each has its pod")
        assert first.end() == 0
        world.apply(run("big", BIG, "team-b"), made("Reservation", "now", due_now("big"), "team-b"))

    def is_over(self) -> bool:
        world = self._world
        stages = [
            row.get("status", {}).get("stage") for row in world.get("resolveroutcomes")["items"]
        ]
        return stages == ["applied"] and world.phase("big", "team-b") == "Running"

    def check(self) -> None:
        """One outcome, of one seed; what it drew is what was cut, once each."""
        until(
            lambda: "big-0" in self._world.names("pods"), "the run of the reservation has its pod"
        )
        last = self.replicas.all[-1]
        if last.alive:
            last.kill()
        last = self.replicas.start()
        until(lambda: last.led, "it leads", 120)
        until(lambda: len(self._told()) >= BIG, f"those that were drawn are told\n{last.log}", 120)
        assert last.end() == 0, last.log[-2000:]
        self._witness.close()
        entries = self._entries()
        kinds = Counter(entry.kind for entry in entries)
        for kind in ("commit", "draw", "applied"):
            assert kinds[f"gpu.resolve.{kind}"] == 1, kinds
        cut = [entry.body["run"] for entry in entries if entry.kind == "run.cut"]
        assert len(cut) == len(set(cut)) == BIG, cut
        waiting = {f"team-a.small-{i}" for i in range(SMALL)} - self._running()
        assert waiting == set(cut), "those that were drawn are those that wait"
        assert waiting == self._told(), "each preempted run is told so, whichever leader died"
        self._witness.check(
            {e.body["lease"]: e.body["slots"] for e in entries if e.kind == "lease.open"}
        )

    def _told(self) -> set[str]:
        return {
            f"team-a.{event['involvedObject']['name']}"
            for event in self._world.get("events", namespace="team-a")["items"]
            if event["reason"] in ("Preempted", "RandomPreempt")
        }

    def _running(self) -> set[str]:
        return {
            f"team-a.{pod['metadata']['labels']['fairlead.dev/run']}"
            for pod in self._world.get("pods", namespace="team-a")["items"]
        }

    def _entries(self) -> list[Entry]:
        with closing(open_for_reading(str(self.replicas.data / "ledger.db"))) as reader:
            verified = reader.verify()
            assert verified.ok, verified
            return reader.entries(0, 10_000)


@pytest.fixture
def resolve(world: World, tmp_path: Path) -> Iterator[Resolve]:
    found = Resolve(world, tmp_path)
    with closing(found.replicas):
        found.prepare()
        yield found


@pytest.mark.parametrize(("kill_at", "when"), CHAINS)
def test_every_leader_dies_at_its_next_append(resolve: Resolve, kill_at: int, when: str) -> None:
    """After each append, before it is acted upon; and before the next one, when it was."""
    deaths = 0
    while not resolve.is_over():
        assert deaths < DEATHS_MAX, resolve.replicas.logs()
        replica = resolve.replicas.start(kill_at=kill_at, when=when, from_start=True)
        until(lambda r=replica: not r.alive or resolve.is_over(), "it dies", 60)  # type: ignore[misc]
        deaths += not replica.alive
    kinds = set(re.findall(r"\S+", "".join(each.log for each in resolve.replicas.all)))
    assert {"gpu.resolve.commit", "gpu.resolve.draw", "gpu.resolve.applied"} <= kinds
    assert deaths >= 3, "nobody died: the test shows nothing"
    resolve.check()


@pytest.mark.parametrize(("kill_at", "when"), POINTS)
def test_one_leader_dies_in_a_resolve(resolve: Resolve, kill_at: int, when: str) -> None:
    """At one append of it; the next leader goes on to the end."""
    first = resolve.replicas.start(kill_at=kill_at, when=when)
    until(lambda: not first.alive or resolve.is_over(), "it dies", 60)
    if first.alive:
        pytest.skip(f"a resolve has fewer appends than {kill_at}")
    resolve.replicas.start()
    until(resolve.is_over, f"the resolve is over\n{resolve.replicas.logs()}", 60)
    resolve.check()
