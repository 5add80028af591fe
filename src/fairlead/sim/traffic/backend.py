"""Fake backends that speak real HTTP, for scenarios in real time and for `bench.traffic`.

A backend has so many workers; the requests beyond them wait. While it fails it answers 500 before
it asks for a worker. A client that goes away takes its request along.
"""

import asyncio
import socket
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable
from itertools import accumulate
from urllib.parse import parse_qs, urlsplit

from fairlead.core.invariant import of_kind
from fairlead.schema.traffic_scenario import Blind, SimBackendDocument
from fairlead.sim.clock import Stream
from fairlead.sim.traffic.load import MEMORY_BYTES, BackendModel, HostLoad

HOST = "127.0.0.1"
RETRY = "x-retry"
# Seconds, each edge an eighth above the last: a p95 read off it is at most that much wrong.
EDGES_S = tuple(0.005 * 1.125**step for step in range(66))
_STATUS = {200: "OK", 404: "Not Found", 500: "Internal Server Error"}

Handler = Callable[[str, str], Awaitable[tuple[int, bytes]]]
"""From the target and the lower-case head of a request to status and body."""


class HttpServer:
    """Answers GETs on loopback, many connections at once, one request after the other on each."""

    def __init__(self, name: str, handler: Handler) -> None:
        self.name, self.handler, self.port = name, handler, 0
        self.connections: set[asyncio.Transport] = set()
        self._server: asyncio.Server | None = None

    @property
    def listening(self) -> bool:
        return self._server is not None

    async def open(self, listener: socket.socket | None = None) -> None:
        """Listen; the second time on the same port as the first."""
        loop = asyncio.get_running_loop()
        at = {"sock": listener} if listener else {"host": HOST, "port": self.port}
        self._server = await loop.create_server(lambda: _Connection(self), **at, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]

    def shut(self) -> None:
        """Listen no more; connections that are there go on."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def close(self) -> None:
        self.shut()
        for transport in list(self.connections):
            transport.abort()


class _Connection(asyncio.Protocol):
    """One client."""

    def __init__(self, server: HttpServer) -> None:
        self._server, self._received = server, b""
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = of_kind(transport, asyncio.Transport, "TCP has a stream transport")
        self._server.connections.add(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self._transport)
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._task is None:
            self._next()

    def _next(self) -> None:
        head, found, rest = self._received.partition(b"\r\n\r\n")
        if found:
            self._received = rest
            self._task = asyncio.get_running_loop().create_task(self._answer(head))

    async def _answer(self, data: bytes) -> None:
        head = data.decode("latin-1")
        _, target, version = head.split("\r\n", 1)[0].split(" ", 2)
        status, body = await self._server.handler(target, head.lower())
        close = version == "HTTP/1.0" or "connection:close" in head.lower().replace(" ", "")
        self._transport.write(
            f"HTTP/1.1 {status} {_STATUS[status]}\r\nX-Backend: {self._server.name}\r\n"
            f"Content-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
            f"Connection: {'close' if close else 'keep-alive'}\r\n\r\n".encode()
            + body
        )
        self._task = None
        if close:
            self._transport.close()
        else:
            self._next()


class ServiceMetrics:
    """What the application counts, in the format of Prometheus."""

    def __init__(self) -> None:
        self.requests = self.errors = self.retries = self.inside = 0
        self._buckets = [0] * (len(EDGES_S) + 1)
        self._seconds = 0.0

    def succeeded(self, took_s: float) -> None:
        """One more success; only they have a latency."""
        self._buckets[bisect_left(EDGES_S, took_s)] += 1
        self._seconds += took_s

    def text(self, hidden: Blind = Blind.NOTHING) -> bytes:
        counters = {"retries": self.retries}
        if hidden is not Blind.ERRORS:
            counters |= {"requests": self.requests, "errors": self.errors}
        lines = []
        for name, count in counters.items():
            lines += [f"# TYPE {name}_total counter", f"{name}_total {count}"]
        if hidden is not Blind.QUEUE:
            lines += ["# TYPE inside gauge", f"inside {self.inside}"]
        if hidden is not Blind.LATENCY:
            lines.append("# TYPE latency_seconds histogram")
            edges = (*(f"{edge:.6g}" for edge in EDGES_S), "+Inf")
            totals = list(accumulate(self._buckets))
            for edge, total in zip(edges, totals, strict=True):
                lines.append(f'latency_seconds_bucket{{le="{edge}"}} {total}')
            lines += [f"latency_seconds_sum {self._seconds}", f"latency_seconds_count {totals[-1]}"]
        return ("\n".join(lines) + "\n").encode()


class FakeService:
    """The service behind all connections of a backend: `/metrics`, `/ready`, and work for anything
    else, as the request names it (`/work?ms=93&fail=0`) or else as `draw` does, in milliseconds.
    `arrived` is called for every request that is no probe."""

    def __init__(
        self,
        workers: int,
        *,
        draw: Callable[[], tuple[float, bool]] | None = None,
        arrived: Callable[[], None] = lambda: None,
    ) -> None:
        self.metrics, self.hidden = ServiceMetrics(), Blind.NOTHING
        self.slow, self.failing = 1.0, False
        self._workers, self._draw, self._arrived = asyncio.Semaphore(workers), draw, arrived

    async def answer(self, target: str, head: str) -> tuple[int, bytes]:
        parts = urlsplit(target)
        if parts.path == "/metrics":
            return 200, self.metrics.text(self.hidden)
        if parts.path == "/ready":
            return 200, b"ok"
        query = parse_qs(parts.query)
        if "ms" in query:
            work_ms, fails = float(query["ms"][0]), query.get("fail") == ["1"]
        elif self._draw is not None:
            work_ms, fails = self._draw()
        else:
            return 404, b"no"
        if "probe" not in query:
            self._arrived()
        self.metrics.retries += RETRY in head
        return await self._work(work_ms / 1000, fails=fails), b"ok"

    async def _work(self, work_s: float, *, fails: bool) -> int:
        began = time.monotonic()
        self.metrics.inside += 1
        try:
            if self.failing:
                status = 500
            else:
                async with self._workers:
                    await asyncio.sleep(work_s * self.slow)
                status = 500 if fails else 200
        finally:
            self.metrics.inside -= 1
        # Counted when it ends: a rate of errors over what began would be too low in a slow spell.
        self.metrics.requests += 1
        if status == 200:
            self.metrics.succeeded(time.monotonic() - began)
        else:
            self.metrics.errors += 1
        return status


class ScenarioBackend(BackendModel):
    """One backend of a scenario in real time: it draws its own work."""

    def __init__(self, spec: SimBackendDocument, chance: Stream) -> None:
        super().__init__(spec, chance)
        self.service = FakeService(spec.concurrency, draw=self.draw)
        self.server = HttpServer(spec.name, self.service.answer)


class HostExporter(HostLoad):
    """The node exporter of the machine under the backends."""

    def __init__(self) -> None:
        super().__init__(lambda: time.monotonic() * 1000)
        self.server = HttpServer("node", self._answer)

    async def _answer(self, target: str, head: str) -> tuple[int, bytes]:
        """Counters and gauges, as the node exporter names them."""
        self.advance()
        text = (
            f"node_pressure_cpu_waiting_seconds_total {self.stalled_us / 1e6:.6f}\n"
            f"node_memory_MemTotal_bytes {MEMORY_BYTES}\n"
            f"node_memory_MemAvailable_bytes {round((1 - self.memory_used) * MEMORY_BYTES)}\n"
        )
        return 200, text.encode()
