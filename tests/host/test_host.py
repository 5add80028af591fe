"""Clocks, directories and child processes."""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fairlead.compose.node import node_directory
from fairlead.host import clock, paths, process
from fairlead.host.process import on_signals
from fairlead.schema.node import NodeAgentDocument


def test_the_clocks_agree_on_what_they_share() -> None:
    """The steady clock is the wall clock, unless that was set since the start."""
    before, now, after = time.time_ns(), clock.now_ms(), time.time_ns()
    assert before // 1_000_000 <= now <= after // 1_000_000
    assert abs(clock.steady_now_ms() - clock.now_ms()) < 60_000
    before = clock.monotonic_ms()
    time.sleep(0.002)
    assert clock.monotonic_ms() > before


def test_waiting_ends_with_the_condition_or_the_time() -> None:
    answers = iter([False, False, True])
    assert clock.wait_until(lambda: next(answers), within_s=5, every_s=0.001)
    assert not clock.wait_until(lambda: False, within_s=0.01, every_s=0.001)


def test_where_state_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Named, else the machine's for root, else the user's; a relative XDG path is ignored."""
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.delenv("FAIRLEAD_STATE", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/tmp/ada")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert paths.state_directory() == Path("/home/ada/.local/state/fairlead")
    assert paths.cache_directory() == Path("/var/tmp/ada/fairlead")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert paths.state_directory() == paths.user_state_directory() == Path("/state/fairlead")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert paths.state_directory() == Path("/var/lib/fairlead")
    assert paths.cache_directory() == Path("/var/cache/fairlead")
    assert paths.user_state_directory() == Path("/state/fairlead")
    monkeypatch.setenv("FAIRLEAD_STATE", "here")
    assert paths.state_directory() == Path("here")
    assert paths.default_state_directory() == Path("/var/lib/fairlead")
    assert node_directory(NodeAgentDocument()) == Path("here/node")
    assert node_directory(NodeAgentDocument(state_dir="/own")) == Path("/own")


def test_a_spawned_process_leads_its_own_session(tmp_path: Path) -> None:
    """And has no input; both of its streams go to the given file."""
    code = "import os, sys; print(os.getsid(0) == os.getpid(), repr(sys.stdin.read()))"
    with (tmp_path / "out").open("wb") as output:
        child = process.spawn([sys.executable, "-c", code], output=output)
        assert child.wait() == 0
    assert (tmp_path / "out").read_text() == "True ''\n"


class _Connection:
    """Like one of TLS: to let go of it takes a lock that another thread may have held at a fork."""

    def __init__(self) -> None:
        self._owner = os.getpid()

    def __del__(self) -> None:
        if os.getpid() != self._owner:
            time.sleep(3600)  # the lock that its thread would release is gone: for good


def test_what_other_threads_hold_does_not_keep_a_process_from_starting() -> None:
    """A child that waited between fork and exec kept its parent waiting for good."""
    held, begun, end = threading.local(), threading.Event(), threading.Event()

    def hold() -> None:
        held.connection = _Connection()
        begun.set()
        end.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    assert begun.wait(10)
    started: list[subprocess.Popen[bytes]] = []
    command = [sys.executable, "-c", "pass"]
    starter = threading.Thread(
        target=lambda: started.append(process.spawn(command, ends_with_us=signal.SIGKILL)),
        daemon=True,
    )
    starter.start()
    starter.join(30)
    end.set()
    holder.join()
    assert started, "it hangs"
    started[0].wait()


def test_a_process_ends_with_the_thread_that_started_it(tmp_path: Path) -> None:
    """And has its own arguments, environment and folder. By itself it would sleep on."""
    code = "import os, sys, time; print(os.getcwd(), os.environ['A'], sys.argv[1:], flush=True)"
    command = [sys.executable, "-c", f"{code}; time.sleep(3600)", "-c", "two words"]
    started: list[subprocess.Popen[bytes]] = []
    said = tmp_path / "said"

    def start() -> None:
        with said.open("wb") as output:
            child = process.spawn(
                command,
                output=output,
                env={"A": "b"},
                cwd=str(tmp_path),
                ends_with_us=signal.SIGTERM,
            )
        started.append(child)
        assert clock.wait_until(lambda: said.read_bytes().endswith(b"\n"), within_s=30)

    starter = threading.Thread(target=start)
    starter.start()
    starter.join()
    assert started[0].wait(30) == -signal.SIGTERM
    assert said.read_text() == f"{tmp_path} b ['-c', 'two words']\n"


def test_a_program_that_is_not_there_is_said_at_once() -> None:
    for env in (None, {"PATH": "/nowhere"}):
        with pytest.raises(FileNotFoundError, match="no-such-program"):
            process.spawn(["no-such-program"], env=env, ends_with_us=signal.SIGTERM)


def test_a_program_that_does_not_leave_in_time_is_killed() -> None:
    assert process.run_detached(["sh", "-c", "exit 3"]) == 3
    with pytest.raises(subprocess.TimeoutExpired):
        process.run_detached(["sleep", "600"], timeout_s=0.05)


def test_a_child_dies_with_its_parent() -> None:
    """However the parent ends; and it learns when the parent was gone before."""
    code = """
import os, signal, sys, time
from fairlead.host import kernel
parent, (ready, go) = os.getpid(), os.pipe()
child = os.fork()
if not child:
    print(kernel.die_with_parent(parent, signal.SIGKILL), kernel.die_with_parent(1), flush=True)
    kernel.die_with_parent(parent, signal.SIGKILL)
    os.write(go, b"g")
    time.sleep(600)
os.read(ready, 1)
print(child, flush=True)
os.kill(parent, signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    said, child = done.stdout.splitlines()
    assert said == "True False"
    stat = Path(f"/proc/{child}/stat")
    assert clock.wait_until(lambda: not stat.exists() or " Z " in stat.read_text(), within_s=10)


def test_a_port_is_given_to_one_process_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also before its server listens, and where both begin their search at the same port."""
    monkeypatch.setattr(process.os, "getpid", lambda: 7)
    code = (
        "import os, sys; from fairlead.host import process; os.getpid = lambda: 7;"
        "print(process.free_port(), flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code]
    monkeypatch.setattr(process, "_ASKED", itertools.count())
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        theirs = int(other.stdout.readline())
        ours = process.free_port()
        other.communicate()
    assert ours != theirs
    monkeypatch.setattr(process, "_ASKED", itertools.count())
    assert process.free_port() == theirs


def test_a_signal_is_heard_inside_the_lock_that_its_action_takes() -> None:
    """An agent that was told to end in the moment in which it began to wait never ended."""
    told = threading.Event()
    before = signal.getsignal(signal.SIGUSR2)
    try:
        on_signals((signal.SIGUSR2,), told.set)
        with told._cond:  # as in `Event.wait`
            signal.raise_signal(signal.SIGUSR2)
        assert told.wait(10)
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_who_writes_no_log_line_does_not_load_what_writes_it() -> None:
    """8 MiB of the controller: structlog imports rich and pygments."""
    code = "import sys, fairlead.ledger.sqlite, fairlead.compose.kube, fairlead.api.cluster_server;"
    code += "print([name for name in ('structlog', 'rich') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
