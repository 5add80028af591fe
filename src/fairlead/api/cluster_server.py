"""The HTTP server of a cluster's controller: health, metrics, and the API for its leader.

Callers present a bearer token of Kubernetes; who that is and what it may do is asked of the API
server by the `authenticate` that it is given. Without a token there are /healthz and /readyz only.
"""

import asyncio
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qsl

import msgspec
import structlog
import uvicorn
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from fairlead import __version__
from fairlead.api.access import Unauthenticated, bearer
from fairlead.api.connections import (
    ACCEPT_AT_ONCE,
    BoundedConnection,
    ConnectionLimits,
    Gatekeeper,
    descriptors,
)
from fairlead.api.endpoint import BODY_BYTES_MAX, failure, problem
from fairlead.api.queries import Ask, Asker, answer
from fairlead.api.server import QuietServer
from fairlead.api.service import Service
from fairlead.api.tables import ControlPlaneCollector
from fairlead.core.invariant import InvariantBroken
from fairlead.engine.gpu import Author, Forbidden
from fairlead.ports.faults import Fault, PermanentFault

_log = structlog.get_logger("fairlead.api")
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


@dataclass(frozen=True, slots=True)
class ControllerState:
    """The controller as its server shows it."""

    service: Service | None
    """None: it does not lead."""
    holder: str | None
    synced: bool
    counters: Mapping[str, float]
    """By the names in `COUNTERS`."""


COUNTERS = {
    "fairlead_kube_turns_total": "Turns of the controller that succeeded",
    "fairlead_kube_turn_failures_total": "Parts of a turn that failed, to be retried",
    "fairlead_kube_requests_total": "Requests sent to the API server",
    "fairlead_kube_queries_total": "Queries that were answered",
    "fairlead_kube_pod_mismatches_total": "Pods that were not as their run is leased",
}


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
        config = uvicorn.Config(
            self._app,
            interface="asgi3",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=STOP_S,
            http=partial(BoundedConnection, gatekeeper=gatekeeper),  # type: ignore[arg-type]  # a factory
            backlog=ACCEPT_AT_ONCE,
        )
        self._tls = _load_tls(listen)
        config.load()
        config.ssl = self._tls
        if self._tls is not None:
            self._tls.sni_callback = self._use_newest
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

    def _use_newest(self, connection: ssl.SSLObject, _name: str | None, _: ssl.SSLContext) -> None:
        """OpenSSL asks at each handshake, also where the client names no server."""
        if self._tls is not None:
            connection.context = self._tls

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
            if request.url.path == "/metrics":
                return self._metrics(caller)
            return self._ask(caller, request, body)
        except InvariantBroken as error:
            self._on_bug(error)
            return problem(500, "Bug", str(error))
        except Exception as error:  # noqa: BLE001 - the caller gets a reply in any case
            reply = failure(error)
            if reply is not None:
                return reply
            if isinstance(error, Fault):
                return problem(503, "Fault", str(error))
            _log.exception("request failed", path=request.url.path, method=request.method)
            return problem(500, "Bug", "see the server's log")

    def _metrics(self, caller: Caller) -> Response:
        if not caller.scrapes:
            raise Forbidden(f"{caller.user} may not get the path /metrics")
        registry, state = CollectorRegistry(), self._state()
        registry.register(ControllerCollector(state))
        if state.service is not None:
            registry.register(ControlPlaneCollector(state.service.plane))
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    def _ask(self, caller: Caller, request: Request, body: bytes) -> Response:
        if not caller.reads:
            raise Forbidden(f"{caller.user} may not list runs.fairlead.dev in all namespaces")
        state = self._state()
        if state.service is None:
            leader = state.holder or "no controller"
            return problem(503, "NotLeader", f"this controller does not lead: {leader} does")
        author = Author(f"kubernetes:{caller.user}", admin=caller.administers)
        pairs = parse_qsl(request.url.query, keep_blank_values=True)
        method = "GET" if request.method == "HEAD" else request.method
        ask = Ask(method, request.url.path, dict(pairs), body.decode(errors="replace"))
        result = answer(state.service, Asker(author), ask)
        return Response(result.body, result.code, result.headers, "application/json")


@dataclass(frozen=True, slots=True, eq=False)
class ControllerCollector:
    """The controller's own numbers; those of budgets are the leader's alone."""

    state: ControllerState

    def collect(self) -> Iterator[Metric]:
        leads = GaugeMetricFamily("fairlead_kube_leader", "1 on the controller that leads, else 0")
        leads.add_metric([], float(self.state.service is not None))
        yield leads
        for name, text in COUNTERS.items():
            family = CounterMetricFamily(name, text)
            family.add_metric([], self.state.counters.get(name, 0))
            yield family


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
