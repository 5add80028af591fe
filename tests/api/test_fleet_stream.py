"""Reports as they come: none is lost, a slow reader costs others nothing, streams are bounded."""

import asyncio
import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from fairlead.api import fleet_history
from fairlead.api.feed import ReportPlace
from fairlead.api.fleet_history import FleetHistory
from fairlead.api.fleet_stream import report_feed
from fairlead.schema.border import check_shape
from fairlead.schema.reports import AgentReport
from tests.api.reporting import group_moment, node_moment, pod, report
from tests.api.servers import Running, serving, short_folder

SSE = {"Accept": "text/event-stream"}


@pytest.fixture
def server() -> Iterator[Running]:
    with short_folder() as folder, serving(folder) as running:
        yield running


def push(server: Running, name: str, number: int, **more: Any) -> None:
    moment = node_moment(number, time_ms=number, **more)
    server.ok("POST", "/v1/reports", report(name, nodes={name: [moment]}))


def line(response: http.client.HTTPResponse) -> dict[str, Any]:
    """The next line that is not empty: an empty one says that the connection is alive."""
    while not (read := response.readline().strip()):
        assert not response.closed
    return dict(json.loads(read))


def test_everything_at_first_then_every_change(server: Running) -> None:
    push(server, "n1", 1)
    server.ok("POST", "/v1/reports", report("n1", groups={"web": [group_moment(1)]}))
    with server.open("/v1/reports?kind=node") as nodes, server.open("/v1/reports?kind=group") as of:
        first = line(nodes)
        assert (first["name"], first["cpu"]["decision"], first["group"]) == ("n1", 1, None)
        assert first["cpu"] == server.ok("GET", "/v1/nodes/n1")["cpu"]
        assert line(of)["group"] == server.ok("GET", "/v1/groups")[0]
        push(server, "n1", 2)
        assert line(nodes)["cpu"]["decision"] == 2
        push(server, "n2", 7)
        assert (line(nodes)["name"]) == "n2"


def test_without_a_kind_only_which_changed(server: Running) -> None:
    """For a reader that only asks again then, as the overview does."""
    with server.open("/v1/reports") as all_of_them:
        push(server, "n1", 1)
        named = {"name": "n1", "agent": "n1", "cpu": None, "group": None}
        assert line(all_of_them) == {"kind": "node", **named}
        server.ok("POST", "/v1/reports", report("n1", groups={"web": [group_moment(1)]}))
        assert line(all_of_them) == {"kind": "group", **named, "name": "web"}


def test_one_node_of_many(server: Running) -> None:
    with server.open("/v1/reports?kind=node&name=n2") as of:
        push(server, "n1", 1)
        push(server, "n2", 5)
        assert (line(of)["name"]) == "n2"


def test_silence_is_told_as_well(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """No report says that there is none: the control plane does."""
    push(server, "n1", 1)
    with server.open("/v1/reports?kind=node") as of:
        assert line(of)["cpu"]["stale_since"] is None
        monkeypatch.setattr(fleet_history, "STALE_MS", 1)
        monkeypatch.setattr(fleet_history, "STALE_PERIODS", 0)
        told = line(of)["cpu"]
        assert told["stale_since"] == told["received"]


def ids(reply: bytes) -> list[tuple[str, str]]:
    """(id, name) of server-sent events."""
    found = []
    for part in reply.decode().split("\n\n"):
        fields = dict(row.split(": ", 1) for row in part.split("\n") if row and row[0] != ":")
        if fields:
            found.append((fields["id"], json.loads(fields["data"])["name"]))
    return found


def test_who_reconnects_gets_what_changed_meanwhile(server: Running) -> None:
    """By the id of the last event; one of an earlier life of the server means everything."""
    for name in ("n1", "n2", "n3"):
        push(server, name, 1)
    reply = server.send("GET", "/v1/reports?kind=node&limit=3", headers=SSE)
    (first, _), (second, _), _ = told = ids(reply.data)
    assert [name for _, name in told] == ["n1", "n2", "n3"]
    push(server, "n1", 2)
    again = {**SSE, "Last-Event-ID": first}
    reply = server.send("GET", "/v1/reports?kind=node&limit=3", headers=again)
    assert [name for _, name in ids(reply.data)] == ["n2", "n3", "n1"]
    other = {**SSE, "Last-Event-ID": f"00000000.{second.partition('.')[2]}"}
    reply = server.send("GET", "/v1/reports?kind=node&limit=3", headers=other)
    assert [name for _, name in ids(reply.data)] == ["n2", "n3", "n1"]
    for wrong in ("x", "1.2", "00000000." + "9" * 20):
        reply = server.send("GET", "/v1/reports?kind=node", headers={"Last-Event-ID": wrong})
        assert reply.status == 422
    for query in ("kind=pod", "kind=", "kind=node&kind=group", "other=1"):
        assert server.send("GET", f"/v1/reports?{query}&limit=1").status == 422, query


def test_a_reader_that_reads_nothing_hurts_no_other(server: Running) -> None:
    """Its buffers fill; the others get every report, and it keeps nothing in the server."""
    push(server, "n1", 1)
    with socket.create_connection(("127.0.0.1", server.port)) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.sendall(
            f"GET /v1/reports?kind=node HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode()
        )
        with server.open("/v1/reports?kind=node") as other:
            assert line(other)["cpu"]["decision"] == 1
            for number in range(2, 12):
                push(server, "n1", number, pods=[pod("p" * 200)] * 100)
                assert line(other)["cpu"]["decision"] == number
        assert len(server.service.report_feed.kept) <= 16


def test_readers_that_follow_live_leave_room_for_those_who_ask(server: Running) -> None:
    """One more than the streams that there are is refused, and may come again; pages still load."""
    server.service.streams.most = 3
    with ExitStack() as readers:
        for path in ("/v1/watch", "/v1/reports?kind=node", "/v1/watch"):
            readers.enter_context(server.open(path))
        server.until("three streams", lambda: server.service.streams.open == 3)
        for path in ("/v1/watch", "/v1/reports?kind=group"):
            refused = server.send("GET", path, tcp=True)
            assert (refused.status, refused.code) == (503, "TemporaryFault")
            assert refused.headers["retry-after"]
        assert server.send("GET", "/", tcp=True).status == 200
        assert server.send("GET", "/v1/watch?after=0&limit=1").status == 200  # over the socket
    server.until("they are gone", lambda: server.service.streams.open == 0)
    with server.open("/v1/watch"):
        pass


def taken(history: FleetHistory, now_ms: int, **parts: Any) -> None:
    history.take(check_shape(report("n", **parts), AgentReport), now_ms)


def test_news_are_each_once_in_order_and_from_any_place() -> None:
    """Whoever goes on from a version that it was told gets exactly what changed since."""
    history = FleetHistory()
    for number, name in enumerate(("a", "b", "a", "c", "b")):
        taken(history, number, nodes={name: [node_moment(number, time_ms=number)]})
    version, found = history.news("node", None, 0)
    assert (version, [(at, each.key.name) for at, each in found]) == (
        5,
        [(3, "a"), (4, "c"), (5, "b")],
    )
    for place in range(6):
        later = [(at, subject) for at, subject in found if at > place]
        assert history.news("node", None, place) == (5, later)
    assert history.news("group", None, 0) == (5, [])


def test_readers_at_one_place_read_once_and_nothing_old_is_told(server: Running) -> None:
    """What is shared is a read that runs; a reader that comes later gets what is true then."""
    service = server.service

    async def follow() -> list[list[int]]:
        feed, place, decisions = report_feed(service), ReportPlace("node", None, 0), []
        assert await feed.at(place) == []
        for number in (1, 2, 3):
            push(server, "n1", number)
            first, second = await asyncio.gather(feed.at(place), feed.at(place))
            assert first is second
            decisions.append([json.loads(each.text)["cpu"]["decision"] for each in first[:-1]])
            assert await feed.at(place._replace(version=first[-1].version)) == []
        assert feed.kept == {}
        return decisions

    assert asyncio.run(follow()) == [[1], [2], [3]]
