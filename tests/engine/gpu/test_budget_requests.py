"""A lowered budget with several caps that bind: one resolve for each, by name, then the place."""

from pathlib import Path
from typing import Any

import pytest

from fairlead.core.gpu import Scope
from fairlead.engine.gpu import Author, Forbidden, NotFound, Refused
from fairlead.engine.gpu.state import OutcomeStage
from fairlead.ledger.sqlite import SqliteLedger
from tests.engine.gpu.resolving import closed, outcomes, phases, world_of
from tests.engine.gpu.worlds import ADMIN, World, budget, envelope, run, state_of
from tests.ledger.memory import MemoryKeys

HERE = (Scope("H100", {"domain": "d1"}), 2)


def cap(name: str, gpus: int, *envelopes: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "flavor": "H100",
        "envelopes": list(envelopes),
        "maxConcurrency": gpus,
        **more,
    }


def lowered(*caps: dict[str, Any]) -> dict[str, Any]:
    two = (envelope("east", 8), envelope("west", 8))
    return budget("b", "b", *two, aggregateCaps=list(caps))


def crowd(world: World | None = None, **more: Any) -> World:
    """Four runs of four GPUs: two paid by `east`, two by `west`; and somebody else's."""
    world = world or world_of(devices=20, teams="c")
    world.apply(
        lowered(),
        *(run(f"r{i}", owner="b", gpus=4, **more) for i in range(4)),
        run("other", owner="c", gpus=4),
    )
    world.turn()
    assert set(phases(world).values()) == {"Running"}
    return world


def ended(world: World) -> list[str]:
    """Runs that gave way, in order."""
    return [
        entry.body["run"]
        for entry in world.log
        if entry.kind == "run.phase" and entry.body["reason"] == "Preempted"
    ]


def payers(world: World) -> dict[str, int]:
    """GPUs that each envelope of the budget pays for."""
    return {
        row["envelope"]: row["used_gpus"]
        for row in world.plane.reports.budgets()
        if row["budget"] == "b"
    }


def scopes(world: World) -> list[str]:
    """Which cap each outcome was for, as its owner may know it."""
    found = []
    for each in outcomes(world):
        told = world.plane.outcome_reports.get(each.seq, author=ADMIN)
        hidden = told["scope"]["cap"]
        found.append("place" if hidden is None else told["names"][hidden["name"]])
    return found


def test_every_cap_that_binds_by_name_and_each_on_what_the_one_before_left() -> None:
    """Two caps of one envelope each, and one over both that is met by then: two runs give way."""
    world = crowd()
    both = cap("z-both", 8, "east", "west")
    world.apply(lowered(both, cap("b-west", 4, "west"), cap("a-east", 4, "east")))
    done = world.plane.resolver.resolve_budget("b", author=ADMIN)
    assert scopes(world) == ["b/a-east", "b/b-west"]
    assert [(each["name"], each["state"]) for each in done["steps"]] == [
        ("a-east", "begun"),
        ("b-west", "begun"),
        ("z-both", "passed"),
    ]
    assert [each["outcome"] for each in done["steps"][:2]] == [each.seq for each in outcomes(world)]
    assert done["outcome"] == outcomes(world)[0].seq
    assert payers(world) == {"east": 4, "west": 4}, "and nobody for the third cap"
    assert len(ended(world)) == 2
    assert phases(world)["other"] == "Running"
    passed = [entry.body for entry in world.log if entry.kind == "gpu.resolve.passed"]
    assert [(body["name"], body["reason"]) for body in passed] == [("z-both", "WithinCap")]
    assert world.projection.resolver.requests == {}
    world.turn()
    assert [row for row in world.plane.reports.leases() if not row["funded"]] == []
    size = len(world.log)
    assert world.plane.resolver.resolve_budget("b", author=ADMIN)["steps"] == []
    assert len(world.log) == size, "what is within its caps asks nobody"


def test_then_the_place() -> None:
    """Last, as if it had been asked for by then; also where no cap binds."""
    world = crowd()
    world.apply(lowered(cap("a-east", 4, "east")))
    done = world.plane.resolver.resolve_budget("b", author=ADMIN, place=HERE)
    assert [each["kind"] for each in done["steps"]] == ["aggregate", "place"]
    assert scopes(world) == ["b/a-east", "place"]
    assert [each.cause for each in outcomes(world)] == ["cap", "scope"]
    assert len(ended(world)) == 2
    again = world.plane.resolver.resolve_budget("b", author=ADMIN, place=HERE)
    assert [(each["kind"], each["state"]) for each in again["steps"]] == [("place", "begun")]


@pytest.mark.parametrize("crash", [False, True])
def test_each_waits_for_the_graces_of_the_one_before(crash: bool) -> None:
    """Processes are asked first; a restart, from the log or a checkpoint, goes on with the rest."""
    world = crowd(command=["train"])
    world.apply(lowered(cap("b-west", 4, "west"), cap("a-east", 4, "east")))
    done = world.plane.resolver.resolve_budget("b", author=ADMIN, place=HERE)
    assert [each["state"] for each in done["steps"]] == ["begun", "waits", "waits"]
    for number in range(1, 4):
        assert len(outcomes(world)) == number, "one at a time"
        assert outcomes(world)[-1].stage is OutcomeStage.DRAWN
        with pytest.raises(Refused, match="not over"):
            world.plane.resolver.resolve_budget("b", author=ADMIN, place=HERE)
        if crash:
            if number == 2:
                world.plane.committer.checkpoint()
            before = state_of(world)
            world.plane = world.open()
            assert state_of(world) == before
        world.turn(0.001)
        (leaving,) = world.projection.resolver.outcomes[outcomes(world)[-1].seq].reclaiming
        world.executor.end(leaving, world.now_ms, signal=15)
        world.turn(0.001)
    assert scopes(world) == ["b/a-east", "b/b-west", "place"]
    assert {each.stage for each in outcomes(world)} == {OutcomeStage.APPLIED}
    assert len(ended(world)) == 3
    world.turn(0.1)
    assert len(outcomes(world)) == 3


def test_a_request_ends_where_it_cannot_go_on() -> None:
    """The cap is gone, the resolver was switched off, too few are left: said, and nobody is cut."""
    caps = (cap("a-east", 4, "east"), cap("b-west", 4, "west"))
    for change, reason in (("gone", "Gone"), ("off", "ResolverOff"), ("few", "NotEnough")):
        world = crowd(command=["train"])
        world.apply(lowered(*caps))
        world.plane.resolver.resolve_budget("b", author=ADMIN, place=(Scope("H100"), 18))
        if change == "gone":
            world.apply(lowered(caps[0]))
        elif change == "off":
            world.reconfigure(resolver="dry-run")
        for _ in range(3):
            for each in outcomes(world):
                for leaving in list(each.reclaiming):
                    world.executor.end(leaving, world.now_ms, signal=15)
            world.turn(0.001)
        passed = [entry.body["reason"] for entry in world.log if entry.kind == "gpu.resolve.passed"]
        assert reason in passed, change
        assert world.projection.resolver.requests == {}
        assert len(outcomes(world)) == {"gone": 1, "off": 1, "few": 2}[change]


def test_envelopes_are_caps_of_their_own() -> None:
    """In the same order; one with the name of an aggregate cap comes after it."""
    world = crowd()
    small = (envelope("east", 4), envelope("west", 4))
    world.apply(budget("b", "b", *small, aggregateCaps=[cap("west", 4, "east", "west")]))
    shown = world.plane.resolver.resolve_budget("b", author=ADMIN, dry_run=True)
    assert [
        (each["kind"], each["name"], each["forecast"]["deficitGPUs"]) for each in shown["steps"]
    ] == [("envelope", "east", 4), ("aggregate", "west", 12), ("envelope", "west", 4)]
    world.plane.resolver.resolve_budget("b", author=ADMIN)
    assert sum(payers(world).values()) == 4
    assert len(ended(world)) == 3


def test_what_is_ending_anyway_is_not_asked_for_a_second_time() -> None:
    """A run that was cancelled has its grace; nobody else gives way for the same GPUs."""
    world = crowd(command=["train"])
    world.plane.verbs.act("Run", "r0", "cancel", author=ADMIN)
    world.apply(lowered(cap("a-east", 4, "east")))
    assert world.plane.resolver.resolve_budget("b", author=ADMIN)["steps"] == []
    assert world.plane.resolver.resolve_cap("b", "a-east", author=ADMIN)["outcome"] is None
    assert closed(world) == {}


def test_hours_that_ran_out_bind_too() -> None:
    """What is unfunded for want of hours gives way; a cap without hours is not blamed for it."""
    world = crowd()
    world.apply(
        lowered(
            cap("all", 16, "east", "west"),
            {"name": "hours", "flavor": "H100", "envelopes": ["east"], "maxGPUHours": 4},
        )
    )
    world.turn(1)
    shown = world.plane.resolver.resolve_budget("b", author=ADMIN, dry_run=True)
    assert [(each["name"], each["forecast"]["deficitGPUs"]) for each in shown["steps"]] == [
        ("hours", 8)
    ]


def test_a_dry_run_writes_nothing_and_it_is_the_operators() -> None:
    """Each cap is shown as the world is now; tenants are refused, names are checked."""
    world = crowd()
    world.apply(lowered(cap("a-east", 4, "east"), cap("b-west", 4, "west")))
    size = len(world.log)
    shown = world.plane.resolver.resolve_budget("b", author=ADMIN, place=HERE, dry_run=True)
    assert [each["state"] for each in shown["steps"]] == ["forecast"] * 3
    assert [each["forecast"]["deficitGPUs"] for each in shown["steps"]] == [4, 4, 2]
    with pytest.raises(Forbidden):
        world.plane.resolver.resolve_budget("b", author=Author("bob", frozenset({"b"})))
    with pytest.raises(NotFound):
        world.plane.resolver.resolve_budget("nobody", author=ADMIN)
    with pytest.raises(Refused, match="would be missing"):
        world.plane.resolver.resolve_budget("b", author=ADMIN, place=(Scope("H100"), 99))
    world.reconfigure(resolver="off")
    assert world.plane.resolver.resolve_budget("b", author=ADMIN)["outcome"] is None
    assert len(world.log) == size


def test_two_planes_on_one_ledger_make_every_step_once(tmp_path: Path) -> None:
    """The quicker one wins; the other goes on behind it."""
    ledger = SqliteLedger.open(tmp_path / "l.db", MemoryKeys())
    world = crowd(world_of(ledger=ledger, devices=20, teams="c"), command=["train"])
    world.apply(lowered(cap("a-east", 4, "east"), cap("b-west", 4, "west")))
    world.plane.resolver.resolve_budget("b", author=ADMIN)
    other = world.open()
    for _ in range(3):
        world.now_ms += 1_000
        for each in outcomes(world):
            for leaving in list(each.reclaiming):
                world.executor.end(leaving, world.now_ms, signal=15)
        other.reconcile(world.now_ms)
        world.turn()
    assert scopes(world) == ["b/a-east", "b/b-west"]
    assert len(ended(world)) == 2
    assert ledger.verify().ok
    ledger.close()
