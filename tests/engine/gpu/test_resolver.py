"""Reservations and resolves on the control plane, without processes: every cut is at once."""

from functools import partial

import pytest

from fairlead.core import gpu
from fairlead.engine.gpu import Refused
from fairlead.engine.gpu.state import OutcomeStage
from fairlead.schema.border import BadInput
from tests.engine.gpu.resolving import closed, outcomes, phases, reservation, reserve, world_of
from tests.engine.gpu.worlds import ADMIN, World, budget, envelope, manifest, node, run, state_of


def test_a_reservation_that_fits_starts_at_its_time() -> None:
    """Not before it, however much room there is; nobody gives way."""
    world = world_of()
    reserve(world, run("r", gpus=4), hours=2)
    world.turn(1)
    assert phases(world) == {"r": "Reserved"}
    status = world.status("Reservation", "r-slot")
    assert (status["state"], status["reason"]) == ("Pending", "NotDue")
    world.turn(1)
    assert phases(world) == {"r": "Running"}
    status = world.status("Reservation", "r-slot")
    assert (status["state"], status["activated"]) == ("Active", "2026-01-01T02:00:00Z")
    assert outcomes(world) == []
    world.plane.verbs.act("Run", "r", "cancel", author=ADMIN)
    world.turn()
    assert world.status("Reservation", "r-slot")["state"] == "Released"


def test_spares_then_steps_then_a_draw_make_room_for_a_reservation() -> None:
    """The whole story at once: every closure cites the outcome, and the winner has its devices."""
    world = world_of(devices=16, gpus=16)
    world.apply(
        run("spare", owner="b", gpus=2, groupGPUs=2, sparesPerGroup=2),
        run(
            "elastic", owner="b", gpus=6, groupGPUs=2, malleable={"minTotalGPUs": 2, "stepGPUs": 2}
        ),
        run("gang-1", owner="c", gpus=3),
        run("gang-2", owner="c", gpus=3),
    )
    world.turn()
    assert set(phases(world).values()) == {"Running"}
    reserve(world, run("big", gpus=8), hours=1)
    world.turn(1)
    (outcome,) = outcomes(world)
    assert outcome.stage is OutcomeStage.APPLIED
    assert outcome.deficit_gpus == 8
    found = phases(world)
    assert found["big"] == "Running"
    assert world.status("Reservation", "big-slot")["outcome"] == outcome.seq
    assert world.status("Run", "spare")["spares"] == 0
    preempted = [name for name, phase in found.items() if phase == "Pending"]
    assert len(preempted) == 1
    said = [entry.body for entry in world.log if entry.body.get("reason") == "Preempted"]
    assert [(body["run"], body["outcome"]) for body in said] == [(preempted[0], outcome.seq)]
    assert world.status("Run", preempted[0])["lastOutcome"] == outcome.seq
    assert {cited for _, cited in closed(world).values()} == {outcome.seq}
    kinds = sorted(reason for reason, _ in closed(world).values())
    assert "RandomPreempt" in kinds
    assert set(kinds) <= {"DropSpare", "Shrink", "RandomPreempt"}
    applied = world.plane.reports.metrics()
    assert applied["resolver_invocations_total"] == [({}, 1)]
    assert applied["resolver_lottery_draws_total"] == [({}, 1)]
    assert sum(value for _, value in applied["resolver_spares_dropped_total"]) == kinds.count(
        "DropSpare"
    )
    assert sum(value for _, value in applied["resolver_shrinks_total"]) == kinds.count("Shrink")
    taken = [slot for row in world.plane.reports.leases() for slot in row["slots"]]
    assert len(taken) == len(set(taken))
    again = world.open()
    assert again.committer.projection.leases == world.projection.leases


def test_the_order_of_entries_is_the_protocols() -> None:
    """Scope and secrets long before, then commit, draw, closures, start, applied."""
    world = world_of()
    world.apply(run("old", owner="b", gpus=8))
    world.turn()
    reserve(world, run("new", gpus=4))
    world.turn()
    kinds = world.kinds()
    wanted = [
        "gpu.resolve.scope",
        "owner.pseudonym",
        "gpu.resolve.commit",
        "gpu.resolve.case",
        "gpu.resolve.draw",
        "run.cut",
        "lease.close",
        "gpu.resolve.applied",
    ]
    places = [kinds.index(kind) for kind in wanted]
    assert places == sorted(places)
    budgets = [entry.seq for entry in world.log if entry.body.get("kind") == "Budget"]
    secrets = [entry.seq for entry in world.log if entry.kind == "owner.pseudonym"]
    assert [seq < budget for seq, budget in zip(secrets, budgets, strict=True)] == [True] * 3
    assert phases(world) == {"old": "Pending", "new": "Running"}
    before = len(world.log)
    for _ in range(3):
        world.turn(0.1)
    assert len(world.log) == before, "who gave way waits, and cuts nobody"


def test_a_preempted_run_starts_again_when_there_is_room() -> None:
    """And never by itself against who took its place."""
    world = world_of()
    world.apply(run("old", owner="b", gpus=8))
    world.turn()
    reserve(world, run("new", gpus=4, duration="2h"))
    world.turn()
    world.turn(1)
    assert phases(world)["old"] == "Pending"
    world.turn(1.5)
    assert phases(world) == {"old": "Running", "new": "Completed"}
    assert len(outcomes(world)) == 1


def test_two_reservations_do_not_take_turns_in_cutting_each_other() -> None:
    """The one that gave way is released: its run waits like any other."""
    world = world_of(teams="ab")
    reserve(world, run("first", owner="a", gpus=8))
    world.turn()
    assert phases(world)["first"] == "Running"
    reserve(world, run("second", owner="b", gpus=8), hours=1)
    world.turn(1)
    assert phases(world) == {"first": "Pending", "second": "Running"}
    status = world.status("Reservation", "first-slot")
    assert (status["state"], status["reason"]) == ("Released", "Preempted")
    for _ in range(3):
        world.turn(0.1)
    assert len(outcomes(world)) == 1


def test_a_budget_shortfall_never_draws() -> None:
    """Blocked with the refusal and what is short; started when the budget allows it."""
    world = world_of(gpus=4)
    world.apply(run("old", owner="b", gpus=4), run("older", owner="c", gpus=4))
    world.turn()
    reserve(world, run("big", gpus=6))
    world.turn()
    status = world.status("Reservation", "big-slot")
    assert (status["state"], status["reason"], status["shortfallGPUs"]) == (
        "Blocked",
        "ConcurrencyCapExceeded",
        2,
    )
    size = len(world.log)
    world.turn(0.1)
    assert len(world.log) == size, "the same answer is not said again"
    assert outcomes(world) == []
    world.apply(budget("a", "a", envelope(concurrency=6)))
    world.turn()
    assert phases(world)["big"] == "Running"
    assert len(outcomes(world)) == 1


def test_a_blocked_reservation_counts_as_people_do() -> None:
    """The decision's own words, which keep their bytes, say `1 GPUs`."""
    world = world_of(gpus=4)
    reserve(world, run("big", gpus=5))
    world.turn()
    message = world.status("Reservation", "big-slot")["message"]
    assert message.startswith("1 GPU short: too many GPUs at once"), message


def test_nobody_is_hurt_when_everything_would_not_be_enough() -> None:
    """Blocked with the shortfall; tried again when the world changes."""
    world = world_of(gpus=20)
    world.apply(run("old", owner="b", gpus=8))
    world.turn()
    reserve(world, run("huge", gpus=12))
    world.turn()
    status = world.status("Reservation", "huge-slot")
    assert (status["state"], status["reason"], status["shortfallGPUs"]) == (
        "Blocked",
        "NotEnough",
        4,
    )
    assert phases(world)["old"] == "Running"
    assert "gpu.resolve.commit" not in world.kinds()
    world.apply(node("n2", 4, location={"region": "west", "cluster": "a", "domain": "d1"}))
    world.turn()
    assert phases(world) == {"old": "Pending", "huge": "Running"}


@pytest.mark.parametrize("mode", ["off", "dry-run"])
def test_a_resolver_that_is_not_enforced_cuts_nobody(mode: str) -> None:
    """It is said why the reservation waits; the forecast says who would give way."""
    world = world_of(resolver=mode)
    world.apply(run("old", owner="b", gpus=8))
    world.turn()
    reserve(world, run("new", gpus=4))
    world.turn()
    status = world.status("Reservation", "new-slot")
    assert (status["state"], status["reason"], status["shortfallGPUs"]) == (
        "Blocked",
        "ResolverOff",
        4,
    )
    other = [run("next", gpus=4), reservation("next-slot", "next", 5)]
    size = len(world.log)
    shown = world.plane.objects.apply_all(other, author=ADMIN, dry_run=True)[1].preview["forecast"]
    assert (shown["deficitGPUs"], [row["run"] for row in shown["atRisk"]]) == (4, ["old"])
    assert (len(world.log), world.plane.objects.get("Run", "next")) == (size, None)
    found = world.plane.resolver.preview("Reservation", "new-slot")
    assert found["atRisk"] == [
        {
            "run": "old",
            "owner": "b",
            "tier": "funded",
            "oneIn": 1,
            "chance": 1.0,
            "chanceError": 0.0,
            "certain": False,
        }
    ]
    assert (found["deficitGPUs"], found["scope"]["location"]["domain"]) == (4, "d1")
    assert phases(world)["old"] == "Running"
    assert world.plane.resolver.resolve(flavor="H100", gpus=2, author=ADMIN)["outcome"] is None


def test_one_resolve_for_one_activation() -> None:
    """When what was freed is lost before the start, nobody is cut a second time."""
    world = world_of()
    world.apply(run("old", owner="b", gpus=8, command=["train"]), run("other", owner="c", gpus=8))
    world.turn()
    reserve(world, run("new", gpus=8))
    world.turn()
    (outcome,) = outcomes(world)
    assert outcome.stage is OutcomeStage.DRAWN
    world.plane.verbs.act("Node", "n1", "cordon", author=ADMIN)
    world.executor.end("old", world.now_ms + 5, signal=15)
    world.turn(0.1)
    assert outcomes(world)[0].stage is OutcomeStage.APPLIED
    assert phases(world)["new"] == "Reserved"
    world.turn(0.1)
    status = world.status("Reservation", "new-slot")
    assert (status["state"], status["reason"]) == ("Blocked", "NoDevices")
    world.plane.verbs.act("Node", "n1", "uncordon", author=ADMIN)
    world.turn(0.1)
    assert phases(world)["new"] == "Running"
    assert len(outcomes(world)) == 1


def test_by_hand_for_a_scope() -> None:
    """So many GPUs in a place; nobody is placed; not for tenants."""
    world = world_of()
    world.apply(run("x", owner="b", gpus=4), run("y", owner="c", gpus=4))
    world.turn()
    shown = world.plane.resolver.resolve(
        flavor="H100", gpus=4, location={"domain": "d1"}, author=ADMIN, dry_run=True
    )
    assert sorted(row["oneIn"] for row in shown["forecast"]["atRisk"]) == [2, 2]
    done = world.plane.resolver.resolve(
        flavor="H100", gpus=4, location={"domain": "d1"}, author=ADMIN
    )
    (outcome,) = outcomes(world)
    assert (done["outcome"], outcome.stage) == (outcome.seq, OutcomeStage.APPLIED)
    assert sorted(phases(world).values()) == ["Pending", "Running"]
    with pytest.raises(Refused, match="would be missing"):
        world.plane.resolver.resolve(flavor="H100", gpus=40, author=ADMIN)
    for flavor, place, problem in (
        ("H200", {}, "flavor: no node has 'H200'; there are H100"),
        ("H100", {"domain": "d9"}, "location: no node with H100 is in domain=d9"),
    ):
        with pytest.raises(BadInput, match=problem):
            world.plane.resolver.resolve(
                flavor=flavor, gpus=1, location=place, author=ADMIN, dry_run=True
            )


def test_a_tightened_budget_cuts_under_its_cap_only() -> None:
    """Lowering demotes; `--cap` ends what that cap does not pay for, and nobody else."""
    world = world_of(devices=16)
    world.apply(
        run("mine-1", owner="b", gpus=4),
        run("mine-2", owner="b", gpus=4),
        run("other", owner="c", gpus=8),
    )
    world.turn()
    world.turn(1)
    world.apply(budget("b", "b", envelope(concurrency=4)))
    assert set(phases(world).values()) == {"Running"}
    shown = world.plane.resolver.resolve_cap("b", "west", author=ADMIN, dry_run=True)
    assert shown["forecast"]["deficitGPUs"] == 4
    world.plane.resolver.resolve_cap("b", "west", author=ADMIN)
    found = phases(world)
    assert found["other"] == "Running"
    assert sorted([found["mine-1"], found["mine-2"]]) == ["Pending", "Running"]
    unfunded = [row for row in world.plane.reports.leases() if not row["funded"]]
    assert unfunded == []
    assert world.plane.resolver.resolve_cap("b", "west", author=ADMIN)["outcome"] is None


def test_headroom_and_concurrency_follow_every_cut() -> None:
    """What is cut is paid for no longer, what starts is; hours up to the cut stay charged."""
    world = world_of()
    world.apply(run("old", owner="b", gpus=8))
    world.turn()
    reserve(world, run("new", gpus=6), hours=2)
    world.turn(2)
    rows = {row["budget"]: row for row in world.plane.reports.budgets()}
    assert [rows[name]["used_gpus"] for name in "ab"] == [6, 0]
    assert [rows[name]["free_gpus"] for name in "ab"] == [2, 8]
    assert rows["b"]["used_gpu_hours"] == 16
    assert world.status("Run", "old")["leases"] == []


def test_a_drawn_run_loses_what_it_has_elsewhere_too() -> None:
    """A gang over two domains is whole or not running; only what is in scope counted."""
    world = world_of(devices=4)
    far = {"region": "west", "cluster": "a", "domain": "d2"}
    world.apply(node("n2", 4, location=far))
    world.apply(run("wide", owner="b", gpus=8))
    world.turn()
    near = {"region": "west", "cluster": "a", "domain": "d1"}
    reserve(world, run("new", gpus=4, location=near))
    world.turn()
    assert phases(world) == {"wide": "Pending", "new": "Running"}
    (outcome,) = outcomes(world)
    assert outcome.stage is OutcomeStage.APPLIED
    assert world.status("Node", "n2")["leased"] == 0


def divided() -> World:
    """A group for two devices in one domain, of which one is in its location."""
    world = world_of(devices=0, teams="b")
    for i in (1, 2):
        place = {"region": "west", "cluster": "a", "domain": "d2", "rack": f"r{i}"}
        world.apply(node(f"r{i}", 1, location=place))
    world.apply(budget("a", "a", envelope(concurrency=2, location={"rack": "r2"})))
    world.apply(run("x", owner="b"), run("y", owner="b"))
    world.turn()
    reserve(world, run("big", gpus=2, groupGPUs=2, location={"rack": "r1"}))
    world.turn()
    return world


def test_no_draw_is_made_for_a_group_that_would_have_to_be_divided() -> None:
    world = divided()
    assert outcomes(world) == []
    status = world.status("Reservation", "big-slot")
    assert (status["state"], status["reason"]) == ("Blocked", "NotEnough")
    assert phases(world) == {"x": "Running", "y": "Running", "big": "Reserved"}


def test_a_draw_that_helps_nobody_is_given_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As former versions found the deficit: disclosed, and not tried again."""
    monkeypatch.setattr(gpu, "find_deficit", partial(gpu.find_deficit, apart=False))
    world = divided()
    (outcome,) = outcomes(world)
    assert (outcome.stage, outcome.reason) == (
        OutcomeStage.VOID,
        "the run that it was for would not fit into what is freed",
    )
    world.turn(0.01)
    status = world.status("Reservation", "big-slot")
    assert (status["state"], status["reason"]) == ("Blocked", "OutcomeVoided")
    size = len(world.log)
    for _ in range(3):
        world.turn(0.01)
    assert len(world.log) == size, "the same world would give it up again"
    for _ in range(2):
        world.plane = world.open()
        world.turn(0.01)
    assert len(outcomes(world)) == 1, "a restart is no way to draw again"
    assert phases(world) == {"x": "Running", "y": "Running", "big": "Reserved"}


def test_a_released_reservation_is_no_obstacle_to_the_next() -> None:
    """For another run of the same name."""
    world = world_of()
    reserve(world, run("r", duration="1h"))
    world.turn()
    world.turn(2)
    assert world.status("Reservation", "r-slot")["state"] == "Released"
    world.plane.objects.delete("Run", "r", author=ADMIN)
    assert world.plane.reports.explain("Reservation", "r-slot")["run"] is None
    world.apply(run("r"), reservation("again", "r", 9))
    world.plane.objects.delete("Reservation", "r-slot", author=ADMIN)
    world.turn()
    assert phases(world) == {"r": "Reserved"}


def test_nominated_runs_go_first() -> None:
    """An owner offers its own; only they are drawn from, whatever the chance."""
    world = world_of(devices=12)
    world.apply(
        run("keep", owner="b", gpus=4),
        run("offer", owner="b", gpus=4),
        run("other", owner="c", gpus=4),
    )
    world.turn()
    world.plane.verbs.act("Run", "offer", "nominate", author=ADMIN)
    reserve(world, run("new", gpus=4))
    world.turn()
    assert phases(world) == {
        "keep": "Running",
        "offer": "Pending",
        "other": "Running",
        "new": "Running",
    }
    world.plane.verbs.act("Run", "keep", "nominate", author=ADMIN)
    world.plane.verbs.act("Run", "keep", "withdraw", author=ADMIN)
    assert world.status("Run", "keep")["nominated"] is False


def test_a_run_may_be_started_by_resolving_by_those_who_may() -> None:
    """An admin, or an owner that was allowed to; nobody else."""
    from fairlead.engine.gpu import Author, Forbidden  # noqa: PLC0415 - only here

    world = world_of(may_resolve=frozenset({"a"}))
    world.apply(run("old", owner="b", gpus=8))
    world.turn()
    world.apply(run("new", owner="a", gpus=4), run("no", owner="c", gpus=4))
    world.turn()
    carol, alice = Author("carol", frozenset({"c"})), Author("alice", frozenset({"a"}))
    for dry_run in (True, False):
        with pytest.raises(Forbidden):
            world.plane.verbs.act("Run", "no", "resolve", author=carol, dry_run=dry_run)
    shown = world.plane.verbs.act("Run", "new", "resolve", author=alice, dry_run=True)
    assert [row["run"] for row in shown.preview["forecast"]["atRisk"]] == ["old"]
    assert outcomes(world) == []
    world.plane.verbs.act("Run", "new", "resolve", author=alice)
    world.turn()
    assert phases(world)["new"] == "Running"
    with pytest.raises(Refused, match="not Pending"):
        world.plane.verbs.act("Run", "new", "resolve", author=ADMIN)


def test_draining_goes_through_the_resolver() -> None:
    """Spares elsewhere take over, elastic runs shrink, the rest gives way; all cite the outcome."""
    world = world_of(devices=8)
    place = {"region": "west", "cluster": "a", "domain": "d1"}
    world.apply(node("n2", 4, location=place))
    world.apply(
        run("swaps", owner="b", gpus=2, groupGPUs=2, sparesPerGroup=2),
        run("gang", owner="c", gpus=4),
    )
    world.turn()
    on = {
        row["run"]: row["slots"] for row in world.plane.reports.leases() if row["role"] == "Active"
    }
    target = on["gang"][0].split("#")[0]
    size = len(world.log)
    shown = world.plane.verbs.act("Node", target, "drain", author=ADMIN, dry_run=True).preview
    assert (shown["runs"], len(world.log)) == ([], size)
    assert {row["run"]: row["oneIn"] for row in shown["forecast"]["atRisk"]}["gang"] == 1
    world.plane.verbs.act("Node", target, "drain", author=ADMIN)
    for row in world.plane.reports.leases():
        assert all(not slot.startswith(f"{target}#") for slot in row["slots"])
    (outcome,) = outcomes(world)
    assert (outcome.cause, outcome.node) == ("drain", target)
    reasons = {(reason, cited) for reason, cited in closed(world).values()}
    assert ("RandomPreempt", outcome.seq) in reasons
    world.turn(0.1)
    found = world.plane.reports.explain("Run", "gang")
    said = f"node {target} was drained (outcome {outcome.seq}); it starts again when there is room"
    assert (found["left"], found["cut"]["drained"]) == (said, target)


def test_a_drain_after_an_outcome_is_not_taken_for_it() -> None:
    """A run that a lottery selected once, and whose node is drained later, left for the drain."""
    world = world_of(resolver="enforce")
    world.apply(run("mine", owner="a", gpus=8))
    world.turn()
    reserve(world, run("first", owner="b", gpus=8, duration="1h"))
    world.turn(0.1)
    assert world.plane.reports.explain("Run", "mine")["cut"]["drained"] is None
    world.turn(2)
    assert phases(world)["mine"] == "Running"
    world.reconfigure(resolver="dry-run")
    world.plane.verbs.act("Node", "n1", "drain", author=ADMIN)
    world.turn(0.1)
    found = world.plane.reports.explain("Run", "mine")
    assert (found["object"]["status"]["reason"], found["cut"]) == ("NoDevices", None)
    assert found["left"] == "node n1 was drained"
    assert found["cordoned"] == [{"node": "n1", "free": 8}]


def test_a_reservation_is_checked_against_the_other_objects() -> None:
    """A run that is there, waits, and has none; only its time can be changed."""
    from fairlead.engine.gpu import Author, Forbidden  # noqa: PLC0415 - only here
    from fairlead.schema.border import BadInput  # noqa: PLC0415 - only here

    world = world_of()
    with pytest.raises(BadInput, match=r"spec\.run: names no run"):
        world.apply(reservation("s", "nobody"))
    world.apply(run("r"))
    with pytest.raises(Forbidden):
        world.plane.objects.apply(reservation("s", "r"), author=Author("bob", frozenset({"b"})))
    world.apply(reservation("s", "r", 5))
    with pytest.raises(Refused, match="reserved already"):
        world.apply(reservation("t", "r"))
    with pytest.raises(Refused, match="reserved"):
        world.plane.objects.delete("Run", "r", author=ADMIN)
    world.apply(run("q"))
    with pytest.raises(BadInput, match=r"spec\.run: cannot be changed"):
        world.apply(reservation("s", "q"))
    world.apply(reservation("s", "r", 0))
    world.turn()
    assert phases(world) == {"r": "Running", "q": "Running"}
    with pytest.raises(Refused, match="activated already"):
        world.apply(reservation("s", "r", 9))
    with pytest.raises(Refused, match="is Running"):
        world.apply(reservation("t", "q"))
    world.plane.objects.delete("Reservation", "s", author=ADMIN)
    assert world.plane.objects.list("Reservation") == []
    assert phases(world)["r"] == "Running"


def test_a_deleted_reservation_lets_its_run_wait_like_any_other() -> None:
    """As soon as there is room."""
    world = world_of()
    reserve(world, run("r"), hours=9)
    world.turn()
    assert phases(world) == {"r": "Reserved"}
    world.plane.objects.delete("Reservation", "r-slot", author=ADMIN)
    world.turn()
    assert phases(world) == {"r": "Running"}


def test_a_winner_that_is_malleable_asks_for_its_minimum() -> None:
    """Nobody gives way for more than it takes to start."""
    world = world_of()
    world.apply(run("x", owner="b", gpus=4), run("y", owner="c", gpus=4))
    world.turn()
    reserve(world, run("new", gpus=8, groupGPUs=2, malleable={"minTotalGPUs": 2, "stepGPUs": 2}))
    world.turn()
    assert outcomes(world)[0].deficit_gpus == 2
    assert world.status("Run", "new")["width"] == 4, "and takes what became free"


def test_projections_are_equal_after_a_restart() -> None:
    """From a checkpoint and from the log."""
    world = world_of()
    world.apply(run("old", owner="b", gpus=8))
    world.turn()
    reserve(world, run("new", gpus=4), hours=1)
    world.turn(1)
    before = state_of(world)
    world.plane = world.open()
    assert state_of(world) == before
    world.plane.committer.checkpoint()
    before = state_of(world)
    world.plane = world.open()
    assert state_of(world) == before
    world.turn(1)


def test_groups_that_must_stay_together_get_a_place_whoever_is_drawn() -> None:
    """Four domains, small gangs everywhere: the winner's group fits, and in one domain."""
    for seed in range(6):
        world = World(config=world_of().config, chance=type(world_of().chance)(bytes([seed]) * 32))
        world.apply(*(budget(t, t, envelope(concurrency=32)) for t in "abc"))
        for i in range(4):
            place = {"region": "west", "cluster": "a", "domain": f"d{i}"}
            world.apply(node(f"n{i}", 4, location=place))
        world.apply(*(run(f"r{i}", owner="bc"[i % 2], gpus=1) for i in range(16)))
        world.turn()
        reserve(world, run("big", gpus=6, groupGPUs=3))
        world.turn()
        assert phases(world)["big"] == "Running", seed
        mine = [row for row in world.plane.reports.leases() if row["run"] == "big"]
        for group in {row["group"] for row in mine}:
            slots = [slot for row in mine if row["group"] == group for slot in row["slots"]]
            assert len({slot.split("#")[0] for slot in slots}) == 1
        freed = sum(1 for phase in phases(world).values() if phase == "Pending")
        assert freed <= 6 + 3 * 2


@pytest.mark.parametrize("flavor", ["virtual", "lent", "recalled"])
def test_a_flavor_may_have_any_name(flavor: str) -> None:
    """What is computed once per entry was kept under names that a flavor could have, too."""
    world = world_of()
    world.apply(
        budget("more", "a", envelope("e", flavor=flavor)),
        manifest("Node", "n2", {"flavor": flavor, "devices": 2}),
        run("first", gpus=2, flavor=flavor),
    )
    world.turn()
    reserve(world, run("next", gpus=2, flavor=flavor))
    world.turn(1 / 3600)
    assert phases(world) == {"first": "Pending", "next": "Running"}
