"""Access: who asks, and what a user may do. Users bound to owners, tokens bound to users.

Bindings and tokens are entries (`access.user`, `access.token`), so the history of rights is as hard
to rewrite as any other. Of a token only the SHA-256 is recorded; its secret has 256 random bits, so
the digest reveals nothing.

A request has the peer's credentials on the Unix socket, or over TCP a bearer token or the two
secrets of a session. A web page in the operator's browser can reach loopback too. It cannot choose
`Host` or hide its `Origin`: a request with another name than ours is refused before it is read,
which stops DNS rebinding and cross-site forms.
"""

import os
import pwd
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec
from starlette.requests import Request

from fairlead.api.browser_sessions import BrowserSession, Sessions
from fairlead.api.peers import Peer
from fairlead.api.rates import RequestRates, WorkShares
from fairlead.api.shapes import TokenRow, UserRow
from fairlead.engine.gpu import Author, EditConflict, Forbidden, NotFound, Refused
from fairlead.ports.faults import Fault, PermanentFault
from fairlead.ports.ledger import Archived, Draft, Entry, Ledger
from fairlead.schema.convert import decode_json
from fairlead.schema.reports import BackendOrder
from fairlead.schema.times import format_time

USER, TOKEN, ORDER = "access.user", "access.token", "traffic.order"
KINDS = (USER, TOKEN, ORDER)
"""Kinds of entries that add up to an `AccessState`."""
SNAPSHOT = "api.access"
AGENT = "agent/"
"""Begins the name by which an agent acts; no user of a machine has a slash in it."""
_PREFIX = "flt_"
KEEP_EVERY = 10_000
"""Entries after which the state is kept again."""
NAMES_KEPT_S = 10
TOKENS_EACH, TOKENS_MS = 100, 86_400_000
"""Of a user that is no admin: so many that are valid or were made within a day. A revoked one stays
in the ledger for good, so making and revoking is no way around."""


class Token(msgspec.Struct, frozen=True):
    """A bearer token, known by its digest."""

    id: str
    user: str
    digest: str
    created_ms: int
    note: str = ""
    revoked_ms: int | None = None
    agent: str | None = None
    """The agent that it is of, instead of a user."""
    reports: tuple[str, ...] = ()
    """What that agent may report."""

    @property
    def row(self) -> dict[str, Any]:
        revoked = None if self.revoked_ms is None else format_time(self.revoked_ms)
        created, reports = format_time(self.created_ms), list(self.reports)
        row = TokenRow(self.id, self.user, self.note, created, revoked, reports)
        return msgspec.structs.asdict(row)


class SubmittedRun(NamedTuple):
    """A run, and the id of the token by which it was submitted."""

    name: str
    token: str | None


class AccessState(msgspec.Struct):
    """What the entries about access add up to, and the admins' orders for backends."""

    users: dict[str, UserRow] = msgspec.field(default_factory=dict)
    tokens: dict[str, Token] = msgspec.field(default_factory=dict)
    orders: dict[str, dict[str, BackendOrder]] = msgspec.field(default_factory=dict)
    """By route group and backend."""

    def fold(self, entry: Entry) -> None:
        body = entry.body
        if entry.kind == ORDER:
            group = self.orders.setdefault(body["group"], {})
            if body["order"] is None:
                group.pop(body["backend"], None)
            else:
                group[body["backend"]] = body["order"]
            if not group:
                del self.orders[body["group"]]
        elif entry.kind == USER and body.get("gone"):
            self.users.pop(body["name"], None)
        elif entry.kind == USER:
            self.users[body["name"]] = UserRow(body["name"], body["owners"], body["admin"])
        elif body.get("revoked"):
            old = self.tokens[body["id"]]
            self.tokens[old.id] = msgspec.structs.replace(old, revoked_ms=entry.time_ms)
        else:
            self.tokens[body["id"]] = Token(
                body["id"],
                body["user"],
                body["digest"],
                entry.time_ms,
                body["note"],
                agent=body.get("agent"),
                reports=tuple(body.get("reports", ())),
            )


class Access:
    """Users and tokens, folded from the ledger. Thread-safe."""

    def __init__(self, ledger: Ledger, now_ms: Callable[[], int]) -> None:
        self._ledger, self._now_ms = ledger, now_ms
        self._lock = threading.RLock()
        self._state, self._seq = AccessState(), 0
        snapshot = ledger.snapshot_get(SNAPSHOT)
        if snapshot is not None:
            self._state = decode_json(snapshot.state, AccessState)
            self._seq = snapshot.seq
        self._by_digest = {token.digest: token.id for token in self._state.tokens.values()}
        self._kept = self._seq
        """The last entry that the kept state is of."""
        self.users_change: Callable[[], AbstractContextManager[object]] = nullcontext
        """Around what records a change of users: another process has to know it, too."""
        self.after_keep: Callable[[], object] = lambda: None
        """Called when the state was kept."""
        try:
            self._catch_up()
        except Archived as error:
            raise PermanentFault(
                f"entries after {self._kept} were moved to an archive, and no entry confirms who "
                "was a user after them: run `fairlead audit rebuild --archive DIRECTORY`"
            ) from error
        with suppress(Fault):
            self.keep()

    def author_of_user(self, name: str, *, admin: bool = False) -> Author:
        """A user of this machine; an unbound one may only read."""
        with self._lock:
            user = self._state.users.get(name) or UserRow(name, [], admin=False)
        return Author(name, frozenset(user.owners), admin or user.admin)

    def author_of_token(self, secret: str) -> Author | None:
        """The user of a token; None for one that is unknown or revoked."""
        with self._lock:
            # What is compared is a digest: how long that takes says nothing about the secret.
            token = self._by_digest.get(_digest(secret))
            return None if token is None else self.author_by_token(token)

    def author_by_token(self, token: str) -> Author | None:
        """The user of a token that was shown earlier; None once it is revoked."""
        with self._lock:
            return self._holder(self._state.tokens[token]) if self._is_valid(token) else None

    def _holder(self, token: Token) -> Author:
        if token.agent is None:
            return replace(self.author_of_user(token.user), token=token.id)
        reports = frozenset(token.reports)
        return Author(token.user, token=token.id, agent=token.agent, reports=reports)

    def author_in_run(self, user: str, run: SubmittedRun | None) -> Author:
        """A process of a run, of this one where it is known. Rights that came with a token end with
        it: the run then may only read."""
        if run is None or not (run.token is None or self._is_valid(run.token)):
            return Author(user, in_run=True)
        return Author(f"run/{run.name}", in_run=True, run=run.name)

    def _is_valid(self, token: str) -> bool:
        with self._lock:
            found = self._state.tokens.get(token)
            return found is not None and found.revoked_ms is None

    def users(self) -> list[UserRow]:
        with self._lock:
            return [user for _, user in sorted(self._state.users.items())]

    def tokens(self, user: str | None = None) -> list[dict[str, Any]]:
        """Tokens, of one user or of all, oldest first."""
        with self._lock:
            tokens = sorted(self._state.tokens.values(), key=lambda t: (t.created_ms, t.id))
        return [token.row for token in tokens if user in (None, token.user)]

    def token(self, name: str) -> Token:
        with self._lock:
            if name not in self._state.tokens:
                raise NotFound("token", name)
            return self._state.tokens[name]

    def bind(self, user: UserRow, *, author: Author, dry_run: bool = False) -> UserRow:
        """Bind a user to its owners; replaces earlier bindings."""
        user = UserRow(user.name, sorted(set(user.owners)), user.admin)
        self._record(USER, author, msgspec.structs.asdict(user), dry_run=dry_run)
        return user

    def unbind(self, name: str, *, author: Author, dry_run: bool = False) -> UserRow:
        """Remove a user; its tokens stay and act for no owner."""
        with self._lock:
            if name not in self._state.users:
                raise NotFound("user", name)
        user = UserRow(name, [], admin=False)
        body = {**msgspec.structs.asdict(user), "gone": True}
        self._record(USER, author, body, dry_run=dry_run)
        return user

    def create_token(
        self,
        user: str,
        note: str,
        *,
        author: Author,
        agent: str | None = None,
        reports: Sequence[str] = (),
        dry_run: bool = False,
    ) -> dict[str, Any]:
        """Create a token of a user, or of an agent that may report these; the secret is returned
        only here. `Refused` where its user has enough."""
        with self._lock:
            if not author.admin:
                self._check_quota(user)
            if dry_run:
                made = Token("", user, "", self._now_ms(), note, reports=tuple(reports))
                return {**made.row, "token": ""}
            secret, token = _PREFIX + secrets.token_urlsafe(32), secrets.token_hex(4)
            body: dict[str, Any] = {"id": token, "user": user, "note": note}
            body["digest"] = _digest(secret)
            if agent is not None:
                body |= {"agent": agent, "reports": sorted(set(reports))}
            self._record(TOKEN, author, body)
            return {**self.token(token).row, "token": secret}

    def _check_quota(self, user: str) -> None:
        since = self._now_ms() - TOKENS_MS
        own = (token for token in self._state.tokens.values() if token.user == user)
        if sum(t.revoked_ms is None or t.created_ms > since for t in own) >= TOKENS_EACH:
            raise Refused(
                "TokensQuota",
                f"{user} has {TOKENS_EACH} tokens that are valid or were made within a day, which "
                "is all that it may have: use one of them, or ask an admin",
            )

    def revoke(self, token: str, *, author: Author, dry_run: bool = False) -> dict[str, Any]:
        with self._lock:
            current = self.token(token)
            if current.revoked_ms is not None:
                raise EditConflict(f"token {token!r} is already revoked")
            body = {"id": token, "user": current.user, "revoked": True}
            self._record(TOKEN, author, body, dry_run=dry_run)
            return self.token(token).row

    def orders(self, group: str) -> dict[str, BackendOrder]:
        """By backend."""
        with self._lock:
            return dict(self._state.orders.get(group, {}))

    def order(
        self,
        group: str,
        backend: str,
        order: BackendOrder | None,
        *,
        author: Author,
        dry_run: bool = False,
    ) -> bool:
        """Order what a backend is to be, or lift the order (None); whether that is a change."""
        with self._lock:
            if self._state.orders.get(group, {}).get(backend) == order:
                return False
            body = {"group": group, "backend": backend, "order": order}
            self._record(ORDER, author, body, dry_run=dry_run)
            return True

    def _record(
        self, kind: str, author: Author, body: dict[str, Any], *, dry_run: bool = False
    ) -> None:
        if dry_run:
            return
        around = self.users_change() if kind == USER else nullcontext()
        with around, self._lock:
            draft = Draft(kind=kind, time_ms=self._now_ms(), author=author.user, body=body)
            (entry,) = self._ledger.append([draft])
            self._fold(entry)
            with suppress(Fault):  # the entry is recorded; the next change writes the state again
                # An archive may take the entries away, but not the state that they led to.
                self._keep(entry.seq)

    def keep(self, every: int = KEEP_EVERY) -> None:
        """Keep the state as of now if the ledger grew by so much since: a start reads, and
        compares with the tree, all that came after."""
        with self._lock:
            size = self._ledger.head().head.size
            due = size - self._kept >= every
            if due:
                self._catch_up()
                self._keep(max(size, self._seq))
        if due:
            self.after_keep()

    def _keep(self, seq: int) -> None:
        self._ledger.snapshot_put(SNAPSHOT, seq, encode(self._state))
        self._kept = seq

    def _catch_up(self) -> None:
        for entry in self._ledger.following(max(self._seq, self._kept), KINDS):
            self._fold(entry)

    def _fold(self, entry: Entry) -> None:
        if entry.seq > self._seq:
            self._seq = entry.seq
            self._state.fold(entry)
            if entry.kind == TOKEN and "digest" in entry.body:
                self._by_digest[entry.body["digest"]] = entry.body["id"]


def encode(state: AccessState) -> bytes:
    return msgspec.json.encode(state)


def _digest(secret: str) -> str:
    return sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


# --- who asks


class Unauthenticated(Exception):
    """The request needs a token, or carries an unknown or revoked one (HTTP 401)."""


@dataclass(frozen=True, slots=True)
class AccessGate:
    """Finds the author of a request; None for an anonymous reader."""

    access: Access
    hosts: frozenset[str]
    """Allowed `Host` headers over TCP: name and port as a browser writes them."""
    origins: frozenset[str]
    submission: Callable[[str], SubmittedRun | None] = lambda job: None
    """The run of a job."""
    rates: RequestRates = field(default_factory=lambda: RequestRates(None, time.monotonic))
    sessions: Sessions = field(default_factory=Sessions)
    bodies: WorkShares = field(default_factory=WorkShares)
    """Large bodies that come at the same time: each is in memory until it is whole."""

    def author(self, request: Request, *, page: bool = False) -> Author | None:
        """Raises `Forbidden` or `Unauthenticated`. `page`: links from other sites may lead here."""
        peer: Peer | None = getattr(request.state, "peer", None)
        self._check_headers(request, local=peer is not None)
        site = request.headers.get("sec-fetch-site", "none")
        if site not in ("none", "same-origin") and not (page and _followed_link(request)):
            raise Forbidden("cross-site requests are refused")
        token = bearer(request)
        if token is not None:
            author = self.access.author_of_token(token)
            if author is None:
                raise Unauthenticated("this token is unknown or was revoked")
            return author
        if peer is None:
            return self._of_session(request)
        if peer.in_run:
            return self.access.author_in_run(user_name(peer.uid), self.submission(peer.job))
        return self._local(peer.uid)

    def _of_session(self, request: Request) -> Author | None:
        """The author of a session. A cookie without the page's key opens nothing."""
        keys = request.headers.getlist("fairlead-session")
        if not keys:
            return None
        session = self.sessions.find(keys[0], cookies(request)) if len(keys) == 1 else None
        if session is None:
            raise Unauthenticated("this session has ended: sign in again")
        if request.method not in ("GET", "HEAD") and "origin" not in request.headers:
            raise Forbidden("a session changes something from the page only: Origin is missing")
        return replace(self._rights(session), session=session.id)

    def _rights(self, session: BrowserSession) -> Author:
        """What the user may do now; it may be less than when the session was opened."""
        user, uid, token = session.grant
        author = None
        if token is not None:
            author = self.access.author_by_token(token)
        elif uid is not None:
            author = self._local(uid)
        if author is None or author.user != user:
            self.sessions.end(session.id)
            raise Unauthenticated("the token of this session was revoked: sign in with another")
        return author

    def is_admin(self, uid: int) -> bool:
        return self._local(uid).admin

    def is_bound(self, uid: int) -> bool:
        """Whether a user of this machine acts for an owner."""
        return bool(self._local(uid).owners)

    def _local(self, uid: int) -> Author:
        return self.access.author_of_user(user_name(uid), admin=uid in (0, os.geteuid()))

    def _check_headers(self, request: Request, *, local: bool) -> None:
        hosts, origins = request.headers.getlist("host"), request.headers.getlist("origin")
        if not local and (len(hosts) != 1 or hosts[0].lower() not in self.hosts):
            raise Forbidden(f"Host {', '.join(hosts) or '(none)'!r} is not a name of this server")
        if any(origin.lower() not in self.origins for origin in origins):
            raise Forbidden(f"requests from origin {origins[0]!r} are refused")


def _followed_link(request: Request) -> bool:
    """Whether a browser followed a link; the other site cannot read the reply."""
    wanted = (("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document"))
    return all(request.headers.get(name) == value for name, value in wanted)


def bearer(request: Request) -> str | None:
    headers = request.headers.getlist("authorization")
    if not headers:
        return None
    scheme, _, token = headers[0].partition(" ")
    if len(headers) > 1 or scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated("must be `Authorization: Bearer TOKEN`, once")
    return token.strip()


def cookie_name(request: Request) -> str:
    """With the port: browsers keep one set of cookies for all ports of a host. The prefix makes a
    browser refuse one that was not set over TLS, by this host, for all paths."""
    prefix = "__Host-" if request.url.scheme == "https" else ""
    return f"{prefix}fairlead-{request.url.port or 'page'}"


def cookies(request: Request) -> list[str]:
    """Every value of our cookie; servers on other ports may have added some."""
    ours = cookie_name(request)
    pairs = [pair for line in request.headers.getlist("cookie") for pair in line.split(";")]
    named = (pair.strip().partition("=") for pair in pairs)
    return [value for name, _, value in named if name == ours]


def is_user(name: str) -> bool:
    """Whether this machine knows the user, by name or, without an entry, by number."""
    try:
        pwd.getpwnam(name)
    except (KeyError, ValueError):
        return name.isascii() and name.isdigit()
    return True


def user_name(uid: int) -> str:
    return _name_at(uid, int(time.monotonic()) // NAMES_KEPT_S)


@lru_cache(maxsize=1024)
def _name_at(uid: int, moment: int) -> str:
    """Cached for seconds only: a uid may be given to another user."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def loopback_names(port: int) -> tuple[frozenset[str], frozenset[str]]:
    names = [f"{host}:{port}" for host in ("127.0.0.1", "localhost", "[::1]")]
    return frozenset(names), frozenset(f"http://{name}" for name in names)
