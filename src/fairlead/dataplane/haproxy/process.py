"""HAProxy itself: a master with a worker, in nobody's session, so that it outlives its agent."""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path

from fairlead.dataplane.haproxy.config import Files
from fairlead.dataplane.haproxy.runtime import ask
from fairlead.ports.faults import PermanentFault, TemporaryFault

_START_S, _STOP_S = 20.0, 20.0
_LOOK_S = 0.01
_RETRY_MS = 1_000
_ADMIN_PATH = "/usr/local/sbin:/usr/sbin"  # where Debian puts it, and not every user looks


class Process:
    """Starts, reloads and stops the HAProxy of one folder; finds it again by its sockets."""

    def __init__(self, files: Files, binary: str) -> None:
        self._files = files
        self._binary = binary

    def running(self) -> str | None:
        """The description of the worker that serves; None when there is none."""
        try:
            answer = ask(self._files.socket, "show info")
        except TemporaryFault:
            return None
        for line in answer.splitlines():
            name, _, value = line.partition(":")
            if name.lower() == "description":
                return value.strip()
        return ""

    def check(self) -> None:
        """Let HAProxy read the configuration before anything is changed."""
        done = self._run("-c")
        if done.returncode:
            raise PermanentFault(f"HAProxy does not accept its configuration: {done.stdout}")

    def start(self, description: str) -> None:
        """Start a master that leaves us, and wait for its worker."""
        for path in (self._files.socket, self._files.master):
            path.unlink(missing_ok=True)
        done = self._run("-W", "-D", "-S", f"{self._files.master},mode,600")
        if done.returncode:
            raise PermanentFault(f"HAProxy did not start: {done.stdout}")
        self._await(description)

    def reload(self, description: str) -> None:
        """Let the master start a new worker; the old one finishes what it has."""
        ask(self._files.master, "reload", ends=False)  # it goes through exec() instead
        self._await(description)

    def stop(self) -> None:
        """End master and workers, now."""
        pid = self._master()
        if pid is None:
            return
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGTERM)
            gone = select.poll()
            gone.register(descriptor, select.POLLIN)
            if not gone.poll(_STOP_S * 1000):
                raise TemporaryFault("HAProxy does not stop", retry_after_ms=_RETRY_MS)
        finally:
            os.close(descriptor)

    def _master(self) -> int | None:
        """Whoever answers at the master's socket says its own number."""
        try:
            answer = ask(self._files.master, "show proc")
        except TemporaryFault:
            return None
        for line in answer.splitlines():
            fields = line.split()
            if len(fields) > 1 and fields[1] == "master":
                return int(fields[0])
        return None

    def _await(self, description: str) -> None:
        deadline = time.monotonic() + _START_S
        # The master goes through exec() once more after its worker has begun.
        while self.running() != description or self._master() is None:
            if time.monotonic() > deadline:
                raise PermanentFault(
                    "HAProxy did not take its new configuration; the old one stays"
                )
            time.sleep(_LOOK_S)

    def _run(self, *options: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end (with -D: until the master has left); stdout says what it said."""
        program = shutil.which(self._binary) or shutil.which(self._binary, path=_ADMIN_PATH)
        if program is None:
            raise PermanentFault(f"{self._binary} is not on PATH (apt-get install haproxy)")
        # A file and no pipe: the master would hold a pipe open for as long as it lives.
        said = self._files.said
        with said.open("w") as log:
            done = subprocess.run(
                [program, *options, "-f", str(self._files.config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                check=False,
            )
        return subprocess.CompletedProcess(done.args, done.returncode, _gist(said), "")


def _gist(said: Path) -> str:
    lines = [line for line in said.read_text(errors="replace").splitlines() if "ALERT" in line]
    return " | ".join(lines[:3]) or "no reason given"
