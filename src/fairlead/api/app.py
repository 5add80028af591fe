"""The application: one gate for every endpoint, the ledger's checkpoint in every reply."""

import inspect
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fairlead.api import (
    console,
    decisions,
    fleet,
    fleet_stream,
    listings,
    objects,
    overview,
    preemption,
    sessions,
    story,
    streams,
    tables,
    web,
)
from fairlead.api.access import AccessGate
from fairlead.api.endpoint import Beside, Call, Endpoint, has_two_ends, problem, read_call, reply_to
from fairlead.api.openapi import document
from fairlead.api.service import HEAD, Service
from fairlead.host.log import Log
from fairlead.ports.faults import Fault

ENDPOINTS = (
    *(*objects.routes, *preemption.routes, *tables.routes),
    *(*streams.routes, *console.routes),
    *(*overview.routes, *story.routes),
    *(*listings.routes, *fleet.routes, *fleet_stream.routes),
    *(*decisions.routes, *sessions.routes),
)
_SAFE = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}
_log = Log("fairlead.api")


@cache
def _described() -> bytes:
    return msgspec.json.encode(document(ENDPOINTS))


def build(
    service: Service,
    gate: AccessGate,
    on_bug: Callable[[BaseException], None],
    *,
    beside: Beside = run_in_threadpool,
) -> Starlette:
    """The ASGI application. `on_bug` is called with a broken invariant; the server then stops.
    `beside`: how a request is worked on while the event loop takes others."""
    service.report_feed = fleet_stream.report_feed(service)
    described = _described()

    def openapi(service: Service, call: Call) -> Response:
        return Response(described, media_type="application/json")

    own = Endpoint("GET", "/openapi.json", "This document", openapi, dict[str, Any])
    by_path: dict[str, dict[str, Endpoint]] = {}
    for endpoint in (*ENDPOINTS, *web.PAGES, own):
        by_path.setdefault(endpoint.path, {})[endpoint.method] = endpoint
    application = _Application(service, gate, on_bug, beside)
    routes = [_Path(path, application.route(methods)) for path, methods in by_path.items()]
    app = Starlette(routes=routes, exception_handlers={HTTPException: application.unknown})
    # A redirect would carry no checkpoint; to a client that looks like a server in between.
    app.router.redirect_slashes = False
    return app


class _Path(Route):
    """Takes every method: an unknown one gets our own 405 with `Allow`."""

    def __init__(self, path: str, respond: Callable[[Request], Awaitable[Response]]) -> None:
        super().__init__(path, respond)
        self.methods = None


class _Application:
    """Turns requests into replies."""

    def __init__(
        self,
        service: Service,
        gate: AccessGate,
        on_bug: Callable[[BaseException], None],
        beside: Beside,
    ) -> None:
        self._service, self._gate, self._on_bug, self._beside = service, gate, on_bug, beside

    def route(self, methods: dict[str, Endpoint]) -> Callable[[Request], Awaitable[Response]]:

        async def respond(request: Request) -> Response:
            method = "GET" if request.method == "HEAD" else request.method
            endpoint = methods.get(method)
            if endpoint is None:
                reply = problem(405, "MethodNotAllowed", f"{request.url.path} has no {method}")
                reply.headers["Allow"] = ", ".join(sorted(methods))
                return await self._finish(request, reply)
            about = {"http__request__method": method, "http__route": endpoint.path}
            with self._service.tracer.span(f"{method} {endpoint.path}", **about):
                return await self._finish(request, await self._reply(endpoint, request))

        return respond

    async def unknown(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 404
        if web.wants_page(request):
            return await self._finish(request, web.missing_page())
        reply = problem(status, "NotFound", f"there is no {request.url.path}")
        return await self._finish(request, reply)

    async def _reply(self, endpoint: Endpoint, request: Request) -> Response:
        try:
            call = await read_call(endpoint, self._gate, request, self._beside)
            held = request.headers.get("fairlead-held")
            if held is not None and endpoint.method != "GET":
                await self._beside(self._service.check_held, held)
            if inspect.iscoroutinefunction(endpoint.handle):
                response: Response = await endpoint.handle(self._service, call)
                return response
            async with self._service.shares.of(call.account):
                done: Response = await self._beside(self._work, endpoint, call)
                return done
        except Exception as error:  # noqa: BLE001 - the caller gets a reply in any case
            return reply_to(error, request, self._on_bug)

    def _work(self, endpoint: Endpoint, call: Call) -> Response:
        result = endpoint.handle(self._service, call)
        if endpoint.method != "GET":
            self._service.wake.set()
        if not isinstance(result, Response):
            result = Response(msgspec.json.encode(result), media_type="application/json")
        self._prove(result)  # here, and not in a thread of its own
        return result

    async def _finish(self, request: Request, reply: Response) -> Response:
        for name, value in _SAFE.items():
            reply.headers.setdefault(name, value)
        if has_two_ends(request):
            reply.headers["Connection"] = "close"  # what follows is no request
        if HEAD not in reply.headers:
            await self._beside(self._prove, reply)
        return reply

    def _prove(self, reply: Response) -> None:
        try:
            reply.headers.update(self._service.head_headers())
        except Fault as fault:
            _log.warning("no checkpoint", fault=str(fault))
