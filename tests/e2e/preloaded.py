"""Processes of `fairlead up` that are forked from one that has imported it.

A test that kills a control plane hundreds of times would import it hundreds of times, for a second
each. The process is a real one, and so is its end; `python -m tests.e2e.preloaded` is what forks
it, and is told what to do line by line.
"""

import faulthandler
import importlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

MODULES = ("fairlead.cli.up", "fairlead.compose.up", "fairlead.api.server")
_POLL_S = 0.01


class Preloaded:
    """A process, with the part of `subprocess.Popen` that tests of a control plane use."""

    def __init__(self, arguments: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self._server, self._code = _server(os.getpid()), None
        given = {"arguments": list(arguments), "env": dict(env), "log": str(log)}
        self.pid: int = self._server.ask(given)

    def poll(self) -> int | None:
        if self._code is None:
            self._code = self._server.ask({"pid": self.pid})
        return self._code

    def wait(self, timeout: float = 60.0) -> int:
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("fairlead up", timeout)
            time.sleep(_POLL_S)  # polling interval, not synchronisation
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class _Server:
    """The process that forks them. It ends with its standard input."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", __name__]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self._lock = threading.Lock()

    def ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            print(json.dumps(request), file=self._process.stdin, flush=True)
            return json.loads(self._process.stdout.readline())


@cache
def _server(process: int) -> _Server:
    """One for each process that tests."""
    return _Server()


def main() -> None:
    for name in MODULES:
        importlib.import_module(name)
    from fairlead.cli.main import run  # noqa: PLC0415 - what asks for processes does not need it

    for line in sys.stdin:
        request, answer = json.loads(line), None
        if "pid" in request:
            ended, status = os.waitpid(request["pid"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if ended else None
        elif not (answer := os.fork()):
            _become(**request)
            run()  # and ends, as `python -m fairlead` does
        print(json.dumps(answer), flush=True)


def _become(arguments: list[str], env: dict[str, str], log: str) -> None:
    """A process of its own: its input is empty, its output goes to the log."""
    empty = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for opened, streams in ((empty, (0,)), (output, (1, 2))):
        for stream in streams:
            os.dup2(opened, stream)
        os.close(opened)
    faulthandler.enable()
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["fairlead", *arguments]


if __name__ == "__main__":
    main()
