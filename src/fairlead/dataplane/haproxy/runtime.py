"""HAProxy itself: its runtime socket, its process, its counters, and the log in its memory.

HAProxy ends the answer to every command with an empty line. One that does not end so was cut off by
its death, and must not be taken for a list without entries, or for "done". The process is a master
with a worker, in a session of its own, so that it outlives its agent.
"""

import shutil
import socket
import time
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from fairlead.dataplane import proxy
from fairlead.dataplane.haproxy.config import HaproxyFiles
from fairlead.dataplane.proxy import BackendCount, GroupCount, Place
from fairlead.host.clock import wait_until
from fairlead.host.process import run_detached
from fairlead.ports.faults import PermanentFault, TemporaryFault

_TIMEOUT_S, _START_S = 10.0, 20.0
_LINE_BYTES_MAX = 8 * 1024  # HAProxy reads a line into one buffer of 16 KiB
_ADMIN_PATH = "/usr/local/sbin:/usr/sbin"  # where Debian puts it, which is not on every PATH
SHOW_COUNTERS, SHOW_FRONTENDS, SHOW_BACKENDS, SHOW_SERVERS = (
    f"show stat -1 {kind} -1" for kind in (6, 1, 2, 4)
)
_COUNTERS = (
    *("qcur", "scur", "stot", "econ", "eresp", "wretr", "wredis", "iid", "req_tot"),
    *(f"hrsp_{kind}xx" for kind in "12345"),
)
Row = tuple[str, str, dict[str, int]]
"""A proxy of HAProxy's, a server of it or `BACKEND`, and its counters."""


def ask(path: Place, command: str, *, ends: bool = True) -> str:
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


def ask_all(path: Place, commands: Sequence[str]) -> list[str]:
    """The answers to several commands over one connection, which costs HAProxy and us more than
    most answers do. Each ends with an empty line and has none inside."""
    rest, answers = ask(path, ";".join(commands)), []
    for _ in commands:
        answer, ended, rest = ("", "\n", rest[1:]) if rest[:1] == "\n" else rest.partition("\n\n")
        if not ended:
            raise TemporaryFault(f"HAProxy ended at {path} before its answers did")
        answers.append(answer)
    return answers


def execute(path: Place, commands: Sequence[str]) -> None:
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


def connect(path: Place) -> socket.socket:
    where = proxy.endpoint_of(path)
    if where.unix is None:
        return where.connect(time.monotonic() + _TIMEOUT_S)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(_TIMEOUT_S)
        connection.connect(where.unix)
    except BlockingIOError:  # many wait already: wait in line
        connection.close()
        return where.connect(time.monotonic() + _TIMEOUT_S)
    except BaseException:
        connection.close()
        raise
    return connection


class HaproxyProcess:
    """Starts, reloads and stops the HAProxy of one folder; finds it again by its sockets."""

    def __init__(self, files: HaproxyFiles, binary: str) -> None:
        self._files, self._binary = files, binary

    def running(self) -> str | None:
        """The description of the worker that serves; None when there is none."""
        try:
            answer = ask(self._files.socket, "show info")
        except TemporaryFault:
            return None
        pairs = (line.partition(":") for line in answer.splitlines())
        return next((text.strip() for name, _, text in pairs if name.lower() == "description"), "")

    def alive(self) -> bool:
        return self.running() is not None

    def serve(self, description: str, *, reload: bool) -> None:
        """Start with the configuration, or go over to it."""
        if problem := self._run("-c"):
            raise PermanentFault(f"HAProxy does not accept its configuration: {problem}")
        if reload:
            ask(self._files.master, "reload", ends=False)  # it goes through exec() instead
        else:
            for path in (self._files.socket, self._files.master):
                path.unlink(missing_ok=True)
            if problem := self._run("-W", "-D", "-S", f"{self._files.master},mode,600"):
                raise PermanentFault(f"HAProxy did not start: {problem}")
        # The master goes through exec() once more after its worker has begun.
        if not wait_until(
            lambda: self.running() == description and self._master() is not None, within_s=_START_S
        ):
            raise PermanentFault("HAProxy did not take its new configuration; the old one stays")

    def stop(self) -> None:
        proxy.stop_process(self._master(), "HAProxy")

    def _master(self) -> int | None:
        try:
            answer = ask(self._files.master, "show proc")
        except TemporaryFault:
            return None
        rows = (line.split() for line in answer.splitlines())
        return next((int(row[0]) for row in rows if row[1:2] == ["master"]), None)

    def _run(self, *options: str) -> str | None:
        """Run it to its end (with -D: until the master has left); what it printed if it failed."""
        program = shutil.which(self._binary) or shutil.which(self._binary, path=_ADMIN_PATH)
        if program is None:
            raise PermanentFault(f"{self._binary} is not on PATH (apt-get install haproxy)")
        command = [program, *options, "-f", str(self._files.config)]
        with self._files.log.open("w") as output:
            failed = run_detached(command, output=output)
        return proxy.gist(self._files.log, "ALERT") if failed else None


def read_counters(path: Path) -> list[Row]:
    return parse_counters(ask(path, SHOW_COUNTERS))


@lru_cache(maxsize=8)
def _places(header: str) -> tuple[dict[str, int], int, int]:
    """Where each counter stands, where the number of requests does, and where ours end."""
    names = header.split(",")
    places = {name: names.index(name) for name in _COUNTERS}
    return places, places["stot"], max(places.values()) + 1


def parse_counters(answer: str) -> list[Row]:
    """The lines of `show stat` with a request, and the columns of interest. Of the eighty others
    those that hold free text, and so might hold a comma, come after ours."""
    header, *lines = answer.splitlines() or [""]
    try:
        places, total, cut = _places(header)
        rows = []
        for line in lines:
            # Most servers of many groups have nothing to show: they are not taken apart.
            head = line.split(",", total + 1)
            if len(head) <= total or head[total] == "0":
                continue
            fields = line.split(",", cut)
            if len(fields) > cut:
                counters = {name: int(fields[place] or 0) for name, place in places.items()}
                rows.append((fields[0], fields[1], counters))
    except ValueError as error:
        raise TemporaryFault(f"HAProxy answers {SHOW_COUNTERS!r} with rubbish: {error}") from error
    return rows


def hidden_failures(row: dict[str, int]) -> int:
    """Requests that failed at a server and were repeated: HAProxy counts them as nothing else. One
    that moves to another server is a redispatch, and for most causes a retry besides."""
    return max(row["wretr"], row["wredis"])


def add(counted: dict[str, GroupCount], rows: Iterable[Row]) -> dict[str, GroupCount]:
    """Add a worker's lines to what was counted before; names are escaped."""
    for place, server, row in rows:
        group, _, part = place.rpartition("_")
        here = counted.get(group)
        if here is None:
            continue
        if server == "BACKEND":
            here.refused_soft += row["stot"] if part == "soft" else 0
            here.refused_hard += row["stot"] if part == "hard" else 0
        elif part in proxy.COPIES:
            repeated = hidden_failures(row)
            here.retries += repeated
            here.admitted += row["stot"] - repeated
            count = here.backends.setdefault(server, BackendCount())
            count.admitted += row["stot"]
            count.connect_failures += row["econ"]
            count.successes += row["hrsp_1xx"] + row["hrsp_2xx"] + row["hrsp_3xx"] + row["hrsp_4xx"]
            count.errors += row["hrsp_5xx"] + row["eresp"] + repeated
            count.open += row["scur"]
            count.queue = (count.queue or 0) + row["qcur"]
            if part in proxy.SIDES:
                first, second = count.inside or (0, 0)
                at_first = part == proxy.SIDES[0]
                count.inside = (row["scur"], second) if at_first else (first, row["scur"])
    return counted


class HaproxyLog(proxy.RequestLog):
    """Reads the ring in HAProxy's memory that has a line per request, whole and once a tick: a
    reader that waits for new lines is woken, and costs a packet, for every request. Old lines are
    told by the last one that was seen, which no other is like: it has the request's number."""

    def __init__(self) -> None:
        super().__init__("--", lambda ended: ended.startswith("SC"))
        self._last: str | None = None  # None: what is in the ring is older than we are

    def take(self, ring: str, now_ms: int) -> dict[str, bool] | None:
        """The lines that came since the last time; all of them where that one is gone. Of which
        groups there were some, and whether all of these went well; None: some lines may be lost."""
        self.heard, found = {}, ""
        if not ring:
            return self.heard
        lines = f"\n{ring}\n"
        if self._last is not None:
            _, found, new = lines.rpartition(self._last) if self._last else ("", "", "")
            self.feed((new if found else lines).encode(), now_ms)
        *_, last = ring.rpartition("\n")
        self._last = f"\n{last}\n"
        return self.heard if found else None

    def begin(self) -> None:
        """A new worker: all of its ring is new."""
        self._last = ""
