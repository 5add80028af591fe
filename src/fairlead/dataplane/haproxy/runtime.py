"""HAProxy itself: its runtime socket, its process, and the log in its memory.

On the runtime socket a line of commands goes in and their answers come out. HAProxy ends the answer
to every command with an empty line. One that does not end so was cut off by its death, and must not
be taken for a list without entries, or for "done".

The process is a master with a worker, in a session of its own, so that it outlives its agent.
"""

import contextlib
import os
import shutil
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

from fairlead.dataplane.haproxy.config import REQUESTS, HaproxyFiles
from fairlead.dataplane.proxy import RequestLog, wait_for_end
from fairlead.host.clock import wait_until
from fairlead.host.process import run_detached
from fairlead.ports.faults import PermanentFault, TemporaryFault

_TIMEOUT_S = 10.0
# HAProxy reads a line into one buffer of 16 KiB.
_LINE_BYTES_MAX = 8 * 1024
_START_S, _STOP_S = 20.0, 20.0
_ADMIN_PATH = "/usr/local/sbin:/usr/sbin"  # where Debian puts it, which is not on every PATH
_CHUNK = 1 << 18


def ask(path: Path, command: str, *, ends: bool = True) -> str:
    """Send one line, return all that is answered; not `ends`: the process may end meanwhile."""
    try:
        with connect(path) as connection:
            connection.sendall(command.encode() + b"\n")
            connection.shutdown(socket.SHUT_WR)  # the master answers until the client ends
            parts = []
            while part := connection.recv(1 << 16):
                parts.append(part)
    except OSError as error:
        raise TemporaryFault(f"HAProxy does not answer at {path}: {error}") from error
    answer = b"".join(parts).decode(errors="replace")
    if ends and answer != "\n" and not answer.endswith("\n\n"):
        raise TemporaryFault(f"HAProxy ended at {path} before its answer did")
    return answer


def execute(path: Path, commands: Sequence[str]) -> None:
    """Carry out commands that answer nothing; any answer is a refusal."""
    line: list[str] = []
    length = 0
    for command in (*commands, None):
        if line and (command is None or length + len(command) > _LINE_BYTES_MAX):
            answer = ask(path, "; ".join(line))
            if refusal := answer.strip():
                raise PermanentFault(f"HAProxy refused: {refusal.splitlines()[0]}")
            if len(answer) < len(line):  # an empty line for each
                raise TemporaryFault(
                    f"HAProxy ended at {path} after {len(answer)} of {len(line)} commands"
                )
            line, length = [], 0
        if command is not None:
            line.append(command)
            length += len(command) + 2


def connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_TIMEOUT_S)
        connection.connect(str(path))
    except BaseException:
        connection.close()
        raise
    return connection


class HaproxyProcess:
    """Starts, reloads and stops the HAProxy of one folder; finds it again by its sockets."""

    def __init__(self, files: HaproxyFiles, binary: str) -> None:
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
        if problem := self._run("-c"):
            raise PermanentFault(f"HAProxy does not accept its configuration: {problem}")

    def start(self, description: str) -> None:
        for path in (self._files.socket, self._files.master):
            path.unlink(missing_ok=True)
        if problem := self._run("-W", "-D", "-S", f"{self._files.master},mode,600"):
            raise PermanentFault(f"HAProxy did not start: {problem}")
        self._await(description)

    def reload(self, description: str) -> None:
        ask(self._files.master, "reload", ends=False)  # it goes through exec() instead
        self._await(description)

    def stop(self) -> None:
        pid = self._master()
        if pid is None:
            return
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        wait_for_end(descriptor, _STOP_S, "HAProxy")

    def _master(self) -> int | None:
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
        # The master goes through exec() once more after its worker has begun.
        if not wait_until(
            lambda: self.running() == description and self._master() is not None, within_s=_START_S
        ):
            raise PermanentFault("HAProxy did not take its new configuration; the old one stays")

    def _run(self, *options: str) -> str | None:
        """Run it to its end (with -D: until the master has left); what it printed if it failed."""
        program = shutil.which(self._binary) or shutil.which(self._binary, path=_ADMIN_PATH)
        if program is None:
            raise PermanentFault(f"{self._binary} is not on PATH (apt-get install haproxy)")
        command = [program, *options, "-f", str(self._files.config)]
        with self._files.log.open("w") as output:
            failed = run_detached(command, output=output)
        return _gist(self._files.log) if failed else None


def _gist(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if "ALERT" in line]
    return " | ".join(lines[:3]) or "no reason given"


class HaproxyLog:
    """Follows the ring in HAProxy's memory that has a line per request.

    It holds a connection to the runtime socket on which new lines arrive, and reads what has come
    when it is asked. A slow reader loses the oldest lines and never slows a request down.
    """

    def __init__(self, path: Path) -> None:
        self.requests = RequestLog()
        self._path = path
        self._connection: socket.socket | None = None

    def catch_up(self, now_ms: int) -> None:
        try:
            if self._connection is None:
                self._connection = self._follow()
            while True:
                data = self._connection.recv(_CHUNK)
                if not data:  # that worker is gone; the next look finds the new one
                    self.close()
                    return
                # SC: the connection to the server failed.
                self.requests.feed(
                    data, now_ms, whole="--", unreached=lambda ended: ended.startswith("SC")
                )
        except BlockingIOError:
            return
        except OSError:
            self.close()

    def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.close()
        self._connection = None
        self.requests.restart()

    def _follow(self) -> socket.socket:
        connection = connect(self._path)
        connection.sendall(f"show events {REQUESTS} -w -n\n".encode())
        connection.setblocking(False)
        return connection
