"""What the log says of single requests: how long successes took, which connects failed in a row.

HAProxy writes a line per request into a ring in its own memory; this holds a connection to the
runtime socket on which new lines arrive, and reads what has come when it is asked. A slow reader
loses the oldest lines, never slows a request down.
"""

import contextlib
import socket
from pathlib import Path

from fairlead.dataplane.haproxy.config import TIMES
from fairlead.dataplane.haproxy.runtime import connect
from fairlead.dataplane.haproxy.words import HASHED, SIDES
from fairlead.dataplane.window import Window

_CHUNK = 1 << 18


class Times:
    """Latencies and failures in a row, per tamed group and server."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: socket.socket | None = None
        self._rest = b""
        self._windows: dict[tuple[str, str], Window] = {}
        self._failures: dict[tuple[str, str], int] = {}

    def catch_up(self, now_ms: int) -> None:
        """Take in the lines that have come."""
        try:
            if self._connection is None:
                self._connection = self._follow()
            while True:
                data = self._connection.recv(_CHUNK)
                if not data:  # that worker is gone; the next look finds the new one
                    self.close()
                    return
                self._take(data, now_ms)
        except BlockingIOError:
            return
        except OSError:
            self.close()

    def p95(self, group: str, server: str, now_ms: int) -> float | None:
        """Of a backend's successes."""
        window = self._windows.get((group, server))
        return window.p95(now_ms) if window else None

    def failures(self, group: str, server: str) -> int:
        """Connects to a backend that failed since the last that did not."""
        return self._failures.get((group, server), 0)

    def close(self) -> None:
        """Let the connection go; what was seen stays."""
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.close()
        self._connection, self._rest = None, b""

    def _follow(self) -> socket.socket:
        connection = connect(self._path)
        connection.sendall(f"show events {TIMES} -w -n\n".encode())
        connection.setblocking(False)
        return connection

    def _take(self, data: bytes, now_ms: int) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            fields = line.decode(errors="replace").split()
            if len(fields) == 5:
                self._note(*fields, now_ms=now_ms)

    def _note(
        self, proxy: str, server: str, status: str, ended: str, took: str, *, now_ms: int
    ) -> None:
        group, _, side = proxy.rpartition("_")
        if side not in (*SIDES, HASHED):
            return  # a refusal of our own
        key = (group, server)
        if ended.startswith("SC"):
            self._failures[key] = self._failures.get(key, 0) + 1
            return
        self._failures[key] = 0
        if status.isdigit() and int(status) < 500 and ended == "--":
            self._windows.setdefault(key, Window()).add(now_ms, float(took))
