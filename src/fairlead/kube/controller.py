"""The controller: watches, asks the engine, and shows what the ledger says. One turn after the
other, in one thread; watches wake it."""

import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from fairlead.engine.gpu import ControlPlane
from fairlead.kube.client import MISREAD, KubeClient
from fairlead.kube.election import AnotherLedger, Election
from fairlead.kube.gpu.audit import Auditor
from fairlead.kube.gpu.build import RunObject
from fairlead.kube.gpu.front import RUNS_MAX, FrontEnd
from fairlead.kube.gpu.mirror import Mirror
from fairlead.kube.gpu.pods import PODS, PodExecutor
from fairlead.kube.gpu.ranks import RUN, kept_pod
from fairlead.kube.kinds import KINDS
from fairlead.kube.watch import Mirrored, Sources
from fairlead.ports.executor import Executor
from fairlead.ports.faults import Fault, PermanentFault, TemporaryFault

WATCHED = ("OwnerBinding", "Budget", "Run", "Reservation", "GPULease")
TURN_S, RENEW_S = 1.0, 0.5
SYNC_S = 60.0
SWITCH_S = 0.0005
"""A turn computes while a dozen threads write and watch. By default each of them waits 5 ms for
the interpreter, several times in a request."""

PAUSE_MAX_S = 1.0
"""Threads that make pods get little of the interpreter while a turn computes. After it they have as
much time as it took, and no more than this, if they have something to do."""

OpenPlane = Callable[[Executor], ControlPlane]


class ControllerPart(Protocol):
    """What the leader does in each turn besides runs, from copies of its own."""

    def sources(self) -> Sequence[Mirrored]: ...

    def turn(self) -> None: ...


MakePart = Callable[[KubeClient, Callable[[], None]], ControllerPart]
"""Given the client, and what wakes the controller."""


class ClusterController:
    """Runs the engine for a cluster. `open_plane` makes the control plane on its ledger, when this
    controller leads for the first time."""

    def __init__(
        self,
        client: KubeClient,
        election: Election,
        open_plane: OpenPlane,
        now_ms: Callable[[], int],
        *,
        image: str | None = None,
        runs_max: int = RUNS_MAX,
        parts: Sequence[MakePart] = (),
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._client, self._election, self._say = client, election, say
        self._open_plane, self._now_ms = open_plane, now_ms
        self._image, self._runs_max = image, runs_max
        self._woken, self._stop = threading.Event(), threading.Event()
        wake = self._woken.set
        made = {
            kind: Mirrored(client, KINDS[kind].path(), wake, packed=kind == "Run")
            for kind in WATCHED
        }
        self.sources = Sources(
            nodes=Mirrored(client, "/api/v1/nodes", wake, gone=True),
            namespaces=Mirrored(client, "/api/v1/namespaces", wake),
            bindings=made["OwnerBinding"],
            budgets=made["Budget"],
            runs=made["Run"],
            reservations=made["Reservation"],
            leases=made["GPULease"],
            pods=Mirrored(client, PODS, wake, selector=RUN, shape=kept_pod, gone=True),
        )
        self._parts = [make(client, wake) for make in parts]
        self._front: FrontEnd | None = None
        self._mirror: Mirror | None = None
        self.auditor: Auditor | None = None
        self.plane: ControlPlane | None = None
        self._opened: tuple[PodExecutor, ControlPlane] | None = None
        """From the moment that its ledger is open, which is once."""
        self.turns, self.failures = 0, 0
        self.synced = False

    def run(self) -> None:
        """Until `stop`, or until another one leads: then this process has to begin anew.

        Raises `PermanentFault` where the cluster lacks our kinds or our rights.
        """
        sys.setswitchinterval(SWITCH_S)
        self.sync()
        renewing = threading.Thread(target=self._renew, name="election", daemon=True)
        renewing.start()
        try:
            while not self._stop.is_set():
                if self._election.leads:
                    began_s = time.monotonic()
                    self.turn()
                    self._client.catch_up(min(time.monotonic() - began_s, PAUSE_MAX_S))
                elif self._opened is not None:
                    raise TemporaryFault(f"{self._election.holder or 'another one'} leads by now")
                self._woken.wait(TURN_S)
                self._woken.clear()
        finally:
            self.stop()
            renewing.join()
            # Nothing of ours is under way when another one may lead.
            self._client.close()
            self._election.resign()

    def _renew(self) -> None:
        """Beside the turns: one of them may last longer than the lease."""
        told: str | None = None
        while not self._stop.is_set():
            before = self._election.leads
            if self._election.turn() != before:
                self._woken.set()
            if self._election.fault not in (None, told):
                self._say(f"is retried: {self._election.fault}")
            told = self._election.fault
            self._stop.wait(RENEW_S)

    def sync(self) -> None:
        """Read the cluster, and follow it from then on."""
        sources = self._all_sources()
        for source in sources:
            source.start()
        for source in sources:
            listed = source.wait(SYNC_S)
            if self._stop.is_set():
                return
            if not listed:
                raise PermanentFault(f"cannot list {source.path}: {source.fault or 'no answer'}")
        self.synced = True
        self._say("the cluster is read")

    def wake(self) -> None:
        """Take the next turn at once."""
        self._woken.set()

    def stop(self) -> None:
        self._stop.set()
        self.wake()
        for source in self._all_sources():
            source.stop()

    def _all_sources(self) -> list[Mirrored]:
        return [*self.sources.all(), *(source for part in self._parts for source in part.sources())]

    def turn(self) -> None:
        """Cluster to engine, engine, engine to cluster. A fault is retried in the next turn."""
        try:
            if self.plane is None:
                self._begin()
                self._say("leads")
        except AnotherLedger:
            raise
        except Fault as fault:
            self._say(f"is retried: {fault}")
        plane, front = self.plane, self._front
        auditor, mirror = self.auditor, self._mirror
        if plane is None or front is None or auditor is None or mirror is None:
            return
        # Each has its turn, whatever became of the one before: what cannot be read or shown must
        # not keep runs from ending.
        front.foreign = auditor.foreign
        turns = [front.turn, plane.reconcile, auditor.turn, mirror.turn]
        turns += [part.turn for part in self._parts]
        done = [self._try(turn) for turn in turns]
        self.turns += all(done)
        if front.behind:
            self.wake()

    def _try(self, turn: Callable[[], None]) -> bool:
        try:
            turn()
        except Fault as fault:
            self.failures += 1
            self._say(f"is retried: {fault}")
            return False
        except MISREAD as error:
            # An object that no reader was ready for: all would wait for a process that ends of it.
            self.failures += 1
            self._say(f"is retried: misread: {error!r}")
            return False
        return True

    def _begin(self) -> None:
        if self._opened is None:
            # All that our predecessor made, before anything is decided or shown.
            self.sources.pods.refresh()
            self.sources.leases.refresh()
            executor = PodExecutor(
                self._client, self.sources, self._find, self._now_ms, self._woken.set
            )
            self._opened = executor, self._open_plane(executor)
        executor, plane = self._opened
        self._election.claim(plane.committer.ledger.head().head.ledger)
        self._front = FrontEnd(
            self._client,
            plane,
            self.sources,
            image=self._image,
            runs_max=self._runs_max,
            say=self._say,
        )
        self.auditor = Auditor(self._client, plane, self.sources, executor, self._say)
        self._mirror = Mirror(
            self._client, plane, self.sources, self._front, auditor=self.auditor, say=self._say
        )
        self.plane = plane

    def owner_of(self, namespace: str) -> str | None:
        """Whose a namespace is, as the bindings that hold say."""
        return None if self._front is None else self._front.owner_of(namespace, None)

    def _find(self, run: str) -> RunObject | None:
        return None if self._front is None else self._front.find_run(run)
