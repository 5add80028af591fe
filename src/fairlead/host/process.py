"""Child processes that leave us: in a session of their own, without our terminal and input."""

import subprocess
from collections.abc import Mapping, Sequence
from typing import IO, Any


def spawn(
    command: Sequence[str],
    *,
    output: "IO[Any] | int | None" = subprocess.DEVNULL,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> "subprocess.Popen[bytes]":
    """No terminal signal reaches it. `output` takes what it writes; None: it shares our streams."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
        start_new_session=True,
        env=env,
        cwd=cwd,
    )


def run_detached(
    command: Sequence[str],
    *,
    output: "IO[Any] | int" = subprocess.DEVNULL,
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> int:
    """Run a program that leaves us by itself (it forks); its exit code when it has left.

    `output` is a file, never a pipe: the process that stays would hold it open.
    """
    process = spawn(command, output=output, env=env, cwd="/")
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise
