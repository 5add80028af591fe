"""Ledger time: as the monotonic clock passes, near the wall clock, and never back."""

from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.gpu.clock import (
    BootSpan,
    ClockAnchor,
    ClockPolicy,
    ClockReading,
    ClockReason,
    LedgerTime,
    OpenRun,
    charges_gap,
    follow_boot,
    is_of_earlier_boot,
    ledger_time,
    seen_in_boot,
    time_elsewhere,
    time_in_boot,
)

POLICY = ClockPolicy()
ANCHOR = ClockAnchor(1_000_000_000, 50_000, "b1", "h1")
DAY = 86_400_000


def at(passed_ms: int, off_ms: int = 0, *, offset_ms: int = 0, last_ms: int = 0) -> LedgerTime:
    """So long after the anchor, with a wall clock that is off."""
    anchor = ClockAnchor(ANCHOR.ledger_ms, ANCHOR.monotonic_ms, "b1", "h1", offset_ms)
    wall_ms = ANCHOR.ledger_ms + passed_ms + off_ms
    reading = ClockReading(wall_ms, ANCHOR.monotonic_ms + passed_ms, "b1", "h1")
    return ledger_time(anchor, last_ms, reading, POLICY)


def test_a_clock_that_agrees_is_the_ledgers_time() -> None:
    assert at(5_000) == LedgerTime(1_000_005_000, 0, 0, ClockReason.STEADY)


def test_a_difference_within_the_bound_is_made_up_for_by_a_thousandth() -> None:
    assert at(60_000, 300_000).now_ms == 1_000_060_000 + 60
    assert at(60_000, -300_000).now_ms == 1_000_060_000 - 60
    assert at(60_000, 20).now_ms == 1_000_060_020, "and not further than it is"


def test_a_larger_one_is_a_jump_and_time_goes_on_steadily() -> None:
    ahead, back = at(60_000, 300_001), at(60_000, -300_001)
    assert (ahead.reason, ahead.ahead_ms) == (ClockReason.JUMPED_AHEAD, 300_001)
    assert (back.reason, back.ahead_ms) == (ClockReason.JUMPED_BACK, -300_001)
    assert ahead.now_ms == back.now_ms == 1_000_060_000


def test_an_offset_holds_until_the_clock_is_right_without_it() -> None:
    kept = at(60_000, 400 * DAY, offset_ms=-400 * DAY)
    assert (kept.reason, kept.now_ms) == (ClockReason.STEADY, 1_000_060_000)
    right = at(60_000, offset_ms=-400 * DAY)
    assert (right.reason, right.offset_ms) == (ClockReason.RETURNED, 0)


def boot(
    gap_ms: int, *, up_ms: int = 10_000, host: str = "h1", offset_ms: int = 0, asked: bool = False
) -> LedgerTime:
    """The first reading after a boot, so long after the last entry by the wall clock."""
    anchor = ClockAnchor(1_000, 5_000, "b1", "h1", offset_ms)
    reading = ClockReading(1_000_000 + gap_ms, up_ms, "b2", host)
    return ledger_time(anchor, 1_000_000, reading, POLICY, asked=asked)


def test_downtime_is_believed_where_the_boot_came_after_the_last_entry() -> None:
    assert boot(7 * DAY) == LedgerTime(1_000_000 + 7 * DAY, 0, 0, ClockReason.STARTED)
    assert boot(-1_000).now_ms == 1_000_000, "never back"
    assert boot(2 * DAY, up_ms=3 * DAY).reason is ClockReason.JUMPED_AHEAD
    assert boot(2 * DAY, up_ms=3 * DAY, host="h2").reason is ClockReason.STARTED, "a replica"


def test_a_clock_far_behind_or_far_ahead_at_a_boot_is_a_jump() -> None:
    assert boot(-400 * DAY).reason is ClockReason.JUMPED_BACK
    assert boot(91 * DAY) == LedgerTime(1_000_000, 91 * DAY, 0, ClockReason.JUMPED_AHEAD)


def test_a_jump_that_is_not_judged_stays_one_over_a_boot() -> None:
    """The clock was an hour ahead: after a boot that is no downtime."""
    assert boot(3_600_000, asked=True).reason is ClockReason.JUMPED_AHEAD
    assert boot(60_000, asked=True).reason is ClockReason.STARTED


def test_an_offset_is_kept_over_a_boot_where_it_fits_and_dropped_where_none_does() -> None:
    assert boot(-400 * DAY, offset_ms=400 * DAY).offset_ms == 400 * DAY
    assert boot(DAY, offset_ms=-400 * DAY).offset_ms == 0


def test_a_ledger_without_an_anchor_begins_with_the_wall_clock() -> None:
    reading = ClockReading(5 * DAY, 1, "b1")
    assert ledger_time(None, 0, reading, POLICY).now_ms == 5 * DAY
    assert ledger_time(None, 4 * DAY, reading, POLICY).reason is ClockReason.STARTED
    assert ledger_time(None, 6 * DAY, reading, POLICY).reason is ClockReason.JUMPED_BACK


@given(st.integers(0, 10**9), st.integers(-(10**12), 10**12), st.integers(0, 2 * 10**9))
def test_time_never_goes_back_and_passes_by_a_thousandth_at_most(
    passed_ms: int, off_ms: int, last_ms: int
) -> None:
    found = at(passed_ms, off_ms, last_ms=last_ms)
    assert found.now_ms >= last_ms
    steady_ms = max(last_ms, ANCHOR.ledger_ms + passed_ms)
    assert abs(found.now_ms - steady_ms) <= passed_ms // 1000


def test_a_gap_that_a_lease_would_be_charged_for_is_asked_about() -> None:
    """What outlives the boot, unless it ends by itself within the bound."""
    bound_ms = POLICY.jump_ms
    assert charges_gap([OpenRun(outlives=True)], 1_000, POLICY)
    assert charges_gap([OpenRun(True, 1_001 + bound_ms)], 1_000, POLICY)
    assert not charges_gap([OpenRun(True, 1_000 + bound_ms)], 1_000, POLICY)
    assert not charges_gap([OpenRun(outlives=False)], 1_000, POLICY)
    assert not charges_gap([], 1_000, POLICY)


def test_two_reasons_are_jumps() -> None:
    jumps = {reason for reason in ClockReason if reason.jumped}
    assert jumps == {ClockReason.JUMPED_AHEAD, ClockReason.JUMPED_BACK}


def test_an_anchor_is_younger_where_other_machines_run_the_processes() -> None:
    assert POLICY.anchor_ms(elsewhere=False) == POLICY.jump_ms
    assert POLICY.anchor_ms(elsewhere=True) == POLICY.jump_ms // 5


# -- boots ----------------------------------------------------------------------------------------

FIRST = follow_boot((), ClockAnchor(100_000, 5_000, "b1", "h1"), 90_000)
TWO = follow_boot(FIRST, ClockAnchor(900_000, 10_000, "b2", "h1"), 400_000)


def test_a_later_anchor_of_a_boot_replaces_the_one_before() -> None:
    (span,) = follow_boot(FIRST, ClockAnchor(130_500, 35_000, "b1", "h1"), 120_000)
    assert span == BootSpan("b1", 90_000, 100_000, 130_500, 35_000, "h1")


def test_so_many_boots_are_known() -> None:
    spans: tuple[BootSpan, ...] = ()
    for number in range(40):
        spans = follow_boot(spans, ClockAnchor(number, 0, f"b{number}"), number)
    assert [span.boot for span in spans] == [f"b{number}" for number in range(24, 40)]


def test_an_end_is_placed_by_the_monotonic_clock_of_its_boot() -> None:
    assert time_in_boot(TWO, "b1", 5_000) == 100_000
    assert time_in_boot(TWO, "b1", 65_000) == 160_000
    assert time_in_boot(TWO, "b2", 9_000) == 899_000
    assert time_in_boot(TWO, "b3", 9_000) is None


def test_a_shift_moves_all_that_is_known_of_boots() -> None:
    moved = tuple(span.restated(1_000_000) for span in TWO)
    assert time_in_boot(moved, "b1", 65_000) == 1_160_000
    assert (moved[1].before_ms, moved[1].first_ms) == (1_400_000, 1_900_000)
    assert (moved[1].boot, moved[1].monotonic_ms, moved[1].host) == ("b2", 10_000, "h1")


def test_what_was_seen_in_a_later_boot_was_there_until_the_last_entry_of_its_own() -> None:
    assert seen_in_boot(TWO, 200_000, 950_000) == 400_000
    assert seen_in_boot(TWO, 500_000, 950_000) == 500_000, "it began after that entry"
    assert seen_in_boot(TWO, 200_000, 900_000) == 400_000, "the first entry is of the later boot"
    assert seen_in_boot(TWO, 200_000, 899_999) == 899_999
    assert seen_in_boot(TWO, 900_000, 950_000) == 950_000
    assert seen_in_boot((), 200_000, 950_000) == 950_000


def test_only_a_boot_of_the_same_machine_ends_what_ran_there() -> None:
    """Another host may lead: what runs in a cluster does not end with its controller."""
    assert is_of_earlier_boot(TWO, 899_999)
    assert not is_of_earlier_boot(TWO, 900_000)
    assert not is_of_earlier_boot(FIRST, 100_000)
    assert not is_of_earlier_boot((), 100_000)
    assert not is_of_earlier_boot(TWO, 50_000), "from before all that is known"
    elsewhere = follow_boot(FIRST, ClockAnchor(900_000, 10_000, "b2", "h2"), 400_000)
    assert not is_of_earlier_boot(elsewhere, 200_000)


def test_an_end_by_another_machines_clock_is_believed_within_the_bound() -> None:
    """One that is further before its beginning is of a clock that is not ours: it ended now."""
    policy, began_ms, now_ms = ClockPolicy(jump_ms=300_000), 1_000_000, 2_000_000

    def when(wall_ms: int) -> int:
        return time_elsewhere(wall_ms, policy, began_ms=began_ms, now_ms=now_ms)

    assert when(1_500_000) == 1_500_000
    assert when(700_000) == 700_000
    assert when(699_999) == now_ms


def test_an_anchor_elsewhere_may_be_a_fifth_as_old() -> None:
    policy = ClockPolicy(jump_ms=300_001)
    assert policy.anchor_ms(elsewhere=False) == 300_001
    age_ms = policy.anchor_ms(elsewhere=True)
    assert (age_ms, type(age_ms)) == (60_000, int)


def test_a_wall_clock_that_shows_ledger_time_again_is_believed_up_to_the_bound() -> None:
    """Its offset is over then; what is further off is still a jump."""
    jump_ms = POLICY.jump_ms
    found = at(5_000, jump_ms, offset_ms=DAY)
    assert found == LedgerTime(1_000_005_000, jump_ms, 0, ClockReason.RETURNED)
    found = at(5_000, -jump_ms, offset_ms=-DAY)
    assert found == LedgerTime(1_000_005_000, -jump_ms, 0, ClockReason.RETURNED)
    further = at(5_000, jump_ms + 1, offset_ms=DAY)
    ahead_ms = DAY + jump_ms + 1
    assert further == LedgerTime(1_000_005_000, ahead_ms, DAY, ClockReason.JUMPED_AHEAD)


def after_boot(
    gap_ms: int, since_boot_ms: int, *, offset_ms: int = 0, host: str = "h1"
) -> LedgerTime:
    """The first reading of another boot, so long after the last entry."""
    anchor = ClockAnchor(ANCHOR.ledger_ms, ANCHOR.monotonic_ms, "b1", "h1", offset_ms)
    last_ms = ANCHOR.ledger_ms + 7_000
    reading = ClockReading(last_ms + gap_ms - offset_ms, since_boot_ms, "b2", host)
    return ledger_time(anchor, last_ms, reading, POLICY)


def test_an_offset_outlives_a_boot() -> None:
    """Where the wall clock fits the last entry with it; else the jump says how far off it is."""
    last_ms = ANCHOR.ledger_ms + 7_000
    found = after_boot(60_000, 1_000, offset_ms=DAY)
    assert found == LedgerTime(last_ms + 60_000, 0, DAY, ClockReason.STARTED)
    lost = after_boot(-3 * DAY, 1_000, offset_ms=DAY)
    assert lost == LedgerTime(last_ms, -3 * DAY, DAY, ClockReason.JUMPED_BACK)


def test_the_bounds_of_a_gap_between_boots() -> None:
    """Back by a jump at most, ahead by the downtime at most; a boot of this machine comes after its
    last entry, within a jump."""
    jump_ms, downtime_ms = POLICY.jump_ms, POLICY.downtime_ms
    started, back, ahead = ClockReason.STARTED, ClockReason.JUMPED_BACK, ClockReason.JUMPED_AHEAD
    assert after_boot(-jump_ms, 0).reason is started
    assert after_boot(-jump_ms - 1, 0).reason is back
    assert after_boot(downtime_ms, 0).reason is started
    assert after_boot(downtime_ms + 1, 0).reason is ahead
    assert after_boot(1_000, 1_000 + jump_ms).reason is started
    assert after_boot(1_000, 1_001 + jump_ms).reason is ahead
    assert after_boot(1, 2 + jump_ms).reason is ahead
    assert after_boot(0, 1 + jump_ms).reason is back
    assert after_boot(1_000, 1_001 + jump_ms, host="h2").reason is started


def test_a_boot_is_known_by_the_entries_around_its_beginning() -> None:
    first = BootSpan("b1", 90_000, 100_000, 100_000, 5_000, "h1")
    spans = follow_boot((), ClockAnchor(100_000, 5_000, "b1", "h1"), 90_000)
    assert spans == (first,)
    spans = follow_boot(spans, ClockAnchor(900_000, 10_000, "b2", "h1"), 400_000)
    assert spans == (first, BootSpan("b2", 400_000, 900_000, 900_000, 10_000, "h1"))
    spans = follow_boot(spans, ClockAnchor(950_000, 60_000, "b2", "h1"), 940_000)
    assert spans == (first, BootSpan("b2", 400_000, 900_000, 950_000, 60_000, "h1"))


def test_only_the_present_boot_is_compared() -> None:
    """A machine of another name booted since: what began here before that may still be there."""
    spans = follow_boot((), ClockAnchor(100_000, 5_000, "b1", "h1"), 90_000)
    spans = follow_boot(spans, ClockAnchor(300_000, 5_000, "b2", "h1"), 290_000)
    spans = follow_boot(spans, ClockAnchor(500_000, 5_000, "b3", "h2"), 490_000)
    assert not is_of_earlier_boot(spans, 200_000)
