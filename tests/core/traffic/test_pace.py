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


COUNTED = BackendSeen(10, connect_failures=2, errors=3, open=1, queue=0, p95_ms=0.5)
REPORTED = Reading(requests=80, errors=5, retries=7, p95_ms=0.25)
FIRST = replace(
    BEFORE,
    seen=replace(SEEN, refused_soft=5, refused_hard=7, backends={"a": COUNTED, "b": COUNTED}),
    readings={"a": REPORTED, "b": REPORTED},
    nodes=(
        NodeReading("n1"),
        NodeReading("n2", StallTotals(1_000_000, {"cpu_some": 500, "io_full": 90})),
    ),
)
STILL = replace(FIRST, now_ms=1_200)


def after(**changes: Any) -> Sighting:
    """The look after FIRST, with another sighting of the dataplane."""
    return replace(STILL, seen=replace(FIRST.seen or SEEN, **changes))


def test_a_look_at_nothing_new_counts_nothing() -> None:
    """Latencies as they were; with neither latencies nor nodes there is nothing to compare."""
    assert look(FIRST, STILL, THETA) == Waited(1, 200, 0, 0, 0, 0, 1.0, 0.0)
    blind = replace(FIRST, seen=SEEN_BLIND, readings={}, nodes=None)
    assert look(blind, replace(blind, now_ms=1_200), THETA) == Waited(1, 200, 0, 0, 0, 0, 0.0, 0.0)
    assert look(FIRST, FIRST, THETA) == Waited(1, 0, 0, 0, 0, 0, 1.0, 0.0)
    untold = replace(blind, readings={"a": Reading(requests=80)})
    assert look(untold, replace(untold, now_ms=1_200), THETA).slower == 0.0


SEEN_BLIND = replace(SEEN, backends={name: BackendSeen(10, open=None, queue=None) for name in "ab"})


def test_a_look_counts_everything_that_happened() -> None:
    """Each event by itself, and together they add up; so do failures."""
    events: dict[str, Any] = {
        "probed": (Probed("web", "a", ok=True), Probed("web", "b", ok=False)),
        "commands": {"a": OperatorCommand.DRAIN, "b": OperatorCommand.DRAIN},
        "checked": (Probed("web", "a", ok=False), Probed("web", "b", ok=False)),
        "early": True,
        "members": {"a": None},
        "covered": ("queue",),
        "readings": {"a": REPORTED},
    }
    counts = [
        look(FIRST, replace(STILL, **{name: new}), THETA).events for name, new in events.items()
    ]
    assert counts == [2, 2, 2, 1, 1, 1, 1]
    assert look(FIRST, after(liveness=Liveness.HOLD), THETA).events == 1
    assert look(FIRST, after(epoch=4), THETA).events == 1
    assert look(FIRST, after(admitted=19), THETA).events == 1
    everything = replace(after(liveness=Liveness.HOLD, epoch=4, admitted=19), **events)
    assert look(FIRST, everything, THETA) == Waited(1, 200, -1, 0, 13, 0, 1.0, 0.0)
    vanished = replace(everything, seen=None)
    assert look(FIRST, vanished, THETA) == Waited(1, 200, 0, 0, 11, 0, 0.0, 0.0)


def test_failures_of_all_kinds_add_up() -> None:
    """Of the group, of each backend, of each application; one that cannot be seen now is one."""
    worse = replace(COUNTED, errors=5, connect_failures=5)
    now = after(refused_soft=6, refused_hard=9, backends={"a": worse, "b": worse})
    reported = replace(REPORTED, errors=6, retries=9)
    now = replace(now, readings={"a": reported, "b": reported})
    assert look(FIRST, now, THETA).failures == 1 + 2 + 2 * (2 + 3) + 2 * (1 + 2)
    blind = replace(COUNTED, errors=None, connect_failures=None)
    assert look(FIRST, after(backends={"a": blind, "b": COUNTED}), THETA).failures == 2
    assert look(after(backends={"a": blind, "b": COUNTED}), STILL, THETA).failures == 2


@pytest.mark.parametrize(
    ("admitted", "held", "stay_ms"),
    [
        pytest.param(20, {"open": 4, "queue": 0}, 115, id="4 held, 7 served in 200 ms"),
        pytest.param(14, {"open": 4, "queue": 0}, 800, id="4 held, 1 served"),
        pytest.param(13, {"open": 4, "queue": 0}, 1_000_000, id="4 held, none served"),
        pytest.param(20, {"open": 3, "queue": 0}, 0, id="3 held are none"),
        pytest.param(20, {"open": 0, "queue": 3}, 0, id="3 that wait are none"),
        pytest.param(20, {"open": 2, "queue": 3}, 167, id="open and waiting"),
    ],
)
def test_how_long_requests_stay(admitted: int, held: dict[str, int], stay_ms: int) -> None:
    """What is inside over what was served since, in milliseconds, rounded up."""
    busy = replace(COUNTED, admitted=admitted, **held)
    now = after(backends={"a": COUNTED, "b": busy})
    assert look(FIRST, now, THETA).stay_ms == stay_ms


@pytest.mark.parametrize(
    ("was", "now", "times"), [(0.5, 0.75, 1.5), (0.5, 1.0, 2.0), (2.0, 1.0, 0.5)]
)
def test_how_much_slower_it_became(was: float, now: float, times: float) -> None:
    """The worst latency over the worst at the decision, also below a millisecond."""
    before, after = (
        replace(
            BEFORE, seen=replace(SEEN, backends={"a": replace(COUNTED, p95_ms=each), "b": COUNTED})
        )
        for each in (was, now)
    )
    assert look(before, after, THETA).slower == times


@pytest.mark.parametrize(
    ("totals", "stalled"),
    [
        pytest.param({"cpu_some": 40_500, "io_full": 90}, 0.5, id="40 of 80 ms allowed"),
        pytest.param({"cpu_some": 40_500, "io_full": 20_090}, 1.0, id="the kind that is worst"),
        pytest.param({"cpu_some": 500, "io_full": 90, "mem_full": 10_000}, 1.0, id="a new kind"),
        pytest.param({"cpu_some": 500}, 0.0, id="a kind that is gone"),
        pytest.param({"cpu_some": 500, "io_full": 90, "io_some": 90_000}, 0.0, id="a disk in use"),
    ],
)
def test_how_much_a_machine_stalled(totals: dict[str, int], stalled: float) -> None:
    """Since the decision, over what the threshold allows; beside one that says nothing."""
    nodes = (NodeReading("n1"), NodeReading("n2", StallTotals(1_200_000, totals)))
    assert look(FIRST, replace(STILL, nodes=nodes), THETA).stalled == stalled


def test_a_microsecond_of_stall_counts() -> None:
    """One that was allowed is all of it; where none was, it is as bad as any."""
    nodes = (NodeReading("n1"), NodeReading("n2", StallTotals(1_000_001, {"cpu_some": 501})))
    now = replace(STILL, nodes=nodes)
    assert look(FIRST, now, Theta(cpu_some=1.0)).stalled == 1.0
    assert look(FIRST, now, Theta(cpu_some=0.0)).stalled == 1_000_000


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
