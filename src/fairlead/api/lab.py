"""The lab of `fairlead up --demo`: two virtual nodes, and three teams that keep submitting runs.

Only the teams are simulated: the executor starts the runs as commands, the budgets are those of
lab.yaml, and the page, the command line and the ledger show real events.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from itertools import cycle
from typing import Any, Self

from fairlead.api.access import user_name
from fairlead.api.service import Service
from fairlead.engine.gpu import Author, Denied
from fairlead.ports.faults import Fault
from fairlead.schema.objects import API_VERSION
from fairlead.schema.yaml import parse_yaml_documents

EVERY_S = 2.0
LIVE_MAX, ENDED_MAX = 6, 8
STOP_S = 20.0
NOBODY_UID = 65534
_ENDED = ("Completed", "Failed")


@dataclass(frozen=True, slots=True)
class Workload:
    """A run that one team submits again and again."""

    owner: str
    what: str
    gpus: int
    seconds: int
    sponsors: tuple[str, ...] = ()

    def manifest(self, name: str) -> dict[str, Any]:
        script = (
            f"for step in $(seq {self.seconds}); do "
            f'echo "step $step of {self.seconds} on $CUDA_VISIBLE_DEVICES"; sleep 1; done'
        )
        return {
            "apiVersion": API_VERSION,
            "kind": "Run",
            "metadata": {"name": name},
            "spec": {
                "owner": self.owner,
                "flavor": "H100",
                "totalGPUs": self.gpus,
                "duration": f"{self.seconds + 10}s",
                "command": ["sh", "-c", script],
                "funding": {"allowBorrow": bool(self.sponsors), "sponsors": list(self.sponsors)},
            },
        }


WORKLOADS = (
    Workload("vision", "train", 4, 40),
    Workload("speech", "tune", 2, 30),
    Workload("robotics", "grasp", 3, 25, ("speech",)),  # one more than it has: one is borrowed
    Workload("vision", "eval", 1, 15),
    Workload("speech", "decode", 3, 35),
    Workload("vision", "sweep", 7, 20),  # more than it has: its sibling shares
    Workload("robotics", "dream", 6, 30, ("speech",)),  # more than is lent: refused
)


def manifests() -> list[Any]:
    return parse_yaml_documents((files(__package__) / "lab.yaml").read_bytes())


class Lab:
    """Submits the teams' runs while the server runs, and ends them with it."""

    def __init__(self, service: Service) -> None:
        self._service, self._stop = service, threading.Event()
        user = user_name(os.geteuid() or NOBODY_UID)  # of the commands: never root
        self._author = Author(user, admin=True)
        self._thread = threading.Thread(target=self._submit_all, name="lab", daemon=True)

    def __enter__(self) -> Self:
        self._service.plane.objects.apply_all(manifests(), author=self._author)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=STOP_S)
        self._end_all()

    def _submit_all(self) -> None:
        workloads = cycle(WORKLOADS)
        while not self._stop.is_set():
            with suppress(Fault, Denied):  # busy or full just now: retried
                self._turn(workloads)
            self._stop.wait(EVERY_S)

    def _turn(self, workloads: Iterator[Workload]) -> None:
        plane, live = self._service.plane, self._runs(ended=False)
        if len(live) < LIVE_MAX:
            workload = next(workloads)
            waiting = {run["metadata"]["name"].rsplit("-", 1)[0] for run in live}
            if f"{workload.owner}-{workload.what}" not in waiting:
                name = f"{workload.owner}-{workload.what}-{plane.seq}"
                plane.objects.apply(workload.manifest(name), author=self._author)
                self._service.wake.set()
        ended = self._runs(ended=True)
        ended.sort(key=lambda run: str(run["status"]["completionTime"]))
        for run in ended[:-ENDED_MAX]:
            plane.objects.delete("Run", run["metadata"]["name"], author=self._author)

    def _runs(self, *, ended: bool) -> list[dict[str, Any]]:
        runs = self._service.plane.objects.list("Run")
        return [run for run in runs if (run["status"]["phase"] in _ENDED) is ended]

    def _end_all(self) -> None:
        """Cancel and wait: no run of the demo outlives it."""
        plane, waited = self._service.plane, threading.Event()
        for _ in range(int(STOP_S / 0.1)):
            live = self._runs(ended=False)
            if not live:
                return
            for run in live:
                if not run["status"]["stopping"]:
                    plane.verbs.act("Run", run["metadata"]["name"], "cancel", author=self._author)
            plane.reconcile()
            waited.wait(0.1)
