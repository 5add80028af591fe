"""Everything that the control plane decides is recorded with its input, and replays to the byte."""

from collections import Counter

import pytest

from fairlead.engine.gpu.entries import TYPES
from fairlead.engine.gpu.fold import FOLDS
from fairlead.ledger.replay import replay
from fairlead.schema.replay import Verdict
from tests.engine.gpu.resolving import outcomes, phases, reserve, world_of
from tests.engine.gpu.test_protocol import BEACON
from tests.engine.gpu.test_recall import family
from tests.engine.gpu.worlds import ADMIN, World, budget, envelope, node, run

DECISIONS = ("gpu.fund", "gpu.place", "gpu.queue", "gpu.start", "gpu.deficit", "gpu.resolve.draw")


def replayed(world: World) -> Counter[str]:
    """How many decisions of each kind there are; every one is the same again."""
    decided = [entry for entry in world.log if entry.kind in DECISIONS]
    assert {replay(world.ledger, entry).verdict for entry in decided} == {Verdict.SAME}
    return Counter(entry.kind for entry in decided)


def test_a_reservation_with_a_lottery_replays_from_its_ledger() -> None:
    """Queue, funding, placement, deficit and draw; the outcome cites the deficit before it."""
    world = world_of()
    world.apply(*(run(f"r{i}", owner="bc"[i % 2], gpus=2) for i in range(4)))
    world.turn()
    reserve(world, run("winner", gpus=4))
    world.turn()
    assert phases(world)["winner"] == "Running"
    found = replayed(world)
    assert set(found) == set(DECISIONS)
    (outcome,) = outcomes(world)
    log = {entry.seq: entry for entry in world.ledger.entries(0)}
    case = log[outcome.seq + 1].body
    deficit = log[case["deficit"]]
    assert (deficit.kind, deficit.seq, deficit.reasons) == (
        "gpu.deficit",
        outcome.seq - 1,
        ("Resolvable",),
    )
    committed = log[outcome.seq].body
    output = deficit.body["output"]
    assert (output["deficit_gpus"], output["scope"]) == (4, committed["scope"])
    assert {row["run"] for row in output["candidates"]} == {"r0", "r1", "r2", "r3"}
    for event in world.plane.events.read(0, 1_000):
        if event["kind"] in ("gpu.deficit", "gpu.queue", "gpu.backfill"):
            assert (event["owner"], event["body"].keys() & {"input", "output"}) == (None, set())


@pytest.mark.parametrize("mode", ["off", "dry-run"])
def test_a_blocked_reservation_says_which_deficit_it_follows_from(mode: str) -> None:
    """Once, as long as the answer is the same."""
    world = world_of(resolver=mode)
    world.apply(run("old", owner="b", gpus=8))
    world.turn()
    reserve(world, run("new", gpus=4))
    for _ in range(3):
        world.turn(0.01)
    assert world.status("Reservation", "new-slot")["reason"] == "ResolverOff"
    assert replayed(world)["gpu.deficit"] == 1


def test_the_queue_is_recorded_where_it_decides() -> None:
    """Not on idle turns, not for a run alone, not again while the recorded order holds."""
    world = world_of(gpus=16)
    world.apply(run("alone", owner="a", gpus=8, duration="1h"))
    world.turn()
    assert replayed(world)["gpu.queue"] == 0, "there is nothing to order"
    world.apply(*(run(f"w{i}", owner="b", gpus=4, duration="1h") for i in range(4)))
    for _ in range(3):
        world.turn(0.01)
    assert replayed(world)["gpu.queue"] == 0, "no run could start, whatever the order"
    world.apply(node("n2", 1), run("small", owner="c", gpus=1, duration="9h"))
    world.turn(0.01)
    assert phases(world)["small"] == "Running"
    assert replayed(world)["gpu.queue"] == 0, "no run waits behind the last one"
    world.turn(1)
    running = {name for name, phase in phases(world).items() if phase == "Running"}
    assert running == {"small", "w0", "w1"}
    assert replayed(world)["gpu.queue"] == 1
    world.turn(1.1)
    assert replayed(world)["gpu.queue"] == 1, "the recorded order said who would be next"
    (decision,) = [entry for entry in world.log if entry.kind == "gpu.queue"]
    order = [row["run"] for row in decision.body["output"]["order"]]
    assert order == ["w0", "w1", "w2", "w3"]
    again = world.open().committer.projection
    assert again.orders == world.projection.orders == {"gpu.queue": tuple(order)}


def test_a_run_that_lacks_devices_says_which_decisions_it_follows_from() -> None:
    """Its funding and the placement that failed replay, and are recorded once per answer."""
    world = world_of(devices=3)
    shape = {"minTotalGPUs": 4, "stepGPUs": 2}
    world.apply(
        run("groups", gpus=6, groupGPUs=2), run("malleable", gpus=8, groupGPUs=8, malleable=shape)
    )
    for _ in range(3):
        world.turn(0.01)
    assert replayed(world) == {"gpu.fund": 2, "gpu.place": 2, "gpu.start": 1}
    for name, missing in (("groups", 4), ("malleable", 8)):
        found = world.plane.reports.explain("Run", name)
        assert found["object"]["status"]["reason"] == "NoDevices"
        assert found["cover"]["output"]["funded"]
        placement = found["placement"]["output"]
        assert (placement["placed"], placement["shortfall_gpus"]) == (False, missing)
    world.apply(node("n2", 1, location={"region": "west", "cluster": "a", "domain": "d1"}))
    world.turn(0.01)
    found = {"gpu.fund": 4, "gpu.place": 4, "gpu.start": 2}
    assert replayed(world) == found, "two groups fit now, not one; four of eight, not none"
    world.apply(budget("a", "a", envelope(concurrency=1)))
    world.turn(0.01)
    assert world.status("Run", "groups")["refusal"] is not None
    assert world.plane.reports.explain("Run", "groups")["placement"] is None


def test_a_drain_records_what_has_to_leave() -> None:
    """The node's deficit is decided after gangs with spares elsewhere were swapped."""
    world = world_of()
    world.apply(node("n2", 8), run("r", owner="b", gpus=8))
    world.turn()
    on = world.plane.reports.leases()[0]["slots"][0].split("#")[0]
    world.plane.verbs.act("Node", on, "drain", author=ADMIN)
    assert replayed(world)["gpu.deficit"] == 1
    assert outcomes(world)[-1].cause == "drain"


def test_every_kind_of_entry_is_folded_or_known_to_change_nothing() -> None:
    """A new kind has to be put into one of the two lists."""
    silent = {"charge.hold", "charge.void", "control.recovered"}
    silent |= {"gpu.deficit", "gpu.start", "gpu.resize", "gpu.restart", "gpu.refund"}
    silent |= {"gpu.reserve", "gpu.recall", "gpu.overdraw"}
    silent |= {"gpu.backfill", "gpu.used", "pod.mismatch"}
    assert {kind for kind, body in TYPES.items() if body not in FOLDS} == silent


def orders(world: World, kind: str) -> list[list[str]]:
    found = [entry for entry in world.log if entry.kind == kind]
    assert {replay(world.ledger, entry).verdict for entry in found} <= {Verdict.SAME}
    key = "reservation" if kind == "gpu.activate" else "run"
    return [[row[key] for row in entry.body["output"]["order"]] for entry in found]


def test_the_order_of_reservations_is_recorded_where_it_decides() -> None:
    """By time and name; with the first that starts or preempts before another, and not again."""
    world = world_of()
    reserve(world, run("late", gpus=4, duration="1h"), 0.2)
    reserve(world, run("b", gpus=4, duration="1h"), 0.1)
    reserve(world, run("a", gpus=4, duration="1h"), 0.1)
    assert orders(world, "gpu.activate") == [], "none is due"
    world.turn(0.3)
    assert orders(world, "gpu.activate") == [["a-slot", "b-slot", "late-slot"]]
    assert phases(world) == {"a": "Running", "b": "Running", "late": "Reserved"}
    size = len(world.log)
    world.turn(0.01)
    assert (len(world.log), len(orders(world, "gpu.activate"))) == (size, 1)
    world.turn(1)
    assert phases(world)["late"] == "Running"
    assert len(orders(world, "gpu.activate")) == 1, "there is none behind the last one"


def test_the_order_of_recalls_and_reclaims_is_recorded_where_it_decides() -> None:
    """Two runs of an owner wait, and the first one takes its funding and devices back from a
    guest: by the order that is recorded, once each."""
    world = family()
    world.apply(run("guest", "b", 8))
    world.turn()
    world.apply(run("z", "a", 6), run("a", "a", 6))
    for _ in range(3):
        world.turn(0.01)
    assert phases(world) == {"guest": "Pending", "z": "Running", "a": "Pending"}
    found = [entry for entry in world.log if entry.kind == "gpu.rank"]
    assert {replay(world.ledger, entry).verdict for entry in found} == {Verdict.SAME}
    said = [(entry.body["output"]["cause"], entry.body["output"]["order"]) for entry in found]
    assert [cause for cause, _ in said] == ["recall", "reclaim"]
    assert [[row["run"] for row in order] for _, order in said] == [["z", "a"], ["z", "a"]]
    (recall,) = [entry for entry in world.log if entry.kind == "gpu.recall"]
    assert recall.seq == found[0].seq + 1
    unfunded = [entry for entry in world.log if entry.kind == "lease.unfunded"]
    assert {entry.body["decision"] for entry in unfunded} == {recall.seq}
    size = len(world.log)
    world.turn(0.01)
    assert len(world.log) == size


def test_the_order_of_unfunded_starts_is_recorded_where_it_decides() -> None:
    """Three runs wait for idle devices that two of them can have: one order, and a restart knows
    it."""
    world = world_of(teams="b")
    world.apply(budget("a", "a", envelope(concurrency=1)))
    idle = {"funding": {"allowUnfunded": True}, "duration": "1h"}
    world.apply(*(run(name, "a", 4, **idle) for name in "zyx"))
    world.turn()
    assert phases(world) == {"z": "Running", "y": "Running", "x": "Pending"}
    assert orders(world, "gpu.rank") == [["z", "y", "x"]]
    assert world.projection.orders["gpu.rank.overdraw"] == ("z", "y", "x")
    world.plane = world.open()
    world.turn(1.1)
    assert phases(world)["x"] == "Running"
    assert len(orders(world, "gpu.rank")) == 1, "there is none behind the last one"


def test_a_reservation_that_may_not_preempt_again_says_so_by_a_decision() -> None:
    """After a void the recorded activation holds how the outcome ended, and answers no."""
    world = world_of(beacon=BEACON)
    world.apply(run("old", owner="b", gpus=8))
    world.turn()
    reserve(world, run("new", gpus=4))
    world.turn()
    (outcome,) = outcomes(world)
    world.plane.outcomes.void(outcome.seq, "not today", author=ADMIN)
    world.turn(0.01)
    assert world.status("Reservation", "new-slot")["reason"] == "OutcomeVoided"
    (decision,) = [entry for entry in world.log if entry.kind == "gpu.activate"]
    (row,) = decision.body["output"]["order"]
    assert (row["preempts"], row["reason"]) == (False, "OutcomeVoided")
    (asked,) = decision.body["input"]["reservations"]
    assert asked["last"] == {
        "outcome": outcome.seq,
        "applied": False,
        "by_operator": True,
        "changed": False,
    }
    assert replay(world.ledger, decision).verdict is Verdict.SAME


def test_the_order_of_growth_is_recorded_where_it_decides() -> None:
    """Two shrunk runs and room for one: the order that chose is in the record, once."""
    world = world_of(devices=8)
    shape = {"groupGPUs": 2, "malleable": {"minTotalGPUs": 2, "stepGPUs": 2}, "duration": "9h"}
    world.apply(*(run(f"e{i}", owner="b", gpus=4, **shape) for i in range(2)))
    world.turn()
    reserve(world, run("new", gpus=4, duration="1h"))
    world.turn()
    world.turn(11 / 3600)
    assert phases(world) == {"e0": "Shrunk", "e1": "Shrunk", "new": "Running"}
    assert orders(world, "gpu.grow") == [], "there is no room"
    world.turn(1)
    assert set(phases(world).values()) == {"Running", "Completed"}
    assert orders(world, "gpu.grow") == [["e0", "e1"]]
