"""A latency of few requests that chance explains moves no slots; one that it does not does."""

import random

import pytest

from fairlead.core.traffic import (
    AdmissionMode,
    GroupDecision,
    GroupMemory,
    GroupRules,
    Sighting,
    govern,
    settle,
)
from fairlead.core.traffic.limits import LATENCY_WINDOW_MS, p95
from fairlead.core.traffic.memory import EDITION, FIRM
from fairlead.core.traffic.pace import rests
from fairlead.core.traffic.sighting import BackendSeen, GroupSeen, Liveness, OperatorCommand

IDS = ("a", "b", "c", "d")
TICK_MS, USUAL_MS = 200, 50.0


class DrawnGroup:
    """Backends that are all alike, whose requests take a lognormal time; some may be slower."""

    def __init__(self, edition: int, *, per_s: float, seed: int = 1) -> None:
        self.rules = GroupRules(edition=edition)
        self.memory, self.now_ms, self.per_s = GroupMemory(), 1_000_000, per_s
        self.chance = random.Random(seed)
        self.times = dict.fromkeys(IDS, 1.0)
        self.done = {id: list[tuple[int, float]]() for id in IDS}
        self.commands: dict[str, OperatorCommand] = {}
        self.slots = dict.fromkeys(IDS, 64)
        self.moved = 0

    def go(self, seconds: float) -> list[GroupDecision]:
        return [self._tick() for _ in range(round(seconds * 1_000 / TICK_MS))]

    def _tick(self) -> GroupDecision:
        self.now_ms += TICK_MS
        for id in IDS:
            due = self.per_s * TICK_MS / 1_000 * self.slots[id] / 256
            for _ in range(int(due) + (self.chance.random() < due % 1)):
                took_ms = USUAL_MS * self.times[id] * self.chance.lognormvariate(0, 0.5)
                self.done[id].append((self.now_ms, took_ms))
        memory, decision = govern(self.memory, self._sighting(), self.rules, group="web")
        self.memory = settle(memory, decision.plan, applied=True)
        self.moved += decision.plan.slots != self.slots
        self.slots = dict(decision.plan.slots)
        return decision

    def _sighting(self) -> Sighting:
        backends = {}
        for id, done in self.done.items():
            last = [ms for at_ms, ms in done if self.now_ms - at_ms < LATENCY_WINDOW_MS]
            counts = (len(done), 0, 0, len(done), 0)
            backends[id] = BackendSeen(*counts, open=0, queue=0, p95_ms=p95(last))
        totals = (sum(map(len, self.done.values())), 0, 0)
        seen = GroupSeen(1, Liveness.NORMAL, AdmissionMode.NORMAL, *totals, backends)
        members = dict.fromkeys(IDS)
        return Sighting(now_ms=self.now_ms, members=members, seen=seen, commands=self.commands)


@pytest.mark.parametrize("per_s", [2.0, 20.0])
def test_backends_that_are_alike_keep_their_slots(per_s: float) -> None:
    """Up to version 7 slots of such a group moved all the time, each time with a flip."""
    rested, moved = {}, {}
    for edition in (FIRM, EDITION):
        group = DrawnGroup(edition, per_s=per_s)
        group.go(10)
        group.moved = 0
        rested[edition] = sum(map(rests, group.go(60)))
        moved[edition] = group.moved
    assert moved[EDITION] * 4 <= moved[FIRM]
    assert rested[EDITION] >= 2 * rested[FIRM]
    assert max(group.slots.values()) - min(group.slots.values()) <= 32


@pytest.mark.parametrize("per_s", [20.0, 240.0])
def test_a_backend_that_is_ten_times_slower_is_isolated(per_s: float) -> None:
    group = DrawnGroup(EDITION, per_s=per_s)
    group.go(10)
    group.times["d"] = 10.0
    last = group.go(6)[-1]
    assert last.plan.slots["d"] == 0
    assert set(last.observed.isolated) == {"d"}


def test_one_slow_request_isolates_no_backend() -> None:
    """It was the p95 of its backend for five seconds, and two more than an outlier needs."""
    isolated = {}
    for edition in (FIRM, EDITION):
        group = DrawnGroup(edition, per_s=2.0)
        group.chance = random.Random(3)
        group.go(10)
        for id in IDS:
            group.done[id] = [(group.now_ms, USUAL_MS)]
        group.done["d"] = [(group.now_ms, 8 * USUAL_MS)]
        group.per_s = 0.0
        isolated[edition] = {id for each in group.go(4.8) for id in each.observed.isolated}
    assert isolated == {FIRM: {"d"}, EDITION: set()}


def test_a_difference_that_lasts_moves_slots() -> None:
    """Twice as slow, in a hundred requests of the window: most of it is believed."""
    group = DrawnGroup(EDITION, per_s=120.0)
    group.go(10)
    group.times["d"] = 2.0
    slots = group.go(30)[-1].plan.slots
    assert slots["d"] <= 48
    assert min(slots[id] for id in "abc") >= 60
    assert sum(slots.values()) == 256


def test_an_isolated_backend_is_judged_by_its_probes() -> None:
    group = DrawnGroup(EDITION, per_s=20.0)
    group.commands = {"d": OperatorCommand.ISOLATE}
    group.times["d"] = 4.0
    (last,) = group.go(10)[-1:]
    (d,) = [each for each in last.snapshot.backends if each.id == "d"]
    assert d.p95_ms == group._sighting().seen.backends["d"].p95_ms  # type: ignore[union-attr]
