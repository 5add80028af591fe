"""The same commands on a real and on a simulated machine, for one conformance suite."""

import os
import shlex
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairlead.executor.confine import Kind, find
from fairlead.executor.launcher import Launcher
from fairlead.executor.local import LocalExecutor
from fairlead.executor.remote import CHANNELS, RemoteExecutor, UsersShown
from fairlead.ports.executor import Executor, Exit, Job
from fairlead.sim.clock import VirtualClock
from fairlead.sim.executor import Behaviour, SimExecutor, SimMachine

USER = "65534" if os.geteuid() == 0 else None
"""Whom tests run commands as: nobody, or ourselves where we may not choose."""
TIMEOUT_S = 60.0


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that the commands' user can write to; pytest's own are private.

    In memory where possible: a kill -9 cannot tell the difference, and a busy disk can.
    """
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="fairlead-executor-", dir=memory))
    folder.chmod(0o777)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for the world, with an end: processes do not promise to be quick."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {TIMEOUT_S} s: {what}"
        time.sleep(0.01)


def shell(id: str, script: str, *, run: str | None = None, **more: object) -> Job:
    """A job that runs a script of the shell."""
    values: dict[str, object] = {
        "id": id,
        "run": run or f"lab/{id}",
        "owner": "team-a",
        "command": ("/bin/sh", "-c", script),
        "devices": ("host#0", "host#3"),
        "leases": ("l1", "l2"),
        "user": USER,
        **more,
    }
    return Job(**values)  # type: ignore[arg-type]


def script(does: Behaviour) -> str:
    """The script that behaves like this."""
    lines = ["trap '' TERM"] if does.checkpoint_ms is None else []
    lines.append(f"printf %s {shlex.quote(does.output)}")
    if does.duration_ms is None:
        lines.append("while :; do sleep 0.05; done")
    elif does.duration_ms:
        lines.append(f"sleep {does.duration_ms / 1000}")
    lines.append(f"kill -{does.signal} $$" if does.signal else f"exit {does.code}")
    return "; ".join(lines)


class RealWorld:
    """The local executor, with one kind of confinement."""

    def __init__(self, folder: Path, kind: Kind) -> None:
        self._folder, self._kind = folder, kind
        self._runs: set[str] = set()
        self.executor: Executor = self._new()

    def _new(self) -> LocalExecutor:
        executor = LocalExecutor(self._folder / "executor", kinds=(self._kind,))
        assert executor.kind == self._kind
        return executor

    def reopen(self) -> None:
        """The control plane went away and came back."""
        self.executor = self._new()

    def job(self, id: str, does: Behaviour, run: str | None = None) -> Job:
        self._runs.add(run or f"lab/{id}")
        if does.cannot_start:
            return shell(id, "", run=run, command=("fairlead-no-such-command",))
        return shell(id, script(does), run=run)

    def until(self, condition: Callable[[], object], what: str) -> None:
        until(condition, what)

    def pass_ms(self, duration_ms: int) -> None:
        time.sleep(duration_ms / 1000)

    def close(self) -> None:
        """End what a failed test left running."""
        for run in self._runs:
            self.executor.stop(run, 0, decision="p9")
        until(lambda: not self.executor.running(), "everything ended")
        self.executor.acknowledge(self.executor.poll())


class Believing:
    """A verifier for what has no ledger: the format and the executor are tested with it."""

    def followed(self) -> dict[str, Any]:
        return {"size": 0, "users": 0}

    def open(self, head: Any, public_key: str, continues: Any) -> None:
        """Any ledger."""

    def users(self, state: str | None, upto: int, evidence: Any) -> None: ...
    def start(self, job: Job, evidence: Any) -> None: ...
    def resize(self, run: str, devices: Any, decision: str, held: Any, evidence: Any) -> None: ...
    def act(self, run: str, decision: str, jobs: Any, evidence: Any) -> None: ...
    def repeat(self, evidence: Any) -> None: ...
    def size(self) -> int:
        return 0


class NoEvidence:
    """What a `Believing` launcher is shown."""

    def opening(self, followed: Any) -> dict[str, Any]:
        return {"head": {}, "public_key": "", "continues": []}

    def of_users(self) -> Iterator[UsersShown]:
        return iter(())

    def of_start(self, job: Job) -> dict[str, Any]:
        return {}

    def of_resize(self, run: str, decision: str) -> dict[str, Any]:
        return {}

    def of_decision(self, run: str, decision: str) -> dict[str, Any]:
        return {}

    def follow(self, size: int) -> None: ...


class RemoteWorld(RealWorld):
    """The executor of a control plane whose launcher does the work; its channels are real."""

    def _new(self) -> RemoteExecutor:  # type: ignore[override]
        local = LocalExecutor(self._folder / "executor", kinds=(self._kind,))
        launcher, ours = Launcher(local, Believing()), []
        for _ in range(CHANNELS):
            here, there = socket.socketpair()
            threading.Thread(target=launcher.serve, args=(there,), daemon=True).start()
            ours.append(here)
        return RemoteExecutor(ours, NoEvidence())

    def reopen(self) -> None:
        assert isinstance(self.executor, RemoteExecutor)
        self.executor.close()
        super().reopen()


class SimWorld:
    """The simulated executor."""

    def __init__(self, folder: Path) -> None:
        self._does: dict[str, Behaviour] = {}
        self._folder = folder
        self._clock = VirtualClock()
        self._machine = SimMachine(self._clock, lambda job: self._does[job.id])
        self.executor: Executor = SimExecutor(self._machine, folder)

    def reopen(self) -> None:
        self.executor = SimExecutor(self._machine, self._folder)

    def job(self, id: str, does: Behaviour, run: str | None = None) -> Job:
        self._does[id] = does
        return shell(id, "simulated", run=run)

    def until(self, condition: Callable[[], object], what: str) -> None:
        for _ in range(1_000):
            if condition():
                return
            self.pass_ms(10)
        raise AssertionError(what)

    def pass_ms(self, duration_ms: int) -> None:
        self._clock.run_until(self._clock.now_ms + duration_ms)

    def close(self) -> None:
        """Nothing to give back."""


World = RealWorld | SimWorld


def missing(kind: Kind) -> str | None:
    """Why this confinement cannot be had here; None when it can."""
    return None if find((kind,))[0] == kind else f"no writable {kind} hierarchy"


def exit_of(world: World, id: str) -> Exit:
    """Wait for the exit of a job."""
    world.until(lambda: any(each.job == id for each in world.executor.poll()), f"{id} ended")
    return next(each for each in world.executor.poll() if each.job == id)
