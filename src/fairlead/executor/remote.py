"""An `Executor` whose work is done by the launcher, a process with more rights than ours.

What acts sends the evidence of its decision along. There are three channels: a start takes long, a
question about output may wait for it, and who a caller is must be known without waiting.
"""

import socket
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fairlead.executor import wire
from fairlead.host.clock import now_ms
from fairlead.ports.executor import Exit, Job, JobOutput, Keyboard
from fairlead.ports.faults import PermanentFault, TemporaryFault

CHANNELS = 3
GONE = "the launcher is gone: restart `fairlead up`"


class UsersShown(NamedTuple):
    """Bindings up to an entry, by entries; or the `state` that archived ones led to."""

    upto: int
    evidence: dict[str, Any]
    state: str | None = None


class EvidenceSource(Protocol):
    """Where the evidence of decisions comes from."""

    def opening(self, followed: Mapping[str, int]) -> dict[str, Any]:
        """What the launcher is told first: the checkpoint, the key that signs it, and how it goes
        on from what an earlier launcher `followed`."""

    def of_users(self) -> Iterator[UsersShown]:
        """Who acts for whom, as far as the launcher does not know it."""

    def of_start(self, job: Job) -> dict[str, Any]: ...
    def of_resize(self, run: str, decision: str) -> dict[str, Any]: ...
    def of_decision(self, run: str, decision: str) -> dict[str, Any]: ...
    def follow(self, size: int) -> None:
        """The launcher's last checkpoint has so many entries: the next one continues it."""


class Channel:
    """Questions and answers, one at a time. Thread-safe."""

    def __init__(self, connection: socket.socket, now_ms: Callable[[], int]) -> None:
        self._connection, self._lock, self._now_ms = connection, threading.Lock(), now_ms

    size = 0
    """Of the launcher's last checkpoint, by its last answer."""

    def ask(self, call: str, evidence: dict[str, Any] | None = None, **arguments: Any) -> Any:
        """What was answered; raises the fault that was."""
        asked: dict[str, Any] = {"call": call, "arguments": arguments, "evidence": evidence}
        with self._lock:
            asked |= {"now_ms": self._now_ms()}
            try:
                data = wire.pack(asked)
            except wire.BadFrame as error:
                raise PermanentFault(f"the launcher takes no such request: {error}") from error
            try:
                self._connection.sendall(data)
                answer = wire.receive(self._connection)
            except (OSError, wire.BadFrame) as error:
                # Not for good: the next process asks again, and no run fails for ours.
                raise TemporaryFault(f"{GONE} ({error})") from error
        if answer is None:
            raise TemporaryFault(GONE)
        self.size = int(answer["size"])
        if "done" in answer:
            return answer["done"]
        message = str(answer.get("message"))
        if answer.get("fault") == "process":
            raise ProcessLookupError(message)
        raise (TemporaryFault if answer.get("fault") == "temporary" else PermanentFault)(message)

    def close(self) -> None:
        self._connection.close()


class RemoteExecutor:
    """Asks the launcher; `evidence` shows it that what it is asked for is recorded."""

    pauses = True

    def __init__(
        self,
        channels: Sequence[socket.socket],
        evidence: EvidenceSource,
        now_ms: Callable[[], int] = now_ms,
    ) -> None:
        """`now_ms`: ledger time, in which the launcher reports ends."""
        self._acts, self._questions, self._callers = (
            Channel(channel, now_ms) for channel in channels
        )
        self._evidence = evidence
        # Evidence continues the checkpoint before it, so its order is that of the requests.
        self._order = threading.Lock()
        self._counting, self._changes = threading.Lock(), 0
        """Changes of users that the launcher was not shown yet."""
        opening = evidence.opening(self._acts.ask("followed"))
        opened = self._acts.ask("open", None, **opening)
        self.kind, self.isolation = str(opened["kind"]), str(opened["isolation"])
        self.show_users()

    def show_users(self) -> None:
        """Show the launcher what was recorded about users since the last time."""
        with self._order:
            for shown in self._evidence.of_users():
                self._acts.ask("users", shown.evidence, state=shown.state, upto=shown.upto)
                self._evidence.follow(self._acts.size)

    @contextmanager
    def users_change(self) -> Iterator[None]:
        """While this records something about users. What follows from it may be started before the
        block ends: a start shows users first. One that fails is shown by the next start."""
        self._count(1)
        yield
        self.show_users()
        self._count(-1)

    def _count(self, more: int) -> None:
        with self._counting:
            self._changes += more

    def start(self, job: Job) -> None:
        if self._changes:
            self.show_users()
        self._prove(lambda: self._evidence.of_start(job), "start", job=wire.job_document(job))

    def stop(self, run: str, grace_ms: int, *, decision: str) -> None:
        self._act("stop", run, decision, grace_ms=grace_ms)

    def pause(self, run: str, *, decision: str) -> None:
        self._act("pause", run, decision)

    def resume(self, run: str, *, decision: str) -> None:
        self._act("resume", run, decision)

    def resize(self, run: str, devices: tuple[str, ...], *, grace_ms: int, decision: str) -> None:
        more = {"devices": list(devices), "grace_ms": grace_ms, "decision": decision}
        self._prove(lambda: self._evidence.of_resize(run, decision), "resize", run=run, **more)

    def warn(
        self, run: str, notice: Mapping[str, object], *, signal: str | None, decision: str
    ) -> None:
        self._act("warn", run, decision, notice=dict(notice), signal=signal)

    def _act(self, call: str, run: str, decision: str, **arguments: Any) -> None:
        self._prove(
            lambda: self._evidence.of_decision(run, decision),
            call,
            run=run,
            decision=decision,
            **arguments,
        )

    def _prove(self, evidence: Callable[[], dict[str, Any]], call: str, **arguments: Any) -> None:
        with self._order:
            try:
                self._acts.ask(call, evidence(), **arguments)
            finally:
                self._evidence.follow(self._acts.size)

    def held(self, run: str, devices: tuple[str, ...]) -> bool | None:
        return None

    def poll(self) -> list[Exit]:
        return [wire.exit_of(row) for row in self._acts.ask("poll")]

    def acknowledge(self, exits: Iterable[Exit]) -> None:
        self._acts.ask("acknowledge", exits=[asdict(exit) for exit in exits])

    def running(self) -> set[str]:
        return set(self._acts.ask("running"))

    def devices_of(self, run: str) -> dict[str, list[str]]:
        return dict(self._acts.ask("devices_of", run=run))

    def ended(self, job: str, run: str) -> Exit | None:
        found = self._acts.ask("ended", job=job, run=run)
        return None if found is None else wire.exit_of(found)

    def prune(self, ended_before_ms: int, *, living: Collection[str] = ()) -> int:
        return int(self._acts.ask("prune", ended_before_ms=ended_before_ms, living=sorted(living)))

    def log_parts(self, run: str, jobs: str = "") -> list[Path]:
        return [Path(part) for part in self._questions.ask("log_parts", run=run, jobs=jobs)]

    def newest_job(self, run: str) -> str:
        return str(self._questions.ask("newest_job", run=run))

    def output(self, job: str) -> JobOutput | None:
        found = self._questions.ask("output", job=job)
        if found is None:
            return None
        return JobOutput(job, tuple(Path(part) for part in found["parts"]), found["dropped"])

    def press(self, run: str, keys: Keyboard) -> int | None:
        typed: int | None = self._questions.ask(
            "press",
            run=run,
            text=keys.text.hex(),
            interrupt=keys.interrupt,
            size=None if keys.size is None else list(keys.size),
        )
        return typed

    def job_of(self, pid: int) -> str | None:
        found: str | None = self._callers.ask("job_of", pid=pid)
        return found

    def close(self) -> None:
        for channel in (self._acts, self._questions, self._callers):
            channel.close()
