"""The HTTP server of a cluster's controller: health, metrics, and the API for its leader.

Callers present a bearer token of Kubernetes; who that is and what it may do is asked of the API
server by the `authenticate` that it is given. Without a token there are /healthz and /readyz only.
"""

import asyncio
import os
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qsl

import msgspec
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from fairlead import __version__
from fairlead.api.access import Unauthenticated, bearer
from fairlead.api.connections import (
    BoundedConnection,
    ConnectionLimits,
    Gatekeeper,
    Handshake,
    descriptors,
)
from fairlead.api.endpoint import BODY_BYTES_MAX, problem, read_body, reply_to
from fairlead.api.fleet import take_agent_report
from fairlead.api.queries import Ask, Asker, answer
from fairlead.api.server import QuietServer, server_config
from fairlead.api.service import Service
from fairlead.api.tables import control_plane_samples
from fairlead.engine.gpu import Author, Forbidden
from fairlead.ports.faults import PermanentFault
from fairlead.schema.border import check_shape
from fairlead.schema.exposition import TableCollector, exposed
from fairlead.schema.metrics import Process
from fairlead.schema.reports import NOT_LEADER, AgentReport
from fairlead.schema.samples import Samples

STOP_S = 2
LOOPBACK = ("127.0.0.1", "::1", "localhost")
RELOAD_S = 5.0


class Caller(Protocol):
    """Who a token is."""

    @property
    def user(self) -> str: ...

    @property
    def reads(self) -> bool: ...

    @property
    def administers(self) -> bool: ...

    @property
    def scrapes(self) -> bool: ...

    @property
    def reports(self) -> bool: ...

    @property
    def node(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class ControllerState:
    """The controller as its server shows it."""

    service: Service | None
    """None: it does not lead."""
    holder: str | None
    synced: bool
    counters: Mapping[str, float]
    """By metric."""


@dataclass(frozen=True, slots=True)
class ClusterListen:
    """Where to listen, and with which certificate; the files are read again when they change."""

    host: str
    port: int
    certificate: Path | None = None
    key: Path | None = None


class ClusterServer:
    """Serves in a thread of its own."""

    def __init__(
        self,
        listen: ClusterListen,
        state: Callable[[], ControllerState],
        authenticate: Callable[[str], Caller | None],
        on_bug: Callable[[BaseException], None],
    ) -> None:
        self._listen, self._state, self._authenticate = listen, state, authenticate
        self._on_bug, self._stopping = on_bug, threading.Event()
        gatekeeper = Gatekeeper(ConnectionLimits.within(descriptors()))
        config = server_config(self._app, partial(self._connection, gatekeeper), stop_s=STOP_S)
        self._tls = _load_tls(listen)
        config.load()
        self._socket = _bind(listen)
        self.port: int = self._socket.getsockname()[1]
        self._server = QuietServer(config)
        self._threads = [threading.Thread(target=self._serve, name="api", daemon=True)]
        if self._tls is not None:
            self._threads.append(threading.Thread(target=self._reload, daemon=True))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        self._stopping.set()
        self._threads[0].join(2 * STOP_S)
        self._socket.close()

    def _connection(self, gatekeeper: Gatekeeper, **more: Any) -> BoundedConnection | Handshake:
        made = BoundedConnection(gatekeeper=gatekeeper, **more)
        return made if self._tls is None else Handshake(made, self._tls)

    def _serve(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._socket]))

    def _reload(self) -> None:
        """New handshakes use the new certificate; connections that are open stay.

        A context that serves is not changed: while OpenSSL has the new certificate and not yet its
        key, handshakes would fail. Half of a pair makes no context, and the other half comes.
        """
        seen = _stamp(self._listen)
        while not self._stopping.wait(RELOAD_S):
            now = _stamp(self._listen)
            if now != seen:
                with suppress(PermanentFault):
                    self._tls = _load_tls(self._listen)
                    seen = now

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        reply = await self._reply(request)
        reply.headers.setdefault("Cache-Control", "no-store")
        reply.headers.setdefault("X-Content-Type-Options", "nosniff")
        await reply(scope, receive, send)

    async def _reply(self, request: Request) -> Response:
        path = request.url.path
        if path == "/healthz":
            return _json({"ok": True, "version": __version__})
        if path == "/readyz":
            state = self._state()
            ready = {"ok": state.synced, "leads": state.service is not None}
            return _json({**ready, "leader": state.holder}, 200 if state.synced else 503)
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > BODY_BYTES_MAX:
                return problem(413, "TooLarge", f"must be at most {BODY_BYTES_MAX} bytes")
        return await run_in_threadpool(self._work, request, bytes(body))

    def _work(self, request: Request, body: bytes) -> Response:
        try:
            if self._tls is None and self._listen.host not in LOOPBACK:
                raise Forbidden("a token is taken over TLS or on loopback only: set --tls-cert")
            token = bearer(request)
            caller = None if token is None else self._authenticate(token)
            if caller is None:
                raise Unauthenticated("needs a bearer token of this cluster")
            return self._answer(caller, request, body)
        except Exception as error:  # noqa: BLE001 - the caller gets a reply in any case
            return reply_to(error, request, self._on_bug)

    def _answer(self, caller: Caller, request: Request, body: bytes) -> Response:
        if request.url.path == "/metrics":
            return self._metrics(caller)
        if (request.method, request.url.path) == ("POST", "/v1/reports"):
            return self._report(caller, body)
        return self._ask(caller, request, body)

    def _metrics(self, caller: Caller) -> Response:
        if not caller.scrapes:
            raise Forbidden(f"{caller.user} may not get the path /metrics")
        samples = partial(controller_samples, self._state())
        text = exposed(TableCollector(Process.CONTROLLER, samples))
        return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)

    def _report(self, caller: Caller, body: bytes) -> Response:
        """Of an agent: it speaks for the node of its pod, and as that node for route groups."""
        if not caller.reports or caller.node is None:
            raise Forbidden(f"{caller.user} is no agent on a node: it may not post to /v1/reports")
        service = self._leading()
        if isinstance(service, Response):
            return service
        report = check_shape(read_body(body, dict), AgentReport)
        parts = (f"group/{group.name}" for group in report.groups)
        rights = frozenset({f"node/{caller.node}", *parts})
        author = Author(f"kubernetes:{caller.user}", agent=caller.node, reports=rights)
        return _json(msgspec.to_builtins(take_agent_report(service, author, report)))

    def _leading(self) -> Service | Response:
        """What the leader works on; or a refusal that says who leads."""
        state = self._state()
        if state.service is not None:
            return state.service
        leader = state.holder or "no controller"
        return problem(503, NOT_LEADER, f"this controller does not lead: {leader} does")

    def _ask(self, caller: Caller, request: Request, body: bytes) -> Response:
        if not caller.reads:
            raise Forbidden(f"{caller.user} may not list runs.fairlead.dev in all namespaces")
        service = self._leading()
        if isinstance(service, Response):
            return service
        author = Author(f"kubernetes:{caller.user}", admin=caller.administers)
        pairs = parse_qsl(request.url.query, keep_blank_values=True)
        method = "GET" if request.method == "HEAD" else request.method
        ask = Ask(method, request.url.path, dict(pairs), body.decode(errors="replace"))
        result = answer(service, Asker(author), ask)
        return Response(result.body, result.code, result.headers, "application/json")


def controller_samples(state: ControllerState) -> Samples:
    """The controller's own numbers; those of budgets are the leader's alone."""
    counters: Samples = {name: [({}, value)] for name, value in state.counters.items()}
    leads: Samples = {"fairlead_kube_leader": [({}, float(state.service is not None))]}
    plane = {} if state.service is None else control_plane_samples(state.service)
    return {**leads, **counters, **plane}


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _load_tls(listen: ClusterListen) -> ssl.SSLContext | None:
    if listen.certificate is None and listen.key is None:
        return None
    if listen.certificate is None or listen.key is None:
        raise PermanentFault("a certificate and its key belong together")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        tls.load_cert_chain(listen.certificate, listen.key)
    except (OSError, ssl.SSLError) as error:
        raise PermanentFault(f"cannot use {listen.certificate}: {error}") from error
    return tls


def _stamp(listen: ClusterListen) -> tuple[tuple[int, int], ...]:
    """Mounted Secrets are links that are replaced: the file behind them counts."""
    stamps = []
    for path in (listen.certificate, listen.key):
        with suppress(OSError):
            found = os.stat(path) if path is not None else None
            if found is not None:
                stamps.append((found.st_ino, found.st_mtime_ns))
    return tuple(stamps)


def _bind(listen: ClusterListen) -> socket.socket:
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((listen.host, listen.port))
        listening.listen(128)
    except OSError as error:
        listening.close()
        where = f"{listen.host}:{listen.port}"
        raise PermanentFault(f"cannot listen on {where}: {error.strerror or error}") from error
    return listening
