"""A proxy before an API server that fails as networks and servers do, by the numbers of a seed.

It cuts connections before and after a request was done, answers 409, 429, 500 and 503 in place of
the server, delays; of watches it cuts streams, ends them with 410, repeats and swaps events.
"""

import contextlib
import http.client
import random
import socketserver
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import BinaryIO, NamedTuple

from fairlead.kube.client import Connection

STATUS = '{"kind":"Status","status":"Failure","code":%d,"reason":"%s","message":"made up"}'
REASONS = {409: "Conflict", 410: "Expired", 429: "TooManyRequests", 500: "InternalError"}


class Faults:
    """What fails, and how often; thread-safe."""

    def __init__(self, seed: int, rate: float) -> None:
        self._random, self._lock = random.Random(seed), threading.Lock()
        self.rate = rate
        self.count = 0

    def happens(self, rate: float | None = None) -> bool:
        with self._lock:
            hit = self._random.random() < (self.rate if rate is None else rate)
            self.count += hit
            return hit

    def choose(self, *options: str) -> str:
        with self._lock:
            return self._random.choice(options)


class Write(NamedTuple):
    """A request that changes something, as it came."""

    time_s: float
    method: str
    path: str
    body: bytes


class _Swapper:
    """Writes lines; one that is held comes after the next one, or a while later."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._held, self._lock = file, b"", threading.Lock()

    def hold(self, line: bytes) -> None:
        with self._lock:
            self._held += line
        threading.Timer(0.3, self.write, (b"",)).start()

    def write(self, line: bytes) -> None:
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._file.write(line + self._held)
            self._held = b""
            self._file.flush()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "_Server"

    def do(self) -> None:
        began = time.monotonic()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        faults, watch = self.server.faults, "watch=1" in self.path
        if self.command != "GET":
            self.server.writes.append(Write(began, self.command, self.path, body))
        fault = faults.choose(*self._possible(watch)) if faults.happens() else ""
        if fault == "cut":
            self._cut()
            return
        if fault == "slow":
            time.sleep(0.2)
        if fault.isdigit():
            self._answer(int(fault), (STATUS % (int(fault), REASONS.get(int(fault), ""))).encode())
            return
        made = self.server.connect()
        with contextlib.closing(made):
            headers = {
                name: value
                for name, value in self.headers.items()
                if name not in ("Host", "Connection")
            }
            made.request(self.command, self.path, body or None, headers)
            reply = made.getresponse()
            if watch and reply.status == 200:
                self._stream(reply)
                return
            data = reply.read()
        if fault == "cut after":  # it is done, and nobody knows
            self._cut()
            return
        if fault == "500 after":
            self._answer(500, (STATUS % (500, "InternalError")).encode())
            return
        self._answer(reply.status, data)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do  # noqa: N815 - the base class's names

    def _possible(self, watch: bool) -> tuple[str, ...]:
        if watch:
            return ("cut", "slow", "410", "500")
        wrong = ("409",) if self.command != "GET" else ()
        return ("cut", "slow", "429", "500", "503", "cut after", "500 after", *wrong)

    def _answer(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, reply: http.client.HTTPResponse) -> None:
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        faults, out = self.server.faults, _Swapper(self.wfile)
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            while line := reply.readline():
                kind = faults.choose("cut", "twice", "swap", "410") if faults.happens() else ""
                if kind == "cut":
                    break
                if kind == "410":
                    text = STATUS % (410, "Expired")
                    out.write(b'{"type":"ERROR","object":%s}\n' % text.encode())
                    break
                if kind == "swap":
                    out.hold(line)
                else:
                    out.write(line + line if kind == "twice" else line)

    def _cut(self) -> None:
        self.close_connection = True
        self.connection.close()

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, to: Connection, faults: Faults) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._to, self.faults = to, faults
        self.writes: list[Write] = []

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPSConnection(
            self._to.host, self._to.port, timeout=60, context=self._to.tls
        )

    def handle_error(self, request: object, client_address: object) -> None:
        """A client went away, as clients do."""


@contextlib.contextmanager
def faulty(to: Connection, faults: Faults) -> Iterator[tuple[Connection, list[Write]]]:
    """The same server, through the proxy; and what was written through it."""
    with _Server(to, faults) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        port = server.server_address[1]
        yield Connection("127.0.0.1", port, None, to.token, to.namespace), server.writes
        server.shutdown()
