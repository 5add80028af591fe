"""What the projection drops to stay small, and what one process has seen, decides nothing."""

from typing import Any

import pytest

from fairlead.engine.gpu import fold
from fairlead.engine.gpu import reservations as engine_reservations
from fairlead.engine.gpu.state import OutcomeStage
from fairlead.ports.faults import TemporaryFault
from fairlead.schema.border import BadInput
from tests.core.lottery.network import network, sign, signed
from tests.engine.gpu.resolving import outcomes, phases, reserve, world_of
from tests.engine.gpu.worlds import ADMIN, START, World, budget, envelope, run

BEACON = network(START - 300_000)


def reserved_world(**config: Any) -> World:
    """Team b fills a node; a reservation for half of it is due."""
    world = world_of(**config)
    world.apply(*(run(f"b{i}", owner="b", gpus=2) for i in range(4)))
    world.turn()
    reserve(world, run("winner", gpus=4))
    world.turn()
    return world


def push_out_outcomes(world: World) -> None:
    """Resolve by hand: each commitment drops closed outcomes beyond the limit."""
    for _ in range(2):
        world.plane.resolver.resolve(flavor="H100", gpus=1, author=ADMIN)
        world.turn(0.01)


def outcomes_of_reservation(world: World) -> list[int]:
    cases = [entry for entry in world.log if entry.kind == "gpu.resolve.case"]
    return [entry.seq for entry in cases if entry.body["reservation"] == "winner-slot"]


def test_a_void_by_the_operator_blocks_its_reservation_for_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many outcomes follow, also after a restart from a checkpoint."""
    monkeypatch.setattr(fold, "OUTCOMES_KEPT", 0)
    world = reserved_world(beacon=BEACON)
    (outcome,) = outcomes(world)
    world.plane.outcomes.void(outcome.seq, "the beacon is down", author=ADMIN, beacon_lost=True)
    world.reconfigure(beacon=None)
    push_out_outcomes(world)
    world.plane.committer.checkpoint()
    world.plane = world.open()
    world.turn(0.01)
    status = world.status("Reservation", "winner-slot")
    assert (status["state"], status["reason"]) == ("Blocked", "OutcomeVoided")
    assert len(outcomes_of_reservation(world)) == 1
    world.plane.objects.delete("Reservation", "winner-slot", author=ADMIN)
    push_out_outcomes(world)
    assert outcome.seq not in world.projection.resolver.outcomes, "no reservation cites it"


def test_a_reservation_preempts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its outcome was applied, what was freed was lost: later outcomes do not make it try again."""
    monkeypatch.setattr(fold, "OUTCOMES_KEPT", 0)
    world = world_of()
    world.apply(run("old", owner="b", gpus=8, command=["train"]))
    world.turn()
    reserve(world, run("winner", gpus=8))
    world.turn()
    world.apply(budget("a", "a", envelope(concurrency=1)))
    world.executor.end("old", world.now_ms + 5, signal=15)
    world.turn(0.1)
    (outcome,) = outcomes(world)
    assert outcome.stage is OutcomeStage.APPLIED
    assert phases(world) == {"old": "Running", "winner": "Reserved"}
    world.apply(*(run(f"c{i}", owner="c", gpus=1) for i in range(3)))
    world.plane.verbs.act("Run", "old", "cancel", author=ADMIN)
    world.executor.end("old", world.now_ms + 5, signal=15)
    world.turn(0.1)
    push_out_outcomes(world)
    world.apply(budget("a", "a", envelope(concurrency=8)))
    world.turn(0.1)
    status = world.status("Reservation", "winner-slot")
    assert (status["state"], status["reason"]) == ("Blocked", "NoDevices")
    assert len(outcomes_of_reservation(world)) == 1


def test_a_beacon_round_never_takes_another_value() -> None:
    """Neither one that decided an outcome nor one that no outcome named."""
    world = reserved_world(beacon=BEACON)
    (outcome,) = outcomes(world)
    supply = world.plane.contributions.add_beacon
    rounds = (1, outcome.beacon.round)
    for number in rounds:
        supply(*signed(BEACON.at(number)), author=ADMIN)
    for number in rounds:
        with pytest.raises(BadInput, match="is not the signature"):
            supply("drand", number, sign(2), author=ADMIN)
        supply(*signed(BEACON.at(number)), author=ADMIN)
    assert len([entry for entry in world.log if entry.kind == "gpu.beacon"]) == len(rounds)


def test_a_resolve_that_could_not_be_recorded_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the same process as by another one: the ledger decides, not what a process has tried."""
    world = world_of()
    world.apply(run("old", owner="b", gpus=8))
    world.turn()
    reserve(world, run("winner", gpus=4))
    append = world.ledger.append

    def full(drafts: Any, **how: Any) -> Any:
        if any(draft.kind == "gpu.resolve.commit" for draft in drafts):
            raise TemporaryFault("no room", retry_after_ms=1)
        return append(drafts, **how)

    monkeypatch.setattr(world.ledger, "append", full)
    with pytest.raises(TemporaryFault):
        world.turn()
    monkeypatch.undo()
    world.turn(0.01)
    assert phases(world) == {"old": "Pending", "winner": "Running"}


def test_idle_turns_neither_record_nor_search_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A blocked reservation costs one search per state; after a restart its answer is the same."""
    searches = []
    shortage_of = engine_reservations.shortage_of
    monkeypatch.setattr(
        engine_reservations,
        "shortage_of",
        lambda *inputs: searches.append(inputs) or shortage_of(*inputs),
    )
    world = reserved_world(resolver="off")
    world.turn(0.01)
    size, before = len(world.log), len(searches)
    for _ in range(3):
        world.turn(0.01)
    assert (len(world.log), len(searches)) == (size, before)
    world.plane = world.open()
    world.turn(0.01)
    assert (len(world.log), len(searches)) == (size, before + 1)
    assert world.status("Reservation", "winner-slot")["reason"] == "ResolverOff"
