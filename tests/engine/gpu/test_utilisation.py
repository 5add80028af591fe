"""Idle leases are seen, warned and released; a device that is not clean is given to none."""

from collections.abc import Mapping
from typing import Any

import pytest

from fairlead.ledger.replay import replay
from fairlead.ports.meter import DeviceReading
from fairlead.schema.border import BadInput
from fairlead.schema.replay import Verdict
from fairlead.schema.times import parse_time
from tests.engine.gpu.worlds import ADMIN, HOUR, Clocks, World, budget, node, run, state_of

SECOND = 1 / 3600


class FakeMeter:
    """Devices do what tests say."""

    def __init__(self, devices: int = 4) -> None:
        self.readings = {f"n1#{i}": DeviceReading(0, 0) for i in range(devices)}
        self.reads = 0

    def put(self, ordinal: int, percent: int, memory: int) -> None:
        self.readings[f"n1#{ordinal}"] = DeviceReading(percent, memory)

    def read(self) -> Mapping[str, DeviceReading]:
        self.reads += 1
        return dict(self.readings)


def started(gpus: int = 2, **spec: Any) -> tuple[World, FakeMeter]:
    world, meter = World(), FakeMeter()
    world.meter = meter
    world.plane = world.open()
    world.apply(node(devices=4), budget("a"), run("r", gpus=gpus, command=["train"], **spec))
    world.turn()
    return world, meter


def test_devices_are_read_every_ten_seconds() -> None:
    world, meter = started()
    for _ in range(30):
        world.turn(SECOND)
    assert 3 <= meter.reads <= 5
    meter.put(0, 90, 2**30)
    meter.put(1, 10, 2**30)
    world.turn(11 * SECOND)
    use = world.status("Run", "r")["use"]
    assert (use["utilisationPercent"], use["memoryBytes"]) == (50, 2**31)
    assert use["idleSince"] is None
    shown = world.plane.reports.metrics()["gpu_run_utilisation_percent"]
    assert shown == [({"run": "r", "owner": "a"}, 50)]


@pytest.mark.parametrize("action", [None, "Warn", "Release"])
def test_an_idle_run_is_warned_once_or_asked_to_end(action: str | None) -> None:
    more = {} if action is None else {"idleAction": action}
    world, meter = started(idleAfter="5m", checkpointGrace="20s", **more)
    meter.put(1, 50, 0)
    world.turn(1)
    meter.put(1, 0, 0)
    for _ in range(100):
        world.turn(11 * SECOND)
    decided = [entry for entry in world.log if entry.kind == "gpu.limit"]
    assert [entry.body["output"]["reason"] for entry in decided] == ["Idle"], "once"
    assert {replay(world.ledger, entry).verdict for entry in decided} == {Verdict.SAME}
    asked = [call for call in world.executor.calls if call[0] == "stop"]
    assert bool(asked) == (action == "Release")
    before = state_of(world)
    world.plane = world.open()
    assert state_of(world) == before
    if action == "Release":
        world.executor.end("r", world.now_ms, signal=15)
        world.turn()
        status = world.status("Run", "r")
        assert (status["phase"], status["reason"]) == ("Failed", "Idle")


def test_work_in_between_begins_the_idle_time_anew_and_another_warning_follows() -> None:
    world, meter = started(idleAfter="5m")
    for _ in range(2):
        meter.put(0, 50, 0)
        world.turn(11 * SECOND)
        meter.put(0, 0, 0)
        for _ in range(60):
            world.turn(11 * SECOND)
    assert world.kinds().count("gpu.limit") == 2


def test_a_clock_that_was_set_forward_makes_no_run_idle() -> None:
    """It was idle for a minute, and an operator accepts a clock that is 400 days ahead."""
    world, meter = World(clocks=Clocks()), FakeMeter()
    world.meter = meter
    world.plane = world.open()
    idle = run("r", gpus=2, command=["train"], idleAfter="5m", idleAction="Release")
    world.apply(node(devices=4), budget("a"), idle)
    for _ in range(6):
        world.turn(11 * SECOND)
    assert world.clocks is not None
    world.clocks.wall_ms += 400 * 24 * HOUR
    world.turn(11 * SECOND)
    world.plane.clock.judge("accept", author=ADMIN)
    world.turn(11 * SECOND)
    assert not [call for call in world.executor.calls if call[0] == "stop"]
    for _ in range(30):
        world.turn(11 * SECOND)
    assert [call for call in world.executor.calls if call[0] == "stop"], "it is idle from there on"


def streaks(world: World) -> list[Any]:
    found = [entry for entry in world.log if entry.kind == "gpu.idle"]
    assert {replay(world.ledger, entry).verdict for entry in found} <= {Verdict.SAME}
    return [entry.body["output"]["runs"][0]["streak"] for entry in found]


def test_idle_time_goes_on_after_a_restart_less_what_was_not_read() -> None:
    """Recorded every five minutes, and not in between; three minutes of standstill do not count."""
    world, _ = started(idleAfter="20m", idleAction="Release")
    for _ in range(60):
        world.turn(11 * SECOND)
    assert len(streaks(world)) == 2
    before = state_of(world)
    world.plane = world.open()
    assert state_of(world) == before
    world.turn(180 * SECOND)
    since = world.status("Run", "r")["use"]["idleSince"]
    recorded = parse_time(streaks(world)[-1]["read"], "") - parse_time(
        streaks(world)[-1]["since"], ""
    )
    assert world.now_ms - parse_time(since, "") == recorded >= 600_000
    for _ in range(60):
        world.turn(11 * SECOND)
    (decision,) = [entry for entry in world.log if entry.kind == "gpu.limit"]
    assert decision.body["input"]["idle"]["since"] == streaks(world)[-1]["since"] == since


def test_a_streak_that_was_recorded_is_over_when_work_was_seen() -> None:
    """Else a restart would go on from there."""
    world, meter = started(idleAfter="20m")
    for _ in range(40):
        world.turn(11 * SECOND)
    meter.put(0, 50, 0)
    world.turn(11 * SECOND)
    assert (streaks(world)[-1], len(streaks(world))) == (None, 2)
    meter.put(0, 0, 0)
    world.plane = world.open()
    world.turn(11 * SECOND)
    since = world.status("Run", "r")["use"]["idleSince"]
    assert parse_time(since, "") == world.now_ms
    size = len(world.log)
    for _ in range(20):
        world.turn(11 * SECOND)
    assert len(world.log) == size, "nothing follows from it yet"


def test_a_paused_run_is_not_idle() -> None:
    """It would be asked to end as soon as it is resumed."""
    world, _ = started(idleAfter="5m", idleAction="Release")
    world.plane.verbs.act("Run", "r", "pause", author=ADMIN)
    for _ in range(60):
        world.turn(11 * SECOND)
    world.plane.verbs.act("Run", "r", "resume", author=ADMIN)
    world.turn(11 * SECOND)
    assert not [call for call in world.executor.calls if call[0] == "stop"]


def test_the_operator_may_ask_for_the_same_of_all() -> None:
    world, _ = started()
    world.reconfigure(idle_after_ms=60_000, idle_release=True)
    for _ in range(20):
        world.turn(11 * SECOND)
    assert [call for call in world.executor.calls if call[0] == "stop"]


def test_a_device_that_still_holds_memory_is_given_to_none_until_it_is_clean() -> None:
    """It is read between the end of a run and the next start, and named."""
    world, meter = started(gpus=4)
    world.apply(run("next", gpus=4))
    meter.put(2, 0, 2**30)
    world.executor.end("r", world.now_ms, code=0)
    world.turn(SECOND)
    assert world.status("Node", "n1")["quarantined"] == ["n1#2"]
    assert world.status("Node", "n1")["free"] == 3
    assert world.status("Run", "next")["reason"] == "NoDevices"
    before = state_of(world)
    world.plane = world.open()
    assert state_of(world) == before, "folded again it is the same"
    meter.put(2, 0, 0)
    world.turn(SECOND)
    assert world.status("Run", "next")["phase"] == "Running"
    decided = [entry for entry in world.log if entry.kind == "gpu.quarantine"]
    assert [entry.body["output"]["cleared"] for entry in decided] == [[], ["n1#2"]]
    assert {replay(world.ledger, entry).verdict for entry in decided} == {Verdict.SAME}


def test_a_device_that_is_used_beside_fairlead_is_not_leased() -> None:
    world, meter = World(), FakeMeter()
    meter.put(0, 100, 2**33)
    world.meter = meter
    world.plane = world.open()
    world.apply(node(devices=4), budget("a"), run("r", gpus=3))
    world.turn()
    slots = {slot for lease in world.projection.leases.values() for slot in lease.slots}
    assert slots == {"n1#1", "n1#2", "n1#3"}


def test_an_action_needs_its_time() -> None:
    with pytest.raises(BadInput) as refused:
        World().apply(run("r", idleAction="Release"))
    assert refused.value.path == "spec.idleAfter"
