"""Connections that cannot lock others out: each peer has so many, and each of them must go on.

    what a peer holds up                    ends after
    the first byte or the headers           HEADERS_S, and sooner when others need the place
    the body                                BODY_S
    a reply, by not reading it              STUCK_S without a byte taken
    the next request (keep-alive)           the library's 5 s

The descriptors of the process are divided beforehand, so that they are never used up: over TCP, and
by users over the Unix socket, only so many connections are open. Admins on the socket have the
rest. A connection that waits for a request makes room for a new one of the same peer, so
half-open connections lock no peer out.
"""

import asyncio
import resource
import socket
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import structlog
from uvicorn.protocols.http.h11_impl import H11Protocol

from fairlead.api.peers import JobOf, Peer, peer_of

HEADERS_S, BODY_S, STUCK_S = 10.0, 60.0, 30.0
ACCEPT_AT_ONCE = 16
"""Connections that are accepted from a listener before they are looked at."""
LISTEN_QUEUE = 128
_LOG_EVERY_S = 60.0
_log = structlog.get_logger("fairlead.api")


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Open connections at most: over TCP, of users on the socket, and of one peer there."""

    tcp: int
    users: int
    each_user: int

    @property
    def streams(self) -> int:
        """Of the connections over TCP those that may stay open for a reader that follows live."""
        return self.tcp * 3 // 4

    @staticmethod
    def within(descriptors: int) -> "ConnectionLimits":
        """Three eighths of the descriptors for TCP, as many for users; the rest is for admins, for
        files, and for connections that are being refused."""
        share = max(8, min(1024, descriptors // 8))
        return ConnectionLimits(share, share, share // 4)


def descriptors() -> int:
    """How many this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class ConnectionPool:
    """The open connections of a kind, by peer; those that wait longest for a request come first."""

    def __init__(self, most: int, most_each: int) -> None:
        self._most, self.most_each = most, most_each
        self._open: dict[Hashable, dict[BoundedConnection, None]] = {}

    def admit(self, connection: "BoundedConnection", peer: Hashable) -> bool:
        """Take it in, if need be for one that waits; False: all are busy."""
        while True:
            own = self._open.get(peer, {})
            if len(own) >= self.most_each:
                crowd = own
            elif sum(map(len, self._open.values())) >= self._most:
                crowd = max(self._open.values(), key=len)
            else:
                self._open.setdefault(peer, {})[connection] = None
                return True
            idle = next((other for other in crowd if other.waits), None)
            if idle is None:
                return False
            idle.drop()

    def renew(self, connection: "BoundedConnection", peer: Hashable) -> None:
        """It waits for a request since now."""
        if self._open.get(peer, {}).pop(connection, connection) is None:
            self._open[peer][connection] = None

    def remove(self, connection: "BoundedConnection", peer: Hashable) -> None:
        own = self._open.get(peer, {})
        own.pop(connection, None)
        if not own:
            self._open.pop(peer, None)


@dataclass(slots=True)
class Gatekeeper:
    """Who may open how many connections to one server."""

    limits: ConnectionLimits
    job_of: JobOf | None = None
    is_admin: Callable[[int], bool] = lambda uid: False
    tcp: ConnectionPool = field(init=False)
    users: ConnectionPool = field(init=False)
    _logged_s: float = field(default=-_LOG_EVERY_S, init=False)

    def __post_init__(self) -> None:
        self.tcp = ConnectionPool(self.limits.tcp, self.limits.tcp)
        self.users = ConnectionPool(self.limits.users, self.limits.each_user)

    def place(self, peer: Peer | None, address: str) -> tuple[ConnectionPool | None, Hashable]:
        """The pool of a peer and its place there. None: it is not counted."""
        if peer is None:
            return self.tcp, address
        if not peer.in_run and self.is_admin(peer.uid):
            return None, peer.uid
        return self.users, (peer.uid, peer.in_run)  # a run takes no connection from its user

    def log(self, peer: Hashable, most: int, now_s: float) -> None:
        if now_s >= self._logged_s + _LOG_EVERY_S:
            self._logged_s = now_s
            _log.warning("connection refused", peer=str(peer), limit=most)


class BoundedConnection(H11Protocol):
    """One connection: counted, identified, and dropped when it does not go on."""

    def __init__(self, *arguments: Any, gatekeeper: Gatekeeper, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._gatekeeper = gatekeeper
        self._pool: ConnectionPool | None = None
        self._peer: Hashable = None
        self._refused = False
        self._state: object = None
        self._timer: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None

    @property
    def waits(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def drop(self) -> None:
        """Close it now, whatever is unsent; its place is free at once."""
        if self._pool is not None:
            self._pool.remove(self, self._peer)
        self.transport.abort()

    def connection_made(self, transport: Any) -> None:
        connection, peer = transport.get_extra_info("socket"), None
        if connection is not None and connection.family == socket.AF_UNIX:
            peer = peer_of(connection, self._gatekeeper.job_of)
            self.app_state = {**self.app_state, "peer": peer}
        address = str((transport.get_extra_info("peername") or ("",))[:1])
        self._pool, self._peer = self._gatekeeper.place(peer, address)
        if self._pool is not None and not self._pool.admit(self, self._peer):
            self._refuse(transport, self._pool)
            return
        super().connection_made(transport)
        self._follow()

    def _refuse(self, transport: Any, pool: ConnectionPool) -> None:
        self._refused = True
        self._gatekeeper.log(self._peer, pool.most_each, self.loop.time())
        message = f"too many open connections: at most {pool.most_each}, close some"
        error = {"code": "TooManyConnections", "path": None, "message": message}
        body = msgspec.json.encode({"error": error})
        head = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
        more = f"Retry-After: 1\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        transport.write((head + more).encode() + body)
        transport.close()

    def data_received(self, data: bytes) -> None:
        if not self._refused:
            super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._refused:
            return
        if self._pool is not None:
            self._pool.remove(self, self._peer)
        for timer in (self._timer, self._stuck):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        self._follow()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._pool is not None:
            self._pool.renew(self, self._peer)
        self._follow()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stuck = self.loop.call_later(STUCK_S, self.drop)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stuck is not None:
            self._stuck.cancel()

    def _follow(self) -> None:
        """Start the clock of what is awaited now; bytes that lead to nothing do not reset it."""
        cycle, left_s = self.cycle, None
        if self.waits:
            awaited, left_s = "request", HEADERS_S
        elif cycle.more_body:
            awaited, left_s = "body", BODY_S
        else:
            awaited = "reply"
        if (awaited, cycle) == self._state:
            return
        self._state = (awaited, cycle)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if left_s is None else self.loop.call_later(left_s, self.drop)
