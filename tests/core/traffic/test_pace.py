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
from fairlead.core.traffic.pace import CALM_MS, IDLE_MS, is_settled, may_wait
from fairlead.core.traffic.sighting import (
    BackendSeen,
    GroupSeen,
    Liveness,
    NodeReading,
    Probed,
    Reading,
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


def test_a_group_in_which_nothing_happens_waits() -> None:
    """Requests that are served well are nothing, however many."""
    served = replace(BACKEND, admitted=500, successes=500, open=3)
    busier = replace(SEEN, admitted=520, backends={"a": served, "b": BACKEND})
    assert may_wait(BEFORE, NOW, THETA)
    assert may_wait(BEFORE, replace(NOW, seen=busier), THETA)
    nodeless = replace(BEFORE, nodes=None)
    assert may_wait(nodeless, replace(NOW, nodes=None), THETA)
    assert may_wait(BEFORE, replace(NOW, now_ms=1_000 + CALM_MS, nodes=BEFORE.nodes), THETA)
    silent = (NodeReading("n1"),)
    assert may_wait(replace(BEFORE, nodes=silent), replace(NOW, nodes=silent), THETA)


def backend(**changes: Any) -> Sighting:
    one = replace(BACKEND, **changes)
    return replace(NOW, seen=replace(SEEN, backends={"a": one, "b": BACKEND}))


@pytest.mark.parametrize(
    "happened",
    [
        replace(NOW, now_ms=1_000 + IDLE_MS),
        replace(NOW, now_ms=1_000 + CALM_MS, seen=replace(SEEN, admitted=21)),
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
        replace(NOW, nodes=None),
        replace(NOW, nodes=()),
        replace(NOW, nodes=(NodeReading("n1"),)),
        replace(NOW, nodes=(node(1_200, 100_000),)),
        replace(NOW, nodes=(node(1_200, 600), NodeReading("n2", StallTotals(1, {"io_full": 1})))),
    ],
)
def test_whatever_a_tick_reacts_to_ends_the_wait(happened: Sighting) -> None:
    """In the tick in which it is seen."""
    assert not may_wait(BEFORE, happened, THETA)


@pytest.mark.parametrize(
    ("reading", "waits"),
    [
        (Reading(requests=90, errors=0, retries=0, queue=1.0), True),
        (Reading(requests=90, errors=1, retries=0), False),
        (Reading(requests=90, errors=0, retries=1), False),
        (Reading(requests=90, errors=0, retries=0, queue=4.0), False),
    ],
)
def test_what_applications_report_counts_too(reading: Reading, waits: bool) -> None:
    """Errors, retries, and what piles up."""
    before = replace(BEFORE, readings={"a": Reading(requests=80, errors=0, retries=0)})
    assert may_wait(before, replace(NOW, readings={"a": reading}), THETA) is waits
    assert not may_wait(before, NOW, THETA)


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
        settled.append(is_settled(decision))
    assert settled == [False, *[True] * 5, *[False] * 6]
