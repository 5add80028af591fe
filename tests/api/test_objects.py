"""Objects, plans, actions, tables, streams and metrics through a real server."""

import http.client
import json
import threading

import pytest

from fairlead.cli.audit.checkpoints import follow_keys, read_headers
from fairlead.schema.metrics import Process
from tests.api.servers import Running, budget, manifest, node, run
from tests.schema.scrapes import names_of, scraped

DEEP = b'{"a":' * 5_000 + b"1" + b"}" * 5_000


@pytest.fixture(autouse=True, scope="module")
def _settled(server: Running) -> None:
    """What is recorded of the start and of the first objects is no write of a test."""
    plane = server.service.plane

    def still() -> bool:
        seq = plane.seq
        plane.reconcile()
        return plane.seq == seq

    server.until("a turn records nothing", still)


def test_versions_guard_against_lost_updates(server: Running) -> None:
    """Two editors of one object: the second is told, and nothing is overwritten."""
    path = "/v1/objects/Budget/edited"
    first = server.ok("PUT", path + "?expected_version=0", budget("edited", 4))["object"]
    version = first["metadata"]["resourceVersion"]
    assert server.send("PUT", path + "?expected_version=0", budget("edited", 5)).status == 409
    assert server.ok("PUT", f"{path}?expected_version={version}", budget("edited", 6))[
        "change"
    ] == ("configured")
    late = server.send("PUT", f"{path}?expected_version={version}", budget("edited", 7))
    assert (late.status, late.code) == (409, "Conflict")
    stale = {**budget("edited", 8), "metadata": first["metadata"]}
    assert server.send("PUT", path, stale).status == 409
    now = server.ok("GET", path)
    assert now["spec"]["envelopes"][0]["concurrency"] == 6
    assert server.ok("PUT", path, now)["change"] == "unchanged"
    gone = server.ok("DELETE", path)
    assert (gone["object"]["metadata"]["name"], gone["change"]) == ("edited", "deleted")
    assert server.send("GET", path).status == 404


def test_a_dry_run_writes_nothing(server: Running) -> None:
    """Not for one, not for several, not for a removal."""
    size = server.ok("GET", "/v1/head")["size"]
    made = server.ok("PUT", "/v1/objects/Run/dry?dry_run=true", run("dry"))
    assert (made["change"], made["preview"]["starts"]) == ("created", True)
    body = {"manifests": [run("dry"), budget("dry")], "dry_run": True}
    assert [each["change"] for each in server.ok("POST", "/v1/apply", body)["items"]] == [
        "created",
        "created",
    ]
    server.ok("DELETE", "/v1/objects/Node/box?dry_run=true")
    assert server.ok("POST", "/v1/plan", run("dry"))["funded"]
    server.ok("PUT", "/v1/users/dry?dry_run=true", {"owners": ["team-a"]})
    assert server.send("DELETE", "/v1/users/dry?dry_run=true").status == 404
    made = server.ok("POST", "/v1/tokens?dry_run=true", {"user": "dry"})
    assert (made["user"], made["id"], made["token"]) == ("dry", "", "")
    for verb in ("cordon", "drain", "fail"):
        act = server.ok("POST", f"/v1/objects/Node/box/actions/{verb}?dry_run=true")
        assert act["change"] == "configured", verb
    assert server.ok("GET", "/v1/head")["size"] == size


@pytest.mark.parametrize(
    ("body", "status", "path"),
    [
        (b"", 400, None),
        (b"{", 400, None),
        (b'{"a": 1, "a": 2}', 400, "a"),
        (b'{"a": NaN}', 422, "apiVersion"),
        (b"\xff\xfe", 400, None),
        (DEEP, 400, None),
        (b"[" * 100_000, 400, None),
        (b'{"metadata":' + b"[" * 40 + b"]" * 40 + b"}", 400, None),
        (b"[1]", 422, "$"),
        (b" " * (4 * 2**20 + 1), 413, None),
        (run("hostile", gpus=0), 422, "spec.totalGPUs"),
        (run("hostile", gpus=-1), 422, "spec.totalGPUs"),
        (run("hostile", gpus=1.5), 422, "spec.totalGPUs"),
        (run("hostile", gpus=10**30), 422, "spec.totalGPUs"),
        (run("hostile", surprise=1), 422, "spec.surprise"),
        (run("hostile", duration="soon"), 422, "spec.duration"),
        (run("hostile", owner=""), 422, "spec.owner"),
        (run("hostile", env={"A=B": "x"}), 422, "spec.env"),
        (run("another"), 422, "metadata.name"),
        (manifest("Run", "../x", owner="a"), 422, "metadata.name"),
        (manifest("Lease", "hostile"), 422, "kind"),
        (node("hostile"), 422, "kind"),
        ({**run("hostile"), "apiVersion": "v1"}, 422, "apiVersion"),
    ],
)
def test_hostile_bodies_change_nothing(
    server: Running, body: object, status: int, path: str | None
) -> None:
    """Each is refused with the field, nothing is written, the server goes on."""
    size = server.ok("GET", "/v1/head")["size"]
    reply = server.send("PUT", "/v1/objects/Run/hostile", body)
    assert reply.status == status, reply
    assert reply.code
    assert reply.json["error"]["path"] == path
    assert server.ok("GET", "/v1/head")["size"] == size


def test_bad_queries_and_paths(server: Running) -> None:
    """Unknown, repeated and impossible parameters; unknown kinds, paths and methods."""
    for path, status in (
        ("/v1/events?after=-1", 422),
        ("/v1/events?after=1_0", 422),
        ("/v1/events?x=1", 422),
        ("/v1/events?after=1&after=2", 422),
        ("/v1/budgets?x=1", 422),
        ("/v1/sponsors", 422),
        ("/v1/objects/Pod", 404),
        ("/v1/objects/Run/none", 404),
        ("/v1/nothing", 404),
        ("/v1/consistency?old=2&new=1", 422),
        ("/v1/ledger?size=999999999", 422),
        ("/v1/explain/Run/none", 404),
        ("/v1/explain/Lease/none", 404),
        ("/v1/runs/none/logs", 404),
        ("/v1/watch?limit=0", 422),
        ("/v1/objects/Run/", 404),
        ("/v1/budgets/", 404),
    ):
        reply = server.send("GET", path)
        assert reply.status == status, (path, reply)
        assert reply.code
        assert reply.headers["fairlead-head"], "every reply carries the head"
    assert server.send("PATCH", "/v1/budgets").status == 405
    for target, status, code in (
        ("Run/none/actions/cancel", 404, "NotFound"),
        ("Run/none/actions/fly", 404, "UnknownVerb"),
        ("Pod/none/actions/cancel", 404, "UnknownKind"),
        ("Run/none/actions/cordon", 409, "UnknownVerb"),  # a verb, but not one of runs
        ("Budget/team-a/actions/drain", 409, "UnknownVerb"),
        ("Lease/none/actions/cancel", 404, "UnknownVerb"),
    ):
        reply = server.send("POST", f"/v1/objects/{target}")
        assert (reply.status, reply.code) == (status, code), target
    assert server.send("DELETE", "/v1/objects/Lease/none").status == 403


def test_several_manifests_are_one_step(server: Running) -> None:
    """All or none: bad input, a stale version or somebody else's object leave nothing behind.

    The error says which of them it is about; one may need what another brings.
    """
    stale = {**budget("team-a"), "metadata": {"name": "team-a", "resourceVersion": 1}}
    for bad, status, path in (
        (run("broken", gpus=0), 422, "manifests[1].spec.totalGPUs"),
        (run("broken", surprise=1), 422, "manifests[1].spec.surprise"),
        (budget("whole", 5), 422, "manifests[1].metadata.name"),
        (stale, 409, "manifests[1]"),
        ([], 422, "manifests[1]"),
    ):
        reply = server.send("POST", "/v1/apply", {"manifests": [budget("whole"), bad]})
        assert (reply.status, reply.json["error"]["path"]) == (status, path), reply
        assert server.send("GET", "/v1/objects/Budget/whole").status == 404
    size = server.ok("GET", "/v1/head")["size"]
    together = [run("needs", owner="whole", gpus=99), budget("whole")]
    done = server.ok("POST", "/v1/apply", {"manifests": together, "dry_run": True})["items"]
    assert [each["change"] for each in done] == ["created", "created"]
    assert done[0]["preview"]["refusal"]["code"] == "ConcurrencyCapExceeded", "not NoEnvelope"
    assert server.ok("GET", "/v1/head")["size"] == size
    server.apply(*together)
    events = server.ok("GET", f"/v1/events?after={size}&limit=4")["items"]
    applied = [each["object"]["name"] for each in events if each["kind"] == "object.applied"]
    assert applied == ["needs", "whole"]
    for kind, name in (("Run", "needs"), ("Budget", "whole")):
        server.ok("DELETE", f"/v1/objects/{kind}/{name}")


def test_a_window_that_ends_too_soon_is_said(server: Running) -> None:
    """A window gates at the start only; whoever plans a longer run is warned."""
    window = {"start": "2026-01-01T00:00:00Z", "end": "2120-01-01T00:00:00Z"}
    server.apply(budget("windowed", window=window))
    long = run("long", owner="windowed", duration="1h")
    assert server.ok("POST", "/v1/plan", long)["warnings"] == []
    endless = server.ok("POST", "/v1/plan", run("endless", owner="windowed"))["warnings"]
    assert endless == [
        "envelope windowed/main closes at 2120-01-01T00:00:00Z, and the run has no duration"
    ]
    server.ok("DELETE", "/v1/objects/Budget/windowed")


def test_leases_are_explained_by_their_run(server: Running) -> None:
    """The decisions that made them; leases are only looked at."""
    server.apply(run("holder", duration="1h"))
    server.until("running", lambda: server.status("Run", "holder")["phase"] == "Running")
    (row,) = [row for row in server.ok("GET", "/v1/leases") if row["run"] == "holder"]
    found = server.ok("GET", f"/v1/explain/Lease/{row['lease']}")
    assert found["object"]["spec"]["run"] == "holder"
    assert found["cover"]["output"]["funded"]
    preview = server.ok("POST", "/v1/objects/Node/box/actions/drain?dry_run=true")["preview"]
    moved = {each["run"]: each["phase"] for each in preview["runs"]}
    assert moved["holder"] == "Pending"
    server.ok("POST", "/v1/objects/Run/holder/actions/cancel")


def test_a_run_is_really_run_and_charged(server: Running) -> None:
    """Its devices in its environment, its output kept, its leases closed, its hours posted."""
    body = run(
        "real", gpus=2, command=["sh", "-c", "echo devices $CUDA_VISIBLE_DEVICES; sleep 0.3"]
    )
    server.apply(body)
    status = server.ended("real")
    assert (status["phase"], status["exitCode"], status["width"]) == ("Completed", 0, 0)
    log = server.send("GET", "/v1/runs/real/logs?follow=true")
    assert log.data.startswith(b"devices ")
    assert len(log.data.split()[1].split(b",")) == 2
    assert server.send("GET", "/v1/runs/real/logs?tail=0").data == b""
    rows = server.ok("GET", "/v1/report?by=run")
    assert sum(row["gpu_hours"] for row in rows if row["run"] == "real") > 0
    explained = server.ok("GET", "/v1/explain/Run/real")
    assert explained["cover"]["output"]["funded"]


def test_a_run_is_paused_resumed_and_cancelled(server: Running) -> None:
    """Verbs on a live process; a second cancel of an ended run is refused."""
    server.apply(run("long", owner="team-b", command=["sleep", "600"]))
    server.until("running", lambda: server.status("Run", "long")["phase"] == "Running")
    leases = [row for row in server.ok("GET", "/v1/leases") if row["run"] == "long"]
    assert [row["owner"] for row in leases] == ["team-b"]
    act = "/v1/objects/Run/long/actions/"
    paused = server.ok("POST", act + "pause")
    assert (paused["change"], paused["object"]["status"]["paused"]) == ("configured", True)
    assert server.ok("POST", act + "pause")["change"] == "unchanged"
    assert not server.ok("POST", act + "resume")["object"]["status"]["paused"]
    assert server.send("DELETE", "/v1/objects/Run/long").status == 409
    server.ok("POST", act + "cancel")
    assert server.ended("long")["reason"] == "Cancelled"
    refused = server.send("POST", act + "cancel")
    assert (refused.status, refused.code) == (409, "RunEnded")


def test_watchers_hear_of_everything_in_order(server: Running) -> None:
    """JSON lines, server-sent events and a long poll tell the same story."""
    after = server.ok("GET", "/v1/head")["size"]
    heard: dict[str, bytes] = {}

    def listen(name: str, path: str, accept: str) -> None:
        heard[name] = server.send("GET", path, headers={"Accept": accept}).data

    listeners = [
        threading.Thread(target=listen, args=each)
        for each in (
            ("lines", f"/v1/watch?after={after}&limit=4", "*/*"),
            ("sse", f"/v1/watch?after={after}&limit=4", "text/event-stream"),
            ("poll", f"/v1/events?after={after}&wait_s=30&limit=4", "*/*"),
        )
    ]
    for each in listeners:
        each.start()
    server.apply(budget("watched"))
    server.apply(budget("watched", 5))
    for each in listeners:
        each.join(timeout=60)
        assert not each.is_alive()
    lines = [json.loads(line) for line in heard["lines"].splitlines()]
    assert [each["seq"] for each in lines] == [after + i for i in range(1, 5)]
    assert {"kind": "Budget", "name": "watched"} in [each["object"] for each in lines]
    told = [line for line in heard["sse"].splitlines() if line.startswith(b"data: ")]
    assert [json.loads(line[6:]) for line in told] == lines
    assert json.loads(heard["poll"])["items"][0] == lines[0]
    # Cut off, a browser asks for the same address and says what it heard last.
    resumed = server.send(
        "GET",
        f"/v1/watch?after={after}&limit=1",
        headers={"Accept": "text/event-stream", "Last-Event-ID": str(after + 1)},
    )
    assert f"id: {after + 2}\n".encode() in resumed.data
    assert server.send("GET", "/v1/watch?limit=1", headers={"Last-Event-ID": "x"}).status == 422


def test_objects_are_listed_by_page(server: Running) -> None:
    """By name, each once; a page says where the next begins, the last one that it is the last."""
    envelopes = [{"name": "main", "flavor": "H100", "concurrency": 1}]
    made = (f"paged-{n:02}" for n in range(7))
    server.apply(*(manifest("Budget", name, owner="paged", envelopes=envelopes) for name in made))
    pages, cursor = [], ""
    while cursor is not None:
        page = server.ok("GET", f"/v1/objects/Budget?owner=paged&limit=3&cursor={cursor}")
        pages.append([item["metadata"]["name"] for item in page["items"]])
        cursor = page["next"]
    assert [len(page) for page in pages] == [3, 3, 1]
    assert [name for page in pages for name in page] == [f"paged-{n:02}" for n in range(7)]
    assert server.ok("GET", "/v1/objects/Budget?limit=7&owner=paged")["next"] is None
    assert server.ok("GET", "/v1/objects/Lease?limit=1")["next"] is None
    assert server.send("GET", "/v1/objects/Budget?limit=501").status == 422


def test_every_reply_carries_the_head(server: Running) -> None:
    """Successes and errors; a later one is proved to continue the earlier."""
    replies = [server.send("GET", path) for path in ("/v1/budgets", "/v1/none", "/metrics")]
    replies.append(server.send("GET", "/v1/budgets", tcp=True, headers={"Host": "evil"}))
    replies.append(server.send("GET", "/v1/watch?after=0&limit=1"))
    for reply in replies:
        size, root = reply.headers["fairlead-head"].split(":")
        assert int(size) > 0
        assert len(root) == 64
        signed = read_headers({name.title(): text for name, text in reply.headers.items()})
        assert signed is not None
        own = server.ok("GET", f"/v1/ledger?size={size}")
        assert isinstance(follow_keys(signed, own), dict), "signed with the ledger's key"
    head = server.ok("GET", "/v1/head")
    proof = server.ok("GET", f"/v1/consistency?old=1&new={head['size']}")
    assert proof["proof"]


def test_metrics_as_prometheus_reads_them(server: Running) -> None:
    """Every promised name; refusals and lending denials are counted."""
    lending = {"allow": True, "to": ["nobody-here"]}
    server.apply(budget("lender", lending=lending))
    funding = {"allowBorrow": True, "sponsors": ["lender"]}
    server.apply(run("denied", owner="team-x", funding=funding))
    server.until("refused", lambda: server.status("Run", "denied")["refusal"])
    assert server.status("Run", "denied")["reason"] == "ACLDenied"
    text = server.send("GET", "/metrics", tcp=True).data.decode()
    assert scraped(text) == names_of(Process.CONTROL_PLANE)
    assert 'budget_concurrency_remaining{budget="lender",envelope="main"} 4.0' in text
    assert 'cover_plans_total{result="ACLDenied"} 1.0' in text
    assert 'budget_lending_denied_total{budget="lender",envelope="main"} 1.0' in text


def test_a_client_that_leaves_does_not_matter(server: Running) -> None:
    """Half a request, half a body, a stream cut off: the next one is answered."""
    for data in (
        b"GET /v1/bud",
        b"PUT /v1/objects/Run/x HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
        b"\x00\x01\x02\r\n\r\n",
    ):
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        connection.connect()
        connection.sock.sendall(data)
        connection.close()
    assert server.ok("GET", "/healthz", tcp=True)["ok"]
