"""One decision of the agent: what of a sighting reaches the limits, the drains and the urgent."""

from dataclasses import replace
from typing import Any

import pytest

from fairlead.core.traffic import (
    Admission,
    AdmissionMode,
    Config,
    GroupDecision,
    GroupMemory,
    GroupRules,
    OperatorCommand,
    Sighting,
    govern,
    settle,
)
from fairlead.core.traffic.counters import ERRORS_MIN
from fairlead.core.traffic.memory import CONFIRMED, EDITION
from fairlead.core.traffic.retries import RetryLimit
from fairlead.core.traffic.sighting import BackendSeen, GroupSeen, Liveness, Look, Reading

BOUNDED = Config(inside_max=60, l_ref_ms=100.0, bucket_rate=70.0, bucket_burst=30.0)
IDS = ("a", "b", "c", "d")
TICK_MS, EACH = 200, 8
LEARNED = 20
"""After so many ticks a bound was learned."""


class Watched:
    """Four healthy backends of two servers each; every tick each of them answers as many."""

    def __init__(self, **rules: Any) -> None:
        self.rules = GroupRules(**{"config": BOUNDED, "edition": EDITION, **rules})
        self.memory, self.ticks = GroupMemory(), 0
        self.changes: dict[str, dict[str, Any]] = {}
        self.more: dict[str, Any] = {}
        self.gone: set[str] = set()
        self.retries: int | None = None

    def tick(self, ticks: int = 1) -> GroupDecision:
        for _ in range(ticks):
            self.ticks += 1
            self.memory, decision = govern(self.memory, self.sighting(), self.rules, group="web")
            self.memory = settle(self.memory, decision.plan, applied=True)
        return decision

    def sighting(self) -> Sighting:
        sent = EACH * self.ticks
        usual = BackendSeen(sent, 0, 0, sent, 0, open=12, queue=0, p95_ms=20.0, inside=(9, 3))
        backends = {
            id: replace(usual, **self.changes.get(id, {})) for id in IDS if id not in self.gone
        }
        seen = GroupSeen(
            1, Liveness.NORMAL, AdmissionMode.NORMAL, 4 * sent, 0, 0, backends, retries=self.retries
        )
        now_ms = 1_000_000 + TICK_MS * self.ticks
        members = dict.fromkeys(IDS)
        return Sighting(now_ms=now_ms, members=members, seen=seen, **self.more)


def commands(**given: OperatorCommand) -> dict[str, Any]:
    return {"commands": given}


def test_hard_admission_relaxes_to_what_the_operator_stored() -> None:
    """All backends are isolated: a dead agent would leave the bucket of the configuration."""
    group = Watched()
    group.more = commands(**dict.fromkeys(IDS, OperatorCommand.ISOLATE))
    limits = group.tick().limits
    assert limits.admission.mode is AdmissionMode.HARD
    assert limits.fallback.admission == Admission(AdmissionMode.SOFT, 70.0, 30.0)


@pytest.mark.parametrize(("edition", "room", "served"), [(EDITION, 15, 4), (CONFIRMED, 18, 0)])
def test_rooms_follow_what_is_inside_and_what_was_served(
    edition: int, room: int, served: int
) -> None:
    """48 of 60 are inside, so 60 are expected, and half more than 48 under former records. A
    server has the room of its backend less what is in the other, and is not about to leave."""
    group = Watched(edition=edition)
    bound = group.tick(3).limits.concurrency
    assert bound is not None
    assert bound.inside_max == 60
    assert bound.room == dict.fromkeys(IDS, room)
    own = (room - 3 + min(1, served), room - 9 + min(4, served))
    assert bound.by_server == dict.fromkeys(IDS, own)


def test_only_what_the_last_tick_served_is_about_to_leave() -> None:
    group = Watched()
    group.tick(2)
    group.changes = {"a": {"successes": 2 * EACH + 1}}
    bound = group.tick().limits.concurrency
    assert bound is not None
    assert bound.by_server["a"] == (15 - 3 + 1, 15 - 9 + 1)


def test_requests_stay_for_half_the_reference_without_an_agent() -> None:
    """Former records kept 0.6 of it; nothing was learned yet that says otherwise."""
    assert Watched().tick().limits.fallback.bound.stay_ms == 50
    assert Watched(edition=CONFIRMED).tick().limits.fallback.bound.stay_ms == 60
    slow = Watched(config=replace(BOUNDED, l_ref_ms=4_000.0))
    assert slow.tick().limits.fallback.bound.stay_ms == 2_000


def test_an_unread_dataplane_holds_nothing_that_is_known() -> None:
    """Rooms of three quarters of the bound, and of no server."""
    group = Watched()
    group.tick(2)
    blind = replace(group.sighting(), seen=None, now_ms=1_000_600)
    _, decision = govern(group.memory, blind, group.rules, group="web")
    bound = decision.limits.concurrency
    assert bound is not None
    assert bound.by_server == {}
    assert bound.room == dict.fromkeys(IDS, 12)


@pytest.mark.parametrize(
    ("given", "drains"),
    [
        ({"a": OperatorCommand.DRAIN}, ("a",)),
        ({"b": OperatorCommand.DRAIN, "a": OperatorCommand.DRAIN}, ("a", "b")),
        ({"a": OperatorCommand.ISOLATE}, ()),
        ({"a": OperatorCommand.ISOLATE, "b": OperatorCommand.DRAIN}, ("b",)),
        ({}, ()),
    ],
)
def test_connections_of_drained_backends_end(
    given: dict[str, OperatorCommand], drains: tuple[str, ...]
) -> None:
    """And not of isolated ones."""
    group = Watched()
    group.tick(2)
    group.more = commands(**given)
    assert group.tick().drains == drains


def test_a_drained_backend_that_has_to_serve_keeps_its_connections() -> None:
    """Nobody else is routable: the drip goes to one of them."""
    group = Watched()
    group.tick(2)
    group.more = commands(**dict.fromkeys(IDS, OperatorCommand.DRAIN))
    decision = group.tick()
    (serving,) = (name for name, count in decision.plan.slots.items() if count)
    assert decision.drains == tuple(name for name in IDS if name != serving)


@pytest.mark.parametrize(("early", "urgent"), [(True, ("b", "d")), (False, ())])
def test_an_early_tick_says_whose_reports_could_not_wait(
    early: bool, urgent: tuple[str, ...]
) -> None:
    """Hardly anything but errors; a tick that was due was brought forward by nobody."""
    fine = (Look(0, 0, 0), Look(200, 90, 0))
    failing = (Look(0, 0, 0), Look(200, 0, 10 * ERRORS_MIN))
    group = Watched()
    reports = {"d": failing, "b": failing, "a": fine}
    group.more = {
        "readings": {name: Reading(looks=looks) for name, looks in reports.items()},
        "early": early,
    }
    assert group.tick().urgent == urgent


@pytest.mark.parametrize(("open", "beside"), [(20, 24), (None, 0), (0, 0)])
def test_what_is_stuck_in_an_isolated_backend_is_let_in_beside_a_learned_bound(
    open: int | None, beside: int
) -> None:
    """In steps of eight; what cannot be seen is none, and a bound of the operator's stays."""
    bounds = []
    for own in (False, True):
        group = Watched(own_bound=own)
        group.tick(LEARNED)
        group.more = commands(d=OperatorCommand.ISOLATE)
        group.changes = {"d": {"open": open}}
        decision = group.tick()
        assert decision.limits.concurrency is not None
        bounds.append(
            decision.limits.concurrency.inside_max
            - (decision.observed.snapshot.config.inside_max or 0)
        )
    assert bounds == [0, beside]


def test_nothing_is_stuck_in_what_is_gone_or_has_to_serve() -> None:
    """An isolated backend that the dataplane does not know, and one that gets the drip."""
    group = Watched(own_bound=True)
    group.tick(LEARNED)
    group.more, group.gone = commands(d=OperatorCommand.ISOLATE), {"d"}
    decision = group.tick()
    assert decision.limits.concurrency is not None
    assert decision.limits.concurrency.inside_max == decision.observed.snapshot.config.inside_max
    group = Watched(own_bound=True)
    group.tick(LEARNED)
    group.more = commands(**dict.fromkeys(IDS, OperatorCommand.ISOLATE))
    decision = group.tick()
    assert decision.limits.concurrency is not None
    stuck = decision.limits.concurrency.inside_max - (
        decision.observed.snapshot.config.inside_max or 0
    )
    assert stuck == 40, "3 of 12 each, in steps of eight"


def test_retries_leave_the_last_third_to_newcomers_and_stop_when_they_are_many() -> None:
    """Of 60 that may be inside; retries are counted by the dataplane."""
    group = Watched(retry=True)
    group.retries = 0
    assert group.tick(3).limits.retries == RetryLimit(1, 40)
    group.retries = 1_000
    assert group.tick().limits.retries == RetryLimit()
