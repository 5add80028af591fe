"""What the ledger grows by: by what was decided, and not by all there is."""

from hypothesis import given, settings

from fairlead.core.gpu import FreeDevices
from fairlead.core.gpu.place import Gang, Node, place
from fairlead.engine.gpu.starting import place_input
from fairlead.schema.border import check_shape
from fairlead.schema.gpu import STYLE
from fairlead.schema.kinds import KINDS
from tests.core.gpu.test_devices import fleets, gangs
from tests.engine.gpu.resolving import world_of
from tests.engine.gpu.worlds import ADMIN, World, budget, envelope, node, run


@settings(max_examples=300, deadline=None)
@given(fleets(), gangs)
def test_what_is_left_out_of_a_placement_decides_nothing(nodes: list[Node], gang: Gang) -> None:
    """Decided again from its record it is the same, placed or not."""
    recorded = place_input(FreeDevices(nodes), gang)
    kind = KINDS["gpu.place"]
    again = kind.decide(check_shape(recorded, kind.input_shape))
    assert again == STYLE.from_core(place(nodes, gang))


def test_a_start_records_the_nodes_that_decide_it() -> None:
    """Not the full ones, the cordoned, those out of reach, and of two that are alike the first."""
    world = World()
    east, west = {"location": {"region": "e"}}, {"location": {"region": "w"}}
    world.plane.objects.apply_all(
        [
            budget("a", "a", envelope(concurrency=1_000)),
            *(node(f"full{i:03}", 1, **west) for i in range(40)),
            *(node(f"far{i:03}", 1, **east) for i in range(40)),
            *(run(f"r{i:03}", gpus=1, location={"region": "w"}) for i in range(40)),
        ],
        author=ADMIN,
    )
    world.turn()
    world.apply(node("one", **west), node("two", **west), node("shut", cordoned=True, **west))
    world.apply(run("late", gpus=4, location={"region": "w"}))
    world.turn()
    placed = [entry for entry in world.log if entry.kind == "gpu.place"]
    assert [each["name"] for each in placed[-1].body["input"]["nodes"]] == ["one"]
    assert len(placed[-1].data) < 2_000
    assert len(placed) == 41


def test_a_restart_records_nothing() -> None:
    """Neither what stands there nor what is free; also with the resolver's secrets."""
    world = world_of()
    world.apply(run("r", gpus=4, command=["train"]), run("waits", gpus=99))
    world.turn()
    world.turn()
    size = len(world.log)
    for _ in range(3):
        world.plane = world.open()
        world.turn()
        world.turn(0.001)
    assert len(world.log) == size


def test_jobs_that_are_over_leave_nothing_in_memory() -> None:
    """A control plane runs for years, and starts thousands of jobs a day."""
    world = World()
    world.apply(budget("a"), node(), run("kept", gpus=1, command=["serve"]))
    for i in range(5):
        world.apply(run(f"r{i}", gpus=1, command=["train"]))
        world.turn()
        world.plane.verbs.act("Run", f"r{i}", "pause", author=ADMIN)
        world.turn()
        world.executor.end(f"r{i}", world.now_ms, code=0)
        world.turn(0.01)
    effects, kept = world.plane.effects, world.projection.live["kept"]
    assert list(world.projection.live) == ["kept"]
    assert (effects._started, effects._paused) == ({kept.job}, set())
    assert (effects._devices, effects._notified) == ({}, {})
