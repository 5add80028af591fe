"""Chargeback and idle devices, on a clock that is set: every charge once, in the right period."""

import csv
import io
from typing import Any

import pytest

from fairlead.api.access import Access
from fairlead.api.reports import idle_rows, period_of, period_row, usage_rows
from fairlead.api.service import Service
from fairlead.engine.gpu import Refused
from tests.api.servers import Running
from tests.engine.gpu.test_utilisation import FakeMeter
from tests.engine.gpu.worlds import ADMIN, HOUR, START, World, budget, envelope, node, run
from tests.ledger.memory import MemoryLedger

DAY = 24 * HOUR


def service_of(world: World) -> Service:
    access = Access(world.ledger, lambda: world.now_ms)
    return Service(world.plane, world.ledger, access, lambda _: [], lambda: world.now_ms)


def lent_world() -> World:
    """From the 1st of January, 2026: `mine` 2 GPUs for 30 h, `loan` 1 + 1 borrowed for 6 h."""
    world = World()
    lending = {"allow": True, "to": ["b"]}
    world.apply(
        node(devices=8),
        budget("a", None, envelope(lending=lending), envelope("east", 4)),
        budget("b", None, envelope(concurrency=1)),
    )
    world.apply(run("mine", "a", 2))
    funding = {"allowBorrow": True, "sponsors": ["a"]}
    world.apply(run("loan", "b", 2, funding=funding))
    world.turn()
    world.turn(6)
    world.plane.verbs.act("Run", "loan", "cancel", author=ADMIN)
    world.turn(24)
    return world


def told(rows: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in (*names, "gpu_hours")) for row in rows]


def test_every_charge_is_in_one_row_whatever_is_told_apart() -> None:
    """Owners, budgets, envelopes and runs are sums of the same charges, open leases included."""
    service = service_of(lent_world())
    end = START + 30 * HOUR
    by = {
        each: usage_rows(service, each, "month", START, end)
        for each in ("owner", "budget", "envelope", "run")
    }
    assert told(by["owner"], "owner", "payer", "borrowed") == [
        ("a", "a", False, 60.0),
        ("b", "a", True, 6.0),
        ("b", "b", False, 6.0),
    ]
    assert told(by["budget"], "payer", "budget", "borrowed") == [
        ("a", "a", False, 60.0),
        ("a", "a", True, 6.0),
        ("b", "b", False, 6.0),
    ]
    assert told(by["run"], "owner", "run", "payer") == [
        ("a", "mine", "a", 60.0),
        ("b", "loan", "a", 6.0),
        ("b", "loan", "b", 6.0),
    ]
    for rows in by.values():
        assert sum(row["gpu_hours"] for row in rows) == 72.0
    assert {row["owner"] for row in by["budget"]} == {None}
    assert {row["run"] for row in by["envelope"]} == {None}


def test_a_report_says_how_busy_leased_devices_were() -> None:
    """By owner and by run, as far as it was read: recorded every quarter of an hour, and the rest
    since. A control plane that restarts loses what it had not recorded, and says so."""
    world, meter = World(), FakeMeter()
    world.meter = meter
    world.plane = world.open()
    world.apply(node(devices=4), budget("a"), run("busy", gpus=1, command=["x"]))
    world.apply(run("lazy", gpus=2, command=["x"]), run("late", gpus=1, command=["x"]))
    world.turn()
    meter.put(0, 90, 0)
    meter.put(1, 50, 0)

    def figures(by: Any) -> dict[str, tuple[Any, ...]]:
        rows = usage_rows(service_of(world), by, "month", START, world.now_ms)
        names = ("read_gpu_hours", "utilisation_percent", "leased_idle_gpu_hours")
        return {row["run"] or row["owner"]: tuple(row[name] for name in names) for row in rows}

    for _ in range(360):
        world.turn(1 / 360)
    assert figures("run") == {
        "busy": (1.0, 90.0, 0.0),
        "late": (1.0, 0.0, 1.0),
        "lazy": (2.0, 25.0, 1.0),
    }
    assert figures("owner") == {"a": (4.0, 35.0, 2.0)}
    assert len([entry for entry in world.log if entry.kind == "gpu.used"]) == 4
    for _ in range(30):
        world.turn(1 / 360)
    assert figures("owner")["a"][0] == pytest.approx(4 * 13 / 12)
    world.plane = world.open()
    assert figures("owner")["a"][0] == 4.0
    world.meter = None
    rows = usage_rows(service_of(lent_world()), "owner", "month", START, START + DAY)
    assert {(row["read_gpu_hours"], row["utilisation_percent"]) for row in rows} == {(0.0, None)}


def test_use_of_virtual_nodes_is_marked() -> None:
    """In usage of each kind, in idle devices, leases, and the status of the run."""
    world = World()
    world.apply(node("n1", 2), node("v1", 4, virtual=True), budget("a"), budget("b"))
    world.apply(run("real", "a", 2), run("virtual", "b", 3))
    world.turn()
    world.turn(1)
    service = service_of(world)
    for by in ("owner", "envelope", "run", "budget"):
        rows = usage_rows(service, by, "month", START, world.now_ms)  # type: ignore[arg-type]
        marked = {row["owner"] or row["payer"]: row["virtual"] for row in rows}
        assert marked == {"a": False, "b": True}, by
    (idle,) = idle_rows(service, "month", START, world.now_ms)
    assert (idle["node"], idle["virtual"]) == ("v1", True)
    assert {row["run"]: row["virtual"] for row in world.plane.reports.leases()} == {
        "real": False,
        "virtual": True,
    }
    assert world.status("Run", "virtual")["virtual"]
    assert not world.status("Run", "real")["virtual"]
    lease = world.status("Run", "virtual")["leases"][0]
    assert world.status("Lease", lease)["virtual"]


def test_periods_are_calendar_days_weeks_months_and_quarters() -> None:
    """A lease over midnight is cut there; the names are those that people sort by."""
    service = service_of(lent_world())
    end = START + 30 * HOUR
    days = usage_rows(service, "owner", "day", START, end)
    assert told(days, "period", "owner", "payer") == [
        ("2026-01-01", "a", "a", 48.0),
        ("2026-01-01", "b", "a", 6.0),
        ("2026-01-01", "b", "b", 6.0),
        ("2026-01-02", "a", "a", 12.0),
    ]
    assert (days[0]["start"], days[0]["end"]) == ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z")
    for period, name in (("week", "2026-W01"), ("month", "2026-01"), ("quarter", "2026-Q1")):
        rows = usage_rows(service, "budget", period, START, end)  # type: ignore[arg-type]
        assert {row["period"] for row in rows} == {name}
    only = usage_rows(service, "owner", "day", START + DAY, end)
    assert told(only, "owner") == [("a", 12.0)]
    last = period_of("week", START - DAY)
    assert period_row("usage", "week", last)["period"] == "2026-W01", "the year of its Thursday"


def test_idle_devices_over_time_and_since_when() -> None:
    """What a node had, less what was leased; devices that came later count from then on."""
    world = lent_world()
    service = service_of(world)
    first, second = idle_rows(service, "day", START, START + 30 * HOUR)
    assert (first["node"], first["period"], first["idle_gpus"]) == ("n1", "2026-01-01", 6)
    assert first["idle_gpu_hours"] == 8 * 24 - 2 * 24 - 2 * 6
    assert first["idle_since"] == "2026-01-01T00:00:00Z", "four were never used"
    assert (second["idle_gpu_hours"], second["idle_gpus"]) == (6 * 6.0, 6)
    world.apply(node(devices=10))
    world.turn(1)
    (late,) = idle_rows(service, "day", START + DAY, world.now_ms)
    assert (late["idle_gpus"], late["idle_gpu_hours"]) == (8, 6 * 6.0 + 8.0)
    world.plane.verbs.act("Run", "mine", "cancel", author=ADMIN)
    world.plane.objects.delete("Node", "n1", author=ADMIN)
    world.turn(1)
    rows = idle_rows(service, "day", START + DAY, world.now_ms)
    assert [(row["idle_gpus"], row["idle_gpu_hours"]) for row in rows] == [(0, 44.0)]


def test_a_node_that_was_away_had_no_device_before_it_came_back() -> None:
    world = World()
    world.apply(node(devices=8), node("n2", devices=4))
    world.plane.objects.delete("Node", "n1", author=ADMIN)
    world.turn(24)
    world.apply(node(devices=2), node("n2", devices=6))
    world.turn(24)
    rows = idle_rows(service_of(world), "day", START + 12 * HOUR, world.now_ms)
    idle = [(row["node"], row["period"][-2:], row["idle_gpu_hours"]) for row in rows]
    assert idle == [("n2", "01", 48.0), ("n1", "02", 48.0), ("n2", "02", 144.0)]


def test_a_report_may_begin_in_the_middle_of_leases() -> None:
    """A lease that was open when the report begins counts as leased, closed or still open."""
    world = lent_world()
    service = service_of(world)
    since = START + 2 * HOUR
    (row,) = idle_rows(service, "month", since, START + 30 * HOUR)
    assert row["idle_gpu_hours"] == 8 * 28 - 2 * 28 - 2 * 4


def test_what_was_archived_is_said_and_not_guessed(tmp_path) -> None:
    """Owners' hours are kept for good; single runs' are not, and asking for them says so."""
    world = lent_world()
    world.plane.committer.checkpoint()
    ledger = world.ledger
    assert isinstance(ledger, MemoryLedger)
    Access(ledger, lambda: world.now_ms).keep(every=1)
    ledger.archive(tmp_path, last=ledger.head().head.size, time_ms=world.now_ms, author="cli:x")
    service = service_of(world)
    rows = usage_rows(service, "owner", "month", START, world.now_ms)
    assert sum(row["gpu_hours"] for row in rows) == 72.0
    with pytest.raises(Refused, match="archive"):
        usage_rows(service, "run", "month", START, world.now_ms)
    assert usage_rows(service, "run", "month", world.now_ms, world.now_ms + 1)
    assert idle_rows(service, "month", START, world.now_ms) == []


def test_the_csv_is_for_spreadsheets(server: Running) -> None:
    """One header for every report; a name that looks like a formula is only a name."""
    reply = server.send("GET", "/v1/report?format=csv&by=owner&period=week")
    assert reply.headers["content-type"].startswith("text/csv")
    header, *rows = csv.reader(io.StringIO(reply.data.decode()))
    assert header[:5] == ["kind", "period", "start", "end", "owner"]
    assert [row[0] for row in rows if row[0] == "idle"], "the fixture's node has idle devices"
    for query, path in (
        ("by=team", "query.by"),
        ("period=year", "query.period"),
        ("since=soon", "query.since"),
        ("until=2026-01-01", "query.until"),
        ("start=x", "query.start"),
        ("since=2026-02-01T00:00:00Z&until=2026-01-01T00:00:00Z", "query.since"),
    ):
        refused = server.send("GET", f"/v1/report?{query}")
        assert (refused.status, refused.json["error"]["path"]) == (422, path), query
    far = server.ok("GET", "/v1/report?since=0001-01-01T00:00:00Z&period=day")
    assert {row["kind"] for row in far} <= {"usage", "idle"}
