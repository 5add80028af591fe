"""The controller that is measured, in a process of its own: the product's, with another executor.

Kueue's benchmark has no pods: its harness marks a workload finished when its runtime is over. So
here an executor ends a run when its runtime is over. The controller's HTTP API, its resizer of pods
and its queries are left out: about 16 MiB of imports less than the product.
A runtime begins with the recorded decision, as a pod would be made then.
"""

import argparse
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from bench.kube.load import RUNTIME
from fairlead.engine.gpu import Config, ControlPlane
from fairlead.engine.gpu.committer import Committer, Decide
from fairlead.host.clock import now_ms
from fairlead.host.process import keep_little
from fairlead.kube.client import KubeClient, RateLimit, connection
from fairlead.kube.controller import ClusterController
from fairlead.kube.election import Election
from fairlead.ledger.keys import open_master
from fairlead.ledger.place import KEYS, open_up
from fairlead.ports.executor import Executor, Exit, Job
from fairlead.ports.ledger import Entry


class TimedExecutor:
    """Ends each job by itself after its runtime (port: `fairlead.ports.executor.Executor`)."""

    def __init__(self) -> None:
        self._until: dict[str, tuple[str, int]] = {}

    def start(self, job: Job) -> None:
        self._until.setdefault(job.id, (job.run, now_ms() + int(job.env[RUNTIME])))

    def stop(self, run: str, grace_ms: int, *, decision: str) -> None:
        found = [job for job, (name, _) in self._until.items() if name == run]
        self._until |= dict.fromkeys(found, (run, 0))

    def pause(self, run: str, *, decision: str) -> None:
        """There is no process."""

    resume = pause

    def resize(self, run: str, devices: tuple[str, ...], *, grace_ms: int, decision: str) -> None:
        """There is no process."""

    def ended(self, job: str, run: str) -> Exit | None:
        return None

    def held(self, run: str, devices: tuple[str, ...]) -> bool | None:
        return False

    def poll(self) -> list[Exit]:
        now = now_ms()
        over = [Exit(job, run, at, code=0) for job, (run, at) in self._until.items() if at <= now]
        return sorted(over, key=lambda exit: (exit.time_ms, exit.run))

    def acknowledge(self, exits: Iterable[Exit]) -> None:
        for exit in exits:
            self._until.pop(exit.job, None)

    def running(self) -> set[str]:
        return set(self._until)

    def devices_of(self, run: str) -> dict[str, list[str]]:
        return {}

    def log_parts(self, run: str, jobs: str = "") -> list[Path]:
        return []

    def next_ms(self) -> int | None:
        return min((at for _, at in list(self._until.values())), default=None)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.kube.controller")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--qps", type=float, default=0.0)
    parser.add_argument("--burst", type=int, default=100)
    parser.add_argument("--pods", action="store_true", help="the product's executor")
    parser.add_argument("--timings", type=Path, help="where to write seconds of each decision")
    options = parser.parse_args()
    keep_little()
    limit = RateLimit(options.qps, options.burst) if options.qps else None
    to = connection(options.kubeconfig)
    client = KubeClient(to, limit)
    # As in the product: the lease is renewed whatever else waits for the limit.
    identity = f"{socket.gethostname()}-{os.getpid()}"
    election = Election(KubeClient(to), identity, namespace="default")
    executor = TimedExecutor()
    with ExitStack() as opened:

        def open_plane(pods: Executor) -> ControlPlane:
            ledger = opened.enter_context(open_up(options.data, None))
            master = open_master(options.data / KEYS)
            used = pods if options.pods else executor
            plane = ControlPlane(ledger, used, now_ms, Config(), master)
            if options.timings:
                _time(plane.committer, opened, options.timings)
            return plane

        made = ClusterController(client, election, open_plane, now_ms, say=print)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: made.stop())
        threading.Thread(target=_wake, args=(made, executor), daemon=True).start()
        made.run()


def _time(committer: Committer, opened: ExitStack, path: Path) -> None:
    """Note how long each decision takes that records something: deciding and recording."""
    spans: list[float] = []
    commit = committer.commit

    def timed(decide: Decide) -> list[Entry]:
        began = time.perf_counter()
        made = commit(decide)
        if made:
            spans.append(time.perf_counter() - began)
        return made

    committer.commit = timed  # type: ignore[method-assign] - only here is it measured
    opened.callback(lambda: path.write_text(json.dumps(spans)))


def _wake(made: ClusterController, executor: TimedExecutor) -> None:
    """The end of a run wakes the controller, as the event of a pod would."""
    while True:
        due = executor.next_ms()
        if due is not None and due <= now_ms():
            made.wake()
        time.sleep(0.05)  # a run ends this much late at most


if __name__ == "__main__":
    main()
