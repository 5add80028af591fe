"""Whole-system simulation: a sample of seeds, regressions, and planted faults that are found."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("apsw", reason="the simulated disk needs apsw: make dev")

from fairlead.core.gpu.clock import ClockReading, ClockReason, LedgerTime
from fairlead.core.traffic.alone import Relaxed
from fairlead.dataplane import memory
from fairlead.engine.gpu import Author, effects, settlement
from fairlead.engine.gpu import clock as engine_clock
from fairlead.engine.gpu.clock import LedgerClock
from fairlead.engine.gpu.committer import Committer
from fairlead.engine.gpu.effects import Effects
from fairlead.engine.gpu.resolver.outcome import Outcomes
from fairlead.engine.gpu.state import RunState
from fairlead.ledger import reading
from fairlead.ports.executor import Job
from fairlead.sim.executor import SimExecutor
from fairlead.sim.vopr.command import main, read, summary
from fairlead.sim.vopr.disk import SimDisk, SimFile
from fairlead.sim.vopr.play import play, schedule

REGRESSIONS = sorted((Path(__file__).parent / "vopr").glob("*.json"))


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


# -- planted faults: each is one that the code once had, or could have ---------------------------


def unsynced(patch: pytest.MonkeyPatch) -> None:
    """A disk that says that it has synced, and has not: as without synchronous = FULL."""
    patch.setattr(SimFile, "sync", lambda self: None)


def unsynced_opening(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimDisk, "sync", lambda self: None)


def wall_clock(patch: pytest.MonkeyPatch) -> None:
    """Leases are charged by the wall clock, as they were."""

    def time(self: LedgerClock) -> tuple[LedgerTime, ClockReading]:
        reading = self.read()
        return LedgerTime(reading.wall_ms, 0, 0, ClockReason.STEADY), reading

    patch.setattr(engine_clock.LedgerClock, "time", time)


def restart_after_cancel(patch: pytest.MonkeyPatch) -> None:
    """A cancelled run whose node fails, or that an outcome hits, waits again, as it did."""

    def preempted(state: RunState, end_ms: int) -> bool:
        reclaim = state.reclaim
        return reclaim is not None and reclaim.preempts and end_ms >= reclaim.since_ms

    real = RunState.is_ending.fget
    assert real is not None
    kept = property(lambda self: real(self) and (self.reclaim is not None or not self.stopping))
    patch.setattr(RunState, "is_ending", kept)
    patch.setattr(settlement, "_was_preempted", preempted)


def another_job(patch: pytest.MonkeyPatch) -> None:
    """What is started is not what was recorded."""
    real = Effects._job

    def job(self: Effects, name: str, state: RunState) -> Job:
        made = real(self, name, state)
        return replace(made, id=f"{made.id}0")

    patch.setattr(Effects, "_job", job)


def double_lease(patch: pytest.MonkeyPatch) -> None:
    """A closing lease is free before its process is gone."""
    patch.setattr(SimExecutor, "stop", lambda self, run, grace_ms, *, decision: None)
    patch.setattr(SimExecutor, "running", lambda self: set())


def forgetful_fold(patch: pytest.MonkeyPatch) -> None:
    """A fact that is kept outside the fold."""
    real = Committer.commit

    def commit(self: Committer, decide: Any) -> Any:
        made = real(self, decide)
        for state in self.projection.live.values():
            state.shortfall_gpus = 0
        return made

    patch.setattr(Committer, "commit", commit)


def never_finished(patch: pytest.MonkeyPatch) -> None:
    """An outcome stays open, and the runs of its flavor wait for ever."""
    patch.setattr(Outcomes, "_finish", lambda self, seq, now_ms: [])


def frozen_flavor(patch: pytest.MonkeyPatch) -> None:
    """A run has the grace that it asks for, 20 days, also when an operator forces its end."""
    patch.setattr(Effects, "_grace_ms", lambda self, state: 20 * 86_400_000)


def unsealed_state(patch: pytest.MonkeyPatch) -> None:
    """What is kept beside the ledger is believed, even if an attacker wrote it."""
    patch.setattr(reading, "problem_of", lambda query, kept, head: "")


def any_owner(patch: pytest.MonkeyPatch) -> None:
    """Every user is a member of every owner."""
    patch.setattr(Author, "may_act_for", lambda self, owner: True)


def another_decision(patch: pytest.MonkeyPatch) -> None:
    """What ends a run is cited as what was recorded of something else."""
    patch.setattr(effects, "_decision", lambda state, entry: "2")


def unbounded_fallback(patch: pytest.MonkeyPatch) -> None:
    """Without its agent a group admits all that comes."""

    def relax(bound: Any, now: Any, *, now_ms: int, successes: int) -> Relaxed:
        return Relaxed(10**9, now_ms, successes)

    patch.setattr(memory, "relax", relax)


PLANTED = {
    frozen_flavor: "progress",
    unsealed_state: "projection",
    any_owner: "rights",
    another_decision: "recorded-first",
    unbounded_fallback: "traffic-agent bound",
    unsynced: "acknowledged-writes exception",
    unsynced_opening: "acknowledged-writes",
    wall_clock: "charges time-order invariant",
    restart_after_cancel: "cancelled",
    another_job: "recorded-first",
    double_lease: "devices",
    forgetful_fold: "projection",
    never_finished: "progress",
}


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


def test_many_seeds_are_counted() -> None:
    done = CliRunner().invoke(main, ["--seeds", "2", "--steps", "30", "-o", "json"])
    report = json.loads(done.output)
    assert (done.exit_code, report["seeds"], report["steps"]) == (0, 2, 60)


FOCUS = {
    restart_after_cancel: "submit turn delete cancel node resolve reserve",
    unsealed_state: "submit turn tamper",
    any_owner: "submit turn trespass",
    unbounded_fallback: "traffic_agent kill_traffic",
}
"""Rare ones are looked for among the steps that matter, so that the test is short."""
SEEDS = {unbounded_fallback: range(2_001, 2_060, 6)}
"""Those whose traffic is twice the capacity."""


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a few schedules; without it, the same schedules keep every promise."""
    plant(monkeypatch)
    if plant is unsynced_opening:  # rare: by the schedule that found it
        stored = next(path for path in REGRESSIONS if path.stem == "unsynced-recovery")
        assert play(*read(stored)).check == PLANTED[plant]
        return
    for seed in SEEDS.get(plant, range(2_000, 2_060)):
        steps = schedule(seed, 200)
        if plant in FOCUS:
            steps = [step for step in schedule(seed, 600) if step.name in FOCUS[plant].split()]
        played = play(seed, steps, settle=PLANTED[plant] == "progress")
        if not played.ok:
            break
    assert played.check in (PLANTED[plant], *PLANTED[plant].split()), played.message
