"""The launcher starts what is recorded, as it is recorded, and nothing else."""

import socket
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.compose.up import run_facts
from fairlead.executor import wire
from fairlead.executor.evidence import NotRecorded
from fairlead.executor.launcher import Launcher, SentTime
from fairlead.executor.local import LocalExecutor
from fairlead.executor.proofs import LedgerEvidence, RunFacts
from fairlead.executor.remote import CHANNELS, RemoteExecutor
from fairlead.executor.verifier import LedgerVerifier
from fairlead.host.clock import boot_id, now_ms, since_boot_ms
from fairlead.ports.executor import Exit, Job
from fairlead.ports.faults import PermanentFault, TemporaryFault
from tests.engine.gpu.worlds import ALICE, FakeExecutor, World, budget, node, run
from tests.executor.recorded import CONTROL, bind, evidence_of, follow, show_users
from tests.executor.worlds import Believing, NoEvidence, shell, until
from tests.ledger.memory import MemoryLedger

COMMAND = {"command": ["train", "--fast"], "env": {"A": "1"}, "workingDirectory": "/srv"}


class Proving(FakeExecutor):
    """Carries out what a launcher would: each act is verified by the ledger."""

    def __init__(self, world: World, folder: Path) -> None:
        super().__init__()
        self.evidence, self.verifier = follow(world, folder)

    def start(self, job: Job) -> None:
        show_users(self.evidence, self.verifier)
        self.verifier.start(job, self.evidence.of_start(job))
        self.evidence.follow(self.verifier.size())
        super().start(job)

    def stop(self, run: str, grace_ms: int, *, decision: str) -> None:
        self._act(run, decision)
        super().stop(run, grace_ms, decision=decision)

    def pause(self, run: str, *, decision: str) -> None:
        self._act(run, decision)
        super().pause(run, decision=decision)

    def resume(self, run: str, *, decision: str) -> None:
        self._act(run, decision)
        super().resume(run, decision=decision)

    def resize(self, run: str, devices: tuple[str, ...], *, grace_ms: int, decision: str) -> None:
        shown = self.evidence.of_resize(run, decision)
        self.verifier.resize(run, devices, decision, {}, shown)
        self.evidence.follow(self.verifier.size())
        super().resize(run, devices, grace_ms=grace_ms, decision=decision)

    def _act(self, run: str, decision: str) -> None:
        found = self.evidence.of_decision(run, decision)
        assert found["entries"], f"{decision} is shown"
        self.verifier.act(run, decision, (), found)
        self.evidence.follow(self.verifier.size())


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World()
    bind(made, "alice", "a")
    (tmp_path / "proving").mkdir()
    made.executor = Proving(made, tmp_path / "proving")
    made.plane = made.open()
    made.apply(node(), budget("a"))
    return made


@pytest.fixture
def job(world: World) -> Job:
    """A run that was started, as the executor was asked to."""
    world.plane.objects.apply(run("train", gpus=2, **COMMAND), author=ALICE)
    world.turn()
    (found,) = world.executor.jobs.values()
    return found


def test_all_that_a_control_plane_does_is_recorded(world: World, job: Job) -> None:
    """Starts, pauses, resizes, restarts on the same devices and stops all show their entries."""
    assert (job.command, job.user) == (("train", "--fast"), "alice")
    act = world.plane.verbs.act
    for verb in ("pause", "resume"):
        act("Run", "train", verb, author=ALICE)
    shape = {"malleable": {"minTotalGPUs": 1}, "groupGPUs": 1, "command": ["elastic"]}
    world.apply(run("elastic", gpus=4, **shape))
    world.turn()
    act("Run", "elastic", "shrink", author=ALICE, width=2)
    world.turn(1)
    again = {"command": ["again"], "restartPolicy": "OnFailure", "backoffLimit": 3}
    world.apply(run("again", gpus=1, **again))
    world.turn()
    world.executor.end("again", world.now_ms, code=1)
    world.turn()
    world.turn(1)  # it restarts after a delay
    for name in ("train", "elastic", "again"):
        act("Run", name, "cancel", author=ALICE)
    world.turn()
    calls = [call[:2] for call in world.executor.calls]
    starts = [call for call in calls if call[0] == "start"]
    assert len(starts) == 4, calls
    assert {call[0] for call in calls} == {"start", "pause", "resume", "resize", "stop"}
    assert world.plane.faults == {}


CHANGES: dict[str, Any] = {
    "id": "train.00000000.1",
    "run": "other",
    "owner": "b",
    "command": ("sh", "-c", "id"),
    "devices": ("n1#7",),
    "env": {"LD_PRELOAD": "/tmp/x.so"},
    "secret_env": {"KEY": "/etc/shadow"},
    "user": "root",
    "working_directory": None,
    "umask": 0,
    "terminal": True,
}


@pytest.mark.parametrize("field", sorted(CHANGES))
def test_what_was_not_submitted_is_not_started(
    world: World, job: Job, tmp_path: Path, field: str
) -> None:
    """Another user, command, variable, secret, directory or device than the ledger has; files that
    others may write, and a terminal to type into."""
    evidence, verifier = follow(world, tmp_path)
    shown = evidence.of_start(job)
    with pytest.raises(NotRecorded):
        verifier.start(replace(job, **{field: CHANGES[field]}), shown)
    verifier.start(job, shown)


def test_a_terminal_and_a_umask_that_were_submitted_are_had(world: World, tmp_path: Path) -> None:
    """And no others."""
    asked = {**COMMAND, "terminal": True, "umask": "0022"}
    world.plane.objects.apply(run("shell", **asked), author=ALICE)
    world.turn()
    (job,) = world.executor.jobs.values()
    assert (job.terminal, job.umask) == (True, 0o022)
    evidence, verifier = follow(world, tmp_path)
    for other in (replace(job, terminal=False), replace(job, umask=None)):
        with pytest.raises(NotRecorded):
            verifier.start(other, evidence.of_start(job))


def test_nothing_runs_as_the_holder_of_the_keys(world: World) -> None:
    """Even if its submission is recorded, whatever its user is called."""
    ours = replace(ALICE, user=str(CONTROL))
    world.plane.objects.apply(run("insider", **COMMAND), author=ours)
    with pytest.raises(NotRecorded, match="holds the ledger's keys"):
        world.turn()


def edited(shown: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    return {**shown, **changes}


def without(kind: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    mark = f'"kind":"{kind}"'
    return lambda shown: edited(
        shown, entries=[row for row in shown["entries"] if mark not in row["data"]]
    )


def forged(shown: dict[str, Any]) -> dict[str, Any]:
    rows = [{**row, "data": row["data"].replace("train", "tra1n")} for row in shown["entries"]]
    return edited(shown, entries=rows)


def unsigned(shown: dict[str, Any]) -> dict[str, Any]:
    return edited(shown, head={**shown["head"], "size": shown["head"]["size"] + 1})


ATTEMPTS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "no start": without("run.phase"),
    "no submission": without("object.applied"),
    "no lease": without("lease.open"),
    "nothing": lambda shown: edited(shown, entries=[]),
    "a forged entry": forged,
    "an unsigned checkpoint": unsigned,
    "another signature": lambda shown: edited(
        shown, head={**shown["head"], "signature": "00" * 64}
    ),
    "no hex": lambda shown: edited(shown, head={**shown["head"], "signature": "zz"}),
    "another key": lambda shown: edited(shown, head={**shown["head"], "key_id": "0" * 16}),
    "no continuation": lambda shown: edited(shown, continues=["00" * 32]),
    "no JSON": lambda shown: edited(shown, entries=[{"data": "[", "proof": []}]),
    "no entry": lambda shown: edited(shown, entries=[{"data": "{}", "proof": []}]),
    "too many": lambda shown: edited(shown, entries=shown["entries"] * 2000),
}


@pytest.mark.parametrize("attempt", sorted(ATTEMPTS))
def test_evidence_that_shows_something_else_is_refused(
    world: World, job: Job, tmp_path: Path, attempt: str
) -> None:
    with pytest.raises(NotRecorded, match="no ledger is followed"):
        LedgerVerifier(tmp_path, CONTROL).start(job, evidence_of(world).of_start(job))
    evidence, verifier = follow(world, tmp_path)
    shown = evidence.of_start(job)
    with pytest.raises(NotRecorded):
        verifier.start(job, ATTEMPTS[attempt](shown))
    verifier.start(job, evidence.of_start(job))
    with pytest.raises(wire.BadFrame):
        verifier.start(job, None)


def test_a_second_history_is_not_followed(world: World, job: Job, tmp_path: Path) -> None:
    """Neither another ledger, nor one that goes back; the first checkpoint pins it, and the next
    launcher has the last one."""
    evidence, nothing = evidence_of(world), {"size": 0, "users": 0}
    early = evidence.opening(nothing)
    world.apply(budget("b"))
    evidence, verifier = follow(world, tmp_path)
    with pytest.raises(NotRecorded, match="followed already"):
        verifier.open(**early)
    other = LedgerEvidence(MemoryLedger(time_ms=1), lambda run: RunFacts())
    foreign = other.opening(nothing)
    cited = evidence.of_decision("train", job.id)
    for shown in (other.of_decision("train", "1"), {**cited, "head": early["head"]}):
        with pytest.raises(NotRecorded):
            verifier.act("train", "1", (), shown)
    wrong = LedgerVerifier(tmp_path / "new", CONTROL)
    with pytest.raises(NotRecorded, match="not the one that signs"):
        wrong.open(early["head"], "00" * 32, [])
    for opening in (early, foreign):
        with pytest.raises(NotRecorded, match="put back or replaced"):
            LedgerVerifier(tmp_path, CONTROL).open(**opening)


def test_an_act_shows_a_decision_about_its_run(world: World, job: Job, tmp_path: Path) -> None:
    """Not just any entry: one of another run, or none at all, stops nothing."""
    world.plane.objects.apply(run("other", **COMMAND), author=ALICE)
    world.plane.verbs.act("Run", "train", "cancel", author=ALICE)
    evidence, verifier = follow(world, tmp_path)
    (cancelled,) = run_facts(world.projection.runs["train"]).about
    shown = evidence.of_decision("train", str(cancelled))
    verifier.act("train", str(cancelled), (), shown)
    with pytest.raises(NotRecorded, match="is not about other"):
        verifier.act("other", str(cancelled), (), shown)
    with pytest.raises(NotRecorded, match="no entry is decision"):
        verifier.act("other", str(cancelled), (), evidence.of_decision("other", job.id))
    with pytest.raises(NotRecorded, match="no lease of train has n1#7"):
        verifier.resize("train", ("n1#7",), job.id, {}, evidence.of_resize("train", job.id))
    verifier.resize(
        "train", ("n1#7",), job.id, {job.id: ["n1#7"]}, evidence.of_resize("train", "1")
    )


# -- the format -----------------------------------------------------------------------------------


def test_a_frame_names_every_field() -> None:
    """A field that is added to the port is added to the format, or nothing starts."""
    assert set(wire.JOB) == {field.name for field in fields(Job)}
    assert set(wire.EXIT) == {field.name for field in fields(Exit)}


GOOD = {"call": "running", "arguments": {}, "evidence": None, "now_ms": 0}
BAD: dict[str, Any] = {
    "a list": [],
    "no call": {},
    "an unknown call": {**GOOD, "call": "_open"},
    "more than asked for": {**GOOD, "arguments": {"x": 1}},
    "no time": {**GOOD, "now_ms": "soon"},
    "a bool for a number": {**GOOD, "call": "job_of", "arguments": {"pid": True}},
    "a text for a number": {**GOOD, "call": "job_of", "arguments": {"pid": "1"}},
    "half a job": {**GOOD, "call": "start", "arguments": {"job": {"id": "x"}}},
    "another signal": {
        **GOOD,
        "call": "warn",
        "arguments": {"run": "x", "notice": {}, "signal": "KILL", "decision": "1"},
    },
    "no hex": {
        **GOOD,
        "call": "press",
        "arguments": {"run": "x", "text": "zz", "interrupt": False, "size": None},
    },
    "no terminal": {
        **GOOD,
        "call": "press",
        "arguments": {"run": "x", "text": "", "interrupt": False, "size": [1, 2, 3]},
    },
}


@pytest.mark.parametrize("what", sorted(BAD))
def test_what_is_not_in_the_format_ends_the_connection(tmp_path: Path, what: str) -> None:
    launcher = Launcher(LocalExecutor(tmp_path / "x", kinds=("tree",)), Believing())
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wire.send(ours, BAD[what])
        with pytest.raises(wire.BadFrame):
            launcher.serve(theirs)


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("!I", wire.FRAME_BYTES_MAX + 1),
        struct.pack("!I", 2) + b"[[",
        struct.pack("!I", 200_000) + b"[" * 200_000,
    ],
    ids=["too long", "no JSON", "too deep"],
)
def test_bytes_that_are_no_frame(data: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender = threading.Thread(target=ours.sendall, args=(data,))
        sender.start()
        with pytest.raises(wire.BadFrame):
            wire.receive(theirs)
        sender.join()
    with pytest.raises(wire.BadFrame):
        wire.send(ours, {"x": "y" * wire.FRAME_BYTES_MAX})


def test_a_frame_that_is_cut_off_is_an_end(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    ours.sendall(struct.pack("!I", 10) + b"{")
    ours.close()
    with theirs:
        assert wire.receive(theirs) is None


def test_ends_say_when_they_were_by_the_monotonic_clock(tmp_path: Path) -> None:
    """Ledger time is 400 days behind the launcher's own clock: an operator rejected a jump. What
    the launcher dates itself is in ledger time."""
    time = SentTime()
    local = LocalExecutor(tmp_path / "x", kinds=("tree",), now_ms=time)
    launcher, pairs = Launcher(local, Believing(), time), [socket.socketpair() for _ in range(3)]
    for _, theirs in pairs:
        threading.Thread(target=launcher.serve, args=(theirs,), daemon=True).start()
    off_ms = 400 * 86_400_000
    executor = RemoteExecutor([ours for ours, _ in pairs], NoEvidence(), lambda: now_ms() - off_ms)
    executor.start(shell("p1", "true"))
    until(executor.poll, "it has ended")
    (exit,) = executor.poll()
    assert exit.boot == boot_id()
    assert 0 <= since_boot_ms() - exit.since_boot_ms < 60_000
    assert abs(time() - (now_ms() - off_ms)) < 60_000
    executor.acknowledge([exit])
    executor.close()


def test_without_its_launcher_every_call_says_so(tmp_path: Path) -> None:
    """For now, not for good: a start that the next process asks for again has not failed."""
    pairs = [socket.socketpair() for _ in range(CHANNELS)]
    launcher = Launcher(LocalExecutor(tmp_path / "x", kinds=("tree",)), Believing())
    for _, theirs in pairs:
        threading.Thread(target=launcher.serve, args=(theirs,), daemon=True).start()
    executor = RemoteExecutor([ours for ours, _ in pairs], NoEvidence())
    assert executor.running() == set()
    with pytest.raises(PermanentFault, match="a frame has at most"):
        executor.newest_job("x" * wire.FRAME_BYTES_MAX)
    with pytest.raises(ProcessLookupError):
        executor.job_of(2**22 + 1)
    for _, theirs in pairs:
        theirs.shutdown(socket.SHUT_RDWR)
    for call in (executor.running, executor.poll, lambda: executor.newest_job("x")):
        with pytest.raises(TemporaryFault, match="launcher is gone"):
            call()
    executor.close()
