"""A machine that restarts: ends are placed by the boot that they were in, no lease of a process
outlives its boot, and what no process ends asks the operator."""

from itertools import pairwise
from typing import Any

import pytest

from fairlead.engine.gpu import ControlPlane
from fairlead.engine.gpu.checkpoint import export, restore
from fairlead.engine.gpu.clock import LedgerClock
from tests.engine.gpu.test_clock import DAY, running, used_hours
from tests.engine.gpu.worlds import ADMIN, HOUR, Clocks, World, budget, node, run


def clocks_of(world: World) -> Clocks:
    assert world.clocks is not None
    return world.clocks


def rebooted(off_ms: int, *, ended_ms: int = 0, **spec: Any) -> World:
    """A run of an hour; it ends so long after the last turn, and then the machine is off."""
    world = running(**spec)
    clocks = clocks_of(world)
    clocks.pass_ms(ended_ms)
    at = {"boot": "boot-1", "since_boot_ms": clocks.since_boot_ms}
    world.executor.end("r", 0, code=1, **at)
    clocks.reboot(off_ms)
    world.plane = world.open()
    return world


@pytest.mark.parametrize("off_ms", [60_000, 7 * DAY, -2 * HOUR])
def test_an_end_of_an_earlier_boot_is_placed_by_that_boots_clock(off_ms: int) -> None:
    """Where the wall clock is behind after the boot, time goes on by the last entry."""
    world = rebooted(off_ms, ended_ms=20 * 60_000)
    world.turn(1)
    hours = 4 * (1 + 1 / 3) if off_ms > 0 else 4
    assert used_hours(world) == pytest.approx(hours, abs=0.01)


def test_an_accepted_shift_moves_the_ends_of_earlier_boots_too() -> None:
    """The executor does not answer until an operator has accepted a clock that is days ahead."""
    world = running()
    clocks = clocks_of(world)
    world.executor.end("r", 0, code=0, boot="boot-1", since_boot_ms=clocks.since_boot_ms)
    exits, world.executor.exits = world.executor.exits, []
    clocks.reboot(400 * DAY)
    world.plane = world.open()
    world.turn()
    world.plane.clock.judge("accept", author=ADMIN)
    world.executor.exits = exits
    world.turn()
    assert used_hours(world) == pytest.approx(4, abs=0.01)


def test_a_run_that_failed_before_a_reboot_waits_without_its_leases() -> None:
    """It restarted under them, and was charged for the week that the machine was off."""
    world = rebooted(7 * DAY, restartPolicy="OnFailure", backoffLimit=2)
    world.turn()
    assert used_hours(world) == pytest.approx(4, abs=0.01)
    closed = [entry for entry in world.log if entry.kind == "lease.close"]
    assert [entry.body["reason"] for entry in closed] == ["Interrupted"]
    status = world.status("Run", "r")
    assert (status["phase"], status["attempts"], status["restarts"]) == ("Running", 2, 1)


def test_a_restart_that_waits_does_not_begin_after_a_reboot_under_its_leases() -> None:
    """It is recorded and has no process yet; an operator's act comes before the first turn."""
    world = running(restartPolicy="OnFailure", backoffLimit=5)
    clocks = clocks_of(world)
    for _ in range(3):
        at = {"boot": "boot-1", "since_boot_ms": clocks.since_boot_ms}
        world.executor.end("r", 0, code=1, **at)
        world.turn()
        world.turn(1 / 60)
    started = len(world.executor.jobs)
    world.executor.end("r", 0, code=1, boot="boot-1", since_boot_ms=clocks.since_boot_ms)
    world.turn()
    assert len(world.executor.jobs) == started, "it waits"
    clocks.reboot(HOUR)
    world.plane = world.open()
    world.plane.verbs.act("Node", "n1", "uncordon", author=ADMIN)
    assert world.kinds()[-1] == "clock.anchored", "the first entry of a boot"
    assert len(world.executor.jobs) == started
    world.turn()
    (lease,) = world.projection.closed
    assert lease.end_ms is not None
    assert lease.end_ms <= world.projection.boots[-1].before_ms


@pytest.mark.parametrize(
    ("duration", "state"), [(None, "held"), ("30d", "held"), ("64m", "steady")]
)
def test_a_lease_without_a_process_asks_after_a_long_gap(duration: str | None, state: str) -> None:
    """No process says when it ended: a wrong clock at a boot would be charged. Accepted, the gap is
    charged to none. What ends within the bound anyway asks nothing."""
    world = World(clocks=Clocks())
    spec = {} if duration is None else {"duration": duration}
    world.apply(budget("a"), node(), run("r", gpus=4, **spec))
    world.turn()
    world.turn(1)
    clocks_of(world).reboot(10 * DAY)
    world.plane = world.open()
    world.turn()
    assert world.plane.clock.report()["state"] == state
    if state == "held":
        world.plane.clock.judge("accept", author=ADMIN)
        world.turn(1)
        assert world.headroom("a")["gpuHoursUsed"] == pytest.approx(8, abs=0.1)
    else:
        assert used_hours(world) == pytest.approx(4 * 64 / 60, abs=0.01)


def failed_over(wall_ms: int, *, host: str = "other", elsewhere: bool = True) -> World:
    """A run of an hour, led by another machine after that; it runs on a third one."""
    world = running()
    clocks = clocks_of(world)
    clocks.reboot(wall_ms)
    clocks.host = host
    clock = LedgerClock(clocks, elsewhere=elsewhere)
    world.plane = ControlPlane(world.ledger, world.executor, clock)
    world.turn()
    return world


@pytest.mark.parametrize(
    "led_by",
    [
        {"host": "other", "elsewhere": True},
        {"host": "other", "elsewhere": False},
        {"host": "lab", "elsewhere": True},
    ],
)
@pytest.mark.parametrize("judgement", ["accept", "reject"])
def test_a_failover_to_a_clock_a_day_ahead_charges_none_of_it(
    led_by: dict[str, Any], judgement: Any
) -> None:
    """It was 100 GPU-hours for 4: the run has a command, and was believed to be interrupted."""
    world = failed_over(DAY, **led_by)
    assert world.plane.clock.report()["state"] == "held"
    world.apply(run("later", command=["x"]))
    world.turn(1)
    assert world.status("Run", "later")["phase"] == "Pending"
    world.plane.clock.judge(judgement, author=ADMIN)
    world.turn()
    assert world.status("Run", "later")["phase"] == "Running"
    world.executor.end("r", world.plane.committer.now())
    world.turn()
    assert used_hours(world) == pytest.approx(8, abs=0.01)


def test_a_failover_that_is_quick_asks_nothing() -> None:
    """The last entry is a minute old at most while runs are running."""
    world = failed_over(240_000)
    assert world.plane.clock.report()["state"] == "steady"
    for _ in range(10):
        world.turn(1 / 60)
    anchors = [entry.time_ms for entry in world.log if entry.kind == "clock.anchored"]
    assert max(later - before for before, later in pairwise(anchors[-10:])) == 60_000


def test_a_failover_without_runs_asks_nothing() -> None:
    """A weekend without a control plane: no lease is open, so nothing is charged for it."""
    world = World(clocks=Clocks())
    world.apply(budget("a"), node())
    world.turn()
    clocks_of(world).reboot(3 * DAY)
    clocks_of(world).host = "other"
    world.plane = world.open()
    world.turn()
    assert world.plane.clock.report()["state"] == "steady"


def test_a_short_reboot_asks_nothing() -> None:
    world = World(clocks=Clocks())
    world.apply(budget("a"), node(), run("r", gpus=4))
    world.turn()
    clocks_of(world).reboot(200_000)
    world.plane = world.open()
    world.turn()
    assert world.plane.clock.report()["state"] == "steady"


def test_a_time_that_was_read_is_not_taken_back() -> None:
    """An hour ahead at a boot, read, and set right before the first entry: accounts went by it."""
    world = running()
    clocks = clocks_of(world)
    clocks.reboot(2 * HOUR)
    world.plane = world.open()
    read_ms = world.plane.committer.now()
    clocks.wall_ms -= HOUR
    assert world.plane.committer.now() >= read_ms
    world.turn()
    assert world.plane.clock.report()["state"] == "held"


def test_a_run_that_is_to_end_and_left_no_exit_ends_with_its_boot() -> None:
    world = running()
    world.plane.verbs.act("Run", "r", "cancel", author=ADMIN)
    last_ms = world.projection.time_ms
    world.executor.over = set(world.executor.jobs)
    clocks_of(world).reboot(7 * DAY)
    world.plane = world.open()
    world.turn()
    world.turn()
    assert [lease.end_ms for lease in world.projection.closed] == [last_ms]


def test_what_is_known_of_boots_is_in_a_checkpoint() -> None:
    """One of an earlier version knows the last anchor."""
    world = rebooted(60_000)
    world.turn()
    copy = restore(export(world.projection))
    assert copy.boots == world.projection.boots
    assert [span.boot for span in copy.boots] == ["boot-1", "boot-2"]
    copy.boots = ()
    (span,) = restore(export(copy)).boots
    assert (span.boot, span.host) == ("boot-2", "lab")


def test_while_runs_are_running_an_anchor_is_never_old() -> None:
    """After a boot with a wrong clock time goes on from it: so much is not charged, at the most."""
    world = running()
    world.turn(4 / 60)
    before = world.kinds().count("clock.anchored")
    world.turn(2 / 60)
    assert world.kinds().count("clock.anchored") == before + 1
    world.executor.end("r", world.plane.committer.now())
    world.turn()
    world.turn(1)
    assert world.kinds().count("clock.anchored") == before + 1, "nothing runs"


def test_a_boot_can_be_recorded_before_others_write_to_the_ledger() -> None:
    """`up` does so at its start: a token that is made before the first turn comes after it."""
    world = running()
    clocks_of(world).reboot(HOUR)
    world.plane = world.open()
    world.plane.committer.record_boot()
    assert world.log[-1].body["boot"] == "boot-2"
    size = len(world.log)
    world.plane.committer.record_boot()
    assert len(world.log) == size
