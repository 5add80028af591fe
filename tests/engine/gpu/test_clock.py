"""A wall clock that jumps: no run is charged for it, none starts, and an operator judges it."""

import dataclasses
from hashlib import sha256

import pytest
from msgspec.structs import replace

from fairlead.compose.clock import upkeep_time_ms
from fairlead.core.canonical import canonical
from fairlead.engine.gpu import Config, ControlPlane
from fairlead.engine.gpu.clock import LedgerClock
from fairlead.engine.gpu.clock_watch import Judgement
from fairlead.engine.gpu.entries import decode
from fairlead.engine.gpu.values import Forbidden, Refused
from fairlead.ledger.replay import is_decision, replay
from fairlead.schema.replay import Verdict
from tests.engine.gpu.resolving import CHANCE
from tests.engine.gpu.worlds import (
    ADMIN,
    ALICE,
    HOUR,
    START,
    Clocks,
    World,
    budget,
    envelope,
    node,
    run,
    state_of,
)
from tests.ledger.memory import MemoryLedger

DAY = 24 * HOUR


def running(**spec: object) -> World:
    world = World(clocks=Clocks())
    world.apply(budget("a"), node(), run("r", gpus=4, command=["x"], **spec))
    world.turn()
    world.turn(1)
    return world


def used_hours(world: World) -> float:
    """Of the one lease that has ended."""
    (lease,) = world.projection.closed
    return (lease.used_ms or 0) / HOUR


def end(world: World) -> None:
    world.executor.end("r", world.plane.committer.now())
    world.turn()


@pytest.mark.parametrize("days", [400, -400])
def test_a_clock_that_jumps_for_two_seconds_charges_two_seconds(days: int) -> None:
    """It was 38 400 GPU-hours for 4 GPUs, and ledger time stood still for 400 days."""
    world = running()
    clocks = world.clocks
    assert clocks is not None
    clocks.wall_ms += days * DAY
    world.turn(2 / 3600)
    clocks.wall_ms -= days * DAY
    world.turn(1)
    end(world)
    assert used_hours(world) == pytest.approx(4 * (2 + 2 / 3600), abs=0.01)
    times = [entry.time_ms for entry in world.log]
    assert times == sorted(times)
    assert times[-1] - START == pytest.approx(2 * HOUR, abs=10_000), "time goes on"
    assert [kind for kind in world.kinds() if kind.startswith("clock.")] == [
        *("clock.anchored", "clock.anchored", "clock.held", "clock.anchored")
    ]


@pytest.mark.parametrize("days", [400, -400])
def test_no_run_starts_while_a_jump_is_not_judged(days: int) -> None:
    """Running runs go on and end; the fault says what to do."""
    world = running()
    assert world.clocks is not None
    world.clocks.wall_ms += days * DAY
    world.apply(run("later", command=["x"]))
    world.turn(1)
    assert world.status("Run", "later")["phase"] == "Pending"
    side = "ahead of" if days > 0 else "behind"
    assert world.plane.faults["*clock"].startswith(f"the clock is 400d {side} ledger time")
    assert world.plane.clock.report()["state"] == "held"
    assert world.plane.reports.metrics()["fairlead_clock_held"] == [({}, 1)]
    end(world)
    assert world.status("Run", "r")["phase"] == "Completed"
    assert used_hours(world) == pytest.approx(8, abs=0.01)
    assert world.status("Run", "later")["phase"] == "Pending"


def test_a_drain_that_is_refused_while_a_jump_is_not_judged_leaves_the_node_as_it_was() -> None:
    world = World(config=Config(resolver="enforce"), chance=CHANCE, clocks=Clocks())
    world.apply(budget("a"), node(), run("r", gpus=4, command=["x"]))
    world.turn()
    assert world.clocks is not None
    world.clocks.wall_ms += 400 * DAY
    world.turn(1)
    (lease,) = world.projection.runs["r"].leases.values()
    (on,) = {slot.split("#")[0] for slot in lease.slots}
    size = len(world.log)
    with pytest.raises(Refused, match="the clock is 400d ahead"):
        world.plane.verbs.act("Node", on, "drain", author=ADMIN)
    assert len(world.log) == size


def test_an_accepted_jump_ahead_moves_time_and_charges_nothing() -> None:
    """Open leases are restated: they began an hour ago, on the right clock too."""
    world = running(duration="5h")
    clocks = world.clocks
    assert clocks is not None
    clocks.wall_ms += 400 * DAY
    world.apply(run("later", command=["x"]))
    world.turn()
    report = world.plane.clock.judge("accept", author=ADMIN)
    assert report["state"] == "steady"
    world.turn()
    assert world.status("Run", "later")["phase"] == "Running"
    assert world.plane.committer.now() == clocks.wall_ms
    (lease,) = world.projection.runs["r"].leases.values()
    assert lease.start_ms == clocks.wall_ms - HOUR
    assert lease.expected_end_ms == clocks.wall_ms + 4 * HOUR
    judged = [entry for entry in world.log if entry.kind == "clock.anchored"][-1]
    assert (judged.author, judged.body["reason"]) == ("root", "Accepted")
    assert judged.body["shift_ms"] == 400 * DAY
    world.turn(1)
    end(world)
    assert used_hours(world) == pytest.approx(8, abs=0.01)


def test_an_accepted_clock_behind_lets_ledger_time_go_on() -> None:
    """Ledger time never goes back: it stays ahead, and does not stand still for 400 days."""
    world = running()
    clocks = world.clocks
    assert clocks is not None
    clocks.wall_ms -= 400 * DAY
    world.turn()
    before_ms = world.plane.committer.now()
    assert world.plane.clock.judge("accept", author=ADMIN)["state"] == "offset"
    world.apply(run("later", command=["x"]))
    world.turn(1)
    assert world.status("Run", "later")["phase"] == "Running"
    assert world.plane.committer.now() == before_ms + HOUR
    world.plane = world.open()
    world.turn()
    assert world.plane.clock.report()["state"] == "offset", "after a restart too"
    clocks.reboot(7 * DAY)
    world.plane = world.open()
    world.turn()
    assert world.plane.committer.now() == before_ms + HOUR + 7 * DAY


def test_a_rejected_jump_keeps_ledger_time_until_the_clock_is_set_right() -> None:
    world = running()
    clocks = world.clocks
    assert clocks is not None
    clocks.wall_ms += 400 * DAY
    world.turn()
    assert world.plane.clock.judge("reject", author=ADMIN)["state"] == "offset"
    world.apply(run("later", command=["x"]))
    world.turn(1)
    assert world.status("Run", "later")["phase"] == "Running"
    clocks.wall_ms -= 400 * DAY
    world.turn()
    assert world.plane.clock.report()["state"] == "steady"
    assert world.plane.committer.now() == clocks.wall_ms
    last = [entry for entry in world.log if entry.kind == "clock.anchored"][-1]
    assert (last.author, last.body["reason"]) == ("fairlead", "Returned")


def test_a_wrong_rejection_can_be_accepted_later() -> None:
    world = running()
    clocks = world.clocks
    assert clocks is not None
    clocks.wall_ms += 10 * DAY
    world.turn()
    world.plane.clock.judge("reject", author=ADMIN)
    assert world.plane.clock.judge("accept", author=ADMIN)["state"] == "steady"
    assert world.plane.committer.now() == clocks.wall_ms


def test_only_an_operator_judges_and_only_a_jump() -> None:
    world = running()
    with pytest.raises(Forbidden):
        world.plane.clock.judge("accept", author=ALICE)
    for judgement in ("accept", "reject"):
        with pytest.raises(Refused, match="agrees"):
            world.plane.clock.judge(judgement, author=ADMIN)  # type: ignore[arg-type]
    assert world.clocks is not None
    world.clocks.wall_ms += DAY
    world.turn()
    size = world.plane.seq
    report = world.plane.clock.judge("accept", author=ADMIN, dry_run=True)
    assert (report["state"], world.plane.seq) == ("held", size)


def test_a_time_server_that_slews_is_followed() -> None:
    """50 ppm for ten days, 43 s in all: no question, and ledger time is never off by a second."""
    world = World(clocks=Clocks())
    clocks = world.clocks
    assert clocks is not None
    world.apply(budget("a"), node(), run("r", command=["x"]))
    for _ in range(240):
        world.turn(1)
        clocks.wall_ms += 180
    assert "clock.held" not in world.kinds()
    assert abs(world.plane.committer.now() - clocks.wall_ms) <= 1_000
    world.plane = world.open()
    world.turn()
    assert world.plane.clock.report()["state"] == "steady"


def test_a_small_step_is_made_up_for_by_a_thousandth() -> None:
    world = running()
    clocks = world.clocks
    assert clocks is not None
    clocks.wall_ms += 60_000
    before_ms = world.plane.committer.now()
    world.turn(1)
    assert world.plane.committer.now() - before_ms == HOUR + 3_600
    assert "clock.held" not in world.kinds()


def test_a_restart_of_the_control_plane_counts_the_time_between() -> None:
    """In the same boot the monotonic clock reaches back to the last anchor."""
    world = running()
    clocks = world.clocks
    assert clocks is not None
    clocks.pass_ms(3 * HOUR)
    clocks.wall_ms += 400 * DAY
    world.plane = world.open()
    world.turn()
    assert world.plane.clock.report()["state"] == "held"
    assert world.plane.committer.now() == START + 4 * HOUR
    assert state_of(world) == state_of(_rebuilt(world))


def test_a_restart_makes_up_for_no_difference_at_once() -> None:
    """A day after the last anchor a thousandth is 86 s: none of that is charged to who runs now."""
    world = running()
    clocks = world.clocks
    assert clocks is not None
    world.turn(24)
    clocks.wall_ms += 60_000
    clocks.pass_ms(1_000)
    before_ms = world.plane.committer.now()
    world.plane = world.open()
    assert world.plane.committer.now() - before_ms <= 1_000


@pytest.mark.parametrize("days", [400, -400, 0])
def test_upkeep_under_a_wrong_clock_charges_nothing(days: int) -> None:
    """`fairlead audit rotate-key` and `archive`: they were dated by the wall clock, ledger time
    went on from there, and a run was charged 38 400 GPU-hours that no operator had accepted."""
    world = running()
    clocks = world.clocks
    assert clocks is not None
    clocks.pass_ms(HOUR)
    wrong = dataclasses.replace(clocks(), wall_ms=clocks.wall_ms + days * DAY)
    time_ms = upkeep_time_ms(world.ledger, wrong)
    assert time_ms == pytest.approx(START + 2 * HOUR, abs=1_000)
    world.ledger.rotate_key(time_ms=time_ms, author="root")
    world.plane = world.open()
    world.turn(1)
    end(world)
    assert used_hours(world) == pytest.approx(4 * 3, abs=0.01)
    clocks.reboot(days * DAY)
    assert upkeep_time_ms(world.ledger, clocks()) == world.log[-1].time_ms


def test_upkeep_of_a_ledger_without_anchors_goes_by_the_clock() -> None:
    """That of a traffic agent has none, nothing is charged for it."""
    ledger, clocks = MemoryLedger(time_ms=START), Clocks()
    assert upkeep_time_ms(ledger, clocks()) == START
    clocks.pass_ms(HOUR)
    assert upkeep_time_ms(ledger, clocks()) == START + HOUR


def _rebuilt(world: World) -> World:
    again = World(world.ledger, clocks=world.clocks)
    again.now_ms = world.now_ms
    return again


def test_a_machine_that_was_off_for_a_week_asks_nothing_and_charges_nothing() -> None:
    world = running()
    clocks = world.clocks
    assert clocks is not None
    world.executor.seen_ms = world.plane.committer.now()
    clocks.reboot(7 * DAY)
    world.executor.forget("r")
    world.plane = world.open()
    world.turn()
    assert world.plane.clock.report()["state"] == "steady"
    assert world.plane.committer.now() == clocks.wall_ms
    assert used_hours(world) == pytest.approx(4, abs=0.01), "it was interrupted when it went off"


@pytest.mark.parametrize("off", [-3 * DAY, 400 * DAY])
def test_a_boot_with_a_clock_that_cannot_be_right_asks(off: int) -> None:
    """Behind the last entry, or more than 90 days after it. When the time server has set it, the
    time between was downtime, and no operator is needed."""
    world = running()
    clocks = world.clocks
    assert clocks is not None
    right_ms = clocks.wall_ms + 2 * HOUR
    clocks.reboot(off)
    world.plane = world.open()
    world.turn()
    assert world.plane.clock.report()["state"] == "held"
    clocks.since_boot_ms += 60_000
    clocks.wall_ms = right_ms + 60_000
    world.turn()
    assert world.plane.clock.report()["state"] == "steady"
    assert world.plane.committer.now() == clocks.wall_ms


def test_a_boot_is_no_answer_to_a_jump() -> None:
    """An hour ahead and not judged, then a reboot: that hour is not downtime."""
    world = running()
    clocks = world.clocks
    assert clocks is not None
    clocks.wall_ms += HOUR
    world.turn()
    clocks.reboot(60_000)
    world.plane = world.open()
    world.turn()
    assert world.plane.clock.report()["state"] == "held"
    world.plane.clock.judge("reject", author=ADMIN)
    assert world.plane.committer.now() - START < HOUR + 60_000


def test_a_boot_that_seems_to_be_before_the_last_entry_asks() -> None:
    """The kernel counts 5 hours since its boot, and an entry of an earlier boot is 2 hours old."""
    world = running()
    clocks = world.clocks
    assert clocks is not None
    clocks.reboot(2 * HOUR)
    clocks.since_boot_ms = 5 * HOUR
    world.plane = world.open()
    world.turn()
    assert world.plane.clock.report()["state"] == "held"


def test_a_ledger_without_anchors_is_read() -> None:
    """It was written by an earlier version, on the wall clock alone; also where that had jumped."""
    world = World()
    world.apply(budget("a"), node(), run("r", command=["x"]))
    world.turn(1)
    clocks = Clocks(world.now_ms + HOUR)
    plane = ControlPlane(world.ledger, world.executor, LedgerClock(clocks))
    plane.reconcile()
    assert plane.clock.report()["state"] == "steady"
    behind = ControlPlane(world.ledger, world.executor, LedgerClock(Clocks(START - 400 * DAY)))
    behind.reconcile()
    assert behind.clock.report()["state"] == "held"


def test_restated_charges_stay_in_their_accounts() -> None:
    """A monthly account: what was posted before stays, the open lease counts from its new start."""
    world = World(clocks=Clocks())
    clocks = world.clocks
    assert clocks is not None
    monthly = envelope(maxGPUHours=100, recurrence="monthly")
    world.apply(budget("a", "a", monthly), node(), run("r", gpus=2, command=["x"]))
    world.turn()
    world.turn(3)
    clocks.wall_ms += 10 * DAY
    world.turn()
    world.plane.clock.judge("accept", author=ADMIN)
    world.turn()
    account = world.projection.accounts.get("a", "west")
    assert account is not None
    assert account.usage(world.plane.committer.now()).used_ms == 6 * HOUR
    end(world)
    assert used_hours(world) == pytest.approx(6, abs=0.01)
    fresh = _rebuilt(world)
    assert state_of(fresh) == state_of(world)


def test_a_restart_that_waits_does_so_as_long_after_an_accepted_jump() -> None:
    """So do its minimum runtime and its cooldown: all of its times are restated."""
    world = running(restartPolicy="OnFailure", backoffLimit=3)
    clocks = world.clocks
    assert clocks is not None
    world.executor.end("r", world.plane.committer.now(), code=1)
    world.turn()
    state = world.projection.runs["r"]
    assert state.starts_ms is not None
    left_ms = state.starts_ms - world.plane.committer.now()
    assert left_ms > 1_000
    state.protected_ms = state.preempted_ms = world.plane.committer.now()
    clocks.wall_ms += 400 * DAY
    world.turn()
    world.plane.clock.judge("accept", author=ADMIN)
    assert state.starts_ms - world.plane.committer.now() == left_ms
    assert state.protected_ms == state.preempted_ms == world.plane.committer.now()


def test_an_entry_before_the_first_turn_of_a_boot_is_no_jump() -> None:
    """A run is submitted ten minutes after a boot, and the process dies before its first turn: the
    next one knows that the entry is of this boot, and charges what passes."""
    world = running()
    clocks = world.clocks
    assert clocks is not None
    clocks.reboot(HOUR)
    clocks.pass_ms(10 * 60_000)
    world.plane = world.open()
    world.apply(run("later", command=["x"]))
    clocks.pass_ms(2_000)
    world.plane = world.open()
    world.turn()
    assert world.plane.clock.report()["state"] == "steady"
    assert world.plane.committer.now() == clocks.wall_ms
    anchors = [entry for entry in world.log if entry.kind == "clock.anchored"]
    assert [entry.body["boot"] for entry in anchors].count("boot-2") == 1


@pytest.mark.parametrize("judged", [False, True])
def test_time_goes_on_while_a_boot_is_held_through_restarts(judged: bool) -> None:
    """A clock that is wrong from the boot on has no anchor in it: time goes by what was held."""
    world = running()
    clocks = world.clocks
    assert clocks is not None
    if not judged:  # a jump of the boot before: it is no answer to boot twice
        clocks.wall_ms += 400 * DAY
        world.turn()
    clocks.reboot(400 * DAY)
    world.plane = world.open()
    world.turn()
    began_ms = world.plane.committer.now()
    for _ in range(3):
        clocks.pass_ms(HOUR)
        world.plane = world.open()
        world.turn()
    assert world.plane.clock.report()["state"] == "held"
    assert world.plane.committer.now() - began_ms == 3 * HOUR
    assert state_of(_rebuilt(world)) == state_of(world)


def test_the_clocks_hold_is_a_decision_that_replays() -> None:
    """Each anchor and each jump holds the whole input of `gpu.clock`. A changed bound, a changed
    reading and a hold that is lifted by hand are found; entries of former versions are none."""
    world = running()
    clocks = world.clocks
    assert clocks is not None
    cases: tuple[tuple[int, Judgement], ...] = ((400, "accept"), (400, "reject"), (-800, "accept"))
    for days, judgement in cases:
        clocks.wall_ms += days * DAY
        world.turn()
        world.plane.clock.judge(judgement, author=ADMIN)
        world.turn(1)
    clocks.reboot(7 * DAY)
    world.plane = world.open()
    world.turn()
    found = [entry for entry in world.log if entry.kind.startswith("clock.")]
    assert {entry.body["output"]["reason"] for entry in found} >= {
        *("Started", "Steady", "JumpedAhead", "JumpedBack", "Accepted", "Rejected")
    }
    assert {replay(world.ledger, entry).verdict for entry in found} == {Verdict.SAME}
    for entry in found:
        assert entry.body["output"]["reason"] == entry.body["reason"]
        assert entry.body["output"]["now_ms"] == entry.time_ms
    held = next(entry for entry in found if entry.kind == "clock.held")
    assert held.body["output"]["admits"] is False
    lifted = {**held.body, "output": {**held.body["output"], "admits": True}}
    assert replay(world.ledger, replace(held, body=lifted)).verdict is Verdict.DIFFERENT
    reading = {**held.body["input"]["reading"], "wall_ms": held.time_ms}
    for changed in ({"policy": {"jump_ms": 500 * DAY}}, {"reading": reading}):
        asked = {**held.body["input"], **changed}
        digest = sha256(canonical(asked)).hexdigest()
        bent = replace(held, body={**held.body, "input": asked}, input_digest=digest)
        assert replay(world.ledger, bent).verdict is Verdict.DIFFERENT
    former = {key: held.body[key] for key in held.body if key not in ("input", "output")}
    assert not is_decision(replace(held, body=former, version=1, input_digest=None))
    assert decode(replace(held, body=former, version=1)) is not None
