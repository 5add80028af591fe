"""What users see: conditions, tables, events, metrics."""

import threading
from typing import Any

import pytest

from fairlead.core.reasons import CoverRefusal
from fairlead.engine.gpu import Config, NotFound
from fairlead.ports.executor import Exit
from fairlead.ports.faults import TemporaryFault
from tests.engine.gpu.worlds import ADMIN, HOUR, World, budget, envelope, node, run


def conditions(world: World, name: str = "a") -> dict[str, dict]:
    return {each["type"]: each for each in world.status("Budget", name)["conditions"]}


def true(world: World, name: str = "a") -> set[str]:
    return {key for key, each in conditions(world, name).items() if each["status"] == "True"}


def test_healthy_near_limit_and_back() -> None:
    """Nine of ten is near; lastTransitionTime moves only with the status."""
    world = World()
    world.apply(budget("a", "a", envelope(concurrency=10)), node(devices=20))
    world.turn()
    assert true(world) == {"Healthy"}
    began = conditions(world)["Healthy"]["lastTransitionTime"]
    world.apply(run("r", gpus=9))
    world.turn(1)
    world.turn(1)
    assert true(world) == {"Healthy", "NearLimit"}
    near = conditions(world)["NearLimit"]
    assert near["reason"] == "AboveThreshold"
    assert near["message"] == "envelope west: 9 of 10 GPUs"
    assert near["lastTransitionTime"] == "2026-01-01T01:00:00Z"
    assert conditions(world)["Healthy"]["lastTransitionTime"] == began
    world.plane.verbs.act("Run", "r", "cancel", author=ADMIN)
    world.turn(1)
    assert true(world) == {"Healthy"}


def test_the_threshold_can_be_set() -> None:
    """Half is near, if the operator says so."""
    world = World(config=Config(near_limit_percent=50))
    world.apply(budget("a", "a", envelope(concurrency=10)), node(), run("r", gpus=5))
    world.turn()
    world.turn()
    assert "NearLimit" in true(world)


def test_exhausted_when_no_hours_are_left() -> None:
    """Used or promised; the event is in the log once."""
    world = World()
    world.apply(budget("a", "a", envelope(maxGPUHours=4)), node(), run("r", gpus=2, duration="2h"))
    world.turn()
    world.turn(0.5)
    assert true(world) == {"NearLimit", "Exhausted"}
    assert conditions(world)["Healthy"]["reason"] == "HoursUsedUp"
    events = [
        each
        for each in world.plane.events.read(0, 1000)
        if each["kind"] == "budget.condition"
        and each["body"]["type"] == "Exhausted"
        and each["body"]["status"]
    ]
    assert len(events) == 1
    assert events[0]["object"] == {"kind": "Budget", "name": "a"}


@pytest.mark.parametrize("edited", [envelope(concurrency=2), envelope(maxGPUHours=1)])
def test_overcommitted_when_a_cap_is_below_what_is_taken(edited) -> None:
    """After an edit, or by running on without funding."""
    world = World()
    world.apply(budget("a"), node(), run("r", gpus=4))
    world.turn()
    world.turn(1)
    world.apply(budget("a", "a", edited))
    world.turn()
    assert "Overcommitted" in true(world)
    assert conditions(world)["Overcommitted"]["observedGeneration"] == 2
    assert conditions(world)["Healthy"]["reason"] == "CapExceeded"


@pytest.mark.parametrize("kind", ["envelope", "aggregate", "lending"])
def test_every_kind_of_cap_reaches_every_condition(kind: str) -> None:
    """Near, exhausted, overcommitted: by the envelope, the aggregate cap, the lending sub-cap."""
    caps = {"maxConcurrency": 4, "maxGPUHours": 4}

    def capped(**caps: Any) -> dict[str, Any]:
        mine = envelope(lending={"allow": True, "to": ["b"]}, concurrency=20)
        if kind == "envelope":
            mine |= {"concurrency": caps["maxConcurrency"], "maxGPUHours": caps["maxGPUHours"]}
        elif kind == "lending":
            mine["lending"] |= caps
        whole = {"name": "all", "flavor": "H100", "envelopes": ["west"], **caps}
        return budget("a", "a", mine, aggregateCaps=[whole] if kind == "aggregate" else [])

    world = World()
    borrow = {"allowBorrow": True, "sponsors": ["a"]}
    world.apply(capped(**caps), budget("b", "b", envelope(concurrency=1, flavor="A100")), node())
    world.turn()
    assert true(world) == {"Healthy"}
    world.apply(run("r", owner="b", gpus=4, funding=borrow))
    world.turn()
    world.turn(0.1)
    assert true(world) == {"Healthy", "NearLimit"}
    world.turn(1)
    assert true(world) == {"NearLimit", "Exhausted", "Overcommitted"}
    assert conditions(world)["Exhausted"]["message"].startswith(kind)
    world.plane.verbs.act("Run", "r", "cancel", author=ADMIN)
    world.apply(capped(maxConcurrency=4, maxGPUHours=100))
    world.turn()
    assert true(world) == {"Healthy"}
    world.apply(run("s", owner="b", gpus=3, funding=borrow))
    world.turn()
    world.apply(capped(maxConcurrency=2, maxGPUHours=100))
    world.turn()
    assert true(world) == {"NearLimit", "Overcommitted"}
    assert f"{kind} " in conditions(world)["Overcommitted"]["message"]


def test_a_late_word_of_an_end_takes_nothing_off_the_counter() -> None:
    """The command ended before the last scrape and was heard of after it; a counter only grows."""
    world = World()
    world.apply(budget("a"), node(), run("r", gpus=4, command=["train"]))
    world.turn()
    world.turn(1)
    scraped = total_hours(world)
    world.executor.end("r", world.now_ms - HOUR // 2)
    world.turn(1)
    assert world.projection.closed[-1].used_ms == 2 * HOUR
    assert total_hours(world) == scraped == 4
    world.apply(run("s", gpus=4))
    world.turn()
    world.turn(2)
    assert total_hours(world) == 2 + 8, "the truth, once it is above what was shown"


def test_the_hour_counter_does_not_go_down_over_a_restart() -> None:
    """Scraped after an end and before the turn that hears of it: what is shown then was final."""
    world = World()
    world.apply(budget("a"), node(), run("r", gpus=4, command=["train"]))
    world.turn()
    world.turn(1)
    assert total_hours(world) == 4
    world.executor.end("r", world.now_ms + HOUR // 2)
    world.now_ms += HOUR
    assert total_hours(world) == 4, "no turn has heard of what came since"
    world.executor.poll, hears = _deaf, world.executor.poll  # type: ignore[method-assign]
    world.turn()
    assert total_hours(world) == 4, "nor this one"
    world.plane = world.open()
    assert world.plane.reports.metrics()["budget_gpu_hours_total"] == [], "nothing is known yet"
    world.executor.poll = hears  # type: ignore[method-assign]
    world.turn()
    assert total_hours(world) == 6


def total_hours(world: World) -> float:
    (found,) = [value for _, value in world.plane.reports.metrics()["budget_gpu_hours_total"]]
    return found


def _deaf() -> list[Exit]:
    raise TemporaryFault("the disk does not answer", retry_after_ms=1)


def test_a_lending_entry_that_matches_nobody_is_a_warning() -> None:
    """An exact name, a prefix, or lending that is switched off; the budget stays healthy."""
    world = World()
    lending = {"allow": True, "to": ["b", "org:*", "nobody", "*"]}
    world.apply(budget("a", "a", envelope(lending=lending)), budget("b"), run("r", owner="org:x"))
    world.turn()
    assert true(world) == {"Healthy", "UnusedLendingEntry"}
    found = conditions(world)["UnusedLendingEntry"]
    assert (found["reason"], found["message"]) == ("NoSuchOwner", "west: 'nobody' matches no owner")
    off = {"allow": False, "to": ["b"]}
    world.apply(budget("a", "a", envelope(lending=off)))
    assert conditions(world)["UnusedLendingEntry"]["message"] == "west: 'b' is off: allow is false"


def test_tables() -> None:
    """Budgets, leases, sponsors, the who-owes-whom matrix, the report."""
    world = World()
    lending = {"allow": True, "to": ["a"], "maxConcurrency": 3, "maxGPUHours": 10}
    world.apply(
        budget("a", "a", envelope(concurrency=1, maxGPUHours=50)),
        budget("s", "s", envelope(concurrency=4, maxGPUHours=100, lending=lending)),
        budget("t", "t", envelope(lending={"allow": True, "to": ["*"]})),
        node(),
        run("r", gpus=3, funding={"allowBorrow": True, "sponsors": ["s"]}),
    )
    world.turn()
    world.turn(2)
    rows = {row["budget"]: row for row in world.plane.reports.budgets()}
    assert (rows["s"]["used_gpus"], rows["s"]["lent_gpus"], rows["s"]["free_gpu_hours"]) == (
        2,
        2,
        96,
    )
    sponsors = world.plane.reports.sponsors("a", "H100")
    assert [(row["owner"], row["free_gpus"], row["free_gpu_hours"]) for row in sponsors] == [
        ("s", 1, 6),
        ("t", 8, None),
    ]
    assert world.plane.reports.sponsors("a", "A100") == []
    owed = {"borrower": "a", "lender": "s", "gpus": 2, "gpu_hours": 4.0}
    assert world.plane.reports.owes() == [owed]
    world.plane.verbs.act("Run", "r", "cancel", author=ADMIN)
    assert world.plane.reports.owes() == [{**owed, "gpus": 0}]
    charged = [(row["payer"], row["used_ms"] / HOUR) for row in world.plane.reports.charges()]
    assert charged == [("a", 2.0), ("s", 4.0)]
    world.plane.objects.delete("Budget", "s", author=ADMIN)
    assert world.plane.reports.owes()[0]["lender"] == "s", "a debt outlives its budget"


def test_who_paid_is_who_had_the_budget_then() -> None:
    """A budget that changes hands, or goes, takes no debt and no bill of the past with it."""
    world = World()
    loan = {"allowBorrow": True, "sponsors": ["s", "t"]}
    lent = envelope(lending={"allow": True, "to": ["*"]})
    world.apply(budget("shared", "s", lent), node(), run("r", gpus=2, funding=loan))
    world.turn()
    world.turn(1)
    world.apply(budget("shared", "t", lent))
    assert [(row["lender"], row["gpu_hours"]) for row in world.plane.reports.owes()] == [("s", 2.0)]
    world.plane.verbs.act("Run", "r", "cancel", author=ADMIN)
    world.apply(run("q", gpus=1, funding=loan))
    world.turn()
    world.turn(1)
    world.plane.verbs.act("Run", "q", "cancel", author=ADMIN)
    for _ in range(2):
        assert [(row["lender"], row["gpu_hours"]) for row in world.plane.reports.owes()] == [
            ("s", 2.0),
            ("t", 1.0),
        ]
        assert [row["payer"] for row in world.plane.reports.charges()] == ["s", "t"]
        world.plane.objects.delete("Budget", "shared", author=ADMIN)
        world.apply(budget("shared", "u"))
    payers = [entry.body["payer"] for entry in world.log if entry.kind == "charge.post"]
    assert payers == ["s", "t"]


def test_explain() -> None:
    """The decisions behind a run, the leases behind a budget, the runs on a node."""
    world = World()
    world.apply(budget("a"), node(), run("r", gpus=4), run("s", gpus=6))
    world.turn()
    found = world.plane.reports.explain("Run", "r")
    assert (found["cover"]["kind"], found["cover"]["output"]["gpus"]) == ("gpu.fund", 4)
    assert found["placement"]["output"]["placed"] is True
    refused = world.plane.reports.explain("Run", "s")
    assert (refused["placement"], refused["waitingFor"]["to"]) == (None, 10)
    assert [row["run"] for row in world.plane.reports.explain("Budget", "a")["leases"]] == ["r"]
    assert world.plane.reports.explain("Node", "n1")["runs"] == ["r"]
    with pytest.raises(NotFound):
        world.plane.reports.explain("Run", "nobody")


def test_counters_of_refusals_are_there_before_the_first() -> None:
    """At 0: a series that began with its first refusal would hide it from `increase`."""
    world = World()
    world.apply(budget("a"), node())
    found = world.plane.reports.metrics()
    assert {labels["result"]: count for labels, count in found["cover_plans_total"]} == {
        **dict.fromkeys(CoverRefusal, 0),
        "funded": 0,
    }
    assert found["budget_lending_denied_total"] == [({"budget": "a", "envelope": "west"}, 0)]


def test_metrics_are_plain_values_and_counters_never_go_down() -> None:
    """Cover results, denials, hours."""
    world = World()
    lending = {"allow": True, "to": ["x"]}
    world.apply(
        budget("a"),
        budget("s", "s", envelope(lending=lending)),
        node(),
        run("r", gpus=4),
        run("no", gpus=12, funding={"allowBorrow": True, "sponsors": ["s"]}),
    )
    world.turn()
    last = 0.0
    for _ in range(3):
        world.turn(1)
        found = world.plane.reports.metrics()
        (total,) = [value for labels, value in found["budget_gpu_hours_total"]]
        assert total > last
        last = total
    plans = {labels["result"]: count for labels, count in found["cover_plans_total"]}
    assert plans == {**dict.fromkeys(CoverRefusal, 0), "ACLDenied": 1, "funded": 1}
    assert found["budget_lending_denied_total"] == [
        ({"budget": "a", "envelope": "west"}, 0),
        ({"budget": "s", "envelope": "west"}, 1),
    ]
    world.plane.verbs.act("Run", "r", "cancel", author=ADMIN)
    assert world.plane.reports.metrics()["budget_gpu_hours_total"][0][1] == last == 12
    gauges = world.plane.reports.metrics()
    assert gauges["budget_concurrency_remaining"] == [
        ({"budget": "a", "envelope": "west"}, 8),
        ({"budget": "s", "envelope": "west"}, 8),
    ]
    assert gauges["budget_gpu_hours_remaining"] == []


def test_events_tell_whose_they_are_and_nothing_private() -> None:
    """No commands, no environment, no large inputs."""
    world = World()
    world.apply(budget("a"), node(), run("r", command=["secret-tool"], env={"KEY": "v"}))
    world.turn()
    events = world.plane.events.read(0, 1000)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    about = {(event["kind"], event["owner"]) for event in events}
    assert ("object.applied", "a") in about
    assert ("lease.open", "a") in about
    assert ("run.phase", "a") in about
    assert "secret-tool" not in str(events)
    assert world.plane.events.read(events[-1]["seq"], 10) == []


def test_waiting_ends_with_news_or_with_its_time() -> None:
    """Another thread's command wakes the one that waits."""
    world = World()
    assert world.plane.events.wait(1, 0.01) == 1
    found: list[int] = []
    watcher = threading.Thread(target=lambda: found.append(world.plane.events.wait(1, 10)))
    watcher.start()
    world.apply(budget("a"))
    watcher.join()
    assert found == [2]


def test_leases_are_read_only_objects() -> None:
    """By name while open and for a while after."""
    world = World()
    world.apply(budget("a"), node(), run("r", gpus=2, duration="1h"))
    world.turn()
    (name,) = world.status("Run", "r")["leases"]
    lease = world.plane.objects.get("Lease", name)
    assert lease["spec"]["payer"] == {"budget": "a", "envelope": "west"}
    assert world.plane.objects.list("Lease") == [lease]
    assert world.plane.objects.list("Lease", owner="b") == []
    world.turn(2)
    closed = world.plane.objects.get("Lease", name)
    assert (closed["status"]["reason"], closed["status"]["gpuHours"]) == ("Completed", 2)
    assert world.plane.objects.list("Lease") == []
    assert world.plane.objects.get("Lease", "nobody") is None
