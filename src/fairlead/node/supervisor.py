"""The agents beside an embedded control plane, each a process of its own.

    python -I -m fairlead.node.supervisor CONFIG     # by `AgentsProcess`, never by hand

`fairlead up` starts them: itself, or, where it gives up root, by a process that stays root, is told
nothing after its start, and ends when its pipe does. An agent that ends is started again, ever
later while it keeps ending at once; one whose configuration is wrong after the longest pause,
because the file may be corrected meanwhile. One that found a bug in itself is not started again.
They end with the control plane, however that ends: the next one starts its own, and two would fight
over one dataplane.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fairlead.host.kernel import die_with_parent
from fairlead.host.process import spawn
from fairlead.ports.faults import PermanentFault, faults

SUPERVISOR = "FAIRLEAD_SUPERVISOR"
FIRST_S, MOST_S, LONG_S = 1.0, 30.0, 60.0
"""The first pause, the longest one, and how long an agent has to live for the next to be short."""
WARN_S, STOP_S = 2.0, 20.0
"""How long an agent may take to end before that is logged, and before it is killed."""
WRONG, BUG = 2, 70
"""Exit codes of the command line, which adapters may not import."""


class Agents:
    """Processes that run as long as the block does; `log` takes lines for the operator."""

    def __init__(
        self,
        commands: Mapping[str, Sequence[str]],
        log: Callable[[str], None],
        *,
        first_s: float = FIRST_S,
    ) -> None:
        self._commands, self._log, self._first_s = commands, log, first_s
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._processes: dict[str, subprocess.Popen[Any]] = {}
        self._threads = [
            threading.Thread(target=self._keep, args=(name,), name=f"{name} agent", daemon=True)
            for name in commands
        ]

    def __enter__(self) -> "Agents":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._signal(signal.SIGTERM)
        if waiting := self._join(WARN_S):
            left_s = STOP_S - WARN_S
            self._report(f"waiting for the {waiting} to end; killed in {left_s:g} s otherwise")
            self._join(left_s)
        self._signal(signal.SIGKILL)
        for thread in self._threads:
            thread.join()

    def _join(self, most_s: float) -> str:
        """Wait for all of them, not for ever; the names of those still there."""
        deadline = time.monotonic() + most_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return " and the ".join(thread.name for thread in self._threads if thread.is_alive())

    def _signal(self, number: int) -> None:
        with self._lock:
            for process in self._processes.values():
                process.send_signal(number)

    def _keep(self, name: str) -> None:
        pause_s = self._first_s
        while not self._stop.is_set():
            began = time.monotonic()
            code, how = self._run(name)
            if self._stop.is_set():
                return
            if code == BUG:
                end = f"{how} and is not started again: it found a bug in itself"
                self._report(f"the {name} agent {end}")
                return
            if code == WRONG:
                how, pause_s = f"{how}: its configuration is wrong", MOST_S
            elif time.monotonic() - began >= LONG_S:
                pause_s = self._first_s
            self._report(f"the {name} agent {how}; it starts again in {pause_s:g} s")
            self._stop.wait(pause_s)
            pause_s = min(MOST_S, 2 * pause_s)

    def _run(self, name: str) -> tuple[int | None, str]:
        """One life of an agent: its exit code, and how it ended in words."""
        try:
            process = self._start(name)
        except OSError as error:  # no more processes, no more memory: later perhaps
            return None, f"cannot be started ({error.strerror})"
        if process is None:
            return None, "is not needed any more"
        self._report(f"the {name} agent runs as process {process.pid}")
        code = process.wait()
        with self._lock:
            del self._processes[name]
        return code, f"ended by signal {-code}" if code < 0 else f"ended with {code}"

    def _report(self, line: str) -> None:
        # The reader of our lines may be gone; the agents are not.
        with contextlib.suppress(OSError, ValueError):
            self._log(line)

    def _start(self, name: str) -> "subprocess.Popen[Any] | None":
        """None once we stop: an agent started after that would never be ended."""
        with self._lock:
            if self._stop.is_set():
                return None
            # A session of its own: Ctrl-C is for the control plane, which ends its agents.
            env = {**os.environ, SUPERVISOR: str(os.getpid())}
            process = self._processes[name] = spawn(self._commands[name], output=None, env=env)
            return process


class AgentsProcess:
    """The same by a process that keeps our rights; made before we give them up."""

    def __init__(self, commands: Mapping[str, Sequence[str]]) -> None:
        read, self._write = os.pipe()
        config = {"commands": {name: list(command) for name, command in commands.items()}}
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-m", __name__, json.dumps({**config, "pipe": read})],
            stdin=subprocess.DEVNULL,
            pass_fds=[read],
            start_new_session=True,
        )
        os.close(read)

    def __enter__(self) -> "AgentsProcess":
        with contextlib.suppress(BrokenPipeError):
            os.write(self._write, b"g")
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self._write)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2 * STOP_S)


def _say(line: str) -> None:
    sys.stderr.write(f"fairlead: {line}\n")


def main(text: str) -> int:
    """Run agents from the first byte of the pipe to its end, whatever else may be in it."""
    config = json.loads(text)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if not os.read(config["pipe"], 1):
        return 0  # the control plane did not start
    with Agents(config["commands"], _say):
        while os.read(config["pipe"], 1024):
            pass
    return 0


def end_with_supervisor() -> None:
    """In an agent: have the kernel end us with our supervisor, if we have one."""
    supervisor = os.environ.pop(SUPERVISOR, None)
    if supervisor is None:
        return
    with faults("ask the kernel to end this agent with its supervisor"):
        alive = die_with_parent(int(supervisor))
    if not alive:
        raise PermanentFault("the control plane that started this agent is gone")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
