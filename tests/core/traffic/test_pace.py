"""Calm groups wait for their next decision, and not one tick longer than nothing happens."""

from dataclasses import replace
from typing import Any

import pytest

from fairlead.core.traffic import (
    Config,
    GroupMemory,
    GroupRules,
    OperatorCommand,
    Sighting,
    StallTotals,
    govern,
    settle,
)
from fairlead.core.traffic.config import Theta
from fairlead.core.traffic.pace import CALM_MS, IDLE_MS, REQUESTS_MIN, look, may_wait, merge, rests
from fairlead.core.traffic.sighting import (
    BackendSeen,
    GroupSeen,
    Liveness,
    NodeReading,
    Probed,
    Reading,
    Waited,
)
from fairlead.core.traffic.state import AdmissionMode

THETA = Theta()
BACKEND = BackendSeen(10, connect_failures=0, successes=10, errors=0, open=1, queue=0, p95_ms=20.0)
SEEN = GroupSeen(
    epoch=3,
    liveness=Liveness.NORMAL,
    mode=AdmissionMode.NORMAL,
    admitted=20,
    refused_soft=0,
    refused_hard=0,
    backends={"a": BACKEND, "b": BACKEND},
)


def node(at_ms: int, stalled_us: int) -> NodeReading:
    return NodeReading("n1", StallTotals(at_ms * 1000, {"cpu_some": stalled_us}))


BEFORE = Sighting(
    now_ms=1_000, members={"a": None, "b": None}, seen=SEEN, nodes=(node(1_000, 500),)
)
NOW = replace(BEFORE, now_ms=1_200, nodes=(node(1_200, 1_500),))


def waits(before: Sighting, now: Sighting, theta: Theta = THETA) -> bool:
    return may_wait(look(before, now, theta))


def test_a_group_in_which_nothing_happens_waits() -> None:
    """Requests that are served well are nothing, however many."""
    served = replace(BACKEND, admitted=500, successes=500, open=3)
    busier = replace(SEEN, admitted=520, backends={"a": served, "b": BACKEND})
    assert waits(BEFORE, NOW)
    assert waits(BEFORE, replace(NOW, seen=busier))
    nodeless = replace(BEFORE, nodes=None)
    assert waits(nodeless, replace(NOW, nodes=None))
    silent = (NodeReading("n1"),)
    assert waits(replace(BEFORE, nodes=silent), replace(NOW, nodes=silent))
    assert waits(BEFORE, replace(NOW, checked=(Probed("web", "a", ok=True),)))


@pytest.mark.parametrize(
    ("requests", "least_ms", "most_ms"),
    [(0, CALM_MS, IDLE_MS), (REQUESTS_MIN - 1, CALM_MS, IDLE_MS), (REQUESTS_MIN, 200, CALM_MS)],
)
def test_a_group_that_gets_few_requests_waits_for_longer(
    requests: int, least_ms: int, most_ms: int
) -> None:
    """Until as many came as a rate of errors is judged by, or its latencies are all new."""
    seen = replace(SEEN, admitted=20 + requests)
    now = replace(NOW, seen=seen, nodes=BEFORE.nodes)
    assert waits(BEFORE, replace(now, now_ms=1_000 + least_ms))
    assert waits(BEFORE, replace(now, now_ms=1_000 + most_ms - 1))
    assert not waits(BEFORE, replace(now, now_ms=1_000 + most_ms))


@pytest.mark.parametrize(("served", "calm"), [(40, True), (4, True), (3, False), (0, False)])
def test_requests_that_flow_do_not_end_a_wait(served: int, calm: bool) -> None:
    """A busy backend holds some all the time; in one that stalls they stay."""
    busy = replace(BACKEND, admitted=10 + 3 + served, open=4)
    assert waits(BEFORE, backend(**{"admitted": busy.admitted, "open": 4})) is calm


def backend(**changes: Any) -> Sighting:
    one = replace(BACKEND, **changes)
    return replace(NOW, seen=replace(SEEN, backends={"a": one, "b": BACKEND}))


@pytest.mark.parametrize(
    "happened",
    [
        replace(NOW, now_ms=1_000 + IDLE_MS),
        replace(NOW, now_ms=999),
        replace(NOW, seen=replace(SEEN, admitted=19)),
        replace(NOW, early=True),
        replace(NOW, probed=(Probed("web", "a", ok=True),)),
        replace(NOW, checked=(Probed("web", "a", ok=False),)),
        replace(NOW, commands={"a": OperatorCommand.DRAIN}),
        replace(NOW, members={"a": None}),
        replace(NOW, covered=("queue",)),
        replace(NOW, seen=None),
        replace(NOW, seen=replace(SEEN, liveness=Liveness.HOLD)),
        replace(NOW, seen=replace(SEEN, epoch=4)),
        replace(NOW, seen=replace(SEEN, refused_soft=1)),
        replace(NOW, seen=replace(SEEN, refused_hard=1)),
        replace(NOW, seen=replace(SEEN, backends={"a": BACKEND, "c": BACKEND})),
        backend(errors=1),
        backend(connect_failures=1),
        backend(open=4),
        backend(open=2, queue=2),
        backend(p95_ms=40.0),
        backend(errors=None),
        replace(NOW, nodes=None),
        replace(NOW, nodes=()),
        replace(NOW, nodes=(NodeReading("n1"),)),
        replace(NOW, nodes=(node(1_200, 100_000),)),
        replace(NOW, nodes=(node(1_200, 600), NodeReading("n2", StallTotals(1, {"io_full": 1})))),
    ],
)
def test_whatever_a_tick_reacts_to_ends_the_wait(happened: Sighting) -> None:
    """In the tick in which it is seen."""
    assert not waits(BEFORE, happened)


@pytest.mark.parametrize(
    ("reading", "calm"),
    [
        (Reading(requests=90, errors=0, retries=0, queue=1.0), True),
        (Reading(requests=90, errors=1, retries=0), False),
        (Reading(requests=90, errors=0, retries=1), False),
        (Reading(requests=90, errors=0, retries=0, queue=4.0), False),
        (Reading(requests=90, errors=0, retries=0, p95_ms=39.0), True),
        (Reading(requests=90, errors=0, retries=0, p95_ms=41.0), False),
    ],
)
def test_what_applications_report_counts_too(reading: Reading, calm: bool) -> None:
    """Errors, retries, what piles up, and latencies."""
    before = replace(BEFORE, readings={"a": Reading(requests=80, errors=0, retries=0)})
    assert waits(before, replace(NOW, readings={"a": reading})) is calm
    assert not waits(before, NOW)
    assert not waits(BEFORE, replace(NOW, readings={"a": reading}))


def test_first_latencies_end_a_wait_and_missing_ones_do_not() -> None:
    """There is nothing to compare the first ones with."""
    blind = replace(BACKEND, p95_ms=None)
    unknown = replace(BEFORE, seen=replace(SEEN, backends={"a": blind, "b": blind}))
    assert not waits(unknown, NOW)
    assert waits(BEFORE, replace(NOW, seen=unknown.seen))


def test_a_threshold_of_zero_is_passed_by_any_stall() -> None:
    """No share of it can be computed."""
    assert not waits(BEFORE, NOW, Theta(cpu_some=0.0))
    assert waits(BEFORE, replace(NOW, nodes=BEFORE.nodes), Theta(cpu_some=0.0))


def test_a_threshold_of_all_the_time_is_never_passed() -> None:
    """A counter is read a moment later than the clock: it may show more than all of it."""
    pegged = replace(NOW, nodes=(node(1_200, 500 + 200_100),))
    assert waits(BEFORE, pegged, Theta(cpu_some=1.0))


def test_looks_together_show_the_most_of_each() -> None:
    """So that one test stands for all of them."""
    first = Waited(1, 200, 3, 0, 0, 40, 1.0, 0.5)
    second = Waited(1, 400, 5, 1, 0, 30, 1.5, 0.25)
    assert merge(None, first) == first
    assert merge(first, second) == Waited(2, 400, 5, 1, 0, 40, 1.5, 0.5)


def test_a_decision_is_settled_once_nothing_moves() -> None:
    """The first one places the slots; a slow backend moves them until they rest."""
    memory, rules = GroupMemory(), GroupRules(Config())
    settled = []
    for turn in range(12):
        slow = replace(BACKEND, p95_ms=60.0 if turn > 5 else 20.0)
        seen = replace(SEEN, backends={"a": slow, "b": BACKEND})
        sighting = replace(BEFORE, now_ms=1_000 + 200 * turn, seen=seen, nodes=None)
        memory, decision = govern(memory, sighting, rules, group="web")
        memory = settle(memory, decision.plan, applied=True)
        settled.append(rests(decision))
    assert settled == [False, *[True] * 5, *[False] * 6]
