"""One blocking HTTP/1.1 client: TCP, TLS and Unix sockets, a total deadline, a bound on the body.

    with stream(parse("http://127.0.0.1:8470"), "GET", "/v1/logs", timeout_s=90) as reply:
        reply.read()                               # all of it within the 90 s, or:
        for chunk in reply.chunks(): ...           # silence is allowed from here on

Redirects are not followed; proxies of the environment are not used. docs/decisions/0015 tells why
this is the standard library's client and not httpx.
"""

import contextlib
import http.client
import io
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from email.message import Message
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

if TYPE_CHECKING:
    import ssl

BODY_BYTES_MAX = 64 * 2**20
_CHUNK = 65_536


class NoReply(OSError):
    """No reply: unreachable, too slow, too long, or not HTTP. The cause is chained."""

    @property
    def permission(self) -> bool:
        return isinstance(self.__cause__, PermissionError)

    @property
    def timed_out(self) -> bool:
        return isinstance(self.__cause__, TimeoutError)


@dataclass(frozen=True, slots=True)
class HttpEndpoint:
    """Where a server listens: a Unix socket, or a host and port, with TLS where there is one."""

    host: str = "localhost"
    port: int = 80
    unix: str | None = None
    tls: "ssl.SSLContext | None" = None
    check: Callable[[str], None] = lambda _: None
    """Called with every address the name resolves to before any is connected to; may raise."""

    def connect(self, deadline: float) -> socket.socket:
        """A connected socket, through its TLS handshake."""
        addresses: list[tuple[int, Any]] = [(socket.AF_UNIX, self.unix)]
        if self.unix is None:
            # Addresses and not the name, which might resolve to others once these are checked.
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
            addresses = [(family, address) for family, *_, address in found]
            for _, address in addresses:
                self.check(str(address[0]))
        connected = _first(addresses, deadline)
        if self.tls is None:
            return connected
        try:
            connected.settimeout(_left_s(deadline))
            return self.tls.wrap_socket(connected, server_hostname=self.host)
        except BaseException:
            connected.close()
            raise


def parse(where: str, *, tls: "ssl.SSLContext | None" = None) -> HttpEndpoint:
    """The endpoint of a URL, or of a socket's path (`unix:PATH`, `PATH`); raises ValueError."""
    if not where.startswith(("http://", "https://")):
        if "://" in where:
            raise ValueError("is no http or https address")
        return HttpEndpoint(unix=where.removeprefix("unix:"))
    parts = urlsplit(where)
    if not parts.hostname:
        raise ValueError("names no host")
    if parts.scheme == "http":
        return HttpEndpoint(parts.hostname, parts.port or 80)
    if tls is None:
        import ssl  # noqa: PLC0415 - 15 ms that a client of a socket does not pay

        tls = ssl.create_default_context()
    return HttpEndpoint(parts.hostname, parts.port or 443, tls=tls)


def target_of(parts: SplitResult) -> str:
    """The path and query of a URL, as a request names them."""
    path = parts.path or "/"
    return f"{path}?{parts.query}" if parts.query else path


class HttpStream:
    """A reply whose body is still to come: whole (`read`, then `body`), or in `chunks`."""

    def __init__(self, response: http.client.HTTPResponse, timed: "_Timed") -> None:
        self._response, self._timed = response, timed
        self.status: int = response.status
        self.headers: Message = response.headers
        self.body = b""

    def read(self, bytes_max: int = BODY_BYTES_MAX) -> bytes:
        """The whole body, within the deadline."""
        with _as_no_reply():
            self.body = self._response.read(bytes_max + 1)
            if len(self.body) > bytes_max:
                raise http.client.HTTPException(f"more than {bytes_max} bytes")
            # `read` with a size does not complain about a body that was cut off.
            if self._response.length:
                raise http.client.IncompleteRead(self.body, self._response.length)
            return self.body

    def chunks(self) -> Iterator[bytes]:
        """The body as it comes, without a deadline: a stream may be silent for hours."""
        self._timed.deadline = None
        while True:
            with _as_no_reply():
                data = self._response.read1(_CHUNK)
            if not data:
                return
            yield data


@contextlib.contextmanager
def stream(
    endpoint: HttpEndpoint,
    method: str,
    target: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    timeout_s: float,
) -> Iterator[HttpStream]:
    """One request, and its reply up to the body; raises `NoReply`."""
    deadline = time.monotonic() + timeout_s
    with _as_no_reply():
        connected = endpoint.connect(deadline)
    with contextlib.closing(connected):
        timed = _Timed(connected, deadline)
        connection = http.client.HTTPConnection(endpoint.host, endpoint.port)
        connection.sock = timed  # all that it calls of a socket is there
        with _as_no_reply():
            connection.request(method, target, body, dict(headers or {}))
            response = connection.getresponse()
        yield HttpStream(response, timed)


def exchange(endpoint: HttpEndpoint, method: str, target: str, *, timeout_s: float) -> HttpStream:
    """The same with the whole body (`body`), all within `timeout_s`."""
    with stream(endpoint, method, target, timeout_s=timeout_s) as reply:
        reply.read()
        return reply


class _Timed(io.RawIOBase):
    """A socket as http.client uses it, whose every wait ends at one deadline.

    A socket's own timeout is for each read: a server that replies byte by byte would hold us up
    for ever.
    """

    def __init__(self, connected: socket.socket, deadline: float | None) -> None:
        self._socket, self.deadline = connected, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._arm()
        return self._socket.recv_into(buffer)

    def sendall(self, data: bytes) -> None:
        for start in range(0, len(data), _CHUNK):
            self._arm()
            self._socket.sendall(data[start : start + _CHUNK])

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def close(self) -> None:
        """Nothing: http.client closes before the body is read; `stream` closes the socket."""

    def _arm(self) -> None:
        self._socket.settimeout(None if self.deadline is None else _left_s(self.deadline))


def _left_s(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def _first(addresses: list[tuple[int, Any]], deadline: float) -> socket.socket:
    """Connected to the first of the addresses that answers."""
    problem = OSError("the name has no address")
    for family, address in addresses:
        try:
            with contextlib.ExitStack() as undo:
                connected = undo.enter_context(socket.socket(family, socket.SOCK_STREAM))
                if family == socket.AF_UNIX:
                    _wait_in_line(connected, _left_s(deadline))
                else:
                    connected.settimeout(_left_s(deadline))
                connected.connect(address)
                undo.pop_all()
                return connected
        except OSError as error:
            problem = error
    raise problem


def _wait_in_line(connecting: socket.socket, timeout_s: float) -> None:
    """A non-blocking socket is refused at once where many wait already; the kernel lets a blocking
    one wait its turn."""
    seconds, part = divmod(timeout_s, 1)
    limit = struct.pack("ll", int(seconds), int(part * 1e6) or 1)
    connecting.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


@contextlib.contextmanager
def _as_no_reply() -> Iterator[None]:
    try:
        yield
    except NoReply:
        raise
    except (OSError, http.client.HTTPException, ValueError) as error:
        # ValueError: a name that cannot be looked up, a header that is none.
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise NoReply(reason) from error
