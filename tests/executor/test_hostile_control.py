"""A launcher in the hands of a control plane that was taken over: what it cannot be made to do."""

import contextlib
import json
import os
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.api.access import Access
from fairlead.engine.gpu import Author
from fairlead.executor import shim, wire
from fairlead.executor.confine import identify
from fairlead.executor.evidence import NotRecorded
from fairlead.executor.job_folder import JobFolder, key
from fairlead.executor.launcher import Launcher
from fairlead.executor.local import LocalExecutor
from fairlead.executor.proofs import LedgerEvidence, RunFacts
from fairlead.executor.remote import CHANNELS, RemoteExecutor
from fairlead.executor.verifier import LedgerVerifier
from fairlead.host.clock import now_ms
from fairlead.ledger.sqlite import SqliteLedger
from fairlead.ports.executor import Job
from fairlead.ports.faults import PermanentFault
from fairlead.ports.ledger import Draft
from tests.engine.gpu.worlds import World, budget, node, run
from tests.executor.recorded import CONTROL, archive, bind, evidence_of
from tests.executor.worlds import USER, Believing, shell, until
from tests.ledger.memory import MemoryKeys, MemoryLedger, MemorySession

AUTHOR = USER or str(os.geteuid())


class Machine:
    """A recorded world whose launcher is real; a restart is another launcher with its memory."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.world = folder, World()
        bind(self.world, AUTHOR, "a")
        self.world.plane = self.world.open()
        self.world.apply(node(), budget("a"))
        self.local, self.remote = self.restart()

    def restart(self) -> tuple[LocalExecutor, RemoteExecutor]:
        runs = self.folder / "runs"
        self.local = LocalExecutor(runs, allow_root=USER is None, kinds=("tree",))
        launcher, ours = Launcher(self.local, LedgerVerifier(runs, CONTROL)), []
        for _ in range(CHANNELS):
            here, there = socket.socketpair()
            threading.Thread(target=launcher.serve, args=(there,), daemon=True).start()
            ours.append(here)
        self.remote = RemoteExecutor(ours, evidence_of(self.world), now_ms)
        return self.local, self.remote

    def submit(self, name: str, script: str) -> Job:
        """A start that is recorded, and not carried out yet."""
        manifest = run(name, owner="a", gpus=1, command=["/bin/sh", "-c", script])
        self.world.plane.objects.apply(manifest, author=Author(AUTHOR, frozenset({"a"})))
        self.world.turn()
        return next(job for job in self.world.executor.jobs.values() if job.run == name)

    def close(self) -> None:
        for job in self.local.running():
            self.local.stop(job.rsplit(".", 2)[0], 0, decision="9")
        until(lambda: not self.local.running(), "everything ended")


@pytest.fixture
def machine(shared: Path) -> Iterator[Machine]:
    made = Machine(shared)
    yield made
    made.close()


def begun(machine: Machine, job: Job) -> None:
    until(lambda: machine.local.has_begun(job.id), f"{job.id} begun")


def test_a_start_is_carried_out_once_and_never_again(machine: Machine) -> None:
    """Its evidence stays good for ever. The launcher remembers, over restarts and `prune`."""
    mark = machine.folder / "mark"
    job = machine.submit("once", f"echo x >> {mark}")
    machine.remote.start(job)
    until(machine.remote.poll, "an exit")
    machine.remote.acknowledge(machine.remote.poll())
    for _ in range(2):
        machine.remote.start(job)
        assert machine.remote.prune(2**60) in (0, 1)
        machine.restart()
    machine.remote.start(job)
    assert (machine.remote.running(), machine.remote.poll()) == (set(), [])
    assert mark.read_text() == "x\n"
    assert machine.remote.ended(job.id, job.run) is not None


def test_a_start_needs_no_luck_to_follow_a_binding(machine: Machine) -> None:
    """A user submits while the request that bound them is still being answered: the start shows the
    binding first. What could not be shown is shown by the next start."""
    access = Access(machine.world.ledger, lambda: machine.world.now_ms)
    access.users_change = machine.remote.users_change
    admin = Author("root", admin=True)
    access.unbind(AUTHOR, author=admin)
    refused = machine.submit("refused", "true")
    with pytest.raises(PermanentFault, match="users bind"):
        machine.remote.start(refused)
    with machine.remote.users_change():
        bind(machine.world, AUTHOR, "a")
        machine.remote.start(machine.submit("early", "true"))
    with machine.remote.users_change():
        bind(machine.world, AUTHOR, gone=True)
    with contextlib.suppress(ValueError), machine.remote.users_change():
        bind(machine.world, AUTHOR, "a")
        raise ValueError("the answer was lost")
    machine.remote.start(machine.submit("later", "true"))


def test_the_memory_of_past_jobs_survives_a_torn_write(tmp_path: Path) -> None:
    local = LocalExecutor(tmp_path, kinds=("tree",))
    past = local._past
    assert "a" not in past
    past.add("a")
    with (tmp_path / "past").open("ab") as file:
        file.write(b"torn")
    past.add("b")
    assert ("a" in past, "b" in past, "c" in past) == (True, True, False)
    (tmp_path / "past").write_bytes(b"")
    assert "a" not in past


def test_runs_go_on_when_all_about_them_was_archived(machine: Machine, tmp_path: Path) -> None:
    """After a restart each start is asked for again: what runs needs no evidence. It can be stopped
    by the entry that says where its decision went; what never ran is not started."""
    job = machine.submit("long", "while :; do sleep 0.1; done")
    waits = machine.submit("waits", "true")
    machine.remote.start(job)
    begun(machine, job)
    author = Author(AUTHOR, frozenset({"a"}))
    machine.world.plane.verbs.act("Run", "long", "cancel", author=author)
    (asked,) = {machine.world.projection.runs["long"].stop_seq}
    Access(machine.world.ledger, lambda: machine.world.now_ms).keep(every=1)
    archive(machine.world, tmp_path / "archive", machine.world.ledger.head().head.size)
    machine.restart()
    machine.remote.start(job)
    assert machine.remote.running() == {job.id}
    machine.remote.resize("long", job.devices, grace_ms=0, decision=job.id)
    with pytest.raises(PermanentFault, match="no entry starts"):
        machine.remote.start(waits)
    later = str(machine.world.ledger.head().head.size + 1)
    with pytest.raises(PermanentFault, match="no entry is decision"):
        machine.remote.stop("long", 0, decision=later)
    machine.remote.stop("long", 0, decision=str(asked))
    until(machine.remote.poll, "it ended")


def test_without_an_archive_nothing_stands_for_an_entry(machine: Machine) -> None:
    job = machine.submit("long", "while :; do sleep 0.1; done")
    machine.remote.start(job)
    other = machine.submit("other", "true")
    for decision in ("1", "99999", other.id, "x"):
        with pytest.raises(PermanentFault, match="the launcher refuses it"):
            machine.remote.stop("long", 0, decision=decision)
    assert machine.remote.running() == {job.id}


def written_down(executor: Path, job: Job) -> JobFolder:
    """A job of an executor that ended before it launched a shim."""
    before = LocalExecutor(executor, kinds=("tree",))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JobFolder, "launch", lambda _: None)
        before.start(job)
    return JobFolder(executor / "jobs" / key(job.id))


def test_a_document_that_another_wrote_starts_nothing(shared: Path) -> None:
    """The earlier holder of the folder wrote who runs what. Only a start that is asked for is
    launched, and it runs what is asked for."""
    job = shell("job", f"echo asked > {shared / 'asked'}", devices=())
    folder = written_down(shared / "x", job)
    planted = {**folder.job, "argv": ["/bin/sh", "-c", f"id > {shared / 'planted'}"]}
    planted |= {"uid": os.geteuid(), "gid": os.getegid(), "groups": [], "allow_root": True}
    folder.write(planted)
    after = LocalExecutor(shared / "x", kinds=("tree",))
    for _ in range(3):
        assert (after.poll(), after.running()) == ([], {"job"})
    assert folder.launches() == 0
    after.start(job)
    until(after.poll, "it ended")
    assert (shared / "asked").exists()
    assert not (shared / "planted").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"id": "other"},
        {"confine": {"kind": "cgroup2", "path": "/sys/fs/cgroup/system.slice"}},
        {"confine": {"kind": "freezer", "path": "/x/fairlead-exec/other"}},
    ],
    ids=["another job", "a cgroup of the system", "the cgroup of another job"],
)
def test_a_document_that_names_what_is_not_its_own_is_refused(
    shared: Path, change: dict[str, Any]
) -> None:
    """Root would kill what is in that cgroup."""
    folder = written_down(shared / "x", shell("job", "true", devices=()))
    folder.write({**folder.job, **change})
    with pytest.raises(PermanentFault, match="is not the document of this job"):
        LocalExecutor(shared / "x", kinds=("tree",))


def test_a_number_that_another_process_has_now_is_not_signalled(shared: Path) -> None:
    """The shim was killed, and its number is in use again: a stop leaves that process alone."""
    executor = LocalExecutor(shared / "x", kinds=("tree",))
    executor.start(shell("job", "while :; do sleep 0.1; done", devices=()))
    folder = JobFolder(shared / "x/jobs" / key("job"))
    until(lambda: folder.has_begun, "begun")
    identity = json.loads((folder.path / shim.SHIM).read_text())
    os.kill(identity["pid"], signal.SIGKILL)
    with subprocess.Popen(["sleep", "60"]) as bystander:
        reused = {**identify(bystander.pid), "start_ticks": identity["start_ticks"]}
        (folder.path / shim.SHIM).write_text(json.dumps(reused))
        executor.stop("lab/job", 0, decision="1")
        until(executor.poll, "the job ended")
        assert bystander.poll() is None
        bystander.kill()


def test_two_histories_on_two_channels_are_one_too_many(tmp_path: Path) -> None:
    """Both continue the first checkpoint and are signed by its key, and not one the other."""
    keys, evidence = MemoryKeys(), []
    first = MemoryLedger(keys)
    copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    first.connection.backup(copy)
    session = MemorySession(Path("memory"), copy)
    ledgers = [first, SqliteLedger(session, session, keys, ExitStack())]
    sources = [LedgerEvidence(ledger, lambda run: RunFacts()) for ledger in ledgers]
    opening, _ = [source.opening({"size": 0, "users": 0}) for source in sources]
    for number, ledger in enumerate(ledgers):
        body = {"run": "train", "number": number}
        ledger.append([Draft(kind="run.phase", time_ms=0, author="x", body=body)])
        evidence.append(sources[number].of_decision("train", "2"))
    verifier = LedgerVerifier(tmp_path, CONTROL)
    verifier.open(**opening)
    verifier.act("train", "2", (), evidence[0])
    with pytest.raises(NotRecorded, match="does not continue"):
        verifier.act("train", "2", (), evidence[1])


# -- the process ----------------------------------------------------------------------------------


class LauncherProcess:
    """`python -m fairlead.executor.launcher`, and our ends of its channels."""

    def __init__(self, folder: Path) -> None:
        pairs = [socket.socketpair() for _ in range(CHANNELS)]
        self.channels = [ours for ours, _ in pairs]
        numbers = [theirs.fileno() for _, theirs in pairs]
        config = {"channels": numbers, "folder": str(folder), "allow_root": False}
        config |= {"visible": {}, "minors": {}, "control_uid": CONTROL, "control_gid": os.getegid()}
        config["run_users"] = None
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fairlead.executor.launcher", json.dumps(config)],
            pass_fds=numbers,
            stderr=subprocess.PIPE,
        )
        for _, theirs in pairs:
            theirs.close()
        for channel in self.channels:
            channel.settimeout(60)

    def close(self) -> None:
        for channel in self.channels:
            channel.close()
        self.process.wait(60)
        assert self.process.stderr is not None
        self.process.stderr.close()


@pytest.fixture
def launcher(shared: Path) -> Iterator[LauncherProcess]:
    made = LauncherProcess(shared / "runs")
    yield made
    made.close()


def frame(document: Any) -> bytes:
    data = json.dumps(document).encode()
    return struct.pack("!I", len(data)) + data


FATAL: dict[str, bytes] = {
    "too long": struct.pack("!I", wire.FRAME_BYTES_MAX + 1),
    "all ones": b"\xff" * 64,
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "no JSON": struct.pack("!I", 3) + b"\x00\xff{",
    "too deep": struct.pack("!I", 200_000) + b"[" * 200_000,
    "an endless number": struct.pack("!I", 6_000) + b"1" * 6_000,
    "no call": frame({"call": "__init__", "arguments": {}, "evidence": None, "now_ms": 0}),
    "half a character": frame(
        {"call": "newest_job", "arguments": {"run": "\ud800"}, "evidence": None, "now_ms": 0}
    ),
    "a number too large": frame(
        {
            "call": "prune",
            "arguments": {"ended_before_ms": 10**30, "living": []},
            "evidence": None,
            "now_ms": 0,
        }
    ),
    "no checkpoint": frame(
        {
            "call": "open",
            "arguments": {"head": {}, "public_key": "", "continues": []},
            "evidence": None,
            "now_ms": 0,
        }
    ),
}


@pytest.mark.parametrize("channel", range(CHANNELS))
@pytest.mark.parametrize("what", sorted(FATAL))
def test_what_is_not_in_the_format_ends_the_whole_launcher(
    launcher: LauncherProcess, what: str, channel: int
) -> None:
    """On whatever channel: none is left waiting, and the control plane hears of it."""
    launcher.channels[channel].sendall(FATAL[what])
    assert launcher.process.wait(60) == 70
    for left in launcher.channels:
        with contextlib.suppress(ConnectionResetError):
            assert left.recv(1) == b""


def test_a_frame_that_never_ends_holds_up_no_other_channel(launcher: LauncherProcess) -> None:
    launcher.channels[0].sendall(struct.pack("!I", 100) + b"{")
    wire.send(
        launcher.channels[1], {"call": "running", "arguments": {}, "evidence": None, "now_ms": 0}
    )
    answer = wire.receive(launcher.channels[1])
    assert answer is not None
    assert answer["done"] == []
    launcher.channels[0].close()
    assert launcher.process.wait(60) == 0


@pytest.mark.parametrize("name", ["followed.json", "users.json"])
def test_a_launcher_whose_memory_is_damaged_says_so(shared: Path, name: str) -> None:
    """And starts nothing: what it does not know it cannot refuse."""
    (shared / "runs").mkdir()
    (shared / "runs" / name).write_text("{")
    made = LauncherProcess(shared / "runs")
    assert made.process.wait(60) == 1
    assert made.process.stderr is not None
    assert f"{name} is damaged" in made.process.stderr.read().decode()
    made.close()


def test_acts_without_a_ledger_are_refused(launcher: LauncherProcess) -> None:
    """Before a ledger is followed, nothing is recorded."""
    first = launcher.channels[0]
    head = dict.fromkeys(("ledger", "root", "key_id", "signature"), "00")
    shown = {"head": {**head, "epoch": 1, "size": 1, "time_ms": 1}, "continues": [], "entries": []}
    job = wire.job_document(replace(shell("job", "id"), user="root"))
    acts = {
        "start": {"job": job},
        "stop": {"run": "x", "decision": "1", "grace_ms": 0},
        "users": {"state": None, "upto": 0},
    }
    for call, arguments in acts.items():
        wire.send(first, {"call": call, "arguments": arguments, "evidence": shown, "now_ms": 0})
        answer = wire.receive(first)
        assert answer is not None
        assert "no ledger is followed yet" in answer["message"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
CALLS = ("start", "stop", "pause", "resume", "resize", "warn", "users", "open", "job_of", "press")


@settings(max_examples=200, deadline=None)
@given(
    call=st.sampled_from(CALLS),
    arguments=st.dictionaries(
        st.sampled_from(("run", "job", "decision", "grace_ms", "devices", "upto", "state", "pid")),
        JSON,
    ),
    evidence=st.none() | st.dictionaries(st.text(max_size=8), JSON),
)
def test_any_frame_is_answered_or_refused(call: str, arguments: Any, evidence: Any) -> None:
    """No frame has another effect than an answer or the end of the connection."""
    launcher = Launcher(_nothing(), Believing())
    asked = {"call": call, "arguments": arguments, "evidence": evidence, "now_ms": 0}
    try:
        answer = launcher._answer(asked)
    except wire.BadFrame:
        return
    assert answer.keys() & {"done", "fault"}


_FOLDERS: list[LocalExecutor] = []


def _nothing() -> LocalExecutor:
    """An executor without jobs; one for all examples."""
    if not _FOLDERS:
        _FOLDERS.append(LocalExecutor(Path(tempfile.mkdtemp()), kinds=("tree",)))
    return _FOLDERS[0]
