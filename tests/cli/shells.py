"""Commands against a control plane that runs in the test's process."""

import fcntl
import io
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

from fairlead.cli.main import main, run_command
from tests.api.servers import Running

FAIRLEAD = [sys.executable, "-m", "fairlead"]


class Shown(NamedTuple):
    """What a terminal showed."""

    code: int
    text: str


class Shell:
    """Runs commands: in this process, or as processes on a terminal."""

    def __init__(self, server: Running, heads: Path) -> None:
        self.server, self.heads = server, heads

    def environment(self, **more: str) -> dict[str, str]:
        return {
            **os.environ,
            "FAIRLEAD_SERVER": str(self.server.socket),
            "FAIRLEAD_HEADS": str(self.heads),
            **more,
        }

    def __call__(
        self, *arguments: str, input: str | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        given = None if input is None else input.encode()
        done = run_inside(*arguments, input=given, environment=self.environment(**environment))
        out, err = done.stdout.decode(), done.stderr.decode()
        return subprocess.CompletedProcess(arguments, done.returncode, out, err)

    def ok(self, *arguments: str, input: str | None = None, **environment: str) -> str:
        """A command that must succeed; its output."""
        done = self(*arguments, input=input, **environment)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    def on_terminal(self, *arguments: str, columns: int = 100, **environment: str) -> Shown:
        """The same on a terminal of so many columns."""
        return on_terminal([*FAIRLEAD, *arguments], self.environment(**environment), columns)


def run_inside(
    *arguments: str,
    input: bytes | None = None,
    environment: Mapping[str, str] = os.environ,
    cwd: Path | str = ".",
) -> subprocess.CompletedProcess[bytes]:
    """A command as its process would run it, ten times as quickly: what it printed, and its exit
    code. Pipes, terminals, signals and what a process leaves behind need a process."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    before, argv, stdin = dict(os.environ), sys.argv, sys.stdin
    _set_environment(dict(environment))
    sys.argv = ["fairlead", *arguments]
    sys.stdin = io.TextIOWrapper(io.BytesIO(input or b""), "utf-8")
    try:
        with chdir(cwd), redirect_stdout(out), redirect_stderr(err):
            code = run_command(main, "fairlead")
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    finally:
        sys.argv, sys.stdin = argv, stdin
        _set_environment(before)
    shown = (stream.buffer.getvalue() for stream in (out, err))  # type: ignore[attr-defined]
    return subprocess.CompletedProcess(arguments, code, *shown)


def run_text(
    *arguments: str, cwd: Path | str = ".", **environment: str
) -> subprocess.CompletedProcess[str]:
    """The same as text, with these variables besides the test's own."""
    done = run_inside(*arguments, environment={**os.environ, **environment}, cwd=cwd)
    out, err = done.stdout.decode(), done.stderr.decode()
    return subprocess.CompletedProcess(arguments, done.returncode, out, err)


def _set_environment(environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


def on_terminal(command: list[str], environment: dict[str, str], columns: int = 100) -> Shown:
    """Run a command with a terminal as its standard streams."""
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    given = {key: value for key, value in environment.items() if key not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        command, stdin=writer, stdout=writer, stderr=writer, env={**given, "TERM": "xterm-256color"}
    )
    os.close(writer)
    shown, deadline = b"", time.monotonic() + 60
    while time.monotonic() < deadline:
        if select.select([reader], [], [], 0.2)[0]:
            try:
                shown += os.read(reader, 65536)
            except OSError:  # the process closed its side
                break
    os.close(reader)
    return Shown(process.wait(timeout=30), shown.decode().replace("\r\n", "\n"))
