"""One backend of the group: `python -m bench.traffic.backends '{...}'`. Plain asyncio, HTTP/1.1.

A semaphore has as many places as there are workers; what comes more waits in its queue. A request
says how much work it is (`/work?ms=93`), and a worker sleeps for it. While the backend is sick it
sleeps ten times as long, or answers 500 before asking for a place. A client that goes away takes
its request along. `/metrics` tells what an application tells; `/ready` whether it is there.

Says "ready", waits for "go T" on stdin (faults count from T), writes the moments at which requests
came when it is told to end.
"""

import asyncio
import contextlib
import json
import resource
import signal
import socket
import sys
import time
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from bench.cpu.workloads import die_with_parent

# Seconds, each edge an eighth above the last: a p95 read off it is at most that much wrong.
EDGES = tuple(0.005 * 1.125**step for step in range(66))
_REASONS = {200: "OK", 404: "Not Found", 500: "Internal Server Error"}


class Told:
    """What the application counts, in Prometheus's words."""

    def __init__(self) -> None:
        self.requests = self.errors = self.inside = 0
        self._buckets = [0] * (len(EDGES) + 1)
        self._seconds = 0.0

    def succeeded(self, took_s: float) -> None:
        """One more success; only they have a latency."""
        self._buckets[bisect_left(EDGES, took_s)] += 1
        self._seconds += took_s

    def text(self) -> bytes:
        """The page."""
        lines = [
            "# TYPE bench_requests_total counter",
            f"bench_requests_total {self.requests}",
            "# TYPE bench_errors_total counter",
            f"bench_errors_total {self.errors}",
            "# TYPE bench_inside gauge",
            f"bench_inside {self.inside}",
            "# TYPE bench_latency_seconds histogram",
        ]
        total = 0
        for edge, count in zip((*EDGES, "+Inf"), self._buckets, strict=True):
            total += count
            name = edge if isinstance(edge, str) else f"{edge:.6g}"
            lines.append(f'bench_latency_seconds_bucket{{le="{name}"}} {total}')
        lines += [
            f"bench_latency_seconds_sum {self._seconds}",
            f"bench_latency_seconds_count {total}",
        ]
        return ("\n".join(lines) + "\n").encode()


class Backend:
    """The service behind all of its connections."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.name: str = spec["name"]
        self.told = Told()
        self.arrivals: list[float] = []
        self.start: float | None = None
        self._faults: list[list[Any]] = spec["faults"]
        self._workers = asyncio.Semaphore(spec["workers"])

    def fault(self) -> tuple[float, bool]:
        """(slow, failing) now; before the start it is well."""
        if self.start is None or not self._faults:
            return 1.0, False
        now = time.monotonic() - self.start
        index = bisect_right(self._faults, now, key=lambda fault: fault[0])
        return (self._faults[index - 1][1], self._faults[index - 1][2]) if index else (1.0, False)

    async def work(self, work_s: float, *, fails: bool, probe: bool) -> int:
        """Serve one request; its status. Probes are work like any other, but not traffic."""
        if self.start is not None and not probe:
            self.arrivals.append(time.monotonic() - self.start)
        began = time.monotonic()
        self.told.inside += 1
        try:
            if self.fault()[1]:
                status = 500
            else:
                async with self._workers:
                    await asyncio.sleep(work_s * self.fault()[0])
                status = 500 if fails else 200
        finally:
            self.told.inside -= 1
        # Counted when it ends: a rate of errors over what began would be too low in a slow spell.
        self.told.requests += 1
        if status == 200:
            self.told.succeeded(time.monotonic() - began)
        else:
            self.told.errors += 1
        return status


class Connection(asyncio.Protocol):
    """One client; requests one after the other."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._received = b""
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody is there."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody waits any more."""
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        """Bodies are not expected."""
        self._received += data
        if self._task is None:
            self._next()

    def _next(self) -> None:
        head, found, rest = self._received.partition(b"\r\n\r\n")
        if found:
            self._received = rest
            self._task = asyncio.get_running_loop().create_task(self._answer(head))

    async def _answer(self, head: bytes) -> None:
        line, *headers = head.decode("latin-1").split("\r\n")
        _, target, version = line.split(" ", 2)
        parts = urlsplit(target)
        status, body = 200, b"ok"
        if parts.path == "/metrics":
            body = self._backend.told.text()
        elif parts.path == "/work":
            query = parse_qs(parts.query)
            status = await self._backend.work(
                float(query["ms"][0]) / 1000,
                fails=query.get("fail") == ["1"],
                probe="probe" in query,
            )
        elif parts.path != "/ready":
            status = 404
        close = version == "HTTP/1.0" or any(
            each.lower().replace(" ", "") == "connection:close" for each in headers
        )
        self._reply(status, body, close=close)

    def _reply(self, status: int, body: bytes, *, close: bool) -> None:
        assert self._transport is not None
        self._transport.write(
            f"HTTP/1.1 {status} {_REASONS[status]}\r\nX-Backend: {self._backend.name}\r\n"
            f"Content-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
            f"Connection: {'close' if close else 'keep-alive'}\r\n\r\n".encode()
            + body
        )
        self._task = None
        if close:
            self._transport.close()
        else:
            self._next()


async def serve(spec: dict[str, Any]) -> None:
    """Until SIGTERM."""
    loop = asyncio.get_running_loop()
    backend, ended = Backend(spec), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    server = await loop.create_server(
        lambda: Connection(backend), sock=socket.socket(fileno=spec["socket"]), backlog=1024
    )
    loop.add_reader(sys.stdin.fileno(), _take_go, loop, backend)
    print("ready", flush=True)
    await ended.wait()
    server.close()
    Path(spec["result"]).write_text(json.dumps(backend.arrivals))


def _take_go(loop: asyncio.AbstractEventLoop, backend: Backend) -> None:
    words = sys.stdin.readline().split()
    if words[:1] == ["go"]:
        backend.start = float(words[1])
    loop.remove_reader(sys.stdin.fileno())


def main() -> None:
    """Serve what the first argument describes."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 16_384), hard))
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(json.loads(sys.argv[1])))


if __name__ == "__main__":
    main()
