"""Real backends for the harness: HTTP servers on loopback with a semaphore and a lognormal sleep.

Each serves its own `/metrics` beside its answers, as a service would that is scraped; one more
server stands for the node exporter of the machine, so that stalls and memory can be told.
"""

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from math import inf

from fairlead.schema.traffic_scenario import Blind, SimBackendDocument
from fairlead.sim.entropy import Stream
from fairlead.sim.traffic.service import lognormal
from fairlead.sim.traffic.surroundings import MEMORY_BYTES

HOST = "127.0.0.1"
EDGES_S = (
    *(0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5),
    *(0.75, 1.0, 1.5, 2.0, 3.0, 5.0, inf),
)
RETRY = b"x-retry"


class Server(ABC):
    """An HTTP server that answers GETs, one connection after the other or many at once."""

    def __init__(self) -> None:
        self.port = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Listen; the second time on the same port as the first."""
        self._server = await asyncio.start_server(self._serve, HOST, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def shut(self) -> None:
        """Listen no more; connections that are there go on."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def close(self) -> None:
        """Listen no more, and hang up."""
        await self.shut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            # Cancelled means that the play is over: nobody is to be told.
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while True:
                    head = (await reader.readuntil(b"\r\n\r\n")).lower()
                    status, body = await self.answer(head.split(b" ", 2)[1].decode(), head)
                    writer.write(
                        b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)
                    )
                    await writer.drain()
                    if b"connection: close" in head or b"http/1.0" in head:
                        break
        finally:
            self._tasks.discard(task)
            writer.close()

    @abstractmethod
    async def answer(self, path: str, head: bytes) -> tuple[int, bytes]:
        """Status and body."""


class RealBackend(Server):
    """One backend of a scenario."""

    def __init__(self, spec: SimBackendDocument, chance: Stream) -> None:
        super().__init__()
        self.spec = spec
        self.latency_ms, self.factor, self.error_rate = spec.latency_ms, 1.0, 0.0
        self.hidden = Blind.NOTHING
        self._chance, self._room = chance, asyncio.Semaphore(spec.concurrency)
        self._requests = self._errors = self._retries = self._inside = 0
        self._counts, self._sum_s = [0] * len(EDGES_S), 0.0

    async def answer(self, path: str, head: bytes) -> tuple[int, bytes]:
        """Work like a service: wait for room, take a while, answer well or not."""
        if path == "/metrics":
            return 200, self._metrics().encode()
        began = time.monotonic()
        self._retries += RETRY in head
        self._inside += 1
        try:
            async with self._room:
                median_ms = self.latency_ms * self.factor
                drawn_ms = lognormal(self._chance, median_ms, self.spec.sigma)
                failed = self._chance.chance(self.error_rate)
                await asyncio.sleep(drawn_ms / 1000)
        finally:
            self._inside -= 1
        self._requests += 1
        self._errors += failed
        if failed:
            return 500, b"no"
        took_s = time.monotonic() - began
        self._counts[next(i for i, edge in enumerate(EDGES_S) if took_s <= edge)] += 1
        self._sum_s += took_s
        return 200, self.spec.name.encode()

    def _metrics(self) -> str:
        lines = [f"retries_total {self._retries}"]
        if self.hidden is not Blind.ERRORS:
            lines += [f"requests_total {self._requests}", f"errors_total {self._errors}"]
        if self.hidden is not Blind.QUEUE:
            lines.append(f"inside {self._inside}")
        if self.hidden is not Blind.LATENCY:
            total = 0
            for edge, count in zip(EDGES_S, self._counts, strict=True):
                total += count
                le = "+Inf" if edge == inf else f"{edge:g}"
                lines.append(f'latency_seconds_bucket{{le="{le}"}} {total}')
        return "\n".join(lines) + "\n"


class RealMachine(Server):
    """The node exporter of the machine under the backends, which does as the scenario says."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        super().__init__()
        self.stall, self.memory_used, self.memory_per_s = 0.0, 0.3, 0.0
        self._clock_s, self._at_s, self._stalled_s = clock_s, clock_s(), 0.0

    async def answer(self, path: str, head: bytes) -> tuple[int, bytes]:
        """Counters and gauges, as the node exporter names them."""
        self.advance()
        free = round((1 - self.memory_used) * MEMORY_BYTES)
        text = (
            f"node_pressure_cpu_waiting_seconds_total {self._stalled_s:.6f}\n"
            f"node_memory_MemTotal_bytes {MEMORY_BYTES}\n"
            f"node_memory_MemAvailable_bytes {free}\n"
        )
        return 200, text.encode()

    def advance(self) -> None:
        """Up to now."""
        elapsed_s = self._clock_s() - self._at_s
        self._at_s += elapsed_s
        self._stalled_s += elapsed_s * self.stall
        self.memory_used = min(1.0, max(0.0, self.memory_used + self.memory_per_s * elapsed_s))
