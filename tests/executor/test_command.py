"""What a command finds when it begins: its user, its environment, its files."""

import hashlib
import json
import os
import stat
from pathlib import Path

import pytest

from fairlead.executor import shim
from fairlead.executor.local import LocalExecutor
from fairlead.ports.executor import Exit, Job
from fairlead.ports.faults import PermanentFault
from tests.executor.worlds import USER, shell, until

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


def run(shared: Path, job: Job, **settings: object) -> tuple[Exit, str]:
    """One job to its end: its exit and its output."""
    executor = LocalExecutor(shared / "executor", **settings)  # type: ignore[arg-type]
    executor.start(job)
    until(executor.poll, "the job ended")
    output = "".join(part.read_text() for part in executor.log_parts(job.run))
    return executor.poll()[0], output


@needs_root
def test_runs_as_the_submitting_user(shared: Path) -> None:
    """Real, effective and saved user and group, its groups only, and no way back up."""
    script = "grep -E '^(Uid|Gid|Groups|NoNewPrivs|CapEff|SigIgn):' /proc/self/status; umask"
    ended, output = run(shared, shell("p1", script, user="65534"))
    assert ended.code == 0
    told = dict(line.split(":", 1) for line in output.splitlines()[:-1])
    assert told["Uid"].split() == ["65534"] * 4
    assert told["Gid"].split() == ["65534"] * 4
    assert "0" not in told["Groups"].split()
    assert told["NoNewPrivs"].strip() == "1"
    assert int(told["CapEff"], 16) == 0
    # 32 and 33 belong to the C library: whoever started us may have left them ignored for good.
    assert int(told["SigIgn"], 16) & ~(0b11 << 31) == 0
    assert output.splitlines()[-1] == "0027"


@needs_root
@pytest.mark.parametrize("user", [None, "root", "0", "00"])
def test_root_is_refused_unless_configured(shared: Path, user: str | None) -> None:
    """However it is spelled, and also when nobody is named; the exit says why."""
    ended, _ = run(shared, shell("p1", f"touch {shared}/begun", user=user))
    assert ended.code == 126
    assert "root is not allowed" in (ended.reason or "")
    assert not (shared / "begun").exists()


@needs_root
def test_root_when_configured(shared: Path) -> None:
    """`allow_root` means it."""
    ended, output = run(shared, shell("p1", "id -u", user="root"), allow_root=True)
    assert (ended.code, output) == (0, "0\n")


def test_an_unknown_user_is_a_reason(shared: Path) -> None:
    ended, _ = run(shared, shell("p1", "exit 0", user="no-such-user-here"))
    assert ended.code == 126
    assert "no user 'no-such-user-here'" in (ended.reason or "")


def test_the_environment_is_clean(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the control plane's; the run's own; the lease's, which nobody overrides."""
    monkeypatch.setenv("FAIRLEAD_TOKEN", "of the control plane")
    monkeypatch.setenv("CONTROL_PLANE_SECRET", "of the control plane")
    job = shell("p1", "env; ls /proc/self/fd | wc -l", run="lab/a", env={"MINE": "a=b c"})
    ended, output = run(shared, job, visible={"host#3": "GPU-abc"})
    assert ended.code == 0
    told = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
    assert "of the control plane" not in output
    assert told["MINE"] == "a=b c"
    # The other is virtual: its number is no device that is there.
    assert told["CUDA_VISIBLE_DEVICES"] == "GPU-abc"
    assert (told["FAIRLEAD_RUN"], told["FAIRLEAD_JOB"]) == ("lab/a", "p1")
    assert told["FAIRLEAD_LEASES"] == "l1,l2"
    assert told["FAIRLEAD_DEVICES"] == "host#0,host#3"
    assert told["FAIRLEAD_WIDTH"] == "2"
    # Three streams and the one that `ls` itself opens.
    assert output.split()[-1] == "4"


def test_no_devices_means_none_and_not_all(shared: Path) -> None:
    _, output = run(shared, shell("p1", 'echo "[$CUDA_VISIBLE_DEVICES]"', devices=()))
    assert output == "[]\n"


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "FAIRLEAD_RUN", "", "A=B"])
def test_the_lease_cannot_be_contradicted(shared: Path, name: str) -> None:
    ended, _ = run(shared, shell("p1", "exit 0", env={name: "7"}))
    assert ended.code == 126
    assert ended.reason


def test_a_secret_reaches_only_the_command(shared: Path) -> None:
    """By reference: not in the job's folder, not in the log, not in an error."""
    secret = shared / "token"
    secret.write_text("correct-horse\n")
    job = shell("p1", 'printf %s "$TOKEN" | sha256sum', secret_env={"TOKEN": str(secret)})
    _, output = run(shared, job)
    assert output.split()[0] == hashlib.sha256(b"correct-horse").hexdigest()
    kept = [path for path in (shared / "executor").rglob("*") if path.is_file()]
    assert kept
    assert not any(b"correct-horse" in path.read_bytes() for path in kept)


@needs_root
def test_a_secret_must_be_readable_by_the_user_itself(shared: Path) -> None:
    """Root's files are not lent; a FIFO does not hang; the reason names only the reference."""
    private = shared / "private"
    private.write_text("correct-horse")
    private.chmod(0o600)
    ended, _ = run(shared, shell("p1", "exit 0", user=USER, secret_env={"TOKEN": str(private)}))
    assert (ended.code, ended.reason) == (126, f"secret TOKEN from {private}: Permission denied")
    fifo = shared / "fifo"
    os.mkfifo(fifo, 0o666)
    fifo.chmod(0o666)
    executor = LocalExecutor(shared / "second")
    executor.start(shell("p2", "exit 0", secret_env={"TOKEN": str(fifo)}))
    until(executor.poll, "it ended")
    assert executor.poll()[0].reason == f"secret TOKEN from {fifo}: not a regular file"


@needs_root
def test_the_working_directory_is_entered_as_the_user(shared: Path) -> None:
    """What the user may not enter is a reason; what it may is where the command begins."""
    closed = shared / "closed"
    closed.mkdir(mode=0o700)
    ended, _ = run(shared, shell("p1", "pwd", working_directory=str(closed)))
    assert (ended.code, ended.reason) == (126, f"working directory {closed}: Permission denied")


def test_the_working_directory_is_where_the_command_begins(shared: Path) -> None:
    _, output = run(shared, shell("p1", "pwd", working_directory=str(shared)))
    assert output == f"{shared}\n"


@pytest.mark.parametrize("command", [(), ("/",), ("a\0b",), ("/etc/hostname",)])
def test_what_cannot_be_run_is_a_reason(shared: Path, command: tuple[str, ...]) -> None:
    """No command, a directory, a zero byte, a file that is no program."""
    ended, _ = run(shared, shell("p1", "", command=command))
    assert ended.code == 126
    assert ended.reason


def test_output_is_bounded_and_the_newest_is_kept(shared: Path) -> None:
    """A megabyte into ten kilobytes: the end is there, the command was not held up."""
    script = "yes 0123456789012345678901234567890123456789 | head -c 1000000; echo the end"
    ended, _ = run(shared, shell("p1", script, run="lab/a"), log_bytes_max=10_000)
    assert ended.code == 0
    parts = LocalExecutor(shared / "executor").log_parts("lab/a")
    assert len(parts) == 2
    assert sum(part.stat().st_size for part in parts) <= 10_000
    text = "".join(part.read_text() for part in parts)
    assert text.endswith("the end\n")
    assert len(text) > 4_000
    assert all(stat.S_IMODE(part.stat().st_mode) == 0o600 for part in parts)


def test_who_holds_the_output_open_does_not_hold_the_devices(tmp_path: Path) -> None:
    """A command may hand its output to a process outside of its cgroup, which then writes for ever:
    what is left in the pipe is kept, and the exit is written all the same."""
    ended = object.__new__(shim.Shim)
    ended._output = shim.OutputFile(str(tmp_path), 10_000)
    ended._pipe = os.open("/dev/zero", os.O_RDONLY)
    try:
        ended._drain()
    finally:
        os.close(ended._pipe)
        ended._output.close()
    assert ended._output.dropped > 2**20


def test_pruned_jobs_are_forgotten(shared: Path) -> None:
    """Acknowledged and older than asked for: folder and output go."""
    executor = LocalExecutor(shared / "executor")
    executor.start(shell("p1", "exit 0", run="lab/a"))
    until(executor.poll, "it ended")
    ended = executor.poll()[0]
    executor.acknowledge([ended])
    assert executor.prune(ended.time_ms) == 0
    assert executor.log_parts("lab/a") != []
    assert executor.prune(ended.time_ms + 1) == 1
    assert executor.log_parts("lab/a") == []
    assert [*(shared / "executor").glob("runs/*")] == [], "nothing points to what is gone"


def test_what_runs_or_may_run_again_is_never_pruned(shared: Path) -> None:
    """However old: a job that runs, one not acknowledged, and the last words of a waiting run."""
    executor = LocalExecutor(shared / "executor")
    executor.start(shell("p1", "echo before", run="lab/waits"))
    executor.start(shell("p2", "exit 0", run="lab/unheard"))
    executor.start(shell("p3", "while :; do sleep 0.05; done", run="lab/runs"))
    until(lambda: len(executor.poll()) == 2, "two ended")
    executor.acknowledge([each for each in executor.poll() if each.job == "p1"])
    assert executor.prune(2**60, living={"lab/waits"}) == 0
    assert [part.read_text() for part in executor.log_parts("lab/waits")] == ["before\n"]
    assert executor.running() == {"p3"}
    assert [each.job for each in executor.poll()] == ["p2"]
    executor.stop("lab/runs", 0, decision="p9")
    until(lambda: not executor.running(), "the last one ended")
    executor.acknowledge(executor.poll())
    assert executor.prune(2**60) == 3


def test_a_damaged_or_half_removed_job_keeps_no_other(shared: Path) -> None:
    """A removal that a crash cut short is finished; a damaged file is told, and the rest goes."""
    executor = LocalExecutor(shared / "executor")
    for name in ("p1", "p2", "p3"):
        executor.start(shell(name, "exit 0"))
    until(lambda: len(executor.poll()) == 3, "all ended")
    executor.acknowledge(executor.poll())
    damaged, half, _ = sorted((shared / "executor" / "done").iterdir())
    (damaged / "exit.json").write_text("{")
    (half / "job.json").unlink()
    with pytest.raises(PermanentFault, match="damaged"):
        executor.prune(2**60)
    assert [*(shared / "executor" / "done").iterdir()] == [damaged]


def test_a_job_is_told_its_width_by_file_and_signal(shared: Path) -> None:
    """The file is there from the start, for the command's user; the signal says: read it again."""
    executor = LocalExecutor(shared / "executor", visible={"n#0": "GPU-a", "n#1": "GPU-b"})
    script = (
        'trap \'cat "$FAIRLEAD_WIDTH_FILE"; exit 7\' WINCH; cat "$FAIRLEAD_WIDTH_FILE"; echo;'
        "echo ready; while :; do sleep 0.05; done"
    )
    job = shell("p1", script, run="lab/a", devices=("n#0", "n#1"), user=USER)
    executor.start(job)
    until(lambda: "ready" in output_of(executor), "the command listens")
    executor.resize("lab/a", ("n#0",), grace_ms=0, decision="p9")
    until(executor.poll, "it ended")
    (ended,) = executor.poll()
    assert ended.code == 7
    before, _, after = output_of(executor).splitlines()
    assert json.loads(before) == {"devices": ["n#0", "n#1"], "visible": "GPU-a,GPU-b", "width": 2}
    assert json.loads(after) == {"devices": ["n#0"], "visible": "GPU-a", "width": 1}
    executor.acknowledge([ended])
    assert list((shared / "executor" / "told").iterdir()) == []


def test_a_job_is_warned_by_file_and_the_signal_that_it_chose(shared: Path) -> None:
    """Once for one decision, however often it is asked for; without a signal by the file alone."""
    executor = LocalExecutor(shared / "executor")
    script = (
        "trap 'cat \"$FAIRLEAD_WARNING_FILE\"; echo; exit 7' USR2; "
        'test -e "$FAIRLEAD_WARNING_FILE" || echo ready; while :; do sleep 0.05; done'
    )
    executor.start(shell("p1", script, run="lab/a", devices=("n#0",), user=USER))
    until(lambda: "ready" in output_of(executor), "the command listens")
    executor.warn("lab/a", {"chance": 0.25}, signal=None, decision="8")
    for _ in range(2):
        executor.warn("lab/a", {"chance": 0.5}, signal="USR2", decision="9")
    until(executor.poll, "it ended")
    (ended,) = executor.poll()
    assert ended.code == 7
    # The shell says that its `sleep` had the signal, too.
    assert json.loads(output_of(executor).splitlines()[-1]) == {"chance": 0.5}


def test_who_does_not_know_the_signal_goes_on(shared: Path) -> None:
    """Told twice, and before a restart of the executor: the command ends when it wants to."""
    executor = LocalExecutor(shared / "executor")
    wait = f"echo ready; while [ ! -e {shared}/go ]; do sleep 0.05; done; echo done"
    executor.start(shell("p1", wait, run="lab/a", devices=("n#0", "n#1")))
    until(lambda: "ready" in output_of(executor), "it runs")
    executor.resize("lab/a", ("n#0",), grace_ms=0, decision="p9")
    executor = LocalExecutor(shared / "executor")
    executor.resize("lab/a", ("n#0",), grace_ms=0, decision="p9")
    executor.resize("lab/nobody", (), grace_ms=0, decision="p9")
    (shared / "go").touch()
    until(executor.poll, "it ended")
    assert executor.poll()[0].code == 0
    assert output_of(executor) == "ready\ndone\n"


def output_of(executor: LocalExecutor) -> str:
    return "".join(part.read_text() for part in executor.log_parts("lab/a"))
