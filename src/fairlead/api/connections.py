"""Connections that cannot lock others out: each peer has so many, and each of them must go on.

    what a peer holds up                    ends after
    the handshake of TLS                    HEADERS_S
    the first byte or the headers           HEADERS_S
    the body                                BODY_S, and a second for each BODY_BYTES_PER_S that came
    a reply, by not reading it              STUCK_S without a byte taken
    the next request (keep-alive)           the library's 5 s

The descriptors of the process are divided beforehand, so that they are never used up: over TCP, by
bound users over the Unix socket, and by other users there, only so many connections are open.
Admins on the socket have the rest. A peer is a user of this machine, over TCP too, or an address.

Where all places are taken a newcomer gets one of a peer that has more than it: first the connection
that has waited longest for its peer, then a read, which can be asked again. So neither half a
request nor streams without end lock another peer out.
"""

import asyncio
import itertools
import resource
import socket
import ssl
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from fairlead.api.peers import JobOf, Peer, peer_of, tcp_user
from fairlead.host.log import Log

HEADERS_S, BODY_S, STUCK_S = 10.0, 10.0, 30.0
BODY_BYTES_PER_S, BODY_S_MOST = 16 * 1024, 300.0
UNSENT_MOST = 64 * 2**20
"""Bytes of answers that a peer has not read yet, beside the newest of them."""
ACCEPT_AT_ONCE = 16
"""Connections that are accepted from a listener before they are looked at."""
LISTEN_QUEUE = 128
_LOG_EVERY_S = 60.0
_log = Log("fairlead.api")


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Open connections at most: over TCP, of bound users on the socket, and of others there."""

    tcp: int
    each_tcp: int
    """Of one user of this machine, or of one address."""
    users: int
    strangers: int
    each_user: int

    @property
    def streams(self) -> int:
        """Of a peer's connections over TCP those that may stay open to follow live."""
        return self.each_tcp * 3 // 4

    @staticmethod
    def within(descriptors: int) -> "ConnectionLimits":
        """Three eighths of the descriptors; the rest is for admins, for files, and for connections
        that are being refused."""
        share = max(8, min(1024, descriptors // 8))
        return ConnectionLimits(share, share // 2, share, share, share // 4)


def descriptors() -> int:
    """How many this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class ConnectionPool:
    """The open connections of a kind, by peer; those that wait longest for a request come first."""

    def __init__(self, most: int, most_each: int) -> None:
        self._most, self.most_each = most, most_each
        self._open: dict[Hashable, dict[_Open, int]] = {}
        self._order = itertools.count()

    def admit(self, connection: "_Open", peer: Hashable) -> bool:
        """Take it in, if need be for another; False: there is no place that is its to take."""
        while True:
            own = self._open.get(peer, {})
            full = sum(map(len, self._open.values())) >= self._most
            if not full and len(own) < self.most_each:
                self._open.setdefault(peer, {})[connection] = next(self._order)
                return True
            victim = self._victim(own)
            if victim is None:
                return False
            victim.drop()

    def _victim(self, own: dict["_Open", int]) -> "_Open | None":
        """Whose place a peer with these connections gets."""
        idle = next((mine for mine in own if mine.waits), None)
        if len(own) >= self.most_each:
            return idle
        larger = [crowd for crowd in self._open.values() if len(crowd) > len(own)]
        # Of equally large ones the one that has the longest waiting.
        larger.sort(key=lambda crowd: (-len(crowd), next(iter(crowd.values()))))
        waiting = (other for crowd in larger for other in crowd if other.waits)
        victim = next(waiting, idle)
        if victim is None and larger and len(larger[0]) > len(own) + 1:
            victim = next((other for other in larger[0] if other.reads), None)
        return victim

    def shed(self, connection: "_Open", peer: Hashable) -> None:
        """Its peer reads too slowly: of its other answers only so much is kept for it."""
        slow = [other for other in self._open.get(peer, {}) if other is not connection]
        unsent = sum(other.unsent for other in slow)
        for other in slow:
            if unsent <= UNSENT_MOST:
                return
            if other.unsent:
                unsent -= other.unsent
                other.drop()

    def renew(self, connection: "_Open", peer: Hashable) -> None:
        """It waits for a request since now."""
        own = self._open.get(peer, {})
        if own.pop(connection, None) is not None:
            own[connection] = next(self._order)

    def remove(self, connection: "_Open", peer: Hashable) -> None:
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
    is_bound: Callable[[int], bool] = lambda uid: False
    tcp: ConnectionPool = field(init=False)
    users: ConnectionPool = field(init=False)
    strangers: ConnectionPool = field(init=False)
    _logged_s: float = field(default=-_LOG_EVERY_S, init=False)

    def __post_init__(self) -> None:
        limits = self.limits
        self.tcp = ConnectionPool(limits.tcp, limits.each_tcp)
        self.users = ConnectionPool(limits.users, limits.each_user)
        self.strangers = ConnectionPool(limits.strangers, limits.each_user)

    def place(self, peer: Peer | None, address: Hashable) -> tuple[ConnectionPool | None, Hashable]:
        """The pool of a peer and its place there. None: it is not counted."""
        if peer is None:
            return self.tcp, address
        if not peer.in_run and self.is_admin(peer.uid):
            return None, peer.uid
        pool = self.users if self.is_bound(peer.uid) else self.strangers
        return pool, (peer.uid, peer.in_run)  # a run takes no connection from its user

    def log(self, peer: Hashable, most: int, now_s: float) -> None:
        if now_s >= self._logged_s + _LOG_EVERY_S:
            self._logged_s = now_s
            _log.warning("connection refused", peer=str(peer), limit=most)


class BoundedConnection(H11Protocol):
    """One connection: counted, identified, and dropped when it does not go on."""

    def __init__(self, *arguments: Any, gatekeeper: Gatekeeper, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.gatekeeper = gatekeeper
        self._pool: ConnectionPool | None = None
        self._peer: Hashable = None
        self._refused = False
        self._state: object = None
        self._since, self._received = 0.0, 0
        self._timer: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None

    @property
    def waits(self) -> bool:
        """Whether its peer has to go on: with a request, with the rest of one, or by reading."""
        cycle = self.cycle
        done = cycle is None or cycle.response_complete or cycle.more_body
        return done or self.flow.write_paused

    @property
    def reads(self) -> bool:
        """Whether the peer loses nothing but time: it can ask again."""
        return self.cycle is not None and self.cycle.scope["method"] in ("GET", "HEAD")

    @property
    def unsent(self) -> int:
        """Bytes of its answer that wait for its peer."""
        return self.transport.get_write_buffer_size()

    def drop(self) -> None:
        """Close it now, whatever is unsent; its place is free at once."""
        if self._pool is not None:
            self._pool.remove(self, self._peer)
        self.transport.abort()

    def connection_made(self, transport: Any) -> None:
        connection, peer, address = transport.get_extra_info("socket"), None, ""
        if connection is not None and connection.family == socket.AF_UNIX:
            peer = peer_of(connection, self.gatekeeper.job_of)
        elif connection is not None:
            address = _tcp_peer(transport)
        self._pool, self._peer = self.gatekeeper.place(peer, address)
        self.app_state = {**self.app_state, "peer": peer, "place": self._peer}
        if self._pool is not None and not self._pool.admit(self, self._peer):
            self._refuse(transport, self._pool)
            return
        super().connection_made(transport)
        self._follow()

    def _refuse(self, transport: Any, pool: ConnectionPool) -> None:
        self._refused = True
        self.gatekeeper.log(self._peer, pool.most_each, self.loop.time())
        message = f"too many open connections: at most {pool.most_each}, close some"
        error = {"code": "TooManyConnections", "path": None, "message": message}
        body = msgspec.json.encode({"error": error})
        head = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
        more = f"Retry-After: 1\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        transport.write((head + more).encode() + body)
        transport.close()

    def data_received(self, data: bytes) -> None:
        if not self._refused:
            self._received += len(data)
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
        if self._pool is not None:
            self._pool.shed(self, self._peer)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stuck is not None:
            self._stuck.cancel()

    def _follow(self) -> None:
        """Start the clock of what is awaited now; bytes that lead to nothing do not reset it."""
        cycle, left_s = self.cycle, None
        if cycle is None or cycle.response_complete:
            awaited, left_s = "request", HEADERS_S
        elif cycle.more_body:
            awaited, left_s = "body", BODY_S
        else:
            awaited = "reply"
        if (awaited, cycle) == self._state:
            return
        self._state = (awaited, cycle)
        self._since, self._received = self.loop.time(), len(cycle.body) if cycle else 0
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if left_s is None else self.loop.call_later(left_s, self._due)

    def _due(self) -> None:
        """Drop it, unless it is a body that came as fast as it must."""
        cycle, allowed_s = self.cycle, 0.0
        if cycle is not None and cycle.more_body and not cycle.response_complete:
            allowed_s = min(BODY_S + self._received / BODY_BYTES_PER_S, BODY_S_MOST)
        if self.loop.time() >= self._since + allowed_s:
            self.drop()
        else:
            self._timer = self.loop.call_at(self._since + allowed_s, self._due)


class Handshake(asyncio.Protocol):
    """A handshake of TLS: it has a place of its peer's, and then its connection has one."""

    waits, reads, unsent = True, False, 0

    def __init__(self, connection: BoundedConnection, tls: ssl.SSLContext) -> None:
        self._connection, self._tls = connection, tls
        self._pool, self._peer = connection.gatekeeper.tcp, ""
        self._task: asyncio.Task[None] | None = None
        self._early = bytearray()
        """What came before the connection was made: the first request, as a rule."""

    def connection_made(self, transport: Any) -> None:
        self._transport, self._peer = transport, _tcp_peer(transport)
        transport.pause_reading()  # the first byte is TLS's
        if not self._pool.admit(self, self._peer):
            transport.abort()
            return
        self._task = asyncio.get_running_loop().create_task(self._shake_hands())

    def data_received(self, data: bytes) -> None:
        self._early += data

    def drop(self) -> None:
        self._pool.remove(self, self._peer)
        self._transport.abort()

    async def _shake_hands(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            made = await loop.start_tls(
                self._transport, self, self._tls, server_side=True, ssl_handshake_timeout=HEADERS_S
            )
        except OSError:  # an SSLError is one, too: the peer speaks otherwise, too slowly, or left
            return
        finally:
            self._pool.remove(self, self._peer)
        if made is None or made.is_closing():  # the peer left meanwhile
            return
        made.set_protocol(self._connection)
        self._connection.connection_made(made)
        if self._early:
            self._connection.data_received(bytes(self._early))


_Open = BoundedConnection | Handshake


def _tcp_peer(transport: asyncio.BaseTransport) -> str:
    """A user of this machine, or an address."""
    user = tcp_user(transport.get_extra_info("socket"))
    there = transport.get_extra_info("peername") or ("",)  # none: it is gone already
    return f"user {user}" if user is not None else str(there[0])
