"""Queries are answered once, and removed; a change is not repeated by another controller."""

from typing import Any

import pytest

from fairlead.kube.client import ApiError, Document, RateLimit
from fairlead.kube.kinds import as_named_in
from fairlead.kube.queries import KEEP_S, NAMESPACE_MAX, TURN_MAX, Queries, QueryAnswer, Question
from fairlead.kube.specs import QUERY_BYTES_MAX
from fairlead.kube.watch import Key
from tests.kube.small import Server, put
from tests.kube.world import made


def query(name: str, method: str = "GET", namespace: str = "team-a") -> Document:
    document = made("Query", name, {"method": method, "path": "/v1/budgets"}, namespace)
    document["metadata"]["uid"] = name
    return document


class VirtualClock:
    """Passes while something sleeps, and only then."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Desk:
    """Queries before a server that is a function."""

    def __init__(self) -> None:
        self.asked: list[Question] = []
        self.body, self.now_s = "{}", 0.0
        self.client = Server(self.respond)
        self.refuse = False
        owners = {"team-a": "a", "team-b": "b"}
        self.queries = Queries(
            self.client,
            lambda: None,
            answer=self.answer,
            owner_of=owners.get,
            admin_namespace="fairlead",
            clock_s=lambda: self.now_s,
        )
        (self.source,) = self.queries.sources()

    def turn(self) -> None:
        self.queries.turn()
        self.queries.wait()

    def answer(self, asked: Question) -> QueryAnswer:
        self.asked.append(asked)
        return QueryAnswer(200, self.body)

    def respond(self, method: str, path: str, body: Any) -> Document | None:
        if method == "DELETE":
            return {}
        if self.refuse:
            raise ApiError(409, "Conflict", "busy")
        return None

    def told(self) -> list[tuple[str, int]]:
        rows = [(path, body) for method, path, body in self.client.sent if method == "PATCH"]
        return [(path.split("/")[-2], body["status"]["code"]) for path, body in rows]


@pytest.fixture
def desk():
    desk = Desk()
    yield desk
    desk.client.close()


def test_the_namespace_says_for_whom_it_is(desk: Desk) -> None:
    put(desk.source, query("own"), query("admin", namespace="fairlead"))
    put(desk.source, query("unbound", namespace="team-x"))
    desk.turn()
    assert {(asked.namespace, asked.owner) for asked in desk.asked} == {
        ("team-a", "a"),
        ("fairlead", None),
    }
    assert sorted(desk.told()) == [("admin", 200), ("own", 200), ("unbound", 403)]


def test_what_was_done_is_not_done_again(desk: Desk) -> None:
    """An answer that could not be written is kept; one that was lost with a process is refused."""
    put(desk.source, query("before", "POST"), query("read"))
    desk.turn()
    assert sorted(desk.told()) == [("before", 503), ("read", 200)]
    assert [asked.method for asked in desk.asked] == ["GET"]
    put(desk.source, query("after", "POST"), version=2)
    desk.refuse = True
    for _ in range(3):
        desk.turn()
    desk.refuse = False
    desk.turn()
    assert [asked.method for asked in desk.asked] == ["GET", "POST"]
    assert ("after", 200) in desk.told()


def test_a_query_is_removed_after_a_while_and_an_answer_is_bounded(desk: Desk) -> None:
    desk.body = "x" * (QUERY_BYTES_MAX + 1)
    put(desk.source, query("large"))
    desk.turn()
    assert desk.told() == [("large", 413)]
    desk.turn()
    assert "DELETE" not in {method for method, *_ in desk.client.sent}
    desk.now_s = KEEP_S + 1
    desk.turn()
    assert [path for method, path, _ in desk.client.sent if method == "DELETE"] == [
        "/apis/fairlead.dev/v1alpha1/namespaces/team-a/queries/large"
    ]


def test_one_namespace_does_not_keep_another_waiting(desk: Desk) -> None:
    """A tenant asks by the thousand; another one is answered in the same turn."""
    put(desk.source, *(query(f"many-{n:04}") for n in range(10 * TURN_MAX)))
    desk.turn()
    desk.now_s = 1.0
    put(desk.source, query("one", namespace="team-b"), version=2)
    desk.turn()
    assert "b" in {asked.owner for asked in desk.asked}
    assert len(desk.asked) == 2 * NAMESPACE_MAX + 1


def test_removing_old_queries_does_not_take_a_turn_for_itself(desk: Desk) -> None:
    """Each is a request of the controller's own rate, while runs wait."""
    put(desk.source, *(query(f"many-{n:04}") for n in range(3 * TURN_MAX)))
    desk.turn()
    desk.now_s = KEEP_S + 1
    before = 0
    for _ in range(5):
        desk.turn()
        deleted = {path for method, path, _ in desk.client.sent if method == "DELETE"}
        assert len(deleted) <= before + TURN_MAX
        before = len(deleted)
    assert before == 3 * TURN_MAX


def test_queries_have_a_share_of_the_rate_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever tenants ask: the rest of the rate is there for pods at once."""
    clock = VirtualClock()
    monkeypatch.setattr("fairlead.kube.client.time", clock)
    whole = RateLimit(1000, 100)
    share = whole.share(0.2)
    for _ in range(30):
        share.wait()
    assert clock.now_s == pytest.approx(10 / 200), "20 at once, then 200 a second"
    for _ in range(60):
        whole.wait()
    assert clock.now_s == pytest.approx(10 / 200), "the rest is there at once"
    assert Server().apart(0.2).requests == 0


def test_a_storm_of_queries_leaves_nothing_and_answers_others(desk: Desk) -> None:
    """5 000 that come and go: another tenant is answered in the next turn."""
    for n in range(5000):
        put(desk.source, query(f"storm-{n:04}"), version=n + 1)
        if n % 2:
            desk.source._drop(Key("team-a", f"storm-{n:04}"))
    put(desk.source, query("one", namespace="team-b"), version=9000)
    desk.turn()
    assert "b" in {asked.owner for asked in desk.asked}
    assert len(desk.asked) <= NAMESPACE_MAX + 1
    for key in desk.source.known():
        desk.source._drop(key)
    desk.turn()
    desk.turn()
    kept = (desk.queries._seen_s, desk.queries._waiting, desk.queries._answers)
    assert [len(part) for part in (*kept, desk.queries._under_way)] == [0, 0, 0, 0]


def test_names_are_those_of_the_namespace() -> None:
    """In fields and in sentences; what only looks alike stays."""
    said = {
        "kind": "Run",
        "name": "team-a.x",
        "run": "team-a.x",
        "owner": "team-a.x",
        "message": "there is no Run 'team-a.x' (run/team-a.y): my-team-a.x stay",
    }
    assert as_named_in("team-a", [said]) == [
        {
            "kind": "Run",
            "name": "x",
            "run": "x",
            "owner": "team-a.x",
            "message": "there is no Run 'x' (run/y): my-team-a.x stay",
        }
    ]
