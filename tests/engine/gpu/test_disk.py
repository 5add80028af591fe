"""A full disk under the control plane: writes fault, reads go on, nothing acknowledged is lost."""

import contextlib
from pathlib import Path

import pytest

from fairlead.engine.gpu import Config
from fairlead.ledger.sqlite import SqliteLedger
from fairlead.ports.faults import TemporaryFault
from tests.engine.gpu.worlds import ADMIN, World, budget, node, run, state_of
from tests.ledger.memory import MemoryKeys


def room(ledger: SqliteLedger, pages: int) -> None:
    """Let the file grow by so many pages and no further: SQLite itself says that it is full."""
    (now,) = ledger._session._connection.execute("PRAGMA page_count").fetchone()
    ledger._session._connection.execute(f"PRAGMA max_page_count = {now + pages}")


def fill(world: World, first: int) -> list[str]:
    """Write until there is no room even for little; which runs were acknowledged."""
    done: list[str] = []
    with contextlib.suppress(TemporaryFault):
        while len(done) < 10_000:
            name = f"r{first + len(done)}"
            world.plane.objects.apply(run(name, env={"FILLER": "x" * 900}), author=ADMIN)
            done.append(name)
    with contextlib.suppress(TemporaryFault):
        for i in range(10_000):
            world.plane.verbs.act("Run", "busy", ("pause", "resume")[i % 2], author=ADMIN)
    return done


def fill_quietly(world: World) -> None:
    """Until a turn that has nothing else to do cannot record the shortest of entries."""
    for _ in range(10_000):
        verb = "resume" if world.projection.runs["busy"].paused else "pause"
        with contextlib.suppress(TemporaryFault):
            world.plane.verbs.act("Run", "busy", verb, author=ADMIN)
        try:
            world.turn()
        except TemporaryFault:
            return
    raise AssertionError("a disk without an end")


def test_a_full_disk_is_survived(tmp_path: Path) -> None:
    """Twice in a row; the runs' processes are told nothing that was not recorded."""
    ledger = SqliteLedger.open(tmp_path / "ledger.db", MemoryKeys())
    world = World(ledger)
    world.apply(budget("a"), node(), run("busy", gpus=2, command=["train"]))
    world.turn()
    acknowledged = ["busy"]
    for _ in range(2):
        room(ledger, 20)
        acknowledged += fill(world, len(acknowledged))
        before, used = state_of(world), world.plane.reports.budgets()[0]["used_gpus"]
        for attempt in (
            lambda: world.plane.verbs.act("Run", "busy", "cancel", author=ADMIN),
            lambda: world.plane.objects.apply_all([budget("b"), node("n2")], author=ADMIN),
            lambda: world.turn(1),
            lambda: ledger.snapshot_put("large", 1, bytes(100_000)),
        ):
            with pytest.raises(TemporaryFault):
                attempt()
        assert world.status("Run", "busy")["phase"] == "Running"
        assert len(world.plane.objects.list("Run")) == len(acknowledged)
        assert world.plane.reports.budgets()[0]["used_gpus"] == used
        assert {call[0] for call in world.executor.calls} <= {"start", "pause", "resume"}
        world.now_ms -= 3_600_000
        assert state_of(world) == before
        assert ledger.verify().ok
        # The same after a restart in the middle of it.
        world.plane = world.open()
        assert {each["metadata"]["name"] for each in world.plane.objects.list("Run")} == set(
            acknowledged
        )
        room(ledger, 100_000)
        world.turn()
    world.plane.verbs.act("Run", "busy", "cancel", author=ADMIN)
    assert world.executor.calls[-1][:2] == ("stop", "busy")
    assert {each["metadata"]["name"] for each in world.plane.objects.list("Run")} == set(
        acknowledged
    )
    assert ledger.verify().ok
    ledger.close()


def test_that_nothing_can_be_recorded_is_known_until_something_is(tmp_path: Path) -> None:
    """Nobody writes, nothing happens: a turn finds out by itself, and says so once."""
    ledger = SqliteLedger.open(tmp_path / "ledger.db", MemoryKeys())
    world = World(ledger)
    world.apply(budget("a"), node(), run("busy", gpus=2, command=["train"]))
    world.turn()
    world.turn()
    assert ledger.failure() is None
    room(ledger, 2)
    fill_quietly(world)
    assert "full" in (ledger.failure() or "")
    size = ledger.head().head.size
    for _ in range(2):
        with pytest.raises(TemporaryFault, match="full"):
            world.turn()
    assert ledger.head().head.size == size
    room(ledger, 100_000)
    world.turn()
    assert ledger.failure() is None
    world.turn()
    assert [entry.kind for entry in ledger.entries(size)] == ["control.recovered"]
    ledger.close()


def test_no_room_for_a_checkpoint_keeps_nobody_from_looking(tmp_path: Path) -> None:
    """It only makes the next start quicker; reads go on without it."""
    ledger = SqliteLedger.open(tmp_path / "ledger.db", MemoryKeys())
    world = World(ledger, config=Config(checkpoint_every=5))
    world.apply(budget("a"), node(), run("busy", gpus=2, command=["train"]))
    world.turn()
    room(ledger, 4)
    names = fill(world, 0)
    other = World(ledger, config=Config(checkpoint_every=1))
    assert len(other.plane.objects.list("Run")) == len(names) + 1
    assert len(world.plane.objects.list("Run")) == len(names) + 1
    ledger.close()
