"""Sessions of browsers, and the one-time codes that open them: in memory, bounded.

A session has two secrets. The cookie is kept by the browser where no script reads it; browsers send
cookies of 127.0.0.1 to every port, so another server of this machine may see it. The key is kept by
the page, where no other port reads it, and is sent in a header that no form can set. A request is
of the session where both are there. Of both, and of codes, only digests are kept.

A session stores who opened it, not what they may do: its rights are looked up at every request.
"""

import hmac
import secrets
import threading
import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal, NamedTuple

from fairlead.api.rates import RequestRates

IDLE_S, AGE_S, CODE_S = 3600.0, 12 * 3600.0, 60.0
SESSIONS_EACH, CODES_EACH = 16, 4
"""Of one user; one more takes the place of the one that was unused for longest."""
GUESSES_PER_S = 5


class Grant(NamedTuple):
    """Who opens a session: a user of this machine by its number, or the holder of a token."""

    user: str
    uid: int | None = None
    token: str | None = None


@dataclass(slots=True)
class BrowserSession:
    """One browser that is signed in. Times are the clock's."""

    id: str
    grant: Grant
    how: Literal["token", "link"]
    cookie_digest: bytes
    since: float
    seen: float


class Opened(NamedTuple):
    """A new session with its secrets, which are told only here."""

    session: BrowserSession
    cookie: str
    key: str


class Sessions:
    """All sessions and codes of one server. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._lock = threading.Lock()
        self._sessions: dict[bytes, BrowserSession] = {}
        """By the digest of the key."""
        self._codes: dict[bytes, tuple[Grant, float]] = {}
        self._guesses = RequestRates(GUESSES_PER_S, clock)

    def new_code(self, grant: Grant) -> str:
        """A code that opens one session, within a minute."""
        code = secrets.token_urlsafe(32)
        with self._lock:
            self._forget_expired()
            own = [digest for digest, (of, _) in self._codes.items() if of.user == grant.user]
            if len(own) >= CODES_EACH:
                del self._codes[own[0]]  # the oldest
            self._codes[_digest(code)] = (grant, self.clock())
        return code

    def redeem(self, code: str) -> Grant | None:
        """Who a code signs in; it is used up."""
        with self._lock:
            self._forget_expired()
            grant, _ = self._codes.pop(_digest(code), (None, 0.0))
            return grant

    def count_guess(self, place: Hashable) -> None:
        """Raises `TooManyRequests` where a user of this machine, or an address, asks too often."""
        with self._lock:
            self._guesses.take(place)

    def open(self, grant: Grant, how: Literal["token", "link"]) -> Opened:
        """A session with secrets of its own: none that a client brought is ever used."""
        cookie, key, now = secrets.token_urlsafe(32), secrets.token_urlsafe(32), self.clock()
        session = BrowserSession(secrets.token_hex(4), grant, how, _digest(cookie), now, now)
        with self._lock:
            self._forget_expired()
            own = [
                (at.seen, key) for key, at in self._sessions.items() if at.grant.user == grant.user
            ]
            if len(own) >= SESSIONS_EACH:
                del self._sessions[min(own)[1]]
            self._sessions[_digest(key)] = session
        return Opened(session, cookie, key)

    def find(self, key: str, cookies: Iterable[str]) -> BrowserSession | None:
        """The session of a key and its cookie; it counts as used now. Of several cookies one must
        be right: a server on another port can add one, and cannot read ours."""
        with self._lock:
            self._forget_expired()
            session = self._sessions.get(_digest(key))
            digests = [_digest(cookie) for cookie in cookies]
            if session is None or not any(
                hmac.compare_digest(session.cookie_digest, digest) for digest in digests
            ):
                return None
            session.seen = self.clock()
            return session

    def all(self) -> list[BrowserSession]:
        """Sessions that are open, oldest first."""
        with self._lock:
            self._forget_expired()
            return sorted(self._sessions.values(), key=lambda session: session.since)

    def end(self, name: str) -> None:
        with self._lock:
            for key, session in list(self._sessions.items()):
                if session.id == name:
                    del self._sessions[key]

    def _forget_expired(self) -> None:
        now = self.clock()
        for key, session in list(self._sessions.items()):
            if now >= min(session.seen + IDLE_S, session.since + AGE_S):
                del self._sessions[key]
        for digest, (_, made) in list(self._codes.items()):
            if now >= made + CODE_S:
                del self._codes[digest]


def _digest(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "surrogateescape")).digest()
