"""Envoy's admin interface, over its socket in our folder."""

import http.client
import json
import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fairlead.ports.faults import PermanentFault, TemporaryFault

_TIMEOUT_S = 10.0
_TAKE_UP_S = 10.0
_LOOK_S = 0.002
_RETRY_MS = 1_000


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("envoy", timeout=_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def ask(path: Path, target: str, *, method: str = "GET") -> bytes:
    """What Envoy answers."""
    connection = _Connection(path)
    try:
        connection.request(method, target)
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise TemporaryFault(
            f"Envoy does not answer at {path}: {error}", retry_after_ms=_RETRY_MS
        ) from error
    finally:
        connection.close()
    if answer.status != http.HTTPStatus.OK:
        raise TemporaryFault(f"Envoy answers {answer.status} to {target}", retry_after_ms=_RETRY_MS)
    return body


def listens(path: Path) -> bool:
    """Whether somebody takes connections there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        return connection.connect_ex(str(path)) == 0


def process(path: Path) -> int | None:
    """A descriptor of the process that listens there (pidfd); None when there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(str(path))
            size = struct.calcsize("3i")
            told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
            return os.pidfd_open(struct.unpack("3i", told)[0])
        except OSError:
            return None


def document(path: Path, target: str) -> dict[str, Any]:
    """What Envoy answers, as JSON."""
    answer: dict[str, Any] = json.loads(ask(path, target))
    return answer


def stats(path: Path, pattern: str) -> dict[str, str]:
    """The counters, gauges and texts whose names match, as text."""
    lines = ask(path, f"/stats?filter={quote(pattern)}").decode().splitlines()
    pairs = (line.partition(": ") for line in lines)
    return {name: value.strip('"') for name, _, value in pairs}


def take_up(path: Path, versions: Mapping[str, str]) -> None:
    """Wait until Envoy has taken up what was written; scopes of its stats to versions.

    A document that it rejects stays rejected, so that is a fault for good, and the old one stays.
    """
    pattern = "^(" + "|".join(scope.replace(".", r"\.") for scope in sorted(versions)) + ")"
    pattern += r"\.(version_text|update_rejected)$"
    before = stats(path, pattern)
    deadline = time.monotonic() + _TAKE_UP_S
    while True:
        now = stats(path, pattern)
        missing = [s for s, v in versions.items() if now.get(f"{s}.version_text") != v]
        if not missing:
            return
        for scope in missing:
            rejected = f"{scope}.update_rejected"
            if int(now.get(rejected, 0)) > int(before.get(rejected, 0)):
                raise PermanentFault(f"Envoy rejected {scope}; its log says why")
        if time.monotonic() > deadline:
            raise TemporaryFault(f"Envoy has not taken up {missing[0]}", retry_after_ms=_RETRY_MS)
        time.sleep(_LOOK_S)
