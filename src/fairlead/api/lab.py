"""The lab of `fairlead up --demo`: two virtual nodes, three teams, and runs that keep coming.

The teams are played, everything else is real: the runs are commands that the executor starts, the
budgets are the ones in lab.yaml, and the page, the command line and the ledger show what happens.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from itertools import cycle
from typing import Any, Self

from fairlead.api.gate import user_name
from fairlead.api.service import Service
from fairlead.engine.gpu import Author, Denied
from fairlead.ports.faults import Fault
from fairlead.schema.objects import API_VERSION
from fairlead.schema.yaml import parse_yaml_documents

EVERY_S = 2.0
LIVE_MAX, ENDED_MAX = 6, 8
STOP_S = 20.0
NOBODY = 65534
_ENDED = ("Completed", "Failed")


@dataclass(frozen=True, slots=True)
class Part:
    """What one team wants, again and again."""

    owner: str
    what: str
    gpus: int
    seconds: int
    sponsors: tuple[str, ...] = ()

    def manifest(self, name: str) -> dict[str, Any]:
        """A run that counts its steps, and says on which devices."""
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


PARTS = (
    Part("vision", "train", 4, 40),
    Part("speech", "tune", 2, 30),
    Part("robotics", "grasp", 3, 25, ("speech",)),  # one more than it has: the rest is borrowed
    Part("vision", "eval", 1, 15),
    Part("speech", "decode", 3, 35),
    Part("vision", "sweep", 7, 20),  # more than its own: its sibling shares
    Part("robotics", "dream", 6, 30, ("speech",)),  # more than anybody lends: refused, with why
)


def manifests() -> list[Any]:
    """The nodes and budgets of the lab."""
    return parse_yaml_documents((files(__package__) / "lab.yaml").read_bytes())


class Lab:
    """Plays the teams while the server runs; at the end their runs are ended, too."""

    def __init__(self, service: Service) -> None:
        self._service, self._stop = service, threading.Event()
        self._author = Author(_user(), admin=True)
        self._thread = threading.Thread(target=self._play, name="lab", daemon=True)

    def __enter__(self) -> Self:
        self._service.plane.objects.apply_all(manifests(), author=self._author)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=STOP_S)
        self._end_all()

    def _play(self) -> None:
        parts = cycle(PARTS)
        while not self._stop.is_set():
            with suppress(Fault, Denied):  # busy or full just now: the teams ask again
                self._turn(parts)
            self._stop.wait(EVERY_S)

    def _turn(self, parts: Iterator[Part]) -> None:
        runs = self._service.plane.objects.list("Run")
        live = [each for each in runs if each["status"]["phase"] not in _ENDED]
        if len(live) < LIVE_MAX:
            part = next(parts)
            waiting = {each["metadata"]["name"].rsplit("-", 1)[0] for each in live}
            if f"{part.owner}-{part.what}" not in waiting:
                name = f"{part.owner}-{part.what}-{self._service.plane.seq}"
                self._service.plane.objects.apply(part.manifest(name), author=self._author)
                self._service.wake.set()
        ended = [each for each in runs if each["status"]["phase"] in _ENDED]
        ended.sort(key=lambda each: str(each["status"]["completionTime"]))
        for each in ended[:-ENDED_MAX]:
            self._service.plane.objects.delete("Run", each["metadata"]["name"], author=self._author)

    def _end_all(self) -> None:
        """Nothing of a demonstration goes on behind it."""
        plane, waited = self._service.plane, threading.Event()
        for _ in range(int(STOP_S / 0.1)):
            live = [
                each for each in plane.objects.list("Run") if each["status"]["phase"] not in _ENDED
            ]
            if not live:
                return
            for each in live:
                if not each["status"]["stopping"]:
                    plane.verbs.act("Run", each["metadata"]["name"], "cancel", author=self._author)
            plane.reconcile()
            waited.wait(0.1)


def _user() -> str:
    """Whom the commands run as: never root, who could but need not."""
    return user_name(os.geteuid() or NOBODY)
