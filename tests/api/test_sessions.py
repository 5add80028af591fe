"""Browsers that are signed in: how one comes to be, what it may do, how it ends; and attacks."""

import asyncio
import http.cookies
import json
import os
import socket
import time
from dataclasses import dataclass
from typing import Any

import pytest

from fairlead.api.access import AccessGate, loopback_names
from fairlead.api.app import build
from fairlead.api.browser_sessions import (
    AGE_S,
    CODE_S,
    CODES_EACH,
    GUESSES_PER_S,
    IDLE_S,
    SESSIONS_EACH,
    Grant,
    Sessions,
)
from fairlead.api.rates import BURST_S
from tests.api.servers import Reply, Running, run, serving, short_folder


@pytest.fixture
def lab(server: Running) -> Running:
    """The server of this file, as after a restart: no sessions, and all guesses left."""
    Sessions.__init__(server.service.sessions)
    return server


@dataclass(frozen=True)
class Browser:
    """What a browser that is signed in holds: its cookie, the page's key, the page's origin."""

    server: Running
    session: str
    cookie: str
    key: str

    @property
    def headers(self) -> dict[str, str]:
        return {**origin(self.server), "Cookie": self.cookie, "Fairlead-Session": self.key}

    def send(self, method: str, path: str, body: Any = None, **changed: str | None) -> Reply:
        """A request of the page; `changed` replaces headers, None leaves one out."""
        names = {name.replace("_", "-").title(): value for name, value in changed.items()}
        given = {**{name.title(): value for name, value in self.headers.items()}, **names}
        headers = {name: value for name, value in given.items() if value is not None}
        return self.server.send(method, path, body, tcp=True, headers=headers)

    def who(self) -> dict[str, Any]:
        reply = self.send("GET", "/v1/whoami")
        assert reply.status == 200, reply
        return dict(reply.json)


def origin(server: Running) -> dict[str, str]:
    where = f"http://127.0.0.1:{server.port}"
    return {"Origin": where, "Sec-Fetch-Site": "same-origin", "Content-Type": "application/json"}


def try_to_sign_in(server: Running, body: Any, **more: str) -> Reply:
    return server.send("POST", "/v1/signin", body, tcp=True, headers={**origin(server), **more})


def sign_in(server: Running, **secret: str) -> Browser:
    reply = try_to_sign_in(server, secret)
    assert reply.status == 200, reply
    made = http.cookies.SimpleCookie(reply.headers["set-cookie"])
    (morsel,) = made.values()
    cookie = f"{morsel.key}={morsel.value}"
    return Browser(server, reply.json["session"], cookie, reply.json["key"])


def token_id(server: Running, user: str) -> str:
    """The newest token of a user."""
    return str([row["id"] for row in server.ok("GET", "/v1/tokens") if row["user"] == user][-1])


def code_of(server: Running, **how: Any) -> str:
    return str(server.ok("POST", "/v1/signin/codes", **how)["code"])


def cancel(browser: Browser, name: str, **changed: str | None) -> Reply:
    return browser.send("POST", f"/v1/objects/Run/{name}/actions/cancel", **changed)


# -- signing in


def test_a_token_signs_a_browser_in_with_its_users_rights(lab: Running) -> None:
    """It acts for the token's owners and no others, and the ledger names its user and token."""
    token = lab.token("ada", "team-a")
    browser = sign_in(lab, token=token)
    who = browser.who()
    assert (who["user"], who["owners"], who["admin"]) == ("ada", ["team-a"], False)
    assert who["session"] == browser.session
    assert browser.send("PUT", "/v1/objects/Run/mine", run("mine")).status == 200
    other = browser.send("PUT", "/v1/objects/Run/yours", run("yours", "team-b"))
    assert (other.status, other.code) == (403, "Forbidden")
    assert browser.send("POST", "/v1/objects/Node/box/actions/cordon").status == 403
    assert cancel(browser, "mine").status == 200
    events = lab.ok("GET", "/v1/events?limit=1000")["items"]
    mine = [row for row in events if row["object"] == {"kind": "Run", "name": "mine"}]
    by_hand = [row["author"] for row in mine if row["author"] != "fairlead"]
    assert by_hand
    assert set(by_hand) == {"ada"}
    (applied,) = [row for row in mine if row["kind"] == "object.applied"]
    assert applied["body"]["token"] == token_id(lab, "ada"), "the run's rights end with the token"


def test_a_link_signs_in_the_user_who_asked_for_it(lab: Running) -> None:
    """Over the socket the kernel says who asks; with a token it is the token's user."""
    made = lab.ok("POST", "/v1/signin/codes")
    assert made["address"] == f"http://127.0.0.1:{lab.port}/signin#code={made['code']}"
    browser = sign_in(lab, code=made["code"])
    assert browser.who()["admin"]
    assert browser.who()["user"] == lab.ok("GET", "/v1/whoami")["user"]
    assert browser.send("POST", "/v1/objects/Node/box/actions/cordon").status == 200
    bob = lab.token("bob", "team-b")
    tenant = sign_in(lab, code=code_of(lab, tcp=True, token=bob))
    assert (tenant.who()["user"], tenant.who()["owners"]) == ("bob", ["team-b"])
    assert tenant.send("POST", "/v1/objects/Node/box/actions/uncordon").status == 403
    assert browser.send("POST", "/v1/objects/Node/box/actions/uncordon").status == 200


def test_the_cookie_is_kept_from_scripts_and_from_other_sites(lab: Running) -> None:
    """HttpOnly, SameSite=Strict, for this host alone; its name has the port, which cookies lack."""
    reply = try_to_sign_in(lab, {"token": lab.token("ada", "team-a")})
    made = reply.headers["set-cookie"]
    assert made.startswith(f"fairlead-{lab.port}=")
    words = {word.strip().lower() for word in made.split(";")[1:]}
    assert words == {"httponly", "samesite=strict", "path=/", f"max-age={int(AGE_S)}"}
    assert reply.json["key"] not in made
    assert reply.headers["cache-control"] == "no-store"


def test_over_tls_the_cookie_is_secure_and_bound_to_the_host(lab: Running) -> None:
    """Where the application is served over https: `Secure`, and the prefix `__Host-`."""
    names = loopback_names(8470)
    origins = frozenset({"https://localhost:8470"})
    gate = AccessGate(lab.service.access, names[0], origins, sessions=lab.service.sessions)
    token = lab.token("ada", "team-a")

    body = json.dumps({"token": token}).encode()
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    given = {
        "host": "localhost:8470",
        "origin": "https://localhost:8470",
        "content-type": "application/json",
    }
    scope = {
        "type": "http",
        "scheme": "https",
        "method": "POST",
        "path": "/v1/signin",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
    }
    asyncio.run(build(lab.service, gate, lambda error: None)(scope, receive, send))
    made = dict(sent[0]["headers"])[b"set-cookie"].decode()
    assert made.startswith("__Host-fairlead-8470=")
    assert "Secure" in made.split("; ")


def test_a_session_grants_no_rights(lab: Running) -> None:
    """It makes no token, binds no user and opens no other session, an admin's neither: so ending
    it, or revoking its token, is enough."""
    chief = sign_in(lab, code=code_of(lab))
    assert chief.who()["admin"]
    for method, path, body in (
        ("POST", "/v1/tokens", {}),
        ("POST", "/v1/tokens?dry_run=true", {}),
        ("PUT", "/v1/users/mallory", {"owners": ["team-a"], "admin": True}),
        ("PUT", "/v1/owner-keys/team-a", {"publicKey": "ab" * 32, "signature": "ab" * 64}),
        ("POST", "/v1/signin/codes", None),
    ):
        reply = chief.send(method, path, body)
        assert (reply.status, reply.code) == (403, "Forbidden"), path
        assert "session" in reply.json["error"]["message"]


# -- ending


def test_a_session_ends_with_its_token(lab: Running) -> None:
    """Revoked: the next request is refused. Unbound: its user acts for nobody."""
    token = lab.token("ada", "team-a")
    browser, linked = sign_in(lab, token=token), sign_in(lab, code=code_of(lab, token=token))
    lab.apply(run("long", duration="1h"))
    lab.ok("PUT", "/v1/users/ada", {"owners": ["team-b"]})
    assert cancel(browser, "long").status == 403
    lab.ok("POST", "/v1/objects/Run/long/actions/cancel")
    lab.ok("DELETE", f"/v1/tokens/{token_id(lab, 'ada')}")
    assert lab.ok("GET", "/v1/sessions") == []
    for each in (browser, linked):
        reply = each.send("GET", "/v1/budgets")
        assert (reply.status, reply.code) == (401, "Unauthenticated")
    assert lab.ok("GET", "/v1/sessions") == []


def test_a_code_of_a_revoked_token_opens_nothing(lab: Running) -> None:
    token = lab.token("ada", "team-a")
    code = code_of(lab, token=token)
    lab.ok("DELETE", f"/v1/tokens/{token_id(lab, 'ada')}")
    assert try_to_sign_in(lab, {"code": code}).status == 401
    assert lab.ok("GET", "/v1/sessions") == []


def test_signing_out_ends_the_session_whatever_was_copied(lab: Running) -> None:
    """Who has stolen both secrets has nothing afterwards."""
    browser = sign_in(lab, token=lab.token("ada", "team-a"))
    assert browser.who()["session"] == browser.session
    reply = browser.send("DELETE", f"/v1/sessions/{browser.session}")
    assert reply.status == 200
    assert reply.json["current"]
    assert "max-age=0" in reply.headers["set-cookie"].lower()
    for method, path in (("GET", "/v1/whoami"), ("POST", "/v1/objects/Run/x/actions/cancel")):
        assert browser.send(method, path).status == 401


def test_sessions_are_listed_and_ended_by_their_user_and_admins(lab: Running) -> None:
    ada, bob = (
        sign_in(lab, token=lab.token("ada", "team-a")),
        sign_in(lab, token=lab.token("bob", "team-b")),
    )
    (row,) = ada.send("GET", "/v1/sessions").json
    assert (row["id"], row["user"], row["how"], row["current"]) == (
        ada.session,
        "ada",
        "token",
        True,
    )
    assert row["since"] <= row["used"] < row["expires"]
    assert ada.send("DELETE", f"/v1/sessions/{bob.session}").status == 403
    assert ada.send("DELETE", "/v1/sessions/none").status == 404
    assert {row["user"] for row in lab.ok("GET", "/v1/sessions")} == {"ada", "bob"}
    assert lab.ok("DELETE", f"/v1/sessions/{bob.session}")["current"] is False
    assert bob.send("GET", "/v1/whoami").status == 401
    assert ada.who()["user"] == "ada"


@pytest.mark.parametrize(
    ("step_s", "steps", "ended"),
    [(IDLE_S - 1, 3, False), (IDLE_S, 1, True), (IDLE_S / 2, 23, False), (IDLE_S / 2, 24, True)],
)
def test_a_session_ends_when_it_is_idle_or_old(
    lab: Running, step_s: float, steps: int, ended: bool
) -> None:
    """After an hour without a request, and after twelve hours in any case."""
    sessions, start = lab.service.sessions, time.monotonic()
    sessions.clock = lambda: start
    browser = sign_in(lab, token=lab.token("ada", "team-a"))
    for number in range(1, steps + 1):
        sessions.clock = lambda now=start + number * step_s: now  # type: ignore[misc]
        last = browser.send("GET", "/v1/whoami").status
    assert last == (401 if ended else 200)
    assert step_s * steps < AGE_S or ended


def test_a_restart_ends_every_session() -> None:
    """They are in memory only."""
    with short_folder() as folder:
        with serving(folder) as first:
            browser = sign_in(first, token=first.token("ada", "team-a"))
        with serving(folder, port=first.port) as second:
            assert Browser(second, *_held(browser)).send("GET", "/v1/whoami").status == 401


def _held(browser: Browser) -> tuple[str, str, str]:
    return browser.session, browser.cookie, browser.key


# -- attacks


def test_a_code_is_used_once_and_only_for_a_minute(lab: Running) -> None:
    """Replayed, or read from a terminal's history later, it opens nothing."""
    code = code_of(lab)
    sign_in(lab, code=code)
    again = try_to_sign_in(lab, {"code": code})
    assert (again.status, again.code) == (401, "Unauthenticated")
    assert "set-cookie" not in again.headers
    late, start = code_of(lab), time.monotonic()
    lab.service.sessions.clock = lambda: start + CODE_S + 1
    assert try_to_sign_in(lab, {"code": late}).status == 401


def test_guesses_are_slowed_down(lab: Running) -> None:
    """After a burst the server answers 429 and does not look: neither codes nor tokens."""
    right = code_of(lab)
    replies = [try_to_sign_in(lab, {"code": f"{right[:-1]}{n}~"}) for n in range(40)]
    statuses = [reply.status for reply in replies]
    assert statuses[0] == 401
    assert set(statuses) == {401, 429}
    assert statuses.count(401) <= GUESSES_PER_S * (BURST_S + 20)
    limited = next(reply for reply in replies if reply.status == 429)
    assert int(limited.headers["retry-after"]) >= 1
    lab.until("a guess is allowed", lambda: try_to_sign_in(lab, {"token": "flt_x"}).status == 401)


def test_a_cookie_alone_opens_nothing(lab: Running) -> None:
    """A server on another port of this machine gets the cookie from the browser. Without the key,
    which only our page can read, it is an anonymous reader; with a wrong one it is refused."""
    lab.apply(run("quiet", command=["echo", "hush"]))
    browser = sign_in(lab, token=lab.token("ada", "team-a"))
    assert b"hush" in browser.send("GET", "/v1/objects/Run/quiet").data
    assert b"hush" not in browser.send("GET", "/v1/objects/Run/quiet", fairlead_session=None).data
    assert browser.send("GET", "/v1/whoami", fairlead_session=None).json["anonymous"]
    assert cancel(browser, "quiet", fairlead_session=None).status == 401
    for key in ("", "x", browser.key[:-1], browser.session, browser.cookie.partition("=")[2]):
        assert cancel(browser, "quiet", fairlead_session=key).status == 401, key


def test_a_key_alone_opens_nothing(lab: Running) -> None:
    """Nor with the cookie of another session, nor with one that has another name."""
    ada, bob = (
        sign_in(lab, token=lab.token("ada", "team-a")),
        sign_in(lab, token=lab.token("bob", "team-b")),
    )
    renamed = f"fairlead-1={ada.cookie.partition('=')[2]}"
    for cookie in (None, "", bob.cookie, renamed, f"x{ada.cookie}", ada.cookie + "x"):
        assert ada.send("GET", "/v1/whoami", cookie=cookie).status == 401, cookie


def test_a_cookie_that_another_port_added_fixes_no_session(lab: Running) -> None:
    """Ada's page goes on as ada, whatever else is in the jar; mallory's cookie signs nobody in."""
    ada = sign_in(lab, token=lab.token("ada", "team-a"))
    mallory = sign_in(lab, token=lab.token("mallory", "team-b"))
    for both in (f"{mallory.cookie}; {ada.cookie}", f"{ada.cookie}; {mallory.cookie}"):
        reply = ada.send("GET", "/v1/whoami", cookie=both)
        assert reply.json["user"] == "ada"
    fixed = try_to_sign_in(lab, {"code": code_of(lab)}, Cookie=mallory.cookie)
    assert fixed.headers["set-cookie"].partition(";")[0] != mallory.cookie
    assert fixed.json["key"] not in (ada.key, mallory.key)


@pytest.mark.parametrize(
    "changed",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": None},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"host": "evil.example"},
        {"host": "evil.example:{port}"},
        {"host": "127.0.0.1.nip.io:{port}"},
    ],
    ids=str,
)
def test_other_pages_and_names_change_nothing(lab: Running, changed: dict[str, str | None]) -> None:
    """CSRF from another origin, port or name, and DNS rebinding: also with both secrets."""
    browser = sign_in(lab, token=lab.token("ada", "team-a"))
    lab.apply(run("kept", gpus=1, duration="1h"))
    given = {name: value and value.format(port=lab.port) for name, value in changed.items()}
    reply = cancel(browser, "kept", **given)
    assert (reply.status, reply.code) == (403, "Forbidden")
    signs = {name.replace("_", "-").title(): value for name, value in given.items()}
    headers = {**origin(lab), **signs}
    sent = {name: value for name, value in headers.items() if value is not None}
    body = {"token": lab.token("mallory", "team-b")}
    refused = lab.send("POST", "/v1/signin", body, tcp=True, headers=sent)
    assert (refused.status, refused.code) == (403, "Forbidden")
    assert "set-cookie" not in refused.headers
    assert lab.status("Run", "kept")["phase"] in ("Pending", "Running")


@pytest.mark.parametrize(
    "media", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None]
)
def test_a_form_changes_nothing(lab: Running, media: str | None) -> None:
    """A form sends the cookie, never the header; and it signs nobody in."""
    browser = sign_in(lab, token=lab.token("ada", "team-a"))
    form = {"content_type": media, "fairlead_session": None}
    manifest = json.dumps(run("formed")).encode()
    assert browser.send("PUT", "/v1/objects/Run/formed", manifest, **form).status == 401
    assert browser.send("POST", "/v1/apply", b'{"manifests":[]}', **form).status == 401
    text = json.dumps({"token": lab.token("mallory", "team-b")}).encode()
    reply = browser.send("POST", "/v1/signin", text, **form)
    assert (reply.status, reply.code) == (403, "Forbidden")
    assert lab.send("GET", "/v1/objects/Run/formed").status == 404


def test_the_browser_is_not_told_that_others_may_ask(lab: Running) -> None:
    """The question that a browser asks before it sends our header from elsewhere gets no yes."""
    asks = {
        "Origin": "http://evil.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "fairlead-session",
    }
    reply = lab.send("OPTIONS", "/v1/objects/Run/x/actions/cancel", tcp=True, headers=asks)
    assert reply.status in (403, 405)
    assert not any(name.startswith("access-control") for name in reply.headers)


def raw(server: Running, *lines: str) -> int:
    """The status of a request whose headers are sent as they are."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as peer:
        head = [*lines, f"Host: 127.0.0.1:{server.port}", "Connection: close", "", ""]
        peer.sendall("\r\n".join(head).encode())
        data = b"".join(iter(lambda: peer.recv(65536), b""))
    return int(data.split()[1])


def test_headers_that_are_given_twice_or_folded_open_nothing(lab: Running) -> None:
    """A request that two readers could read differently is no session's."""
    browser = sign_in(lab, token=lab.token("ada", "team-a"))
    line = "GET /v1/sessions HTTP/1.1"
    key, cookie = f"Fairlead-Session: {browser.key}", f"Cookie: {browser.cookie}"
    assert raw(lab, line, key, cookie) == 200
    assert raw(lab, line, key, "Fairlead-Session: x", cookie) == 401
    assert raw(lab, line, "Fairlead-Session: x", key, cookie) == 401
    assert raw(lab, line, f"Fairlead_Session: {browser.key}", cookie) == 401
    assert raw(lab, line, f"Fairlead-Session : {browser.key}", cookie) == 400
    assert raw(lab, line, f"X: y\r\n\t{key}", cookie) in (400, 401)
    assert raw(lab, line, f"X: y\n{key}", cookie) in (200, 400), "a bare line feed ends a line"
    assert raw(lab, line, key, "Cookie: a=b", cookie) == 200


def test_a_token_beside_a_session_decides(lab: Running) -> None:
    """The rights of two are never added up."""
    chief, ada = sign_in(lab, code=code_of(lab)), lab.token("ada", "team-a")
    reply = chief.send("GET", "/v1/whoami", authorization=f"Bearer {ada}")
    assert (reply.json["user"], reply.json["admin"], reply.json["session"]) == ("ada", False, None)
    assert chief.send("GET", "/v1/whoami", authorization="Bearer x").status == 401


def test_a_session_is_none_on_the_socket(lab: Running) -> None:
    """There the kernel says who asks: a run's process gains nothing by a cookie that it found."""
    browser = sign_in(lab, token=lab.token("ada", "team-a"))
    who = lab.ok("GET", "/v1/whoami", headers=browser.headers)
    assert (who["session"], who["user"]) == (None, lab.ok("GET", "/v1/whoami")["user"])


def test_gets_change_nothing(lab: Running) -> None:
    """Reading every page and table as an admin's session leaves the ledger as it is."""
    chief = sign_in(lab, code=code_of(lab))
    lab.until("settled", lambda: lab.ok("GET", "/v1/head") == lab.ok("GET", "/v1/head"))
    before = lab.ok("GET", "/v1/head")["size"]
    for path in ("/", "/signin", "/submit", "/v1/signin", "/v1/sessions", "/v1/budgets"):
        chief.send("GET", path)
    assert chief.send("GET", "/v1/signin").status == 405
    assert lab.ok("GET", "/v1/head")["size"] == before


def test_what_signs_in_is_a_token_or_a_code(lab: Running) -> None:
    """Refused with the field."""
    for body in ({}, {"token": "x", "code": "y"}, {"token": ""}, {"token": "x" * 201}):
        reply = try_to_sign_in(lab, body)
        assert (reply.status, reply.code) == (422, "Invalid"), body
        assert reply.json["error"]["path"] == "token"
    assert try_to_sign_in(lab, b"{").status == 400


def test_a_user_without_rights_needs_no_session(lab: Running) -> None:
    """And anonymous readers cannot make one."""
    nobody = lab.token("eve")
    assert lab.send("POST", "/v1/signin/codes", tcp=True, token=nobody).status == 403
    assert lab.send("POST", "/v1/signin/codes", tcp=True).status == 401


def test_without_a_port_there_is_no_page_to_sign_in_to() -> None:
    with short_folder() as folder, serving(folder) as running:
        running.service.address = None
        reply = running.send("POST", "/v1/signin/codes")
        assert (reply.status, reply.code) == (409, "NoPage")


def test_sessions_and_codes_of_a_user_are_bounded() -> None:
    """One more ends the one that was unused for longest; other users keep theirs."""
    now = 0.0
    sessions = Sessions(lambda: now)
    ada, bob = Grant("ada", token="1"), Grant("bob", token="2")
    other = sessions.open(bob, "token")
    opened = []
    for now in range(SESSIONS_EACH):  # noqa: B007 - the clock reads it
        opened.append(sessions.open(ada, "token"))
    now += 1.0
    assert sessions.find(opened[0].key, [opened[0].cookie]), "used again: it is not the oldest"
    opened.append(sessions.open(ada, "link"))
    alive = [sessions.find(each.key, [each.cookie]) is not None for each in opened]
    assert alive == [True, False, *[True] * (SESSIONS_EACH - 1)]
    assert sessions.find(other.key, [other.cookie])
    codes = [sessions.new_code(ada) for _ in range(CODES_EACH + 1)]
    assert [sessions.redeem(code) for code in codes] == [None, *[ada] * CODES_EACH]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run as others")
def test_a_process_of_a_run_gets_no_code(lab: Running) -> None:
    """It has its run's rights, and a session would have its user's."""
    script = (
        "import socket,sys; s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        "head='POST /v1/signin/codes HTTP/1.1|Host: x|Connection: close||';"
        "s.sendall(head.replace('|', chr(13)+chr(10)).encode());"
        "print(s.recv(65536).split()[1].decode())"
    )
    lab.apply(run("inside", command=["/usr/bin/python3", "-c", script, str(lab.socket)]))
    assert lab.ended("inside")["phase"] == "Completed"
    assert lab.send("GET", "/v1/runs/inside/logs").data == b"403\n"


def test_the_token_of_an_agent_signs_no_browser_in(lab: Running) -> None:
    """It reports, and a session of it would be a user's."""
    token = lab.ok("POST", "/v1/tokens", {"agent": "west"})["token"]
    reply = try_to_sign_in(lab, {"token": token})
    assert (reply.status, reply.code) == (403, "Forbidden")
    assert lab.send("POST", "/v1/signin/codes", token=token).status == 403
    held = lab.service.access.author_of_token(token)
    assert held is not None
    assert lab.service.access.author_by_token(str(held.token)) == held


@pytest.mark.parametrize("name", ["localhost", "[::1]"])
def test_a_browser_signs_in_under_one_name_only(lab: Running, name: str) -> None:
    """Any user of the machine may listen on [::1] under our port, and browsers ask there first for
    `localhost`: the page there would be of the same origin, and have both secrets."""
    host = f"{name}:{lab.port}"
    body = {"token": lab.token("ada", "team-a")}
    reply = try_to_sign_in(lab, body, Host=host, Origin=f"http://{host}")
    assert (reply.status, reply.code) == (403, "Forbidden")
    assert f"http://127.0.0.1:{lab.port}/signin" in reply.json["error"]["message"]
    assert "set-cookie" not in reply.headers
