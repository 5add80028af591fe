"""A run's process has its user's uid and not its user's rights: it reads, and acts on its own run.

The processes are real runs of real Unix users, which ask over the socket.
"""

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fairlead.api.peers import Peer, peer_of
from fairlead.executor import confine
from tests.api.servers import Running, budget, node, run, serving, short_folder

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run as others")
TENANT, CHIEF = "54401", "54402"
"""Users without an entry are known by their number."""
ASK = r"""
use IO::Socket::UNIX;
$| = 1;
my ($path, @requests) = @ARGV;
while (my ($method, $target, $body) = splice @requests, 0, 3) {
    my $peer = IO::Socket::UNIX->new(Peer => $path) or die "cannot connect: $!";
    PREPARE
    print $peer "$method $target HTTP/1.1\r\nHost: x\r\nConnection: close\r\n",
        "Content-Length: " . length($body) . "\r\n\r\n$body";
    $peer->flush;
    my $reply = join "", <$peer>;
    my ($status) = $reply =~ m{^HTTP/1.1 (\d+)};
    $reply =~ s/.*?\r\n\r\n//s;
    print "$status $reply\n";
}
"""
PLAIN = ASK.replace("PREPARE", "")
HANDED_ON = ASK.replace(
    "PREPARE",
    "my $us = $$; if (fork) { exit } select(undef, undef, undef, 0.01) while getppid() == $us;",
)
"""The process that connected is gone when the request comes."""
DAEMON = (
    "use POSIX qw(setsid); pipe(my $over, my $held); "
    "if (fork) { close $held; <$over>; exit } setsid(); if (fork) { exit }" + PLAIN
)
Request = tuple[str, str, str]


class Answer(NamedTuple):
    """What one request of a run's process got."""

    status: int
    body: Any


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with short_folder() as folder, serving(folder) as running:
        running.apply(node(devices=64), budget("team-a", 64), budget("team-b", 64))
        running.ok("PUT", f"/v1/users/{TENANT}", {"owners": ["team-a"]})
        running.ok("PUT", f"/v1/users/{CHIEF}", {"owners": ["team-b"], "admin": True})
        yield running


def by_uid(server: Running, uid: str, *request: str, script: str = PLAIN) -> Answer:
    """A process of a user that is no run's."""
    found = subprocess.run(
        ["perl", "-e", script, str(server.socket), *request],
        user=int(uid),
        group=int(uid),
        extra_groups=[],
        capture_output=True,
        check=True,
        cwd="/",
    )
    return answers(found.stdout)[0]


def answers(output: bytes) -> list[Answer]:
    found = []
    for line in output.decode().splitlines():
        status, _, body = line.partition(" ")
        found.append(Answer(int(status), json.loads(body)))
    return found


def submit(
    server: Running, name: str, owner: str, *requests: Request, script: str = PLAIN, **more: Any
) -> dict[str, Any]:
    arguments = [part for request in requests for part in request]
    command = ["perl", "-e", script, str(server.socket), *arguments]
    return run(name, owner, command=command, **more)


def asked(
    server: Running, uid: str, name: str, owner: str, *requests: Request, script: str = PLAIN
) -> list[Answer]:
    """What a run of this user gets that asks this over the socket."""
    manifest = submit(server, name, owner, *requests, script=script)
    made = by_uid(server, uid, "PUT", f"/v1/objects/Run/{name}", json.dumps(manifest))
    assert made.status == 200, made
    server.ended(name)
    return answers(server.send("GET", f"/v1/runs/{name}/logs").data)


MINT: tuple[Request, ...] = (
    ("POST", "/v1/tokens", "{}"),
    ("POST", "/v1/tokens", '{"user":"root"}'),
    ("PUT", "/v1/users/mallory", '{"owners":["team-a"],"admin":true}'),
    ("GET", "/v1/tokens", ""),
    ("GET", "/v1/users", ""),
    ("DELETE", "/v1/tokens/none", ""),
    ("PUT", "/v1/objects/Run/more", json.dumps(run("more"))),
    ("POST", "/v1/apply", json.dumps({"manifests": [run("more")]})),
    ("POST", "/v1/plan", json.dumps(run("more"))),
    ("DELETE", "/v1/objects/Run/other", ""),
    ("POST", "/v1/objects/Run/other/actions/cancel", ""),
    ("POST", "/v1/objects/Node/box/actions/cordon", ""),
    ("GET", "/v1/runs/other/logs", ""),
    ("PUT", "/v1/nonces/team-a", '{"nonce":"00"}'),
)


@pytest.mark.parametrize(("uid", "owner"), [(TENANT, "team-a"), (CHIEF, "team-b")])
@pytest.mark.parametrize("script", [PLAIN, DAEMON], ids=["command", "daemon"])
def test_a_run_mints_no_rights(server: Running, uid: str, owner: str, script: str) -> None:
    """Neither a tenant's nor an admin's, neither itself nor by a daemon: nothing that outlives the
    run, and nothing of its user's other runs."""
    name = f"minter-{uid}-{len(script)}"
    server.apply(run("other", "team-a", gpus=1))
    tokens, users = server.ok("GET", "/v1/tokens"), server.ok("GET", "/v1/users")
    found = asked(server, uid, name, owner, *MINT, script=script)
    assert [answer.status for answer in found] == [403] * len(MINT), found
    assert (server.ok("GET", "/v1/tokens"), server.ok("GET", "/v1/users")) == (tokens, users)
    assert server.send("GET", "/v1/objects/Run/more").status == 404
    assert server.status("Run", "other")["phase"] != "Failed"
    outside = by_uid(server, uid, "POST", "/v1/tokens?dry_run=true", "{}")
    assert outside.status == 200, "its user still may"


def test_a_connection_that_a_run_hands_on_has_the_runs_rights(server: Running) -> None:
    """The process that connected counts, and not the one that asks."""
    server.apply(run("other", "team-a", gpus=1))
    request = ("POST", "/v1/objects/Run/other/actions/cancel", "")
    script = DAEMON.replace(PLAIN, HANDED_ON)
    (answer,) = asked(server, TENANT, "hands-on", "team-a", request, script=script)
    assert answer.status == 403


def test_who_connected_and_is_gone_has_no_rights() -> None:
    """Whether it was a run's process cannot be known, and its number may be another's by now."""
    with short_folder() as folder, socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "s"))
        listening.listen()
        connect = f"use IO::Socket::UNIX; IO::Socket::UNIX->new(Peer => '{folder}/s') or die"
        subprocess.run(["perl", "-e", connect], check=True)
        connection, _ = listening.accept()
        with connection:
            assert peer_of(connection, lambda pid: None) == Peer(0, in_run=True)
            assert peer_of(connection, None) == Peer(0), "runs are pods: none is here"
        with socket.socket(socket.AF_UNIX) as ours:
            ours.connect(str(folder / "s"))
            connection, _ = listening.accept()
            with connection:
                assert peer_of(connection, lambda pid: None) == Peer(os.geteuid())
                assert peer_of(connection, lambda pid: "j") == Peer(os.geteuid(), True, "j")


def test_a_run_reads_and_acts_on_itself(server: Running) -> None:
    """It sees its own command, knows itself, and can end itself; the ledger says who did it."""
    name = "itself"
    asked(server, TENANT, "another", "team-a", ("GET", "/v1/whoami", ""))
    found = asked(
        server,
        TENANT,
        name,
        "team-a",
        ("GET", "/v1/whoami", ""),
        ("GET", "/v1/objects/Run", ""),
        ("POST", f"/v1/objects/Run/{name}/actions/pause", ""),
        ("POST", f"/v1/objects/Run/{name}/actions/resolve", ""),
        ("POST", f"/v1/objects/Run/{name}/actions/nominate", ""),
        ("POST", f"/v1/objects/Run/{name}/actions/cancel", ""),
    )
    who, runs, *acts = found
    expected = {"user": f"run/{name}", "owners": [], "admin": False, "anonymous": False}
    assert who == Answer(200, {**expected, "in_run": True, "run": name, "session": None})
    commands = {item["metadata"]["name"]: item["spec"]["command"] for item in runs.body["items"]}
    assert commands.pop(name)
    assert commands, "there are others"
    assert not any(commands.values()), "theirs are hidden"
    assert [answer.status for answer in acts[:3]] == [403, 403, 200]
    events = server.ok("GET", "/v1/events?limit=1000")["items"]
    about = [each for each in events if each["object"] == {"kind": "Run", "name": name}]
    asked_to = [each for each in about if each["body"].get("reason") == "CancelRequested"]
    assert [each["author"] for each in asked_to] == [f"run/{name}"]


def test_a_run_has_the_rights_of_its_token_at_most(server: Running) -> None:
    """The token is in the entry; once it is revoked, its run may read and no more."""
    token = server.token(TENANT, "team-a")
    (row,) = [row for row in server.ok("GET", "/v1/tokens") if row["user"] == TENANT]
    script = PLAIN.replace("my ($path", "my $file = shift @ARGV; until (-e $file) {} my ($path")
    gate = server.folder / "gate"
    request = ("POST", "/v1/objects/Run/by-token/actions/nominate", "")
    manifest = submit(server, "by-token", "team-a", request, request, script=script)
    manifest["spec"]["command"].insert(3, str(gate))
    made = server.send("PUT", "/v1/objects/Run/by-token", manifest, tcp=True, token=token)
    assert made.status == 200, made
    events = server.ok("GET", "/v1/events?limit=1000")["items"]
    (entry,) = [
        each
        for each in events
        if each["kind"] == "object.applied" and each["body"]["name"] == "by-token"
    ]
    assert entry["body"]["token"] == row["id"]
    server.ok("DELETE", f"/v1/tokens/{row['id']}")
    gate.touch()
    server.ended("by-token")
    found = answers(server.send("GET", "/v1/runs/by-token/logs").data)
    assert [answer.status for answer in found] == [403, 403]


def test_what_survived_its_run_only_reads(server: Running) -> None:
    """A process in the cgroup of a job that is not known any more."""
    kind, point = confine.find()
    if kind == "tree":
        pytest.skip("no cgroups: see tests/executor/test_peers.py")
    cgroup = confine.Cgroup(kind, f"{point}/0badcafe-survivor-{os.getpid()}")
    cgroup.prepare()
    script = f"""open(my $file, '>', '{cgroup.path}/cgroup.procs') or die; print $file $$;
    close $file; $( = $) = "{CHIEF} {CHIEF}"; $< = $> = {CHIEF}; {PLAIN}"""
    arguments = [part for request in MINT[:3] for part in request]
    try:
        found = subprocess.run(
            ["perl", "-e", script, str(server.socket), *arguments, "GET", "/v1/whoami", ""],
            capture_output=True,
            check=True,
        )
        *minted, who = answers(found.stdout)
        assert [answer.status for answer in minted] == [403] * 3
        assert (who.status, who.body["in_run"], who.body["run"]) == (200, True, None)
    finally:
        cgroup.remove()
    assert not Path(cgroup.path).exists()
