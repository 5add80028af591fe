"""Usage: rectangles, holds, the lent part, calendar periods at their edges."""

from datetime import UTC, datetime

import pytest

from fairlead.core.gpu import (
    HOUR_MS,
    Budget,
    Envelope,
    Lease,
    Recurrence,
    Usage,
    Window,
    aggregate,
    period_at,
    tally,
)
from fairlead.core.gpu.usage import (
    DAY_MS,
    FOREVER,
    Charge,
    ChargePart,
    calendar,
    settle,
    split_hold,
)
from fairlead.schema.times import parse_time
from tests.core.gpu.build import ask, binding, budget, cap, cover, envelope, lease

H = HOUR_MS


def ms(text: str) -> int:
    """2026-01-01 or 2026-01-01T10:00 in UTC."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def used(*leases: Lease, now: int, **fields: object) -> Usage:
    """Usage of one envelope that pays all of these."""
    only = Envelope("e", "H100", 8, **fields)  # type: ignore[arg-type]
    return tally([Budget("b", "t", envelopes=(only,))], leases, now)["b", "e"]


def rent(gpus: int, start: int, end: int | None = None, **fields: object) -> Lease:
    return Lease("l", "t", "b", "e", gpus, start, end, **fields)  # type: ignore[arg-type]


# --- the accounting row of the check table --------------------------------------------------


def test_accounting_row() -> None:
    """3 GPUs open since 2 h, 2 GPUs closed after 1 h: u 3, U 8 h."""
    now = used(rent(3, 8 * H), rent(2, 5 * H, 6 * H), now=10 * H)
    assert (now.gpus, now.used_ms, now.held_ms) == (3, 8 * H, 0)


ROW = budget("t", envelope("e", 10, 100), caps=[cap("all", "e", 8, 90)])
ROW_LEASES = [lease("t/e", 3, -2), lease("t/e", 2, -5, -4)]


@pytest.mark.parametrize(
    ("only", "gpus", "hours"), [("envelope", 7, 92), ("cap", 5, 82), ("both", 5, 82)]
)
def test_accounting_row_headroom(only: str, gpus: int, hours: int) -> None:
    """Envelope 10 / 100 h has 7 and 92 h left, the cap 8 / 90 h has 5 and 82 h."""
    limits = [] if only == "envelope" else [cap("all", "e", 8, 90)]
    mine = envelope("e", 10, 100) if only != "cap" else envelope("e", 99)
    given = budget("t", mine, caps=limits)
    assert cover(ask("t", gpus), given, leases=ROW_LEASES)["gpus"] == gpus
    assert not cover(ask("t", gpus + 1), given, leases=ROW_LEASES)["funded"]
    assert cover(ask("t", 1, hours), given, leases=ROW_LEASES)["funded"]
    assert not cover(ask("t", 1, hours + 3e-7), given, leases=ROW_LEASES)["funded"]


def test_accounting_row_as_a_refusal_tells_it() -> None:
    """Used is what is used now, in the unit of the limit."""
    result = cover(ask("t", 6), ROW, leases=ROW_LEASES)
    assert binding(result) == {("aggregate", "t", "all", 8, 3)}
    result = cover(ask("t", 1, 83), ROW, leases=ROW_LEASES)
    assert binding(result) == {("aggregate", "t", "all", 90, 8)}


# --- leases ---------------------------------------------------------------------------------


def test_open_means_from_start_up_to_not_at_end() -> None:
    """start <= t < end; hours before the start and after now do not count."""
    for start, end, gpus, hours in (
        (10, None, 1, 0),
        (9, None, 1, 1),
        (9, 10, 0, 1),
        (9, 11, 1, 1),
        (11, None, 0, 0),
        (11, 12, 0, 0),
        (10, 10, 0, 0),
    ):
        now = used(rent(1, start * H, None if end is None else end * H), now=10 * H)
        assert (now.gpus, now.used_ms) == (gpus, hours * H), (start, end)


def test_holds_are_for_open_leases_only() -> None:
    """gpus x (expected end - now), never negative."""
    assert used(rent(2, 0, expected_end_ms=13 * H), now=10 * H).held_ms == 6 * H
    assert used(rent(2, 0, expected_end_ms=9 * H), now=10 * H).held_ms == 0
    assert used(rent(2, 0, 10 * H, expected_end_ms=13 * H), now=10 * H).held_ms == 0


def test_the_lent_part_is_counted_beside_the_whole() -> None:
    """A borrowed lease counts twice: in the whole, and in the lent part."""
    lent = rent(2, 8 * H, expected_end_ms=11 * H, borrowed=True)
    assert used(lent, rent(1, 9 * H), now=10 * H) == Usage(3, 5 * H, 2 * H, 2, 4 * H, 2 * H)


def test_no_leases_no_usage() -> None:
    """Every envelope has its line, empty or not."""
    assert used(now=0) == Usage()


def test_only_the_part_inside_the_period_counts() -> None:
    """A lease across midnight charges today with today's hours; the hold stays whole."""
    over = rent(2, ms("2026-03-09T20:00"), expected_end_ms=ms("2026-03-12"))
    now = used(over, now=ms("2026-03-10T03:00"), recurrence=Recurrence.DAILY)
    assert (now.gpus, now.used_ms, now.held_ms) == (2, 6 * H, 2 * 45 * H)


def test_charges_are_cut_to_the_window() -> None:
    """Window 10 to 12 h of a lease from 9 h on, looked at 13 h: 2 h, though it runs still."""
    now = used(rent(1, 9 * H), now=13 * H, window=Window(10 * H, 12 * H))
    assert (now.gpus, now.used_ms) == (1, 2 * H)


def test_a_window_that_the_period_has_left_behind_charges_nothing() -> None:
    """The month and the window do not meet."""
    window = Window(ms("2026-01-01"), ms("2026-02-01"))
    past = rent(1, ms("2026-01-05"), ms("2026-01-06"))
    now = used(past, now=ms("2026-03-01"), window=window, recurrence=Recurrence.MONTHLY)
    assert now.used_ms == 0


def test_an_aggregate_is_the_sum_of_its_members() -> None:
    """Unknown members have used nothing."""
    totals = {("b", "x"): Usage(1, 2, 3, 4, 5, 6), ("b", "y"): Usage(10, 20, 30, 40, 50, 60)}
    assert aggregate(totals, "b", ["x", "y", "z"]) == Usage(11, 22, 33, 44, 55, 66)
    assert aggregate(totals, "c", ["x"]) == Usage()


# --- calendar periods -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recurrence", "now", "start", "end"),
    [
        ("daily", "2024-02-29T12:00", "2024-02-29", "2024-03-01"),
        ("daily", "2026-01-01", "2026-01-01", "2026-01-02"),
        ("daily", "2025-12-31T23:59:59.999", "2025-12-31", "2026-01-01"),
        ("weekly", "2026-01-01", "2025-12-29", "2026-01-05"),  # ISO week 1 of 2026
        ("weekly", "2027-01-03T23:59", "2026-12-28", "2027-01-04"),  # ISO week 53 of 2026
        ("weekly", "2026-01-05", "2026-01-05", "2026-01-12"),
        ("weekly", "2024-02-29", "2024-02-26", "2024-03-04"),
        ("monthly", "2024-02-29T12:00", "2024-02-01", "2024-03-01"),
        ("monthly", "2025-02-28T23:59", "2025-02-01", "2025-03-01"),
        ("monthly", "2025-12-31T23:59:59.999", "2025-12-01", "2026-01-01"),
        ("monthly", "2026-01-31", "2026-01-01", "2026-02-01"),
        ("quarterly", "2026-03-31T23:59:59.999", "2026-01-01", "2026-04-01"),
        ("quarterly", "2026-04-01", "2026-04-01", "2026-07-01"),
        ("quarterly", "2026-09-30", "2026-07-01", "2026-10-01"),
        ("quarterly", "2026-12-31T23:59", "2026-10-01", "2027-01-01"),
        ("quarterly", "2024-02-29", "2024-01-01", "2024-04-01"),
        ("daily", "1969-12-31T23:00", "1969-12-31", "1970-01-01"),
    ],
)
def test_calendar_periods(recurrence: str, now: str, start: str, end: str) -> None:
    """UTC days, ISO weeks from Monday, months, quarters; half-open."""
    assert calendar(Recurrence(recurrence), ms(now)) == Window(ms(start), ms(end))


@pytest.mark.parametrize("recurrence", Recurrence)
def test_periods_tile_the_calendar(recurrence: Recurrence) -> None:
    """The next period begins where this one ends, through two leap years."""
    period = calendar(recurrence, ms("2023-12-31T12:00"))
    while period.start_ms < ms("2029-01-01"):
        following = calendar(recurrence, period.end_ms)
        assert following.start_ms == period.end_ms
        assert calendar(recurrence, period.end_ms - 1) == period
        period = following


def test_a_period_is_cut_to_the_window() -> None:
    """Without recurrence the window is the period; without both it is all time."""
    window = Window(ms("2026-01-10"), ms("2026-02-10"))
    now = ms("2026-02-01")

    def period(**fields: object) -> Window:
        return period_at(Envelope("e", "H100", 1, **fields), now)  # type: ignore[arg-type]

    assert period() == FOREVER
    assert period(window=window) == window
    assert period(recurrence=Recurrence.MONTHLY) == Window(now, ms("2026-03-01"))
    both = period(window=window, recurrence=Recurrence.MONTHLY)
    assert both == Window(now, ms("2026-02-10"))


def test_zones_are_only_a_way_of_writing() -> None:
    """Half past five in the morning in India is midnight in UTC."""
    assert parse_time("2026-01-01T05:30:00+05:30", "now") == ms("2026-01-01")


# --- what one lease costs -------------------------------------------------------------------


def test_a_lease_is_settled_by_the_day() -> None:
    """Two GPUs from 22:00 for 30 hours; overdraft from 23:00 to 02:00, and what was promised."""
    start, end = DAY_MS - 2 * H, 2 * DAY_MS + 4 * H
    held = rent(2, start, expected_end_ms=end + 5 * H)
    spells = [(DAY_MS - H, DAY_MS + H), (DAY_MS + H, DAY_MS + 2 * H), (2 * DAY_MS, 9 * DAY_MS)]
    parts = (ChargePart(0, 4 * H, 2 * H), ChargePart(1, 48 * H, 4 * H), ChargePart(2, 8 * H, 8 * H))
    assert settle(held, end, spells) == Charge(60 * H, 14 * H, 10 * H, parts)


def test_only_what_was_promised_is_void() -> None:
    """Nothing after the expected end, without one, or of a lease that was not funded."""
    for expected, funded, void in ((9 * H, True, 3 * 2 * H), (5 * H, True, 0), (None, True, 0)):
        held = rent(3, 4 * H, expected_end_ms=expected)
        assert settle(held, 7 * H, [], funded=funded).void_ms == void
    assert settle(rent(3, 4 * H, expected_end_ms=9 * H), 7 * H, [], funded=False).void_ms == 0
    assert settle(rent(3, 4 * H), 4 * H, []) == Charge(0, 0, 0, ())


def test_a_hold_is_cut_where_periods_end() -> None:
    """One part without periods; none without an end."""
    monthly = Envelope("e", "H100", 8, recurrence=Recurrence.MONTHLY)
    start, end = ms("2026-01-31T22:00"), ms("2026-03-01T03:00")
    held = rent(2, start, expected_end_ms=end)
    assert split_hold(held, Envelope("e", "H100", 8)) == [(start, 2 * (end - start))]
    assert split_hold(held, monthly) == [
        (start, 2 * 2 * H),
        (ms("2026-02-01"), 2 * 28 * DAY_MS),
        (ms("2026-03-01"), 2 * 3 * H),
    ]
    assert split_hold(rent(2, start), monthly) == []
    assert split_hold(rent(2, start, expected_end_ms=start), monthly) == []


def test_usage_adds_up_figure_by_figure() -> None:
    assert Usage(1, 2, 3, 4, 5, 6).with_more(Usage(10, 20, 30, 40, 50, 60)) == Usage(
        11, 22, 33, 44, 55, 66
    )


def test_periods_are_whole_milliseconds() -> None:
    period = calendar(Recurrence.MONTHLY, ms("2026-02-03T10:00"))
    assert period == Window(ms("2026-02-01"), ms("2026-03-01"))
    assert {type(period.start_ms), type(period.end_ms)} == {int}
