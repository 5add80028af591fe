"""Lists that a page reads: runs and nodes by page, leases over time, hours over a period."""

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest
from msgspec import to_builtins

from fairlead.engine.gpu.device_map import NodeFilter
from fairlead.engine.gpu.history import LOOKED_AT_MAX
from fairlead.engine.gpu.listings import RunFilter
from fairlead.engine.gpu.values import NotFound
from tests.engine.gpu import worlds
from tests.engine.gpu.resolving import reserve
from tests.engine.gpu.test_utilisation import FakeMeter
from tests.engine.gpu.worlds import ADMIN, HOUR, START, World, budget, envelope, node
from tests.work import calls_of

ALL = RunFilter()
DAY = 24 * HOUR


def run(name: str, owner: str, gpus: int, **more: Any) -> dict[str, Any]:
    return worlds.run(name, owner, gpus, command=["train"], **more)


def listed(ask: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    """A page as the API shows it."""
    page: dict[str, Any] = to_builtins(ask(*arguments)[0])
    return page


def names(page: dict[str, Any]) -> list[str]:
    return [row["name"] for row in page["items"]]


@pytest.fixture
def world() -> World:
    """Two of four runs fit; one has ended."""
    world = World()
    world.apply(node(), budget("a"), budget("b"), run("old", "a", 8))
    world.turn()
    world.executor.end("old", world.now_ms)
    world.turn()
    world.apply(run("one", "a", 4), run("two", "b", 4), run("wide", "b", 8), run("last", "a", 1))
    world.turn()
    return world


def test_runs_are_counted_by_phase_and_filtered(world: World) -> None:
    """Counts are those of the other filters, so that each phase can be offered with its number."""
    page = listed(world.plane.listings.runs, ALL, 50)
    assert names(page) == ["last", "wide", "two", "one", "old"], "the newest first"
    assert page["total"] == 5
    counted = {"Running": 2, "Pending": 2, "Completed": 1}
    assert page["phases"] == {"Shrunk": 0, "Reserved": 0, "Failed": 0, **counted}
    folded = listed(world.plane.listings.runs, RunFilter(fold_ended=True), 50)
    assert names(folded) == ["last", "wide", "two", "one"]
    assert (folded["total"], folded["phases"]) == (4, page["phases"]), "what is folded is counted"
    for wanted, expected in (
        (RunFilter(owner="b"), ["wide", "two"]),
        (RunFilter(text="LAST"), ["last"]),
        (RunFilter(text="a", owner="a"), ["last", "one", "old"]),  # a part of the owner, too
        (RunFilter(flavor="A100"), []),
        (RunFilter(frozenset({"Completed"}), fold_ended=True), ["old"]),
        (RunFilter(frozenset({"Running", "Completed"})), ["two", "one", "old"]),
    ):
        page = listed(world.plane.listings.runs, wanted, 50)
        assert (names(page), page["total"]) == (expected, len(expected)), wanted


def test_a_row_says_why(world: World) -> None:
    rows = {row["name"]: row for row in listed(world.plane.listings.runs, ALL, 50)["items"]}
    assert (rows["one"]["width"], rows["one"]["position"]) == (4, None)
    assert rows["one"]["message"] == world.status("Run", "one")["message"]
    wide = rows["wide"]
    refusal = world.status("Run", "wide")["refusal"]
    assert (wide["reason"], wide["message"]) == (refusal["code"], refusal["message"])
    assert wide["position"] == world.status("Run", "wide")["queue"]["position"]


def test_pages_stay_whole_while_runs_come_and_go(world: World) -> None:
    """Runs that are there all the time are seen once each, whatever happens between two pages."""
    first = listed(world.plane.listings.runs, ALL, 2)
    assert (names(first), first["next"]) == (["last", "wide"], first["items"][-1]["seq"])
    world.executor.end("one", world.now_ms)
    world.apply(run("newer", "a", 1))
    world.turn()
    world.plane.objects.delete("Run", "old", author=ADMIN)
    second = listed(world.plane.listings.runs, ALL, 2, first["next"])
    assert (names(second), second["next"]) == (["two", "one"], None)
    assert names(listed(world.plane.listings.runs, ALL, 1)) == ["newer"]
    world.apply(run("old", "b", 1))
    assert names(listed(world.plane.listings.runs, ALL, 1)) == ["old"], (
        "another run of the name is new"
    )
    again = World(world.ledger)
    found, before = (listed(each.plane.listings.runs, ALL, 50) for each in (again, world))
    assert found == before | {"items": found["items"]}


def test_the_queue_by_position(world: World) -> None:
    page = listed(world.plane.listings.queue, 1)
    assert (names(page), page["total"], page["next"]) == (["wide"], 2, 1)
    page = listed(world.plane.listings.queue, 5, page["next"])
    assert (names(page), page["next"]) == (["last"], None)
    assert page["items"][0]["position"] == 2


def test_what_each_device_does(world: World) -> None:
    world.apply(node("n2", 3, cordoned=True), node("n3", 3, foreign=1, flavor="A100"))
    world.projection.quarantined.add("n3#0")
    page = to_builtins(world.plane.device_map.devices(NodeFilter()))
    by_name = {row["node"]: row for row in page["items"]}
    assert [slot["run"] for slot in by_name["n1"]["slots"]] == ["one"] * 4 + ["two"] * 4
    assert by_name["n1"]["slots"][0]["owner"] == "a"
    assert {slot["state"] for slot in by_name["n2"]["slots"]} == {"cordoned"}
    assert [slot["state"] for slot in by_name["n3"]["slots"]] == ["quarantined", "idle", "foreign"]
    counted = {"leased": 8, "idle": 1, "cordoned": 3, "quarantined": 1, "foreign": 1}
    assert (page["nodes"], page["devices"], page["next"]) == (3, counted, None)
    part = to_builtins(world.plane.device_map.devices(NodeFilter(limit=1)))
    assert ([row["node"] for row in part["items"]], part["next"]) == (["n1"], "n1")
    assert part["devices"] == counted
    rest = to_builtins(world.plane.device_map.devices(NodeFilter(after="n1", flavor="A100")))
    assert [row["node"] for row in rest["items"]] == ["n3"]
    assert to_builtins(world.plane.device_map.devices(NodeFilter(text="N2")))["nodes"] == 1


def test_leases_over_time_with_what_is_expected(world: World) -> None:
    reserve(world, run("booked", "a", 2, duration="90m"), hours=5)
    world.turn(1)
    found = to_builtins(world.plane.device_map.timeline(START - DAY, START + DAY, NodeFilter()))
    bars = {row["run"]: row for row in found["leases"]}
    assert set(bars) == {"old", "one", "two"}
    assert bars["one"]["end"] is None
    assert [slot["device"] for slot in bars["one"]["slots"]] == [0, 1, 2, 3]
    (booked,) = found["reservations"]
    assert (booked["run"], booked["start"]) == ("booked", "2026-01-01T05:00:00Z")
    assert booked["end"] == "2026-01-01T06:30:00Z"
    assert found["nodes"] == [{"node": "n1", "devices": 8}]
    world.executor.end("one", world.now_ms)
    world.turn()
    found = to_builtins(world.plane.device_map.timeline(START - DAY, START + DAY, NodeFilter()))
    ended = next(row for row in found["leases"] if row["run"] == "one")
    assert (ended["end"], ended["there"]) == ("2026-01-01T01:00:00Z", True)
    later = to_builtins(
        world.plane.device_map.timeline(START + 2 * HOUR, START + DAY, NodeFilter())
    )
    assert "one" not in {row["run"] for row in later["leases"]}
    none = world.plane.device_map.timeline(START, START + 1, NodeFilter(text="x"))
    assert none.leases == []


def test_the_queues_estimate_is_on_the_timeline() -> None:
    world = World()
    world.apply(node(), budget("a"), budget("b"), run("now", "a", 8, duration="2h"))
    world.turn()
    world.apply(run("then", "b", 8, duration="1h"))
    world.turn()
    found = to_builtins(world.plane.device_map.timeline(START - DAY, START + DAY, NodeFilter()))
    (expected,) = found["forecast"]
    assert (expected["run"], expected["position"], expected["lacks"]) == ("then", 1, "devices")
    assert (expected["start"], expected["end"]) == ("2026-01-01T02:00:00Z", "2026-01-01T03:00:00Z")
    assert found["leases"][0]["expected_end"] == "2026-01-01T02:00:00Z"
    other = NodeFilter(flavor="A100")
    assert world.plane.device_map.timeline(START, START + DAY, other).forecast == []


def test_hours_go_down_to_the_end_of_the_period() -> None:
    """The last point is what the budget says; a short period is drawn finer than by day."""
    world = World()
    daily = envelope("day", 4, maxGPUHours=10, recurrence="daily")
    monthly = envelope("month", 4, maxGPUHours=100, recurrence="monthly")
    world.apply(node(), budget("a", None, daily), budget("b", None, monthly))
    world.apply(budget("c", None, envelope("free", 2)))
    world.apply(run("one", "a", 2), run("two", "b", 4), run("three", "c", 1))
    world.turn()
    world.turn(1)
    world.executor.end("two", world.now_ms)
    world.turn()
    world.turn(2)
    rows = {row["budget"]: row for row in to_builtins(world.plane.burn_down.series())}
    day = rows["a"]
    used = [point["used_gpu_hours"] for point in day["points"]]
    assert used == sorted(used)
    assert len(used) > 40
    assert used[-1] == day["used_gpu_hours"] == world.headroom("a")["gpuHoursUsed"] == 6
    assert used[len(used) // 2] == pytest.approx(3, abs=0.2)
    assert day["runs_out"] == "2026-01-01T05:00:00Z", "4 GPU-hours left, by 2 GPUs"
    month = rows["b"]
    assert [point["used_gpu_hours"] for point in month["points"]] == [0, 4]
    assert (month["period_end"], month["runs_out"]) == ("2026-02-01T00:00:00Z", None)
    free = rows["c"]
    assert (free["limit_gpu_hours"], free["period_end"], free["runs_out"]) == (None, None, None)
    assert free["points"][-1]["used_gpu_hours"] == 3
    assert [row["envelope"] for row in to_builtins(world.plane.burn_down.series("b"))] == ["month"]


def test_the_history_of_a_run(world: World) -> None:
    """Attempts with devices and times; events newest first, page by page; which are decisions."""
    history = world.plane.history
    found = history.of("old", 50)
    assert found.complete
    (attempt,) = found.attempts
    assert (attempt.attempt, attempt.start) == (1, "2026-01-01T00:00:00Z")
    assert attempt.leases[0].slots == [f"n1#{i}" for i in range(8)]
    assert attempt.leases[0].reason == "Completed"
    seqs = [event["seq"] for event in found.events]
    assert seqs == sorted(seqs, reverse=True)
    kinds = [event["kind"] for event in reversed(found.events)]
    assert kinds[0] == "object.applied"
    assert {"gpu.fund", "gpu.place", "lease.open", "run.phase", "lease.close"} <= set(kinds)
    decided = {event["kind"] for event in found.events if event["seq"] in found.decisions}
    assert {"gpu.fund", "gpu.place"} <= decided
    assert all(kind.startswith("gpu.") for kind in decided)
    part = history.of("old", 3)
    assert [event["seq"] for event in part.events] == seqs[:3]
    rest = history.of("old", 50, part.next)
    assert ([event["seq"] for event in rest.events], rest.next) == (seqs[3:], None)
    with pytest.raises(NotFound):
        history.of("nothing", 5)


def test_a_restart_finds_the_history_again(world: World, monkeypatch) -> None:
    """All of it for a young run; of an older one what its starts cite, and it says so."""
    before = world.plane.history.of("one", 100)
    again = World(world.ledger)
    assert again.plane.history.of("one", 100) == before
    monkeypatch.setattr("fairlead.engine.gpu.history.LOOKED_AT_MAX", 1)
    old = World(world.ledger).plane.history.of("one", 100)
    assert LOOKED_AT_MAX > 1
    assert not old.complete
    cited = [event["kind"] for event in old.events]
    assert {"object.applied", "gpu.fund", "gpu.place", "lease.open"} <= set(cited)
    assert set(old.decisions) <= set(before.decisions)


def test_a_deleted_runs_history_is_not_the_next_ones(world: World) -> None:
    world.plane.objects.delete("Run", "old", author=ADMIN)
    world.apply(run("old", "b", 1))
    found = world.plane.history.of("old", 50)
    assert found.attempts == []
    assert [event["kind"] for event in found.events] == ["object.applied"]


def test_readings_of_a_run_over_time() -> None:
    world, meter = World(), FakeMeter()
    world.meter = meter
    world.plane = world.open()
    world.apply(node(), budget("a"), run("one", "a", 2))
    world.turn()
    for percent in (10, 80):
        meter.put(0, percent, 2**30)
        world.turn(0.01)
    read = world.plane.history.of("one", 5).use
    assert [row.percent for row in read][-2:] == [5, 40]
    assert read[-1].memory_bytes >= 2**30


def test_a_page_of_many_runs_is_cheap() -> None:
    """A page of 2 000 runs takes the work and the bytes of a page of 200: rows are made for those
    shown only, and what a filter found is looked for once until the next entry."""
    costs = []
    for count in (200, 2_000):
        world = World()
        world.apply(node(), budget("a"))
        many = [run(f"r{number}", "a", 8, duration="1h") for number in range(count)]
        world.plane.objects.apply_all(many, author=ADMIN)
        world.turn()
        world.turn()  # one has started; now all others are told why they wait
        ask = partial(world.plane.listings.runs, RunFilter(fold_ended=True, text="9"), 10)
        first, again = calls_of(ask), calls_of(ask)
        page = listed(world.plane.listings.runs, ALL, 50)
        assert (page["total"], len(page["items"])) == (count, 50)
        costs.append((first, again, len(msgspec.json.encode(page))))
    (first_of_few, few, few_bytes), (first_of_many, many_again, many_bytes) = costs
    assert many_again <= few * 1.1
    assert many_bytes < few_bytes * 1.1
    # The first look since an entry goes over all runs, and over the queue for their positions.
    assert first_of_many - first_of_few <= 4 * (2_000 - 200)
