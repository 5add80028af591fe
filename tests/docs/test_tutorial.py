"""The tutorials, word by word: their commands against a real `fairlead up`, answers as printed.

A block ```sh is typed into one shell, ```sh up into the first terminal; ```text is what the block
before it answers, where `…` stands for anything, and a line of it alone for any lines.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.api.servers import short_folder

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(sh|text)( up)?\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
END = "--- the block is over"
PATIENCE_S = 180


class Step(NamedTuple):
    """What is typed, and what comes of it."""

    commands: str
    answer: str | None
    up: bool


def steps(tutorial: Path) -> list[Step]:
    found: list[Step] = []
    for kind, up, text in BLOCK.findall(tutorial.read_text()):
        if kind == "sh":
            found.append(Step(text, None, bool(up)))
        else:
            found[-1] = found[-1]._replace(answer=text)
    return found


TUTORIALS = [
    path
    for path in sorted((ROOT / "docs" / "tutorials").glob("*.md"), key=lambda path: path.name)
    if any(step.up for step in steps(path))
]
"""Those that begin with a control plane; the page for users of Slurm begins where there is one."""


class Typist:
    """A shell that is typed into, block by block."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=folder,
            env=environment,
            text=True,
            bufsize=1,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def type(self, commands: str) -> str:
        """Everything that the commands print; the last must succeed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        shown = []
        # A page that waits for something waits for ever if it does not come.
        watchdog = threading.Timer(PATIENCE_S, self.process.kill)
        watchdog.start()
        try:
            self.process.stdin.write(f"{commands}\necho; echo '{END}' $?\n")
            self.process.stdin.flush()
            for line in self.process.stdout:
                if line.startswith(END):
                    assert line.split()[-1] == "0", (commands, shown)
                    return "".join(shown).removesuffix("\n")
                shown.append(line)
        finally:
            watchdog.cancel()
        raise AssertionError(f"the shell ended in {commands!r}: {shown}")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    program = tmp_path / "bin" / "fairlead"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fairlead "$@"\n')
    program.chmod(0o755)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("FAIRLEAD")}
    # The port may be taken on this machine, and root's runs are refused where nobody allows them.
    return {
        **kept,
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "FAIRLEAD_PORT": "0",
        "HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path / "xdg"),
        "CLONE": str(ROOT),
    }


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as found:
        yield found


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_the_tutorial_as_it_stands(
    tutorial: Path, folder: Path, environment: dict[str, str]
) -> None:
    """Every command, in order; every answer that is printed there."""
    script = steps(tutorial)
    (first,) = [step for step in script if step.up]
    allow = " --allow-root --user root" if os.geteuid() == 0 else ""
    log = folder / "up.log"
    with log.open("w") as out:
        server = subprocess.Popen(
            ["bash", "-c", f"{first.commands.rstrip()}{allow}"],
            cwd=folder,
            env=environment,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
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
                assert re.fullmatch(_pattern(step.answer), shown.rstrip() + "\n"), (
                    f"{step.commands}\nshould print\n{step.answer}\nbut prints\n{shown}"
                )
        typist.process.stdin.close()  # type: ignore[union-attr]
        assert typist.process.wait(timeout=30) == 0
    finally:
        _end_runs({**environment, "FAIRLEAD_STATE": str(folder / "state")})
        os.killpg(server.pid, signal.SIGINT)
        assert server.wait(timeout=60) == 0, log.read_text()


def _pattern(answer: str) -> str:
    """Columns may be wider where a value is: runs of spaces match runs of spaces."""
    lines = []
    for line in answer.splitlines():
        text = ".*?".join(re.escape(part) for part in line.split("…")) + "\n"
        lines.append("(?:.*\n)*?" if line == "…" else re.sub(r"(\\ )+", " +", text))
    return "".join(lines)


def _end_runs(environment: dict[str, str]) -> None:
    """Nothing that a tutorial started goes on behind it, however far it came."""
    fairlead, deadline = [sys.executable, "-m", "fairlead"], time.monotonic() + 60
    while time.monotonic() < deadline:
        asked = subprocess.run(
            [*fairlead, "get", "runs", "-o", "json"],
            capture_output=True,
            check=False,
            env=environment,
        )
        runs = json.loads(asked.stdout or b"[]")
        live = [each for each in runs if each["status"]["phase"] not in ("Completed", "Failed")]
        if not live:
            return
        names = [each["metadata"]["name"] for each in live if not each["status"]["stopping"]]
        if names:
            subprocess.run([*fairlead, "cancel", *names], check=False, env=environment)
        time.sleep(0.2)  # polling interval, not synchronisation
    raise AssertionError("runs of the tutorial go on")


def test_the_tutorials_are_found() -> None:
    """Ten steps at least, one of them the server; and they are named where people begin."""
    assert [path.stem for path in TUTORIALS] == ["first-budget", "reservation"]
    for path in TUTORIALS:
        script = steps(path)
        assert len(script) >= 10
        assert sum(step.up for step in script) == 1
        assert f"docs/tutorials/{path.name}" in (ROOT / "README.md").read_text()
