"""Real clients and backends on loopback, for scenarios in real time.

SimClients are an open-loop Poisson stream with a connection for every attempt; latency counts from
when an attempt was meant to be sent, so that a late client does not flatter the service. Backends
are HTTP servers with a semaphore and a lognormal sleep, and serve `/metrics` beside their answers;
one more server stands for the node exporter of the machine.
"""

import asyncio
import contextlib
import errno
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from math import inf

from fairlead.core.invariant import known
from fairlead.schema.traffic_scenario import Blind, LoadDocument, SimBackendDocument
from fairlead.sim.clock import Entropy, Stream
from fairlead.sim.traffic.load import MEMORY_BYTES, HostLoad, gap_s, lognormal
from fairlead.sim.traffic.result import Answer, AnswerKind

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
        task = known(asyncio.current_task(), "a connection is served by a task")
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


class RealHost(Server):
    """The node exporter of the machine under the backends, which does as the scenario says."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        super().__init__()
        self._load = HostLoad(lambda: clock_s() * 1000)
        self.change = self._load.change

    async def answer(self, path: str, head: bytes) -> tuple[int, bytes]:
        """Counters and gauges, as the node exporter names them."""
        load = self._load
        load.advance()
        free = round((1 - load.memory_used) * MEMORY_BYTES)
        text = (
            f"node_pressure_cpu_waiting_seconds_total {load.stalled_us / 1e6:.6f}\n"
            f"node_memory_MemTotal_bytes {MEMORY_BYTES}\n"
            f"node_memory_MemAvailable_bytes {free}\n"
        )
        return 200, text.encode()


# What the kernel's program answers a connect with; EPERM where it cannot choose.
_SOFT, _HARD = (errno.EAGAIN,), (errno.ECONNREFUSED, errno.EPERM)
_REFUSALS = {(429, b"soft"): AnswerKind.SOFT, (503, b"hard"): AnswerKind.HARD}
_REFUSED = b"fairlead-refused"


class RealClients:
    """All clients of the group."""

    def __init__(
        self,
        load: LoadDocument,
        place: tuple[str, int],
        entropy: Entropy,
        unreachable: Callable[[], bool],
    ) -> None:
        self.answers: list[Answer] = []
        self.factor, self.repeat = 1.0, 0.0
        self.lags_ms: list[float] = []
        """How late arrivals were sent: the generator's own fault."""
        self._load, self._place, self._unreachable = load, place, unreachable
        self._arrivals, self._pauses = entropy.stream("arrivals"), entropy.stream("retries")
        self._tasks: set[asyncio.Task[None]] = set()
        self._began_s = 0.0

    async def run(self, seconds: float) -> None:
        """Send for so long; then wait for what is under way."""
        self._began_s = due_s = time.monotonic()
        while due_s - self._began_s < seconds:
            per_s = self._load.per_s * self.factor
            due_s += gap_s(self._arrivals, per_s) if per_s > 0 else 0.1
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            if per_s > 0:
                self.lags_ms.append((time.monotonic() - due_s) * 1000)
                self._send(due_s, 0)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._load.timeout_ms / 1000 + 1)

    def _send(self, due_s: float, retry: int) -> None:
        task = asyncio.ensure_future(self._attempt(due_s, retry))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _attempt(self, due_s: float, retry: int) -> None:
        backend = None
        try:
            async with asyncio.timeout(self._load.timeout_ms / 1000):
                outcome, backend = await self._exchange(retry)
        except TimeoutError:
            outcome = AnswerKind.TIMEOUT
        except (OSError, ValueError, asyncio.IncompleteReadError):
            outcome = AnswerKind.UNREACHABLE
        took_ms = (time.monotonic() - due_s) * 1000
        well = outcome is AnswerKind.OK
        again = self._pauses.chance(self.repeat) if well else retry < self._load.retries
        at_ms = (due_s - self._began_s) * 1000
        self.answers.append(Answer(at_ms, outcome, took_ms, backend, retry, final=not again))
        if again:
            pause_ms = self._load.retry_after_ms // 2
            pause_ms += self._pauses.below(self._load.retry_after_ms + 1)
            await asyncio.sleep(pause_ms / 1000)
            self._send(time.monotonic(), retry + 1)

    async def _exchange(self, retry: int) -> tuple[AnswerKind, str | None]:
        with socket.socket() as connection:
            connection.setblocking(False)
            # Asked directly: asyncio would take the EAGAIN of a soft refusal for "in progress".
            refusal = connection.connect_ex(self._place)
            if refusal not in (0, errno.EINPROGRESS):
                return self._refusal(refusal), None
            loop = asyncio.get_running_loop()
            await _writable(loop, connection)
            problem = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if problem:
                return self._refusal(problem), None
            extra = "X-Retry: 1\r\n" if retry else ""
            request = f"GET / HTTP/1.1\r\nHost: web\r\n{extra}Connection: close\r\n\r\n"
            await loop.sock_sendall(connection, request.encode())
            answer = b""
            while part := await loop.sock_recv(connection, 1 << 16):
                answer += part
        return _read(answer)

    def _refusal(self, problem: int) -> AnswerKind:
        if problem in _SOFT:
            return AnswerKind.SOFT
        if problem in _HARD and not self._unreachable():
            return AnswerKind.HARD
        return AnswerKind.UNREACHABLE


async def _writable(loop: asyncio.AbstractEventLoop, connection: socket.socket) -> None:
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_writer(connection, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_writer(connection)


def _read(answer: bytes) -> tuple[AnswerKind, str | None]:
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    if len(words) < 2:
        raise ValueError("no answer")
    status = int(words[1])
    if status == 200:
        return AnswerKind.OK, body.decode()
    for line in head.lower().split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name == _REFUSED and (status, value.strip()) in _REFUSALS:
            return _REFUSALS[status, value.strip()], None
    return (AnswerKind.UNREACHABLE if status == 503 else AnswerKind.ERROR), None
