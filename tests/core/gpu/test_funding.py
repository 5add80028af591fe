"""Which leases lose their funding, when exactly, and which get it back."""

from dataclasses import replace
from typing import Any

import pytest

from fairlead.core.gpu import (
    HOUR_MS,
    AggregateCap,
    Budget,
    Envelope,
    Lease,
    Lending,
    Recurrence,
    Window,
)
from fairlead.core.gpu.accounts import Accounts
from fairlead.core.gpu.funding import Demotion, demotions, restorations
from fairlead.core.gpu.usage import DAY_MS

T0 = 20_454 * DAY_MS


def at(hours: float) -> int:
    return T0 + int(hours * HOUR_MS)


def budget(*envelopes: Envelope, caps: tuple[AggregateCap, ...] = ()) -> Budget:
    return Budget("b", "b", (), envelopes, caps)


def world(found: Budget, *leases: Lease) -> Accounts:
    accounts = Accounts()
    accounts.define(found, T0)
    for lease in sorted(leases, key=lambda each: each.start_ms):
        accounts.hold(lease)
    return accounts


def lease(name: str, gpus: int, start: float = 0, lasts: float | None = None, **more) -> Lease:
    until = None if lasts is None else at(start + lasts)
    envelope = more.pop("envelope", "x")
    return Lease(name, "a", "b", envelope, gpus, at(start), None, until, **more)


def who(found: list[Demotion]) -> list[str]:
    return [each.lease for each in found]


X = Envelope("x", "H100", 8)


def test_within_every_cap_no_lease_is_looked_at() -> None:
    """GPUs may fill a cap."""
    found = budget(replace(X, max_hours_ms=100 * HOUR_MS))
    assert demotions(found, world(found, lease("a", 8)), at(1)) == []


def test_a_lowered_cap_demotes_the_newest_first_ties_by_lease_id() -> None:
    """Until it fits: the older ones stay, however small the newer ones are."""
    wide, narrow = budget(X), budget(replace(X, gpus=4))
    accounts = world(wide, lease("old", 3), lease("c", 2, 1), lease("b", 2, 1), lease("new", 1, 2))
    accounts.define(narrow, at(3))
    found = demotions(narrow, accounts, at(3))
    assert who(found) == ["new", "b", "c"]
    assert found[0] == Demotion("new", at(3), "envelope", "b", "x", hours=False)


def test_hours_run_out_at_a_moment_and_those_without_a_promise_pay() -> None:
    """10 hours, 6 promised: 4 GPUs without a duration have one hour, whenever it is read."""
    found = budget(replace(X, max_hours_ms=10 * HOUR_MS))
    accounts = world(found, lease("held", 2, lasts=3), lease("bare", 4))
    assert demotions(found, accounts, at(0.9)) == []
    (lost,) = demotions(found, accounts, at(2))
    assert lost == Demotion("bare", at(1), "envelope", "b", "x", hours=True)
    accounts.of_lease("bare").demote("bare", lost.at_ms)
    assert demotions(found, accounts, at(2.5)) == []
    statement = accounts.of_lease("held").statement(at(2))
    assert (statement.free_ms, statement.held_ms, statement.spent_ms) == (
        0,
        2 * HOUR_MS,
        8 * HOUR_MS,
    )


def test_a_lease_past_its_duration_eats_hours_from_then_on() -> None:
    """Its promise ended at 2 h; together with the other it used up the hours an hour later."""
    found = budget(replace(X, max_hours_ms=8 * HOUR_MS))
    accounts = world(found, lease("late", 1, lasts=2), lease("bare", 2))
    # promised 2, used by `bare` 2 per hour: 2 + 4 at 2 h, then 3 per hour.
    lost = demotions(found, accounts, at(5))
    moment = at(2) + 2 * HOUR_MS // 3
    assert {(each.lease, each.at_ms) for each in lost} == {("late", moment), ("bare", moment)}


def test_exactly_used_up_is_used_up() -> None:
    """A run without a duration needs hours left."""
    found = budget(replace(X, max_hours_ms=2 * HOUR_MS))
    accounts = world(found, lease("bare", 2))
    assert [(each.lease, each.at_ms) for each in demotions(found, accounts, at(1))] == [
        ("bare", at(1))
    ]


def test_what_elapsed_before_an_edit_stays_funded() -> None:
    """A cap lowered below what was used demotes from the edit on, not before."""
    wide, narrow = (
        budget(replace(X, max_hours_ms=100 * HOUR_MS)),
        budget(replace(X, max_hours_ms=HOUR_MS)),
    )
    accounts = world(wide, lease("bare", 2))
    accounts.define(narrow, at(10))
    (lost,) = demotions(narrow, accounts, at(11))
    assert lost.at_ms == at(10)


def test_promises_that_pass_a_lowered_cap_are_broken_newest_first() -> None:
    """The oldest promise that still fits is kept."""
    wide, narrow = (
        budget(replace(X, max_hours_ms=100 * HOUR_MS)),
        budget(replace(X, max_hours_ms=12 * HOUR_MS)),
    )
    accounts = world(wide, lease("old", 1, lasts=10), lease("new", 1, 1, lasts=10))
    accounts.define(narrow, at(2))
    assert who(demotions(narrow, accounts, at(2))) == ["new"]


def test_lending_caps_count_loans_only() -> None:
    """An envelope's own leases are not in its lending's way."""
    lending = Lending(True, ("*",), max_gpus=2, max_hours_ms=8 * HOUR_MS)
    found = budget(replace(X, lending=lending))
    accounts = world(
        found, lease("own", 3), lease("l1", 2, borrowed=True), lease("l2", 2, 1, borrowed=True)
    )
    lost = demotions(found, accounts, at(2))
    assert [(each.lease, each.kind, each.hours) for each in lost] == [("l2", "lending", False)]
    accounts.of_lease("l2").demote("l2", at(2))
    # 4 + 2 loaned hours by then; l1 alone uses up the other 2.
    assert [(each.lease, each.at_ms) for each in demotions(found, accounts, at(4))] == [
        ("l1", at(3))
    ]
    accounts.of_lease("l1").demote("l1", at(3))
    assert restorations(found, accounts, at(4)) == []


def test_aggregate_caps_see_what_envelopes_demoted_before_them() -> None:
    """Two caps over the same leases demote no more than the stricter one needs."""
    y = replace(X, name="y")
    cap = AggregateCap("all", "H100", frozenset({"x", "y", "gone"}), 6, 40 * HOUR_MS)
    found = budget(X, y, caps=(cap,))
    accounts = world(found, lease("a", 4), lease("b", 4, 1, envelope="y"))
    assert who(demotions(found, accounts, at(2))) == ["b"]
    tight = budget(replace(X, gpus=2), y, caps=(cap,))
    assert who(demotions(tight, accounts, at(2))) == ["a"]
    # Their hours: 4 x 8 + 4 x 7 = 60 of 40, and the cap counts what `a` used while funded.
    lost = demotions(budget(X, y, caps=(replace(cap, max_gpus=None),)), accounts, at(8))
    assert {(each.lease, each.at_ms) for each in lost} == {("a", at(5.5)), ("b", at(5.5))}


def test_a_cap_without_limits_and_an_envelope_without_account_bind_no_lease() -> None:
    """A preview may name envelopes that do not exist yet."""
    found = budget(X)
    accounts = world(found, lease("a", 4))
    cap = AggregateCap("all", "H100", frozenset({"x"}))
    preview = budget(X, replace(X, name="new"), caps=(cap,))
    assert demotions(preview, accounts, at(1)) == []


def test_two_hour_caps_and_one_moment_each() -> None:
    """The second cap counts an already demoted lease only up to its demotion."""
    found = budget(
        replace(X, max_hours_ms=4 * HOUR_MS),
        caps=(AggregateCap("all", "H100", frozenset({"x"}), None, 4 * HOUR_MS),),
    )
    accounts = world(found, lease("bare", 2), lease("held", 1, lasts=2))
    lost = demotions(found, accounts, at(1.5))
    assert [(each.lease, each.at_ms, each.kind) for each in lost] == [("bare", at(1), "envelope")]


def test_a_closed_window_stops_the_meter() -> None:
    """Hours after a window are not the window's; demotion falls inside it."""
    window = Window(at(0), at(4))
    found = budget(replace(X, window=window, max_hours_ms=2 * HOUR_MS))
    accounts = world(found, lease("bare", 1))
    (lost,) = demotions(found, accounts, at(9))
    assert lost.at_ms == at(2)
    # An aggregate over it and an open one: nothing moved after 4 h but the other's hours.
    y = Envelope("y", "H100", 8)
    cap = AggregateCap("all", "H100", frozenset({"x", "y"}), None, 9 * HOUR_MS)
    both = budget(replace(X, window=window), y, caps=(cap,))
    accounts = world(both, lease("x1", 1), lease("y1", 1, envelope="y"))
    assert {each.at_ms for each in demotions(both, accounts, at(8))} == {at(5)}


def test_a_lease_is_restored_when_every_cap_has_room_oldest_first() -> None:
    """Room for one of two: the older gets it."""
    narrow, wide = budget(replace(X, gpus=2)), budget(replace(X, gpus=4))
    accounts = world(narrow, lease("a", 2), lease("b", 2, 1), lease("c", 2, 2))
    for each in demotions(narrow, accounts, at(3)):
        accounts.of_lease(each.lease).demote(each.lease, each.at_ms)
    assert restorations(narrow, accounts, at(4)) == []
    accounts.define(wide, at(4))
    assert restorations(wide, accounts, at(4)) == ["b"]


def test_hours_that_are_left_restore_what_they_can_hold() -> None:
    """A lease with a duration needs its rest, one without needs something."""
    small, more = (
        budget(replace(X, max_hours_ms=2 * HOUR_MS)),
        budget(replace(X, max_hours_ms=15 * HOUR_MS)),
    )
    accounts = world(small, lease("timed", 1, lasts=10), lease("free", 1), lease("long", 1, 0, 90))
    for each in demotions(small, accounts, at(1)):
        accounts.of_lease(each.lease).demote(each.lease, each.at_ms)
    accounts.define(more, at(1))
    # 3 used; `timed` needs 9 more, then 3 are left: something, but not the 89 of `long`.
    assert restorations(more, accounts, at(1)) == ["free", "timed"]


CAPPED = Envelope("west", "H100", 8)
LENDS: dict[str, Any] = {"allow": True, "to": ("*",)}


def over(budget: Budget, hours: float, *leases: Lease) -> list[Demotion]:
    """What is over so long after the budget was made and the leases began."""
    accounts = Accounts()
    accounts.define(budget, T0)
    for row in leases:
        accounts.hold(row)
    return demotions(budget, accounts, T0 + int(hours * HOUR_MS))


def rent(name: str, gpus: int, envelope: str = "west", **more: bool) -> Lease:
    return Lease(name, "o", "b", envelope, gpus, T0, **more)


@pytest.mark.parametrize(
    ("envelope", "caps", "kind", "name", "at_hours"),
    [
        ({"gpus": 1}, (), "envelope", "west", None),
        ({"max_hours_ms": 4 * HOUR_MS}, (), "envelope", "west", 2),
        ({"lending": Lending(**LENDS, max_gpus=1)}, (), "lending", "west", None),
        ({"lending": Lending(**LENDS, max_hours_ms=2 * HOUR_MS)}, (), "lending", "west", 1),
        ({}, ({"max_gpus": 1},), "aggregate", "m", None),
        ({}, ({"max_hours_ms": 4 * HOUR_MS},), "aggregate", "m", 2),
    ],
)
def test_a_lease_that_is_no_longer_paid_says_by_which_cap(
    envelope: dict[str, Any],
    caps: tuple[dict[str, Any], ...],
    kind: str,
    name: str,
    at_hours: int | None,
) -> None:
    """Its kind and name, and since when: now for GPUs, for hours when they were used up. Of two
    that are over it is the first by name."""
    aggregate = tuple(
        AggregateCap(each, "H100", ("west",), **cap) for each in ("z", "m") for cap in caps
    )
    budget = Budget("b", "o", (), (replace(CAPPED, **envelope),), aggregate)
    at_ms = T0 + (3 if at_hours is None else at_hours) * HOUR_MS
    expected = Demotion("loan", at_ms, kind, "b", name, at_hours is not None)
    assert over(budget, 3, rent("loan", 2, borrowed=True)) == [expected]


def test_an_envelope_without_an_account_hides_no_cap_behind_it() -> None:
    """It was never defined; the next ones, and those over several, are still asked."""
    budget = Budget("b", "o", (), (replace(CAPPED, gpus=1),))
    accounts = Accounts()
    accounts.define(budget, T0)
    accounts.hold(rent("a", 2))
    more = replace(budget, envelopes=(Envelope("new", "H100", 8), *budget.envelopes))
    assert [row.lease for row in demotions(more, accounts, T0)] == ["a"]


def test_gpus_may_fill_a_cap_and_hours_may_not() -> None:
    """Just as many GPUs are paid; hours that are all used pay for nothing more."""
    assert over(Budget("b", "o", (), (replace(CAPPED, gpus=2),)), 3, rent("a", 2)) == []
    hours = Budget("b", "o", (), (replace(CAPPED, max_hours_ms=6 * HOUR_MS),))
    assert over(hours, 2.999, rent("a", 2)) == []
    assert [row.lease for row in over(hours, 3, rent("a", 2))] == ["a"]


def test_own_leases_are_no_loans() -> None:
    lends = Lending(**LENDS, max_gpus=2, max_hours_ms=9 * HOUR_MS)
    budget = Budget("b", "o", (), (replace(CAPPED, lending=lends),))
    assert over(budget, 3, rent("own", 5), rent("loan", 2, borrowed=True)) == []


@pytest.mark.parametrize(("gpus", "restored"), [(5, ["a", "c"]), (4, ["a"]), (2, ["a"]), (1, [])])
def test_leases_are_funded_again_up_to_the_cap(gpus: int, restored: list[str]) -> None:
    """The oldest first; what one takes is not there for the next."""
    accounts = Accounts()
    accounts.define(Budget("b", "o", (), (CAPPED,)), T0)
    for name, width in (("a", 2), ("c", 3)):
        accounts.hold(rent(name, width))
        accounts.of_lease(name).demote(name, T0)
    now = Budget("b", "o", (), (replace(CAPPED, gpus=gpus),))
    accounts.define(now, T0)
    assert restorations(now, accounts, T0 + HOUR_MS) == restored


def lost_at(found: Budget, accounts: Accounts, hours: float) -> list[tuple[str, float]]:
    """Which leases lose their funding at that hour, and since which hour."""
    lost = demotions(found, accounts, at(hours))
    return [(each.lease, (each.at_ms - T0) / HOUR_MS) for each in lost]


def test_a_cap_counts_what_an_earlier_one_demoted_up_to_then() -> None:
    """x pays 2 of its hours by 1 h; of the 4 over both, y has used the other 2 by 2 h."""
    y, cap = Envelope("y", "H100", 8), AggregateCap("all", "H100", ("x", "y"), None, 4 * HOUR_MS)
    found = budget(replace(X, max_hours_ms=2 * HOUR_MS), y, caps=(cap,))
    accounts = world(found, lease("x1", 2), lease("y1", 1, envelope="y"))
    assert lost_at(found, accounts, 5) == [("x1", 1), ("y1", 2)]


@pytest.mark.parametrize("lasts", [None, 10])
def test_a_lease_that_goes_for_its_gpus_was_funded_until_now(lasts: float | None) -> None:
    """9 of 5 hours are used, and 5 promised to b end with it: a had the last one at 1 h."""
    wide, narrow = (budget(replace(X, gpus=gpus, max_hours_ms=5 * HOUR_MS)) for gpus in (2, 1))
    accounts = world(wide, lease("a", 1), lease("b", 1, 1, lasts))
    accounts.get("b", "x").envelope = narrow.envelopes[0]  # type: ignore[union-attr]
    assert lost_at(narrow, accounts, 5) == [("b", 5), ("a", 1)]


def test_hours_that_were_promised_to_a_lease_that_goes_are_left_to_the_others() -> None:
    """9 h are used or promised; without the 5 of b there are 4, and a goes on."""
    narrow = budget(replace(X, gpus=1, max_hours_ms=5 * HOUR_MS))
    accounts = world(narrow, lease("a", 1), lease("b", 1, 1, lasts=6))
    assert lost_at(narrow, accounts, 2) == [("b", 2)]


def test_as_many_promises_are_broken_as_it_takes() -> None:
    """Three of 10 h under a cap of 12."""
    found = budget(replace(X, max_hours_ms=12 * HOUR_MS))
    accounts = world(found, *(lease(name, 1, start, lasts=10) for start, name in enumerate("abc")))
    assert lost_at(found, accounts, 2) == [("c", 2), ("b", 2)]


def test_a_lease_loses_nothing_of_before_its_period() -> None:
    """Since yesterday it runs on, and today others were promised everything."""
    daily = budget(replace(X, max_hours_ms=4 * HOUR_MS, recurrence=Recurrence.DAILY))
    accounts = world(daily, lease("bare", 1, 20), lease("held", 1, 24, lasts=6))
    assert lost_at(daily, accounts, 25) == [("bare", 24), ("held", 25)]


def test_a_lease_loses_nothing_of_before_it_was_funded_again() -> None:
    found = budget(replace(X, max_hours_ms=10 * HOUR_MS))
    accounts = world(found, lease("bare", 1))
    accounts.of_lease("bare").demote("bare", at(1))
    accounts.of_lease("bare").restore("bare", at(4))
    accounts.hold(lease("big", 1, 4, lasts=20))
    assert lost_at(found, accounts, 5) == [("bare", 4), ("big", 5)]


@pytest.mark.parametrize("now", [2, 3])
def test_a_lease_loses_nothing_of_what_it_was_promised(now: int) -> None:
    """Also in the millisecond in which its promise ends."""
    found = budget(replace(X, max_hours_ms=10 * HOUR_MS))
    accounts = world(found, lease("late", 1, lasts=2), lease("big", 1, lasts=20))
    assert lost_at(found, accounts, now) == [("late", 2), ("big", now)]


def test_the_moment_is_found_beyond_a_change_of_the_rate() -> None:
    """2 promised and 2 per hour: 5 hours at 1.5 h, before the other lease was late."""
    found = budget(replace(X, max_hours_ms=5 * HOUR_MS))
    accounts = world(found, lease("late", 1, lasts=2), lease("bare", 2))
    assert lost_at(found, accounts, 5) == [("bare", 1.5), ("late", 2)]


def test_the_moment_is_a_whole_millisecond() -> None:
    """Ten hours are not quite used up by seven GPUs a moment before it."""
    found = budget(replace(X, max_hours_ms=10 * HOUR_MS))
    (lost,) = demotions(found, world(found, lease("bare", 7)), at(2))
    assert lost.at_ms == T0 + 10 * HOUR_MS // 7
    assert isinstance(lost.at_ms, int)


def test_no_hour_is_used_between_a_window_and_the_next_lease() -> None:
    """4 hours of a closed window, and one since 5 h; four were allowed."""
    window = Window(at(0), at(4))
    cap = AggregateCap("all", "H100", ("x", "y"), None, 4 * HOUR_MS)
    both = budget(replace(X, window=window), Envelope("y", "H100", 8), caps=(cap,))
    accounts = world(both, lease("x1", 1), lease("y1", 1, 5, envelope="y"))
    assert sorted(lost_at(both, accounts, 6)) == [("x1", 5), ("y1", 5)]


def test_hours_that_a_closed_window_used_up_exactly_are_asked_for_now() -> None:
    found = budget(replace(X, window=Window(at(0), at(4)), max_hours_ms=4 * HOUR_MS))
    assert lost_at(found, world(found, lease("bare", 1)), 9) == [("bare", 9)]


def unfunded(found: Budget, *leases: Lease, at_hours: float = 0) -> Accounts:
    """All of them, none funded."""
    accounts = world(found, *leases)
    for each in leases:
        accounts.of_lease(each.id).demote(each.id, at(at_hours))
    return accounts


@pytest.mark.parametrize(("hours", "restored"), [(18, ["a", "c"]), (17.999, ["a"]), (8.999, [])])
def test_a_restored_promise_is_not_there_for_the_next(hours: float, restored: list[str]) -> None:
    """Both have 9 h left."""
    found = budget(replace(X, max_hours_ms=int((hours + 2) * HOUR_MS)))
    accounts = unfunded(found, lease("a", 1, lasts=10), lease("c", 1, lasts=10))
    assert restorations(found, accounts, at(1)) == restored


@pytest.mark.parametrize("first", [lease("a", 1), lease("a", 1, lasts=1)])
def test_a_lease_that_is_promised_nothing_takes_nothing_from_a_promise(first: Lease) -> None:
    """One without a duration, or past it, beside one that fits exactly."""
    accounts = unfunded(budget(X), first, lease("c", 1, lasts=10))
    for hours, restored in ((12, ["a", "c"]), (11.999, ["a"]), (4, [])):
        found = budget(replace(X, max_hours_ms=int(hours * HOUR_MS)))
        assert restorations(found, accounts, at(2)) == restored


def test_own_leases_are_restored_whatever_is_lent() -> None:
    """A full lending is in the way of loans only, and own overdraft is none of theirs."""
    lends = Lending(**LENDS, max_gpus=4, max_hours_ms=12 * HOUR_MS)
    found = budget(replace(X, lending=lends))
    accounts = unfunded(found, lease("own", 5), lease("loan", 2, borrowed=True), at_hours=1)
    accounts.hold(lease("paid", 2, 2, borrowed=True))
    assert demotions(found, accounts, at(3)) == []
    assert restorations(found, accounts, at(3)) == ["loan"]
    full = replace(found, envelopes=(replace(X, gpus=9, lending=replace(lends, max_gpus=3)),))
    assert restorations(full, accounts, at(3)) == ["own"]
    used_up = replace(lends, max_hours_ms=8 * HOUR_MS)
    full = replace(found, envelopes=(replace(X, gpus=9, lending=used_up),))
    assert demotions(full, accounts, at(3)) == []
    assert restorations(full, accounts, at(3)) == ["own"]


def test_a_lease_that_used_nothing_gives_nothing_back() -> None:
    """It began just now. A millisecond too much is promised still: that promise is broken too."""
    found = budget(replace(X, max_hours_ms=10 * HOUR_MS - 1))
    accounts = world(found, lease("held", 1, lasts=10), lease("bare", 1, 1))
    assert lost_at(found, accounts, 1) == [("bare", 1), ("held", 1)]
