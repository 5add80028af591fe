"""A web server of our own whose every answer a test decides."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOST = "127.0.0.1"


class Page:
    """What the server answers with, from now on."""

    def __init__(self, body: str = "", status: int = 200, delay_s: float = 0.0) -> None:
        self.body, self.status, self.delay_s = body, status, delay_s
        self.asked: list[str] = []
        self.raw: bytes | None = None
        """Sent instead of everything, as it is."""
        self.port = 0


@contextmanager
def serving(page: Page) -> Iterator[Page]:
    """A server for a page; its port is in the page."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page.asked.append(self.path)
            if page.delay_s:
                time.sleep(page.delay_s)
            if page.raw is not None:
                self.wfile.write(page.raw)
                return
            data = page.body.encode()
            self.send_response(page.status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Silence."""

    server = ThreadingHTTPServer((HOST, 0), Handler)
    page.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield page
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def until(holds: Callable[[], object], what: str, seconds: float = 60) -> None:
    """Wait for a condition on the world, not for a time."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"never {what}"
        time.sleep(0.01)  # polling interval, not synchronisation
