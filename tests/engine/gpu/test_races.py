"""Two replicas on one ledger, checkpoints, clocks that are set back."""

import threading
import zlib
from pathlib import Path

import msgspec
import pytest

from fairlead.engine.gpu import Config, ControlPlane
from fairlead.engine.gpu import checkpoint as checkpoints
from fairlead.engine.gpu.entries import NewEntry, decode
from fairlead.ledger.replay import replay
from fairlead.ledger.sqlite import SqliteLedger
from fairlead.ports.faults import TemporaryFault
from fairlead.ports.ledger import HeadMoved
from fairlead.schema.replay import Verdict
from tests.engine.gpu.resolving import outcomes, phases, reserve, world_of
from tests.engine.gpu.worlds import ADMIN, HOUR, World, budget, envelope, node, run, state_of
from tests.ledger.memory import MemoryKeys, MemoryLedger


def test_two_replicas_never_spend_the_last_gpus_twice() -> None:
    """Eight GPUs, twenty runs of one, two replicas admitting at once."""
    world = World()
    world.apply(budget("a"), node(devices=20), *(run(f"r{i}") for i in range(20)))
    planes = [world.plane, world.open()]
    threads = [
        threading.Thread(target=lambda plane=plane: [plane.reconcile() for _ in range(5)])
        for plane in planes
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    opened = [entry for entry in world.log if entry.kind == "lease.open"]
    assert len(opened) == 8
    assert len({entry.body["run"] for entry in opened}) == 8
    for plane in planes:
        plane.reconcile()
        assert plane.reports.budgets()[0]["used_gpus"] == 8


class Rival(MemoryLedger):
    """Somebody else always appends first."""

    lost = 0
    always = False

    def append(self, drafts, *, expected_size=None):
        if expected_size is not None and (self.always or self.lost < 1):
            self.lost += 1
            raise HeadMoved(expected=expected_size, size=expected_size + 1)
        return super().append(drafts, expected_size=expected_size)


def test_a_lost_race_is_decided_again_and_a_hopeless_one_is_a_fault() -> None:
    """The loser catches up; after many losses it says that it may be tried later."""
    ledger = Rival()
    world = World(ledger)
    world.apply(budget("a"))
    assert ledger.lost == 1
    ledger.always = True
    with pytest.raises(TemporaryFault, match="too busy"):
        world.apply(budget("b"))


def test_times_never_go_back_where_another_replica_was_quicker() -> None:
    """A turn has one time; what it decides again after a later entry is recorded after that."""
    world = World()
    other = world.open()
    world.apply(budget("a"), node(), run("r"))
    committer, late = world.plane.committer, decode(world.log[-1])
    with committer.current():
        began_ms = committer.now()
        world.now_ms += 1_000
        other.reconcile()
        (entry,) = committer.commit(lambda: [NewEntry(late, began_ms)])
    times = [each.time_ms for each in world.log]
    assert (entry.time_ms, times) == (began_ms + 1_000, sorted(times))


class Interrupted(MemoryLedger):
    """Another replica acts just before the first entry of a kind is appended."""

    kind, act = "", None

    def append(self, drafts, *, expected_size=None):
        if self.act is not None and drafts[0].kind == self.kind:
            act, self.act = self.act, None
            act()
        return super().append(drafts, expected_size=expected_size)


def test_devices_that_become_free_before_a_resolve_begins_preempt_nothing() -> None:
    """Between the decision to preempt and the resolve, another replica may end a run: the turn
    goes on, and the next one starts the reserved runs on what is free."""
    ledger = Interrupted()
    world = world_of(ledger=ledger, devices=4)
    world.apply(run("held", "b", gpus=4))
    world.turn()
    for name in ("first", "second"):  # with one alone there is no order to record
        reserve(world, run(name, "a", gpus=2))
    other = world.open()
    ledger.kind = "gpu.activate"
    ledger.act = lambda: other.verbs.act("Run", "held", "cancel", author=ADMIN)
    world.plane.reconcile()
    assert ledger.act is None, "the other replica was quicker"
    world.turn()
    assert phases(world) == {"held": "Failed", "first": "Running", "second": "Running"}
    assert outcomes(world) == []


def test_a_replica_sees_what_the_other_did() -> None:
    """Reads catch up first."""
    world = World()
    other = world.open()
    world.apply(budget("a"), node(), run("r"))
    other.reconcile()
    assert world.status("Run", "r")["phase"] == "Running"
    assert other.seq == world.plane.seq


def test_a_turn_reads_the_ledger_once_and_still_loses_no_race() -> None:
    """What is decided inside is decided again where another replica was quicker."""
    world = World()
    other = world.open()
    world.apply(budget("a"), node())
    reads = list[int]()
    entries = world.ledger.entries

    def counted(*given, **more):
        reads.append(given[0])
        return entries(*given, **more)

    world.ledger.entries = counted  # type: ignore[method-assign] - only this one is counted
    with world.plane.committer.current() as known:
        for i in range(5):
            world.apply(run(f"r{i}", gpus=1))
        assert (len(reads), len(known.runs)) == (1, 5)
        other.objects.apply(run("others", gpus=1), author=ADMIN)
        assert "others" not in known.runs
        world.apply(run("last", gpus=1))
        assert list(known.runs) == ["r0", "r1", "r2", "r3", "r4", "others", "last"]


def test_a_clock_that_is_set_back_ends_no_lease_before_its_start() -> None:
    """Time stands still until the clock has caught up."""
    world = World()
    world.apply(budget("a"), node())
    world.now_ms += 5 * HOUR
    world.apply(run("r"))
    world.turn()
    world.now_ms -= 4 * HOUR
    world.plane.verbs.act("Run", "r", "cancel", author=ADMIN)
    assert world.projection.closed[-1].used_ms == 0


def test_checkpoints_are_taken_and_begun_from() -> None:
    """Every so many entries; what cannot be read is passed over, the log says the same."""
    world = World(config=Config(checkpoint_every=10))
    world.apply(budget("a", "a", envelope(maxGPUHours=3, recurrence="daily")), node())
    for i in range(8):
        world.apply(run(f"r{i}", gpus=2, duration="2h"))
        world.turn(1)
    world.turn(20)
    world.apply(budget("b"), run("open", owner="b", gpus=2))
    world.turn()
    world.plane.committer.checkpoint()
    kept = world.ledger.snapshot_get(checkpoints.NAME)
    assert kept is not None
    assert 0 < kept.seq <= world.plane.seq
    before = state_of(world)
    world.plane = world.open()
    assert state_of(world) == before
    plain = zlib.decompress(kept.state)  # as earlier versions kept it
    for state in (plain, kept.state):
        assert checkpoints.export(checkpoints.restore(state)) == plain
    other = msgspec.json.decode(plain) | {"version": 99}
    for state in (b"rubbish", b"{", msgspec.json.encode(other)):
        world.ledger.snapshot_put(checkpoints.NAME, kept.seq, state)
        found = world.open().committer.projection
        assert found.seq == world.ledger.head().head.size
        assert found.leases == world.projection.leases


def test_the_order_of_budgets_does_not_matter() -> None:
    """The same objects applied in another order fund the same leases from the same envelopes."""

    def paid(order: list[int]) -> list[tuple[str, str, int]]:
        world = World()
        budgets = [
            budget("c", "a", envelope("x", 1), envelope("b", 1), parents=["p"]),
            budget("b", "s", envelope("y", 2), parents=["p"]),
            budget("a", "p", envelope("z", 4)),
        ]
        world.apply(*(budgets[i] for i in order), node(), run("r", gpus=6))
        world.turn()
        return [
            (row["budget"], row["envelope"], row["gpus"]) for row in world.plane.reports.leases()
        ]

    expected = [("c", "b", 1), ("c", "x", 1), ("b", "y", 2), ("a", "z", 2)]
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        assert paid(order) == expected


def test_a_control_plane_on_sqlite(tmp_path: Path) -> None:
    """The real ledger: the same entries, verified, and the same state after a restart."""
    ledger = SqliteLedger.open(tmp_path / "ledger.db", MemoryKeys())
    try:
        world = World(ledger)
        world.apply(budget("a"), node(), run("r", gpus=4, duration="2h"), run("s", gpus=6))
        world.turn()
        world.turn(3)
        assert world.status("Run", "r")["phase"] == "Completed"
        world.turn(1)
        assert world.headroom("a")["gpuHoursUsed"] == 8 + 6
        world.plane.committer.checkpoint()
        before = state_of(world)
        world.plane = world.open()
        assert state_of(world) == before
        assert ledger.verify().ok
        for entry in world.log:
            if entry.kind in ("gpu.fund", "gpu.place"):
                assert replay(ledger, entry).verdict is Verdict.SAME
    finally:
        ledger.close()


def test_without_an_executor_nothing_is_started_and_time_is_the_end() -> None:
    """A simulation has no processes; a command is then only a word."""
    world = World()
    plane = ControlPlane(world.ledger, None, lambda: world.now_ms)
    for each in (budget("a"), node(), run("r", command=["train"], duration="1h"), run("s")):
        plane.objects.apply(each, author=ADMIN)
    plane.reconcile()
    world.now_ms += 2 * HOUR
    plane.reconcile()
    assert plane.objects.get("Run", "r")["status"]["phase"] == "Completed"
    plane.verbs.act("Run", "s", "cancel", author=ADMIN)
    assert plane.reports.leases() == []
