"""Runs at risk are told beforehand: an entry, `explain`, the file and the signal they chose."""

from typing import Any

import pytest

from fairlead.schema.border import BadInput
from tests.engine.gpu.resolving import reservation, reserve, world_of
from tests.engine.gpu.worlds import ADMIN, World, run

MINUTE = 1 / 60
TOLD: dict[str, Any] = {"command": ["x"], "warnBefore": {"before": "30m", "signal": "USR1"}}


def warned(world: World) -> dict[str, dict[str, Any]]:
    return {entry.body["run"]: entry.body for entry in world.log if entry.kind == "run.warned"}


def crowded() -> World:
    world = world_of(teams="abc")
    world.apply(run("early", "a", 4, **TOLD), run("late", "b", 4, command=["x"]))
    world.turn()
    reserve(world, run("big", "c", 4), 1)
    world.turn()
    return world


def test_each_run_is_told_once_as_long_before_as_it_asked_for() -> None:
    world = crowded()
    assert warned(world) == {}
    world.turn(0.51)
    assert set(warned(world)) == {"early"}, "30 minutes before"
    assert (warned(world)["early"]["chance"], "odds 50 %" in warned(world)["early"]["message"]) == (
        0.5,
        True,
    )
    (call,) = [call for call in world.executor.calls if call[0] == "warn"]
    assert (call[1], call[3], call[2]["start"]) == ("early", "USR1", "2026-01-01T01:00:00Z")
    world.turn(0.34)
    assert set(warned(world)) == {"early", "late"}, "10 minutes where nothing was asked for"
    size = len(world.log)
    for _ in range(3):
        world.turn(MINUTE)
    assert len(world.log) == size
    told = world.plane.reports.explain("Run", "late")["atRisk"]
    assert [row["chance"] for row in told] == [0.5]
    assert "big" not in str(warned(world)), "another owner's reservation is not named"
    calls = [call for call in world.executor.calls if call[0] == "warn"]
    assert len(calls) == 1, "the other one asked for no file"


def test_another_start_is_another_warning_and_a_past_one_is_forgotten() -> None:
    world = crowded()
    world.turn(0.51)
    world.plane.objects.apply(reservation("big-slot", "big", 2), author=ADMIN)
    world.turn(0.01)
    assert len(warned(world)) == 1
    world.turn(1.1)
    assert len([entry for entry in world.log if entry.kind == "run.warned"]) == 2
    assert len(world.projection.runs["early"].warned) == 1
    world.plane = world.open()
    world.turn(0.01)
    calls = [call for call in world.executor.calls if call[0] == "warn"]
    assert len(calls) == 3, "told again after a restart, idempotent by the entry"


@pytest.mark.parametrize("resolver", ["off", "dry-run"])
def test_where_no_run_can_be_preempted_none_is_warned(resolver: str) -> None:
    world = world_of(teams="abc", resolver=resolver)
    world.apply(run("early", "a", 8, **TOLD))
    world.turn()
    reserve(world, run("big", "c", 4), 1)
    world.turn(0.9)
    assert warned(world) == {}


def test_room_enough_warns_no_run_and_bad_settings_are_refused() -> None:
    world = world_of(teams="abc")
    world.apply(run("early", "a", 4, **TOLD))
    world.turn()
    reserve(world, run("big", "c", 4), 1)
    world.turn(0.9)
    assert warned(world) == {}
    for bad in ({"before": "soon"}, {"signal": "KILL"}, {"file": "/etc/passwd"}):
        with pytest.raises(BadInput, match=r"spec\.warnBefore"):
            world.apply(run("bad", "a", 1, warnBefore=bad))


@pytest.mark.parametrize("ends", [{"duration": "30m"}, {"maxRuntime": "30m"}])
def test_a_run_that_will_have_ended_by_then_is_not_at_risk(ends: dict[str, str]) -> None:
    """It was counted as certainly preempted. The preview says what it assumes."""
    world = world_of(teams="abc")
    world.apply(run("short", "a", 4, command=["x"], **ends), run("long", "b", 4, command=["x"]))
    world.turn()
    narrow = [run("narrow", "c", 4), reservation("narrow-slot", "narrow", 1)]
    shown = world.plane.objects.apply_all(narrow, author=ADMIN, dry_run=True)[1].preview
    forecast = (shown or {})["forecast"]
    assert (forecast["atRisk"], forecast["deficitGPUs"]) == ([], 0)
    assert forecast["ended"] == {"runs": 1, "gpus": 4}
    assert forecast["earliestStart"] == forecast["withoutCuts"] == "2026-01-01T01:00:00Z"
    reserve(world, run("wide", "c", 8), 1)
    world.turn(0.01)
    assert at_risk(world, "wide-slot") == ({"long": 1.0}, 4)
    if "duration" not in ends:
        return
    world.turn(0.51)
    assert at_risk(world, "wide-slot") == ({"long": 1.0}, 4), "a little late"
    assert set(warned(world)) == set()
    world.turn(0.32)
    assert at_risk(world, "wide-slot") == ({"long": 1.0, "short": 1.0}, 8), "late by 20 minutes"
    world.turn(MINUTE)
    assert set(warned(world)) == {"long", "short"}


def at_risk(world: World, reserved: str) -> tuple[dict[str, float], int]:
    shown = world.plane.resolver.preview("Reservation", reserved)
    return {row["run"]: row["chance"] for row in shown["atRisk"]}, shown["deficitGPUs"]
