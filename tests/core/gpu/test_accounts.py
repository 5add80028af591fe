"""Running totals per envelope: hold, post, void, periods, overdraft, edits."""

from copy import deepcopy
from dataclasses import replace

import pytest

from fairlead.core.gpu import (
    HOUR_MS,
    AggregateCap,
    Budget,
    Envelope,
    Lease,
    Recurrence,
    Usage,
    Window,
    aggregate,
)
from fairlead.core.gpu.accounts import Account, Accounts, Statement
from fairlead.core.gpu.usage import DAY_MS, settle, split_hold
from fairlead.core.invariant import InvariantBroken

T0 = 20_454 * DAY_MS  # 2026-01-01T00:00:00Z
WEST = Envelope("west", "H100", 10, max_hours_ms=100 * HOUR_MS)


def lease(name: str = "l", gpus: int = 1, start: float = 0, lasts: float | None = None, **more):
    start_ms = T0 + int(start * HOUR_MS)
    until = None if lasts is None else start_ms + int(lasts * HOUR_MS)
    return Lease(name, "a", "a", "west", gpus, start_ms, None, until, **more)


def at(hours: float) -> int:
    return T0 + int(hours * HOUR_MS)


def test_the_worked_example() -> None:
    """3 GPUs since 2 h, 2 closed after 1 h: u 3, U 8 h; headroom 7 and 92 h, cap 5 and 82 h."""
    budget = Budget(
        "a", "a", (), (WEST,), (AggregateCap("all", "H100", frozenset({"west"}), 8, 90 * HOUR_MS),)
    )
    accounts = Accounts()
    accounts.define(budget, T0)
    accounts.hold(lease("open", 3))
    accounts.hold(lease("closed", 2))
    assert accounts.post("closed", at(1)).used_ms == 2 * HOUR_MS
    used = accounts.paid_usage(("a", "west"), at(2))
    assert (used.gpus, used.used_ms) == (3, 8 * HOUR_MS)
    assert (WEST.gpus - used.gpus, WEST.max_hours_ms - used.used_ms) == (7, 92 * HOUR_MS)
    whole = aggregate(accounts.at(at(2)), "a", ["west"])
    assert (8 - whole.gpus, 90 * HOUR_MS - whole.used_ms) == (5, 82 * HOUR_MS)


def test_a_hold_shrinks_as_it_is_used_and_the_rest_is_void() -> None:
    """Admission holds width times duration; closing posts what was used and voids the rest."""
    account = Account(WEST, T0)
    account.hold(lease(gpus=2, lasts=4))
    assert account.usage(T0) == Usage(2, 0, 8 * HOUR_MS)
    assert account.usage(at(1)) == Usage(2, 2 * HOUR_MS, 6 * HOUR_MS)
    quoted = account.quote("l", at(3))
    charge = account.post("l", at(3))
    assert (charge.used_ms, charge.void_ms, charge.overdraft_ms) == (6 * HOUR_MS, 2 * HOUR_MS, 0)
    assert charge == quoted
    assert account.usage(at(5)) == Usage(0, 6 * HOUR_MS, 0)


def test_a_lease_past_its_duration_holds_nothing_and_goes_on_using() -> None:
    """The promise is over, the use is not."""
    account = Account(WEST, T0)
    account.hold(lease(gpus=2, lasts=1))
    assert account.usage(at(3)) == Usage(2, 6 * HOUR_MS, 0)
    assert account.post("l", at(3)).void_ms == 0


def test_lent_use_counts_in_the_whole_and_apart() -> None:
    """A loan counts against the envelope and against its lending caps."""
    account = Account(WEST, T0)
    account.hold(lease("own", 1))
    account.hold(lease("loan", 2, lasts=2, borrowed=True))
    assert account.usage(at(1)) == Usage(3, 3 * HOUR_MS, 2 * HOUR_MS, 2, 2 * HOUR_MS, 2 * HOUR_MS)
    account.post("loan", at(1))
    assert account.usage(at(1)) == Usage(1, 3 * HOUR_MS, 0, 0, 2 * HOUR_MS, 0)


def test_a_period_ends_and_only_open_leases_carry_over() -> None:
    """Caps on hours are per period; what a new period starts with is what runs on."""
    account = Account(replace(WEST, recurrence=Recurrence.DAILY), T0)
    account.hold(lease("early", 4, start=1))
    account.post("early", at(5))
    account.hold(lease("late", 2, start=20, lasts=8))
    # Of the eight hours four are held today, four belong to tomorrow.
    assert account.usage(at(20)) == Usage(2, 16 * HOUR_MS, 8 * HOUR_MS)
    assert account.usage(at(24)) == Usage(2, 0, 8 * HOUR_MS)
    assert account.usage(at(26)) == Usage(2, 4 * HOUR_MS, 4 * HOUR_MS)
    charge = account.post("late", at(27))
    assert [(part.day, part.used_ms) for part in charge.parts] == [
        (20_454, 8 * HOUR_MS),
        (20_455, 6 * HOUR_MS),
    ]
    assert account.usage(at(30)) == Usage(0, 6 * HOUR_MS, 0)


def test_a_look_into_the_next_period_rolls_nothing_over() -> None:
    """What ran out in the old one is settled first: who only looks must not change the bill."""
    account = Account(replace(WEST, recurrence=Recurrence.DAILY), T0)
    account.hold(lease("open", gpus=2, start=20))
    for _ in range(2):
        assert account.usage(at(30)).used_ms == 2 * 6 * HOUR_MS
        assert account.overdraft_ms(at(30)) == 0
        assert account.usage(at(23)).used_ms == 2 * 3 * HOUR_MS, "still in its own period"
    account.demote("open", at(22))
    assert account.overdraft_ms(at(30)) == 2 * 6 * HOUR_MS
    account.advance(at(30))
    assert (account.until_ms, account.usage(at(30)).used_ms) == (at(48), 2 * 6 * HOUR_MS)


def test_an_end_that_is_heard_of_late_is_charged_to_its_own_period() -> None:
    """A lease closed yesterday leaves nothing in today's account."""
    account = Account(replace(WEST, recurrence=Recurrence.DAILY), T0)
    account.hold(lease(gpus=2))
    assert account.usage(at(30)).used_ms == 12 * HOUR_MS
    account.post("l", at(20))
    assert account.usage(at(30)) == Usage()
    assert account.days == {20_454: [40 * HOUR_MS, 0, 0, 0]}


def test_a_window_counts_only_inside_it() -> None:
    """Use before and after a window does not count in it; a calendar period outside it is empty."""
    window = Window(at(2), at(4))
    account = Account(replace(WEST, window=window), T0)
    account.hold(lease(gpus=1, lasts=10))
    assert account.usage(at(1)).used_ms == 0
    assert account.usage(at(3)) == Usage(1, HOUR_MS, HOUR_MS)
    assert account.usage(at(9)) == Usage(1, 2 * HOUR_MS, 0)
    outside = Account(replace(WEST, window=window, recurrence=Recurrence.DAILY), at(30))
    outside.hold(lease(gpus=1, start=30))
    assert outside.usage(at(40)) == Usage(1, 0, 0)


def test_unfunded_hours_go_to_the_overdraft() -> None:
    """free + held + spent = granted whatever runs on unfunded."""
    account = Account(replace(WEST, max_hours_ms=4 * HOUR_MS), T0)
    account.hold(lease(gpus=2, borrowed=True))
    assert account.demote("l", at(2)) == 0
    statement = account.statement(at(5))
    assert (statement.spent_ms, statement.overdraft_ms) == (4 * HOUR_MS, 6 * HOUR_MS)
    assert (statement.free_ms, statement.held_ms) == (0, 0)
    assert account.overdraft_ms(at(5), lent=True) == 6 * HOUR_MS
    charge = account.post("l", at(5))
    assert (charge.used_ms, charge.overdraft_ms, charge.void_ms) == (10 * HOUR_MS, 6 * HOUR_MS, 0)
    assert account.statement(at(6)).overdraft_ms == 6 * HOUR_MS


def test_demotion_voids_the_hold_and_restoring_promises_the_rest() -> None:
    """A lease that is funded again holds what is left of its duration."""
    account = Account(WEST, T0)
    account.hold(lease(gpus=1, lasts=10))
    assert account.demote("l", at(2)) == 8 * HOUR_MS
    assert account.usage(at(3)).held_ms == 0
    account.restore("l", at(4))
    assert account.usage(at(4)).held_ms == 6 * HOUR_MS
    assert account.statement(at(4)).overdraft_ms == 2 * HOUR_MS
    assert account.leases["l"].restored_ms == at(4)
    charge = account.post("l", at(5))
    assert (charge.overdraft_ms, charge.void_ms) == (2 * HOUR_MS, 5 * HOUR_MS)


def test_overdraft_is_of_its_period() -> None:
    """At a period's end an unfunded lease begins a new overdraft; an old one is history."""
    account = Account(replace(WEST, recurrence=Recurrence.DAILY), T0)
    account.hold(lease("a", 1))
    account.hold(lease("b", 1))
    account.demote("a", at(10))
    account.demote("b", at(10))
    account.restore("b", at(12))
    assert account.overdraft_ms(at(20)) == 12 * HOUR_MS
    assert account.overdraft_ms(at(25)) == HOUR_MS
    account.restore("a", at(26))
    assert account.overdraft_ms(at(30)) == 2 * HOUR_MS


def test_an_edit_keeps_what_elapsed() -> None:
    """Another cap changes what is left, never what was used."""
    account = Account(WEST, T0)
    account.hold(lease(gpus=2))
    account.post("l", at(3))
    account.redefine(replace(WEST, max_hours_ms=HOUR_MS), at(3))
    assert account.usage(at(3)).used_ms == 6 * HOUR_MS
    statement = account.statement(at(3))
    assert (statement.spent_ms, statement.overdraft_ms) == (HOUR_MS, 5 * HOUR_MS)
    account.redefine(replace(WEST, max_hours_ms=None), at(4))
    assert account.statement(at(4)).granted_ms is None
    assert account.usage(at(4)).used_ms == 6 * HOUR_MS


def test_an_edited_period_counts_the_days_it_touches() -> None:
    """From monthly to daily: today's charges count, yesterday's do not; back again, all do."""
    account = Account(replace(WEST, recurrence=Recurrence.MONTHLY), T0)
    account.hold(lease("one", 1, borrowed=True))
    account.post("one", at(5))
    account.hold(lease("two", 2, start=25))
    account.post("two", at(27))
    account.hold(lease("open", 1, start=23))
    assert account.usage(at(28)).used_ms == 14 * HOUR_MS
    account.redefine(replace(WEST, recurrence=Recurrence.DAILY), at(28))
    assert account.usage(at(28)) == Usage(1, 8 * HOUR_MS)
    account.redefine(replace(WEST, recurrence=Recurrence.MONTHLY), at(28))
    assert account.usage(at(28)) == Usage(1, 14 * HOUR_MS, 0, 0, 5 * HOUR_MS, 0)


def test_a_checkpoint_restores_the_same_account() -> None:
    """State out, state in: the same answers, holds ending when they would have."""
    accounts = Accounts()
    accounts.define(Budget("a", "a", (), (replace(WEST, recurrence=Recurrence.DAILY),)), T0)
    accounts.hold(lease("a", 1, lasts=3, borrowed=True))
    accounts.hold(lease("b", 2))
    accounts.of_lease("b").demote("b", at(1))
    again = Accounts.of_states(deepcopy(accounts.states()))
    for hour in (1, 2, 4, 26):
        assert again.paid_usage(("a", "west"), at(hour)) == accounts.paid_usage(
            ("a", "west"), at(hour)
        )
    quoted = accounts.of_lease("b").quote("b", at(30))
    assert again.post("b", at(30)) == quoted == accounts.post("b", at(30))
    assert quoted.overdraft_ms == 58 * HOUR_MS


def test_accounts_are_a_mapping_worked_out_when_looked_at() -> None:
    """Every envelope has a usage; an unknown one has none."""
    accounts = Accounts()
    accounts.define(Budget("a", "a", (), (WEST,)), T0)
    moment = accounts.at(T0)
    assert list(moment) == [("a", "west")]
    assert len(moment) == 1
    assert moment["a", "west"] == Usage() == accounts.paid_usage(("no", "body"), T0)
    assert moment["a", "west"] is moment.get(("a", "west"))
    assert moment.get(("no", "body"), 7) == 7
    assert accounts.get("no", "body") is None
    assert not accounts.has_leases(Budget("a", "a", (), (WEST,)))


def test_an_envelope_that_comes_back_has_its_charges() -> None:
    """Removing an envelope and adding it again is no way to new hours."""
    accounts = Accounts()
    accounts.define(Budget("a", "a", (), (WEST,)), T0)
    accounts.hold(lease(gpus=1))
    accounts.post("l", at(7))
    accounts.define(Budget("a", "a", (), ()), at(8))
    accounts.define(Budget("a", "a", (), (WEST,)), at(9))
    assert accounts.paid_usage(("a", "west"), at(9)).used_ms == 7 * HOUR_MS


def test_the_next_end_of_a_period_is_known() -> None:
    """Only where leases are open: nothing happens to the others."""
    accounts = Accounts()
    accounts.define(Budget("a", "a", (), (replace(WEST, recurrence=Recurrence.DAILY),)), T0)
    assert accounts.rolls_over(at(30)) is None
    accounts.hold(lease())
    assert accounts.rolls_over(at(23)) is None
    assert accounts.rolls_over(at(24)) == at(24)
    assert accounts.rolls_over(at(30)) == at(24)
    accounts.advance(at(30))
    assert accounts.rolls_over(at(30)) is None


def test_broken_promises_stop() -> None:
    """A lease starts once, settles once, ends after its start, is demoted and restored in turn."""
    accounts = Accounts()
    accounts.define(Budget("a", "a", (), (WEST,)), T0)
    accounts.hold(lease(start=1))
    account = accounts.of_lease("l")
    with pytest.raises(InvariantBroken, match="starts once"):
        accounts.hold(lease(start=1))
    with pytest.raises(InvariantBroken, match="only an unfunded"):
        account.restore("l", at(2))
    account.demote("l", at(2))
    with pytest.raises(InvariantBroken, match="demoted once"):
        account.demote("l", at(3))
    accounts.post("l", at(3))
    with pytest.raises(InvariantBroken, match="settles once"):
        accounts.post("l", at(3))
    accounts.hold(lease("m", start=5))
    with pytest.raises(InvariantBroken, match="after its start"):
        accounts.post("m", at(4))


def test_a_hold_is_cut_at_period_ends() -> None:
    """Sixty hours of two GPUs from 20:00 on: four hours today, two whole days, eight hours."""
    daily = replace(WEST, recurrence=Recurrence.DAILY)
    parts = split_hold(lease(gpus=2, start=20, lasts=60), daily)
    assert [amount // HOUR_MS for _, amount in parts] == [8, 48, 48, 16]
    assert split_hold(lease(gpus=2, lasts=60), WEST) == [(T0, 120 * HOUR_MS)]
    assert split_hold(lease(), daily) == []


def test_settling_a_lease_that_ends_as_it_starts_costs_nothing() -> None:
    """No time, no charge, everything void."""
    charge = settle(lease(gpus=3, lasts=1), T0, [])
    assert (charge.used_ms, charge.void_ms, charge.parts) == (0, 3 * HOUR_MS, ())


def test_a_clock_that_is_set_forward_charges_nothing_and_keeps_what_was_posted() -> None:
    """Open leases began as long ago as before, held and unfunded hours included; a new period
    begins with the charges of its days alone."""
    monthly = replace(WEST, recurrence=Recurrence.MONTHLY)
    account = Account(monthly, T0)
    account.hold(lease("done", 2))
    account.post("done", at(5))
    account.hold(lease("ends", 1, start=6, lasts=10))
    account.hold(lease("late", 1, start=6))
    account.demote("late", at(7))
    account.restore("late", at(8))
    account.demote("late", at(9))
    shift_ms = 3 * DAY_MS
    before, overdraft_ms = account.usage(at(10)), account.overdraft_ms(at(10))
    account.restate(shift_ms, at(10) + shift_ms)
    assert account.usage(at(10) + shift_ms) == before
    assert account.overdraft_ms(at(10) + shift_ms) == overdraft_ms == 2 * HOUR_MS
    charge = account.post("late", at(11) + shift_ms)
    assert (charge.used_ms, charge.overdraft_ms) == (5 * HOUR_MS, 3 * HOUR_MS)
    assert account.post("ends", at(11) + shift_ms).void_ms == 5 * HOUR_MS

    accounts = Accounts()
    accounts.define(Budget("a", "a", (), (monthly,)), T0)
    accounts.hold(lease("l", 2))
    accounts.restate(60 * DAY_MS, at(1) + 60 * DAY_MS)
    assert accounts.at(at(1) + 60 * DAY_MS)["a", "west"].used_ms == 2 * HOUR_MS


def test_unfunded_leases_take_hours_and_no_room() -> None:
    """Of the GPUs in use only those that are paid count against a cap; hours all do. What is lent
    is told apart in both."""
    accounts = Accounts()
    accounts.define(Budget("a", "a", (), (WEST,)), T0)
    accounts.hold(lease("own", 2))
    accounts.hold(lease("kept", 1, borrowed=True))
    accounts.hold(lease("over", 3, borrowed=True))
    account = accounts.of_lease("over")
    account.demote("over", at(1))
    used = Usage(6, 12 * HOUR_MS, 0, 4, 8 * HOUR_MS, 0)
    paid = used._replace(gpus=3, lent_gpus=1)
    assert account.usage(at(2)) == used
    assert account.paid_usage(at(2)) == paid
    assert accounts.at(at(2))["a", "west"] == accounts.at(at(2)).get(("a", "west")) == used
    assert accounts.at(at(2), paid=True)["a", "west"] == paid
    account.demote("own", at(2))
    assert account.overdraft_ms(at(3)) == 8 * HOUR_MS
    assert account.overdraft_ms(at(3), lent=True) == 6 * HOUR_MS


def test_the_parts_of_a_lent_lease_are_posted_apart_day_by_day() -> None:
    """Two leases over midnight, one of them lent: their days add up, each in its own sums."""
    account = Account(WEST, T0)
    account.hold(lease("own", 1, start=22))
    account.hold(lease("loan", 2, start=23, borrowed=True))
    account.demote("loan", at(23))
    account.post("own", at(26))
    account.post("loan", at(26))
    assert account.usage(at(30)) == Usage(0, 10 * HOUR_MS, 0, 0, 6 * HOUR_MS, 0)
    assert account.overdraft_ms(at(30)) == account.overdraft_ms(at(30), lent=True) == 6 * HOUR_MS
    later = Account.of_state(account.state())
    assert later.usage(at(30)) == account.usage(at(30))
    account.redefine(Envelope("west", "H100", 10, recurrence=Recurrence.DAILY), at(30))
    assert account.usage(at(30)) == Usage(0, 6 * HOUR_MS, 0, 0, 4 * HOUR_MS, 0)
    assert account.overdraft_ms(at(30), lent=True) == 4 * HOUR_MS


def test_a_look_at_the_very_end_of_a_period_rolls_nothing_over() -> None:
    """What is lent is told apart ahead of time too. Without open leases the next one has begun."""
    account = Account(replace(WEST, recurrence=Recurrence.DAILY), T0)
    account.hold(lease("own", 2, start=20))
    account.hold(lease("loan", 1, start=20, borrowed=True))
    for name in ("own", "loan"):
        account.demote(name, at(22))
    for hour in (24, 30):
        since_ms = (hour - 24) * HOUR_MS
        assert account.usage(at(hour)).used_ms == 3 * since_ms
        assert account.overdraft_ms(at(hour)) == 3 * since_ms
        assert account.overdraft_ms(at(hour), lent=True) == since_ms
        assert account.until_ms == at(24)
    for name in ("own", "loan"):
        account.post(name, at(23))
    assert account.usage(at(24)) == Usage()


def test_a_hold_is_over_in_the_millisecond_of_its_end() -> None:
    """For who looks as for who settles; a lease that is funded again just then holds nothing."""
    looked, settled, again = (Account(WEST, T0) for _ in range(3))
    for account in (looked, settled, again):
        account.hold(lease(lasts=1))
    looked.usage(at(1))
    settled.advance(at(1))
    again.demote("l", at(0.5))
    again.restore("l", at(1))
    for account in (looked, settled, again):
        assert account.leases["l"].hold_end_ms is None
        assert account.usage(at(1)) == Usage(1, HOUR_MS)


def test_no_more_is_held_than_a_lowered_cap_has_left() -> None:
    account = Account(WEST, T0)
    account.hold(lease(lasts=10))
    account.redefine(replace(WEST, max_hours_ms=4 * HOUR_MS), at(1))
    assert account.statement(at(2)) == Statement(4 * HOUR_MS, 2 * HOUR_MS, 2 * HOUR_MS, 0, 0)


def test_an_unfunded_lease_has_nothing_left_to_void() -> None:
    """Its promise ended with its funding; one that was past it had none."""
    account = Account(WEST, T0)
    account.hold(lease(lasts=10))
    account.hold(lease("late", lasts=1))
    assert account.demote("l", at(2)) == 8 * HOUR_MS
    assert account.demote("late", at(2)) == 0
    quoted = account.quote("l", at(5))
    assert account.post("l", at(5)) == quoted
    assert quoted.void_ms == 0


def test_loans_of_a_day_add_up_beside_its_own_leases() -> None:
    account = Account(WEST, T0)
    for name, borrowed in (("one", True), ("two", True), ("own", False)):
        account.hold(lease(name, borrowed=borrowed))
    for hours, name in enumerate(("one", "two", "own"), start=1):
        account.post(name, at(hours))
    assert account.days == {20_454: [6 * HOUR_MS, 3 * HOUR_MS, 0, 0]}


def test_an_edit_of_a_cap_alone_counts_no_day_again() -> None:
    """One hour of three was inside the window, before the edit and after it."""
    envelope = replace(WEST, window=Window(at(2), at(4)))
    account = Account(envelope, T0)
    account.hold(lease())
    account.post("l", at(3))
    account.redefine(replace(envelope, gpus=4), at(3))
    assert account.usage(at(3)) == Usage(0, HOUR_MS)


def test_an_edited_window_counts_no_day_after_it() -> None:
    """Two hours of the first day, and one of the second."""
    account = Account(WEST, T0)
    for name, start, end in (("one", 1, 3), ("two", 25, 26)):
        account.hold(lease(name, start=start))
        account.post(name, at(end))
    account.redefine(replace(WEST, window=Window(T0, at(24))), at(30))
    assert account.usage(at(30)).used_ms == 2 * HOUR_MS


def test_every_spell_of_overdraft_is_carried_into_another_period() -> None:
    """An hour, and two more."""
    account = Account(WEST, T0)
    account.hold(lease())
    for since, until in ((1, 2), (3, 5)):
        account.demote("l", at(since))
        account.restore("l", at(until))
    account.redefine(replace(WEST, recurrence=Recurrence.DAILY), at(6))
    assert account.overdraft_ms(at(6)) == 3 * HOUR_MS
