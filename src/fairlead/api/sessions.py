"""Signing in from a browser: a token or a one-time code becomes a session of this server.

Signing in and out changes no object and is no entry of the ledger. What a session does is, under
its user's name.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from fairlead.api.access import Unauthenticated, cookie_name
from fairlead.api.browser_sessions import AGE_S, CODE_S, IDLE_S, BrowserSession, Grant
from fairlead.api.endpoint import Call, Routes, place_of
from fairlead.api.service import Service
from fairlead.api.shapes import Shape
from fairlead.engine.gpu import Forbidden, NotFound, Refused
from fairlead.schema.border import BadInput
from fairlead.schema.times import format_time

routes = Routes()
Secret = Annotated[str, Meta(min_length=1, max_length=200)]


class SignInBody(Shape):
    """A token, or the code of a one-time link."""

    token: Secret | None = None
    code: Secret | None = None


class SignedIn(Shape):
    """A new session. Every later request of it sends `key` in the header `Fairlead-Session`, and
    the cookie of this reply."""

    session: str
    user: str
    key: str
    expires: str


class SignInCode(Shape):
    """A code for one sign-in, and the address of the page that takes it."""

    code: str
    user: str
    expires: str
    address: str


class SessionRow(Shape):
    """One browser that is signed in. `token` is the id of the token that it ends with."""

    id: str
    user: str
    how: Literal["token", "link"]
    token: str | None
    since: str
    used: str
    expires: str
    current: bool
    """Whether it is the one that asks."""


@routes("POST /v1/signin", SignedIn, None, body=SignInBody, body_bytes_max=4096)
def sign_in(service: Service, call: Call) -> Response:
    """Sign a browser in with a token or a one-time code."""
    _refuse_other_pages(service, call.request)
    body: SignInBody = call.body
    if (body.token is None) == (body.code is None):
        raise BadInput("token", "give a token, or a code, and not both")
    service.sessions.count_guess(place_of(call.request))
    opened = service.sessions.open(_grant(service, body), "link" if body.code else "token")
    session, secure = opened.session, call.request.url.scheme == "https"
    made = SignedIn(session.id, session.grant.user, opened.key, _row(service, session)["expires"])
    reply = Response(msgspec.json.encode(made), media_type="application/json")
    reply.set_cookie(
        cookie_name(call.request),
        opened.cookie,
        max_age=int(AGE_S),
        path="/",
        secure=secure,
        httponly=True,
        samesite="strict",
    )
    return reply


def _refuse_other_pages(service: Service, request: Request) -> None:
    """Another site must not sign a reader in as another user. The gate let no foreign `Origin`
    pass; a browser always sends one with this request, and asks before it sends JSON."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if "origin" not in request.headers or media != "application/json":
        raise Forbidden("sign in from the page: needs its Origin, and a body of application/json")
    if request.url.scheme == "http" and request.url.hostname != "127.0.0.1":
        # Another user may listen on [::1], where browsers look for `localhost` first.
        raise Forbidden(f"sign in at {service.address}/signin: this name may be another server's")


def _grant(service: Service, body: SignInBody) -> Grant:
    if body.token is not None:
        author = service.access.author_of_token(body.token.strip())
        if author is None:
            raise Unauthenticated("this token is unknown or was revoked")
        if author.agent is not None:
            raise Forbidden("this is an agent's token: it reports, and signs no browser in")
        return Grant(author.user, token=author.token)
    grant = service.sessions.redeem(str(body.code))
    if grant is None or not _holds(service, grant):
        raise Unauthenticated(
            f"this link was used already, or is older than {CODE_S:.0f} s: "
            "`fairlead login --browser` makes another"
        )
    return grant


def _holds(service: Service, grant: Grant) -> bool:
    """Whether the token of a grant was not revoked since."""
    return grant.token is None or service.access.author_by_token(grant.token) is not None


@routes("POST /v1/signin/codes", SignInCode, None, needs="user", errors=(409,))
def create_code(service: Service, call: Call) -> dict[str, Any]:
    """Create a one-time code that signs a browser in as the caller."""
    author = call.author
    if author.session is not None:
        raise Forbidden("a session cannot open another: ask on this machine's socket")
    if not (author.admin or author.owners):
        raise Forbidden(f"{author.user} acts for no owner, and reads without signing in")
    if service.address is None:
        raise Refused("NoPage", "this control plane has no HTTP port: start it with --port")
    peer = getattr(call.request.state, "peer", None)
    uid = peer.uid if author.token is None and peer is not None else None
    code = service.sessions.new_code(Grant(author.user, uid, author.token))
    expires = format_time(service.now_ms() + int(CODE_S * 1000))
    return {
        "code": code,
        "user": author.user,
        "expires": expires,
        "address": f"{service.address}/signin#code={code}",
    }


@routes("GET /v1/sessions", list[SessionRow], needs="user")
def list_sessions(service: Service, call: Call) -> list[dict[str, Any]]:
    """List the caller's sessions, for an admin all."""
    author = call.author
    return [
        {**_row(service, session), "current": session.id == author.session}
        for session in service.sessions.all()
        if (author.admin or session.grant.user == author.user) and _holds(service, session.grant)
    ]


@routes("DELETE /v1/sessions/{id}", SessionRow, None, needs="user")
def end_session(service: Service, call: Call) -> Response:
    """End a session: sign out."""
    author, name = call.author, call.path["id"]
    session = next((row for row in service.sessions.all() if row.id == name), None)
    if session is None:
        raise NotFound("session", name)
    if not (author.admin or session.grant.user == author.user):
        raise Forbidden(f"session {name!r} does not belong to {author.user}")
    service.sessions.end(name)
    current = name == author.session
    row = {**_row(service, session), "current": current}
    reply = Response(msgspec.json.encode(row), media_type="application/json")
    if current:
        reply.delete_cookie(cookie_name(call.request), path="/", httponly=True, samesite="strict")
    return reply


def _row(service: Service, session: BrowserSession) -> dict[str, Any]:
    now_s, now_ms = service.sessions.clock(), service.now_ms()

    def shown(at_s: float) -> str:
        return format_time(now_ms + round((at_s - now_s) * 1000))

    return {
        "id": session.id,
        "user": session.grant.user,
        "how": session.how,
        "token": session.grant.token,
        "since": shown(session.since),
        "used": shown(session.seen),
        "expires": shown(min(session.seen + IDLE_S, session.since + AGE_S)),
    }
