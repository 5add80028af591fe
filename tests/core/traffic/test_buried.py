"""An agent that starts on buried backends sheds until their backlog is gone."""

from collections import deque

import pytest

from fairlead.core.traffic import (
    AdmissionMode,
    Config,
    GroupMemory,
    GroupRules,
    Sighting,
    govern,
    plausible,
    rested,
    settle,
)
from fairlead.core.traffic.memory import EDITION
from fairlead.core.traffic.sighting import BackendSeen, GroupSeen, Liveness

NAMES, TICK_MS, SERVED_PER_TICK, OFFERED_PER_TICK = ("a", "b", "c", "d"), 200, 96, 86
BACKLOG, SLO_MS = 6_000, 400
"""The group serves 480 a second, 430 are offered: without shedding it takes two minutes."""


class BuriedGroup:
    """First in, first out, as one queue; what is in it at the start is old already."""

    def __init__(self, memory: GroupMemory, edition: int, patience_ms: int) -> None:
        self.rules = GroupRules(
            Config(l_ref_ms=float(SLO_MS)),
            own_budget=True,
            own_reference=True,
            own_bound=True,
            edition=edition,
        )
        self.memory, self.patience_ms = memory, patience_ms
        self.now_ms = 10_000_000 if memory.now_ms is None else memory.now_ms + 60_000
        self.queue = deque([self.now_ms - 60_000] * BACKLOG)
        self.admitted, self.successes, self.refused, self.good = BACKLOG, 0, 0, 0
        self.bound: int | None = None

    def step(self) -> None:
        """Serve, let in what the bound allows, decide."""
        self.now_ms += TICK_MS
        for _ in range(min(SERVED_PER_TICK, len(self.queue))):
            took_ms = self.now_ms - self.queue.popleft()
            # A client that has given up counts no success, and its work is done all the same.
            self.successes += took_ms <= self.patience_ms
            self.good += took_ms <= SLO_MS
        for _ in range(OFFERED_PER_TICK):
            if self.bound is None or len(self.queue) < self.bound:
                self.queue.append(self.now_ms)
                self.admitted += 1
            else:
                self.refused += 1
        self._decide()

    def _decide(self) -> None:
        parts = len(NAMES)
        backends = {
            name: BackendSeen(
                self.admitted // parts,
                0,
                0,
                self.successes // parts,
                0,
                len(self.queue) // parts,
                0,
                None,
            )
            for name in NAMES
        }
        seen = GroupSeen(
            1, Liveness.NORMAL, AdmissionMode.NORMAL, self.admitted, self.refused, 0, backends
        )
        sighting = Sighting(now_ms=self.now_ms, members=dict.fromkeys(NAMES), seen=seen)
        memory, decision = govern(self.memory, plausible(sighting), self.rules, group="web")
        self.memory = settle(memory, decision.plan, applied=True)
        concurrency = decision.limits.concurrency
        self.bound = None if concurrency is None else concurrency.inside_max

    def recovers_within(self, seconds: float) -> bool:
        """Whether a second comes in which nine tenths of what it can serve is good."""
        for _ in range(round(seconds)):
            before = self.good
            for _ in range(1000 // TICK_MS):
                self.step()
            if self.good - before >= 0.9 * OFFERED_PER_TICK * 1000 / TICK_MS:
                return True
        return False


NEVER_MS, SOON_MS = 10**9, 2_000


@pytest.mark.parametrize("patience_ms", [NEVER_MS, SOON_MS], ids=["late answers", "given up"])
def test_an_agent_without_memory_recovers_a_buried_group(patience_ms: int) -> None:
    """Within 20 s: 12.5 s of them the backlog needs by itself. By the rules of before, not."""
    assert BuriedGroup(GroupMemory(), EDITION, patience_ms).recovers_within(20)
    assert not BuriedGroup(GroupMemory(), 1, patience_ms).recovers_within(60)


def test_an_agent_that_comes_back_sheds_by_what_it_had_learned() -> None:
    """From its first tick on, for the bound is part of what is kept."""
    before = BuriedGroup(GroupMemory(), EDITION, NEVER_MS)
    before.queue.clear()
    for _ in range(50):
        before.step()
    assert before.bound is not None
    group = BuriedGroup(rested(before.memory), EDITION, SOON_MS)
    group.step()
    assert group.bound == before.bound
    assert group.recovers_within(20)
