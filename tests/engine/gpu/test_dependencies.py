"""Runs that start after others: held, released, ended with a reason; all of it recorded."""

import pytest

from fairlead.engine.gpu import Refused
from fairlead.ledger.replay import Verdict, replay
from fairlead.schema.border import BadInput
from tests.engine.gpu.worlds import ADMIN, World, budget, envelope, manifest, node, run


def after(*runs: str, condition: str = "afterOK") -> list[dict[str, str]]:
    return [{"run": name, "condition": condition} for name in runs]


def lab() -> World:
    world = World()
    world.apply(budget("a", "a", envelope()), node())
    return world


def phase(world: World, name: str) -> tuple[str, str]:
    state = world.projection.runs[name]
    return state.phase.value, state.reason


def test_a_chain_starts_one_after_the_other_and_replays() -> None:
    """In any order of a batch; each is released by the end of the one before it."""
    world = lab()
    batch = [
        run("c", duration="1h", after=after("b")),
        run("b", duration="1h", after=after("a1")),
        run("a1", duration="1h"),
    ]
    world.plane.objects.apply_all(batch, author=ADMIN)
    world.turn()
    assert phase(world, "a1") == ("Running", "Admitted")
    assert phase(world, "b") == ("Pending", "DependencyPending")
    assert world.projection.runs["c"].message == "starts after run/b"
    size = len(world.log)
    world.turn(0.1)
    assert len(world.log) == size, "waiting does not fill the log"
    world.turn(1)
    world.turn()
    assert phase(world, "b")[0] == "Running"
    assert phase(world, "c")[0] == "Pending"
    world.turn(1)
    world.turn()
    assert phase(world, "c")[0] == "Running"
    decided = [entry for entry in world.log if entry.kind == "gpu.after"]
    assert len(decided) == 4
    assert {replay(world.ledger, entry).verdict for entry in decided} == {Verdict.SAME}


def test_a_run_whose_dependency_failed_ends_with_the_reason() -> None:
    """And so does what comes after it; `afterAny` starts all the same."""
    world = lab()
    world.apply(
        run("first", command=["false"]),
        run("second", after=after("first")),
        run("third", after=after("second")),
        run("clean", duration="1h", after=after("first", condition="afterAny")),
    )
    world.turn()
    world.executor.end("first", world.now_ms, code=1)
    world.turn()
    world.turn()
    assert phase(world, "second") == ("Failed", "DependencyFailed")
    assert phase(world, "third") == ("Failed", "DependencyFailed")
    assert world.projection.runs["third"].message == "never starts: run/second did not succeed"
    assert phase(world, "clean")[0] == "Running"


def test_what_makes_no_sense_is_refused() -> None:
    """Runs that do not exist, circles, names twice; reservations and deletions in between."""
    world = lab()
    world.apply(run("first", gpus=99), run("later", after=after("first")))
    objects = world.plane.objects
    for manifests, path, what in (
        ([run("x", after=after("firts"))], "manifests[0].spec.after[0].run", "mean 'first'"),
        ([run("x", after=after("x"))], "manifests[0].spec.after[0].run", "circle"),
        (
            [run("x", after=after("first", "y")), run("y", after=after("x"))],
            "manifests[0].spec.after[1].run",
            "circle",
        ),
        ([run("x", after=after("first", "first"))], "manifests[0].spec.after[1].run", "repeats"),
    ):
        with pytest.raises(BadInput, match=what) as refused:
            objects.apply_all(manifests, author=ADMIN)
        assert refused.value.path == path
    slot = manifest(
        "Reservation", "slot", {"run": "later", "earliestStart": "2026-01-02T00:00:00Z"}
    )
    with pytest.raises(Refused, match="starts after others"):
        objects.apply(slot, author=ADMIN)
    with pytest.raises(Refused, match="'later' starts after it"):
        objects.delete("Run", "first", author=ADMIN)
    world.plane.verbs.act("Run", "later", "cancel", author=ADMIN)
    objects.delete("Run", "first", author=ADMIN)
