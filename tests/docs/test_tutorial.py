"""The tutorial, word by word: its commands against a real `fairlead up`, its answers as printed.

A block ```sh is typed into one shell, ```sh up into the first terminal; ```text is what the block
before it answers, where `…` stands for anything.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.api.servers import short_folder

ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = ROOT / "docs" / "tutorials" / "first-budget.md"
BLOCK = re.compile(r"^```(sh|text)( up)?\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
END = "--- the block is over"


class Step(NamedTuple):
    """What is typed, and what comes of it."""

    commands: str
    answer: str | None
    up: bool


def steps() -> list[Step]:
    found: list[Step] = []
    for kind, up, text in BLOCK.findall(TUTORIAL.read_text()):
        if kind == "sh":
            found.append(Step(text, None, bool(up)))
        else:
            found[-1] = found[-1]._replace(answer=text)
    return found


class Typist:
    """A shell that is typed into, block by block."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            ["bash", "--norc", "--noprofile"], cwd=folder, env=environment, text=True, bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def type(self, commands: str) -> str:
        """Everything that the commands print; the last must succeed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{commands}\necho; echo '{END}' $?\n")
        self.process.stdin.flush()
        shown = []
        for line in self.process.stdout:
            if line.startswith(END):
                assert line.split()[-1] == "0", (commands, shown)
                return "".join(shown).removesuffix("\n")
            shown.append(line)
        raise AssertionError(f"the shell ended in {commands!r}: {shown}")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    program = tmp_path / "bin" / "fairlead"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fairlead "$@"\n')
    program.chmod(0o755)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("FAIRLEAD")}
    # The port may be taken on this machine, and root's runs are refused where nobody allows them.
    return {**kept, "PATH": f"{program.parent}:{os.environ['PATH']}", "FAIRLEAD_PORT": "0",
            "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "xdg")}  # fmt: skip


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as found:
        yield found


def test_the_tutorial_as_it_stands(folder: Path, environment: dict[str, str]) -> None:
    """Every command, in order; every answer that is printed there."""
    script = steps()
    (first,) = [step for step in script if step.up]
    allow = " --allow-root" if os.geteuid() == 0 else ""
    log = folder / "up.log"
    with log.open("w") as out:
        server = subprocess.Popen(
            ["bash", "-c", f"{first.commands.rstrip()}{allow}"], cwd=folder, env=environment,
            stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while not (folder / "state" / "fairlead.sock").exists():
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)  # polling interval, not synchronisation
        typist = Typist(folder, environment)
        for step in script:
            if step.up:
                continue
            shown = typist.type(step.commands)
            if step.answer is not None:
                pattern = ".*?".join(re.escape(part) for part in step.answer.split("…"))
                assert re.fullmatch(_loose(pattern), shown.rstrip() + "\n"), (
                    f"{step.commands}\nshould print\n{step.answer}\nbut prints\n{shown}"
                )
        typist.process.stdin.close()  # type: ignore[union-attr]
        assert typist.process.wait(timeout=30) == 0
    finally:
        os.killpg(server.pid, signal.SIGINT)
        assert server.wait(timeout=60) == 0, log.read_text()


def _loose(pattern: str) -> str:
    """Columns may be wider where a value is: runs of spaces match runs of spaces."""
    return re.sub(r"(\\ )+", r" +", pattern)


def test_the_tutorial_is_found() -> None:
    """Ten steps at least, one of them the server; and it is named where people begin."""
    script = steps()
    assert len(script) >= 10
    assert sum(step.up for step in script) == 1
    assert "docs/tutorials/first-budget.md" in (ROOT / "README.md").read_text()
