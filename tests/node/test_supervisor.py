"""Agents beside the control plane: started again, left alone, ended with it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.node.supervisor import SUPERVISOR, Agents
from tests.node.traffic.servers import until

STAY = "import signal; signal.pause()"


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def ignores(pid: int, number: int) -> bool:
    """Whether a process does not listen to a signal."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (mask,) = [line.split()[1] for line in lines if line.startswith("SigIgn")]
    return bool(int(mask, 16) & 1 << (number - 1))


def pid_in(line: str) -> int:
    return int(line.rpartition(" ")[2])


def test_one_that_ends_is_started_again_ever_later() -> None:
    """Killed or failed: the operator reads how, and when it is tried again."""
    said: list[str] = []
    with Agents({"node": python("raise SystemExit(3)")}, said.append, first_s=0.01):
        until(lambda: sum("runs as" in line for line in said) >= 4, "four lives")
    pauses = [line.rpartition(" in ")[2] for line in said if "again" in line]
    assert pauses[:3] == ["0.01 s", "0.02 s", "0.04 s"]
    assert said[1].startswith("the node agent ended with 3; it starts again")


def test_one_that_was_killed_is_another_process_afterwards() -> None:
    """And its neighbour never noticed."""
    said: list[str] = []
    commands = {"node": python(STAY), "traffic": python(STAY)}
    with Agents(commands, said.append, first_s=0.01):
        until(lambda: len(said) == 2, "both run")
        first = {line.split()[1]: pid_in(line) for line in said}
        os.kill(first["node"], signal.SIGKILL)
        until(lambda: len(said) == 4, "it is back")
        assert said[2].startswith("the node agent ended by signal 9")
        again = pid_in(said[3])
        assert again != first["node"]
        assert alive(first["traffic"])
    assert not any(map(alive, (again, first["traffic"])))
    assert len(said) == 4


def test_one_that_found_a_bug_in_itself_is_left_alone() -> None:
    """An agent that broke its own promises has stopped for a reason."""
    said: list[str] = []
    agents = Agents({"traffic": python("raise SystemExit(70)")}, said.append, first_s=0.01)
    with agents:
        until(lambda: not any(thread.is_alive() for thread in agents._threads), "left alone")
    assert said[1:] == [
        "the traffic agent ended with 70 and is not started again: it found a bug in itself"
    ]


def test_one_whose_file_is_wrong_is_back_when_it_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the longest pause at once: its own words are not repeated every second."""
    monkeypatch.setattr("fairlead.node.supervisor.MOST_S", 0.3)
    said: list[str] = []
    mended, back = tmp_path / "mended", tmp_path / "back"
    program = f"import os; os.path.exists({str(mended)!r}) or exit(2); open({str(back)!r}, 'w')"
    with Agents({"node": python(f"{program}; {STAY}")}, said.append, first_s=0.01):
        until(lambda: len(said) >= 2, "refused")
        mended.touch()
        until(back.exists, "back")
    assert said[1] == (
        "the node agent ended with 2: its configuration is wrong; it starts again in 0.3 s"
    )


def test_one_that_somebody_told_to_end_is_started_again() -> None:
    """An agent ends in peace on SIGTERM, whoever sent it; only we know when it is over."""
    said: list[str] = []
    with Agents({"node": python("raise SystemExit(0)")}, said.append, first_s=0.01):
        until(lambda: sum("runs as" in line for line in said) >= 2, "started again")


def test_nobody_who_listens_is_no_reason_to_stop() -> None:
    """The terminal is gone, the pipe is broken: the agents are kept all the same."""
    lives: list[str] = []

    def say(line: str) -> None:
        lives.append(line)
        raise BrokenPipeError

    with Agents({"node": python("raise SystemExit(3)")}, say, first_s=0.01):
        until(lambda: sum("runs as" in line for line in lives) >= 3, "three lives")


def test_one_that_cannot_be_started_is_tried_again() -> None:
    """No thread dies of it in silence."""
    said: list[str] = []
    with Agents({"node": ["/nowhere/at/all"]}, said.append, first_s=0.01):
        until(lambda: sum("cannot be started" in line for line in said) >= 2, "tried again")


def test_one_that_does_not_listen_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has its time first, and the operator reads whom we wait for."""
    monkeypatch.setattr("fairlead.node.supervisor.WARN_S", 0.1)
    monkeypatch.setattr("fairlead.node.supervisor.STOP_S", 0.3)
    said: list[str] = []
    deaf = "import signal; signal.signal(15, signal.SIG_IGN); " + STAY
    with Agents({"node": python(deaf)}, said.append):
        until(lambda: len(said) == 1, "running")
        until(lambda: ignores(pid_in(said[0]), signal.SIGTERM), "ignoring")
    assert not alive(pid_in(said[0]))
    assert said[1].startswith("waiting for the node agent to end; killed in 0.2")


SUPERVISED = """
import sys
from fairlead.node.supervisor import end_with_supervisor
end_with_supervisor()
print("here", flush=True)
import signal; signal.pause()
"""
SUPERVISOR_PROGRAM = f"""
import signal, sys
from fairlead.node.supervisor import Agents
command = [sys.executable, "-c", {SUPERVISED!r}]
with Agents({{"node": command}}, lambda line: print(line, flush=True)):
    signal.pause()
"""


def test_an_agent_ends_with_a_supervisor_that_is_killed() -> None:
    """kill -9 gives nobody the time to say so: the kernel does."""
    supervisor = subprocess.Popen(python(SUPERVISOR_PROGRAM), stdout=subprocess.PIPE, text=True)
    with supervisor:
        assert supervisor.stdout is not None
        agent = pid_in(supervisor.stdout.readline())
        assert supervisor.stdout.readline() == "here\n"
        supervisor.kill()
    until(lambda: not alive(agent), "ended")


def test_an_agent_whose_supervisor_is_gone_already_does_not_begin() -> None:
    """The next control plane has one of its own by now."""
    environment = {**os.environ, SUPERVISOR: "1"}
    done = subprocess.run(
        python(SUPERVISED), env=environment, capture_output=True, text=True, check=False
    )
    assert "PermanentFault: the control plane that started this agent is gone" in done.stderr
