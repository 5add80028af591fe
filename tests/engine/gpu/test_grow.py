"""A shrunk run grows again: what an outcome took, when there is room, after everybody who waits."""

from importlib import import_module
from typing import Any

import pytest

from fairlead.ledger.replay import replay
from fairlead.ports.faults import TemporaryFault
from fairlead.schema.replay import Verdict
from tests.engine.gpu.resolving import outcomes, phases, reserve, world_of
from tests.engine.gpu.worlds import ADMIN, World, budget, envelope, run, state_of

ELASTIC = {"groupGPUs": 2, "malleable": {"minTotalGPUs": 2, "stepGPUs": 2}}


def shrunk(gpus: int = 4, shape: dict[str, Any] | None = None, **more: Any) -> World:
    """An elastic run of eight GPUs gave way to one of so many, which runs for an hour."""
    world = world_of(devices=8)
    world.apply(run("elastic", owner="b", gpus=8, **{**ELASTIC, **(shape or {}), **more}))
    world.turn()
    reserve(world, run("new", gpus=gpus, duration="1h"))
    world.turn()
    world.turn(11 / 3600)
    assert phases(world) == {"elastic": "Shrunk", "new": "Running"}
    return world


def groups(world: World) -> dict[int, int]:
    found: dict[int, int] = {}
    for row in world.plane.reports.leases():
        if row["run"] == "elastic" and row["role"] == "Active":
            found[row["group"]] = found.get(row["group"], 0) + len(row["slots"])
    return found


def born(world: World) -> list[dict[str, Any]]:
    return [
        entry.body
        for entry in world.log
        if entry.kind == "lease.open" and entry.body["reason"] == "Grow"
    ]


def widths(world: World) -> list[int]:
    return [len(call[2]) for call in world.executor.calls if call[0] == "resize"]


def test_what_an_outcome_took_comes_back_when_there_is_room() -> None:
    """The same groups under their numbers, once; nothing is said while there is none."""
    world = shrunk(duration="9h")
    size, started = len(world.log), world.status("Run", "elastic")["coverSeq"]
    for _ in range(3):
        world.turn(0.01)
    assert (len(world.log), groups(world)) == (size, {0: 2, 1: 2}), "no room, no word"
    world.turn(1)
    status = world.status("Run", "elastic")
    assert (status["phase"], status["width"]) == ("Running", 8)
    assert status["coverSeq"] == started, "how it started stays to be explained"
    assert groups(world) == {0: 2, 1: 2, 2: 2, 3: 2}
    assert [(body["group"], body["reason"]) for body in born(world)] == [(2, "Grow"), (3, "Grow")]
    ends = {row["expected_end"] for row in world.plane.reports.leases() if row["run"] == "elastic"}
    assert len(ends) == 1, "it ends when it was to end"
    ids = [entry.body["lease"] for entry in world.log if entry.kind == "lease.open"]
    assert len(ids) == len(set(ids))
    size = len(world.log)
    world.turn(0.1)
    assert len(world.log) == size
    before = state_of(world)
    world.plane = world.open()
    assert state_of(world) == before
    assert world.headroom("b")["concurrencyUsed"] == 8
    decided = [entry for entry in world.log if entry.kind in ("gpu.fund", "gpu.place")]
    assert len(decided) == 6, "two starts, and one growth"
    assert {replay(world.ledger, entry).verdict for entry in decided} == {Verdict.SAME}


def test_where_nothing_is_free_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds may be shrunk for hours: a turn costs them next to nothing."""
    world = shrunk()
    asked = []
    start = import_module("fairlead.core.gpu.start")
    monkeypatch.setattr(start, "cover", lambda *given: asked.append(given))
    world.turn(0.01)
    assert asked == []


def test_it_is_told_and_runs_on() -> None:
    """File and signal, and no new process; after a restart of the control plane once more."""
    world = shrunk(command=["train"])
    assert widths(world) == [4]
    world.turn(1)
    world.turn(0.001)
    assert (phases(world)["elastic"], widths(world)) == ("Running", [4, 8])
    starts = [call[1] for call in world.executor.calls if call[0] == "start"]
    assert len([job for job in starts if job.startswith("elastic")]) == 1
    assert [call for call in world.executor.calls if call[0] == "stop"] == []
    world.plane = world.open()
    world.turn(0.001)
    assert widths(world) == [4, 8, 8]
    world.turn(0.001)
    assert widths(world) == [4, 8, 8]


def test_one_that_could_not_be_told_is_told_later() -> None:
    """Its leases are there, and charged; the machine answers again, and it knows."""
    world = shrunk(command=["train"])

    def deaf(*_: object, grace_ms: int, decision: str) -> None:
        raise TemporaryFault("no answer", retry_after_ms=1)

    world.executor.resize = deaf  # type: ignore[method-assign]
    world.turn(1)
    assert (world.status("Run", "elastic")["width"], widths(world)) == (8, [4])
    del world.executor.resize  # type: ignore[method-assign]
    world.turn(0.001)
    assert widths(world) == [4, 8]


def test_devices_that_are_still_used_are_not_free() -> None:
    """Where the executor can tell, it decides, and not the end of the grace."""
    world = world_of(devices=8)
    world.apply(run("elastic", owner="b", gpus=8, command=["train"], **ELASTIC))
    world.turn()
    world.executor.holding = True
    reserve(world, run("new", gpus=4, duration="1h"))
    world.turn()
    world.turn(1)
    assert len(groups(world)) == 4, "its grace is over, and its pods are there"
    world.executor.holding = False
    world.turn()
    assert phases(world) == {"elastic": "Shrunk", "new": "Running"}


def test_by_steps_as_far_as_there_is_room_and_money() -> None:
    """Two GPUs of four, because another run was quicker; or because the budget was lowered."""
    world = shrunk()
    world.apply(run("quick", owner="c", gpus=2))
    world.turn(1)
    assert (groups(world), phases(world)["elastic"]) == ({0: 2, 1: 2, 2: 2}, "Shrunk")
    world.plane.verbs.act("Run", "quick", "cancel", author=ADMIN)
    world.turn(0.001)
    assert (len(groups(world)), phases(world)["elastic"]) == (4, "Running")
    world = shrunk()
    world.apply(budget("b", "b", envelope(concurrency=7)))
    world.turn(1)
    assert groups(world) == {0: 2, 1: 2, 2: 2}
    assert [row for row in world.plane.reports.leases() if not row["funded"]] == []


def test_who_waits_is_asked_first() -> None:
    """A run without devices starts on what the run could have grown to."""
    world = shrunk()
    world.apply(run("waits", owner="c", gpus=4))
    world.turn(1)
    assert phases(world) == {"elastic": "Shrunk", "new": "Completed", "waits": "Running"}


def test_what_its_owner_gave_up_stays_given_up() -> None:
    """Of its own accord, before or after an outcome took something."""
    world = world_of(devices=8)
    world.apply(run("elastic", owner="b", gpus=8, **ELASTIC))
    world.turn()
    world.plane.verbs.act("Run", "elastic", "shrink", author=ADMIN, width=6)
    for _ in range(2):
        world.turn(0.01)
    assert (len(groups(world)), phases(world)["elastic"]) == (3, "Shrunk")
    reserve(world, run("new", gpus=4, duration="1h"))
    world.turn(0.01)
    assert len(groups(world)) == 2
    world.turn(2)
    assert len(groups(world)) == 3, "back to what it had, and no further"
    world = shrunk()
    world.plane.verbs.act("Run", "elastic", "shrink", author=ADMIN, width=2)
    world.turn(0.01)
    world.turn(1)
    assert len(groups(world)) == 1


def test_spares_and_a_smaller_last_group_come_back_with_their_groups() -> None:
    """Spares of a shrunk group went along; a last group that is smaller needs all of it."""
    world = shrunk(shape={"groupGPUs": 4, "malleable": {"minTotalGPUs": 4, "stepGPUs": 4}})
    world.turn(1)
    assert groups(world) == {0: 4, 1: 4}
    odd = {"groupGPUs": 3, "malleable": {"minTotalGPUs": 3, "stepGPUs": 1}}
    world = shrunk(shape=odd)
    assert groups(world) == {0: 3}
    world.turn(1)
    assert groups(world) == {0: 3, 1: 3, 2: 2}
    world = world_of(devices=8)
    backed = {"groupGPUs": 2, "sparesPerGroup": 1, "malleable": {"minTotalGPUs": 2, "stepGPUs": 2}}
    world.apply(run("elastic", owner="b", gpus=4, **backed))
    world.turn()
    reserve(world, run("new", gpus=6, duration="1h"))
    world.turn()
    assert (groups(world), world.status("Run", "elastic")["spares"]) == ({0: 2}, 0)
    world.turn(2)
    assert (groups(world), world.status("Run", "elastic")["spares"]) == ({0: 2, 1: 2}, 1)


@pytest.mark.parametrize("how", ["paused", "stopping", "late"])
def test_a_run_that_is_held_or_ends_does_not_grow(how: str) -> None:
    """Paused, about to end, or past its time: it keeps what it has."""
    world = shrunk(command=["train"], duration="30m" if how == "late" else "9h")
    if how == "paused":
        world.plane.verbs.act("Run", "elastic", "pause", author=ADMIN)
    elif how == "stopping":
        world.plane.verbs.act("Run", "elastic", "cancel", author=ADMIN)
    world.turn(1)
    assert len(groups(world)) == 2
    if how == "paused":
        world.plane.verbs.act("Run", "elastic", "resume", author=ADMIN)
        world.turn(0.001)
        assert len(groups(world)) == 4


def test_it_can_be_cut_and_grow_again() -> None:
    """As often as it has to; every lease has a name of its own."""
    world = shrunk()
    for number in range(3):
        world.turn(1)
        assert len(groups(world)) == 4
        reserve(world, run(f"next-{number}", gpus=4, duration="1h"))
        world.turn(0.001)
        assert (len(groups(world)), len(outcomes(world))) == (2, 2 + number)
    ids = [entry.body["lease"] for entry in world.log if entry.kind == "lease.open"]
    assert len(ids) == len(set(ids))
