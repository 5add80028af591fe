"""Clients: one connection, one request, and what became of it in one word.

The word is the id of the backend that answered, `soft` or `hard` for a refusal that says whose it
is, or `failed: …` for anything that nobody answered for.
"""

import contextlib
import errno
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

SOFT, HARD, FAILED = "soft", "hard", "failed"
_TIMEOUT_S = 30.0
_REQUEST = "{} / HTTP/1.1\r\nHost: here\r\n"
# A refusal by a proxy, and by the kernel at connect().
_STATUS = {("429", b"soft"): SOFT, ("503", b"hard"): HARD}
_ERRNO = {errno.EAGAIN: SOFT, errno.ECONNREFUSED: HARD}


def request(
    host: str, port: int, *, source: tuple[str, int] | None = None, method: str = "GET"
) -> str:
    """Send one request over a connection of its own."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as connection:
        connection.settimeout(_TIMEOUT_S)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if source is not None:
            connection.bind(source)
            # Close with a reset: the port is to be used again at once.
            linger = struct.pack("ii", 1, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        try:
            # `settimeout` makes connect() non-blocking inside, where EAGAIN would be a refusal too;
            # errno from the call itself is what the kernel program set.
            connection.connect((host, port))
        except OSError as error:
            return _ERRNO.get(error.errno or 0, f"{FAILED}: {error}")
        try:
            return word(exchange(connection, method=method))
        except OSError as error:
            return f"{FAILED}: {error}"


def exchange(
    connection: socket.socket, *, keep: bool = False, header: str = "", method: str = "GET"
) -> bytes:
    """Send a request and read its answer: as far as it says, for some close only when we do."""
    ending = b"\r\n" if keep else b"Connection: close\r\n\r\n"
    more = f"{header}\r\n".encode() if header else b""
    connection.sendall(_REQUEST.format(method).encode() + more + ending)
    answer = b""
    while not _whole(answer) and (part := connection.recv(1 << 16)):
        answer += part
    return answer


def _whole(answer: bytes) -> bool:
    head, end, body = answer.partition(b"\r\n\r\n")
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return bool(end) and len(body) >= int(value)
    return False


def word(answer: bytes) -> str:
    """What an answer amounts to."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.split(b" ", 2)[1:2]
    if status == [b"200"]:
        return body.decode()
    refused = b""
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"fairlead-refused":
            refused = value.strip()
    return _STATUS.get((b"".join(status).decode(), refused), f"{FAILED}: {head[:60]!r}")


@dataclass(frozen=True)
class Sent:
    """A request, when it began and ended, and its word."""

    began: float
    ended: float
    word: str


class Load(Protocol):
    """Requests that go on while a test does other things."""

    def wait(self, more: int) -> None:
        """Until so many more have ended."""
        ...

    @property
    def sent(self) -> list[Sent]:
        """What has ended so far."""
        ...


@dataclass
class ThreadLoad:
    """Clients in threads, each sending one request after the other."""

    send: Callable[[], str]
    pause_s: float = 0.0
    _sent: list[Sent] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    @property
    def sent(self) -> list[Sent]:
        return list(self._sent)

    def wait(self, more: int) -> None:
        target = len(self._sent) + more
        deadline = time.monotonic() + 60
        while len(self._sent) < target:
            assert time.monotonic() < deadline, "the load stands still"
            time.sleep(0.002)

    def _run(self) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            word = self.send()
            self._sent.append(Sent(began, time.monotonic(), word))
            self._over.wait(self.pause_s)

    @contextlib.contextmanager
    def running(self, clients: int) -> Iterator["ThreadLoad"]:
        threads = [threading.Thread(target=self._run) for _ in range(clients)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._over.set()
            for thread in threads:
                thread.join()
