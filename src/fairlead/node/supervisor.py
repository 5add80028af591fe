"""The agents beside an embedded control plane, each a process of its own.

`fairlead up` starts them, so that one command runs everything, and a long resolve never delays a
tick of 200 ms. One that ends is started again, ever later while it keeps ending at once; one whose
configuration is wrong after the longest pause, for somebody may be mending it. One that found a bug
in itself must not go on and is left alone. They end with the control plane, however that ends: the
next one starts its own, and two would fight over one plane.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from fairlead.ports.faults import PermanentFault

SUPERVISOR = "FAIRLEAD_SUPERVISOR"
FIRST_S, MOST_S, LONG_S = 1.0, 30.0, 60.0
"""The first pause, the longest one, and how long an agent has to live for the next to be short."""
SAY_S, STOP_S = 2.0, 20.0
"""How long an agent may take to end before we say whom we wait for, and before it is killed."""
WRONG, BUG = 2, 70
"""Exit codes of the command line, which this room cannot see."""
_PR_SET_PDEATHSIG = 1


class Agents:
    """Processes that are there as long as the block runs; `say` takes lines for the operator."""

    def __init__(
        self,
        commands: Mapping[str, Sequence[str]],
        say: Callable[[str], None],
        *,
        first_s: float = FIRST_S,
    ) -> None:
        self._commands, self._say, self._first_s = commands, say, first_s
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

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._signal(signal.SIGTERM)
        if waiting := self._join(SAY_S):
            left_s = STOP_S - SAY_S
            self._tell(f"waiting for the {waiting} to end; killed in {left_s:g} s otherwise")
            self._join(left_s)
        self._signal(signal.SIGKILL)
        for thread in self._threads:
            thread.join()

    def _join(self, most_s: float) -> str:
        """Wait for all of them, not for ever; who is still there, in words."""
        give_up = time.monotonic() + most_s
        for thread in self._threads:
            thread.join(max(0.0, give_up - time.monotonic()))
        return " and the ".join(each.name for each in self._threads if each.is_alive())

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
                self._tell(
                    f"the {name} agent {how} and is not started again: it found a bug in itself"
                )
                return
            if code == WRONG:
                how, pause_s = f"{how}: its configuration is wrong", MOST_S
            elif time.monotonic() - began >= LONG_S:
                pause_s = self._first_s
            self._tell(f"the {name} agent {how}; it starts again in {pause_s:g} s")
            self._stop.wait(pause_s)
            pause_s = min(MOST_S, 2 * pause_s)

    def _run(self, name: str) -> tuple[int | None, str]:
        """One life of an agent: how it ended, and that in words."""
        try:
            process = self._start(name)
        except OSError as error:  # no more processes, no more memory: later perhaps
            return None, f"cannot be started ({error.strerror})"
        if process is None:
            return None, "is not needed any more"
        self._tell(f"the {name} agent runs as process {process.pid}")
        code = process.wait()
        with self._lock:
            del self._processes[name]
        return code, f"ended by signal {-code}" if code < 0 else f"ended with {code}"

    def _tell(self, line: str) -> None:
        # Whoever read our lines may be gone; the agents are not.
        with contextlib.suppress(OSError, ValueError):
            self._say(line)

    def _start(self, name: str) -> "subprocess.Popen[Any] | None":
        """None when the end has come: whoever is started after that would never be told."""
        with self._lock:
            if self._stop.is_set():
                return None
            # A session of its own: Ctrl-C is for the control plane, which tells its agents.
            process = self._processes[name] = subprocess.Popen(
                self._commands[name],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, SUPERVISOR: str(os.getpid())},
            )
            return process


def end_with_supervisor() -> None:
    """In an agent: have the kernel end us with whoever supervises us, if somebody does."""
    supervisor = os.environ.pop(SUPERVISOR, None)
    if supervisor is None:
        return
    import ctypes  # noqa: PLC0415 - only the supervised pay for it

    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0):
        raise PermanentFault(f"prctl: {os.strerror(ctypes.get_errno())}")
    if str(os.getppid()) != supervisor:  # it was gone before the kernel knew
        raise PermanentFault("the control plane that started this agent is gone")
