"""A receiver on loopback that answers as it is told and remembers what it was sent."""

import hmac
import http.server
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fairlead.notify.webhook import ID, SIGNATURE, TIMESTAMP, code


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


class ReplayGuard:
    """A receiver's side: whether a message is one of ours, is new, and is of now."""

    def __init__(self, secret: bytes, window_s: int = 300) -> None:
        self._secret, self._window_s = secret, window_s
        self._seen: dict[str, float] = {}

    def problem(self, headers: Mapping[str, str], body: bytes, now_s: float) -> str | None:
        """What is wrong with a message; None: take it. A second time the same is wrong too."""
        given = {name.lower(): value for name, value in headers.items()}
        notice_id, stamp = given.get(ID.lower(), ""), given.get(TIMESTAMP.lower(), "")
        expected = f"v1={code(self._secret, notice_id, stamp, body)}"
        if not hmac.compare_digest(given.get(SIGNATURE.lower(), "").encode(), expected.encode()):
            return "the signature does not hold"
        if not (stamp.isascii() and stamp.isdigit()) or abs(now_s - int(stamp)) > self._window_s:
            return "it is not of now"
        self._seen = {name: until for name, until in self._seen.items() if until > now_s}
        if notice_id in self._seen:
            return "it was received before"
        # Its timestamp may lie a window ahead of our clock, and holds for a window after that.
        self._seen[notice_id] = now_s + 2 * self._window_s
        return None
