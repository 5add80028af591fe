"""One reply within its time and size, or `NoReply`; over TCP and over Unix sockets."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlead.host import http, http_async

Serve = Callable[[socket.socket], None]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Ours: yes\r\n\r\nok"


@contextlib.contextmanager
def serving(listener: socket.socket, serve: Serve) -> Iterator[None]:
    """A server for one connection; the request's head is read before `serve` is called."""

    def run() -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            while not connection.recv(65_536).rpartition(b"\r\n\r\n")[1]:
                pass
            serve(connection)

    thread = threading.Thread(target=run, daemon=True)
    with listener:
        thread.start()
        yield
    thread.join(10)


@contextlib.contextmanager
def tcp(serve: Serve) -> Iterator[http.HttpEndpoint]:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    with serving(listener, serve):
        yield http.HttpEndpoint("127.0.0.1", port)


def exchange(
    endpoint: http.HttpEndpoint,
    method: str,
    target: str,
    *,
    body: bytes | None = None,
    timeout_s: float,
    bytes_max: int = http.BODY_BYTES_MAX,
) -> http.HttpStream:
    """One request and its whole reply."""
    with http.stream(endpoint, method, target, body=body, timeout_s=timeout_s) as reply:
        reply.read(bytes_max)
        return reply


def trickle(connection: socket.socket) -> None:
    """Without end: the client leaves, or its test hangs."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while True:
        connection.sendall(b"x")
        time.sleep(0.05)


def test_a_whole_reply() -> None:
    with tcp(lambda connection: connection.sendall(OK)) as endpoint:
        reply = exchange(endpoint, "POST", "/x", body=b"{}", timeout_s=10)
    assert (reply.status, reply.headers["x-ours"], reply.body) == (200, "yes", b"ok")


def test_the_first_address_that_answers_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A family that this kernel does not have, a port where nothing listens, then the server."""
    with tcp(lambda connection: connection.sendall(OK)) as endpoint:
        rows = [(9_999, ("::1", 1)), (socket.AF_INET, ("127.0.0.1", 1))]
        rows.append((socket.AF_INET, ("127.0.0.1", endpoint.port)))
        found = [(family, socket.SOCK_STREAM, 6, "", address) for family, address in rows]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        assert exchange(endpoint, "GET", "/", timeout_s=10).body == b"ok"


def test_over_a_unix_socket(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(tmp_path / "s"))
    listener.listen(1)
    with serving(listener, lambda connection: connection.sendall(OK)):
        endpoint = http.parse(f"unix:{tmp_path / 's'}")
        assert exchange(endpoint, "GET", "/", timeout_s=10).body == b"ok"


def test_a_body_that_ends_with_the_connection() -> None:
    with tcp(lambda c: c.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nall")) as endpoint:
        assert exchange(endpoint, "GET", "/", timeout_s=10).body == b"all"


def test_the_deadline_is_for_all_of_it() -> None:
    """A server that sends a byte now and then does not hold us up."""
    with tcp(trickle) as endpoint, pytest.raises(http.NoReply, match="timed out") as caught:
        exchange(endpoint, "GET", "/", timeout_s=0.3)
    assert caught.value.timed_out


def test_a_stream_outlives_the_deadline_of_its_head() -> None:
    def slow(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n")
        time.sleep(0.5)
        connection.sendall(b"2\r\ncd\r\n0\r\n\r\n")

    with tcp(slow) as endpoint, http.stream(endpoint, "GET", "/", timeout_s=0.3) as reply:
        assert b"".join(reply.chunks()) == b"abcd"


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this", "IncompleteRead"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n" + b"x" * 2000, "more than 1000 bytes"),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + b"x" * 2000, "more than 1000 bytes"),
        (b"hello\r\n", "hello"),
        (b"", "closed connection"),
    ],
)
def test_what_is_no_reply(sent: bytes, reason: str) -> None:
    """Cut off, too long, not HTTP."""
    with tcp(lambda c: c.sendall(sent)) as endpoint, pytest.raises(http.NoReply, match=reason):
        exchange(endpoint, "GET", "/", timeout_s=10, bytes_max=1_000)


def test_nothing_listens(tmp_path: Path) -> None:
    with pytest.raises(http.NoReply, match="No such file"):
        exchange(http.HttpEndpoint(unix=str(tmp_path / "s")), "GET", "/", timeout_s=10)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(http.NoReply, match="refused"):
        exchange(http.HttpEndpoint("127.0.0.1", port), "GET", "/", timeout_s=10)


def test_every_address_is_checked_before_any_is_used() -> None:
    """What the check raises is not hidden: it is the caller's."""

    def check(address: str) -> None:
        raise LookupError(address)

    endpoint = http.HttpEndpoint("127.0.0.1", 9, check=check)
    with pytest.raises(LookupError, match=r"127\.0\.0\.1"):
        exchange(endpoint, "GET", "/", timeout_s=10)


def test_addresses() -> None:
    assert http.parse("http://[::1]:8470") == http.HttpEndpoint("::1", 8470)
    assert http.parse("/run/x.sock") == http.parse("unix:/run/x.sock")
    secure = http.parse("https://example.org")
    assert (secure.host, secure.port, secure.tls is not None) == ("example.org", 443, True)
    wrong = {"http://": "no host", "http://host:port": "Port", "htp://host": "no http or https"}
    for bad, problem in wrong.items():
        with pytest.raises(ValueError, match=problem):
            http.parse(bad)


def test_the_asynchronous_get_keeps_the_same_promises() -> None:
    def get(serve: Serve, timeout_ms: int = 10_000) -> tuple[int, bytes]:
        with tcp(serve) as endpoint:
            asked = http_async.get(endpoint.host, endpoint.port, "/", timeout_ms=timeout_ms)
            return asyncio.run(asked)

    assert get(lambda connection: connection.sendall(OK)) == (200, b"ok")
    for serve, reason in (
        (trickle, "in time"),
        (lambda c: c.sendall(b"hello\r\n"), "not HTTP"),
        (lambda c: c.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\nx"), "bytes"),
        (lambda c: c.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 99999999\r\n\r\n"), "99999999"),
    ):
        with pytest.raises(http.NoReply, match=reason):
            get(serve, 300)
