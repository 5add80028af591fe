"""What `/metrics` measures of the control plane: counts by state, waits, preemptions, durations."""

from typing import Any

from fairlead.schema.samples import Histogram
from tests.engine.gpu.test_utilisation import SECOND, started
from tests.engine.gpu.worlds import ADMIN, World, budget, node, run


def samples(world: World, name: str) -> dict[tuple[str, ...], Any]:
    """The samples of one metric, by their labels."""
    return {tuple(labels.values()): value for labels, value in world.plane.measures.samples()[name]}


def count(world: World, name: str) -> tuple[float, float]:
    """How many a histogram has, and their sum."""
    found = samples(world, name)[()]
    assert isinstance(found, Histogram)
    return found.buckets()[-1][1], found.total


def test_runs_and_devices_by_state() -> None:
    """Every phase and state is there, also with 0; every device counts once."""
    world = World()
    world.apply(budget("a"), node(), run("r", gpus=4), run("too-large", gpus=9))
    world.turn()
    assert samples(world, "fairlead_gpu_runs") == {
        ("Pending",): 1,
        ("Running",): 1,
        ("Completed",): 0,
        ("Failed",): 0,
    }
    flavor = next(iter(samples(world, "fairlead_gpu_devices")))[0]
    devices = {state: n for (_, state), n in samples(world, "fairlead_gpu_devices").items()}
    assert devices == {"leased": 4, "free": 4, "quarantined": 0, "foreign": 0, "cordoned": 0}
    assert samples(world, "fairlead_gpu_devices_idle") == {(flavor,): 0}
    world.plane.verbs.act("Node", "n1", "cordon", author=ADMIN)
    devices = {state: n for (_, state), n in samples(world, "fairlead_gpu_devices").items()}
    assert (devices["free"], devices["cordoned"]) == (0, 4)


def test_the_wait_in_the_queue_is_from_submission_to_the_first_start() -> None:
    """Also of a run that another process of the control plane took in."""
    world = World()
    world.apply(budget("a"), node(), run("first", gpus=8), run("second", gpus=8))
    world.turn()
    assert count(world, "fairlead_gpu_queue_wait_seconds") == (1, 0)
    world.turn(1)
    assert samples(world, "fairlead_gpu_queue_oldest_seconds") == {(): 3600}
    world.plane = world.open()
    world.plane.verbs.act("Run", "first", "cancel", author=ADMIN)
    world.turn()
    assert samples(world, "fairlead_gpu_runs")[("Running",)] == 1
    assert count(world, "fairlead_gpu_queue_wait_seconds") == (1, 3600), "the restart forgot one"
    assert samples(world, "fairlead_gpu_queue_oldest_seconds") == {(): 0}


def test_leased_devices_that_do_nothing_are_idle() -> None:
    """All devices of a run; one that works makes none of them idle."""
    world, meter = started(gpus=2)
    ((flavor,),) = samples(world, "fairlead_gpu_devices_idle")
    world.turn(11 * SECOND)
    assert samples(world, "fairlead_gpu_devices_idle") == {(flavor,): 2}
    meter.put(0, 90, 0)
    world.turn(11 * SECOND)
    assert samples(world, "fairlead_gpu_devices_idle") == {(flavor,): 0}


def test_turns_and_passes_over_the_queue_are_timed() -> None:
    """One each a turn."""
    world = World()
    world.apply(budget("a"), node(), run("r"))
    before = count(world, "fairlead_gpu_turn_seconds")[0]
    for _ in range(3):
        world.turn()
    assert count(world, "fairlead_gpu_turn_seconds")[0] == before + 3
    assert count(world, "fairlead_gpu_admission_seconds")[1] > 0


def test_preemptions_are_counted_by_reason() -> None:
    """Of a closed list; a node that fails takes its runs with it."""
    world = World()
    world.apply(budget("a"), node(), run("r", gpus=4), run("p", gpus=2, command=["sleep", "9"]))
    world.turn()
    before = samples(world, "fairlead_gpu_preemptions_total")
    assert set(before.values()) == {0}
    world.plane.verbs.act("Node", "n1", "fail", author=ADMIN)
    world.turn()
    after = samples(world, "fairlead_gpu_preemptions_total")
    assert after == {**before, ("NodeFailed",): 2}
    world.executor.end("p", world.now_ms)
    world.turn()
    assert world.status("Run", "p")["phase"] == "Pending"
    assert samples(world, "fairlead_gpu_preemptions_total") == after, "its end is no second one"
    assert samples(world, "fairlead_ledger_entries_total") == {(): world.plane.seq}
    assert samples(world, "fairlead_ledger_writable") == {(): 1}
