"""After a reboot or a restore nothing is silently wrong: what has no process is ended when it was
last seen and waits again by its policy; what the ledger does not know is written down and ended."""

from typing import Any

import pytest

from fairlead.engine.gpu.checkpoint import export, restore
from fairlead.ledger.replay import replay
from fairlead.schema.replay import Verdict
from tests.engine.gpu.worlds import HOUR, START, World, budget, node, run


def started(**more: Any) -> World:
    world = World()
    world.apply(node(), budget("a"), run("r", gpus=4, command=["train"], **more))
    world.turn()
    return world


def interrupt(world: World, **how: Any) -> None:
    """The machine goes down an hour from now, and is back after two more."""
    how = {"lost": True, "interrupted": True, "reason": "the machine was restarted", **how}
    world.now_ms += 3 * HOUR
    world.plane = world.open()
    world.executor.end("r", START + HOUR, **how)
    world.turn()


def closed(world: World) -> list[tuple[int, str]]:
    return [
        (entry.body["end_ms"], entry.body["reason"])
        for entry in world.log
        if entry.kind == "lease.close"
    ]


def test_a_run_lost_in_a_reboot_is_charged_until_it_was_last_seen_and_waits_again() -> None:
    world = started()
    interrupt(world)
    assert closed(world) == [(START + HOUR, "Interrupted")]
    assert world.headroom("a")["gpuHoursUsed"] == 4
    status = world.status("Run", "r")
    assert (status["phase"], status["attempts"], status["restarts"]) == ("Running", 2, 1)
    (decided,) = [entry for entry in world.log if entry.kind == "gpu.restart"]
    assert decided.body["input"]["cause"] == "interrupted"
    assert replay(world.ledger, decided).verdict is Verdict.SAME


@pytest.mark.parametrize("more", [{"restartPolicy": "Never"}, {"backoffLimit": 0}])
def test_a_policy_may_say_that_it_is_lost(more: dict[str, Any]) -> None:
    world = started(**more)
    interrupt(world)
    status = world.status("Run", "r")
    assert (status["phase"], status["reason"]) == ("Failed", "Lost")


@pytest.mark.parametrize("seen_ms", [0, START + HOUR])
def test_a_run_without_a_trace_has_ended_and_is_not_started_under_the_same_id(seen_ms: int) -> None:
    """The ledger on another machine, or a folder that is gone: it ended when it was last seen,
    which is at the last entry where the executor does not know."""
    world = started()
    (job,) = world.executor.jobs
    last_ms = max(entry.time_ms for entry in world.log)
    world.executor.forget("r")
    world.executor.seen_ms = seen_ms
    world.now_ms += 3 * HOUR
    world.plane = world.open()
    world.turn()
    assert closed(world) == [(seen_ms or last_ms, "Interrupted")]
    assert job not in world.executor.jobs
    assert world.status("Run", "r")["attempts"] == 2


def test_a_start_that_was_just_recorded_is_asked_for_again() -> None:
    """A crash came between the record and the start: it is no interruption."""
    world = started()
    (job,) = world.executor.jobs
    world.executor.forget("r")
    world.plane = world.open()
    world.turn(0.001)
    assert list(world.executor.jobs) == [job]


def test_an_end_that_was_reported_to_a_ledger_that_is_gone_is_found_again() -> None:
    """The ledger was restored from before the end: the executor has put the job away."""
    world = started()
    (job,) = world.executor.jobs.values()
    world.executor.end("r", START + HOUR, code=0)
    (exit,) = world.executor.exits
    world.executor.acknowledge([exit])
    world.executor.ended = lambda id, run: exit if id == job.id else None  # type: ignore[method-assign]
    world.now_ms += 3 * HOUR
    world.plane = world.open()
    world.turn()
    status = world.status("Run", "r")
    assert (status["phase"], status["exitCode"]) == ("Completed", 0)
    assert closed(world) == [(START + HOUR, "Completed")]


@pytest.mark.parametrize("known", [True, False])
def test_a_process_that_the_ledger_does_not_know_is_written_down_and_has_its_grace(
    known: bool,
) -> None:
    """Its run may be known, from before that start, or not at all."""
    world = started(checkpointGrace="45s")
    (job,) = world.executor.jobs.values()
    stray = "r.deadbeef.7" if known else "gone.deadbeef.1"
    name, grace_ms = ("r", 45_000) if known else ("gone", 30_000)
    world.executor.jobs[stray] = type(job)(stray, name, "a", ("train",), ("n1#7",))
    world.turn()
    world.turn()
    (entry,) = [entry for entry in world.log if entry.kind == "job.unknown"]
    assert (entry.body["job"], entry.body["grace_ms"]) == (stray, grace_ms)
    assert ("stop", name, grace_ms) in world.executor.calls
    assert str(entry.seq) in world.executor.decisions


def test_devices_of_a_process_that_the_ledger_does_not_know_are_free_when_it_is_gone() -> None:
    """Its grace may be long: until it has ended no other run is placed beside it, also after the
    control plane was started again."""
    world = started(checkpointGrace="45s")
    (job,) = world.executor.jobs.values()
    free = [f"n1#{i}" for i in range(8) if f"n1#{i}" not in job.devices]
    stray = type(job)("gone.deadbeef.1", "gone", "a", ("train",), tuple(free[:3]))
    world.executor.jobs[stray.id] = stray
    world.plane = world.open()
    world.apply(run("wide", gpus=len(free)))
    world.turn()
    world.plane = world.open()
    world.turn()
    assert world.status("Run", "wide")["reason"] == "NoDevices"
    assert world.status("Node", "n1")["quarantined"] == sorted(stray.devices)
    assert restore(export(world.projection)).unknown_jobs == world.projection.unknown_jobs
    assert "A process of gone that" in str(world.plane.overview.attention())
    world.executor.over.add(stray.id)
    world.turn()
    world.turn()
    assert world.status("Run", "wide")["phase"] == "Running"
    kinds = [entry.kind for entry in world.log if entry.kind.startswith("job.")]
    assert kinds == ["job.unknown", "job.gone"], "written down once, and forgotten once"


def test_a_run_waits_for_its_devices_while_a_process_that_the_ledger_does_not_know_has_them() -> (
    None
):
    """A restored ledger gave them to a run that was not started yet."""
    world = started()
    (job,) = world.executor.jobs.values()
    stray = type(job)("gone.deadbeef.1", "gone", "a", ("train",), job.devices)
    world.executor.jobs = {stray.id: stray}
    world.plane = world.open()
    world.turn()
    assert world.executor.running() == {stray.id}
    world.executor.over.add(stray.id)
    world.turn()
    assert world.executor.running() == {job.id}
    assert world.status("Node", "n1")["quarantined"] == []
