"""One backend over its last moments: what was counted, whether it fails, whether it stalls."""

from dataclasses import replace
from typing import Any

import pytest

from fairlead.core.traffic.counters import (
    ERRORS_MIN,
    HELD_MIN,
    SPAN_MS,
    TICKS_HARMLESS,
    TICKS_HELD,
    Signals,
    Streak,
    TrafficCounters,
    Window,
    covering,
    find_broken,
    is_urgent,
    last_step,
    outcomes,
    read_counters,
)
from fairlead.core.traffic.sighting import BackendSeen, Look, Reading

FIRST = BackendSeen(10, 1, 2, 20, 3, 4, 5, 7.0, 8.0, 6, 9.0)
SECOND = BackendSeen(110, 3, 4, 100, 21, None, 5, 7.5, 8.5, 26, 9.5)
REPORTS = (Reading(1_000, 50, 5, 2.5, 3.5), Reading(1_030, 60, 12, 2.75, 3.75))


def signals(
    first: BackendSeen, second: BackendSeen, covered: tuple[str, ...] = (), **fields: Any
) -> Signals:
    """Of two looks, half a second apart."""
    counters = TrafficCounters()
    for at_ms, seen, reading in zip((1_000, 1_500), (first, second), REPORTS, strict=True):
        told = replace(reading, **fields)
        counters, found = read_counters(counters, at_ms, seen, told, covered)
    return found


def test_a_dataplane_says_what_its_counters_show() -> None:
    """80 successes, 18 errors and 2 failed connects of 100 requests; its open connections were
    not seen, so they are none."""
    assert signals(FIRST, SECOND) == Signals(
        5.0, 7.5, 0.2, 100, 80, 7, 8.5, 0.2, 9.5, drain_per_s=160.0, connect_failures_in_a_row=4
    )


def test_an_application_that_is_asked_is_believed_instead() -> None:
    """20 successes, 10 errors and 2 failed connects of 30 requests."""
    covered = ("requests", "errors", "queue", "p95_ms")
    assert signals(FIRST, SECOND, covered) == Signals(
        2.75, 3.75, 0.375, 30, 20, 7, 8.5, 0.2, 9.5, drain_per_s=40.0, connect_failures_in_a_row=4
    )


def test_a_dataplane_that_cannot_be_read_counts_nothing() -> None:
    """What the application counts goes on."""
    counters, found = read_counters(TrafficCounters(), 1_000, None, REPORTS[0], ())
    assert counters == TrafficCounters(retries=((1_000, 5),), scraped=((1_000, 1_000),))
    assert found == Signals(retries=0)


@pytest.mark.parametrize(
    ("errors", "connect", "rate"),
    [
        ((0, 20), (None, None), 0.2),
        ((None, None), (0, 20), 0.2),
        ((None, None), (None, None), None),
        ((0, 10), (0, 10), 0.2),
    ],
)
def test_a_rate_is_of_the_failures_that_are_counted(
    errors: tuple[int | None, int | None],
    connect: tuple[int | None, int | None],
    rate: float | None,
) -> None:
    first, second = (
        BackendSeen(successes=done, errors=failed, connect_failures=unconnected)
        for done, failed, unconnected in zip((0, 80), errors, connect, strict=True)
    )
    found = signals(first, second)
    assert (found.error_rate, found.successes) == (rate, 80)
    blind = signals(replace(first, successes=None), replace(second, successes=None))
    assert (blind.error_rate, blind.successes, blind.drain_per_s) == (None, None, None)


@pytest.mark.parametrize("missing", ["requests", "errors"])
def test_an_application_that_counts_only_one_of_both_says_nothing(missing: str) -> None:
    found = signals(BackendSeen(), BackendSeen(), ("requests", "errors"), **{missing: None})
    assert (found.error_rate, found.successes, found.connect_failures_in_a_row) == (None, None, 0)


def test_a_single_error_is_all_there_was() -> None:
    counted = [BackendSeen(successes=5, errors=errors) for errors in (0, 1)]
    assert signals(*counted).error_rate == 1.0


def test_a_probe_that_is_answered_begins_all_that_errors_are_judged_by() -> None:
    one: Window = ((1, 2),)
    counters = TrafficCounters(one, one, one, one, one, one, one)
    assert counters.begin_again() == TrafficCounters(requests=one, retries=one, retransmits=one)


def test_windows_cover_their_reach_and_know_their_last_step() -> None:
    """The newest that is old enough stays; a step takes two looks."""
    window: Window = ((0, 1), (1, 2), (2, 4), (3, 7))
    assert [covering(window, reach) for reach in (-1, 0, 1, 2, 9)] == [
        window,
        window,
        window[1:],
        window[2:],
        window[3:],
    ]
    assert [last_step(window[:length]) for length in range(5)] == [0, 0, 1, 2, 3]


@pytest.mark.parametrize(
    ("covered", "reading", "expected"),
    [
        (("requests", "errors"), Reading(9, 2), (7, 2)),
        (("requests", "errors"), Reading(2, 3), (0, 3)),
        (("requests", "errors"), Reading(9, None), (None, None)),
        (("requests", "errors"), Reading(None, 2), (None, None)),
        (("requests",), Reading(9, 2), (20, 3)),
        (("errors",), Reading(9, 2), (20, 3)),
        ((), Reading(9, 2), (20, 3)),
    ],
)
def test_outcomes_are_the_applications_where_it_is_asked_for_both(
    covered: tuple[str, ...], reading: Reading, expected: tuple[int | None, int | None]
) -> None:
    assert outcomes(FIRST, reading, covered) == expected
    if len(covered) < 2:
        assert outcomes(None, reading, covered) == (None, None)


def test_a_streak_looks_back_for_its_span() -> None:
    """What was sent for 600 ms, counters for its own span; what is inside may fall."""
    streak = Streak((), 2, 900, span_ms=800).advance(1_000, 10, 2, 3, 50)
    assert streak == Streak((Look(1_000, 10, 2, 3),), 2, 900, ((1_000, 50),), 800)
    streak = streak.advance(1_600, 20, 2, None, 50)
    both = (Look(1_000, 10, 2, 3), Look(1_600, 20, 2, 0))
    assert streak == Streak(both, 2, 900, ((1_000, 50), (1_600, 50)), 800)
    assert streak.advance(1_601, 20, 2, -1, 51).sent == ((1_600, 50), (1_601, 51))
    assert streak.advance(1_800, 20, 2).looks == (*both, Look(1_800, 20, 2))
    assert streak.advance(1_801, 20, 2).looks == (both[1], Look(1_801, 20, 2))
    assert streak.advance(1_700, 20, 2, -5).looks[-1] == Look(1_700, 20, 2, 0)


@pytest.mark.parametrize("counts", [(1_599, 20, 2), (1_700, 9, 2), (1_700, 20, 1)])
def test_counters_or_a_clock_that_fall_begin_a_streak_anew(counts: tuple[int, int, int]) -> None:
    before = Streak().advance(1_600, 20, 2, 0, 50)
    assert before.advance(*counts).looks == (Look(*counts),)
    assert before.advance(1_700, 20, 2, 0, 49).sent == ((1_700, 49),)


def test_what_is_not_counted_is_no_look() -> None:
    before = Streak().advance(1_600, 20, 2, 0, 50)
    for successes, errors in ((None, 2), (20, None), (None, None)):
        assert before.advance(1_700, successes, errors) == Streak()


def failing(*rows: tuple[int, ...]) -> bool:
    return Streak(tuple(Look(at, *row) for at, row in enumerate(rows))).fails(3)


@pytest.mark.parametrize(
    ("looks", "fails"),
    [
        pytest.param([(0, 0), (0, 3)], True, id="three errors and no answer"),
        pytest.param([(0, 0), (0, 2)], False, id="two errors"),
        pytest.param([], False, id="no look"),
        pytest.param([(9, 0), (9, 3)], True, id="what was answered before excuses nothing"),
        pytest.param([(0, 4), (9, 7)], False, id="what failed before proves nothing"),
        pytest.param([(0, 0), (90, 0), (90, 3)], True, id="since any of the looks"),
        pytest.param([(0, 0), (0, 0), (0, 3)], True, id="in the last one"),
        pytest.param([(0, 0), (0, 0), (9, 5)], False, id="more answers than errors"),
        pytest.param([(0, 0), (9, 3)], False, id="enough errors, and more answers"),
        pytest.param([(0, 0), (3, 3)], False, id="as many answers"),
        pytest.param([(0, 0), (3, 4)], True, id="one more error than answers"),
        pytest.param([(0, 0, 1), (4, 3)], False, id="one of four answers was to an earlier one"),
        pytest.param([(0, 0, 2), (4, 3)], True, id="two of four were"),
        pytest.param([(0, 0, 9), (5, 3)], True, id="three of five were"),
        pytest.param([(0, 0, 9), (6, 3)], False, id="of six no more than half may be"),
    ],
)
def test_hardly_anything_but_errors(looks: list[tuple[int, ...]], fails: bool) -> None:
    assert failing(*looks) is fails


def test_three_errors_are_urgent() -> None:
    assert is_urgent((Look(0, 0, 0), Look(1, 0, ERRORS_MIN)))
    assert not is_urgent((Look(0, 0, 0), Look(1, 0, ERRORS_MIN - 1)))


def serving(per_s: int, **more: Any) -> Streak:
    """So many answers a second, over half a second."""
    return Streak((Look(0, 0, 0), Look(500, per_s // 2, 0)), **more)


def test_a_stay_is_what_is_held_over_what_is_served() -> None:
    """At least one in the span; unknown where too little was seen."""
    assert serving(100).stay_s(10) == 0.1
    assert serving(0).stay_s(10) == 10 * SPAN_MS / 1_000
    assert serving(100).stay_s(None) is None
    assert Streak((Look(0, 0, 0), Look(299, 50, 0))).stay_s(10) is None
    assert Streak((Look(0, 0, 0), Look(300, 30, 0))).stay_s(10) == 0.1
    assert Streak().stay_s(10) is None


@pytest.mark.parametrize(
    ("held", "usual_s", "usual_per_s", "per_s", "full"),
    [
        pytest.param(10, 0.01, 300, 100, 3, id="it stalls"),
        pytest.param(10, 0.01, 250, 100, 3, id="it serves less than half"),
        pytest.param(10, 0.01, 200, 100, 1, id="it serves half of what others do"),
        pytest.param(10, 0.01, 150, 100, 1, id="it serves more than half"),
        pytest.param(6, 0.01, 300, 100, 1, id="requests stay six times as long"),
        pytest.param(10, 0.1, 300, 100, 1, id="requests stay as long as elsewhere"),
        pytest.param(HELD_MIN, 0.001, 300, 100, 3, id="it holds just enough"),
        pytest.param(HELD_MIN - 1, 0.001, 300, 100, 1, id="it holds too little to say"),
        pytest.param(10, 0.01, 1.5, 0, 3, id="it serves nothing"),
        pytest.param(None, 0.01, 300, 100, 0, id="unknown what it holds"),
        pytest.param(10, None, 300, 100, 0, id="unknown how long others keep theirs"),
        pytest.param(10, 0.01, None, 100, 0, id="unknown what others serve"),
    ],
)
def test_a_look_counts_what_has_piled_up(
    held: int | None, usual_s: float | None, usual_per_s: float | None, per_s: int, full: int
) -> None:
    """Up by one, down by one, and back to none where it cannot be told."""
    before = serving(per_s, full=2)
    judged_ms = 500 if full else None
    after = before.judge(held, usual_s, usual_per_s)
    assert after == replace(before, full=full, judged_ms=judged_ms)
    if full:
        assert after.judge(held, usual_s, usual_per_s) == after, "the same look proves nothing"
    none = serving(per_s).judge(held, usual_s, usual_per_s)
    assert none.full == max(0, full - 2)


def test_the_last_of_several_looks_is_judged() -> None:
    before = Streak((Look(0, 0, 0), Look(250, 5, 0), Look(500, 50, 0)), judged_ms=250)
    assert before.judge(10, 0.01, 300).judged_ms == 500
    short = Streak((Look(0, 0, 0),), full=2)
    assert short.judge(10, 0.01, 300) == replace(short, full=0), "too little was seen"


def streak(errors: int = 0, served: int = 0, *, full: int = 0, sent: int = 0) -> Streak:
    return Streak((Look(0, 0, 0), Look(500, served, errors)), full, None, ((0, 0), (500, sent)))


def broken(*streaks: Streak, held: tuple[int | None, ...] = ()) -> str:
    """The names of the broken ones, of a, b, c and so on."""
    named = dict(zip("abcdefgh", streaks, strict=False))
    judged, found = find_broken(named, dict(zip(named, held, strict=False)))
    assert list(judged) == list(named)
    return "".join(sorted(found))


FINE = streak(served=50)


@pytest.mark.parametrize(
    ("failing", "expected"),
    [
        pytest.param([streak(3)], "a", id="three errors of one"),
        pytest.param([streak(2)], "", id="two errors"),
        pytest.param([streak(5), streak(1, 50)], "", id="five where another fails too"),
        pytest.param([streak(6), streak(1, 50)], "a", id="six where another fails too"),
        pytest.param([streak(9), streak(9)], "ab", id="half of the group"),
        pytest.param([streak(9), streak(9), streak(9)], "", id="more than half of the group"),
    ],
)
def test_those_that_fail_are_broken_unless_most_are(failing: list[Streak], expected: str) -> None:
    assert broken(*failing, *[FINE] * (4 - len(failing))) == expected


def test_one_of_a_pair_may_be_broken() -> None:
    assert broken(streak(3), FINE) == "a"
    stalls = streak(served=0, full=TICKS_HELD - 1, sent=50)
    assert broken(stalls, replace(FINE, sent=stalls.sent), held=(40, 1)) == "a"
    assert broken(stalls, held=(40,)) == "", "with nobody beside it nothing is usual"


@pytest.mark.parametrize(
    ("full", "sent", "expected"),
    [
        (TICKS_HELD - 1, 100, "a"),
        (TICKS_HELD - 2, 100, ""),
        (TICKS_HELD - 1, 16, "a"),
        (TICKS_HELD - 1, 15, ""),
        (TICKS_HARMLESS - 2, 15, ""),
        (TICKS_HARMLESS - 1, 15, "a"),
    ],
)
def test_one_that_stalls_is_broken_after_so_many_looks(full: int, sent: int, expected: str) -> None:
    """Later where it gets no more than a twentieth of what is sent: 15 of 300."""
    others = [(300 - sent) // 3] * 3
    others[0] += 300 - sent - sum(others)
    fine = [replace(FINE, sent=((0, 0), (500, each))) for each in others]
    assert broken(streak(full=full, sent=sent), *fine, held=(40, 1, 1, 1)) == expected


def test_where_nothing_was_sent_a_stall_is_harmless() -> None:
    fine = replace(FINE, sent=())
    for full, expected in ((TICKS_HELD - 1, ""), (TICKS_HARMLESS - 1, "a")):
        stalls = replace(streak(full=full), sent=())
        assert broken(stalls, fine, fine, fine, held=(40, 1, 1, 1)) == expected


def test_where_nobody_serves_nobody_stalls() -> None:
    """Whatever one of them holds: the fault lies elsewhere."""
    idle = streak(sent=50)
    stalls = replace(idle, full=TICKS_HELD - 1)
    assert broken(stalls, idle, idle, idle, held=(100, 4, 4, 4)) == ""


def test_what_is_usual_is_the_lower_median_of_the_others() -> None:
    """Of two others the shorter stay, of three the middle rate, and never its own."""
    stalls = streak(served=5, full=TICKS_HELD - 1, sent=50)
    quick, slow = streak(served=50, sent=50), streak(served=50, sent=50)
    assert broken(stalls, quick, slow, held=(30, 10, 100)) == "a"
    assert broken(stalls, quick, slow, held=(30, 60, 100)) == ""
    rates = [replace(streak(served=each, sent=50)) for each in (8, 15, 90)]
    assert broken(stalls, *rates, held=(30, 1, 1, 1)) == "a"
    lower = [replace(streak(served=each, sent=50)) for each in (8, 9, 90)]
    assert broken(stalls, *lower, held=(30, 1, 1, 1)) == ""
    lowest = [replace(streak(served=each, sent=50)) for each in (2, 15, 90)]
    assert broken(stalls, *lowest, held=(30, 1, 1, 1)) == "a"


def test_one_of_which_nothing_is_held_or_seen_is_not_judged() -> None:
    """What had piled up in it is forgotten."""
    full = streak(full=TICKS_HELD, sent=50)
    judged, found = find_broken({"a": full, "b": FINE, "c": FINE}, {"b": 1, "c": 1})
    assert (judged["a"], found) == (replace(full, full=0), set())
    judged, _ = find_broken({"a": full, "b": FINE, "c": FINE}, {"a": 40, "b": 1, "c": 1})
    assert judged["a"] == replace(full, full=TICKS_HELD + 1, judged_ms=500)
