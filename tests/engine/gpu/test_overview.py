"""The GPU governor at a glance: numbers that add up, and what needs attention with its view."""

from typing import Any

from msgspec import to_builtins

from fairlead.engine.gpu.overview import LINES_MAX
from fairlead.ports.meter import DeviceReading
from tests.engine.gpu.resolving import reserve, world_of
from tests.engine.gpu.test_utilisation import FakeMeter
from tests.engine.gpu.worlds import ADMIN, World, budget, envelope, node, run
from tests.work import calls_of

SECOND = 1 / 3600


def attention(world: World) -> dict[str, list[dict[str, Any]]]:
    """Lines by kind."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in to_builtins(world.plane.overview.attention()):
        found.setdefault(row["kind"], []).append(row)
    return found


def test_devices_add_up_whatever_they_are_in() -> None:
    """Used, spare, free, cordoned and used by others: each device is counted once."""
    world = world_of(devices=8, teams="a")
    world.apply(node("n2", 4, cordoned=True), node("n3", 4, foreign=3))
    world.apply(run("r", "a", 2, groupGPUs=2, sparesPerGroup=1))
    world.turn()
    devices = to_builtins(world.plane.overview.counts().devices)
    assert devices == {"total": 16, "used": 2, "held": 1, "free": 6, "unavailable": 7}
    assert sum(devices.values()) == 2 * devices["total"]


def test_quarantined_devices_are_not_free_and_need_attention() -> None:
    world, meter = World(), FakeMeter()
    world.meter = meter
    world.plane = world.open()
    world.apply(node(devices=4), budget("a"))
    meter.readings["n1#2"] = DeviceReading(0, 2**30)
    for _ in range(40):
        world.turn(SECOND)
    assert world.status("Node", "n1")["quarantined"] == ["n1#2"]
    devices = to_builtins(world.plane.overview.counts().devices)
    assert (devices["free"], devices["unavailable"]) == (3, 1)
    (row,) = attention(world)["device"]
    assert (row["severity"], row["path"]) == ("bad", "/gpu")
    assert "n1#2" in row["text"]


def test_the_queue_counts_who_waits_for_devices_and_who_for_a_time() -> None:
    world = world_of(devices=4, teams="ab")
    world.apply(run("big", "a", 4, command=["x"]))
    world.turn()
    world.apply(run("next", "b", 2), run("too-big", "b", 99))
    reserve(world, run("later", "b", 1), 24)
    world.turn()
    world.turn(0.5)
    document = to_builtins(world.plane.overview.counts())
    assert document["queue"] == {
        "running": 1,
        "waiting": 2,
        "waitingGPUs": 101,
        "notFunded": 1,
        "later": 1,
        "oldestWaitMs": 1_800_000,
    }
    assert document["reservations"] == {"waiting": 1, "next": "2026-01-02T00:00:00Z"}
    (row,) = attention(world)["run"]
    assert (row["severity"], row["path"]) == ("warn", "/runs/too-big")
    assert "would do" in row["text"], "what would fund it"
    world.apply(run("poor", "c", 1))
    world.turn()
    (poor,) = [row for row in attention(world)["run"] if row["path"] == "/runs/poor"]
    assert "1 GPU short" in poor["text"]


def test_nothing_needs_attention_in_a_quiet_world() -> None:
    world = world_of(teams="a")
    world.apply(run("r", "a", 1))
    world.turn()
    assert world.plane.overview.attention() == []


def test_a_blocked_reservation_is_urgent_and_an_open_outcome_is_shown() -> None:
    world = world_of(devices=4, teams="ab", resolver="dry-run")
    world.apply(run("old", "a", 4, command=["x"]))
    world.turn()
    reserve(world, run("mine", "b", 4))
    world.turn(0.1)
    (row,) = attention(world)["reservation"]
    assert (row["severity"], row["path"]) == ("bad", "/runs/mine")
    assert "blocked" in row["text"]
    world.reconfigure(resolver="enforce")
    world.turn(0.1)
    world.turn()
    (row,) = attention(world)["outcome"]
    (seq,) = world.projection.resolver.open_seqs.values()
    assert row["path"] == f"/preemption/{seq}"
    assert "preempted runs are ending" in row["text"]
    world.executor.end("old", world.now_ms)
    world.turn()
    assert "outcome" not in attention(world), "it is over"


def test_a_used_up_envelope_is_urgent_and_a_cordoned_node_a_note() -> None:
    world = World()
    world.apply(node(), budget("a", "a", envelope(maxGPUHours=2, recurrence="daily")))
    world.apply(run("r", gpus=2, command=["x"]))
    world.turn()
    world.turn(1.5)
    world.turn()
    rows = attention(world)["budget"]
    assert [(row["severity"], row["text"].partition(":")[0]) for row in rows] == [
        ("bad", "Budget a has used up its hours"),
        ("bad", "Budget a is over its limit"),
        ("warn", "Budget a is near its limit"),
    ]
    world.plane.verbs.act("Node", "n1", "cordon", author=ADMIN)
    (row,) = attention(world)["node"]
    assert row["severity"] == "note"
    assert "1 run on 8 devices" in row["text"]


def test_thousands_of_refused_runs_are_a_few_lines_and_a_number() -> None:
    """An operator reads lines, a page stays small, and what did not change is not counted again."""
    world = world_of(teams="a")
    many = [run(f"r{number:04}", "a", 99) for number in range(2_000)]
    world.plane.objects.apply_all(many, author=ADMIN)
    world.turn()
    rows = attention(world)["run"]
    assert len(rows) == LINES_MAX + 1
    assert rows[-1]["text"] == f"{2_000 - LINES_MAX} more runs that are not funded"
    assert [row["path"] for row in rows[:2]] == ["/runs/r0000", "/runs/r0001"]
    overview = world.plane.overview
    assert overview.counts().queue.not_funded == 2_000
    again = calls_of(lambda: (overview.counts(), overview.attention()))
    assert again * 10 < calls_of(lambda: world.plane.objects.list("Run"))
