"""The numbers that dataplanes and probes obey."""

import pytest

from fairlead.core.traffic.alone import FallbackBound
from fairlead.core.traffic.limits import (
    FULL_RETRY_AFTER_S,
    RETRY_AFTER_S_MAX,
    ROOM_LEAST,
    UNPLANNED_SLOTS,
    Admission,
    AdmissionMode,
    Concurrency,
    Fallback,
    Limits,
    Liveness,
    Split,
    fallback_admission,
    fallback_members,
    is_fresh,
    liveness,
    may_be_starting,
    may_resume,
    mean_since,
    p95,
    plan_limits,
    restart_wait_ms,
    retry_after_s,
    rooms,
    server_bounds,
    server_rooms,
    share,
    split,
    succeeded,
    tick_delay_us,
)
from fairlead.core.traffic.retries import RetryLimit

HARD, STORED = Admission(AdmissionMode.HARD, 1.0, 2.0), Admission(AdmissionMode.SOFT, 50.0, 20.0)


def test_a_group_without_a_bound_has_no_concurrency_limit() -> None:
    """Fallback is served by the backends with slots, and admission is the same."""
    assert plan_limits({"a": 3, "b": 0}, Admission()) == Limits(Fallback(("a",)))


def test_hard_is_planned_together_with_what_it_relaxes_to() -> None:
    """A dead agent never leaves a group closed."""
    limits = plan_limits({"a": 1}, HARD, stored=STORED, inside_max=60)
    assert (limits.admission, limits.retry_after_s) == (HARD, 1)
    bound = FallbackBound(inside_max=60, most=240, step=3)
    assert limits.fallback == Fallback(("a",), STORED, 1, bound)
    assert limits.concurrency == Concurrency(60)


@pytest.mark.parametrize(
    ("admission", "stored", "expected"),
    [
        (Admission(), STORED, Admission()),
        (Admission(AdmissionMode.SOFT, 3.0, 4.0), STORED, Admission(AdmissionMode.SOFT, 3.0, 4.0)),
        (HARD, STORED, STORED),
        (HARD, None, Admission(AdmissionMode.SOFT, 1.0, 2.0)),
    ],
)
def test_only_hard_changes_in_fallback(
    admission: Admission, stored: Admission | None, expected: Admission
) -> None:
    """Without a stored budget the drip stays, and refuses softly."""
    assert fallback_admission(admission, stored) == expected


def test_fallback_leaves_out_backends_without_slots() -> None:
    """They were isolated or drained; only when none has slots is every backend tried."""
    assert fallback_members({"b": 1, "a": 3, "c": 0}) == ("a", "b")
    assert fallback_members({"b": 0, "a": 0}) == ("a", "b")
    assert fallback_members({}) == ()


def test_rooms_are_shares_of_what_may_come_until_the_next_tick() -> None:
    """Three quarters of the bound while little is inside, half more than is inside above that, and
    no more than may be inside; up to version 6 half more than that."""
    slots = {"a": 192, "b": 64, "c": 0}
    assert rooms(slots, 40, {}) == {"a": 23, "b": 8}
    assert rooms(slots, 40, {"a": 10, "b": 14, "c": None}) == {"a": 27, "b": 9}
    assert rooms(slots, 40, {"a": 100, "b": 100}) == {"a": 30, "b": 10}
    assert rooms(slots, 40, {"a": 100, "b": 100}, firm=False) == {"a": 45, "b": 15}


def test_the_only_backend_is_never_full() -> None:
    """There is no other."""
    assert rooms({"a": 256, "b": 0}, 10, {"a": 9}) == {}


def test_a_share_has_a_floor_and_leaves_room_for_the_newcomer() -> None:
    """Some backend always holds less than its share when the newcomer is counted."""
    assert share(64, 256, 8) == ROOM_LEAST
    assert share(64, 256, 41) == 11
    assert share(64, 256, 8, 1) == 2
    assert share(0, 256, 41) == 0
    for inside in range(1, 60):
        assert sum(share(count, 256, inside, 0) for count in (200, 50, 6)) >= inside


@pytest.mark.parametrize(
    ("admission", "seconds"),
    [
        (Admission(), FULL_RETRY_AFTER_S),
        (Admission(AdmissionMode.SOFT, 0.25, 1.0), 4),
        (Admission(AdmissionMode.SOFT, 50.0, 1.0), 1),
        (Admission(AdmissionMode.SOFT, 0.001, 1.0), RETRY_AFTER_S_MAX),
        (Admission(AdmissionMode.HARD, 0.0, 1.0), RETRY_AFTER_S_MAX),
        (Admission(AdmissionMode.SOFT), RETRY_AFTER_S_MAX),
    ],
)
def test_clients_come_back_when_the_next_token_is_due(admission: Admission, seconds: int) -> None:
    """Never sooner than in a second, nor later than in a minute."""
    assert retry_after_s(admission) == seconds


def test_a_group_without_slots_is_split_evenly() -> None:
    """To the slot; what remains goes to the first ids."""
    assert split(["c", "a", "b"]) == Split({"a": 86, "b": 85, "c": 85}, ("a", "b", "c"))
    assert sum(split(["c", "a", "b"]).slots.values()) == UNPLANNED_SLOTS
    assert split([]) == Split({}, ())
    assert split(["a", "b"], {"c": 256}).slots == {"a": 128, "b": 128}


def test_backends_that_stay_keep_their_slots_and_newcomers_wait() -> None:
    """For the next table; in fallback they wait too."""
    assert split(["a", "new"], {"a": 3, "gone": 5}) == Split({"a": 3, "new": 0}, ("a",))


@pytest.mark.parametrize(
    ("age_ms", "expected"),
    [
        (0, Liveness.NORMAL),
        (2_999, Liveness.NORMAL),
        (3_000, Liveness.HOLD),
        (14_999, Liveness.HOLD),
        (15_000, Liveness.FALLBACK),
        (-1, Liveness.FALLBACK),
    ],
)
def test_the_age_of_the_heartbeat_is_judged(age_ms: int, expected: Liveness) -> None:
    """One from the future predates a reboot. A tick may be resumed while its table is in force."""
    assert liveness(age_ms) is expected
    assert may_resume(age_ms) is (expected is not Liveness.FALLBACK)


def test_a_proxy_that_fails_to_start_is_tried_again_after_a_pause() -> None:
    """Five seconds after the start that failed."""
    assert restart_wait_ms(0) == 5_000
    assert restart_wait_ms(4_999) == 1
    assert restart_wait_ms(60_000) == 0


def test_ticks_are_late_by_less_than_a_tenth_and_not_in_step() -> None:
    """The same agent and number: the same delay."""
    delays = [tick_delay_us("a", number, 200) for number in range(50)]
    assert delays == [tick_delay_us("a", number, 200) for number in range(50)]
    assert delays != [tick_delay_us("b", number, 200) for number in range(50)]
    assert all(0 <= delay < 20_000 for delay in delays)
    assert tick_delay_us("a", 1, 0) == 0


def test_every_delay_up_to_a_tenth_is_met() -> None:
    """In whole microseconds, of 1 ms one of 100; agents differ from the first tick on."""
    delays = {tick_delay_us("a", number, 1) for number in range(2_000)}
    assert delays == set(range(100))
    assert {type(delay) for delay in delays} == {int}
    assert len({tick_delay_us(agent, 0, 200) for agent in "abcdefgh"}) == 8
    assert {tick_delay_us("a", number, 0) for number in range(20)} == {0}
    assert max(tick_delay_us("a", number, 10) for number in range(9_000)) == 999


def test_signals_go_stale_after_three_rounds() -> None:
    """A source that has never answered gets its timeout on top."""
    assert is_fresh(3_000, 1_000)
    assert not is_fresh(3_001, 1_000)
    assert may_be_starting(3_800, 1_000, 800)
    assert not may_be_starting(3_801, 1_000, 800)


def test_only_a_servers_errors_are_failures() -> None:
    """A client's mistake does not make a backend unhealthy."""
    assert [succeeded(status) for status in (200, 404, 499, 500, 503)] == [True] * 3 + [False] * 2


def test_p95_is_a_latency_that_was_measured() -> None:
    """The smallest that 95 % do not exceed."""
    assert p95([]) is None
    assert p95([7.0]) == 7.0
    assert p95([float(n) for n in range(100, 0, -1)]) == 95.0


def test_a_server_has_the_room_of_its_backend_less_what_the_others_hold() -> None:
    """And is not about to leave: as much as was answered in the last tick, but no more than half.
    One request always fits; a backend that is not limited, or has one server, is left out."""
    limits = plan_limits(
        {"a": 128, "b": 64, "c": 64},
        Admission(),
        inside_max=40,
        open={"a": 12, "b": 99, "c": 0},
        inside={"a": (9, 3), "b": (99, 0), "c": (), "gone": (1, 1)},
    )
    bound = limits.concurrency
    assert bound is not None
    room = bound.room
    assert bound.by_server == {"a": (room["a"] - 3, room["a"] - 9), "b": (room["b"], 1)}
    leaving = server_rooms({"a": 20, "b": 20}, {"a": (9, 3), "b": (9, 3)}, {"a": 60, "b": 2})
    assert leaving == {"a": (20 - 3 + 1, 20 - 9 + 4), "b": (20 - 3 + 1, 20 - 9 + 2)}


def test_servers_of_a_proxy_that_is_not_ours_hold_together_what_may_be_inside() -> None:
    """By their slots, never more than their operator allows; one without slots keeps its own."""
    slots = {"a": 128, "b": 64, "c": 64, "d": 0}
    bounded = plan_limits(slots, Admission(), inside_max=40)
    assert server_bounds(slots, bounded, {}) == {"a": 20, "b": 10, "c": 10, "d": 0}
    own = {"a": 15, "b": 100, "d": 7}
    assert server_bounds(slots, bounded, own) == {"a": 15, "b": 10, "c": 10, "d": 7}


def test_without_a_bound_they_hold_what_their_operator_allows() -> None:
    """Hard admission leaves one request at a time to each that has slots."""
    slots = {"a": 128, "b": 128, "c": 0}
    unbounded = plan_limits(slots, Admission())
    assert server_bounds(slots, unbounded, {"b": 9}) == {"a": 0, "b": 9, "c": 0}
    assert server_bounds(slots, plan_limits(slots, HARD), {"c": 9}) == {"a": 1, "b": 1, "c": 9}


def test_the_mean_of_what_came_since_is_taken_out_of_a_moving_average() -> None:
    """The first 512 count alike; then each takes its part away. A few say nothing."""
    assert mean_since((0, 0), (4, 30)) is None
    assert mean_since((0, 0), (100, 30)) == 30
    assert mean_since((100, 30), (200, 40)) == 50
    assert mean_since((100, 30), (200, 0)) == 0
    average, done = 20.0, 10_000
    for _ in range(300):
        average += (200 - average) / 512
    mean = mean_since((done, 20), (done + 300, round(average)))
    assert mean is not None
    assert abs(mean - 200) < 2
    assert mean_since((done, 50), (done + 10, 0)) == 0
    assert mean_since((0, 0), (5, 30)) == 30, "as few as say something"
    assert mean_since((256, 10), (512, 20)) == 30, "the last of those that count alike"


def test_rooms_add_up_to_what_may_be_inside_but_for_former_records() -> None:
    """Of 10 that are inside half more is expected, and no more than 10 may be inside."""
    slots = {"a": 128, "b": 128}
    for firm, room in (({}, 5), ({"firm": True}, 5), ({"firm": False}, 8)):
        limits = plan_limits(slots, Admission(), inside_max=10, open={"a": 10, "b": 0}, **firm)
        assert limits.concurrency is not None
        assert limits.concurrency.room == {"a": room, "b": room}
    assert rooms({"a": 255, "b": 1}, 101, {}) == {"a": 75, "b": ROOM_LEAST}


@pytest.mark.parametrize(("stuck", "beside"), [(0, 0), (1, 8), (8, 8), (9, 16)])
def test_what_is_stuck_is_let_in_beside_the_bound(stuck: int, beside: int) -> None:
    """In steps of eight: a bound that changes is a flip."""
    limits = plan_limits({"a": 1}, Admission(), inside_max=60, stuck=stuck)
    assert limits.concurrency == Concurrency(60 + beside)


def test_a_fallback_knows_what_is_open_and_how_long_it_stays() -> None:
    """Twice what is open where no bound was learned; what cannot be seen is none."""
    held = {"a": 256, "b": None}
    alone = plan_limits({"a": 1, "b": 1}, Admission(), open=held, stay_ms=77).fallback.bound
    assert (alone.inside_max, alone.stay_ms) == (512, 77)


def test_retries_are_passed_on() -> None:
    allowed = RetryLimit(1, percent=20)
    assert plan_limits({"a": 1}, Admission(), retries=allowed).retries is allowed
