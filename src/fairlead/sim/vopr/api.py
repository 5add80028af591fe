"""The API in this process: requests go through the real application, without sockets and threads.

    api = Api(plane, ledger)
    reply = api.ask(ApiRequest("GET", "/v1/clock"))

A reply is made from the first line to the last before anything else happens; `Crash` and
`Violation` are no `Exception`, so no handler makes a reply of them.
"""

import json
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

import msgspec

from fairlead.api.access import Access, AccessGate
from fairlead.api.app import build
from fairlead.api.peers import Peer
from fairlead.api.service import HEAD, Service
from fairlead.engine.gpu import ControlPlane
from fairlead.ports.ledger import Ledger
from fairlead.schema.objects import API_VERSION
from fairlead.sim.vopr.violation import Violation

OPERATOR = Peer(0)
OPERATOR_NAME = "root"


class ApiRequest(NamedTuple):
    """What a client sends: over the Unix socket as this peer, or over TCP with a token or none."""

    method: str
    path: str
    body: Any = None
    peer: Peer | None = OPERATOR
    token: str = ""

    @property
    def author(self) -> str:
        """The name that what it does is recorded with; empty: it may do nothing."""
        if self.peer is None or self.peer.in_run:
            return ""
        return str(self.peer.uid or OPERATOR_NAME)

    def __str__(self) -> str:
        return f"{self.method} {self.path} of {self.author or 'no user'}"


def manifest(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}


def put(kind: str, name: str, spec: dict[str, Any], peer: Peer = OPERATOR) -> ApiRequest:
    return ApiRequest("PUT", f"/v1/objects/{kind}/{name}", manifest(kind, name, spec), peer)


def delete(kind: str, name: str, peer: Peer = OPERATOR) -> ApiRequest:
    return ApiRequest("DELETE", f"/v1/objects/{kind}/{name}", peer=peer)


def act(kind: str, name: str, verb: str, peer: Peer = OPERATOR) -> ApiRequest:
    """`verb` with its query, if it has one."""
    return ApiRequest("POST", f"/v1/objects/{kind}/{name}/actions/{verb}", peer=peer)


class ApiReply(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    data: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.data)

    @property
    def done(self) -> bool:
        return self.status < 300

    @property
    def held(self) -> str:
        """The checkpoint, as a client sends it back; empty where there is none."""
        if HEAD.lower() not in self.headers:
            return ""
        return f"{self.headers['fairlead-ledger']}:{self.headers[HEAD.lower()]}"


class Api:
    """The application of one process. Wired as `compose.up` does it on a full disk: the boot is
    not recorded before the first request comes."""

    def __init__(self, plane: ControlPlane, ledger: Ledger) -> None:
        clock = plane.committer.clock
        access = Access(ledger, clock)
        plane.committer.after_checkpoint = access.keep
        service = Service(plane, ledger, access, lambda run, jobs: [], clock)
        names = frozenset({"localhost"}), frozenset[str]()
        gate = AccessGate(access, *names, service.submission)
        self._bugs: list[BaseException] = []
        self._app = build(service, gate, self._bugs.append, beside=_at_once)

    def ask(self, request: ApiRequest, held: str = "") -> ApiReply:
        """`held`: the checkpoint that the client has. A broken invariant is raised here, and ends
        the process as `ControlServer` does."""
        path, _, query = request.path.partition("?")
        body = b"" if request.body is None else json.dumps(request.body).encode()
        given = {"host": "localhost", "content-length": str(len(body))}
        given |= {"fairlead-held": held} if held else {}
        given |= {"authorization": f"Bearer {request.token}"} if request.token else {}
        scope = {
            "type": "http",
            "scheme": "http",
            "method": request.method,
            "path": path,
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
            "state": {} if request.peer is None else {"peer": request.peer},
        }
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        _to_the_end(self._app(scope, receive, send))
        if self._bugs:
            raise self._bugs[0]
        headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        data = b"".join(message.get("body", b"") for message in sent[1:])
        return ApiReply(sent[0]["status"], headers, data)


async def _at_once(work: Callable[..., Any], *given: Any) -> Any:
    return work(*given)


def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """There is one request at a time, so it waits for nothing."""
    try:
        work.send(None)
    except StopIteration:
        return
    work.close()
    raise Violation("reply", "a request waits, and nothing else is under way")
