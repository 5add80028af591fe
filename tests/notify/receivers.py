"""A receiver on loopback that answers as it is told and remembers what it was sent."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Inbox:
    """Messages, and how to answer the next ones."""

    def __init__(self) -> None:
        self.messages: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[int] = []
        self.url = ""


@contextmanager
def receiver() -> Iterator[Inbox]:
    inbox = Inbox()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = inbox.answers.pop(0) if inbox.answers else 204
            if 200 <= status < 300:
                inbox.messages.append((dict(self.headers), body))
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", f"{inbox.url}/elsewhere")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Quietly."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    inbox.url = f"http://127.0.0.1:{server.server_port}/hook"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield inbox
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
