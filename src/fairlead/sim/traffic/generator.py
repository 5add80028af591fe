"""The open-loop load generator, for scenarios in real time and for `bench.traffic`.

A request is sent at its intended time whether or not earlier ones were answered, and its latency
counts from that time, so that a late generator does not flatter the service. Every attempt is a
connection of its own, because that is what the eBPF dataplane places.
"""

import errno
import heapq
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from fairlead.sim.traffic.result import AnswerKind

_UNDER_WAY = {0, errno.EINPROGRESS}
# What the kernel's program answers a connect with; EPERM where it cannot choose.
_REFUSALS = {
    errno.EAGAIN: AnswerKind.SOFT,
    errno.ECONNREFUSED: AnswerKind.HARD,
    errno.EPERM: AnswerKind.HARD,
}
# Envoy's own words for requests that it rejected on purpose.
_REJECTED = ("reached_concurrency_limit", "denied_by_admission_control", "{overflow}")


class PlannedRequest(NamedTuple):
    """When it is due, and what it asks for."""

    at_s: float
    path: str = "/"


class Attempt(NamedTuple):
    """One attempt of a request, as its client saw it. Times in seconds since the start."""

    number: int  # which request
    retry: int
    due_s: float
    lag_s: float  # how late it was sent: the generator's own fault
    took_s: float  # since it was due
    kind: AnswerKind
    status: int | None  # of the HTTP answer, if there was one
    backend: str
    final: bool  # False: the client tries again


Again = Callable[[int, int, AnswerKind, float], float | None]
"""From the request's number, its retries so far, the outcome and the time to the pause before the
next attempt, in seconds; None: there is none."""


def arrivals(gap_s: Callable[[float], float], rates: Sequence[Sequence[float]]) -> Iterator[float]:
    """Times of a Poisson process; `rates` are (until when, per second), in order."""
    at_s = 0.0
    for until_s, per_s in rates:
        while per_s > 0 and (next_s := at_s + gap_s(per_s)) < until_s:
            at_s = next_s
            yield at_s
        at_s = until_s  # memoryless: the wait begins anew under the next rate


def read_head(head: bytes) -> tuple[AnswerKind, int, str]:
    """Outcome, status and backend of an answer. Only an explicit rejection counts as refused."""
    first, headers = _headers(head)
    status, backend = int(first.split()[1]), headers.get("x-backend", "")
    if refused := headers.get("fairlead-refused"):
        kind = AnswerKind.SOFT if refused.lower() == "soft" else AnswerKind.HARD
    elif status >= 500 and any(word in headers.get("x-details", "") for word in _REJECTED):
        kind = AnswerKind.HARD
    elif status < 400:
        kind = AnswerKind.OK
    else:  # a proxy that has no backend says 503 by itself
        unreachable = status == 503 and not backend
        kind = AnswerKind.UNREACHABLE if unreachable else AnswerKind.ERROR
    return kind, status, backend


def _headers(head: bytes) -> tuple[str, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return first, {name.strip().lower(): value.strip() for name, _, value in pairs}


class _Call:
    """One attempt, under way."""

    __slots__ = ("due_s", "lag_s", "number", "received", "retry", "socket", "unsent")

    def __init__(self, number: int, retry: int, due_s: float, lag_s: float) -> None:
        self.number, self.retry, self.due_s, self.lag_s = number, retry, due_s, lag_s
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.unsent, self.received = b"", b""


class LoadGenerator:
    """Sends on time, receives when answers come. `again` decides about retries."""

    def __init__(
        self,
        target: tuple[str, int],
        requests: Sequence[PlannedRequest],
        *,
        timeout_s: float,
        again: Again = lambda *_: None,
    ) -> None:
        self._target, self._requests, self._timeout_s = target, requests, timeout_s
        self._client_retries = again
        self._start_s, self._sent, self._stopped = 0.0, 0, False
        self._poll = select.epoll()
        self._calls: dict[int, _Call] = {}
        self._waiting: deque[_Call] = deque()
        """In the order of their deadlines, as good as: every attempt has the same timeout."""
        self._again: list[tuple[float, int, int]] = []
        self.attempts: list[Attempt] = []

    def stop(self) -> None:
        """Send no more and forget what is under way; may be called from another thread."""
        self._stopped = True

    def run(self, start_s: float) -> None:
        """From the start, on the monotonic clock, until every request is answered or timed out."""
        self._start_s = start_s
        while not self._stopped and (
            self._sent < len(self._requests) or self._calls or self._again
        ):
            now_s = self._now_s()
            self._send_due(now_s)
            self._time_out(now_s)
            for descriptor, _ in self._poll.poll(self._wait_s()):
                self._handle(self._calls[descriptor])
        for call in self._calls.values():
            call.socket.close()
        self._poll.close()

    def _now_s(self) -> float:
        return time.monotonic() - self._start_s

    def _wait_s(self) -> float:
        """Until something is due: the next request, the next retry, or a timeout."""
        dues_s = [1.0 + self._now_s()]
        if self._sent < len(self._requests):
            dues_s.append(self._requests[self._sent].at_s)
        if self._waiting:
            dues_s.append(self._waiting[0].due_s + self._timeout_s)
        if self._again:
            dues_s.append(self._again[0][0])
        return max(0.0, min(dues_s) - self._now_s())

    def _send_due(self, now_s: float) -> None:
        while self._sent < len(self._requests) and self._requests[self._sent].at_s <= now_s:
            self._sent += 1
            self._call(self._sent - 1, 0, self._requests[self._sent - 1].at_s)
            now_s = self._now_s()
        while self._again and self._again[0][0] <= now_s:
            due_s, number, retry = heapq.heappop(self._again)
            self._call(number, retry, due_s)

    def _call(self, number: int, retry: int, due_s: float) -> None:
        call = _Call(number, retry, due_s, self._now_s() - due_s)
        code = call.socket.connect_ex(self._target)
        if code not in _UNDER_WAY:
            self._end(call, _REFUSALS.get(code, AnswerKind.UNREACHABLE))
            return
        repeated = "X-Retry: 1\r\n" if retry else ""
        path = self._requests[number].path
        wire = f"GET {path} HTTP/1.1\r\nHost: web\r\n{repeated}Connection: close\r\n\r\n"
        call.unsent = wire.encode()
        self._calls[call.socket.fileno()] = call
        self._waiting.append(call)
        self._poll.register(call.socket.fileno(), select.EPOLLOUT)

    def _handle(self, call: _Call) -> None:
        try:
            if call.unsent:
                call.unsent = call.unsent[call.socket.send(call.unsent) :]
                if not call.unsent:
                    self._poll.modify(call.socket.fileno(), select.EPOLLIN)
            else:
                self._receive(call)
        except BlockingIOError:
            return
        except (OSError, ValueError, IndexError):  # broken off, or no HTTP
            self._end(call, AnswerKind.UNREACHABLE)

    def _receive(self, call: _Call) -> None:
        data = call.socket.recv(1 << 16)
        call.received += data
        head, found, body = call.received.partition(b"\r\n\r\n")
        if found and (not data or len(body) >= _length(head)):
            self._end(call, *read_head(head))
        elif not data:
            self._end(call, AnswerKind.UNREACHABLE)

    def _time_out(self, now_s: float) -> None:
        while self._waiting:
            call = self._waiting[0]
            ended = call.socket.fileno() < 0
            if not ended and now_s < call.due_s + self._timeout_s:
                return
            self._waiting.popleft()
            if not ended:
                self._end(call, AnswerKind.TIMEOUT)

    def _end(
        self, call: _Call, kind: AnswerKind, status: int | None = None, backend: str = ""
    ) -> None:
        descriptor, now_s = call.socket.fileno(), self._now_s()
        if self._calls.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)
        call.socket.close()
        pause_s = self._client_retries(call.number, call.retry, kind, now_s)
        took_s, final = now_s - call.due_s, pause_s is None
        attempt = (call.number, call.retry, call.due_s, call.lag_s, took_s, kind, status, backend)
        self.attempts.append(Attempt(*attempt, final))
        if pause_s is not None:
            heapq.heappush(self._again, (now_s + pause_s, call.number, call.retry + 1))


def _length(head: bytes) -> int:
    """Of the body; one without a length ends with the connection."""
    return int(_headers(head)[1].get("content-length", 1 << 30))
