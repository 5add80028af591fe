"""A tenant acts for its own owners and for nobody else: every endpoint and every verb."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from fairlead.api.app import ENDPOINTS
from fairlead.api.openapi import document
from fairlead.api.shapes import VERBS
from tests.api.servers import Running, budget, node, run

OTHERS, OWN = "team-b", "team-a"


class Try(NamedTuple):
    """A request for something of `owner`, which only those who act for it may make."""

    path: str
    body: Any = None


# What a tenant may ask for of its own runs, by method and path of the endpoint.
MINE: dict[tuple[str, str], Callable[[str, str], Try]] = {
    ("PUT", "/v1/objects/{kind}/{name}"): lambda name, owner: Try(
        f"/v1/objects/Run/{name}", run(name, owner, 99)
    ),
    ("POST", "/v1/apply"): lambda name, owner: Try(
        "/v1/apply", {"manifests": [run(name, owner, 99)]}
    ),
    ("POST", "/v1/plan"): lambda name, owner: Try("/v1/plan", run(name, owner, 99)),
    ("GET", "/v1/runs/{name}/logs"): lambda name, owner: Try(f"/v1/runs/{name}/logs"),
    ("GET", "/v1/runs/{name}/output"): lambda name, owner: Try(f"/v1/runs/{name}/output"),
    ("POST", "/v1/runs/{name}/keyboard"): lambda name, owner: Try(
        f"/v1/runs/{name}/keyboard", {"interrupt": True}
    ),
    ("DELETE", "/v1/objects/{kind}/{name}"): lambda name, owner: Try(f"/v1/objects/Run/{name}"),
    ("PUT", "/v1/nonces/{owner}"): lambda name, owner: Try(
        f"/v1/nonces/{owner}", {"nonce": "00", "size": 1, "signature": "ab" * 64}
    ),
}
# What is the admin's alone.
ADMINS: dict[tuple[str, str], list[Try]] = {
    ("PUT", "/v1/objects/{kind}/{name}"): [
        Try("/v1/objects/Budget/team-a", budget("team-a", 99)),
        Try("/v1/objects/Budget/mine", budget("mine")),
        Try("/v1/objects/Node/box", node()),
    ],
    ("DELETE", "/v1/objects/{kind}/{name}"): [
        Try("/v1/objects/Budget/team-a"),
        Try("/v1/objects/Node/box"),
    ],
    ("POST", "/v1/apply"): [
        Try("/v1/apply", {"manifests": [node("new")]}),
        Try("/v1/apply", {"manifests": [budget("team-a", 99)]}),
    ],
    ("GET", "/v1/users"): [Try("/v1/users")],
    ("PUT", "/v1/users/{name}"): [Try("/v1/users/tenant", {"admin": True})],
    ("DELETE", "/v1/users/{name}"): [Try("/v1/users/other")],
    ("POST", "/v1/tokens"): [Try("/v1/tokens", {"user": "other"})],
    ("POST", "/v1/resolve"): [
        Try("/v1/resolve", {"flavor": "H100", "gpus": 1}),
        Try("/v1/resolve?dry_run=true", {"cap": {"budget": "team-a", "name": "main"}}),
    ],
    ("POST", "/v1/groups/{name}/backends/{backend}/orders/{order}"): [
        Try("/v1/groups/web/backends/b1/orders/isolate")
    ],
    ("POST", "/v1/outcomes/{seq}/void"): [Try("/v1/outcomes/1/void", {"reason": "mine"})],
    ("POST", "/v1/clock"): [Try("/v1/clock", {"judgement": "accept"})],
    ("POST", "/v1/beacons"): [Try("/v1/beacons", {"source": "x", "round": 1, "value": "00" * 48})],
}
# What a tenant may itself, on the socket, and never with a token.
GRANTS: dict[tuple[str, str], Try] = {
    ("PUT", "/v1/owner-keys/{owner}"): Try(
        f"/v1/owner-keys/{OWN}", {"publicKey": "ab" * 32, "signature": "ab" * 64}
    ),
    ("PUT", "/v1/users/{name}"): Try("/v1/users/tenant", {"owners": [OWN]}),
    ("POST", "/v1/tokens"): Try("/v1/tokens", {}),
}
# What every user may, about itself.
ANYBODYS = {
    ("GET", "/v1/tokens"),
    ("POST", "/v1/tokens"),
    ("DELETE", "/v1/tokens/{id}"),
    ("POST", "/v1/signin/codes"),
    ("GET", "/v1/sessions"),
    ("DELETE", "/v1/sessions/{id}"),
    ("POST", "/v1/manifests"),
}
# What agents may with tokens of their own: tests/api/test_fleet.py.
AGENTS = {("POST", "/v1/reports")}
# Where an anonymous reader becomes a user: with a secret, checked there.
SIGN_IN = ("POST", "/v1/signin")
ACTIONS = ("POST", "/v1/objects/{kind}/{name}/actions/{verb}")


@pytest.fixture(scope="module")
def tenant(server: Running) -> str:
    server.ok("PUT", "/v1/users/other", {"owners": [OTHERS]})
    return server.token("tenant", OWN)


def test_every_endpoint_that_needs_somebody_is_tried() -> None:
    """A new endpoint that writes, or shows what is not for everybody, has to be listed here."""
    guarded = {(each.method, each.path) for each in ENDPOINTS if each.needs != "nothing"}
    assert guarded == {*MINE, *ADMINS, *ANYBODYS, *AGENTS, *GRANTS, ACTIONS}
    assert {(each.method, each.path) for each in ENDPOINTS if each.grants} == GRANTS.keys()
    writing = {(each.method, each.path) for each in ENDPOINTS if each.method != "GET"}
    assert writing <= {*guarded, SIGN_IN}, "an endpoint that writes needs a user"


def test_the_document_names_the_role_that_each_endpoint_needs() -> None:
    """The roles that the requests below are made in; it said of all that they need a user."""
    paths = document(ENDPOINTS)["paths"]
    operations = {(verb.upper(), path): paths[path][verb] for path in paths for verb in paths[path]}
    named = {
        key: tuple(role for one in operation["security"] for role in one["bearer"])
        for key, operation in operations.items()
        if "security" in operation
    }
    users = {*MINE, *ANYBODYS, *GRANTS, ACTIONS} - {("PUT", "/v1/users/{name}")}
    own_run = {ACTIONS, *(("GET", f"/v1/runs/{{name}}/{what}") for what in ("logs", "output"))}
    assert named == {
        **dict.fromkeys(ADMINS, ("admin",)),
        **dict.fromkeys(users, ("user",)),
        **dict.fromkeys(own_run, ("user", "run")),
        **dict.fromkeys(AGENTS, ("agent", "admin")),
    }
    said = {key: operations[key].get("description") for key in operations}
    assert said["POST", "/v1/resolve"] == "Needs an admin."
    assert said["POST", "/v1/reports"] == "Needs the token of an agent or an admin."
    assert said["GET", "/v1/runs/{name}/logs"] == "Needs a user or a process of the run itself."
    assert said["POST", "/v1/tokens"] == "Needs a user, on the socket and without a token."
    assert said["GET", "/v1/runs"] is None


@pytest.mark.parametrize("what", sorted(GRANTS), ids=" ".join)
def test_no_token_grants_what_outlives_it(
    server: Running, tenant: str, what: tuple[str, str]
) -> None:
    """Its owner's key, a user, another token; an admin's token neither, nor on the socket."""
    attempt, chief = GRANTS[what], server.token("chief", OWN, admin=True)
    size = server.ok("GET", "/v1/head")["size"]
    for token in (tenant, chief):
        for tcp in (True, False):
            reply = server.send(what[0], attempt.path, attempt.body, tcp=tcp, token=token)
            assert (reply.status, reply.code) == (403, "Forbidden"), reply
    assert server.ok("GET", "/v1/head")["size"] == size


@pytest.mark.parametrize("dry", ["", "?dry_run=true"])
@pytest.mark.parametrize("what", sorted(MINE), ids=" ".join)
def test_only_for_its_own_owners(
    server: Running, tenant: str, what: tuple[str, str], dry: str
) -> None:
    """The same request, for its own owner and for another's; a dry run is no way around."""
    method = what[0]
    dry = dry if method in ("PUT", "DELETE") else ""
    for owner, name in ((OTHERS, "theirs"), (OWN, "own")):
        server.apply(run(name, owner, 99))
        before = server.ok("GET", "/v1/head")["size"]
        attempt = MINE[what](name, owner)
        reply = server.send(method, attempt.path + dry, attempt.body, tcp=True, token=tenant)
        if owner == OWN:
            # What has to be signed is refused for that, and for nothing else.
            accepted = reply.status == 200 or reply.code in ("NotRunning", "NoKey")
            assert accepted or reply.json["error"]["path"] == "signature", reply
        else:
            assert (reply.status, reply.code) == (403, "Forbidden"), reply
            theirs = server.ok("GET", f"/v1/objects/Run/{name}")
            assert theirs["spec"]["owner"] == OTHERS
            assert server.ok("GET", "/v1/head")["size"] >= before


@pytest.mark.parametrize(
    ("kind", "verb"), [(kind, verb) for kind, verbs in VERBS.items() for verb in verbs]
)
def test_every_verb(server: Running, tenant: str, kind: str, verb: str) -> None:
    """Runs of its own only; nodes never. What it may not do has not been done.

    To have others give way is the operator's to allow, also for one's own runs.
    """
    mine, theirs = f"mine-{verb}", f"theirs-{verb}"
    shape = {"duration": "1h", "malleable": {"minTotalGPUs": 1}, "groupGPUs": 1}
    server.apply(run(mine, OWN, 2, **shape), run(theirs, OTHERS, 2, **shape))
    for name in (mine, theirs):
        server.until("running", lambda name=name: _phase(server, name) == "Running")
    act = "/v1/objects/{}/{}/actions/" + verb + ("?width=1&" if verb == "shrink" else "?")
    for dry in ("dry_run=true", ""):
        target = theirs if kind == "Run" else "box"
        reply = server.send("POST", act.format(kind, target) + dry, tcp=True, token=tenant)
        assert (reply.status, reply.code) == (403, "Forbidden")
    assert _phase(server, theirs) == "Running"
    assert not server.status("Run", theirs)["paused"]
    assert not server.ok("GET", "/v1/objects/Node/box")["spec"]["cordoned"]
    if kind == "Run":
        if verb == "resume":
            server.ok("POST", f"/v1/objects/Run/{mine}/actions/pause")
        reply = server.send("POST", act.format(kind, mine), tcp=True, token=tenant)
        assert reply.status == (403 if verb == "resolve" else 200), reply
    for name in (mine, theirs):
        if _phase(server, name) == "Running":
            server.ok("POST", f"/v1/objects/Run/{name}/actions/cancel")


def _phase(server: Running, name: str) -> str:
    return str(server.status("Run", name)["phase"])


@pytest.mark.parametrize(
    ("what", "attempt"),
    [(what, each) for what, tries in ADMINS.items() for each in tries],
    ids=lambda each: re.sub(r"\W+", "-", str(each))[:60],
)
def test_what_is_the_admins_is_refused(
    server: Running, tenant: str, what: tuple[str, str], attempt: Try
) -> None:
    """Budgets, nodes, users and other people's tokens; nothing is written."""
    size = server.ok("GET", "/v1/head")["size"]
    reply = server.send(what[0], attempt.path, attempt.body, tcp=True, token=tenant)
    assert (reply.status, reply.code) == (403, "Forbidden")
    events = server.ok("GET", f"/v1/events?after={size}&limit=1000")["items"]
    assert not [each for each in events if each["author"] == "tenant"]


def test_a_run_cannot_change_hands(server: Running, tenant: str) -> None:
    """Neither by applying it for oneself, nor together with something that is one's own."""
    server.apply(run("handed", OTHERS, gpus=99))
    for manifests in ([run("handed", OWN, gpus=99)], [run("ours"), run("handed", OWN, gpus=99)]):
        body = {"manifests": manifests}
        reply = server.send("POST", "/v1/apply", body, tcp=True, token=tenant)
        assert reply.status in (403, 422), reply
    assert server.ok("GET", "/v1/objects/Run/handed")["spec"]["owner"] == OTHERS
    assert server.send("GET", "/v1/objects/Run/ours").status == 404


def test_a_revoked_token_hears_nothing_more(server: Running) -> None:
    """Not even on a connection that was opened before: the output ends with the token."""
    token = server.token("listener", OWN)
    (row,) = server.ok("GET", "/v1/tokens", tcp=True, token=token)
    server.apply(run("talk", OWN, command=["sh", "-c", "echo first; exec sleep 600"]))
    server.until("spoke", lambda: server.send("GET", "/v1/runs/talk/logs").data == b"first\n")
    with server.open("/v1/runs/talk/logs?follow=true", token=token) as stream:
        assert stream.read1(100) == b"first\n"
        server.ok("DELETE", f"/v1/tokens/{row['id']}")
        assert stream.read() == b"", "it ended, and said nothing more"
    server.ok("POST", "/v1/objects/Run/talk/actions/cancel")
    assert server.ended("talk")["reason"] == "Cancelled"


def test_a_name_that_others_used_tells_nothing_of_them(server: Running, tenant: str) -> None:
    """A run is more than its name: what another one of that name said and did stays its owner's."""
    server.apply(run("reused", OTHERS, command=["echo", "hush"]))
    server.ended("reused")
    assert server.send("GET", "/v1/runs/reused/logs").data == b"hush\n"
    server.ok("DELETE", "/v1/objects/Run/reused")
    before = server.ok("GET", "/v1/head")["size"]
    server.apply(run("reused", OWN, gpus=99))  # waits, and has said nothing
    reply = server.send("GET", "/v1/runs/reused/logs", tcp=True, token=tenant)
    assert (reply.status, reply.data) == (200, b"")
    events = server.ok("GET", "/v1/events?limit=1000")["items"]
    about = [each for each in events if each["object"] == {"kind": "Run", "name": "reused"}]
    owners = {each["owner"] for each in about if each["seq"] <= before}
    assert owners <= {None, OTHERS}
    assert [each for each in about if each["owner"] == OWN]
