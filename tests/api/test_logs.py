"""Structured logs: what operators act on, one line each, with the numbers."""

from typing import Any

from structlog.testing import capture_logs

from fairlead.api.background import log_event
from fairlead.ports.executor import Job
from tests.engine.gpu.resolving import outcomes, reserve, world_of
from tests.engine.gpu.worlds import World, budget, envelope, node, run


def logged(world: World) -> list[dict[str, Any]]:
    with capture_logs() as lines:
        for event in world.plane.events.read(0, 1_000):
            log_event(event)
    return [dict(line) for line in lines]


def test_a_cover_failure_is_logged_with_its_remedy() -> None:
    """Once, as a warning; a run that is covered says nothing."""
    world = World()
    world.apply(budget("a", "a", envelope(concurrency=2)), budget("b"), node())
    world.apply(run("big", gpus=3), run("ok", owner="b"))
    for _ in range(3):
        world.turn(0.1)
    (line,) = [each for each in logged(world) if each["event"] == "cover failed"]
    assert line["log_level"] == "warning"
    assert (line["run"], line["owner"], line["code"]) == ("big", "a", "ConcurrencyCapExceeded")
    assert line["shortfall_gpus"] == 1
    assert line["message"].startswith("1 GPU short: too many GPUs at once")
    assert line["remedy"]["change"] == "envelope-concurrency"
    assert line["seq"] > 0


def test_a_lending_denial_is_logged_for_each_lender() -> None:
    """An ACL that shuts somebody out, and a sub-cap that is reached."""
    world = World()
    shut = {"allow": True, "to": ["b"]}
    small = {"allow": True, "to": ["*"], "maxConcurrency": 1}
    world.apply(
        budget("a", "a", envelope(concurrency=1)),
        budget("s", "s", envelope(lending=shut)),
        budget("t", "t", envelope(lending=small)),
        node(devices=20),
        run("acl", gpus=4, funding={"allowBorrow": True, "sponsors": ["s"]}),
        run("cap", gpus=4, funding={"allowBorrow": True, "sponsors": ["t"]}),
    )
    world.turn()
    denied = {each["run"]: each for each in logged(world) if each["event"] == "lending denied"}
    assert (denied["acl"]["budget"], denied["acl"]["envelope"]) == ("s", "west")
    assert (denied["cap"]["budget"], denied["cap"]["limit"], denied["cap"]["used"]) == ("t", 1, 0)


def test_a_breached_cap_is_logged_with_who_lost_its_funding() -> None:
    """Hours that run out, and a cap that is lowered: the lease and the budget's condition."""
    world = World()
    world.apply(budget("a", "a", envelope(maxGPUHours=2)), node(), run("r", gpus=2))
    world.turn()
    world.turn(3)
    lines = [each for each in logged(world) if each["event"] == "cap breached"]
    (lost,) = [each for each in lines if "lease" in each]
    assert (lost["run"], lost["cap"], lost["budget"], lost["name"], lost["hours"]) == (
        "r",
        "envelope",
        "a",
        "west",
        True,
    )
    assert {each["condition"] for each in lines if "condition" in each} == {
        "Exhausted",
        "Overcommitted",
    }
    world.apply(budget("b"), run("s", owner="b", gpus=2))
    world.turn()
    world.apply(budget("b", "b", envelope(concurrency=1)))
    (lowered,) = [
        each
        for each in logged(world)
        if each["event"] == "cap breached" and each.get("hours") is False
    ]
    assert (lowered["run"], lowered["budget"]) == ("s", "b")


def test_a_resolve_is_logged_from_commitment_to_victims() -> None:
    """Scope and deficit at once, the seed when it is out, and who gives way."""
    world = world_of()
    world.apply(run("old", owner="b", gpus=8))
    world.turn()
    reserve(world, run("huge", gpus=30))
    reserve(world, run("new", gpus=4))
    world.turn()
    lines = {line["event"]: line for line in logged(world)}
    (outcome,) = outcomes(world)
    committed, drawn = lines["resolve committed"], lines["resolve drawn"]
    assert (committed["outcome"], committed["deficit_gpus"]) == (outcome.seq, 4)
    assert committed["scope"]["location"]["domain"] == "d1"
    assert "seed" not in committed
    assert (drawn["outcome"], len(drawn["seed"])) == (outcome.seq, 64)
    assert (lines["run preempted"]["run"], lines["run preempted"]["outcome"]) == (
        "old",
        outcome.seq,
    )
    assert lines["reservation blocked"]["reservation"] == "huge-slot"


def test_a_process_that_the_ledger_did_not_start_is_logged_once() -> None:
    """With its grace, and the number of its entry."""
    world = World()
    world.apply(budget("a"), node())
    world.executor.jobs["gone.deadbeef.1"] = Job("gone.deadbeef.1", "gone", "a", ("x",), ("n1#7",))
    world.turn()
    world.turn()
    (line,) = [each for each in logged(world) if each["event"] == "unknown process"]
    assert (line["run"], line["job"], line["grace_ms"]) == ("gone", "gone.deadbeef.1", 30_000)
    assert ("stop", "gone", 30_000) in world.executor.calls
    assert str(line["seq"]) in world.executor.decisions
