"""A leader that is halted when it is about to send a request, and wakes up after its successor has
given the devices to others. The request goes out late; nothing else does, and it does no harm."""

import os
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fairlead.kube.client import connection
from tests.kube.faulty import Faults
from tests.kube.replicas import Replicas
from tests.kube.schedules import check_ledger, new_database
from tests.kube.witness import Witness
from tests.kube.world import World, node, run, team, until
from tests.ledger.postgres_server import server

pytestmark = pytest.mark.component("postgres")
GPUS = 4
MAKE, LIFT, EVICT = "POST .*/pods$", "PATCH .*/pods/", "POST .*/eviction$"
CASES = [(LIFT, 8), (MAKE, 8), (EVICT, 8), (MAKE, 4)]
"""Which request, and how many devices the run has: a gang of two, or one pod."""
if not os.environ.get("FAIRLEAD_KUBE_CRASHES"):
    CASES = CASES[:1]  # `make soak` runs them all


@pytest.fixture
def ledger() -> Iterator[str]:
    with server() as address:
        yield new_database(address, 0)


@pytest.mark.parametrize(("request_", "gpus"), CASES)
def test_a_request_that_goes_out_late_does_no_harm(
    world: World, tmp_path: Path, ledger: str, request_: str, gpus: int
) -> None:
    to = connection(world.kubeconfig)
    world.apply(node("n1", gpus=GPUS), node("n2", gpus=GPUS), *team("team-a", gpus=8))
    replicas, witness = Replicas(to, Faults(0, 0.0), tmp_path, ledger), Witness(to, GPUS)
    with closing(replicas):
        old = replicas.start(halt_at=request_)
        until(lambda: old.led, "it leads")
        world.apply(run("late", gpus))
        if request_ == EVICT:
            world.reach("late", "Running")
            until(lambda: len(world.names("pods")) == 2, "its pods are there")
            world.kubectl("-n", "team-a", "delete", "run", "late", "--wait=false")
        until(lambda: "halts" in old.log, f"it halts\n{old.log}")
        new = replicas.start()
        until(lambda: new.led, f"another one leads\n{new.log}", 60)
        world.kubectl("-n", "team-a", "delete", "run", "late", "--wait=false", check=False)
        until(lambda: "late" not in world.names("runs"), f"the run is forgotten\n{new.log}", 60)
        world.apply(run("next", 8))
        world.reach("next", "Running")
        until(lambda: "next-1" in world.names("pods"), "the devices are another run's")
        late = replicas.wake(old)
        assert len(late) <= 1, late
        assert all(re.search(request_, f"{write.method} {write.path}") for write in late)
        until(
            lambda: sorted(world.names("pods")) == ["next-0", "next-1"],
            f"nothing of the first run is left\n{world.picture()}",
            60,
        )
        assert world.phase("next") == "Running"
        world.kubectl("-n", "team-a", "delete", "run", "next", "--wait=false")
        until(lambda: not world.names("runs"), "all is over", 60)
        assert new.end() == 0
    witness.close()
    if (request_, gpus) == (MAKE, 4):
        # Of a run with one pod, that pod is there for a moment; it waits for devices meanwhile.
        witness.problems.clear()
        witness.together.clear()
    check_ledger(ledger, witness, replicas)
