"""Reports of agents: who may report what, what rubbish and floods do, and what is shown of it."""

import time
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead.api.fleet_history import FORGET_MS, STALE_MS, FleetHistory
from fairlead.engine.gpu import NotFound, Refused
from fairlead.schema.border import check_shape
from fairlead.schema.reports import AgentReport
from tests.api.reporting import group_moment, node_moment, report
from tests.api.servers import Running, node, serving, short_folder


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with short_folder() as folder, serving(folder) as running:
        yield running


def token(server: Running, agent: str, *groups: str) -> str:
    return str(server.ok("POST", "/v1/tokens", {"agent": agent, "groups": list(groups)})["token"])


def push(server: Running, document: Any, token: str) -> Any:
    return server.send("POST", "/v1/reports", document, tcp=True, token=token)


def test_an_agent_reports_its_node_and_its_groups_and_nothing_else(server: Running) -> None:
    """A stolen token of an agent lies about that agent's own, and does nothing else."""
    secret = token(server, "n1", "web")
    assert push(server, report("n1", nodes={"n1": [node_moment(1)]}), secret).status == 200
    assert push(server, report("n1", groups={"web": [group_moment(1)]}), secret).status == 200
    for other in (
        report("n2", nodes={"n1": [node_moment(2)]}),
        report("n1", nodes={"n2": [node_moment(2)]}),
        report("n1", groups={"api": [group_moment(2)]}),
        report("n1", nodes={"n1": [node_moment(2)], "n2": [node_moment(2)]}),
    ):
        assert push(server, other, secret).status == 403
    assert [row["name"] for row in server.ok("GET", "/v1/groups")] == ["web"]
    for method, path, body in (
        ("POST", "/v1/apply", {"manifests": [node()]}),
        ("POST", "/v1/tokens", {}),
        ("GET", "/v1/tokens", None),
        ("PUT", "/v1/users/mallory", {"admin": True}),
        ("POST", "/v1/objects/Node/box/actions/cordon", None),
    ):
        reply = server.send(method, path, body, tcp=True, token=secret)
        assert reply.status == 403, (path, reply)
    assert server.send("GET", "/v1/nodes", tcp=True, token=secret).status == 200


def test_only_an_admin_makes_agents_and_a_revoked_one_is_out(server: Running) -> None:
    made = server.ok("POST", "/v1/tokens", {"agent": "n3"})
    assert (made["user"], made["reports"]) == ("agent/n3", ["node/n3"])
    tenant = server.token("eve", "team-a")
    body = report("eve", nodes={"eve": [node_moment(1)]})
    assert push(server, body, tenant).status == 403
    assert server.send("POST", "/v1/reports", body, tcp=True).status == 401
    server.ok("DELETE", f"/v1/tokens/{made['id']}")
    assert push(server, report("n3", nodes={"n3": [node_moment(1)]}), made["token"]).status == 401
    for wrong in ({"agent": "n3", "user": "ada"}, {"groups": ["web"]}, {"agent": "a/b"}):
        assert server.send("POST", "/v1/tokens", wrong).status == 422


def test_rubbish_is_refused_by_its_field(server: Running) -> None:
    """422 with the path, and nothing of the report is kept."""
    before = server.ok("GET", "/v1/nodes")
    soon = int(time.time() * 1000) + 10 * 86_400_000
    for path, moment in (
        ("nodes[0].moments[0].state.mode", node_moment(1, mode="great")),
        ("nodes[0].moments[0].state.pods[0].pod", node_moment(1, pods=[{"pod": ""}])),
        ("nodes[0].moments[0].state.need_millicores", node_moment(1, need_millicores=-1)),
        ("nodes[0].moments[0].state.shadow_price", node_moment(1, shadow_price=1e300)),
        ("nodes[0].moments[0].time_ms", node_moment(1, time_ms=soon)),
    ):
        reply = server.send("POST", "/v1/reports", report("rubbish", nodes={"rubbish": [moment]}))
        assert (reply.status, reply.json["error"]["path"]) == (422, path), reply
    for name in ("", ".", "..", "a/b", "../etc", "x" * 254):
        reply = server.send("POST", "/v1/reports", report("r", nodes={name: [node_moment(1)]}))
        assert (reply.status, reply.json["error"]["path"]) == (422, "nodes[0].name"), name
    for body in (b"[]", b"{", b'{"version": 2}', b"\xff", b"[" * 100_000):
        assert server.send("POST", "/v1/reports", body).status in (400, 422)
    assert server.send("POST", "/v1/reports", b" " * (5 * 2**20)).status == 413
    assert server.ok("GET", "/v1/nodes") == before


def test_a_flood_of_an_agent_is_slowed_and_costs_others_nothing() -> None:
    """Over its rate an agent gets 429; another one still reports."""
    with short_folder() as folder, serving(folder, requests_per_s=1) as server:
        secret, other = token(server, "flood"), token(server, "calm")
        body = report("flood", nodes={"flood": [node_moment(1)]})
        statuses = {push(server, body, secret).status for _ in range(40)}
        assert statuses == {200, 429}
        assert push(server, report("calm", nodes={"calm": [node_moment(1)]}), other).status == 200


def test_devices_and_governor_are_one_row(server: Running) -> None:
    """By name: a machine with both is listed once."""
    server.apply(node("both"), node("gpus"))
    moments = [node_moment(number, time_ms=1000 + number) for number in range(5)]
    server.ok("POST", "/v1/reports", report("both", nodes={"both": moments}))
    rows = {row["name"]: row for row in server.ok("GET", "/v1/nodes")}
    assert (rows["both"]["gpu"]["devices"], rows["both"]["cpu"]["mode"]) == (8, "congested")
    assert rows["gpus"]["cpu"] is None
    assert rows["both"]["cpu"]["throttling"] == 0.25
    detail = server.ok("GET", "/v1/nodes/both")
    assert [row["pod"] for row in detail["state"]["pods"]] == ["web", "db"]
    series = server.ok("GET", "/v1/nodes/both/series?after=1001")["points"]
    assert [(row["time_ms"], row["decision"], row["need"]) for row in series] == [
        (1002, 2, 2400),
        (1003, 3, 2400),
        (1004, 4, 2400),
    ]
    of_pod = server.ok("GET", "/v1/nodes/both/series?pod=db")["points"]
    assert [row["need"] for row in of_pod] == [1700] * 5
    assert server.ok("GET", "/v1/nodes/both/series?pod=gone")["points"] == []
    assert server.ok("GET", "/v1/nodes/both/decisions/3")["number"] == 3
    assert server.send("GET", "/v1/nodes/both/decisions/9").status == 404
    assert server.send("GET", "/v1/nodes/both/decisions/x").status == 422
    assert server.send("GET", "/v1/nodes/none").status == 404


def test_reports_are_not_in_the_ledger(server: Running) -> None:
    size = server.ok("GET", "/v1/head")["size"]
    server.ok("POST", "/v1/reports", report("quiet", nodes={"quiet": [node_moment(1)]}))
    assert server.ok("GET", "/v1/head")["size"] == size


# --- bounds and time


def taken(history: FleetHistory, now_ms: int, agent: str = "n", **parts: Any) -> int:
    return history.take(check_shape(report(agent, **parts), AgentReport), now_ms)


def test_a_report_that_comes_twice_changes_nothing() -> None:
    history = FleetHistory()
    moments = [node_moment(number, time_ms=number) for number in (1, 2)]
    assert taken(history, 10, nodes={"n": moments}) == 2
    assert taken(history, 11, nodes={"n": [*moments, node_moment(3, time_ms=3)]}) == 1
    assert len(history.moments(history.subject("node", "n"), -1)) == 3


def test_an_agent_with_another_clock_after_a_restart_is_heard() -> None:
    history = FleetHistory()
    taken(history, 10, nodes={"n": [node_moment(1, time_ms=5_000)]})
    document = report("n", nodes={"n": [node_moment(2, time_ms=1_000)]}) | {"started_ms": 2}
    assert history.take(check_shape(document, AgentReport), 11) == 1
    assert history.subject("node", "n").number == 2


def test_silence_is_stale_and_after_a_day_forgotten() -> None:
    history = FleetHistory()
    taken(history, 1_000, nodes={"n": [node_moment(1, time_ms=1)]})
    subject = history.subject("node", "n")
    assert subject.stale_since_ms(1_000 + STALE_MS) is None
    assert subject.stale_since_ms(1_001 + STALE_MS) == 1_000
    assert history.subjects("node", 1_000 + FORGET_MS) == [subject]
    assert history.subjects("node", 1_001 + FORGET_MS) == []
    with pytest.raises(NotFound):
        history.subject("node", "n")


def test_metrics_tell_which_agent_fell_silent() -> None:
    """By agent, and how many of what it reported are stale."""
    history, now_ms = FleetHistory(), 1_000
    taken(history, now_ms, nodes={"n": [node_moment(1, time_ms=1)]})
    later_ms = now_ms + STALE_MS + 60_000
    taken(history, later_ms, agent="m", groups={"web": [group_moment(1, time_ms=1)]})
    samples = history.samples(later_ms)
    counts = {tuple(labels.values()): value for labels, value in samples["fairlead_reported"]}
    assert counts == {
        ("node", "fresh"): 0,
        ("node", "stale"): 1,
        ("group", "fresh"): 1,
        ("group", "stale"): 0,
    }
    assert samples["fairlead_agent_report_age_seconds"] == [
        ({"kind": "group", "agent": "m"}, 0.0),
        ({"kind": "node", "agent": "n"}, (later_ms - now_ms) / 1000),
    ]


def test_memory_is_bounded_by_bytes_over_all() -> None:
    """The oldest moments go first; a newcomer makes everyone's share smaller."""
    history = FleetHistory(bytes_max=60_000)
    many = [node_moment(number, time_ms=number) for number in range(500)]
    taken(history, 1, nodes={"n": many})
    subject = history.subject("node", "n")
    kept = history.moments(subject, -1)
    assert subject.bytes <= 60_000
    assert 0 < len(kept) < 500
    assert kept[-1].number == 499
    taken(history, 2, nodes={"m": [node_moment(1, time_ms=1)]})
    assert subject.bytes <= 30_000
    assert zlib.decompress(kept[-1].decision or b"")


def test_the_number_of_agents_is_bounded() -> None:
    """A stale one makes room for a newcomer; a live one does not."""
    history = FleetHistory(subjects_max=2)
    for name in ("a", "b"):
        taken(history, 1_000, name, nodes={name: [node_moment(1, time_ms=1)]})
    with pytest.raises(Refused, match="all that this control plane keeps"):
        taken(history, 1_001, "c", nodes={"c": [node_moment(1, time_ms=1)]})
    taken(history, 20_000, "b", nodes={"b": [node_moment(2, time_ms=2)]})
    taken(history, 20_000, "c", nodes={"c": [node_moment(1, time_ms=1)]})
    assert [subject.key.name for subject in history.subjects("node", 20_000)] == ["b", "c"]


# --- orders


def order(server: Running, verb: str, backend: str = "a", **more: Any) -> Any:
    return server.send("POST", f"/v1/groups/orders/backends/{backend}/orders/{verb}", **more)


def test_an_admin_ejects_a_backend_and_the_agent_is_told_with_its_next_report() -> None:
    """In the ledger with its author; a restart of the control plane forgets no order."""
    with short_folder() as folder:
        with serving(folder) as server:
            secret = token(server, "n1", "orders", "other")
            body = report("n1", groups={"orders": [group_moment(1)], "other": [group_moment(1)]})
            assert push(server, body, secret).json["orders"] == {"orders": {}, "other": {}}
            assert order(server, "isolate").json["change"] == "ordered"
            assert order(server, "isolate").json["change"] == "unchanged"
            assert order(server, "drain", "b", headers={}).status == 200
            told = push(server, body, secret).json["orders"]
            assert told == {"orders": {"a": "isolate", "b": "drain"}, "other": {}}
            entries = server.ok("GET", "/v1/events?limit=1000")["items"]
            (first, _) = [row for row in entries if row["kind"] == "traffic.order"]
            assert first["body"]["order"] == "isolate"
            assert first["author"] == server.ok("GET", "/v1/whoami")["user"]
            for wrong, status in (("explode", 404), ("isolate", 404)):
                assert order(server, wrong, "nobody").status == status
            tenant = server.token("eve", "team-a")
            for other in (tenant, secret):
                reply = order(server, "restore", tcp=True, token=other)
                assert reply.status == 403
        with serving(folder) as server:
            assert order(server, "restore", "b").json["order"] is None, "also without a report"
            told = server.ok("POST", "/v1/reports", body)["orders"]
            assert told == {"orders": {"a": "isolate"}, "other": {}}
            assert server.ok("GET", "/v1/groups/orders")["orders"] == {"a": "isolate"}
            dry = server.ok("POST", "/v1/groups/orders/backends/a/orders/restore?dry_run=true")
            assert dry["change"] == "ordered"
            assert server.ok("GET", "/v1/groups/orders")["orders"] == {"a": "isolate"}


def test_an_agents_token_does_not_sign_a_browser_in(server: Running) -> None:
    secret = token(server, "browser")
    headers = {"Origin": f"http://127.0.0.1:{server.port}", "Content-Type": "application/json"}
    reply = server.send("POST", "/v1/signin", {"token": secret}, tcp=True, headers=headers)
    assert reply.status == 403, reply
