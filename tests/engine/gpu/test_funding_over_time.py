"""Funding over time: hours that run out, periods, caps that are edited."""

import pytest

from tests.engine.gpu.worlds import ADMIN, ALICE, HOUR, START, World, budget, envelope, node, run


def test_hours_run_out_and_the_lease_is_unfunded_not_killed(world: World) -> None:
    """From that very moment its hours are overdraft; remaining stays 0; events say it."""
    world.apply(budget("a", "a", envelope(maxGPUHours=4)), node(), run("r", gpus=2))
    world.turn()
    world.turn(5)
    (lost,) = [entry for entry in world.log if entry.kind == "lease.unfunded"]
    assert lost.body["at_ms"] == START + 2 * HOUR
    status = world.status("Run", "r")
    assert (status["phase"], status["funded"]) == ("Running", False)
    room = world.headroom("a")
    assert (room["gpuHours"], room["overdraftGPUHours"], room["gpuHoursUsed"]) == (0, 6, 10)
    world.plane.verbs.act("Run", "r", "cancel", author=ALICE)
    (post,) = [entry.body for entry in world.log if entry.kind == "charge.post"]
    assert (post["used_ms"], post["overdraft_ms"]) == (10 * HOUR, 6 * HOUR)
    world.apply(run("next"))
    world.turn()
    assert world.status("Run", "next")["reason"] == "IntegralCapExceeded"


@pytest.mark.parametrize("first", ["nobody", "a reader", "an editor"])
def test_a_new_period_funds_it_again(world: World, first: str) -> None:
    """Four hours a day: each day's fifth hour is overdraft, also when nobody looked for days.

    Nor does it matter who comes first after that: the loop, somebody who reads, or an edit.
    """
    world.apply(budget("a", "a", envelope(maxGPUHours=4, recurrence="daily")), node(), run("r"))
    world.turn()
    world.now_ms += (48 + 6) * HOUR
    if first == "a reader":
        assert world.headroom("a")["gpuHoursUsed"] == 6
        world.plane.reports.metrics()
        world.plane.objects.plan(run("s"), author=ADMIN)
        lower = budget("a", "a", envelope(maxGPUHours=3, recurrence="daily"))
        world.plane.objects.apply(lower, author=ADMIN, dry_run=True)
    elif first == "an editor":
        world.apply(budget("a", "a", envelope(maxGPUHours=4, concurrency=3, recurrence="daily")))
    world.turn()
    assert world.status("Run", "r")["funded"] is False
    world.plane.verbs.act("Run", "r", "cancel", author=ALICE)
    (post,) = [entry.body for entry in world.log if entry.kind == "charge.post"]
    overdraft = [part["overdraft_ms"] / HOUR for part in post["parts"]]
    assert overdraft == [20, 20, 2]


def test_a_lowered_cap_demotes_the_newest_and_a_raised_one_restores_them(world: World) -> None:
    """At once, not at the next turn."""
    world.apply(budget("a"), node(), run("old", gpus=4))
    world.turn()
    world.turn(1)
    world.apply(run("new", gpus=4))
    world.turn()
    preview = world.plane.objects.apply(
        budget("a", "a", envelope(concurrency=5)), author=ADMIN, dry_run=True
    )
    (lost,) = preview.preview["unfunded"]
    lease = lost.pop("lease")
    assert lost == {
        "run": "new",
        "owner": "a",
        "gpus": 4,
        "cap": "envelope",
        "name": "west",
        "hours": False,
    }
    assert world.status("Run", "new")["funded"] is True
    world.apply(budget("a", "a", envelope(concurrency=5)))
    assert (world.status("Run", "new")["funded"], world.status("Run", "old")["funded"]) == (
        False,
        True,
    )
    assert world.plane.objects.get("Lease", lease)["status"]["funded"] is False
    world.apply(budget("a"))
    assert world.status("Run", "new")["funded"] is True


def test_an_edit_never_changes_elapsed_charges(world: World) -> None:
    """Other caps, another window, another owner: the used hours are the same."""
    world.apply(budget("a", "a", envelope(maxGPUHours=100)), node(), run("r", gpus=2))
    world.turn()
    world.turn(3)
    used = world.headroom("a")["gpuHoursUsed"]
    for edited in (
        envelope(maxGPUHours=1),
        envelope(maxGPUHours=5),
        envelope(maxGPUHours=5, recurrence="daily"),
        envelope(window={"start": "2026-01-01T00:00:00Z", "end": "2026-02-01T00:00:00Z"}),
    ):
        world.apply(budget("a", "somebody", edited))
        assert world.headroom("a")["gpuHoursUsed"] == used
    world.plane.verbs.act("Run", "r", "cancel", author=ADMIN)
    (post,) = [entry.body for entry in world.log if entry.kind == "charge.post"]
    assert post["used_ms"] == 6 * HOUR
