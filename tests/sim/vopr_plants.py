"""Faults that are planted into the product, each of which the simulation has to find.

`python -m tests.sim.vopr_plants` plants them one after the other and prints what found each; `make
soak` stores it. Several are the attacks of an outsider (decision 0080), as the code once had them.
"""

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from starlette.requests import Request

from fairlead.api.access import AccessGate, AccessState
from fairlead.api.endpoint import Call
from fairlead.api.service import Service
from fairlead.core.gpu.clock import ClockReading, ClockReason, LedgerTime
from fairlead.core.lottery import Commitment, Reveal
from fairlead.core.lottery import beacon as core_beacon
from fairlead.core.traffic import GroupRules
from fairlead.core.traffic.alone import Relaxed
from fairlead.dataplane import memory
from fairlead.engine.gpu import Author, effects, settlement
from fairlead.engine.gpu import clock as engine_clock
from fairlead.engine.gpu.clock import LedgerClock
from fairlead.engine.gpu.clock_watch import ClockWatch
from fairlead.engine.gpu.committer import Committer
from fairlead.engine.gpu.effects import Effects
from fairlead.engine.gpu.resolver import outcome
from fairlead.engine.gpu.resolver.outcome import Outcomes
from fairlead.engine.gpu.resolver.requests import Resolver
from fairlead.engine.gpu.state import RunState, Stored
from fairlead.ledger import reading
from fairlead.ports.executor import Job
from fairlead.ports.ledger import Entry
from fairlead.schema import objects
from fairlead.sim.executor import SimExecutor
from fairlead.sim.vopr.command import read
from fairlead.sim.vopr.disk import SimDisk, SimFile
from fairlead.sim.vopr.play import Played, play, schedule

STORED = Path(__file__).parent / "vopr"


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

    def preempted(state: RunState, end_ms: int, _: object) -> int | None:
        reclaim = state.reclaim
        cut = reclaim is not None and reclaim.preempts and end_ms >= reclaim.since_ms
        return reclaim.since_ms if reclaim is not None and cut else None

    real = RunState.is_ending.fget
    assert real is not None
    kept = property(lambda self: real(self) and (self.reclaim is not None or not self.stopping))
    patch.setattr(RunState, "is_ending", kept)
    patch.setattr(settlement, "_preempted_since", preempted)


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


def believed_liar(patch: pytest.MonkeyPatch) -> None:
    """What one backend says of retries closes admission for all, as it did."""
    patch.setattr(GroupRules, "confirm", False)


def second_draw(patch: pytest.MonkeyPatch) -> None:
    """A void hands nothing on: the operator draws again until the result pleases."""
    real = outcome.reveal

    def reveal(made: Commitment, **given: Any) -> Reveal:
        return replace(real(made, **given), carry=None)

    patch.setattr(outcome, "reveal", reveal)


def any_signature(patch: pytest.MonkeyPatch) -> None:
    """Who runs the control plane may make up the value of a round."""
    patch.setattr(core_beacon, "signature_holds", lambda key, number, value: True)


def deaf_clock(patch: pytest.MonkeyPatch) -> None:
    """A jump is asked about, and the answer changes nothing."""
    patch.setattr(ClockWatch, "judge", lambda self, judgement, *, author, dry_run=False: {})


def any_text(patch: pytest.MonkeyPatch) -> None:
    """A tenant's NUL reaches the call that starts a process, and ends the control plane."""
    patch.setattr(objects, "refuse_nul", lambda value, path="": None)


def any_cancel(patch: pytest.MonkeyPatch) -> None:
    """The gate takes every user for an admin where a run is cancelled."""
    real = AccessGate.author

    def author(self: AccessGate, request: Request, *, page: bool = False) -> Author | None:
        found = real(self, request, page=page)
        cancels = found is not None and request.url.path.endswith("/cancel")
        return replace(found, admin=True) if found is not None and cancels else found

    patch.setattr(AccessGate, "author", author)


def early_reply(patch: pytest.MonkeyPatch) -> None:
    """A run's cancel is acknowledged, and nothing is recorded."""
    real = Call.by.fget
    assert real is not None

    def by(self: Call) -> dict[str, Any]:
        return real(self) | {"dry_run": self.path.get("verb") == "cancel"}

    patch.setattr(Call, "by", property(by))


def half_refused(patch: pytest.MonkeyPatch) -> None:
    """A drain is refused while the clock is held, and the node is cordoned, as it was."""
    real = Resolver.drain

    def drain(self: Resolver, stored: Stored, author: Author) -> None:
        self._committer.commit(lambda: self._cordoned(stored.name, author))
        real(self, stored, author)

    patch.setattr(Resolver, "drain", drain)


def deaf_unbind(patch: pytest.MonkeyPatch) -> None:
    """A user that an operator has unbound keeps its rights."""
    real = AccessState.fold

    def fold(self: AccessState, entry: Entry) -> None:
        if not entry.body.get("gone"):
            real(self, entry)

    patch.setattr(AccessState, "fold", fold)


def old_checkpoint(patch: pytest.MonkeyPatch) -> None:
    """A reply has the checkpoint of before its change."""
    real = Service.head_headers
    before: list[dict[str, str]] = []

    def head_headers(self: Service) -> dict[str, str]:
        before.append(real(self))
        return before[-2:][0]

    patch.setattr(Service, "head_headers", head_headers)


class Plant(NamedTuple):
    """A fault, what finds it, and the steps among which it is looked for if it is rare."""

    fault: Callable[[pytest.MonkeyPatch], None]
    checks: str
    attack: int | None = None
    """The number of the outsider's attack (decision 0080)."""
    kinds: str = ""
    seeds: Iterable[int] = range(2_000, 2_060)
    steps: int = 200
    stored: str = ""
    """The schedule that found it."""


PLANTED = (
    Plant(frozen_flavor, "progress", 1),
    Plant(unsealed_state, "projection", 2, "submit turn tamper"),
    Plant(any_owner, "rights", 3, "submit turn trespass"),
    Plant(any_cancel, "rights", 3, "submit turn trespass"),
    Plant(deaf_unbind, "rights", 3, "turn bind trespass"),
    Plant(early_reply, "acknowledged"),
    Plant(half_refused, "refused", stored="drain-while-held"),
    Plant(old_checkpoint, "checkpoint"),
    Plant(
        second_draw,
        "one-draw",
        4,
        "submit turn reserve use_beacon beacon void",
        range(2_020, 2_060),
    ),
    Plant(any_signature, "beacon", 4, "submit turn reserve use_beacon beacon", range(2_005, 2_060)),
    Plant(wall_clock, "charges time-order invariant", 8),
    Plant(wall_clock, "charges time-order invariant", 8, "submit turn wait fail_over"),
    Plant(deaf_clock, "progress", 8, "submit turn jump", range(2_006, 2_060)),
    Plant(
        believed_liar, "traffic-agent one-signal", 9, "traffic_agent lie", range(2_001, 2_060, 6)
    ),
    # Those whose traffic is twice the capacity.
    Plant(
        unbounded_fallback,
        "traffic-agent bound",
        10,
        "traffic_agent kill_traffic",
        range(2_001, 2_060, 6),
        steps=20,
    ),
    Plant(restart_after_cancel, "cancelled", 11, "submit turn delete cancel node resolve reserve"),
    Plant(any_text, "exception", 11, "submit turn hostile"),
    Plant(another_decision, "recorded-first"),
    Plant(unsynced, "acknowledged-writes exception"),
    Plant(unsynced_opening, "acknowledged-writes", stored="unsynced-recovery"),
    Plant(another_job, "recorded-first"),
    Plant(double_lease, "devices"),
    Plant(forgetful_fold, "projection"),
    Plant(never_finished, "progress"),
)


def find(plant: Plant) -> Played:
    """The first schedule that breaks a promise; the last one, if none does."""
    with pytest.MonkeyPatch.context() as patch:
        plant.fault(patch)
        if plant.stored:
            return play(*read(STORED / f"{plant.stored}.json"))
        for seed in plant.seeds:
            steps = schedule(seed, plant.steps, kinds=plant.kinds.split())
            played = play(seed, steps, settle=plant.checks == "progress")
            if not played.ok:
                break
        return played


def report() -> dict[str, object]:
    """What found each; raises where one was not found, or by another check."""
    rows: list[dict[str, Any]] = []
    for plant in PLANTED:
        played = find(plant)
        if played.check not in plant.checks.split() and played.check != plant.checks:
            raise AssertionError(f"{plant.fault.__name__}: {played.check} {played.message}")
        found = {"check": played.check, "seed": played.seed, "steps": played.done}
        rows.append({"fault": plant.fault.__name__, "attack": plant.attack, **found})
    attacks = sorted({row["attack"] for row in rows if row["attack"]})
    return {"planted": len(PLANTED), "found": len(rows), "attacks": attacks, "faults": rows}


if __name__ == "__main__":
    json.dump(report(), sys.stdout, indent=1)
