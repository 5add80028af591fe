"""Real clients for the harness: an open-loop Poisson stream, a connection for every attempt.

Latency counts from when an attempt was meant to be sent, so that a client that is late itself does
not flatter the service.
"""

import asyncio
import errno
import socket
import time
from collections.abc import Callable

from fairlead.schema.traffic_scenario import LoadDocument
from fairlead.sim.entropy import Entropy
from fairlead.sim.traffic.service import gap_s
from fairlead.sim.traffic.story import Answer, Outcome

# What the kernel's program answers a connect with; EPERM where it cannot choose.
_SOFT, _HARD = (errno.EAGAIN,), (errno.ECONNREFUSED, errno.EPERM)
_REFUSALS = {(429, b"soft"): Outcome.SOFT, (503, b"hard"): Outcome.HARD}
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
            outcome = Outcome.TIMEOUT
        except (OSError, ValueError, asyncio.IncompleteReadError):
            outcome = Outcome.UNREACHABLE
        took_ms = (time.monotonic() - due_s) * 1000
        well = outcome is Outcome.OK
        again = self._pauses.chance(self.repeat) if well else retry < self._load.retries
        at_ms = (due_s - self._began_s) * 1000
        self.answers.append(Answer(at_ms, outcome, took_ms, backend, retry, final=not again))
        if again:
            pause_ms = self._load.retry_after_ms // 2
            pause_ms += self._pauses.below(self._load.retry_after_ms + 1)
            await asyncio.sleep(pause_ms / 1000)
            self._send(time.monotonic(), retry + 1)

    async def _exchange(self, retry: int) -> tuple[Outcome, str | None]:
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

    def _refusal(self, problem: int) -> Outcome:
        if problem in _SOFT:
            return Outcome.SOFT
        if problem in _HARD and not self._unreachable():
            return Outcome.HARD
        return Outcome.UNREACHABLE


async def _writable(loop: asyncio.AbstractEventLoop, connection: socket.socket) -> None:
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_writer(connection, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_writer(connection)


def _read(answer: bytes) -> tuple[Outcome, str | None]:
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    if len(words) < 2:
        raise ValueError("no answer")
    status = int(words[1])
    if status == 200:
        return Outcome.OK, body.decode()
    for line in head.lower().split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name == _REFUSED and (status, value.strip()) in _REFUSALS:
            return _REFUSALS[status, value.strip()], None
    return (Outcome.UNREACHABLE if status == 503 else Outcome.ERROR), None
