"""kill -9 of the node agent at random moments, with an outside witness of every limit."""

import random
import threading
import time
from pathlib import Path

from fairlead.node.cgroups import ContainerFiles
from tests.e2e.agents import AgentProcess, fairlead
from tests.node.cgroup_worlds import RealTree, real_tree

CAPACITY = 1500
CEILINGS = {"a": 900, "b": 1500, "c": 700, "d": 1200}
SWING = """
import random, time
rng = random.Random({seed})
while True:
    end = time.process_time() + rng.random() * 0.2
    while time.process_time() < end: pass
    time.sleep(rng.random() * 0.2)
"""


class Witness:
    """Reads all limits again and again from outside and keeps the worst it saw."""

    def __init__(self, tree: RealTree) -> None:
        files = tree.files()
        self._pods: dict[str, ContainerFiles] = {name: files.container(name) for name in CEILINGS}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.samples, self.worst, self.invalid = 0, 0, ""

    def _watch(self) -> None:
        while not self._end.is_set():
            # The kernel has no snapshot of four files: a sum is believed if it holds twice running.
            first, second = self._sum(), self._sum()
            if first == second:
                self.samples += 1
                self.worst = max(self.worst, first)
            time.sleep(0.002)

    def _sum(self) -> int:
        total = 0
        for name, files in self._pods.items():
            quota = files.quota()
            limit = None if quota is None else quota.millicores
            if limit is None or not 1 <= limit <= CEILINGS[name]:
                self.invalid = f"{name}: {limit}"
            total += limit or 0
        return total

    def __enter__(self) -> "Witness":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


def run_kills(count: int, seed: int, folder: Path) -> dict[str, int]:
    """Kill the agent `count` times; limits stay valid, their sum fits, the record replays."""
    rng = random.Random(seed)
    with real_tree() as tree:
        for number, (name, ceiling) in enumerate(CEILINGS.items()):
            tree.create(name)
            files = tree.files()
            quota = files.quota(name)
            assert quota is not None
            files.set_quota(name, quota._replace(quota_us=ceiling * 100))
            tree.run(name, SWING.format(seed=number))
        agent = AgentProcess(tree.root, folder)
        agent.until("adopted", lambda: agent.status()["limits_millicores"] > 0 and _all(agent))
        agent.stop(9)
        with Witness(tree) as witness:
            for _ in range(count):
                agent = AgentProcess(
                    tree.root, folder, policy=rng.choice(["nash", "demand-capped", "market"])
                )
                time.sleep(rng.uniform(0.05, 0.8))  # the random moment itself
                assert agent.process.poll() is None, agent.log()
                agent.stop(9)
        assert not witness.invalid, witness.invalid
        assert witness.worst <= CAPACITY, f"limits added up to {witness.worst}"
        final = AgentProcess(tree.root, folder)
        final.until("well again", _final(final))
        maxima = {name: pod["max_millicores"] for name, pod in final.pods().items()}
        assert final.stop() == 0
        assert maxima == CEILINGS, "a cut limit was taken for the user's own"
        replay = fairlead("replay", str(final.state / "record"), "-o", "json")
        assert replay.returncode == 0, replay.stderr + replay.stdout
    return {"kills": count, "samples": witness.samples, "worst_sum_millicores": witness.worst}


def _all(agent: AgentProcess) -> bool:
    return len(agent.pods()) == len(CEILINGS) and not agent.status()["failures"]


def _final(agent: AgentProcess):  # type: ignore[no-untyped-def]
    return lambda: _all(agent)
