"""The queue: who is first, who may start beside the first, and what a waiting run is told."""

from typing import Any

import pytest

from fairlead.core.gpu import HEADS_MAX
from fairlead.core.units import HOUR_MS
from fairlead.ledger.replay import replay, replay_ledger
from fairlead.schema.replay import Verdict
from fairlead.schema.times import format_time
from tests.engine.gpu.resolving import phases, world_of
from tests.engine.gpu.worlds import ADMIN, World, budget, envelope, node, run


def running(world: World) -> set[str]:
    return {name for name, phase in phases(world).items() if phase == "Running"}


def recorded(world: World, kind: str) -> list[Any]:
    found = [entry for entry in world.log if entry.kind == kind]
    assert {replay(world.ledger, entry).verdict for entry in found} <= {Verdict.SAME}
    return found


def test_a_wide_run_starts_before_later_narrow_ones() -> None:
    """What was seen: a 4-GPU run that came second started after eight later runs of 1 GPU."""
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


def test_a_plan_says_that_a_start_would_delay_a_run_before_it() -> None:
    """It said that the run would start now, and the queue held it."""
    world = world_of(devices=4, gpus=64)
    world.apply(run("first", owner="a", gpus=2, duration="1h"))
    world.turn()
    world.apply(run("wide", owner="b", gpus=4, duration="1h"))
    world.turn(0.1)

    def plan(**spec: Any) -> dict[str, Any]:
        return world.plane.objects.plan(run("later", owner="c", **spec), author=ADMIN)

    held, short = plan(duration="2h"), plan(duration="10m")
    assert (held["starts"], held["funded"], held["placement"]["shortfall_gpus"]) == (False, True, 0)
    assert short["starts"]
    later = run("later", owner="c", duration="2h")
    tried = world.plane.objects.apply(later, author=ADMIN, dry_run=True).preview
    assert tried is not None
    assert tried["starts"] is False
    world.apply(run("short", owner="c", duration="10m"), later)
    world.turn(0.1)
    assert running(world) == {"first", "short"}
    world.plane.objects.delete("Run", "wide", author=ADMIN)
    assert plan(duration="2h")["starts"], "nobody waits before it any more"


def test_a_head_that_has_waited_long_leaves_less_time_to_later_runs() -> None:
    """Runs end before their estimates: else ever more of them would start until just before its
    promised start. What is short enough still uses what is free."""
    world = world_of(devices=4, gpus=64)
    world.apply(run("busy", owner="a", gpus=2, duration="12h", command=["work"]))
    world.turn()
    world.apply(run("wide", owner="b", gpus=4, duration="1h"))
    world.turn(4)
    world.apply(run("long", owner="c", duration="6h"), run("short", owner="c", duration="4h"))
    world.turn()
    assert running(world) == {"busy", "short"}, "8 h until its start, and it has waited for 4 h"
    held, passed = recorded(world, "gpu.backfill")
    assert (held.version, passed.version) == (3, 3)
    assert held.body["input"]["policy"]["heads_max"] == HEADS_MAX
    assert held.body["output"]["ends_by"] == format_time(world.now_ms + 4 * HOUR_MS)


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
    assert decision.version == 3
    assert [rows[name]["reason"] for name in ("urgent", "b0", "c0")] == [
        "promised",
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


ELASTIC = {"groupGPUs": 2, "malleable": {"minTotalGPUs": 2, "stepGPUs": 2}}


def test_an_elastic_run_grows_to_what_it_asked_for() -> None:
    """It started at its minimum, and no outcome took anything from it; all of it replays."""
    world = world_of(devices=8, gpus=64)
    world.apply(run("busy", owner="a", gpus=6, duration="1h"))
    world.turn()
    world.apply(run("elastic", owner="b", gpus=8, duration="9h", **ELASTIC))
    world.turn(0.1)
    assert world.status("Run", "elastic")["width"] == 2
    world.turn(0.9)
    assert world.status("Run", "elastic")["width"] == 8
    assert world.status("Run", "elastic")["phase"] == "Running"
    assert {entry.body["lease"] for entry in world.log if entry.kind == "lease.open"} >= {
        f"{world.projection.runs['elastic'].job}.{number}" for number in range(4)
    }
    recorded(world, "gpu.start")
    world.plane.verbs.act("Run", "elastic", "shrink", author=ADMIN, width=4)
    world.turn(0.1)
    world.turn(0.1)
    assert world.status("Run", "elastic")["width"] == 4, "what its owner gave up stays given up"


def test_growth_does_not_delay_the_head_of_the_queue() -> None:
    """A run that stays longer than the head waits leaves the devices that the head needs."""
    world = world_of(devices=8, gpus=64)
    world.apply(run("busy", owner="a", gpus=2, duration="2h"))
    world.apply(run("other", owner="a", gpus=4, duration="1h"))
    world.turn()
    world.apply(run("elastic", owner="b", gpus=8, duration="9h", **ELASTIC))
    world.turn(0.01)
    world.apply(run("head", owner="c", gpus=6, duration="1h"))
    world.turn(1)
    assert world.status("Run", "elastic")["width"] == 2, "four are free, and the head needs them"
    world.turn(1)
    assert running(world) == {"elastic", "head"}
    world.turn(1)
    assert world.status("Run", "elastic")["width"] == 8


def test_a_waiting_run_is_told_its_position_and_its_earliest_start() -> None:
    """The head with its time and the run that it waits for; the others with what they wait for."""
    world = world_of(devices=4, gpus=64)
    world.apply(run("sweep", owner="a", gpus=4, duration="2h"))
    world.turn()
    world.apply(run("wide", owner="b", gpus=4), run("next", owner="c"))
    world.turn(0.5)
    assert world.status("Run", "sweep")["queue"] is None
    assert world.status("Run", "wide")["queue"] == {
        "position": 1,
        "waiting": 2,
        "gpus": 4,
        "on": "n1",
        "earliestStart": "2026-01-01T02:00:00Z",
        "after": "sweep",
        "afterOwner": "a",
        "assumed": False,
        "lacks": "devices",
    }
    assert world.status("Run", "next")["queue"] == {
        "position": 2,
        "waiting": 2,
        "gpus": 1,
        "on": "n1",
        "lacks": "devices",
    }


def test_a_position_counts_runs_that_wait_for_the_same_devices() -> None:
    """Runs of another flavor or location are in no way before it."""
    world = world_of(devices=4, gpus=64)
    cold: dict[str, Any] = {"flavor": "A100", "location": {"rack": "cold"}}
    world.apply(
        node("n2", 1, **cold),
        budget("d", "d", envelope(flavor="A100")),
        run("sweep", owner="a", gpus=4),
        run("frozen", owner="d", **cold),
    )
    world.turn()
    world.apply(
        *(run(f"w{number}", owner="b", gpus=4) for number in range(3)),
        run("first", owner="d", **cold),
        run("far", owner="b", location={"rack": "other"}),
    )
    world.turn(0.1)
    places = {name: world.status("Run", name)["queue"] for name in ("w0", "w2", "first", "far")}
    assert {name: (row["position"], row["waiting"]) for name, row in places.items()} == {
        "w0": (1, 3),
        "w2": (3, 3),
        "first": (1, 1),
        "far": (1, 1),
    }
    assert (places["first"]["on"], places["first"]["lacks"]) == ("n2", "devices")
    world.plane.verbs.act("Node", "n2", "cordon", author=ADMIN)
    assert world.status("Run", "first")["queue"]["cordoned"] is True
    assert "cordoned" not in world.status("Run", "w0")["queue"]


def test_an_event_of_a_backfill_names_no_run_of_another_owner() -> None:
    """What it looked at, and whom it did not delay, is in the ledger alone."""
    world = world_of(devices=4, gpus=64)
    world.apply(run("busy", owner="a", gpus=2, duration="1h"))
    world.turn()
    world.apply(run("wide", owner="b", gpus=4), run("short", owner="c", duration="30m"))
    world.turn(0.1)
    (event,) = [
        event for event in world.plane.events.read(0, 1_000) if event["kind"] == "gpu.backfill"
    ]
    assert event["body"].keys() & {"input", "output"} == set()
    assert "wide" not in str(event)


def test_too_short_estimates_are_believed_until_one_is_overrun() -> None:
    """Else runs that say one second and stay for an hour would pass a wide run for ever."""
    world = world_of(devices=4, gpus=64)
    lie: dict[str, Any] = {"owner": "a", "duration": "1s", "command": ["work"]}
    world.apply(run("first", gpus=3, **lie))
    world.turn()
    world.turn(0.1)
    world.apply(run("wide", owner="b", gpus=4, duration="1h"), run("liar", **lie))
    world.apply(run("held", **lie, maxRuntime="1m"), run("honest", owner="c", duration="1s"))
    world.turn(0.001)
    assert running(world) == {"first", "held"}, "what will be ended in time may start"
    world.executor.end("held", world.now_ms)
    world.turn(0.001)
    assert running(world) == {"first", "honest"}
    assert {entry.body["output"]["reason"] for entry in recorded(world, "gpu.backfill")} == {
        "DelaysHead",
        "EndsBefore",
    }


def test_owners_that_take_turns_with_short_estimates_do_not_pass_a_head_for_ever() -> None:
    """Each of them overruns once; what is believed of one is not believed of the next."""
    world = world_of(devices=4, gpus=64, teams="bcdefghij")
    world.apply(run("first", owner="b", gpus=3, duration="1h", command=["work"]))
    world.turn()
    world.apply(run("wide", owner="b", gpus=4, duration="1h"))
    world.turn(0.001)
    lie: dict[str, Any] = {"gpus": 1, "duration": "30m", "command": ["work"]}
    world.apply(run("c", owner="c", **lie))
    world.turn()
    assert running(world) == {"first", "c"}
    world.turn(1.1)
    world.executor.end("first", world.now_ms)
    world.apply(*(run(name, owner=name, **{**lie, "duration": "10s"}) for name in "defgh"))
    world.apply(run("held", owner="i", maxRuntime="1m", duration="10s", command=["work"]))
    world.turn(0.02)
    assert running(world) == {"c", "held"}, "only what is ended in time may pass"
    said = recorded(world, "gpu.backfill")[-1].body
    assert {row["run"] for row in said["input"]["overruns"]} == {"c"}
    assert world.status("Run", "d")["reason"] == "Queued"
    assert "give a maxRuntime" in world.status("Run", "d")["message"]
    for name in ("c", "held"):
        world.executor.end(name, world.now_ms)
    world.turn(0.001)
    assert running(world) == {"wide"}
    assert {found.verdict for found in replay_ledger(world.ledger)} == {Verdict.SAME}


def test_a_head_is_not_displaced_by_a_run_that_comes_later() -> None:
    """Its owner is over its grant; newcomers within theirs would take its place again and again."""
    world = world_of(devices=4, gpus=4)
    world.apply(budget("a", "a", envelope(concurrency=1), parents=["all"]))
    world.apply(budget("d", "d", envelope(concurrency=4), parents=["all"]))
    world.apply(run("first", owner="b", gpus=3, duration="1h"), run("mine", owner="a"))
    world.turn()
    world.apply(run("wide", owner="a", gpus=4, duration="1h"))
    world.turn(0.1)
    assert world.status("Run", "wide")["queue"]["position"] == 1
    world.apply(run("newcomer", owner="c", gpus=3, duration="5h"))
    world.turn(0.1)
    assert world.status("Run", "wide")["queue"]["position"] == 1, "not by rank: by its promise"
    world.plane.verbs.act("Run", "mine", "cancel", author=ADMIN)
    world.turn(0.8)
    world.turn(0.01)
    assert running(world) == {"wide"}
    assert "promised" in {
        row["reason"]
        for entry in recorded(world, "gpu.queue")
        for row in entry.body["output"]["order"]
    }


# -- runs that lack funding ------------------------------------------------------------------------


def family_of(*owners: str, gpus: int, devices: int = 16) -> World:
    """Owners of one family that share what they have, and more devices than they are granted."""
    world = world_of(devices=devices, teams="")
    for owner in owners:
        world.apply(budget(owner, owner, envelope(concurrency=gpus), parents=["all"]))
    return world


def test_a_run_that_waits_for_its_familys_envelopes_is_not_passed_for_ever() -> None:
    """Devices are free all the time; its own owner's narrow runs would use its envelope."""
    world = family_of("a", "b", gpus=4)
    world.apply(run("first", owner="b", gpus=4, duration="2h"))
    world.turn()
    world.apply(run("wide", owner="a", gpus=8, duration="1h"))
    world.turn(0.01)
    world.apply(*(run(f"n{i}", owner="a", duration="5h") for i in range(4)))
    world.apply(run("short", owner="a", duration="1h"))
    world.turn(0.09)
    assert running(world) == {"first", "short"}
    assert world.status("Run", "wide")["reason"] == "ConcurrencyCapExceeded"
    assert world.status("Run", "wide")["queue"] == {
        "position": 1,
        "waiting": 5,
        "gpus": 8,
        "on": "n1",
        "earliestStart": "2026-01-01T02:00:00Z",
        "after": "first",
        "afterOwner": "b",
        "assumed": False,
        "lacks": "envelopes",
    }
    assert world.status("Run", "n0")["reason"] == "Queued"
    world.turn(1.9)
    assert running(world) == {"wide"}
    reasons = {entry.body["output"]["reason"] for entry in recorded(world, "gpu.backfill")}
    assert reasons == {"DelaysHead", "EndsBefore"}
    world.turn(1)
    assert running(world) == {f"n{i}" for i in range(4)}


def test_a_head_that_lacks_funding_holds_no_run_that_others_pay_for() -> None:
    """Another family has its own envelopes, and there are devices for all."""
    world = family_of("a", "b", gpus=4)
    world.apply(budget("z", "z", envelope(concurrency=4)))
    world.apply(run("first", owner="b", gpus=4, duration="2h"))
    world.turn()
    world.apply(run("wide", owner="a", gpus=8, duration="1h"))
    world.turn(0.01)
    world.apply(run("other", owner="z", gpus=4), run("behind", owner="b"))
    world.turn(0.01)
    assert running(world) == {"first", "other"}
    (found,) = {entry.body["output"]["reason"] for entry in recorded(world, "gpu.backfill")} - {
        "DelaysHead"
    }
    assert found == "LeavesRoom"


def test_a_run_that_can_never_be_paid_blocks_none() -> None:
    """Wider than all its family's envelopes, or beyond the hours that are left."""
    world = family_of("a", "b", gpus=4)
    hours = envelope("hours", concurrency=4, maxGPUHours=1, sharing="none")
    world.apply(budget("h", "h", hours))
    world.apply(run("first", owner="b", gpus=4, duration="2h"))
    world.turn()
    world.apply(run("never", owner="a", gpus=9, duration="1h"))
    world.apply(run("spent", owner="h", gpus=2, duration="1h"))
    world.turn(0.01)
    world.apply(run("small", owner="a"), run("tiny", owner="h", duration="30m"))
    world.turn(0.01)
    assert running(world) == {"first", "small", "tiny"}
    assert recorded(world, "gpu.backfill") == []


def test_each_family_has_a_head_and_its_next_one_none() -> None:
    """The second of a family gets its promise when the first has started."""
    world = family_of("a", "b", gpus=4)
    world.apply(budget("z", "z", envelope(concurrency=4)))
    world.apply(run("one", owner="b", gpus=8, duration="2h"))
    world.apply(run("two", owner="z", gpus=4, duration="3h"))
    world.turn()
    world.apply(run("wide", owner="a", gpus=8), run("next", owner="b", gpus=8))
    world.apply(run("apart", owner="z", gpus=4))
    world.turn(0.01)
    starts = {
        name: world.status("Run", name)["queue"].get("earliestStart")
        for name in ("wide", "next", "apart")
    }
    assert starts == {"wide": "2026-01-01T02:00:00Z", "next": None, "apart": "2026-01-01T03:00:00Z"}


def test_a_head_is_looked_for_where_its_payers_are() -> None:
    """Only an envelope elsewhere pays for it, so it is placed elsewhere."""
    world = world_of(devices=4, teams="")
    world.apply(budget("a", "a", envelope(concurrency=4, location={"region": "west"})))
    world.apply(run("first", gpus=4, duration="1h", location={"region": "west"}))
    world.turn()
    world.apply(run("far", gpus=4, duration="1h", location={"region": "east"}))
    world.turn(0.5)
    assert world.status("Run", "far")["queue"]["earliestStart"] == "2026-01-01T01:00:00Z"
    world.turn(0.5)
    assert running(world) == {"far"}


def test_what_is_recorded_of_a_refusal_counts_in_the_singular() -> None:
    """The decision keeps its bytes; the phase of the run is for people."""
    world = world_of(devices=4, gpus=1)
    world.apply(run("two", owner="a", gpus=2))
    world.turn()
    assert world.status("Run", "two")["message"].startswith("1 GPU short: ")
    (fund,) = recorded(world, "gpu.fund")
    assert fund.body["output"]["refusal"]["message"].startswith("1 GPUs short: ")
