"""A real control plane in a folder of its own, and a client that sends exactly what it is told."""

import http.client
import json
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fairlead.api.service import Service
from fairlead.compose import up
from fairlead.schema.objects import API_VERSION
from tests.engine.gpu.worlds import LENIENT


class Reply(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    data: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.data)

    @property
    def code(self) -> str:
        """The code of an error, after making sure that it is one and has its shape."""
        error = self.json["error"]
        assert set(error) == {"code", "path", "message"}, error
        return str(error["code"])


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=30)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(30)
        self.sock.connect(self._path)


class Running:
    """A server that runs in a thread of this process; only its sockets are used."""

    def __init__(self, folder: Path, port: int, service: Service | None = None) -> None:
        self.folder, self.port, self._service = folder, port, service
        self.socket = folder / up.SOCKET

    @property
    def service(self) -> Service:
        """What its handlers work on, for a test that moves a clock."""
        assert self._service is not None
        return self._service

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        tcp: bool = False,
        token: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Reply:
        connection: http.client.HTTPConnection = (
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
            if tcp
            else UnixConnection(self.socket)
        )
        given = dict(headers or {})
        if token is not None:
            given["Authorization"] = f"Bearer {token}"
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        try:
            connection.request(method, path, data, given)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, found, response.read())
        finally:
            connection.close()

    @contextmanager
    def open(self, path: str, *, token: str | None = None) -> Iterator[http.client.HTTPResponse]:
        """A reply that goes on, over loopback."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        try:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            assert response.status == 200, response.read()
            yield response
        finally:
            connection.close()

    def ok(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        reply = self.send(method, path, body, **more)
        assert reply.status == 200, reply
        return reply.json

    def apply(self, *manifests: dict[str, Any]) -> list[dict[str, Any]]:
        found = self.ok("POST", "/v1/apply", {"manifests": list(manifests)})["items"]
        return list(found)

    def token(self, user: str, *owners: str, admin: bool = False) -> str:
        self.ok("PUT", f"/v1/users/{user}", {"owners": list(owners), "admin": admin})
        return str(self.ok("POST", "/v1/tokens", {"user": user})["token"])

    def until(self, what: str, holds: Callable[[], Any], seconds: float = 60) -> Any:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if found := holds():
                return found
            time.sleep(0.02)  # polling interval, not synchronisation
        raise AssertionError(f"never {what}")

    def status(self, kind: str, name: str) -> dict[str, Any]:
        return dict(self.ok("GET", f"/v1/objects/{kind}/{name}")["status"])

    def ended(self, name: str) -> dict[str, Any]:
        """Wait until a run has ended; its status."""
        phases = ("Completed", "Failed")
        self.until(f"{name} ended", lambda: self.status("Run", name)["phase"] in phases)
        return self.status("Run", name)


@contextmanager
def short_folder() -> Iterator[Path]:
    """A Unix socket's path has at most 107 bytes; everybody may reach it, as in production."""
    folder = Path(tempfile.mkdtemp(prefix="fairlead-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def serving(folder: Path, **more: Any) -> Iterator[Running]:
    """A control plane on a folder, with its loop, its executor and both sockets."""
    given = {
        "data": folder,
        "port": 0,
        "allow_root": True,
        "grace_ms": 500,
        "preemption": LENIENT,
        **more,
    }
    config = up.UpConfig(**given)
    with up.control_server(config) as server:
        thread = threading.Thread(target=server.run, kwargs={"signals": False})
        thread.start()
        try:
            assert server.port is not None
            yield Running(folder, server.port, server.service)
        finally:
            server.stop()
            thread.join(timeout=60)
            assert not thread.is_alive(), "the server did not stop"


def manifest(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    if kind == "Node":
        spec = {"virtual": True, **spec}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}


def node(name: str = "box", devices: int = 8) -> dict[str, Any]:
    return manifest("Node", name, flavor="H100", devices=devices)


def budget(name: str, concurrency: int = 4, **more: Any) -> dict[str, Any]:
    envelope = {"name": "main", "flavor": "H100", "concurrency": concurrency, **more}
    return manifest("Budget", name, owner=name, envelopes=[envelope])


def run(name: str, owner: str = "team-a", gpus: int = 1, **more: Any) -> dict[str, Any]:
    return manifest("Run", name, owner=owner, flavor="H100", totalGPUs=gpus, **more)
