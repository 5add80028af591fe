"""What fails wherever it goes, and what is stuck in an isolated backend, costs others nothing."""

from fairlead.core.traffic import (
    AdmissionMode,
    GroupDecision,
    GroupMemory,
    GroupRules,
    Sighting,
    govern,
    settle,
)
from fairlead.core.traffic.limits import STUCK_STEP
from fairlead.core.traffic.memory import CONFIRMED, EDITION
from fairlead.core.traffic.sighting import BackendSeen, GroupSeen, Liveness, OperatorCommand

IDS = ("a", "b", "c", "d")
EACH, TICK_MS = 8, 200


class FailingGroup:
    """Each backend gets as many a tick; some fail, and one may hold what it never answers."""

    def __init__(self, edition: int, *, own_bound: bool = True) -> None:
        self.rules = GroupRules(own_bound=own_bound, edition=edition)
        self.memory, self.now_ms = GroupMemory(), 1_000_000
        self.sent, self.failed = dict.fromkeys(IDS, 0), dict.fromkeys(IDS, 0)
        self.open = dict.fromkeys(IDS, 3)
        self.commands: dict[str, OperatorCommand] = {}

    def go(self, ticks: int, **failing: int) -> GroupDecision:
        """So many of each thousand of a backend's requests fail."""
        for _ in range(ticks):
            self.now_ms += TICK_MS
            for id in IDS:
                self.sent[id] += EACH
                self.failed[id] = self.sent[id] * failing.get(id, 0) // 1_000
            memory, decision = govern(self.memory, self.sighting(), self.rules, group="web")
            self.memory = settle(memory, decision.plan, applied=True)
        return decision

    def sighting(self) -> Sighting:
        backends = {
            id: BackendSeen(
                admitted=sent,
                connect_failures=0,
                consecutive_failures=0,
                successes=sent - self.failed[id],
                errors=self.failed[id],
                open=self.open[id],
                queue=0,
                p95_ms=20.0,
            )
            for id, sent in self.sent.items()
        }
        totals = (sum(self.sent.values()), 0, 0)
        seen = GroupSeen(1, Liveness.NORMAL, AdmissionMode.NORMAL, *totals, backends)
        members = dict.fromkeys(IDS)
        return Sighting(now_ms=self.now_ms, members=members, seen=seen, commands=self.commands)


def rates(decision: GroupDecision) -> dict[str, float | None]:
    return {each.id: each.error_rate for each in decision.snapshot.backends}


def test_a_rate_of_errors_that_all_show_is_no_backends_own() -> None:
    """A percent everywhere counts as none; up to version 6 each had it."""
    everywhere = dict.fromkeys(IDS, 10)
    assert set(rates(FailingGroup(EDITION).go(60, **everywhere)).values()) == {0.0}
    assert min(rates(FailingGroup(CONFIRMED).go(60, **everywhere)).values()) > 0.0  # type: ignore[type-var]


def test_a_backend_that_fails_more_often_than_the_others_is_seen() -> None:
    """By what it fails beyond them, and it loses slots for it. The others stay at nothing."""
    decision = FailingGroup(EDITION).go(60, a=10, b=10, c=10, d=100)
    found = rates(decision)
    assert 0.08 < (found["d"] or 0.0) < 0.1
    assert found["a"] == found["b"] == found["c"] == 0.0
    assert decision.plan.slots["d"] < decision.plan.slots["a"]


def test_no_more_than_the_reference_is_taken_off() -> None:
    """Where all fail one in five, all are seen to, or admission would stay open."""
    found = rates(FailingGroup(EDITION).go(60, **dict.fromkeys(IDS, 200)))
    assert min(found.values()) >= 0.18  # type: ignore[type-var]


def test_what_an_isolated_backend_still_holds_comes_on_top_of_the_bound() -> None:
    """In steps, because each change is a flip; the others' rooms and the bound without an agent are
    as they were. An operator's own bound holds whatever is stuck."""
    group = FailingGroup(EDITION)
    before = group.go(20).limits
    group.commands, group.open["d"] = {"d": OperatorCommand.ISOLATE}, 2 * STUCK_STEP - 3
    after = group.go(1).limits
    assert before.concurrency is not None
    assert after.concurrency is not None
    assert after.concurrency.inside_max == before.concurrency.inside_max + 2 * STUCK_STEP
    assert after.fallback.bound.inside_max == before.fallback.bound.inside_max
    former = FailingGroup(CONFIRMED)
    first = former.go(20).limits
    former.commands, former.open["d"] = group.commands, group.open["d"]
    later = former.go(1).limits
    assert first.concurrency is not None
    assert later.concurrency is not None
    assert later.concurrency.inside_max == first.concurrency.inside_max
