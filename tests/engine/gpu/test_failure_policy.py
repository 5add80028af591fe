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


SECOND = 1 / 3600


def test_a_crash_loop_waits_longer_each_time() -> None:
    """The next start comes after 10 s, then 20 s; its leases stay. A restart of the control plane
    changes nothing, and ten minutes of work make the next delay the first one again."""
    world = started(failurePolicy={"maxRestarts": 9})

    def starts() -> int:
        return len(world.executor.jobs)

    for number, delay in enumerate((10, 20, 40), start=1):
        world.executor.end("r", world.now_ms, code=1)
        world.turn(SECOND)
        status = world.status("Run", "r")
        assert status["message"].startswith(
            f"the command ended with 1; restart {number} of 9 after {delay} s, at 2026-01-01T00:"
        )
        assert (status["phase"], status["width"], starts()) == ("Running", 4, number)
        world.plane = world.open()
        world.turn((delay - 2) * SECOND)
        assert starts() == number, "not yet"
        world.turn(2 * SECOND)
        assert starts() == number + 1
    world.turn(1 / 6)
    world.executor.end("r", world.now_ms, code=1)
    world.turn(11 * SECOND)
    assert starts() == 5
    decided = [entry for entry in world.log if entry.kind == "gpu.restart"]
    assert [entry.body["output"]["delay_ms"] for entry in decided] == [
        *(10_000, 20_000, 40_000, 10_000)
    ]
    assert {replay(world.ledger, entry).verdict for entry in decided} == {Verdict.SAME}


def test_a_run_that_waits_to_restart_is_cancelled_and_shrunk_at_once() -> None:
    """There is no process to ask, and none to wait for."""
    world = started(failurePolicy=POLICY)
    world.executor.end("r", world.now_ms, code=1)
    world.turn(SECOND)
    world.plane.verbs.act("Run", "r", "cancel", author=ADMIN)
    world.turn(SECOND)
    world.turn(SECOND)
    assert world.status("Run", "r")["reason"] == "Cancelled"
    elastic = {"groupGPUs": 2, "malleable": {"minTotalGPUs": 2, "stepGPUs": 2}}
    world = started(failurePolicy={"maxRestarts": 9}, **elastic)
    world.executor.end("r", world.now_ms, code=1)
    world.turn(SECOND)
    world.plane.verbs.act("Run", "r", "shrink", author=ADMIN, width=2)
    world.turn(SECOND)
    world.turn(SECOND)
    assert world.status("Run", "r")["width"] == 2
    world.turn(10 * SECOND)
    assert [len(job.devices) for job in world.executor.jobs.values()] == [4, 2]


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
