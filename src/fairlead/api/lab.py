"""The lab of `fairlead up --demo`: two virtual nodes, four teams, and a story that repeats.

Only the teams are made up: the executor starts the runs as commands, the budgets are those of
lab.yaml, the resolver preempts for real, and the page, the command line and the ledger show what
was recorded. The story only submits; `captions` tells what came of it.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from math import ceil
from pathlib import Path
from typing import Any, Protocol, Self

from fairlead.api.access import user_name
from fairlead.api.captions import GpuCaptions
from fairlead.api.service import Service
from fairlead.api.story_acts import Act, Story
from fairlead.core.gpu import PreemptionPolicy
from fairlead.engine.gpu import Author, Denied
from fairlead.ports.faults import Fault
from fairlead.schema.objects import API_VERSION
from fairlead.schema.times import format_time
from fairlead.schema.yaml import parse_yaml_documents

POLICY = PreemptionPolicy(
    min_notice_ms=10_000, max_reservations=4, min_runtime_ms=5_000, cooldown_ms=20_000
)
"""Seconds instead of hours: a newcomer watches for a minute."""
NOTICE_MS = POLICY.min_notice_ms + 1_000
"""A second for the request itself."""
READ_S = 4.0
"""Between two acts, so that a caption can be read."""
CALM = 3
"""From the second round on every pause is so many times as long."""
ACT_S = 90.0
"""An act that has not happened by then is left out; its caption does not appear."""
POLL_S = 0.2
STOP_S = 20.0
RESERVED_S = 6
NOBODY_UID = 65534
STORY = {"fairlead.dev/demo": "story"}
_ENDED = ("Completed", "Failed")
_SCRIPT = """
step=$(cat "$CHECKPOINT" 2>/dev/null || echo 0)
[ "$step" -gt 0 ] && echo "goes on from step $step"
trap 'kill $!; echo "saved at step $step"; exit 0' TERM
while [ "$step" -lt "$STEPS" ]; do
  step=$((step + 1)); echo "$step" > "$CHECKPOINT"
  echo "step $step of $STEPS on $FAIRLEAD_DEVICES"
  sleep 1 & wait $!
done
"""


@dataclass(frozen=True, slots=True)
class Workload:
    """A run that one team submits: so many steps of a second, beside those that a round waits."""

    owner: str
    what: str
    gpus: int
    steps: int
    sponsors: tuple[str, ...] = ()

    def manifest(self, name: str, folder: Path, more: int = 0) -> dict[str, Any]:
        steps = self.steps + more
        return {
            "apiVersion": API_VERSION,
            "kind": "Run",
            "metadata": {"name": name, "labels": STORY},
            "spec": {
                "owner": self.owner,
                "flavor": "H100",
                "totalGPUs": self.gpus,
                "duration": f"{steps + 10}s",
                "checkpointGrace": "2s",
                "command": ["sh", "-c", _SCRIPT],
                "env": {"CHECKPOINT": str(folder / name), "STEPS": str(steps)},
                "funding": {"allowBorrow": bool(self.sponsors), "sponsors": list(self.sponsors)},
            },
        }


@dataclass(frozen=True, slots=True)
class Cast:
    """Who plays a round: three runs that take every device, and a team that reserves."""

    shares: Workload
    borrows: Workload
    other: Workload
    reserves: Workload
    refused: Workload


CASTS = (
    Cast(
        Workload("vision", "train", 7, 26),
        Workload("robotics", "grasp", 5, 24, ("speech",)),
        Workload("speech", "tune", 4, 22),
        Workload("climate", "forecast", 4, RESERVED_S),
        Workload("robotics", "dream", 12, 30, ("speech",)),
    ),
    Cast(
        Workload("speech", "decode", 7, 26),
        Workload("climate", "monsoon", 5, 24, ("vision",)),
        Workload("vision", "label", 4, 22),
        Workload("robotics", "rehearse", 4, RESERVED_S),
        Workload("climate", "century", 12, 30, ("vision",)),
    ),
)
INTERLUDE = (
    Workload("vision", "eval", 2, 12),
    Workload("speech", "align", 3, 15),
    Workload("robotics", "walk", 2, 10),
    Workload("climate", "tides", 3, 14),
)
OWNERS = frozenset({"vision", "speech", "robotics", "climate"})


class World(Protocol):
    """The simulated node and service of the CPU and traffic acts."""

    def renew(self) -> None:
        """Begin with a fresh node and service: what they keep only grows."""

    def congest(self, round: int) -> None:
        """Pods arrive that want more than the node has."""

    def slow(self, round: int) -> None:
        """A backend turns slow, or fails."""

    def settle(self) -> None:
        """The pods leave, and the backend is well again."""


def manifests() -> list[Any]:
    return parse_yaml_documents((files(__package__) / "lab.yaml").read_bytes())


class Lab:
    """Plays the story while the server runs, and ends its runs with it."""

    def __init__(self, service: Service, story: Story, folder: Path, world: World) -> None:
        self._service, self._story, self._world = service, story, world
        self._folder, self._stop = folder, threading.Event()
        user = user_name(os.geteuid())  # who started the demo; root's commands run as NOBODY_UID
        self._admin, self._teams = Author(user, admin=True), Author(user, owners=OWNERS)
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        if not os.geteuid():
            os.chown(folder, NOBODY_UID, -1)
        self._captions = GpuCaptions(service.plane, self._progress)
        self._threads = [
            threading.Thread(target=work, name=work.__name__, daemon=True)
            for work in (self._play, self._tell)
        ]

    def __enter__(self) -> Self:
        self._service.plane.objects.apply_all(manifests(), author=self._admin)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=STOP_S)
        self._end_all()

    def _progress(self, run: str) -> int | None:
        try:
            return int((self._folder / run).read_text())
        except (OSError, ValueError):
            return None

    # --- captions

    def _tell(self) -> None:
        """Captions for what is recorded, from the beginning of this demo on."""
        events, seq = self._service.plane.events, self._service.plane.seq
        while not self._stop.is_set():
            with suppress(Fault):
                events.wait(seq, POLL_S)
                read = events.read(seq, 1_000)
                for caption in self._captions.read(read):
                    self._story.tell(caption)
                seq = read[-1]["seq"] if read else seq

    # --- the story

    def _play(self) -> None:
        with suppress(_Stopped):
            for round in _rounds():
                with suppress(Fault, Denied):  # busy or full just now: the next round tries again
                    self._clear_stage()
                    self._world.renew()
                    self._round(round, CASTS[round % len(CASTS)], 1 if round == 0 else CALM)
                    self._interlude(round)
                self._story.next_round()

    def _round(self, round: int, cast: Cast, calm: int) -> None:
        story, read_s = self._story, READ_S * calm
        until_s = ceil(2 * read_s + NOTICE_MS / 1000)  # until the lottery
        self._submit(cast.refused)
        story.expect(Act.SHARE, f"{cast.shares.owner} needs more than its own envelope has")
        self._submit(cast.shares, until_s)
        self._await(Act.SHARE)
        self._pause(read_s)
        story.expect(Act.LEND, f"{cast.borrows.owner} asks its sponsor for one more GPU")
        self._submit(cast.borrows, until_s)
        self._await(Act.LEND)
        self._submit(cast.other, until_s)
        self._pause(read_s)
        story.expect(Act.ANNOUNCE, f"{cast.reserves.owner} wants to start at a fixed time")
        self._reserve(cast.reserves)
        self._await(Act.ANNOUNCE)
        story.expect(Act.LOTTERY, "the reservation becomes due; until then every run goes on")
        story.waits(NOTICE_MS)
        self._await(Act.LOTTERY)
        text = f"{cast.reserves.owner} works for {RESERVED_S} s, then the devices are free again"
        story.expect(Act.RESUME, text)
        story.waits(RESERVED_S * 1000)
        self._await(Act.RESUME)
        self._pause(read_s)
        story.expect(Act.CONGESTED, "pods that want more than their node has are about to arrive")
        self._world.congest(round)
        self._await(Act.CONGESTED)
        self._pause(read_s)
        story.expect(Act.SLOW, "one backend of a service starts to answer slowly")
        self._world.slow(round)
        self._await(Act.SLOW)
        story.expect(None)

    def _interlude(self, round: int) -> None:
        """A quiet stretch with small runs before the story begins again."""
        self._pause(READ_S * CALM)
        self._world.settle()
        deadline = time.monotonic() + ACT_S
        while time.monotonic() < deadline and any(
            run["status"]["phase"] == "Running" for run in self._live()
        ):
            self._pause(1.0)
        for workload in INTERLUDE[round % 2 :]:
            self._submit(workload)
            self._pause(READ_S * CALM)

    def _await(self, act: Act) -> None:
        """Until an act was told, or its time is over."""
        deadline = time.monotonic() + ACT_S
        while not self._story.wait(act, POLL_S):
            if self._stop.is_set():
                raise _Stopped
            if time.monotonic() > deadline:
                return

    def _pause(self, seconds: float) -> None:
        self._story.waits(round(seconds * 1000))
        if self._stop.wait(seconds):
            raise _Stopped

    # --- objects

    def _name(self, workload: Workload) -> str:
        return f"{workload.owner}-{workload.what}-{self._service.plane.seq}"

    def _submit(self, workload: Workload, more_s: int = 0) -> None:
        manifest = workload.manifest(self._name(workload), self._folder, more_s)
        self._service.plane.objects.apply(manifest, author=self._teams)
        self._service.wake.set()

    def _reserve(self, workload: Workload) -> None:
        """A run and its reservation, at once: the run waits for its time."""
        name, start_ms = self._name(workload), self._service.now_ms() + NOTICE_MS
        reservation = {
            "apiVersion": API_VERSION,
            "kind": "Reservation",
            "metadata": {"name": name, "labels": STORY},
            "spec": {"run": name, "earliestStart": format_time(start_ms)},
        }
        made = [workload.manifest(name, self._folder), reservation]
        self._service.plane.objects.apply_all(made, author=self._teams)
        self._service.wake.set()

    def _ours(self, kind: str) -> list[dict[str, Any]]:
        objects = self._service.plane.objects.list(kind)
        return [each for each in objects if each["metadata"]["labels"] == STORY]

    def _clear_stage(self) -> None:
        """End what is left of the round before, and remove it."""
        plane = self._service.plane
        self._cancel_all()
        while self._live():
            self._service.wake.set()
            if self._stop.wait(POLL_S):
                raise _Stopped
        for kind in ("Reservation", "Run"):
            for each in self._ours(kind):
                plane.objects.delete(kind, each["metadata"]["name"], author=self._admin)

    def _live(self) -> list[dict[str, Any]]:
        return [run for run in self._ours("Run") if run["status"]["phase"] not in _ENDED]

    def _cancel_all(self) -> None:
        for run in self._live():
            if not run["status"]["stopping"]:
                name = run["metadata"]["name"]
                self._service.plane.verbs.act("Run", name, "cancel", author=self._admin)

    def _end_all(self) -> None:
        """Cancel and wait: no run of the demo outlives it, a visitor's neither."""
        deadline = time.monotonic() + STOP_S
        plane = self._service.plane
        while time.monotonic() < deadline:
            runs = plane.objects.list("Run")
            live = [run for run in runs if run["status"]["phase"] not in _ENDED]
            if not live:
                return
            for run in live:
                if not run["status"]["stopping"]:
                    name = run["metadata"]["name"]
                    plane.verbs.act("Run", name, "cancel", author=self._admin)
            plane.reconcile()
            time.sleep(POLL_S / 4)  # the processes need a moment to end; the deadline is above


class _Stopped(Exception):
    """The server ends."""


def _rounds() -> Iterator[int]:
    round = 0
    while True:
        yield round
        round += 1
