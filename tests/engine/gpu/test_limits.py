"""Limits that hold: a run is asked to end, has its grace, and what follows is its restart policy's;
decided in core, recorded, replayed."""

from typing import Any

import pytest

from fairlead.ledger.replay import replay
from fairlead.schema.border import BadInput
from fairlead.schema.replay import Verdict
from tests.engine.gpu.worlds import ADMIN, World, budget, envelope, node, run, state_of


def started(*more: dict[str, Any], **spec: Any) -> World:
    world = World()
    world.apply(node(), *(more or (budget("a"),)), run("r", gpus=4, command=["train"], **spec))
    world.turn()
    return world


def stops(world: World) -> list[tuple[Any, ...]]:
    return [call for call in world.executor.calls if call[0] == "stop"]


def replayed(world: World, kind: str) -> list[str]:
    decided = [entry for entry in world.log if entry.kind == kind]
    assert {replay(world.ledger, entry).verdict for entry in decided} <= {Verdict.SAME}
    return [entry.body["output"]["reason"] for entry in decided]


def test_a_run_over_its_max_runtime_is_asked_to_end_and_has_failed() -> None:
    """It has its checkpoint grace; the stop cites the entry; the leases end when it is gone."""
    world = started(maxRuntime="2h", duration="5h", checkpointGrace="90s")
    world.turn(1.99)
    assert not stops(world)
    world.turn(0.01)
    assert stops(world) == [("stop", "r", 90_000)]
    cut = next(entry for entry in world.log if entry.kind == "run.cut")
    assert world.executor.decisions == [str(cut.seq)]
    assert world.status("Run", "r")["leases"], "they are used until the process is gone"
    before = state_of(world)
    world.plane = world.open()
    assert state_of(world) == before, "folded again it is the same"
    world.executor.end("r", world.now_ms, code=0)
    world.turn(0.01)
    status = world.status("Run", "r")
    assert (status["phase"], status["reason"]) == ("Failed", "MaxRuntimeOver")
    assert not status["leases"]
    assert replayed(world, "gpu.limit") == ["MaxRuntimeOver"]
    assert replayed(world, "gpu.restart") == ["NotByPolicy"]


def test_a_restart_after_a_failure_does_not_win_time() -> None:
    world = started(maxRuntime="2h", restartPolicy="OnFailure", backoffLimit=3)
    for _ in range(2):
        world.turn(0.9)
        world.executor.end("r", world.now_ms, code=1)
        world.turn()
    assert world.status("Run", "r")["restarts"] == 2
    world.turn(0.2)
    assert stops(world)


def test_always_starts_again_after_its_time_as_often_as_it_may() -> None:
    world = started(maxRuntime="1h", restartPolicy="Always", backoffLimit=1)
    for attempt in (1, 2):
        assert world.status("Run", "r")["attempts"] == attempt
        world.turn(1)
        world.executor.end("r", world.now_ms, signal=15)
        world.turn()
    assert world.status("Run", "r")["phase"] == "Failed"
    assert replayed(world, "gpu.restart") == ["Requeues", "NoRestartsLeft"]


def test_a_run_without_a_process_ends_at_its_limit() -> None:
    world = World()
    world.apply(node(), budget("a"), run("r", gpus=4, maxRuntime="1h"))
    world.turn()
    world.turn(1)
    assert world.status("Run", "r")["reason"] == "MaxRuntimeOver"


@pytest.mark.parametrize(("enforcement", "stopped"), [("hard", True), ("soft", False)])
def test_a_hard_envelope_ends_what_its_hours_do_not_pay_for(
    enforcement: str, stopped: bool
) -> None:
    """4 GPUs on 8 hours: after two hours a hard envelope asks for the devices back; a soft one
    counts overdraft. The run waits until there are hours again."""
    paid = envelope(maxGPUHours=8, recurrence="daily", enforcement=enforcement)
    world = started(budget("a", None, paid), checkpointGrace="60s")
    world.turn(1.9)
    assert not stops(world)
    world.turn(0.1)
    assert bool(stops(world)) == stopped
    if not stopped:
        assert world.headroom("a")["overdraftGPUHours"] == 0
        return
    assert stops(world) == [("stop", "r", 60_000)]
    world.executor.end("r", world.now_ms + 60_000, signal=15)
    world.turn(1 / 60)
    status = world.status("Run", "r")
    assert (status["phase"], status["reason"]) == ("Pending", "IntegralCapExceeded")
    world.turn(22)
    assert world.status("Run", "r")["phase"] == "Running", "the next day has its own hours"
    assert replayed(world, "gpu.limit") == ["HoursUsedUp"]


def test_never_ends_a_preempted_run() -> None:
    world = started(restartPolicy="Never")
    world.plane.verbs.act("Node", "n1", "fail", author=ADMIN)
    world.executor.end("r", world.now_ms, signal=9)
    world.turn()
    status = world.status("Run", "r")
    assert (status["phase"], status["reason"]) == ("Failed", "NodeFailed")
    assert "Never" in status["message"]


def test_always_starts_what_succeeded_again() -> None:
    world = started(restartPolicy="Always", backoffLimit=1)
    for phase in ("Running", "Completed"):
        world.executor.end("r", world.now_ms, code=0)
        world.turn(0.01)
        assert world.status("Run", "r")["phase"] == phase


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        ({"maxRuntime": "0s"}, "spec.maxRuntime"),
        ({"maxRuntime": "soon"}, "spec.maxRuntime"),
        ({"restartPolicy": "Sometimes"}, "spec.restartPolicy"),
        ({"backoffLimit": -1}, "spec.backoffLimit"),
        ({"backoffLimit": 1, "failurePolicy": {"maxRestarts": 2}}, "spec.backoffLimit"),
        ({"restartPolicy": "Never", "failurePolicy": {"maxRestarts": 2}}, "spec.restartPolicy"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(spec: dict[str, Any], where: str) -> None:
    with pytest.raises(BadInput) as refused:
        World().apply(run("r", **spec))
    assert refused.value.path == where


def test_a_budget_of_an_earlier_version_is_unchanged_when_it_is_applied_again() -> None:
    """Fields that came later have their defaults; another generation would be news of nothing."""
    world = World()
    world.apply(budget("a"))
    stored = world.projection.objects["Budget"]["a"]
    for each in stored.document["envelopes"]:
        del each["enforcement"]
    world.apply(budget("a"))
    assert world.projection.objects["Budget"]["a"].version == stored.version
