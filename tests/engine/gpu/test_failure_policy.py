"""A run whose command fails follows its failure policy: decided in core, recorded, replayed."""

from typing import Any

import pytest

from fairlead.ledger.replay import replay
from fairlead.schema.border import BadInput
from fairlead.schema.replay import Verdict
from tests.engine.gpu.worlds import ADMIN, World, budget, node, run, state_of

POLICY = {"maxRestarts": 2, "failExitCodes": [3]}


def started(**more: Any) -> World:
    world = World()
    world.apply(node(), budget("a"), run("r", gpus=4, command=["train"], **more))
    world.turn()
    return world


def fail(world: World, **how: Any) -> dict[str, Any]:
    world.executor.end("r", world.now_ms, **how)
    world.turn(0.01)
    return world.status("Run", "r")


def test_a_run_starts_again_on_its_devices_until_its_restarts_are_used() -> None:
    """Under the same leases, each start with an id of its own; then it has failed."""
    world = started(failurePolicy=POLICY)
    leases, jobs = world.status("Run", "r")["leases"], set(world.executor.jobs)
    for restarts in (1, 2):
        status = fail(world, code=1)
        assert (status["phase"], status["reason"]) == ("Running", "Restarted")
        assert (status["restarts"], status["attempts"]) == (restarts, restarts + 1)
        assert status["leases"] == leases
        assert set(world.executor.jobs) > jobs, "another start"
        jobs = set(world.executor.jobs)
    before = state_of(world)
    world.plane = world.open()
    assert state_of(world) == before, "folded again it is the same"
    status = fail(world, signal=9)
    assert (status["phase"], status["exitSignal"], status["leases"]) == ("Failed", 9, [])
    decided = [entry for entry in world.log if entry.kind == "gpu.restart"]
    assert [entry.body["output"]["reason"] for entry in decided] == [
        *("Restarts", "Restarts", "NoRestartsLeft")
    ]
    assert decided[-1].body["input"]["exit_code"] == 137
    assert {replay(world.ledger, entry).verdict for entry in decided} == {Verdict.SAME}


@pytest.mark.parametrize(
    ("policy", "how", "kinds"),
    [
        (None, {"code": 1}, []),
        (POLICY, {"code": 3}, ["FailExitCode"]),
        ({"maxRestarts": 0}, {"code": 1}, ["NoRestartsLeft"]),
    ],
)
def test_what_is_not_to_be_restarted_has_failed(
    policy: dict[str, Any] | None, how: dict[str, Any], kinds: list[str]
) -> None:
    """Without a policy nothing is decided: a run fails as it always did."""
    world = started(**({} if policy is None else {"failurePolicy": policy}))
    assert fail(world, **how)["phase"] == "Failed"
    decided = [entry for entry in world.log if entry.kind == "gpu.restart"]
    assert [entry.body["output"]["reason"] for entry in decided] == kinds


def test_a_run_that_is_cancelled_or_done_does_not_start_again() -> None:
    world = started(failurePolicy=POLICY)
    assert fail(world, code=0)["phase"] == "Completed"
    world = started(failurePolicy=POLICY)
    world.plane.verbs.act("Run", "r", "cancel", author=ADMIN)
    assert fail(world, signal=15)["reason"] == "Cancelled"
    assert "gpu.restart" not in world.kinds()


def test_a_lost_process_is_a_failure() -> None:
    world = started(failurePolicy=POLICY)
    assert fail(world, lost=True)["restarts"] == 1


def test_the_policy_of_a_run_cannot_be_changed() -> None:
    """Neither added nor removed: its owner submits anew."""
    for before, after in ((POLICY, None), (None, POLICY), (POLICY, {"maxRestarts": 9})):
        more = [{} if policy is None else {"failurePolicy": policy} for policy in (before, after)]
        world = started(**more[0])
        with pytest.raises(BadInput, match=r"spec\.failurePolicy"):
            world.apply(run("r", gpus=4, command=["train"], **more[1]))
        world.apply(run("r", gpus=4, command=["train"], **more[0]))
