"""The log of those who run for long: whole lines, and nobody ends with its reader."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from fairlead.cli.agents import AgentCommands, agent_log, lasting
from fairlead.node.state import StateDirectory


class Writes(io.StringIO):
    """What reaches the stream, write by write."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[str] = []

    def write(self, text: str) -> int:
        self.all.append(text)
        return len(text)


def test_a_line_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three processes share the log of `fairlead up`, unbuffered perhaps."""
    stream = Writes()
    monkeypatch.setattr(sys, "stderr", stream)
    agent_log("node").warning("stopped", ticks=3)
    (line,) = stream.all
    assert line.endswith("}\n")
    assert json.loads(line).items() >= {"agent": "node", "event": "stopped", "ticks": 3}.items()


def test_a_status_that_is_not_there_says_how_to_name_another_place(tmp_path: Path) -> None:
    """The agent's file may have a `state_dir` of its own."""
    commands = AgentCommands("traffic", lambda: tmp_path)
    with pytest.raises(click.UsageError, match=r"no agent has run in .*/traffic .*--state-dir"):
        commands.read_status(commands.directory(None))


def test_what_needs_the_agent_stopped_says_so(tmp_path: Path) -> None:
    """An agent may say "another agent" of one; a command that puts things back may not."""
    config = tmp_path / "web.yaml"
    backend = "{id: a, host: 127.0.0.1, port: 9001}"
    group = f"{{name: web, vip: 127.0.0.1, port: 8080, backends: [{backend}]}}"
    config.write_text(f"{{plane: haproxy, groups: [{group}]}}")
    state = StateDirectory(tmp_path / "state")
    state.create()
    state.lock()
    command = [sys.executable, "-m", "fairlead", "traffic", "remove", config]
    done = subprocess.run(
        [*command, "--state-dir", state.path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert done.stderr == f"fault: an agent is running on {state.path}: stop it first\n"


@pytest.mark.parametrize("problem", [OSError(28, "full"), ValueError("closed")])
def test_a_line_that_cannot_be_written_is_lost(problem: Exception) -> None:
    """The next one may go through."""
    stream = Writes()
    log = lasting(stream)
    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(stream, "flush", lambda: (_ for _ in ()).throw(problem))
        log.write("a\n")
    log.write("b\n")
    assert stream.all == ["a\n", "b\n"]


TALKER = """
import sys
from fairlead.cli.agents import agent_log
log = agent_log("node")
log.info("first")
sys.stdin.readline()
for _ in range(3):
    log.info("more")
print("still here")
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_goes_away_ends_nobody(unbuffered: str) -> None:
    """Not later either: Python flushes once more when it ends."""
    talker = subprocess.Popen(
        [sys.executable, "-c", TALKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    with talker:
        assert talker.stderr is not None
        assert "first" in talker.stderr.readline()
        talker.stderr.close()
        assert talker.stdin is not None
        assert talker.stdout is not None
        talker.stdin.write("\n")
        talker.stdin.close()
        assert talker.stdout.read() == "still here\n"
    assert talker.returncode == 0
