"""Requests through Kubernetes: what is not opened to tenants is closed."""

import json

import pytest

from fairlead.api.access import Access
from fairlead.api.queries import ELSEWHERE, ENDPOINTS, RULES, Ask, Asker, answer
from fairlead.api.service import Service
from fairlead.engine.gpu import Author, ControlPlane
from tests.engine.gpu.owner_keys import OwnerKeys
from tests.engine.gpu.resolving import outcomes, reserve, world_of
from tests.engine.gpu.worlds import ADMIN, START, FakeExecutor, budget, node, run
from tests.ledger.memory import MemoryLedger

TENANT = Asker(Author("kubernetes:team-a", frozenset({"a"})), "team-a")


@pytest.fixture(scope="module")
def service() -> Service:
    """Two owners, whose runs compete for one node."""
    ledger = MemoryLedger(time_ms=START)
    plane = ControlPlane(ledger, FakeExecutor(), lambda: START)
    wanted = [node(), budget("a"), budget("b"), run("team-a.mine", "a", 4)]
    wanted += [run("team-b.theirs", "b", 4), run("team-a.waits", "a", 4)]
    plane.objects.apply_all(wanted, author=ADMIN)
    plane.reconcile()
    return Service(plane, ledger, Access(ledger, lambda: START), lambda *_: [], lambda: START)


def test_every_rule_is_about_an_endpoint() -> None:
    routes = {f"{row.method} {row.path}" for row in ENDPOINTS}
    assert RULES.keys() <= routes
    assert routes >= ELSEWHERE
    assert not RULES.keys() & ELSEWHERE


@pytest.mark.parametrize("row", ENDPOINTS, ids=lambda row: f"{row.method} {row.path}")
def test_what_is_not_in_the_table_is_an_admins(service: Service, row) -> None:
    """A new endpoint is closed to tenants until it is opened; users and objects are Kubernetes'."""
    route = f"{row.method} {row.path}"
    of_agents = {"number": 1, "backend": "a", "order": "drain"}
    named = {"kind": "Run", "name": "team-b.theirs", "verb": "cancel", "owner": "b", **of_agents}
    path = row.path.format(seq=1, id=1, **named)
    for asker in (TENANT, Asker(ADMIN)):
        closed = route in ELSEWHERE or (route not in RULES and asker is TENANT)
        result = answer(service, asker, Ask(row.method, path, {}, ""))
        assert (result.code == 403) >= closed, (route, result)
        if asker is TENANT:
            assert b"theirs" not in result.body.replace(b"'team-b.theirs'", b"")
            assert b'"b"' not in result.body.replace(b"'b'", b"")


def test_names_are_those_of_the_namespace(service: Service) -> None:
    result = answer(service, TENANT, Ask("GET", "/v1/explain/Run/mine", {}))
    assert result.code == 200
    shown = json.loads(result.body)
    assert shown["object"]["metadata"]["name"] == "mine"
    assert {row["run"] for row in shown["leases"]} == {"mine"}
    assert "output" not in shown["cover"]
    assert result.headers["Fairlead-Head"]
    other = answer(service, TENANT, Ask("GET", "/v1/explain/Run/team-b.theirs", {}))
    assert other.code == 404
    rows = json.loads(answer(service, TENANT, Ask("GET", "/v1/leases", {})).body)
    assert [row["owner"] for row in rows] == ["a"] * len(rows)
    assert answer(service, TENANT, Ask("GET", "/v1/nothing", {})).code == 404


def test_a_tenant_who_lost_devices_reads_no_name_of_who_got_them() -> None:
    """After an outcome for another owner's reservation: in no answer to any request of the table
    that is open to tenants."""
    world = world_of(teams="xy")
    world.apply(run("team-x.mine", "x", 6), run("team-y.theirs", "y", 2))  # mine is lost for sure
    world.turn()
    reserve(world, run("team-y.hidden", "y", 4))
    for _ in range(5):
        world.turn(0.01)
    (lost,) = outcomes(world)
    assert world.status("Run", "team-x.mine")["phase"] == "Pending"
    reserve(world, run("team-x.next", "x", 8), hours=24)
    world.turn(0.01)
    access = Access(world.ledger, lambda: START)
    service = Service(world.plane, world.ledger, access, lambda *_: [], lambda: world.now_ms)
    asker = Asker(Author("kubernetes:team-x", frozenset({"x"})), "team-x")
    queries = {"/v1/sponsors": {"owner": "x", "flavor": "H100"}}
    queries |= {"/v1/consistency": {"old": "1", "new": "2"}}
    owner = OwnerKeys(world, "x", Author("ann", frozenset({"x"})))
    owner.register()
    size, public = world.projection.seq, owner.public
    signed = {
        "PUT /v1/nonces/{owner}": {
            "nonce": "00",
            "size": size,
            "signature": owner.sign_nonce("00", size),
        },
        "PUT /v1/owner-keys/{owner}": {
            "publicKey": public.hex(),
            "signature": owner.sign_key(public),
        },
    }
    answered = set()
    for route in RULES:
        method, path = route.split()
        for kind, name in (("Run", "mine"), ("Reservation", "next-slot"), ("Budget", "x")):
            named = path.format(kind=kind, name=name, verb="nominate", seq=lost.seq, owner="x")
            query = queries.get(path, {})
            plan = run("planned", "x", 8) if "plan" in path else signed.get(route, {})
            body = json.dumps(plan) if method in ("POST", "PUT") and "actions" not in path else ""
            result = answer(service, asker, Ask(method, named, query, body))
            answered |= {route} if result.code == 200 else set()
            for secret in (b"team-y", b"hidden", b"theirs", b'"y"'):
                assert secret not in result.body, (route, kind, result.body)
    assert RULES.keys() - answered == set()
