"""A cancelled run ends: soon, for good, and whatever else happens meanwhile."""

from typing import Any

import pytest

from fairlead.engine.gpu import Config
from fairlead.engine.gpu.values import Refused
from tests.engine.gpu.resolving import CHANCE, reservation
from tests.engine.gpu.worlds import ADMIN, LENIENT, Clocks, World, budget, envelope, node, run

LOST = {"lost": True, "interrupted": True}


def running(*more: dict[str, Any], **settings: Any) -> World:
    world = World(clocks=Clocks(), config=Config(**settings), chance=CHANCE)
    world.apply(budget("a"), node("n1", 4), node("n2", 4), run("r", gpus=4, command=["x"]), *more)
    world.turn()
    assert world.status("Run", "r")["phase"] == "Running"
    return world


@pytest.mark.parametrize("resolver", ["off", "enforce"])
@pytest.mark.parametrize("verb", ["fail", "drain"])
@pytest.mark.parametrize("how", [LOST, {"lost": True}, {"signal": 9}, {"code": 1}, None])
def test_a_cancelled_run_does_not_restart_when_its_node_fails(
    resolver: str, verb: str, how: dict[str, Any] | None
) -> None:
    """Within the grace: by exit, by a machine that forgot it, with and without a resolver."""
    world = running(resolver=resolver)
    world.plane.verbs.act("Run", "r", "cancel", author=ADMIN)
    world.turn(1 / 3600)
    world.plane.verbs.act("Node", "n1", verb, author=ADMIN)
    world.turn(1 / 3600)
    if how is None:
        world.executor.forget("r")
        world.plane = world.open()
    else:
        world.executor.end("r", world.plane.committer.now(), **how)
    for _ in range(3):
        world.turn(0.1)
    assert world.status("Run", "r")["reason"] == "Cancelled"
    assert [call[0] for call in world.executor.calls].count("start") == 1
    assert not world.projection.leases


def test_a_run_that_is_displaced_and_then_cancelled_does_not_restart() -> None:
    world = running()
    world.plane.verbs.act("Node", "n1", "fail", author=ADMIN)
    world.plane.verbs.act("Run", "r", "cancel", author=ADMIN)
    world.turn(0.1)
    world.executor.end("r", world.plane.committer.now(), **LOST)
    world.turn(0.1)
    assert world.status("Run", "r")["reason"] == "Cancelled"


def test_force_kills_at_once_and_cites_its_entry() -> None:
    """Also a run that is being cancelled already; asking again records nothing."""
    world = running()
    world.plane.verbs.act("Run", "r", "cancel", author=ADMIN)
    assert world.executor.calls[-1] == ("stop", "r", 30_000)
    world.plane.verbs.act("Run", "r", "cancel", author=ADMIN, force=True)
    assert world.executor.calls[-1] == ("stop", "r", 0)
    assert world.executor.decisions[-1] == str(world.log[-1].seq)
    assert world.log[-1].body["reason"] == "CancelForced"
    size = world.plane.seq
    again = world.plane.verbs.act("Run", "r", "cancel", author=ADMIN, force=True)
    assert (again.change, world.plane.seq) == ("unchanged", size)
    world.executor.end("r", world.plane.committer.now(), signal=9)
    world.turn()
    assert world.status("Run", "r")["reason"] == "Cancelled"


def preempting(**victim: Any) -> World:
    """A drawn outcome whose victim ignores it, for a reservation; `r` of 4, the flavor is full."""
    world = running(
        run("big", gpus=4, command=["x"], **victim), resolver="enforce", preemption=LENIENT
    )
    world.apply(budget("z", "z", envelope(concurrency=8)), run("vip", owner="z", gpus=8))
    world.apply(reservation("now", "vip"))
    world.turn()
    assert world.projection.resolver.open_seqs, "an outcome is open"
    return world


def test_cancel_and_force_end_what_an_outcome_waits_for() -> None:
    """A victim with the longest grace keeps it from nobody who cancels it."""
    world = preempting(checkpointGrace="20d")
    (seq,) = world.projection.resolver.open_seqs.values()
    with pytest.raises(Refused, match="already drawn"):
        world.plane.outcomes.void(seq, "why", author=ADMIN)
    with pytest.raises(Refused, match="cancel it first"):
        world.plane.objects.delete("Run", "big", author=ADMIN)
    world.plane.verbs.act("Run", "big", "cancel", author=ADMIN)
    assert ("stop", "big", 30_000) in world.executor.calls, "no longer than for any cancelled run"
    world.plane.verbs.act("Run", "big", "cancel", author=ADMIN, force=True)
    assert ("stop", "big", 0) in world.executor.calls
    for name in ("r", "big"):
        world.executor.end(name, world.plane.committer.now(), signal=9)
    world.turn()
    assert world.status("Run", "vip")["phase"] == "Running"
    assert not world.projection.resolver.open_seqs
    world.plane.objects.delete("Run", "big", author=ADMIN)
