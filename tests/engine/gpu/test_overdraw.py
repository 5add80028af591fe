"""Idle devices are usable over budget: opt-in, counted as overdraft, the first to go."""

from typing import Any

from fairlead.cli.gpu.render import wait_text
from fairlead.ledger.replay import replay
from fairlead.schema.replay import Verdict
from tests.engine.gpu.resolving import phases, world_of
from tests.engine.gpu.worlds import ADMIN, World, envelope, node, run
from tests.engine.gpu.worlds import budget as budget_of

LENGTHS = (("long", 9), ("short", 2))
IDLE: dict[str, Any] = {"funding": {"allowUnfunded": True}}


def small(**config: Any) -> World:
    """Eight devices; `a` has 2 of them paid, `b` all."""
    world = world_of(teams="b", **config)
    world.apply(budget_of("a", "a", envelope(concurrency=2)))
    return world


def test_only_who_asks_for_it_runs_on_idle_devices() -> None:
    world = small()
    world.apply(run("paid", "a", 2), run("plain", "a", 2), run("idle", "a", 2, **IDLE))
    world.turn()
    assert phases(world) == {"paid": "Running", "plain": "Pending", "idle": "Running"}
    status = world.status("Run", "idle")
    assert (status["funded"], status["reason"], status["width"]) == (False, "Unfunded", 2)
    assert "overdraft of a/west, the first to be preempted" in status["message"]
    assert world.status("Run", "paid")["funded"]
    world.turn(1)
    room = world.headroom("a")
    assert (room["overdraftGPUHours"], room["concurrencyUsed"], room["concurrency"]) == (2, 4, 0)
    (decision,) = [entry for entry in world.log if entry.kind == "gpu.overdraw"]
    assert replay(world.ledger, decision).verdict is Verdict.SAME
    size = len(world.log)
    world.turn(0.01)
    assert len(world.log) == size


def test_a_plan_says_that_it_starts_unfunded() -> None:
    world = small()
    world.apply(run("paid", "a", 2))
    world.turn()

    def planned(**spec: Any) -> Any:
        return world.plane.objects.plan(run("idle", "a", 6, **spec), author=ADMIN)["overdraft"]

    assert planned() is None, "only where it is allowed"
    assert planned(**IDLE) == {"budget": "a", "envelope": "west"}
    world.apply(run("theirs", "b", 4))
    world.turn()
    assert planned(**IDLE) is None, "2 are idle"


def test_while_no_gpu_is_idle_it_waits_for_one_and_not_for_funding() -> None:
    """Nobody has to raise a budget for it: it needs no attention. A run of an owner without an
    envelope never starts so."""
    world = small()
    world.apply(run("theirs", "b", 8), run("plain", "a", 3))
    world.apply(run("idle", "a", 3, **IDLE), run("stray", "c", 3, **IDLE))
    world.turn()
    world.turn(0.01)
    overview = world.plane.overview
    assert overview.counts().queue.not_funded == 2
    lines = [row.text.split()[1] for row in overview.attention() if row.kind == "run"]
    assert sorted(lines) == ["plain", "stray"]
    said = {name: world.status("Run", name)["message"] for name in ("plain", "idle", "stray")}
    idle = "waits for idle GPUs, which it may use without funding; "
    assert said["idle"] == idle + said["plain"]
    assert idle not in said["stray"]
    shown = {row.name: row.message for row in world.plane.listings.queue(10)[0].items}
    assert shown["idle"] == idle + shown["plain"]
    line = wait_text(world.plane.objects.get("Run", "idle"))
    assert line.startswith("waits for idle GPUs, which it may use without funding: 1 GPU short")


def test_without_an_open_envelope_of_its_own_a_run_waits_for_funding() -> None:
    """An overdraft is of an own envelope: what the family has, or one whose window is over, starts
    no run on idle GPUs. It was said to wait for them, and left out of what needs attention."""
    world = world_of(devices=8, teams="")
    family = envelope(concurrency=2, sharing="family")
    window = {"start": "2025-01-01T00:00:00Z", "end": "2025-06-01T00:00:00Z"}
    other = envelope("other", flavor="L4")
    world.apply(budget_of("a", "a", family, parents=["lab"]))
    world.apply(budget_of("kin", "kin", other, parents=["lab"]))
    world.apply(budget_of("past", "past", envelope(window=window), parents=["lab"]))
    world.apply(*(run(owner, owner, 3, **IDLE) for owner in ("kin", "past")))
    world.turn()
    world.turn(0.01)
    assert phases(world) == {"kin": "Pending", "past": "Pending"}
    for owner in ("kin", "past"):
        status = world.status("Run", owner)
        assert status["refusal"]["code"] != "NoEnvelope"
        assert not status["message"].startswith("waits for idle GPUs"), owner
    assert world.plane.overview.counts().queue.not_funded == 2
    assert [row.kind for row in world.plane.overview.attention()] == ["run", "run"]


def test_it_is_funded_as_soon_as_there_is_room() -> None:
    world = small()
    world.apply(run("paid", "a", 2), run("idle", "a", 2, **IDLE))
    world.turn()
    world.plane.verbs.act("Run", "paid", "cancel", author=ADMIN)
    world.turn(0.01)
    world.turn(0.01)
    assert world.status("Run", "idle")["funded"]


def test_it_yields_to_a_funded_run_and_waits_behind_one() -> None:
    world = small()
    world.apply(run("paid", "a", 2), run("idle", "a", 6, **IDLE))
    world.turn()
    assert phases(world)["idle"] == "Running"
    world.apply(run("theirs", "b", 4))
    world.turn()
    assert phases(world) == {"paid": "Running", "idle": "Pending", "theirs": "Running"}
    world.apply(run("more", "b", 4), run("small", "a", 1, **IDLE))
    world.turn()
    assert phases(world)["more"] == "Pending", "2 are free"
    assert phases(world)["small"] == "Pending", "a funded run waits for what is free"


def test_without_an_envelope_of_the_flavor_it_waits() -> None:
    world = small()
    world.apply(run("stranger", "z", 1, **IDLE))
    world.turn()
    assert world.status("Run", "stranger")["reason"] == "NoEnvelope"


def test_a_malleable_run_starts_at_its_minimum_where_more_does_not_fit() -> None:
    world = small()
    elastic = {"malleable": {"minTotalGPUs": 4, "stepGPUs": 2}, "groupGPUs": 2, "sparesPerGroup": 1}
    world.apply(run("paid", "a", 2), run("idle", "a", 8, duration="2h", **IDLE, **elastic))
    world.turn()
    status = world.status("Run", "idle")
    assert (status["width"], status["spares"], status["funded"]) == (4, 2, False)
    world.turn(2.1)
    assert phases(world)["idle"] == "Completed"


def test_overdraft_is_not_funded_before_an_older_run_of_its_owner() -> None:
    """Room that comes free pays for the run that has waited for it, and not for the overdraft."""
    world = small()
    world.apply(run("paid", "a", 2), run("plain", "a", 2), run("idle", "a", 2, **IDLE))
    world.apply(run("one", "a", 1, **IDLE))
    world.turn()
    world.plane.verbs.act("Run", "paid", "cancel", author=ADMIN)
    world.turn(0.01)
    world.turn(0.01)
    assert phases(world)["plain"] == "Running"
    assert world.status("Run", "plain")["funded"]
    assert not world.status("Run", "idle")["funded"]
    assert not world.status("Run", "one")["funded"]
    world.plane.verbs.act("Run", "plain", "cancel", author=ADMIN)
    world.turn(0.01)
    world.turn(0.01)
    assert world.status("Run", "idle")["funded"]
    decided = [entry for entry in world.log if entry.kind == "gpu.refund"]
    assert [replay(world.ledger, entry).verdict for entry in decided] == [Verdict.SAME]


def test_an_older_run_that_lacks_devices_keeps_its_envelope_too() -> None:
    """Funded and without devices: overdraft may not take its funding while it waits."""
    world = small(resolver="off")
    world.apply(node("n2", 2, location={"region": "west"}), run("theirs", "b", 6))
    world.apply(run("paid", "a", 2), run("plain", "a", 2), run("idle", "a", 2, **IDLE))
    world.turn()
    assert {lease.nodes for lease in world.projection.runs["paid"].leases.values()} == {("n2",)}
    world.plane.verbs.act("Node", "n2", "cordon", author=ADMIN)
    world.plane.verbs.act("Run", "paid", "cancel", author=ADMIN)
    world.turn(0.01)
    world.turn(0.01)
    assert world.status("Run", "plain")["reason"] == "NoDevices"
    assert not world.status("Run", "idle")["funded"]


def test_an_older_run_that_no_envelope_could_pay_for_blocks_nothing() -> None:
    world = small()
    world.apply(run("paid", "a", 2), run("never", "a", 8), run("idle", "a", 2, **IDLE))
    world.turn()
    world.plane.verbs.act("Run", "paid", "cancel", author=ADMIN)
    world.turn(0.01)
    world.turn(0.01)
    assert world.status("Run", "idle")["funded"]


def test_an_owner_may_put_its_overdraft_first_by_priority() -> None:
    world = small()
    world.apply(run("paid", "a", 2), run("plain", "a", 2), run("idle", "a", 2, priority=5, **IDLE))
    world.turn()
    world.plane.verbs.act("Run", "paid", "cancel", author=ADMIN)
    world.turn(0.01)
    world.turn(0.01)
    assert world.status("Run", "idle")["funded"]


def test_overdraft_leaves_what_a_run_needs_that_waits_for_its_envelope() -> None:
    """A head that lacks its envelope was promised a start: idle devices are lent until then."""
    world = small(resolver="off")
    world.apply(run("theirs", "b", 2, duration="4h"), run("paid", "a", 2, duration="1h"))
    world.turn()
    world.apply(budget_of("b", "b", envelope(concurrency=6)))
    world.apply(run("wide", "b", 6, duration="1h"))
    world.turn()
    assert world.status("Run", "wide")["reason"] != "NoDevices", "it lacks its envelope"
    world.apply(*(run(name, "a", 4, duration=f"{hours}h", **IDLE) for name, hours in LENGTHS))
    world.turn()
    found = phases(world)
    assert (found["wide"], found["long"], found["short"]) == ("Pending", "Pending", "Running")
    (entry,) = [e for e in world.log if e.kind == "gpu.backfill" and e.body["run"] == "short"]
    assert replay(world.ledger, entry).verdict is Verdict.SAME
