"""One backend costs the group its own share at the most, whatever it reports."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.traffic import (
    AdmissionMode,
    Config,
    GroupDecision,
    GroupMemory,
    GroupRules,
    Resource,
    Sighting,
    StallTotals,
    govern,
    plausible,
    settle,
)
from fairlead.core.traffic.memory import EDITION
from fairlead.core.traffic.sighting import (
    BackendSeen,
    GroupSeen,
    Liveness,
    Look,
    NodeReading,
    Reading,
)

LIAR, TICK_MS, EACH_PER_TICK, HELD = "b0", 200, 8, 3
OFFERED_PER_S = EACH_PER_TICK * 1000 / TICK_MS
FIELDS = ("requests", "errors", "retries", "queue", "p95_ms")
COVERED = [(), ("retries",), FIELDS, ("requests", "errors"), ("queue",), ("p95_ms",)]
SHARE_OF_ONE_SLOT = 1 / 256


@dataclass(frozen=True, slots=True)
class Lie:
    """What the liar shows for some ticks: None is silence, a number what it says or does."""

    ticks: int
    requests: int | None = 0
    """More per tick than it got, and likewise `errors` and `retries`."""
    errors: int | None = 0
    retries: int | None = 0
    queue: float | None = 1.0
    p95_ms: float | None = 20.0
    proxy_errors: int = 0
    stall: float = 0.0
    """Share of the time in which its machine says it stands still."""
    memory: float = 0.1
    """Of its machine, used."""


extremes = st.sampled_from([0, 1, 40, 10**6, 10**12])
lies = st.lists(
    st.builds(
        Lie,
        ticks=st.integers(1, 30),
        requests=st.none() | extremes,
        errors=st.none() | extremes,
        retries=st.none() | extremes,
        queue=st.none() | st.sampled_from([0.0, 3.0, 500.0, 1e9]),
        p95_ms=st.none() | st.sampled_from([0.0, 20.0, 5_000.0, 1e9]),
        proxy_errors=st.sampled_from([0, 1, EACH_PER_TICK]),
        stall=st.sampled_from([0.0, 0.9]),
        memory=st.sampled_from([0.1, 0.99, 1.0]),
    ),
    min_size=1,
    max_size=4,
)


class LyingGroup:
    """A group with its life; all but one of its backends are honest and well."""

    def __init__(
        self, size: int, covered: tuple[str, ...], edition: int, p95_ms: float = 20.0
    ) -> None:
        self.p95_ms = p95_ms
        self.names = [f"b{number}" for number in range(size)]
        self.rules = GroupRules(
            Config(l_ref_ms=100.0),
            own_budget=True,
            own_reference=True,
            own_bound=True,
            check_failures=None,
            edition=edition,
        )
        self.covered, self.memory, self.now_ms = covered, GroupMemory(), 1_000_000
        self.sent = dict.fromkeys(self.names, 0)
        self.told = dict.fromkeys(("requests", "errors", "retries"), 0)
        self.failed = self.stalled_us = 0

    def tick(self, lie: Lie) -> GroupDecision:
        self.now_ms += TICK_MS
        for name in self.names:
            self.sent[name] += EACH_PER_TICK
        for name in self.told:
            self.told[name] += getattr(lie, name) or 0
        self.failed += lie.proxy_errors
        self.stalled_us += round(TICK_MS * 1000 * lie.stall)
        memory, decision = govern(
            self.memory, plausible(self.sighting(lie)), self.rules, group="web"
        )
        self.memory = settle(memory, decision.plan, applied=True)
        return decision

    def sighting(self, lie: Lie) -> Sighting:
        admitted = sum(self.sent.values())
        seen = GroupSeen(
            1,
            Liveness.NORMAL,
            AdmissionMode.NORMAL,
            admitted,
            0,
            0,
            {name: self.seen(name, lie) for name in self.names},
        )
        return Sighting(
            now_ms=self.now_ms,
            members={name: f"node-{name}" for name in self.names},
            seen=seen,
            readings={name: self.reading(name, lie) for name in self.names},
            covered=self.covered,
            nodes=tuple(self.node(name, lie) for name in self.names),
        )

    def seen(self, name: str, lie: Lie) -> BackendSeen:
        sent, lying = self.sent[name], name == LIAR
        failed = self.failed if lying else 0
        p95_ms = lie.p95_ms if lying else self.p95_ms
        return BackendSeen(sent, 0, 0, sent - failed, failed, HELD, 0, p95_ms)

    def reading(self, name: str, lie: Lie) -> Reading:
        sent = self.sent[name]
        if name != LIAR:
            looks = (Look(self.now_ms, sent, 0, HELD),)
            return Reading(sent, 0, 0, float(HELD), self.p95_ms, looks, self.now_ms)
        requests, errors, retries = (
            None if getattr(lie, kind) is None else self.told[kind] for kind in self.told
        )
        looks = ()
        if requests is not None and errors is not None:
            looks = (Look(self.now_ms, requests, errors, round(lie.queue or 0)),)
        return Reading(requests, errors, retries, lie.queue, lie.p95_ms, looks, self.now_ms)

    def node(self, name: str, lie: Lie) -> NodeReading:
        lying = name == LIAR
        totals = StallTotals(self.now_ms * 1000, {"cpu_some": self.stalled_us if lying else 0})
        used = lie.memory * 1000 if lying else 100.0
        return NodeReading(f"node-{name}", totals, (Resource("memory", 1000.0, used),))


def admitted_share(group: LyingGroup, decision: GroupDecision) -> float:
    """How much of what is offered comes in: by admission, and by how many may be inside."""
    size = len(group.names)
    rate, bound = decision.plan.admission.rate_per_s, decision.limits.concurrency
    shares = [1.0]
    if rate is not None:
        shares.append(rate / (OFFERED_PER_S * size))
    if bound is not None:
        shares.append(bound.inside_max / (HELD * size))
    return min(shares)


NEAR_MS = 250.0
"""With it conductance is just above G_min: one backend less, and admission would be soft."""


@given(
    size=st.integers(2, 5),
    covered=st.sampled_from(COVERED),
    told=lies,
    p95_ms=st.sampled_from([20.0, NEAR_MS]),
)
def test_one_backend_costs_its_share_at_the_most(
    size: int, covered: tuple[str, ...], told: list[Lie], p95_ms: float
) -> None:
    """Retries, latency, errors, queue, counters and machine, alone or together, in any order."""
    group = LyingGroup(size, covered, EDITION, p95_ms)
    for _ in range(20):
        group.tick(Lie(1, requests=EACH_PER_TICK, queue=HELD, p95_ms=p95_ms))
    for lie in told:
        for _ in range(lie.ticks):
            state = group.memory.state
            assert state is not None
            slots = {backend.id: backend.slots for backend in state.backends}
            decision = group.tick(lie)
            share = max(1 / size, slots[LIAR] / state.s_total)
            fallen = 1 - admitted_share(group, decision)
            assert fallen <= share + SHARE_OF_ONE_SLOT, (decision.plan.reasons, share)


@pytest.mark.parametrize(("edition", "mode"), [(1, "soft"), (EDITION, "normal")])
def test_one_slow_backend_does_not_restrict_a_group_near_its_limit(edition: int, mode: str) -> None:
    """Its weight falls; the others, who do what they did, are not let in less for it."""
    group = LyingGroup(3, (), edition, NEAR_MS)
    for _ in range(20):
        group.tick(Lie(1, p95_ms=NEAR_MS))
    modes = {str(group.tick(Lie(1, p95_ms=1e9)).plan.admission.mode) for _ in range(5)}
    assert mode in modes
    assert ("soft" in modes) is (mode == "soft")


LOUD = [Lie(40, retries=10**6), Lie(40, stall=0.9), Lie(40, memory=1.0)]


@pytest.mark.parametrize("lie", LOUD, ids=["retries", "stall", "memory"])
def test_what_one_backend_says_closed_admission_in_the_first_edition(lie: Lie) -> None:
    """The same lives by the rules of old records: 99 % are rejected on the word of one in four."""
    group = LyingGroup(4, ("retries",), edition=1)
    worst = min(admitted_share(group, group.tick(lie)) for _ in range(lie.ticks))
    assert worst < 0.02
    group = LyingGroup(4, ("retries",), EDITION)
    assert min(admitted_share(group, group.tick(lie)) for _ in range(lie.ticks)) == 1.0


@pytest.mark.parametrize("lie", LOUD, ids=["retries", "stall", "memory"])
def test_what_two_backends_say_is_confirmed(lie: Lie) -> None:
    """A storm, a stall or a leak that a second backend shows too closes admission as before."""

    class Both(LyingGroup):
        def reading(self, name: str, lie: Lie) -> Reading:
            return super().reading(LIAR if name == "b1" else name, lie)

        def node(self, name: str, lie: Lie) -> NodeReading:
            shown = super().node(LIAR if name == "b1" else name, lie)
            return NodeReading(f"node-{name}", shown.totals, shown.resources)

    group = Both(4, ("retries",), EDITION)
    assert min(admitted_share(group, group.tick(lie)) for _ in range(lie.ticks)) < 0.02
