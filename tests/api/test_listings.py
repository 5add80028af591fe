"""The lists that the page reads, over HTTP: shapes, filters, bad input, and who sees what."""

import msgspec
import pytest

from fairlead.engine.gpu.listings import QueuePage, RunPage
from tests.api.servers import Running, run


def test_pages_and_filters(server: Running) -> None:
    server.apply(*(run(f"page-{number}", "team-b", 4) for number in range(5)))
    path = "/v1/runs?owner=team-b&text=PAGE-&limit=2"
    seen: list[str] = []
    page = msgspec.convert(server.ok("GET", path), RunPage)
    assert (page.total, sum(page.phases.values())) == (5, 5)
    while True:
        seen += [row.name for row in page.items]
        if page.next is None:
            break
        page = msgspec.convert(server.ok("GET", f"{path}&cursor={page.next}"), RunPage)
    assert seen == [f"page-{number}" for number in (4, 3, 2, 1, 0)]
    queue = msgspec.convert(server.ok("GET", "/v1/queue?limit=1"), QueuePage)
    assert queue.items[0].position == 1
    ended = server.ok("GET", "/v1/runs?phase=Running,Pending&ended=fold")
    assert {row["phase"] for row in ended["items"]} <= {"Running", "Pending"}


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/runs?phase=Runing", "query.phase"),
        ("/v1/runs?limit=0", "query.limit"),
        ("/v1/runs?limit=501", "query.limit"),
        ("/v1/runs?cursor=x", "query.cursor"),
        ("/v1/runs?ended=hide", "query.ended"),
        ("/v1/runs?sort=name", "query.sort"),
        ("/v1/timeline?since=yesterday", "query.since"),
        ("/v1/timeline?since=2026-01-01T00:00:00Z&until=2025-01-01T00:00:00Z", "query.until"),
        ("/v1/timeline?since=2020-01-01T00:00:00Z", "query.until"),
        ("/v1/runs/x/history?limit=1000", "query.limit"),
    ],
)
def test_bad_input_is_refused_by_its_field(server: Running, path: str, field: str) -> None:
    reply = server.send("GET", path)
    assert (reply.status, reply.json["error"]["path"]) == (422, field)


def test_a_run_that_is_not_there(server: Running) -> None:
    assert server.send("GET", "/v1/runs/nothing/history").status == 404


def test_why_a_command_did_not_start_is_its_owners(server: Running) -> None:
    """It names programs and files: in no list and no history of another reader."""
    secret = "/nonexistent/secret-program"
    server.apply(run("breaks", "team-a", 1, command=[secret]))
    server.ended("breaks")
    token = server.token("ann", "team-a")
    other = server.token("bob", "team-b")
    for path in ("/v1/runs?text=breaks", "/v1/runs/breaks/history"):
        assert b"secret-program" in server.send("GET", path, tcp=True, token=token).data, path
        for reader in (other, None):
            shown = server.send("GET", path, tcp=True, token=reader)
            assert shown.status == 200
            assert b"secret-program" not in shown.data, path
