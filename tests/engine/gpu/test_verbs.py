"""Verbs on runs and nodes, and an executor that fails while it carries them out."""

from typing import Any

import pytest

from fairlead.engine.gpu import Author, Forbidden, NotFound, Refused
from fairlead.ports.faults import PermanentFault, TemporaryFault
from tests.engine.gpu.resolving import reservation
from tests.engine.gpu.worlds import ADMIN, ALICE, World, budget, node, run


def test_cancelling_a_process_charges_its_grace(world: World) -> None:
    """The lease ends when the process is gone, not when somebody wished it."""
    world.apply(budget("a"), node(), run("r", command=["train"]))
    world.turn()
    world.plane.verbs.act("Run", "r", "cancel", author=ALICE)
    assert world.executor.calls[-1] == ("stop", "r", 30_000)
    assert world.status("Run", "r")["stopping"] is True
    world.plane.verbs.act("Run", "r", "cancel", author=ALICE)
    world.executor.end("r", world.now_ms + 20_000, signal=15)
    world.turn(0.01)
    status = world.status("Run", "r")
    assert (status["phase"], status["reason"]) == ("Failed", "Cancelled")
    assert world.projection.closed[-1].end_reason == "Cancelled"
    assert world.projection.closed[-1].used_ms == 20_000
    with pytest.raises(Refused) as refused:
        world.plane.verbs.act("Run", "r", "cancel", author=ALICE)
    assert refused.value.reason == "RunEnded"


def test_a_pause_keeps_the_lease(world: World) -> None:
    """Pauses are charged; a restart finds the run still paused."""
    world.apply(budget("a"), node(), run("r", command=["train"]))
    world.turn()
    for verb in ("pause", "pause", "resume", "pause"):
        world.plane.verbs.act("Run", "r", verb, author=ALICE)
        world.turn(0.1)
    told = [call[0] for call in world.executor.calls]
    assert told == ["start", "pause", "resume", "pause"]
    assert world.status("Run", "r")["paused"] is True
    world.plane = world.open()
    world.turn()
    assert world.executor.calls[-1] == ("pause", "r")
    world.plane.verbs.act("Run", "r", "resume", author=ALICE)
    world.plane = world.open()
    world.turn()
    assert world.executor.calls[-1] == ("resume", "r")
    world.plane.verbs.act("Run", "r", "cancel", author=ALICE)
    with pytest.raises(Refused, match="not running"):
        world.plane.verbs.act("Run", "r", "pause", author=ALICE)


def test_cordon_keeps_new_leases_away_and_drain_ends_the_old_ones(world: World) -> None:
    """A drained gang waits again and starts elsewhere, with another job."""
    world.apply(budget("a"), node(), run("r", gpus=2, command=["train"]))
    world.turn()
    world.plane.verbs.act("Node", "n1", "cordon", author=ADMIN)
    world.plane.verbs.act("Node", "n1", "cordon", author=ADMIN)
    world.apply(run("s"))
    world.turn()
    assert (world.status("Run", "r")["phase"], world.status("Run", "s")["reason"]) == (
        "Running",
        "NoDevices",
    )
    world.plane.verbs.act("Node", "n1", "drain", author=ADMIN)
    status = world.status("Run", "r")
    assert (status["phase"], status["reason"]) == ("Running", "Drained")
    assert ("stop", "r", 0) in world.executor.calls
    assert world.plane.reports.leases(), "its process still holds the devices"
    world.executor.end("r", world.now_ms, signal=9)
    world.turn()
    assert world.status("Run", "r")["phase"] == "Pending"
    left = world.plane.reports.explain("Run", "r")["left"]
    assert left == "node n1 was drained; it starts again when there is room"
    assert "Drained" in [row.body["reason"] for row in world.log if row.kind == "run.phase"]
    assert not world.plane.reports.leases()
    world.plane.verbs.act("Node", "n1", "uncordon", author=ADMIN)
    world.turn()
    assert world.status("Run", "r")["phase"] == "Running"
    assert world.plane.reports.explain("Run", "r")["left"] is None
    assert len([job for job in world.executor.jobs.values() if job.run == "r"]) == 2


def test_a_gang_without_enough_spares_waits_again(world: World) -> None:
    """Three devices lost, two spares: whole or not running."""
    world.apply(budget("a"), node("n1", 3), node("n2", 3))
    world.apply(run("r", gpus=3, groupGPUs=3, sparesPerGroup=2))
    world.turn()
    world.plane.verbs.act("Node", "n1", "fail", author=ADMIN)
    status = world.status("Run", "r")
    assert (status["phase"], status["reason"], status["width"]) == ("Pending", "NodeFailed", 0)
    reasons = {entry.body["reason"] for entry in world.log if entry.kind == "lease.close"}
    assert reasons == {"NodeFailed"}


def test_a_lost_spare_leaves_the_rest_running(world: World) -> None:
    """Part of an active lease and part of a spare one: what is left stays leased."""
    world.apply(budget("a"), node("n1", 2), node("n2", 2), node("n3", 2))
    world.apply(run("r", gpus=3, groupGPUs=3, sparesPerGroup=3))
    world.turn()
    before = {row["role"]: row["slots"] for row in world.plane.reports.leases()}
    assert before == {"Active": ["n1#0", "n1#1", "n2#0"], "Spare": ["n3#0", "n3#1", "n2#1"]}
    world.plane.verbs.act("Node", "n2", "fail", author=ADMIN)
    after = sorted((row["role"], row["slots"]) for row in world.plane.reports.leases())
    assert after == [("Active", ["n1#0", "n1#1"]), ("Active", ["n3#0"]), ("Spare", ["n3#1"])]
    world.plane.verbs.act("Node", "n3", "fail", author=ADMIN)
    assert world.status("Run", "r")["phase"] == "Pending"


def test_a_swap_opens_active_leases_on_the_spares(world: World) -> None:
    """One device lost, one spare: closed with NodeFailed and DropSpare, opened with Swap."""
    world.apply(budget("a"), node("n1", 1), node("n2", 1), node("n3", 2))
    world.apply(run("r", gpus=2, groupGPUs=2, sparesPerGroup=2, duration="4h", command=["x"]))
    world.turn()
    active = [row for row in world.plane.reports.leases() if row["role"] == "Active"]
    assert active[0]["slots"] == ["n3#0", "n3#1"]
    world.turn(1)
    world.plane.verbs.act("Node", "n3", "fail", author=ADMIN)
    status = world.status("Run", "r")
    assert (status["phase"], status["reason"], status["width"], status["spares"]) == (
        "Running",
        "Swapped",
        2,
        0,
    )
    assert [row["slots"] for row in world.plane.reports.leases()] == [["n1#0", "n2#0"]]
    reasons = [entry.body["reason"] for entry in world.log if entry.kind == "lease.close"]
    assert sorted(reasons) == ["DropSpare", "NodeFailed"]
    # The new job waits until the old one, whose devices are gone, has ended.
    assert [job.id for job in world.executor.jobs.values()] == [status["job"][:-1] + "1"]
    world.executor.end("r", world.now_ms, signal=9)
    world.turn()
    assert world.executor.running() == {status["job"]}
    assert world.status("Run", "r")["phase"] == "Running"
    assert world.headroom("a")["gpuHoursUsed"] == 4


def test_an_unknown_verb_is_refused(world: World) -> None:
    """And so is one on nothing."""
    world.apply(node())
    with pytest.raises(Refused, match="unknown action 'reboot' for Node"):
        world.plane.verbs.act("Node", "n1", "reboot", author=ADMIN)
    with pytest.raises(NotFound):
        world.plane.verbs.act("Run", "r", "cancel", author=ADMIN)


# -- the executor fails -------------------------------------------------------------------------


def test_a_start_that_cannot_succeed_fails_the_run(world: World) -> None:
    """Its leases are settled; a fault that may pass is tried again."""
    world.apply(budget("a"), node(), run("r", command=["train"]))
    world.executor.fail = TemporaryFault("busy", retry_after_ms=10)
    world.turn()
    assert world.plane.faults == {"r": "busy"}
    assert world.status("Run", "r")["phase"] == "Running"
    world.executor.fail = PermanentFault("no such program")
    world.turn()
    status = world.status("Run", "r")
    assert (status["phase"], status["reason"]) == ("Failed", "StartFailed")
    assert world.plane.reports.leases() == []


def test_a_crash_between_record_and_start_is_healed(world: World) -> None:
    """The start is recorded, asked for again after a restart, and happens once."""
    world.apply(budget("a"), node(), run("r", command=["train"]))
    world.executor.fail = TemporaryFault("the machine is gone", retry_after_ms=1)
    world.turn()
    world.executor.fail = None
    world.plane = world.open()
    world.turn()
    world.plane = world.open()
    world.turn()
    assert [call for call in world.executor.calls if call[0] == "start"] == [
        ("start", world.status("Run", "r")["job"])
    ]


def test_an_executor_that_cannot_be_asked_is_asked_again(world: World) -> None:
    """Its faults are kept for people; nothing is lost, and nothing is ended twice."""
    world.apply(budget("a"), node(), run("r", command=["train"]))
    world.turn()
    world.executor.end("r", world.now_ms)
    fault = TemporaryFault("no answer", retry_after_ms=1)
    for broken in ("poll", "acknowledge", "running"):
        setattr(world.executor, broken, _raising(fault))
        world.turn(0.1)
        assert world.plane.faults == {f"*{broken}": "no answer"}
        delattr(world.executor, broken)
    world.turn(0.1)
    assert world.plane.faults == {}
    assert world.status("Run", "r")["phase"] == "Completed"
    assert world.kinds().count("charge.post") == 1


def _raising(fault: Exception) -> Any:
    def raising(*_: Any, **__: Any) -> None:
        raise fault

    return raising


def test_refusals_name_what_is_allowed(world: World) -> None:
    """The unknown action and those there are; who may; which reservation is in the way."""
    world.apply(budget("a"), node(), run("r"), reservation("slot", "r", 9))
    for kind, name, expected in (
        ("Run", "r", "cancel, nominate, pause, resolve, resume, shrink or withdraw"),
        ("Node", "n1", "cordon, drain, fail or uncordon"),
        ("Budget", "a", "none"),
    ):
        with pytest.raises(Refused) as refused:
            world.plane.verbs.act(kind, name, "fly", author=ADMIN)
        assert refused.value.message == f"unknown action 'fly' for {kind}: expected {expected}"
    for kind, name, allowed in (
        ("Node", "n1", "admins only"),
        ("Run", "r", "its owner and admins"),
    ):
        with pytest.raises(Forbidden, match=f"bob may not change {kind} '{name}': {allowed}"):
            world.plane.objects.delete(kind, name, author=Author("bob", frozenset({"b"})))
    with pytest.raises(Refused, match="run 'r' is reserved; delete reservation 'slot' first"):
        world.plane.objects.delete("Run", "r", author=ADMIN)


def test_a_pause_cites_the_request_that_it_carries_out(world: World) -> None:
    """Also after a restart; a job that was never paused has no such request."""
    world.apply(budget("a"), node(), run("r", command=["train"]))
    world.turn()
    assert world.projection.runs["r"].pause_seq is None
    for verb in ("pause", "resume", "pause"):
        world.plane.verbs.act("Run", "r", verb, author=ALICE)
    asked = [str(e.seq) for e in world.log if e.body.get("reason") in ("Paused", "Resumed")]
    assert world.executor.decisions == asked
    world.plane.committer.checkpoint()
    world.plane = world.open()
    world.turn()
    assert world.executor.decisions == [*asked, asked[-1]]


def test_a_start_that_fails_and_then_works_ends_nothing(world: World) -> None:
    """A command outside a turn failed at it; the next one is before the run is ended."""
    world.apply(budget("a"), node(), run("r", command=["train"]))
    world.executor.fail = TemporaryFault("busy", retry_after_ms=1)
    world.turn()
    world.executor.fail = PermanentFault("no such program")
    world.plane.verbs.act("Run", "r", "nominate", author=ALICE)
    assert world.status("Run", "r")["phase"] == "Running", "a turn ends runs, effects do not"
    world.executor.fail = None
    world.turn()
    assert world.status("Run", "r")["phase"] == "Running"
    world.executor.end("r", world.now_ms)
    world.turn()
    assert world.status("Run", "r")["phase"] == "Completed"


def test_a_pause_that_fails_is_tried_again(world: World) -> None:
    """At the next turn; the ledger says what is wanted."""
    world.apply(budget("a"), node(), run("r", command=["train"]))
    world.turn()
    world.executor.pause = _raising(TemporaryFault("busy", retry_after_ms=1))  # type: ignore[method-assign]
    world.plane.verbs.act("Run", "r", "pause", author=ALICE)
    assert world.plane.faults == {"r": "busy"}
    del world.executor.pause  # type: ignore[method-assign]
    world.turn()
    assert world.executor.calls[-1] == ("pause", "r")
    assert world.plane.faults == {}
