"""What a proxy may repeat, and when it may not."""

from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.traffic import GroupMemory, GroupRules, Sighting, govern
from fairlead.core.traffic.memory import CONFIRMED, EDITION
from fairlead.core.traffic.retries import (
    INSIDE_PERCENT,
    RETRIES_LEAST,
    RETRY_PERCENT,
    RETRY_WINDOW_MS,
    RetryLimit,
    RetryMemory,
    plan_retries,
    watch_retries,
)
from fairlead.core.traffic.sighting import BackendSeen, GroupSeen, Liveness
from fairlead.core.traffic.state import AdmissionMode

ON, OFF = RetryLimit(1), RetryLimit()


def watched(*ticks: tuple[int, int | None, int | None, bool]) -> RetryMemory:
    memory = RetryMemory()
    for clock_ms, requests, retries, restricted in ticks:
        memory = watch_retries(
            memory, clock_ms, requests=requests, retries=retries, restricted=restricted
        )
    return memory


def test_a_group_may_repeat_from_the_start() -> None:
    """Once, whatever is inside as long as nothing bounds it."""
    assert plan_retries(RetryMemory(), 0, inside_max=None) == ON


def test_the_last_third_of_a_bound_is_for_first_attempts() -> None:
    """At least one may be repeated: a bound of 1 is no reason to repeat nothing."""
    assert plan_retries(RetryMemory(), 0, inside_max=60) == RetryLimit(1, 40)
    assert plan_retries(RetryMemory(), 0, inside_max=1) == RetryLimit(1, 1)


def test_a_fifth_of_the_requests_and_a_few_more_may_be_repeated() -> None:
    """The one that reaches it stops all, until the window has passed without another cause."""
    most = RETRIES_LEAST + 1_000 * RETRY_PERCENT // 100
    under = watched((0, 0, 0, False), (200, 1_000, most - 1, False))
    assert plan_retries(under, 200, inside_max=None) == ON
    over = watched((0, 0, 0, False), (200, 1_000, most, False))
    assert plan_retries(over, 200, inside_max=None) == OFF
    assert plan_retries(over, 200 + RETRY_WINDOW_MS - 1, inside_max=None) == OFF
    assert plan_retries(over, 200 + RETRY_WINDOW_MS, inside_max=None) == ON


def test_parts_of_requests_are_cut_off() -> None:
    """A fifth of four is none, two thirds of 61 are 40."""
    few = watched((0, 0, 0, False), (200, 4, RETRIES_LEAST, False))
    assert plan_retries(few, 200, inside_max=None) == OFF
    assert plan_retries(RetryMemory(), 0, inside_max=61) == RetryLimit(1, 40)


def test_nothing_is_repeated_while_requests_are_rejected() -> None:
    """Nor in the seconds after the last rejection."""
    memory = watched((0, 0, 0, True), (200, 10, 0, False))
    assert plan_retries(memory, 200, inside_max=None) == OFF
    assert plan_retries(memory, RETRY_WINDOW_MS, inside_max=None) == ON


def test_a_proxy_that_began_again_or_counts_nothing_has_no_history() -> None:
    """A counter that falls belongs to a new process; one that is missing stops nothing."""
    fallen = watched((0, 900, 500, False), (200, 1_000, 3, False))
    assert plan_retries(fallen, 200, inside_max=None) == ON
    assert plan_retries(watched((0, None, None, False)), 0, inside_max=None) == ON


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 100)), min_size=1, max_size=120))
def test_retries_never_amplify(ticks: list[tuple[int, int]]) -> None:
    """Whatever fails: over all requests a fifth, the few of each window, and what one tick sent
    before the governor saw it."""
    memory, requests, retries, windows = RetryMemory(), 0, 0, 1
    memory = watch_retries(memory, 0, requests=0, retries=0, restricted=False)
    worst = max(sent for sent, _ in ticks)
    for number, (sent, failed_percent) in enumerate(ticks, 1):
        clock_ms = number * 200
        allowed = plan_retries(memory, clock_ms - 200, inside_max=None).times
        requests += sent
        retries += sent * failed_percent // 100 * allowed
        memory = watch_retries(
            memory, clock_ms, requests=requests, retries=retries, restricted=False
        )
        windows = 1 + clock_ms // RETRY_WINDOW_MS
        assert retries <= requests * RETRY_PERCENT / 100 + windows * (RETRIES_LEAST + worst)


def seen(admitted: int, retries: int, refused: int = 0) -> Sighting:
    backends = {
        id: BackendSeen(admitted // 2, 0, 0, admitted // 2, 0, 0, 0, 20.0) for id in ("a", "b")
    }
    group = GroupSeen(
        1, Liveness.NORMAL, AdmissionMode.NORMAL, admitted, refused, 0, backends, retries=retries
    )
    return Sighting(now_ms=admitted, members={"a": None, "b": None}, seen=group)


def test_the_governor_decides_it_only_where_the_group_asks() -> None:
    """Without the rule nothing is remembered of retries, and the limits have none."""
    memory, decision = govern(GroupMemory(), seen(100, 0), GroupRules(), group="web")
    assert decision.limits.retries is None
    assert memory.retry == RetryMemory()
    memory, decision = govern(
        GroupMemory(), seen(100, 0), GroupRules(retry=True, edition=EDITION), group="web"
    )
    assert decision.limits.retries == ON
    assert memory.retry.requests == ((0, 100),)


def test_the_governor_stops_retries_when_the_group_is_full() -> None:
    """Open admission rejected requests: the group has as much as it can serve."""
    rules = GroupRules(retry=True, edition=EDITION)
    memory, _ = govern(GroupMemory(), seen(100, 0), rules, group="web")
    _, decision = govern(memory, seen(300, 0, refused=1), rules, group="web")
    assert decision.limits.retries == OFF


def test_a_dataplane_that_cannot_be_read_stops_nothing_by_itself() -> None:
    """But admission is at least soft then, and so retries are off."""
    blind = Sighting(now_ms=5, members={"a": None, "b": None}, seen=None)
    _, decision = govern(GroupMemory(), blind, GroupRules(retry=True, edition=EDITION), group="web")
    assert decision.limits.retries == OFF


def test_a_proxy_with_a_budget_of_its_own_repeats_half_of_what_is_inside() -> None:
    """Up to version 6 a fifth, which let clients see failures of one backend of four."""
    for edition, percent in ((EDITION, INSIDE_PERCENT), (CONFIRMED, RETRY_PERCENT)):
        rules = GroupRules(retry=True, edition=edition)
        _, decision = govern(GroupMemory(), seen(100, 0), rules, group="web")
        assert decision.limits.retries == RetryLimit(1, percent=percent)
