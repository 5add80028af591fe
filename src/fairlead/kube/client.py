"""The client of a Kubernetes API server: requests over kept connections, watches, a rate limit.

    client = KubeClient(connection(kubeconfig))
    pods = client.list("/api/v1/pods")
    client.patch("/api/v1/namespaces/a/pods/train-0", {"metadata": {"labels": {"x": "1"}}})
    for event in client.watch("/api/v1/pods", version): ...

Documents are plain dictionaries: the API server has checked them, and what we read of them is
typed where it enters the engine. docs/decisions/0042 tells why this is no third-party client.
"""

import contextlib
import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, TypeVar
from urllib.parse import urlencode

import msgspec

from fairlead.kube.kubeconfig import Connection, connection
from fairlead.kube.writers import Rank, RankedWriters
from fairlead.ports.faults import Fault, TemporaryFault

__all__ = ["ApiError", "Connection", "KubeClient", "RateLimit", "connection"]
Document = dict[str, Any]
PatchType = Literal["merge", "strategic-merge", "json"]

TIMEOUT_S = 30.0
WATCH_S = 290
"""How long one watch lasts: the server ends it, and the next continues where it was."""
SILENCE_S = 60.0
"""Bookmarks come about every minute; a watch that says nothing for two is cut off."""
RETRIES = 4
WAIT_MAX_S = 10
"""Whatever a server asks for: the next turn asks again."""
WRITERS = 8
"""Requests that are under way at once."""
ROOM = 512
"""Writes that wait for them."""
T = TypeVar("T", bound=Any)
MISREAD = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""What an object raises that is not as we expect, numbers and depths included."""
DEPTH_MAX = 200


class ApiError(Fault):
    """The API server refused a request."""

    def __init__(self, status: int, reason: str, message: str, retry_after_s: int = 0) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message
        self.retry_after_s = retry_after_s
        self.causes: tuple[tuple[str, str], ...] = ()
        """Of an invalid object: each field with what is wrong with it."""

    @property
    def passes(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status in (408, 429) or self.status >= 500


def gone(error: ApiError) -> bool:
    return error.status == 404


class RateLimit:
    """So many requests a second, and so many at once after a quiet while.

    `within` another limit it is a share: what it lets through counts there as well, and the rest is
    left to others, however much is asked for here.
    """

    def __init__(self, per_s: float, burst: int, within: "RateLimit | None" = None) -> None:
        self._per_s, self._burst, self._within = per_s, burst, within
        self._lock = threading.Lock()
        self._tokens, self._at = float(burst), time.monotonic()

    def room(self, span_s: float) -> int:
        """How many it lets through in such a while, as far as that is worth preparing."""
        return max(WRITERS, min(ROOM, int(span_s * self._per_s)))

    def wait(self) -> None:
        with self._lock:
            now = time.monotonic()
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._per_s) - 1
            self._at = now
            wait_s = -self._tokens / self._per_s
        if wait_s > 0:
            time.sleep(wait_s)  # the limit itself: its caller has a thread for that
        if self._within is not None:
            self._within.wait()

    def share(self, part: float) -> "RateLimit":
        """A part of it for one purpose."""
        return RateLimit(self._per_s * part, max(1, int(self._burst * part)), within=self)


class KubeClient:
    """Requests of any thread, each over a connection of its thread.

    A request that the server asks to repeat (429), or that failed before it could be read, is
    repeated a few times where repeating it changes nothing; what is left is an `ApiError`, or a
    `TemporaryFault` where there was no answer.
    """

    def __init__(
        self,
        to: Connection,
        limit: RateLimit | None = None,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        """`may_write` is asked before every request that changes something, when all that is left
        to do is to send it: a leader that was replaced, and does not know it yet, is refused here
        by its own clock."""
        self._to, self._limit, self._may_write = to, limit, may_write
        self._closed = False
        self._kept = threading.local()
        self._pool = ThreadPoolExecutor(WRITERS, thread_name_prefix="kube")
        self._showing = RankedWriters(WRITERS, "kube-show")
        self.namespace = to.namespace
        self._apart: list[KubeClient] = []
        self._sent = 0
        self._waiting, self._begun = 0, threading.Condition()
        """What `later` was given and no thread has begun."""

    def close(self) -> None:
        """What is not begun is dropped; what is under way is waited for, so that nothing is
        written after it returns."""
        self._closed = True
        for client in self._apart:
            client.close()
        self._pool.shutdown(cancel_futures=True)
        self._showing.close()

    @property
    def requests(self) -> int:
        """How many were sent: what a controller costs its API server."""
        return self._sent + sum(client.requests for client in self._apart)

    def apart(self, part: float) -> "KubeClient":
        """Another client to the same server, with threads of its own and a part of the rate; it is
        closed with this one."""
        limit = None if self._limit is None else self._limit.share(part)
        made = KubeClient(self._to, limit, self._may_write)
        self._apart.append(made)
        return made

    def room(self, span_s: float) -> int:
        """How many writes are worth handing over for such a while: what waits longer is outdated
        by then."""
        return ROOM if self._limit is None else self._limit.room(span_s)

    def submit(self, write: Callable[[], bool], rank: Rank = (0,)) -> Future[bool]:
        """Beside the caller, by rank, and beside what `later` was given: what only shows something
        must not keep pods waiting. Cancelled when this is closed: the next leader does it."""
        return self._showing.submit(write, rank)

    def later(self, write: Callable[..., object], *given: object) -> None:
        """Beside the caller; faults are the callee's to handle."""

        def begin() -> None:
            with self._begun:
                self._waiting -= 1
                self._begun.notify_all()
            write(*given)

        with contextlib.suppress(RuntimeError):  # closed: the next leader does it
            self._pool.submit(begin)
            with self._begun:
                self._waiting += 1

    def catch_up(self, within_s: float) -> None:
        """Wait until all that `later` was given is begun, at most for so long."""
        with self._begun:
            self._begun.wait_for(lambda: self._waiting <= 0 or self._closed, within_s)

    def each(self, wanted: set[T], write: Callable[[T], bool]) -> None:
        """Write several at once; what is done is wanted no more. Raises a fault at the end, also
        for one of them that we misread."""
        tried = [(each, self._pool.submit(write, each)) for each in sorted(wanted)]
        faults: list[Fault] = []
        for each, future in tried:
            try:
                if future.result():
                    wanted.discard(each)
            except Fault as fault:
                faults.append(fault)
            except MISREAD as error:  # one of them must not keep the others waiting
                faults.append(TemporaryFault(f"{each}: {error!r}"))
        if faults:
            raise faults[0]

    def get(self, path: str) -> Document | None:
        """One object; None when there is none."""
        try:
            return self.request("GET", path)
        except ApiError as error:
            if gone(error):
                return None
            raise

    def list(self, path: str, **query: str) -> tuple[list[Document], str]:
        """All objects of a path, page by page, and the version to watch from."""
        items: list[Document] = []
        query["limit"] = "500"
        while True:
            page = self.request("GET", f"{path}?{urlencode(query)}")
            items += page.get("items") or ()
            meta = page["metadata"]
            if not meta.get("continue"):
                return items, meta["resourceVersion"]
            query["continue"] = meta["continue"]

    def create(self, path: str, document: Document) -> Document:
        return self.request("POST", path, document)

    def replace(self, path: str, document: Document) -> Document:
        return self.request("PUT", path, document)

    def patch(self, path: str, patch: Any, kind: PatchType = "merge") -> Document:
        return self.request("PATCH", path, patch, f"application/{kind}-patch+json")

    def apply(self, path: str, document: Document, *, manager: str) -> Document:
        """Server-side apply: the fields of this document are the manager's, what it applied before
        and leaves out now goes."""
        query = urlencode({"fieldManager": manager, "force": "true"})
        return self.request("PATCH", f"{path}?{query}", document, "application/apply-patch+yaml")

    def delete(self, path: str, options: Document | None = None) -> bool:
        """Whether there was something to delete."""
        try:
            self.request("DELETE", path, options)
        except ApiError as error:
            if gone(error):
                return False
            raise
        return True

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        content: str = "application/json",
        *,
        retries: int = RETRIES,
    ) -> Document:
        """One request and its reply; raises `ApiError`, or `TemporaryFault` without a reply."""
        sent = None if body is None else msgspec.json.encode(body)
        for attempt in range(retries + 1):
            last = attempt == retries
            if self._limit is not None:
                self._limit.wait()
            self._refuse(method)
            try:
                return self._exchange(method, path, sent, content)
            except ApiError as error:
                # The server says that it did nothing with these.
                if last or error.status not in (429, 503):
                    raise
                time.sleep(max(min(error.retry_after_s, WAIT_MAX_S), 0.1 * 2**attempt))
            except (OSError, http.client.HTTPException) as error:
                self._drop()
                if last or method == "POST":  # it may have been done
                    raise TemporaryFault(f"no answer of the API server: {error}") from error
                time.sleep(0.05 * 2**attempt)
        raise AssertionError("unreachable")

    def watch(self, path: str, version: str, **query: str) -> Iterator[Document]:
        """Changes after a version, bookmarks included, until the server ends the watch.

        Raises `ApiError` 410 where the version is too old: list again. Raises `TemporaryFault`
        where the connection is lost.
        """
        query |= {
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
        }
        try:
            with contextlib.closing(self._connect(timeout_s=2 * SILENCE_S)) as made:
                made.request("GET", f"{path}?{urlencode(query)}", headers=self._headers())
                self._sent += 1
                response = made.getresponse()
                if response.status != 200:
                    raise _error(response.status, response.read(), response)
                while line := response.readline():
                    event: Document = decode(line)
                    if event["type"] == "ERROR":
                        status = event["object"]
                        message = status.get("message", "the watch ended")
                        raise ApiError(status.get("code", 500), status.get("reason", ""), message)
                    yield event
        except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
            raise TemporaryFault(f"the watch was cut off: {error}") from error

    def stream(self, path: str, **query: str) -> Iterator[bytes]:
        """The bytes of a reply as they come; silence is allowed."""
        try:
            with contextlib.closing(self._connect(timeout_s=TIMEOUT_S)) as made:
                made.request("GET", f"{path}?{urlencode(query)}", headers=self._headers())
                self._sent += 1
                connected, response = made.sock, made.getresponse()
                if response.status != 200:
                    raise _error(response.status, response.read(), response)
                connected.settimeout(None)
                while data := response.read1(65_536):
                    yield data
        except (OSError, http.client.HTTPException) as error:
            raise TemporaryFault(f"no answer of the API server: {error}") from error

    def _exchange(self, method: str, path: str, body: bytes | None, content: str) -> Document:
        made = getattr(self._kept, "connection", None)
        if made is None:
            made = self._kept.connection = self._connect(timeout_s=TIMEOUT_S)
        made.putrequest(method, path)
        for name, value in self._headers().items():
            made.putheader(name, value)
        if body is not None:
            made.putheader("Content-Type", content)
        if body is not None or method in ("POST", "PUT", "PATCH"):
            made.putheader("Content-Length", str(len(body or b"")))
        try:
            # To connect takes as long as a handshake takes, and a process may be halted meanwhile.
            self._refuse(method)
        except TemporaryFault:
            self._drop()
            raise
        self._send(made, method, path, body)
        self._sent += 1
        response = made.getresponse()
        data = response.read()
        if response.status >= 300:
            raise _error(response.status, data, response)
        try:
            return dict(decode(data)) if data else {}
        except (ValueError, TypeError) as error:  # a proxy's page
            raise http.client.HTTPException(f"the answer is no object: {error}") from error

    def _refuse(self, method: str) -> None:
        if method != "GET" and (self._closed or not self._may_write()):
            raise TemporaryFault("this controller does not lead: nothing is written")

    def _send(
        self, made: http.client.HTTPConnection, method: str, path: str, body: bytes | None
    ) -> None:
        made.endheaders(body)

    def _connect(self, *, timeout_s: float) -> http.client.HTTPConnection:
        to = self._to
        if to.tls is None:
            made = http.client.HTTPConnection(to.host, to.port, timeout=timeout_s)
        else:
            made = http.client.HTTPSConnection(to.host, to.port, timeout=timeout_s, context=to.tls)
        made.connect()
        made.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def _drop(self) -> None:
        made = getattr(self._kept, "connection", None)
        self._kept.connection = None
        if made is not None:
            made.close()

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": "fairlead"}
        token = self._to.token()
        if token:
            headers["Authorization"] = f"Bearer {token}"
        return headers


def decode(data: bytes) -> Any:
    """JSON as the API server writes it. What is nested too deeply to be read, as a tenant can write
    in a template, is null below `DEPTH_MAX`: no object may keep us from reading the others."""
    try:
        return msgspec.json.decode(data)
    except RecursionError:
        return msgspec.json.decode(_cut(data))


def _cut(data: bytes) -> bytes:
    kept, depth, start = [], 0, 0
    for token in re.finditer(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', data):
        if token[0] in (b"[", b"{"):
            depth += 1
            if depth == DEPTH_MAX + 1:
                kept.append(data[start : token.start()] + b"null")
        elif token[0] in (b"]", b"}"):
            if depth == DEPTH_MAX + 1:
                start = token.end()
            depth -= 1
    return b"".join([*kept, data[start:]])


def _error(status: int, data: bytes, response: http.client.HTTPResponse) -> ApiError:
    after = response.headers.get("Retry-After", "")
    causes: list[tuple[str, str]] = []
    try:
        answer = json.loads(data)
        reason, message = answer.get("reason") or "", answer.get("message") or ""
        for row in (answer.get("details") or {}).get("causes") or ():
            causes.append((str(row.get("field") or ""), str(row.get("message") or "")))
    except (ValueError, AttributeError):
        reason, message = "", data[:200].decode(errors="replace")
    error = ApiError(status, reason, message, int(after) if after.isdigit() else 0)
    error.causes = tuple(causes)
    return error
