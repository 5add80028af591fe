"""All backends are slow for a while: the bound sheds what is too much, and nothing afterwards."""

import pytest

from fairlead.core.traffic import (
    AdmissionMode,
    Config,
    GroupMemory,
    GroupRules,
    Sighting,
    govern,
    plausible,
    settle,
)
from fairlead.core.traffic.learn import FLOOR, GROWN_MOST, AdmissionBudget, failing_flow
from fairlead.core.traffic.memory import EDITION
from fairlead.core.traffic.sighting import BackendSeen, GroupSeen, Liveness

NAMES, TICK_MS = ("a", "b", "c"), 200


class Group:
    """Three backends that serve what they are asked to, as slowly as a test says."""

    def __init__(self, *, own_flow: bool, own_bound: bool = True) -> None:
        self.rules = GroupRules(
            Config(), own_budget=True, own_bound=own_bound, own_flow=own_flow, edition=EDITION
        )
        self.memory, self.now_ms = GroupMemory(), 1_000_000
        self.successes = self.errors = 0

    def go(self, seconds: float, *, p95_ms: float, per_s: int = 300, failing: float = 0.0) -> None:
        for _ in range(round(seconds * 1000 / TICK_MS)):
            self.now_ms += TICK_MS
            each = per_s * TICK_MS // 1000 // len(NAMES)
            failed = round(each * failing)
            self.successes, self.errors = self.successes + each - failed, self.errors + failed
            seen = BackendSeen(
                self.successes + self.errors,
                connect_failures=0,
                successes=self.successes,
                errors=self.errors,
                open=4,
                queue=0,
                p95_ms=p95_ms,
            )
            group = GroupSeen(
                epoch=1,
                liveness=Liveness.NORMAL,
                mode=self.mode,
                admitted=3 * (self.successes + self.errors),
                refused_soft=0,
                refused_hard=0,
                backends=dict.fromkeys(NAMES, seen),
            )
            sighting = Sighting(now_ms=self.now_ms, members=dict.fromkeys(NAMES), seen=group)
            memory, decision = govern(self.memory, plausible(sighting), self.rules, group="web")
            self.memory = settle(memory, decision.plan, applied=True)

    @property
    def mode(self) -> AdmissionMode:
        state = self.memory.state
        return AdmissionMode.NORMAL if state is None else state.admission.mode


@pytest.mark.parametrize(
    ("own_flow", "own_bound", "mode"),
    [
        (True, True, AdmissionMode.NORMAL),
        (True, False, AdmissionMode.SOFT),
        (False, True, AdmissionMode.SOFT),
    ],
)
def test_slow_backends_do_not_restrict_a_bounded_group(
    own_flow: bool, own_bound: bool, mode: AdmissionMode
) -> None:
    """Without a bound, and in records of before, low conductance still does."""
    group = Group(own_flow=own_flow, own_bound=own_bound)
    group.go(10, p95_ms=60.0)
    group.go(10, p95_ms=500.0, per_s=90)
    assert group.mode is mode


def test_backends_that_all_fail_restrict_a_bounded_group() -> None:
    """Errors are as fast as successes: no bound on what is inside holds them."""
    group = Group(own_flow=True)
    group.go(10, p95_ms=60.0)
    group.go(6, p95_ms=60.0, failing=0.2)
    assert group.mode is AdmissionMode.SOFT


def test_g_min_of_a_bounded_group_is_where_every_backend_fails() -> None:
    """P of a backend that fails as often as eta is 10 + 3 * 5; a lower G_min of the operator's
    stays."""
    assert failing_flow(0.3, Config()) == pytest.approx(1 / 25)
    assert failing_flow(0.01, Config()) == 0.01
    assert failing_flow(0.3, Config(k_e=0.0, w_e=0.0)) == 0.3


@pytest.mark.parametrize(("bounded", "after_s"), [(True, 3), (False, 22)])
def test_the_budget_of_a_bounded_group_is_back_in_seconds(bounded: bool, after_s: int) -> None:
    """From its floor to what was served before; it doubles every second."""
    budget = AdmissionBudget(rate=FLOOR * 200, soft=True, before=200.0)
    for second in range(1, 30):
        budget = budget.advance(
            1000 * second,
            None,
            mode=AdmissionMode.SOFT,
            triggered=False,
            config=Config(),
            window_ms=5_000,
            bounded=bounded,
        )
        assert budget.rate is not None
        if budget.rate >= 200:
            break
    assert second <= after_s < second + 3
    assert budget.rate is not None
    assert budget.rate <= GROWN_MOST * 200
