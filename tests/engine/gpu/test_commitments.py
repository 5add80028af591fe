"""Commitments that wait, with which round, and for whom nobody is cut; places that are emptied."""

from dataclasses import replace

import pytest

from fairlead.engine.gpu.state import OutcomeStage
from tests.core.lottery.network import signed
from tests.engine.gpu.resolving import outcomes, phases, reserve, run, world_of
from tests.engine.gpu.test_protocol import BEACON, crowded, victims
from tests.engine.gpu.worlds import ADMIN, World, node
from verify import fairlead_verify


def again(world: World, **config: object) -> None:
    """A restart with other settings."""
    world.config = replace(world.config, **config)  # type: ignore[arg-type]
    world.plane = world.open()


@pytest.mark.parametrize("mode", ["off", "dry-run"])
def test_nobody_is_cut_by_a_commitment_from_before_the_switch(mode: str) -> None:
    """It stays as it is, visible; switched on again, it goes on with the same luck."""
    world = crowded(beacon=BEACON)
    world.turn(0.5)
    (outcome,) = outcomes(world)
    again(world, resolver=mode)
    world.plane.contributions.add_beacon(*signed(outcome.beacon), author=ADMIN)
    for _ in range(3):
        world.turn(0.01)
    assert (outcomes(world)[0].stage, victims(world)) == (OutcomeStage.COMMITTED, [])
    again(world, resolver="enforce")
    world.turn(0.01)
    assert phases(world)["winner"] == "Running"
    assert len(outcomes(world)) == 1


def test_a_commitment_of_a_resolver_that_is_off_can_be_voided() -> None:
    """With what it would have been, as ever."""
    world = crowded(beacon=BEACON)
    world.turn(0.5)
    (outcome,) = outcomes(world)
    again(world, resolver="off")
    world.plane.contributions.add_beacon(*signed(outcome.beacon), author=ADMIN)
    world.plane.outcomes.void(outcome.seq, "we stop this", author=ADMIN)
    final = next(entry for entry in world.log if entry.kind == "gpu.resolve.void")
    assert final.body["result_digest"] is not None
    assert victims(world) == []


def test_a_round_whose_value_is_known_decides_nothing() -> None:
    """Supplied early, or by a clock that is late: the commitment names a later one."""
    world = crowded(beacon=BEACON)
    due = BEACON.round_after(world.now_ms + 1_800_000).round
    for number in (due, due + 1):
        world.plane.contributions.add_beacon(*signed(BEACON.at(number)), author=ADMIN)
    world.turn(0.5)
    (outcome,) = outcomes(world)
    assert (outcome.stage, outcome.beacon.round) == (OutcomeStage.COMMITTED, due + 2)
    assert victims(world) == []


def test_a_place_is_cordoned_and_then_emptied() -> None:
    """By hand, for maintenance: what is freed there stays free, and other places are spared."""
    world = world_of(devices=4)
    far = {"region": "west", "cluster": "a", "domain": "d2"}
    world.apply(node("n2", 4, location=far))
    world.apply(run("x", owner="b", gpus=4), run("y", owner="c", gpus=4))
    world.turn()
    on = {row["run"]: row["slots"][0].split("#")[0] for row in world.plane.reports.leases()}
    (leaves,) = [name for name, place in on.items() if place == "n1"]
    world.plane.verbs.act("Node", "n1", "cordon", author=ADMIN)
    wanted = {"flavor": "H100", "gpus": 4, "location": {"domain": "d1"}, "author": ADMIN}
    shown = world.plane.resolver.resolve(**wanted, dry_run=True)["forecast"]
    assert [row["run"] for row in shown["atRisk"]] == [leaves]
    done = world.plane.resolver.resolve(**wanted)
    world.turn(0.1)
    assert phases(world)[leaves] == "Pending"
    assert sorted(phases(world).values()) == ["Pending", "Running"]
    assert world.status("Node", "n1")["leased"] == 0
    public = world.plane.outcome_reports.export(done["outcome"], author=ADMIN, public=True)
    assert fairlead_verify.verify(public)[0] == 0


def test_a_dry_run_names_the_runs_that_would_be_preempted() -> None:
    """That is what `dry-run` is for: in the reservation and in the log, once; not with `off`."""
    said = {}
    for mode in ("off", "dry-run"):
        world = world_of(resolver=mode, devices=12)
        spare = {"groupGPUs": 2, "sparesPerGroup": 2}
        world.apply(
            run("x", owner="b", gpus=2, **spare),
            run("y", owner="c", gpus=4),
            run("z", owner="c", gpus=4),
        )
        world.turn()
        reserve(world, run("new", gpus=4))
        world.turn()
        said[mode] = world.status("Reservation", "new-slot")["message"]
        size = len(world.log)
        world.apply(run("later", owner="b"))
        world.turn(0.01)
        kinds = [entry.kind for entry in world.log[size:]]
        assert "reservation.state" not in kinds, "the same answer is not said again"
        assert set(phases(world).values()) == {"Running", "Reserved", "Pending"}
    assert said["off"] == "4 GPUs are missing, and the resolver is off"
    assert said["dry-run"] == (
        "4 GPUs are missing, and the resolver is dry-run: would be preempted: x (DropSpare), "
        "x (1 in 2), y (1 in 4), z (1 in 4)"
    )
