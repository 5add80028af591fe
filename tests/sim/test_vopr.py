"""Whole-system simulation: a sample of seeds, regressions, and planted faults that are found."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("apsw", reason="the simulated disk needs apsw: make dev")

from fairlead.core.reasons import TrafficReason
from fairlead.sim.vopr import agents
from fairlead.sim.vopr.actors import Actors, run_request
from fairlead.sim.vopr.checks import Checker
from fairlead.sim.vopr.command import main, read, summary
from fairlead.sim.vopr.disk import Crash
from fairlead.sim.vopr.play import play, schedule
from fairlead.sim.vopr.steps import behaviour
from fairlead.sim.vopr.world import VoprWorld
from tests.sim.vopr_plants import PLANTED, STORED, Plant, believed_liar, find, never_finished

REGRESSIONS = sorted(STORED.glob("*.json"))


def test_a_sample_of_schedules_keeps_every_promise() -> None:
    """`make soak` plays thousands; each has crashes, and much is recorded."""
    report = summary(play(seed, schedule(seed, 120)) for seed in range(1_000, 1_012))
    assert report["failures"] == []
    assert report["crashes"] > 10
    assert report["entries"] > 500


@pytest.mark.parametrize("stored", REGRESSIONS, ids=lambda path: path.stem)
def test_what_once_broke_a_promise_keeps_it(stored: Path) -> None:
    played = play(*read(stored))
    assert (played.check, played.message) == ("", "")


def test_a_seed_plays_the_same_again() -> None:
    first, second = (play(7, schedule(7, 100)) for _ in range(2))
    assert (first.entries, first.crashes, first.counts) == (
        second.entries,
        second.crashes,
        second.counts,
    )


def test_a_failing_schedule_is_shortened_and_can_be_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command prints it, exits with 1, and plays the stored file with the same result."""
    never_finished(monkeypatch)
    seed = next(s for s in range(2_000, 2_020) if not play(s, schedule(s, 60)).ok)
    stored = tmp_path / "found.json"
    arguments = ["--seed", str(seed), "--steps", "60", "--store", str(stored), "-o", "json"]
    done = CliRunner().invoke(main, arguments)
    found = json.loads(done.output)
    assert (done.exit_code, found["check"]) == (1, "progress")
    assert len(found["steps"]) < 20
    again = CliRunner().invoke(main, ["--replay", str(stored)])
    assert (again.exit_code, "progress" in again.output) == (1, True)
    monkeypatch.undo()
    assert CliRunner().invoke(main, ["--replay", str(stored)]).exit_code == 0


def test_nothing_but_the_answer_is_on_standard_output() -> None:
    """In this schedule the kept state is edited, which the control plane logs."""
    arguments = ["--first", "3003", "--seeds", "1", "--steps", "100", "-o", "json"]
    done = CliRunner().invoke(main, arguments)
    assert json.loads(done.stdout)["seeds"] == 1


def test_a_crash_in_a_request_is_the_death_of_the_process() -> None:
    """At every write, sync and call of a submission: there is no reply, the client asks the same
    again, and is told that it is done."""
    crashed = 0
    for place in range(60):
        world = VoprWorld(5, behaviour)
        actors = Actors(world, Checker(world))
        actors.begin()
        world.points.crash_in = place
        request = run_request("r1", "a", 1, {})
        try:
            reply = actors.send(request)
        except Crash:
            crashed += 1
            world.down()
            reply = actors.send(*actors.later.pop())
        assert (reply.status, reply.json["change"]) in ((200, "created"), (200, "unchanged"))
        world.disk.close()
    assert crashed > 3


def test_a_lost_reply_is_asked_for_again() -> None:
    """The same request comes twice, and the second changes nothing."""
    world = VoprWorld(5, behaviour)
    actors = Actors(world, Checker(world))
    actors.begin()
    actors.loses = True
    assert actors.send(run_request("r1", "a", 1, {})).json["change"] == "created"
    assert actors.send(*actors.later.pop()).json["change"] == "unchanged"
    assert not actors.later
    world.disk.close()


def test_many_seeds_are_counted() -> None:
    done = CliRunner().invoke(main, ["--seeds", "2", "--steps", "30", "-o", "json"])
    report = json.loads(done.output)
    assert (done.exit_code, report["seeds"], report["steps"]) == (0, 2, 60)


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.fault.__name__)
def test_a_planted_fault_is_found(plant: Plant) -> None:
    """Within a few schedules; without it, the same schedules keep every promise."""
    played = find(plant)
    assert played.check in (plant.checks, *plant.checks.split()), played.message


@pytest.mark.parametrize("believed", [False, True])
def test_a_lie_about_retries_costs_at_most_the_share_of_its_backend(
    monkeypatch: pytest.MonkeyPatch, *, believed: bool
) -> None:
    """Also where the reason for closing is not looked at: of four backends one lies, and more than
    a quarter of the requests are refused only where it is believed."""
    monkeypatch.setattr(agents, "TrafficReason", _Unnamed)
    if believed:
        believed_liar(monkeypatch)
    seed = 2_006
    assert agents.TRAFFIC_SCENARIOS[seed % len(agents.TRAFFIC_SCENARIOS)] == agents.CALM
    played = play(seed, schedule(seed, 12, kinds=("traffic_agent", "lie")), settle=False)
    assert played.check == ("traffic-agent share" if believed else "")


class _Unnamed:
    """Reasons, of which a storm is none."""

    RETRY_STORM = f"not {TrafficReason.RETRY_STORM}"
