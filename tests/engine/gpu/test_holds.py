"""What an open outcome frees is kept for its run: others start where nothing is kept."""

from fairlead.engine.gpu import Config
from fairlead.ledger.replay import replay
from fairlead.schema.replay import Verdict
from tests.engine.gpu.resolving import CHANCE, reserve
from tests.engine.gpu.worlds import ADMIN, HOUR, LENIENT, Clocks, World, budget, envelope, node, run


def two_regions() -> World:
    """An outcome is open in the west, where one device is free; in the east 4 are."""
    world = World(
        clocks=Clocks(), config=Config(resolver="enforce", preemption=LENIENT), chance=CHANCE
    )
    west, east = {"region": "west"}, {"region": "east"}
    world.apply(
        budget("a", "a", envelope(concurrency=64)),
        budget("over", "over", envelope(concurrency=1)),
        node("w1", 5, location=west),
        node("e1", 4, location=east),
        run("victim", gpus=4, command=["x"], location=west),
        run("vip", gpus=5, location=west),
    )
    world.turn()
    world.plane.verbs.act("Run", "vip", "resolve", author=ADMIN)
    assert world.projection.resolver.open_seqs
    return world


def phases(world: World, *names: str) -> dict[str, str]:
    return {name: world.status("Run", name)["phase"] for name in names}


def test_an_open_outcome_holds_back_its_scope_only() -> None:
    """A run starts at once that asks for another region, or for none: not on what is kept."""
    world = two_regions()
    world.apply(
        run("near", command=["x"], location={"region": "west"}),
        run("far", command=["x"], location={"region": "east"}),
        run("any", command=["x"]),
        run("wide", gpus=3, command=["x"]),
    )
    world.turn(1 / 3600)
    assert phases(world, "near", "far", "any", "wide") == {
        "near": "Pending",
        "far": "Running",
        "any": "Running",
        "wide": "Pending",
    }
    assert list(world.projection.taken["e1"]) == [0, 1]
    recorded = [entry for entry in world.log if entry.kind in ("gpu.queue", "gpu.place")]
    assert {replay(world.ledger, entry).verdict for entry in recorded} == {Verdict.SAME}
    world.executor.end("victim", world.plane.committer.now(), signal=15)
    world.turn(1 / HOUR)
    assert phases(world, "vip", "near", "wide") == {
        "vip": "Running",
        "near": "Pending",
        "wide": "Pending",
    }


def test_what_an_outcome_keeps_is_given_to_no_reservation_and_no_overdraft() -> None:
    """Both could start anywhere, and do so where nothing is kept."""
    world = two_regions()
    idle = {"funding": {"allowUnfunded": True}, "command": ["x"]}
    world.apply(run("over", owner="over", gpus=2, **idle))
    reserve(world, run("due", gpus=2, command=["x"]))
    reserve(world, run("late", gpus=1, command=["x"]))
    world.turn(1 / 3600)
    assert phases(world, "due", "late", "over") == {
        "due": "Running",
        "late": "Running",
        "over": "Pending",
    }
    assert len(world.projection.taken["e1"]) == 3
    assert len(world.projection.taken["w1"]) == 4, "the fifth is kept"


def test_an_elastic_run_grows_where_nothing_is_kept() -> None:
    world = two_regions()
    elastic = {"groupGPUs": 1, "malleable": {"minTotalGPUs": 1, "stepGPUs": 1}, "command": ["x"]}
    world.apply(run("first", gpus=2, command=["x"], location={"region": "east"}))
    world.apply(run("elastic", gpus=9, **elastic))
    world.turn(1 / 3600)
    assert world.projection.runs["elastic"].width == 2
    world.executor.end("first", world.plane.committer.now())
    world.turn(1 / 3600)
    assert world.projection.runs["elastic"].width == 4
    assert len(world.projection.taken["w1"]) == 4, "the fifth is kept"
    grown = [entry for entry in world.log if entry.kind in ("gpu.grow", "gpu.start")]
    assert {replay(world.ledger, entry).verdict for entry in grown} == {Verdict.SAME}


def test_the_run_of_an_open_outcome_waits_for_it() -> None:
    """Room elsewhere would make the outcome void, after others were asked to give way."""
    world = World(
        clocks=Clocks(), config=Config(resolver="enforce", preemption=LENIENT), chance=CHANCE
    )
    world.apply(budget("a", "a", envelope(concurrency=64)))
    for place in ("west", "east"):
        world.apply(node(place, 4, location={"region": place}))
        world.apply(run(f"in-{place}", gpus=4, command=["x"], location={"region": place}))
    world.apply(run("vip", gpus=4))
    world.turn()
    world.plane.verbs.act("Run", "vip", "resolve", author=ADMIN)
    (outcome,) = world.projection.resolver.outcomes.values()
    loser = f"in-{outcome.location['region']}"
    other = "in-west" if loser == "in-east" else "in-east"
    world.executor.end(other, world.plane.committer.now())
    world.turn(1 / 3600)
    assert phases(world, "vip", other) == {"vip": "Pending", other: "Completed"}
    world.executor.end(loser, world.plane.committer.now(), signal=15)
    world.turn(1 / 3600)
    assert phases(world, "vip", loser)["vip"] == "Running"


def test_an_outcome_of_a_cap_holds_no_run_of_other_budgets() -> None:
    """It frees devices for no run: a tenant over its cap would freeze the flavor for its grace."""
    world = World(
        clocks=Clocks(), config=Config(resolver="enforce", preemption=LENIENT), chance=CHANCE
    )
    world.apply(budget("a", "a", envelope(concurrency=4)), budget("b"), node("n1", 8))
    world.apply(run("over", gpus=4, command=["x"]))
    world.turn()
    world.apply(budget("a", "a", envelope(concurrency=2)))
    world.plane.resolver.resolve_cap("a", "west", author=ADMIN)
    assert world.projection.resolver.open_seqs
    world.apply(run("other", owner="b", gpus=4, command=["x"]))
    world.turn(1 / 3600)
    assert phases(world, "over", "other") == {"over": "Running", "other": "Running"}
    assert world.projection.resolver.open_seqs
