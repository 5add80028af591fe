"""What the access log says of single requests: how long successes took, failures in a row.

Envoy appends a line per request; this reads on from where it was and empties the file when it has
grown. Lines that arrive between the last look and the emptying are lost: samples, not counts.
"""

import os
from pathlib import Path

from fairlead.dataplane.envoy.documents import HASHED, SIDES
from fairlead.dataplane.window import Window

_BYTES_MAX = 2**20
_UNREACHED = {"UF", "URX"}  # the connection failed, or was refused

Key = tuple[str, str]
"""A tamed group, and an address as Envoy writes it."""


class Times:
    """Latencies and failures in a row, per group and address."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.exists() else 0
        self._rest = b""
        self._windows: dict[Key, Window] = {}
        self._failures: dict[Key, int] = {}

    def catch_up(self, now_ms: int) -> None:
        """Take in the lines that have come."""
        try:
            with self._path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < self._offset:  # somebody emptied it
                    self._offset, self._rest = 0, b""
                file.seek(self._offset)
                data = file.read(size - self._offset)
        except FileNotFoundError:
            return
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            fields = line.decode(errors="replace").split()
            if len(fields) == 5:
                self._note(*fields, now_ms=now_ms)
        if self._offset > _BYTES_MAX:
            os.truncate(self._path, 0)
            self._offset, self._rest = 0, b""

    def p95(self, key: Key, now_ms: int) -> float | None:
        """Of a backend's successes."""
        window = self._windows.get(key)
        return window.p95(now_ms) if window else None

    def failures(self, key: Key) -> int:
        """Connects to a backend that failed since the last that did not."""
        return self._failures.get(key, 0)

    def _note(
        self, cluster: str, address: str, status: str, flags: str, took: str, *, now_ms: int
    ) -> None:
        group, _, side = cluster.rpartition("_")
        if side not in (*SIDES, HASHED) or address == "-":
            return  # a refusal of our own
        key = (group, address)
        if _UNREACHED & set(flags.split(",")):
            self._failures[key] = self._failures.get(key, 0) + 1
            return
        self._failures[key] = 0
        if flags == "-" and status.isdigit() and int(status) < 500:
            self._windows.setdefault(key, Window()).add(now_ms, float(took))
