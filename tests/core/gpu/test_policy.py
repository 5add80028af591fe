"""The policy of preemption: notice, quota, the past, and runs that are no candidates yet."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.gpu import (
    Gang,
    GangDemand,
    HeldLease,
    HoldingRun,
    Holdings,
    Node,
    PreemptionPolicy,
    ReserveRequest,
    Role,
    RunProtection,
    Standing,
    find_deficit,
    protected_since_ms,
    reserve,
)
from fairlead.core.gpu.policy import PAST_MS
from fairlead.core.reasons import DeficitReason, EndCause, Exclusion, ReserveReason

HOUR, NOW = 3_600_000, 1_767_225_600_000
POLICY = PreemptionPolicy()


def asked(start_ms: int, **more: object) -> ReserveRequest:
    given = {"open_reservations": 0, "policy": POLICY, **more}
    return ReserveRequest(NOW, "a", NOW + start_ms, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("request_", "reason", "earliest_ms"),
    [
        (asked(HOUR), "Allowed", None),
        (asked(HOUR - 1), "NoticeTooShort", NOW + HOUR),
        (asked(0), "NoticeTooShort", NOW + HOUR),
        (asked(0, exempt=True), "Allowed", None),
        (asked(-PAST_MS, exempt=True), "Allowed", None),
        (asked(-PAST_MS - 1, exempt=True), "StartInThePast", NOW),
        (asked(-PAST_MS - 1), "StartInThePast", NOW + HOUR),
        (asked(HOUR, open_reservations=4), "ReservationQuota", None),
        (asked(HOUR, open_reservations=4, exempt=True), "Allowed", None),
        (asked(HOUR, open_reservations=4, moved_from_ms=NOW), "Allowed", None),
        (asked(5, moved_from_ms=NOW + 4), "Allowed", None),
        (asked(4, moved_from_ms=NOW + 5), "NoticeTooShort", NOW + 5),
        (asked(0, policy=replace(POLICY, min_notice_ms=0)), "Allowed", None),
    ],
)
def test_the_rule_and_what_would_do(
    request_: ReserveRequest, reason: str, earliest_ms: int | None
) -> None:
    found = reserve(request_)
    assert (found.reason.value, found.earliest_ms) == (reason, earliest_ms)


@given(
    start_ms=st.integers(-2 * HOUR, 3 * HOUR),
    moved_ms=st.none() | st.integers(-HOUR, 3 * HOUR),
    exempt=st.booleans(),
    notice_ms=st.integers(0, 2 * HOUR),
)
def test_the_earliest_that_a_refusal_names_is_allowed(
    start_ms: int, moved_ms: int | None, exempt: bool, notice_ms: int
) -> None:
    policy = replace(POLICY, min_notice_ms=notice_ms)
    moved = None if moved_ms is None else NOW + moved_ms
    first = asked(start_ms, exempt=exempt, policy=policy, moved_from_ms=moved)
    found = reserve(first)
    if found.earliest_ms is not None:
        assert reserve(replace(first, start_ms=found.earliest_ms)).allowed
        assert found.earliest_ms > first.start_ms
    else:
        assert found.reason is ReserveReason.ALLOWED


def holdings(protection: RunProtection | None, *, funded: bool = True, **run: int) -> Holdings:
    node = Node("n1", "H100", {}, ())
    held = HeldLease("l1", "r1", Role.ACTIVE, 0, ("n1#0",), funded, "b", "e")
    return Holdings((node,), (HoldingRun("r1", "a", "H100", **run),), (held,), protection)


RULE = RunProtection(NOW, 600_000, HOUR)


@pytest.mark.parametrize(
    ("run", "why"),
    [
        ({"started_ms": NOW - 599_999}, Exclusion.MIN_RUNTIME),
        ({"started_ms": NOW - 600_000}, None),
        ({"preempted_ms": NOW - HOUR + 1}, Exclusion.COOLDOWN),
        ({"started_ms": NOW - HOUR, "preempted_ms": NOW - HOUR}, None),
        ({}, None),
    ],
)
def test_a_young_or_just_preempted_run_is_no_candidate(run: dict[str, int], why: object) -> None:
    demand = GangDemand("new", Gang("H100", 1))
    found = find_deficit(demand, holdings(RULE, **run))
    assert [row.reason for row in found.excluded] == ([why] if why else [])
    expected = DeficitReason.NOT_ENOUGH if why else DeficitReason.RESOLVABLE
    assert found.reason is expected
    assert find_deficit(demand, holdings(None, **run)).reason is DeficitReason.RESOLVABLE
    unfunded = find_deficit(demand, holdings(RULE, funded=False, **run))
    assert unfunded.reason is DeficitReason.RESOLVABLE, "a run without funding is not protected"


def test_when_a_protected_run_is_a_candidate() -> None:
    assert RULE.until_ms(NOW, NOW) == NOW + HOUR
    assert RULE.until_ms(NOW, None) == NOW + 600_000
    assert RULE.until_ms(None, None) == 0


@pytest.mark.parametrize("cause", EndCause)
def test_only_what_others_took_is_protected_anew(cause: EndCause) -> None:
    """A limit of its own does not make a run young again."""
    by_others = cause in (EndCause.PREEMPTED, EndCause.INTERRUPTED)
    assert protected_since_ms(cause, 7) == (None if by_others else 7)


def test_a_recalled_run_has_its_minimum_runtime_and_no_cooldown() -> None:
    rule = RunProtection(100, min_runtime_ms=50, cooldown_ms=90)
    for standing, young, cooling in (
        (Standing.FUNDED, Exclusion.MIN_RUNTIME, Exclusion.COOLDOWN),
        (Standing.RECALLED, Exclusion.MIN_RUNTIME, None),
        (Standing.UNFUNDED, None, None),
    ):
        assert rule.exclusion(60, 40, standing) is young
        assert rule.exclusion(40, 40, standing) is cooling
    assert rule.until_ms(60, 40, Standing.RECALLED) == 110
    assert rule.until_ms(60, 40) == 130
