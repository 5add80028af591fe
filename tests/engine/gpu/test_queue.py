"""The queue: who is first, who may start beside the first, and what a waiting run is told."""

from typing import Any

import pytest

from fairlead.ledger.replay import replay
from fairlead.schema.replay import Verdict
from tests.engine.gpu.resolving import phases, world_of
from tests.engine.gpu.worlds import World, budget, envelope, node, run


def running(world: World) -> set[str]:
    return {name for name, phase in phases(world).items() if phase == "Running"}


def recorded(world: World, kind: str) -> list[Any]:
    found = [entry for entry in world.log if entry.kind == kind]
    assert {replay(world.ledger, entry).verdict for entry in found} <= {Verdict.SAME}
    return found


def test_a_wide_run_starts_before_later_narrow_ones() -> None:
    """Issue 14: a 4-GPU run that came second started after eight later runs of 1 GPU."""
    world = world_of(devices=4, gpus=64)
    world.apply(run("first", owner="a", gpus=2, duration="1h"))
    world.turn()
    world.apply(run("wide", owner="b", gpus=4, duration="1h"))
    world.apply(*(run(f"n{i}", owner="c", duration="2h") for i in range(8)))
    world.turn(0.1)
    assert running(world) == {"first"}, "two devices are free, and kept"
    assert world.status("Run", "n0")["reason"] == "Queued"
    world.turn(0.9)
    assert running(world) == {"wide"}
    assert {entry.body["output"]["reason"] for entry in recorded(world, "gpu.backfill")} == {
        "DelaysHead"
    }
    world.turn(1)
    assert running(world) == {f"n{i}" for i in range(4)}


def test_a_run_that_ends_in_time_or_leaves_room_starts_beside_the_head() -> None:
    """EASY backfill: by its duration, or by the devices that the head does not need."""
    world = world_of(devices=8, gpus=64)
    world.apply(run("first", owner="a", gpus=4, duration="2h"))
    world.turn()
    world.apply(run("wide", owner="b", gpus=6, duration="1h"))
    world.apply(
        run("short", owner="c", gpus=2, duration="1h"),
        run("long", owner="c", gpus=2, duration="9h"),
        run("endless", owner="c", gpus=1),
    )
    world.turn(0.1)
    assert running(world) == {"first", "short", "long"}
    reasons = [entry.body["output"]["reason"] for entry in recorded(world, "gpu.backfill")]
    assert reasons == ["EndsBefore", "LeavesRoom"]
    world.turn(1.9)
    assert running(world) == {"long", "wide"}, "it starts when it was promised to"


def test_a_head_without_funding_or_without_hope_blocks_no_run() -> None:
    """Neither one that is not funded, nor one that is wider than all devices together."""
    world = world_of(devices=4, gpus=64)
    world.apply(budget("p", "p", envelope(concurrency=1)))
    world.apply(run("poor", owner="p", gpus=4), run("huge", owner="a", gpus=5))
    world.turn()
    world.apply(run("small", owner="b"))
    world.turn(0.01)
    assert running(world) == {"small"}
    assert recorded(world, "gpu.backfill") == []


def test_a_run_that_outstays_its_estimate_moves_the_promise() -> None:
    """It is believed for a while longer each time: what is short enough may still start."""
    world = world_of(devices=4, gpus=64)
    world.apply(run("late", owner="a", gpus=2, duration="1h", command=["work"]))
    world.turn()
    world.apply(run("wide", owner="b", gpus=4, duration="1h"))
    world.turn(2)
    world.apply(run("short", owner="c", duration="2m"), run("long", owner="c", duration="2h"))
    world.turn(0.01)
    assert running(world) == {"late", "short"}, "an hour late: taken to be 64 minutes late"
    world.executor.end("late", world.now_ms, code=0)
    world.turn(0.1)
    assert running(world) == {"wide"}


def test_an_owner_over_its_grant_is_moved_back_and_its_priority_moves_no_other() -> None:
    """What is within a grant comes first; inside an owner, its own priority decides."""
    world = world_of(devices=8, gpus=4)
    world.apply(run("now", owner="a", gpus=8, duration="1h", funding={}))
    world.apply(budget("a", "a", envelope(concurrency=8)))
    world.turn()
    world.apply(*(run(f"b{i}", owner="b", gpus=4, duration="1h") for i in range(3)))
    world.apply(run("urgent", owner="b", gpus=4, duration="1h", priority=5))
    world.turn(0.01)
    world.apply(run("c0", owner="c", gpus=4, duration="1h"))
    world.turn(1)
    assert running(world) == {"urgent", "c0"}
    (decision,) = recorded(world, "gpu.queue")
    rows = {row["run"]: row for row in decision.body["output"]["order"]}
    assert decision.version == 2
    assert [rows[name]["reason"] for name in ("urgent", "b0", "c0")] == [
        "priority",
        "priority",
        "submitted",
    ]


def test_scopes_that_share_no_device_do_not_hold_each_other_back() -> None:
    """A head in one region, and a run of another."""
    world = world_of(devices=2, gpus=64)
    world.apply(node("e1", 2, location={"region": "east"}))
    west, east = {"region": "west"}, {"region": "east"}
    world.apply(run("busy", owner="a", location=west, duration="1h"))
    world.turn()
    world.apply(run("head", owner="b", gpus=2, location=west, duration="1h"))
    world.apply(run("other", owner="c", gpus=2, location=east))
    world.apply(run("behind", owner="c", gpus=1, location=west))
    world.turn(0.01)
    assert running(world) == {"busy", "other"}


@pytest.mark.parametrize("priority", [1001, "high"])
def test_a_priority_has_a_range(priority: Any) -> None:
    world = world_of()
    with pytest.raises(Exception, match=r"spec\.priority"):
        world.apply(run("r", priority=priority))
