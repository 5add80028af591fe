"""Who may do what: peers, tokens, owners; and which names the server answers to."""

import json
import os
import socket
import subprocess
import sys

import pytest

from fairlead.api.access import TOKENS_EACH, TOKENS_MS
from fairlead.engine.gpu import Author, Refused
from tests.api.servers import Running, budget, run, serving, short_folder

ASK = """
import json, os, socket, sys
os.setgroups([]); os.setresgid(*[65534] * 3); os.setresuid(*[65534] * 3)
path, method, target, body = sys.argv[1:5]
peer = socket.socket(socket.AF_UNIX); peer.connect(path)
head = f"{method} {target} HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n"
peer.sendall(f"{head}Content-Length: {len(body)}\\r\\n\\r\\n{body}".encode())
data = b"".join(iter(lambda: peer.recv(65536), b""))
print(json.dumps([int(data.split()[1]), data.partition(b"\\r\\n\\r\\n")[2].decode()]))
"""


def put(server: Running, name: str, owner: str = "team-a", **how: object):
    return server.send("PUT", f"/v1/objects/Run/{name}", run(name, owner), **how)


def test_without_a_token_loopback_only_reads(server: Running) -> None:
    """Everything that writes, and every secret, needs somebody; 401 says how to be somebody."""
    for path in ("/v1/budgets", "/v1/leases", "/v1/objects/Run", "/v1/events", "/metrics"):
        assert server.send("GET", path, tcp=True).status == 200
    for method, path, body in (
        ("PUT", "/v1/objects/Run/x", run("x")),
        ("DELETE", "/v1/objects/Node/box", None),
        ("POST", "/v1/apply", {"manifests": [run("x")]}),
        ("POST", "/v1/plan", run("x")),
        ("POST", "/v1/objects/Node/box/actions/cordon", None),
        ("POST", "/v1/tokens", {}),
        ("GET", "/v1/tokens", None),
        ("GET", "/v1/users", None),
        ("GET", "/v1/runs/x/logs", None),
    ):
        reply = server.send(method, path, body, tcp=True)
        assert (reply.status, reply.code) == (401, "Unauthenticated"), (method, path)
        assert reply.headers["www-authenticate"] == "Bearer"
    assert server.ok("GET", "/v1/whoami", tcp=True)["anonymous"]
    assert server.send("GET", "/v1/objects/Run/x").status == 404


def test_a_token_acts_for_the_owners_of_its_user(server: Running) -> None:
    """Its own owners and nobody else's; never for budgets, nodes or other users."""
    ada = server.token("ada", "team-a")
    assert server.ok("GET", "/v1/whoami", tcp=True, token=ada) == {
        "user": "ada",
        "owners": ["team-a"],
        "admin": False,
        "anonymous": False,
        "in_run": False,
        "run": None,
        "session": None,
    }
    assert put(server, "mine", tcp=True, token=ada).status == 200
    for reply in (
        put(server, "yours", "team-b", tcp=True, token=ada),
        server.send("PUT", "/v1/objects/Budget/team-a", budget("team-a", 8), tcp=True, token=ada),
        server.send("POST", "/v1/objects/Node/box/actions/drain", tcp=True, token=ada),
        server.send("PUT", "/v1/users/ada", {"admin": True}, tcp=True, token=ada),
        server.send("POST", "/v1/tokens", {"user": "root"}, tcp=True, token=ada),
        server.send("POST", "/v1/plan", run("p", "team-b"), tcp=True, token=ada),
    ):
        assert (reply.status, reply.code) == (403, "Forbidden")
    assert server.send("GET", "/v1/objects/Run/yours").status == 404
    both = {"manifests": [run("mine-2"), run("yours", "team-b")]}
    assert server.send("POST", "/v1/apply", both, tcp=True, token=ada).status == 403
    assert server.send("GET", "/v1/objects/Run/mine-2").status == 404, "nothing was half applied"


def test_a_revoked_or_wrong_token_opens_nothing(server: Running) -> None:
    """Not even reading: somebody who shows a token means to be somebody."""
    bob = server.token("bob", "team-b")
    (row,) = server.ok("GET", "/v1/tokens", tcp=True, token=bob)
    assert (row["user"], row["revoked"]) == ("bob", None)
    other = next(row for row in server.ok("GET", "/v1/tokens") if row["user"] != "bob")
    refused = server.send("DELETE", f"/v1/tokens/{other['id']}", tcp=True, token=bob)
    assert refused.status == 403
    assert server.ok("DELETE", f"/v1/tokens/{row['id']}", tcp=True, token=bob)["revoked"]
    for token in (bob, bob[:-1], "", "x y", "flt_" + "A" * 43):
        reply = server.send("GET", "/v1/budgets", tcp=True, token=token)
        assert (reply.status, reply.code) == (401, "Unauthenticated"), token
    assert server.send("DELETE", f"/v1/tokens/{row['id']}").status == 409
    assert server.send("DELETE", "/v1/tokens/none").status == 404
    basic = {"Authorization": "Basic cm9vdDpyb290"}
    assert server.send("GET", "/v1/budgets", tcp=True, headers=basic).status == 401


def test_a_token_gives_no_rights_that_outlive_it(server: Running) -> None:
    """A thief of one makes no other and binds nobody, admin or not, over the socket too;
    so revoking it is enough."""
    for token in (server.token("ada", "team-a"), server.token("chief", admin=True)):
        tokens, users = server.ok("GET", "/v1/tokens"), server.ok("GET", "/v1/users")
        for tcp in (True, False):
            for method, path, body in (
                ("POST", "/v1/tokens", {}),
                ("POST", "/v1/tokens", {"user": "ada"}),
                ("POST", "/v1/tokens?dry_run=true", {}),
                ("PUT", "/v1/users/mallory", {"owners": ["team-a"], "admin": True}),
            ):
                reply = server.send(method, path, body, tcp=tcp, token=token)
                assert (reply.status, reply.code) == (403, "Forbidden"), (path, tcp)
        assert server.ok("GET", "/v1/tokens") == tokens
        assert server.ok("GET", "/v1/users") == users
    chief = next(row for row in server.ok("GET", "/v1/tokens") if row["user"] == "chief")
    assert server.ok("DELETE", f"/v1/tokens/{chief['id']}", tcp=True, token=token)["revoked"]
    server.ok("DELETE", "/v1/users/chief")


def test_a_user_that_is_unbound_acts_for_nobody(server: Running) -> None:
    """A binding is asked at every request, not when the token was made."""
    eve = server.token("eve", "team-b")
    assert put(server, "eves", "team-b", tcp=True, token=eve).status == 200
    server.ok("DELETE", "/v1/users/eve")
    assert put(server, "eves-2", "team-b", tcp=True, token=eve).status == 403
    assert server.send("DELETE", "/v1/users/eve").status == 404


def test_only_those_of_the_owner_see_commands_and_output(server: Running) -> None:
    """Commands, variables and output may hold what others must not see."""
    secret = run("quiet", command=["echo", "hush"], env={"KEY": "hush"})
    server.apply(secret)
    bob, ada = server.token("bob", "team-b"), server.token("ada", "team-a")
    server.ended("quiet")
    for how in ({"tcp": True}, {"tcp": True, "token": bob}):
        for path in (
            "/v1/objects/Run/quiet",
            "/v1/objects/Run",
            "/v1/explain/Run/quiet",
            "/v1/events?limit=1000",
        ):
            assert b"hush" not in server.send("GET", path, **how).data, path
    assert server.send("GET", "/v1/runs/quiet/logs", tcp=True, token=bob).status == 403
    assert server.send("GET", "/v1/runs/quiet/logs", tcp=True, token=ada).data == b"hush\n"
    mine = server.ok("GET", "/v1/objects/Run/quiet", tcp=True, token=ada)
    assert mine["spec"]["env"] == {"KEY": "hush"}


def test_why_a_command_did_not_start_is_told_to_its_own(server: Running) -> None:
    """The reason names the program, or the file of a secret; others learn the code alone."""
    server.apply(run("astray", command=["/opt/hush/tool"]))
    bob, ada = server.token("bob", "team-b"), server.token("ada", "team-a")
    server.ended("astray")
    paths = (
        "/v1/objects/Run/astray",
        "/v1/objects/Run",
        "/v1/explain/Run/astray",
        "/v1/events?limit=1000",
    )
    for path in paths:
        assert b"/opt/hush" in server.send("GET", path, tcp=True, token=ada).data, path
    for how in ({"tcp": True}, {"tcp": True, "token": bob}):
        for path in paths:
            assert b"hush" not in server.send("GET", path, **how).data, path
        found = server.ok("GET", "/v1/objects/Run/astray", **how)["status"]
        assert found["message"] == "the command ended with 127"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example:{port}"}, 403),
        ({"Host": "localhost:{port}"}, 200),
        ({"Host": "127.0.0.1:{port}"}, 200),
        ({"Host": "127.0.0.1"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:1"}, 403),
        ({"Origin": "http://localhost:{port}"}, 200),
        ({"Origin": "https://localhost:{port}"}, 403),
        ({"Host": "[::1]:{port}"}, 200),
        ({"Host": "LOCALHOST:{port}"}, 200),
        ({"Host": "localhost:{port}.evil.example"}, 403),
        ({"Host": ""}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
    ],
)
def test_names_that_are_not_ours_are_not_answered(
    server: Running, headers: dict[str, str], status: int
) -> None:
    """DNS rebinding shows in Host, a page from elsewhere in Origin; a token does not help them."""
    given = {name: value.format(port=server.port) for name, value in headers.items()}
    ada = server.token("ada", "team-a")
    for method, path, body, token in (
        ("GET", "/v1/budgets", None, None),
        ("GET", "/v1/budgets", None, ada),
        ("GET", "/v1/watch?after=0&limit=1", None, None),
        ("GET", "/", None, None),
        ("GET", "/web/app.js", None, None),
        ("GET", "/metrics", None, None),
        ("POST", "/v1/plan", run("p"), ada),
    ):
        reply = server.send(method, path, body, tcp=True, token=token, headers=given)
        assert reply.status == status, path


def test_a_link_from_elsewhere_leads_to_the_page_and_to_nothing_else(server: Running) -> None:
    """Following a link is harmless: who made it sees nothing. A frame or a request is not."""
    link = {
        "Sec-Fetch-Site": "cross-site",
        "Sec-Fetch-Mode": "navigate",
        "Sec-Fetch-Dest": "document",
    }
    assert server.send("GET", "/", tcp=True, headers=link).status == 200
    assert server.send("GET", "/v1/budgets", tcp=True, headers=link).status == 403
    for change in (
        {"Sec-Fetch-Dest": "iframe"},
        {"Sec-Fetch-Mode": "no-cors"},
        {"Host": "evil.example"},
    ):
        assert server.send("GET", "/", tcp=True, headers={**link, **change}).status == 403


def test_two_hosts_are_none(server: Running) -> None:
    """A request that names two hosts, or none at all, is not answered."""
    for given in ("Host: localhost:{port}\r\nHost: evil.example\r\n", ""):
        peer = socket.create_connection(("127.0.0.1", server.port), timeout=30)
        head = given.format(port=server.port) + "Connection: close\r\n\r\n"
        peer.sendall(b"GET /v1/budgets HTTP/1.1\r\n" + head.encode())
        data = b"".join(iter(lambda: peer.recv(65536), b""))  # noqa: B023 - read at once
        peer.close()
        assert data.split()[1] in (b"400", b"403"), given


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_the_kernel_says_who_is_at_the_socket(server: Running) -> None:
    """Another user of the machine: may look, acts for the owners it is bound to, is no admin."""

    def ask(method: str, target: str, body: object = None) -> tuple[int, str]:
        text = "" if body is None else json.dumps(body)
        done = subprocess.run(
            [sys.executable, "-I", "-c", ASK, str(server.socket), method, target, text],
            capture_output=True,
            check=True,
        )
        status, data = json.loads(done.stdout)
        return status, data

    me = json.loads(ask("GET", "/v1/whoami")[1])
    assert (me["admin"], me["owners"], me["anonymous"]) == (False, [], False)
    assert ask("PUT", "/v1/objects/Run/n", run("n"))[0] == 403
    assert ask("POST", "/v1/tokens", {})[0] == 403, "who may only look writes nothing"
    server.ok("PUT", f"/v1/users/{me['user']}", {"owners": ["team-a"]})
    assert ask("PUT", "/v1/objects/Run/n", run("n"))[0] == 200
    assert ask("POST", "/v1/tokens", {})[0] == 200
    assert ask("PUT", "/v1/objects/Node/n", {})[0] == 422
    assert ask("GET", "/v1/users")[0] == 403
    assert server.ok("GET", "/v1/whoami")["admin"]


def test_bindings_and_tokens_survive_a_restart() -> None:
    """They are in the ledger: revoked stays revoked, bound stays bound."""
    with short_folder() as folder:
        with serving(folder) as first:
            ada, bob = first.token("ada", "team-a"), first.token("bob", "team-b")
            token = next(row["id"] for row in first.ok("GET", "/v1/tokens") if row["user"] == "bob")
            first.ok("DELETE", f"/v1/tokens/{token}")
        with serving(folder) as second:
            assert second.ok("GET", "/v1/whoami", tcp=True, token=ada)["owners"] == ["team-a"]
            assert second.send("GET", "/v1/whoami", tcp=True, token=bob).status == 401
            kinds = [each["kind"] for each in second.ok("GET", "/v1/events")["items"]]
            assert kinds.count("access.token") == 3
        assert ada.encode() not in (folder / "ledger.db").read_bytes()


def test_a_user_has_so_many_tokens(server: Running) -> None:
    """Valid ones, and those that were made within a day: making and revoking is no way around. An
    admin makes more, and after a day there is room again."""
    access = server.service.access
    ada = Author("quota", frozenset({"team-a"}))

    def make() -> str:
        return str(access.create_token("quota", "", author=ada)["id"])

    made = [make() for _ in range(TOKENS_EACH)]
    size = server.ok("GET", "/v1/head")["size"]
    for dry_run in (True, False):
        with pytest.raises(Refused, match="quota has 100 tokens") as refused:
            access.create_token("quota", "", author=ada, dry_run=dry_run)
        assert refused.value.reason == "TokensQuota"
    assert server.ok("GET", "/v1/head")["size"] == size
    access.revoke(made[0], author=ada)
    with pytest.raises(Refused):
        make()
    more = access.create_token("quota", "", author=Author("chief", admin=True))
    assert access.author_of_token(more["token"]) is not None
    for token in (*made[1:], more["id"]):
        access.revoke(token, author=ada)
    assert access.author_of_token(more["token"]) is None
    now = access._now_ms
    access._now_ms = lambda: now() + TOKENS_MS
    try:
        make()
    finally:
        access._now_ms = now
