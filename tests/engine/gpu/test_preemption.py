"""Giving way with processes: told first, given their grace, and only then without their devices."""

import pytest

from fairlead.engine.gpu import Author, Refused
from fairlead.engine.gpu.state import OutcomeStage
from fairlead.ports.faults import TemporaryFault
from tests.engine.gpu.resolving import closed, outcomes, phases, reserve, world_of
from tests.engine.gpu.worlds import ADMIN, HOUR, World, budget, envelope, node, run

BOB = Author("bob", frozenset({"b"}))
ELASTIC = {"groupGPUs": 2, "malleable": {"minTotalGPUs": 2, "stepGPUs": 2}}


def drawn(**more: object) -> World:
    """A gang of the whole node, with a process, was drawn; its grace has begun."""
    world = world_of()
    world.apply(run("old", owner="b", gpus=8, command=["train"], **more))
    world.turn()
    reserve(world, run("new", gpus=4, command=["serve"]))
    world.turn()
    assert outcomes(world)[0].stage is OutcomeStage.DRAWN
    return world


def stops(world: World) -> list[tuple[object, ...]]:
    return [call for call in world.executor.calls if call[0] == "stop"]


def test_a_drawn_gang_has_its_grace_and_is_charged_for_it() -> None:
    """SIGTERM with its own grace; leases until the process is gone; then it waits again."""
    world = drawn(checkpointGrace="2m")
    assert stops(world)[0] == ("stop", "old", 120_000)
    assert phases(world) == {"old": "Running", "new": "Reserved"}
    assert world.status("Run", "old")["preempting"] != []
    world.apply(run("greedy", owner="c", gpus=1, duration="1h"))
    world.turn(0.01)
    assert phases(world)["greedy"] == "Pending", "what becomes free is the winner's"
    world.executor.end("old", world.now_ms, code=0)
    world.turn(0.01)
    assert phases(world) == {"old": "Pending", "new": "Running", "greedy": "Running"}
    ((reason, cited),) = closed(world).values()
    assert (reason, cited) == ("RandomPreempt", outcomes(world)[0].seq)
    assert world.projection.closed[-1].used_ms == 8 * HOUR // 100
    starts = [call[1].split(".")[0] for call in world.executor.calls if call[0] == "start"]
    assert starts.index("new") > starts.index("old")
    world.plane.verbs.act("Run", "new", "cancel", author=ADMIN)
    world.plane.verbs.act("Run", "greedy", "cancel", author=ADMIN)
    world.executor.end("new", world.now_ms, signal=15)
    world.turn(0.01)
    assert phases(world)["old"] == "Running"
    assert world.status("Run", "old")["attempts"] == 2


def test_who_ended_before_being_asked_has_completed() -> None:
    """The word of its end comes late: the run is over for good, and its lease ended back then.

    The closure cites the outcome all the same: that had taken the lease before anybody knew.
    """
    world = world_of()
    world.apply(run("old", owner="b", gpus=8, command=["train"]))
    world.turn()
    ended = world.now_ms
    reserve(world, run("new", gpus=4), hours=1)
    poll, world.executor.poll = world.executor.poll, list  # type: ignore[method-assign]
    world.turn(1)
    world.executor.poll = poll  # type: ignore[method-assign]
    world.executor.end("old", ended, code=0)
    world.turn(0.01)
    assert phases(world) == {"old": "Completed", "new": "Running"}
    assert outcomes(world)[0].stage is OutcomeStage.APPLIED
    ((reason, cited),) = closed(world).values()
    assert (reason, cited) == ("RandomPreempt", outcomes(world)[0].seq)
    assert world.projection.closed[-1].end_ms == ended


def test_a_process_that_was_stopped_was_preempted_whatever_its_clock_says() -> None:
    """The clock of another machine was behind: the run had failed by the signal that asked it to
    end."""
    world = drawn()
    cut_ms = world.now_ms
    world.executor.end("old", cut_ms - 1450, signal=15, stopped=True)
    world.turn(0.01)
    assert phases(world) == {"old": "Pending", "new": "Running"}
    assert world.projection.closed[-1].end_ms == cut_ms


def test_cancelling_a_preempted_run_ends_it_for_good() -> None:
    """Its leases were cut all the same, and cite the outcome."""
    world = drawn()
    world.plane.verbs.act("Run", "old", "cancel", author=BOB)
    world.executor.end("old", world.now_ms + 5, signal=15)
    world.turn(0.01)
    assert phases(world) == {"old": "Failed", "new": "Running"}
    ((reason, cited),) = closed(world).values()
    assert (reason, cited) == ("RandomPreempt", outcomes(world)[0].seq)


def test_a_crash_during_the_grace_is_gone_on_with() -> None:
    """The next process asks again for what was decided; nothing is decided again."""
    world = drawn()
    world.plane = world.open()
    world.turn(0.001)
    assert len(stops(world)) >= 2
    world.executor.end("old", world.now_ms, signal=9)
    world.plane = world.open()
    world.turn(0.001)
    assert phases(world) == {"old": "Pending", "new": "Running"}
    assert world.kinds().count("gpu.resolve.draw") == 1


def test_a_job_that_never_started_need_not_be_waited_for() -> None:
    """It was recorded, the machine did not take it, and it is to give way: no exit will come."""
    world = world_of()
    world.apply(run("old", owner="b", gpus=8, command=["train"]))
    world.executor.fail = TemporaryFault("busy", retry_after_ms=1)
    world.turn()
    reserve(world, run("new", gpus=4))
    world.turn()
    world.executor.fail = None
    world.turn(0.001)
    world.turn(0.001)
    assert phases(world) == {"old": "Pending", "new": "Running"}
    assert world.executor.jobs == {}


def test_a_cancelled_job_that_never_started_ends() -> None:
    """The same for a cancel."""
    world = world_of()
    world.apply(run("old", owner="b", command=["train"]))
    world.executor.fail = TemporaryFault("busy", retry_after_ms=1)
    world.turn()
    world.plane.verbs.act("Run", "old", "cancel", author=BOB)
    world.turn(0.001)
    assert phases(world) == {"old": "Failed"}


# -- shrinking ------------------------------------------------------------------------------------


def test_a_shrunk_run_is_told_before_its_groups_are_taken() -> None:
    """File and signal at once, the leases after the grace; it runs on, and the winner starts."""
    world = world_of()
    world.apply(run("elastic", owner="b", gpus=8, command=["train"], **ELASTIC))
    world.turn()
    reserve(world, run("new", gpus=4, command=["serve"]))
    world.turn()
    told = [call for call in world.executor.calls if call[0] == "resize"]
    assert told == [("resize", "elastic", ("n1#0", "n1#1", "n1#2", "n1#3"))]
    assert world.status("Run", "elastic")["width"] == 8
    assert phases(world) == {"elastic": "Running", "new": "Reserved"}
    world.turn(9.9 / 3600)
    assert closed(world) == {}
    world.turn(0.2 / 3600)
    status = world.status("Run", "elastic")
    assert (status["phase"], status["width"]) == ("Shrunk", 4)
    assert phases(world)["new"] == "Running"
    assert {reason for reason, _ in closed(world).values()} == {"Shrink"}
    assert stops(world) == []
    world.executor.end("elastic", world.now_ms)
    world.turn(0.01)
    assert phases(world)["elastic"] == "Completed"


def test_groups_are_not_taken_from_a_run_that_could_not_be_told() -> None:
    """Not after its grace either; it is told as soon as the machine answers."""
    world = world_of()
    world.apply(run("elastic", owner="b", gpus=8, command=["train"], **ELASTIC))
    world.turn()
    reserve(world, run("new", gpus=4))

    def deaf(*_: object, grace_ms: int, decision: str) -> None:
        raise TemporaryFault("no answer", retry_after_ms=1)

    world.executor.resize = deaf  # type: ignore[method-assign]
    world.turn()
    world.turn(1)
    assert closed(world) == {}
    del world.executor.resize  # type: ignore[method-assign]
    world.turn(0.001)
    world.turn(0.001)
    assert phases(world) == {"elastic": "Shrunk", "new": "Running"}


def test_a_restart_tells_again_and_then_takes() -> None:
    """Another process cannot know whether the last one told it."""
    world = world_of()
    world.apply(run("elastic", owner="b", gpus=8, command=["train"], **ELASTIC))
    world.turn()
    reserve(world, run("new", gpus=4))
    world.turn()
    world.plane = world.open()
    world.turn(1)
    assert closed(world) == {}
    world.turn(0.001)
    assert phases(world) == {"elastic": "Shrunk", "new": "Running"}
    assert len([call for call in world.executor.calls if call[0] == "resize"]) == 2


def test_spares_go_at_once() -> None:
    """Nothing runs on them."""
    world = world_of()
    world.apply(run("r", owner="b", gpus=4, groupGPUs=4, sparesPerGroup=4, command=["train"]))
    world.turn()
    reserve(world, run("new", gpus=4))
    world.turn()
    assert phases(world) == {"r": "Running", "new": "Running"}
    assert {reason for reason, _ in closed(world).values()} == {"DropSpare"}
    assert stops(world) == []


def test_an_owner_shrinks_its_own_run() -> None:
    """Step by step, never below the minimum, highest groups first; no outcome is cited."""
    world = world_of()
    world.apply(run("r", owner="b", gpus=8, **ELASTIC), run("fixed", owner="c", gpus=1))
    world.turn()
    shown = world.plane.verbs.act("Run", "r", "shrink", author=BOB, width=4, dry_run=True).preview
    assert len(shown["leases"]) == 2
    assert world.status("Run", "r")["preempting"] is None
    world.plane.verbs.act("Run", "r", "shrink", author=BOB, width=4)
    world.turn()
    status = world.status("Run", "r")
    assert (status["phase"], status["width"], status["lastOutcome"]) == ("Shrunk", 4, None)
    assert set(closed(world).values()) == {("Shrink", None)}
    assert phases(world)["fixed"] == "Running"
    assert [row["group"] for row in world.plane.reports.leases() if row["run"] == "r"] == [0, 1]
    for name, width in (("r", 4), ("r", 1), ("r", 3), ("r", 0), ("fixed", 1)):
        with pytest.raises(Refused, match="cannot shrink"):
            world.plane.verbs.act("Run", name, "shrink", author=ADMIN, width=width)


def test_an_owner_cannot_cut_a_group_in_two() -> None:
    """The step would fit, the groups do not."""
    world = world_of()
    shape = {"groupGPUs": 4, "malleable": {"minTotalGPUs": 2, "stepGPUs": 2}}
    world.apply(run("r", owner="b", gpus=8, **shape))
    world.turn()
    with pytest.raises(Refused, match="the next width is 4"):
        world.plane.verbs.act("Run", "r", "shrink", author=BOB, width=6)


def test_runs_that_are_ending_are_left_out_of_the_next_conflict() -> None:
    """Already ending, or the winner itself: named in the notice, never a candidate."""
    world = world_of(devices=16, gpus=16)
    world.apply(
        run("ending", owner="b", gpus=8, command=["x"]),
        run("c1", owner="c", gpus=4),
        run("c2", owner="c", gpus=4),
    )
    world.turn()
    world.plane.verbs.act("Run", "ending", "cancel", author=BOB)
    shown = world.plane.resolver.resolve(flavor="H100", gpus=4, author=ADMIN, dry_run=True)
    assert {row["run"] for row in shown["forecast"]["atRisk"]} == {"c1", "c2"}
    world.plane.resolver.resolve(flavor="H100", gpus=4, author=ADMIN)
    notice = world.plane.outcome_reports.get(outcomes(world)[0].seq, author=ADMIN)
    assert notice["deficitGPUs"] == 4
    assert phases(world)["ending"] == "Running"


def split_over_six_nodes() -> World:
    """Two groups of two with a spare each; the second is paid by two envelopes, and shrinks."""
    world = world_of(devices=0, teams="")
    place = {"region": "west", "cluster": "a", "domain": "d1"}
    world.apply(*(node(f"m{i}", 1, location=place) for i in range(6)))
    world.apply(budget("b", "b", envelope("e1", 4), envelope("e2", 20)))
    world.apply(run("r", owner="b", gpus=4, sparesPerGroup=1, command=["train"], **ELASTIC))
    world.turn()
    world.plane.verbs.act("Run", "r", "shrink", author=BOB, width=2)
    return world


def place_of(world: World, group: int) -> str:
    mine = [
        row
        for row in world.plane.reports.leases()
        if (row["role"], row["group"]) == ("Active", group)
    ]
    return str(mine[0]["slots"][0].split("#")[0])


def test_a_group_that_is_given_up_is_gone_with_its_node() -> None:
    """No spare is spent on it, nothing of it is left behind, and the rest is not even restarted."""
    world = split_over_six_nodes()
    world.plane.verbs.act("Node", place_of(world, 1), "fail", author=ADMIN)
    for _ in range(2):
        rows = [row for row in world.plane.reports.leases() if row["run"] == "r"]
        assert [(row["role"], row["group"]) for row in rows] == [("Active", 0), ("Spare", 0)]
        world.turn(1)
    status = world.status("Run", "r")
    assert (status["phase"], status["width"], status["attempts"]) == ("Shrunk", 2, 1)
    assert set(closed(world).values()) == {("Shrink", None)}


def test_a_group_that_stays_is_mended_while_another_is_given_up() -> None:
    """Its spare takes over; the other group goes after its grace, whole."""
    world = split_over_six_nodes()
    world.plane.verbs.act("Node", place_of(world, 0), "fail", author=ADMIN)
    world.turn(1)
    world.turn(1)
    rows = [row for row in world.plane.reports.leases() if row["run"] == "r"]
    assert {row["group"] for row in rows} == {0}
    assert sum(len(row["slots"]) for row in rows if row["role"] == "Active") == 2
    assert world.status("Run", "r")["width"] == 2
