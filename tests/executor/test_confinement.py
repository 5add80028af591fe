"""Nothing of a job survives it, and nothing else is ever touched."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from fairlead.core.invariant import known
from fairlead.executor import confine, shim
from fairlead.executor.job_folder import JobFolder, key
from fairlead.executor.local import LocalExecutor
from fairlead.host import files
from fairlead.host.clock import boot_id, since_boot_ms
from fairlead.ports.executor import Exit
from fairlead.ports.faults import PermanentFault
from tests.executor.worlds import RealWorld, exit_of, shell, until

DAEMON = "(setsid sh -c 'trap \"\" TERM HUP; echo $$ > {file}; while :; do sleep 1; done' &)"


def daemonised(shared: Path) -> int:
    """The number of the grandchild that left its session and its parent, once it said it."""
    file = shared / "daemon"
    until(lambda: file.exists() and file.read_text().strip(), "the daemon lives")
    return int(file.read_text())


def gone(pid: int) -> bool:
    return confine.stat(pid) is None


def folder_of(shared: Path, id: str) -> JobFolder:
    return JobFolder(shared / "executor" / "jobs" / key(id))


def test_a_daemonised_grandchild_ends_with_the_command(real: RealWorld, shared: Path) -> None:
    """The command ends by itself; what it left behind is gone when its exit is reported."""
    file = shared / "daemon"
    wait = f"while [ ! -s {file} ]; do sleep 0.01; done"
    real.executor.start(shell("p1", f"{DAEMON.format(file=file)}; {wait}"))
    assert exit_of(real, "p1").code == 0
    assert gone(int(file.read_text()))


def test_stop_reaches_a_daemonised_grandchild(real: RealWorld, shared: Path) -> None:
    """The group got SIGTERM and left; the daemon is not in the group and goes with the rest."""
    script = f"{DAEMON.format(file=shared / 'daemon')}; sleep 600"
    real.executor.start(shell("p1", script, run="lab/a"))
    pid = daemonised(shared)
    real.executor.stop("lab/a", 5_000, decision="p9")
    assert exit_of(real, "p1").signal == signal.SIGTERM
    assert gone(pid)


def test_a_killed_shim_takes_its_job_along(real: RealWorld, shared: Path) -> None:
    """Nobody could record its exit any more: it is ended, daemons too, and reported as lost."""
    script = f"{DAEMON.format(file=shared / 'daemon')}; sleep 600"
    real.executor.start(shell("p1", script))
    pid = daemonised(shared)
    shim = files.read_json(folder_of(shared, "p1").path / "shim.json")
    assert confine.send(shim, signal.SIGKILL)
    ended = exit_of(real, "p1")
    assert (ended.lost, ended.code, ended.signal) == (True, None, None)
    assert ended.reason == "its shim was killed, so it was ended"
    assert gone(pid)
    real.executor.start(shell("p1", "exit 0"))
    assert real.executor.poll() == [ended], "a lost job is not started again under its id"


def test_a_lost_job_is_ended_and_no_job_of_another_executor(real: RealWorld, shared: Path) -> None:
    """Two control planes of one user may have the same job id; each ends only its own."""
    other = LocalExecutor(shared / "other", kinds=(real.executor.kind,))  # type: ignore[attr-defined]
    script = "trap '' TERM; echo up; while :; do sleep 0.05; done"
    real.executor.start(shell("p1", script))
    other.start(shell("p1", script))
    theirs = JobFolder(shared / "other" / "jobs" / key("p1"))
    for folder in (folder_of(shared, "p1"), theirs):
        until((folder.path / shim.COMMAND).exists, "the command begins")
    assert confine.send(files.read_json(folder_of(shared, "p1").path / shim.SHIM), signal.SIGKILL)
    assert exit_of(real, "p1").lost
    assert other.running() == {"p1"}
    assert not gone(known(files.read_json(theirs.path / shim.COMMAND), "it began")["pid"])
    other.stop("lab/p1", 0, decision="p9")
    until(lambda: not other.running(), "the other is ended, too")


def test_no_cgroup_stays_behind(real: RealWorld, shared: Path) -> None:
    """The job's cgroup is gone when the exit is acknowledged."""
    real.executor.start(shell("p1", "exit 0"))
    path = files.read_json(folder_of(shared, "p1").path / "job.json")["confine"]["path"]  # type: ignore[index]
    real.executor.acknowledge([exit_of(real, "p1")])
    assert not path or not Path(path).exists()


def test_a_pause_reaches_what_is_forked_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that the first look missed is stopped by the next; the looks come to an end."""
    sleepers = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    try:
        first, both = (
            [confine.identify(sleepers[0].pid)],
            [confine.identify(sleeper.pid) for sleeper in sleepers],
        )
        looks = iter([first, both, both])
        monkeypatch.setattr(confine, "descendants", lambda _: next(looks))
        tree = confine.Tree("FAIRLEAD_JOB=p1", os.getuid())
        monkeypatch.setattr(tree, "_shim", os.getpid())
        tree.freeze(frozen=True)
        for sleeper in sleepers:
            pid, status = os.waitpid(sleeper.pid, os.WUNTRACED)
            assert pid == sleeper.pid
            assert os.WIFSTOPPED(status)
        ever_new = ([{"pid": 0, "start_ticks": tick, "boot": ""}] for tick in range(10**6))
        monkeypatch.setattr(confine, "descendants", lambda _: next(ever_new))
        tree.freeze(frozen=True)
        assert next(ever_new)[0]["start_ticks"] < 100, "a job that forks for ever holds the shim"
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()


def test_a_reused_pid_is_never_signalled() -> None:
    """Same number, another start time or another boot: another process."""
    process = subprocess.Popen(["sleep", "60"])
    try:
        known = confine.identify(process.pid)
        assert not confine.send({**known, "start_ticks": known["start_ticks"] - 1}, signal.SIGKILL)
        assert not confine.send({**known, "boot": "another"}, signal.SIGKILL)
        assert process.poll() is None
        assert confine.send(known, signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    assert not confine.send(known, signal.SIGKILL)


def test_a_restarted_machine_loses_what_had_begun(shared: Path) -> None:
    """And starts what had not: a folder of an earlier boot whose command never got the word."""
    executor = LocalExecutor(shared / "executor")
    executor.start(shell("p1", "sleep 600", run="lab/a"))
    command = folder_of(shared, "p1").path / "command.json"
    until(command.exists, "the command is written down")
    shim = files.read_json(command.parent / "shim.json")
    files.replace_json(command, {**(files.read_json(command) or {}), "boot": "earlier"})
    assert confine.send(shim, signal.SIGKILL)
    until(executor.poll, "the loss is noticed")
    assert [each.reason for each in executor.poll()] == ["the machine was restarted"]


def test_a_start_that_crashed_anywhere_is_completed(shared: Path) -> None:
    """An empty folder, a folder with the job but no shim: asked again, it runs, once."""
    job = shell("p1", f"echo x >> {shared}/witness; sleep 2")
    (shared / "executor" / "jobs" / key("p1")).mkdir(parents=True)
    executor = LocalExecutor(shared / "executor")
    assert executor.running() == set()
    executor._create(JobFolder(shared / "executor" / "jobs" / key("p1")), job)
    executor = LocalExecutor(shared / "executor")
    assert executor.running() == {"p1"}, "the job was promised: it is started without being asked"
    executor.start(job)
    until(executor.poll, "it ended")
    assert (shared / "witness").read_text() == "x\n"


def test_a_stop_before_the_start_is_kept(shared: Path) -> None:
    """Asked to end before any shim lived: it never begins, and the exit says so."""
    executor = LocalExecutor(shared / "executor")
    folder = JobFolder(shared / "executor" / "jobs" / key("p1"))
    executor._create(folder, shell("p1", f"touch {shared}/begun", run="lab/a"))
    folder.ask(shim.STOP, {"grace_ms": 0, "decision": "p9"})
    assert files.read_json(folder.path / "stop.json") == {"grace_ms": 0, "decision": "p9"}
    ended: list[Exit] = LocalExecutor(shared / "executor").poll()
    assert [(each.signal, each.reason) for each in ended] == [
        (signal.SIGTERM, "stopped before it was started")
    ]
    assert not (shared / "begun").exists()


@pytest.mark.parametrize("python", ["/bin/false", "/nowhere/python"])
def test_a_shim_that_cannot_live_is_a_reason_and_no_hang(
    shared: Path, monkeypatch: pytest.MonkeyPatch, python: str
) -> None:
    """Python itself is broken: after some tries the job ends with a sentence."""
    monkeypatch.setattr("sys.executable", python)
    executor = LocalExecutor(shared / "executor")
    executor.start(shell("p1", "exit 0"))
    until(executor.poll, "it gave up")
    assert "shim cannot be started" in (executor.poll()[0].reason or "")


def test_launches_are_counted_across_restarts(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A control plane that restarts again and again does not try a broken shim for ever."""
    monkeypatch.setattr("sys.executable", "/bin/false")
    for count in range(1, 11):
        assert not LocalExecutor(shared / "executor").poll()
        LocalExecutor(shared / "executor").start(shell("p1", "exit 0"))
        assert folder_of(shared, "p1").launches() == count
    (ended,) = LocalExecutor(shared / "executor").poll()
    assert "shim cannot be started" in (ended.reason or "")


def test_the_shim_outlives_signals_meant_for_the_control_plane(shared: Path) -> None:
    """SIGTERM, SIGINT and SIGHUP do not end it; its job runs on to its own end."""
    executor = LocalExecutor(shared / "executor")
    executor.start(shell("p1", "sleep 0.3; exit 4"))
    path = str(folder_of(shared, "p1").path / "shim.json")
    until(lambda: files.read_json(path), "the shim named itself")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        assert confine.send(files.read_json(path), number)
    until(executor.poll, "it ended")
    assert executor.poll()[0].code == 4


def test_a_damaged_folder_is_a_fault_that_names_the_file(shared: Path) -> None:
    """We never write half a document, so this is the disk; nothing is guessed."""
    executor = LocalExecutor(shared / "executor")
    executor.start(shell("p1", "exit 0"))
    until(executor.poll, "it ended")
    (folder_of(shared, "p1").path / "job.json").write_text('{"id"')
    with pytest.raises(PermanentFault, match=r"job\.json is damaged"):
        LocalExecutor(shared / "executor")


def test_an_exit_says_when_it_was_by_the_monotonic_clock(real: RealWorld) -> None:
    """The ledger places it by that, whatever the wall clock showed."""
    before_ms = since_boot_ms()
    real.executor.start(shell("p1", "true"))
    real.until(real.executor.poll, "it has ended")
    (exit,) = real.executor.poll()
    assert exit.boot == boot_id()
    assert before_ms <= exit.since_boot_ms <= since_boot_ms()


@pytest.mark.parametrize("boot", ["earlier", "another"])
def test_what_went_down_with_the_machine_was_last_there_at_the_last_look(
    shared: Path, boot: str
) -> None:
    """Without a look in its boot, at its start."""
    LocalExecutor(shared / "executor").start(shell("p1", "sleep 600"))
    command = folder_of(shared, "p1").path / "command.json"
    until(command.exists, "the command is written down")
    begun = files.read_json(command) or {}
    files.replace_json(command, {**begun, "boot": "earlier"})
    began_ms = begun["start_ticks"] * 1000 // os.sysconf("SC_CLK_TCK")
    seen = {"time_ms": 5, "boot": boot, "since_boot_ms": began_ms + 4_321}
    files.replace_json(shared / "executor" / "seen.json", seen)
    assert confine.send(files.read_json(command.parent / "shim.json"), signal.SIGKILL)
    executor = LocalExecutor(shared / "executor")
    until(executor.poll, "the loss is noticed")
    (exit,) = executor.poll()
    assert (exit.interrupted, exit.boot) == (True, "earlier")
    assert exit.since_boot_ms - began_ms == (4_321 if boot == "earlier" else 0)
