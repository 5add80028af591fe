"""Endpoints for an Envoy that asks: the discovery service (EDS) over REST, in a thread of its own.

    server = EndpointServer("127.0.0.1:18000")
    server.offer({"app": assignment})         # the next answer, also to a question that waits
    server.asked("app")                       # when Envoy last asked, and which version it has

Envoy posts to `/v3/discovery:endpoints` again and again. A question about what it has already waits
for news for a moment, so a new table arrives at once; then it is answered with 304.
"""

import contextlib
import json
import os
import socket
import socketserver
import threading
import time
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, NamedTuple

from fairlead.host.bounded import BoundedServer
from fairlead.host.clock import monotonic_ms
from fairlead.ports.faults import PermanentFault

PATH, TYPE = "/v3/discovery:endpoints", "envoy.config.endpoint.v3.ClusterLoadAssignment"
HOLD_S = 0.5
"""How long a question waits for news. Envoy gives up after 1 s unless it is told otherwise."""
_BODY_BYTES_MAX = 2**20
_IDLE_S = 60.0
_ASKED_MOST = 1_000
"""Every user of the machine can reach a port: what it asks for is bounded."""


class EndpointQuestion(NamedTuple):
    """The last question about a cluster."""

    at_ms: int
    version: str
    """What Envoy has; empty before its first answer."""


class EndpointServer:
    """Answers what was offered last. Thread-safe."""

    def __init__(self, place: str) -> None:
        self.place = place
        self._changed = threading.Condition()
        self._offered: dict[str, tuple[str, dict[str, Any]]] = {}
        self._asked: dict[str, EndpointQuestion] = {}
        self._closing = False
        self._server = _listen(place, self)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def offer(self, assignments: Mapping[str, dict[str, Any]]) -> None:
        """All clusters; those that did not change keep their version."""
        version = f"{time.time_ns():x}"
        with self._changed:
            before = self._offered
            self._offered = {
                name: before[name] if before.get(name, ("", None))[1] == made else (version, made)
                for name, made in assignments.items()
            }
            self._changed.notify_all()

    def asked(self, cluster: str) -> EndpointQuestion | None:
        with self._changed:
            return self._asked.get(cluster)

    def clusters(self) -> list[str]:
        """All that Envoy has asked for."""
        with self._changed:
            return sorted(self._asked)

    def taken_up(self, cluster: str) -> bool:
        """Whether Envoy has what was offered last: its next question says so."""
        with self._changed:
            offered, asked = self._offered.get(cluster), self._asked.get(cluster)
            return offered is not None and asked is not None and asked.version == offered[0]

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        if self.place.startswith("/"):
            with contextlib.suppress(OSError):
                os.unlink(self.place)

    def answer(self, names: list[str], version: str) -> dict[str, Any] | None:
        """What is offered of these clusters; None: nothing that Envoy does not have."""
        deadline = time.monotonic() + HOLD_S
        with self._changed:
            for name in names:
                self._asked.pop(name, None)
                self._asked[name] = EndpointQuestion(monotonic_ms(), version)
            while len(self._asked) > _ASKED_MOST:
                del self._asked[next(iter(self._asked))]
            while True:
                offered = [self._offered[name] for name in names if name in self._offered]
                newest = max((made for made, _ in offered), default="")
                left_s = deadline - time.monotonic()
                if newest not in ("", version) or left_s <= 0 or self._closing:
                    break
                self._changed.wait(left_s)
        if newest in ("", version):
            return None
        resources = [assignment for _, assignment in offered]
        return {
            "version_info": newest,
            "resources": resources,
            "type_url": f"type.googleapis.com/{TYPE}",
        }


class _Handler(BaseHTTPRequestHandler):
    """One connection of Envoy's, kept open between questions."""

    protocol_version = "HTTP/1.1"
    timeout = _IDLE_S
    server: "_TcpServer | _UnixServer"

    def do_POST(self) -> None:
        """Answer a question of Envoy's."""
        try:
            length = int(self.headers.get("Content-Length") or 0)
            if not 0 <= length <= _BODY_BYTES_MAX:
                raise ValueError(f"{length} bytes")
            names, version = _question(self.rfile.read(length))
        except (ValueError, RecursionError):
            self.close_connection = True  # what is left of a body is no question
            self._reply(HTTPStatus.BAD_REQUEST, b"")
            return
        self.server.went_on(self.connection)
        if self.path != PATH:
            self._reply(HTTPStatus.NOT_FOUND, b"")
            return
        found = self.server.endpoints.answer(names, version)
        if found is None:
            self._reply(HTTPStatus.NOT_MODIFIED, b"")
        else:
            self._reply(HTTPStatus.OK, json.dumps(found).encode())

    def _reply(self, status: HTTPStatus, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Questions are no news."""

    def address_string(self) -> str:
        return "envoy"


def _question(body: bytes) -> tuple[list[str], str]:
    """The clusters that are asked for, and the version that Envoy has. Fields have either spelling
    of protocol buffers."""
    document = json.loads(body)
    if not isinstance(document, dict):
        raise ValueError("no object")
    names = document.get("resource_names") or document.get("resourceNames") or []
    version = document.get("version_info") or document.get("versionInfo") or ""
    if not isinstance(version, str) or not isinstance(names, list):
        raise ValueError("no names")
    if not all(isinstance(name, str) for name in names):
        raise ValueError("no names")
    return names, version


class _TcpServer(BoundedServer, socketserver.TCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    endpoints: EndpointServer


class _Tcp6Server(_TcpServer):
    address_family = socket.AF_INET6


class _UnixServer(BoundedServer, socketserver.UnixStreamServer):
    daemon_threads = True
    block_on_close = False
    endpoints: EndpointServer


def _listen(place: str, endpoints: EndpointServer) -> _TcpServer | _UnixServer:
    server: _TcpServer | _UnixServer
    try:
        if place.startswith("/"):
            _clear(place)
            server = _UnixServer(place, _Handler)
            os.chmod(place, 0o660)
        else:
            host, _, port = place.rpartition(":")
            kind = _Tcp6Server if ":" in host.strip("[]") else _TcpServer
            server = kind((host.strip("[]"), int(port)), _Handler)
    except OSError as error:
        problem = f"cannot listen at {place}: {error.strerror}"
        raise PermanentFault(f"plane.envoy.xds: {problem}") from error
    server.endpoints = endpoints
    return server


def _clear(path: str) -> None:
    """Take a socket away that a killed agent left; one that is served stays, and is refused."""
    if not Path(path).is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        if probe.connect_ex(path):
            os.unlink(path)
