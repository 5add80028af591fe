"""The open-loop load: `python -m bench.traffic.generator '{...}'`.

Poisson arrivals and lognormal work, all drawn before the start. A request is sent at its intended
time whether or not earlier ones were answered; its latency counts from that time. Every request is
a connection of its own, because that is what the eBPF plane places; the proxies get the same. Runs
pinned and in the real-time class, so that it is never late; it says how late it was.

A client may try again: whoever was refused, failed or waited too long pauses for a moment first.
The outcome is that of its last try, the latency counts from its first.

Writes [intended, worst lag, latency, outcome, backend, tries] per request. `connect` does not block
and its errno is looked at, not guessed: EAGAIN is a refusal of the plane, EINPROGRESS is not.
"""

import contextlib
import errno
import gc
import heapq
import json
import random
import resource
import select
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.cpu.generator import become_punctual
from bench.cpu.workloads import die_with_parent, wait_for_go

OK, ERROR, REFUSED, TIMEOUT, BROKEN = "ok", "error", "refused", "timeout", "broken"
_REFUSALS = {errno.EAGAIN, errno.ECONNREFUSED, errno.EPERM}
_UNDER_WAY = {0, errno.EINPROGRESS}
PAUSES_S = (0.05, 0.15)
# Envoy's own words for requests that it turned away on purpose.
_TURNED_AWAY = ("reached_concurrency_limit", "denied_by_admission_control", "{overflow}")


@dataclass(frozen=True, slots=True)
class Request:
    """When it is due, how much work it is, whether it is to fail wherever it goes."""

    at_s: float
    work_s: float
    fails: bool
    pause_s: float = 0.0
    """Before it is tried again."""


def draw_requests(
    *,
    seed: int | str,
    rates: Sequence[Sequence[float]],
    mean_s: float,
    sigma: float,
    failing_share: float = 0.0,
) -> list[Request]:
    """All requests of a run; `rates` are (until when, per second), in order."""
    chance, pauses, drawn, at_s = random.Random(seed), random.Random(f"pauses/{seed}"), [], 0.0
    for until_s, rate in rates:
        while (next_s := at_s + chance.expovariate(rate)) < until_s:
            at_s = next_s
            # Capped at ten times the mean: one monster would decide the tail of a short run.
            work_s = min(chance.lognormvariate(-(sigma**2) / 2, sigma), 10.0) * mean_s
            fails = chance.random() < failing_share
            drawn.append(Request(at_s, work_s, fails, pauses.uniform(*PAUSES_S)))
        at_s = until_s  # memoryless: the wait begins anew under the next rate
    return drawn


def outcome_of(head: bytes) -> tuple[str, str]:
    """What the head of an answer says, and which backend gave it."""
    lines = head.decode("latin-1").split("\r\n")
    headers = {}
    for line in lines[1:]:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    status = int(lines[0].split()[1])
    backend = headers.get("x-backend", "")
    if "fairlead-refused" in headers:
        return REFUSED, backend
    if status >= 500 and any(word in headers.get("x-details", "") for word in _TURNED_AWAY):
        return REFUSED, backend
    return (OK if status < 400 else ERROR), backend


class _Call:
    """One try of a request, under way."""

    __slots__ = ("deadline_s", "number", "received", "socket", "unsent")

    def __init__(
        self, number: int, connection: socket.socket, request: bytes, deadline_s: float
    ) -> None:
        self.number, self.socket, self.unsent = number, connection, request
        self.deadline_s = deadline_s
        self.received = b""


class Generator:
    """Sends on time, receives whenever."""

    def __init__(
        self, target: tuple[str, int], requests: list[Request], patience_s: float, tries: int = 1
    ) -> None:
        self._target, self._requests = target, requests
        self._patience_s, self._tries = patience_s / tries, tries
        self._start = 0.0
        self._poll = select.epoll()
        self._calls: dict[int, _Call] = {}
        self._waiting: deque[_Call] = deque()
        """In the order of their deadlines, as good as: every try has the same patience."""
        self._again: list[tuple[float, int]] = []
        self.rows: list[list[Any]] = []

    def run(self, start: float) -> None:
        """From the common start until every request is answered or given up."""
        self._start = start
        last_s = self._requests[-1].at_s if self._requests else 0.0
        while len(self.rows) < len(self._requests) or self._calls or self._again:
            now = self._now()
            if now > last_s + self._tries * (self._patience_s + PAUSES_S[1]) + 5.0:
                raise RuntimeError("requests that never end")
            self._send_due(now)
            self._send_again(now)
            self._give_up(now)
            for descriptor, events in self._poll.poll(self._wait_s()):
                self._handle(descriptor, events)

    def _now(self) -> float:
        return time.monotonic() - self._start

    def _wait_s(self) -> float:
        """Until something is due: the next request, or the end of somebody's patience."""
        number, due = len(self.rows), 1.0 + self._now()
        if number < len(self._requests):
            due = self._requests[number].at_s
        if self._waiting:
            due = min(due, self._waiting[0].deadline_s)
        if self._again:
            due = min(due, self._again[0][0])
        return max(0.0, due - self._now())

    def _send_due(self, now: float) -> None:
        while len(self.rows) < len(self._requests):
            number = len(self.rows)
            request = self._requests[number]
            if request.at_s > now:
                return
            self.rows.append([request.at_s, now - request.at_s, None, None, "", 1])
            self._call(number, request, request.at_s)
            now = self._now()

    def _send_again(self, now: float) -> None:
        while self._again and self._again[0][0] <= now:
            due_s, number = heapq.heappop(self._again)
            row = self.rows[number]
            row[1], row[5] = max(row[1], now - due_s), row[5] + 1
            self._call(number, self._requests[number], due_s)

    def _call(self, number: int, request: Request, at_s: float) -> None:
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        path = f"/work?ms={request.work_s * 1000:.3f}&fail={int(request.fails)}"
        wire = f"GET {path} HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n".encode()
        call = _Call(number, connection, wire, at_s + self._patience_s)
        code = connection.connect_ex(self._target)
        if code not in _UNDER_WAY:
            connection.close()
            self._settle(number, REFUSED if code in _REFUSALS else BROKEN)
            return
        self._calls[connection.fileno()] = call
        self._waiting.append(call)
        self._poll.register(connection.fileno(), select.EPOLLOUT)

    def _handle(self, descriptor: int, events: int) -> None:
        call = self._calls[descriptor]
        try:
            if call.unsent:
                sent = call.socket.send(call.unsent)
                call.unsent = call.unsent[sent:]
                if not call.unsent:
                    self._poll.modify(descriptor, select.EPOLLIN)
            elif events:
                self._receive(call)
        except BlockingIOError:
            return
        except OSError:
            self._end(call, BROKEN)

    def _receive(self, call: _Call) -> None:
        data = call.socket.recv(1 << 16)
        call.received += data
        head, found, body = call.received.partition(b"\r\n\r\n")
        if found and (not data or len(body) >= _length(head)):
            self._end(call, *outcome_of(head))
        elif not data:
            self._end(call, BROKEN)

    def _give_up(self, now: float) -> None:
        while self._waiting:
            call = self._waiting[0]
            ended = call.socket.fileno() < 0
            if not ended and now < call.deadline_s:
                return
            self._waiting.popleft()
            if not ended:
                self._end(call, TIMEOUT)

    def _end(self, call: _Call, outcome: str, backend: str = "") -> None:
        descriptor = call.socket.fileno()
        self._poll.unregister(descriptor)
        del self._calls[descriptor]
        call.socket.close()
        self._settle(call.number, outcome, backend)

    def _settle(self, number: int, outcome: str, backend: str = "") -> None:
        row, now = self.rows[number], self._now()
        if outcome != OK and row[5] < self._tries:
            heapq.heappush(self._again, (now + self._requests[number].pause_s, number))
            return
        row[2:5] = [now - row[0], outcome, backend]


def _length(head: bytes) -> int:
    """Of the body; of one without a length, unknown: it ends with the connection."""
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(value)
    return 1 << 30


def main() -> None:
    """Run what the first argument describes."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    spec: dict[str, Any] = json.loads(sys.argv[1])
    requests = draw_requests(
        seed=spec["seed"],
        rates=spec["rates"],
        mean_s=spec["mean_s"],
        sigma=spec["sigma"],
        failing_share=spec["failing_share"],
    )
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 16_384), hard))
    host, port = spec["target"]
    generator = Generator((host, port), requests, spec["patience_s"], spec["tries"])
    gc.disable()  # a collection is a pause; the run is short
    with contextlib.suppress(PermissionError):  # without the right to it: late, and discarded
        become_punctual(spec["cpu"])
    generator.run(wait_for_go())
    Path(spec["result"]).write_text(json.dumps(generator.rows))


if __name__ == "__main__":
    main()
