"""Properties of the running totals, on random histories."""

import json
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.gpu import (
    HOUR_MS,
    Budget,
    Envelope,
    Lease,
    Lending,
    Recurrence,
    Usage,
    Window,
    aggregate,
    period_at,
    refund,
    refund_of,
    refund_request,
    tally,
)
from fairlead.core.gpu.accounts import Accounts
from fairlead.core.gpu.funding import demotions, restorations
from fairlead.core.gpu.model import AggregateCap
from fairlead.core.gpu.usage import DAY_MS
from fairlead.schema.funding import FUND
from fairlead.schema.gpu import STYLE
from fairlead.schema.kinds import KINDS

T0 = 20_454 * DAY_MS
NAMES = ("x", "y")

times = st.integers(0, 40 * 24)  # hours: enough for days, weeks and a month to roll over


@st.composite
def envelopes(draw: st.DrawFn) -> tuple[Envelope, ...]:
    found = []
    for name in NAMES:
        window = None
        if draw(st.booleans()):
            start = draw(st.integers(-100, 500))
            window = Window(
                T0 + start * HOUR_MS, T0 + (start + draw(st.integers(1, 700))) * HOUR_MS
            )
        found.append(
            Envelope(
                name,
                "H100",
                draw(st.integers(1, 8)),
                max_hours_ms=draw(st.none() | st.integers(0, 60).map(lambda h: h * HOUR_MS)),
                window=window,
                recurrence=draw(st.none() | st.sampled_from(Recurrence)),
                lending=Lending(
                    True,
                    ("*",),
                    draw(st.none() | st.integers(0, 4)),
                    draw(st.none() | st.integers(0, 40).map(lambda h: h * HOUR_MS)),
                ),
            )
        )
    return tuple(found)


@st.composite
def leases(draw: st.DrawFn) -> list[Lease]:
    found = []
    for number in range(draw(st.integers(0, 12))):
        start = draw(times)
        end = draw(st.none() | st.integers(start, start + 200))
        lasts = draw(st.none() | st.integers(1, 100))
        found.append(
            Lease(
                f"l{number:02}",
                "a",
                "b",
                draw(st.sampled_from(NAMES)),
                draw(st.integers(1, 4)),
                T0 + start * HOUR_MS,
                None if end is None else T0 + end * HOUR_MS,
                None if lasts is None else T0 + (start + lasts) * HOUR_MS,
                draw(st.booleans()),
            )
        )
    return found


def history(found: list[Lease], until_ms: int) -> list[tuple[int, int, Lease]]:
    """Starts and ends in order of time, starts first."""
    events = [(lease.start_ms, 0, lease) for lease in found if lease.start_ms <= until_ms]
    events += [
        (lease.end_ms, 1, lease)
        for lease in found
        if lease.end_ms is not None and lease.end_ms <= until_ms
    ]
    return sorted(events, key=lambda event: (event[0], event[1], event[2].id))


def naive(budget: Budget, found: list[Lease], now_ms: int) -> dict[tuple[str, str], Usage]:
    """`tally` over all leases as they stand now, holds cut at the end of the period."""
    periods = {each.name: period_at(each, now_ms) for each in budget.envelopes}
    seen = []
    for lease in found:
        if lease.start_ms > now_ms:
            continue
        end = lease.end_ms if lease.end_ms is not None and lease.end_ms <= now_ms else None
        until = lease.expected_end_ms
        if until is not None:
            until = min(until, periods[lease.envelope].end_ms)
        seen.append(replace(lease, end_ms=end, expected_end_ms=until))
    return tally([budget], seen, now_ms)


@settings(max_examples=100, deadline=None)
@given(envelopes(), leases(), st.lists(times, max_size=8), times)
def test_running_totals_are_the_naive_tally(
    found: tuple[Envelope, ...], every: list[Lease], looks: list[int], last: int
) -> None:
    """Whenever it was read in between, and through any number of periods."""
    budget = Budget("b", "b", (), found)
    accounts = Accounts()
    accounts.define(budget, T0 - 1)
    now_ms = T0 + max([last, *looks]) * HOUR_MS
    steps = [(time_ms, kind, lease) for time_ms, kind, lease in history(every, now_ms)]
    watching = sorted(T0 + look * HOUR_MS for look in looks)
    for time_ms, kind, lease in steps:
        while watching and watching[0] < time_ms:
            look_ms = watching.pop(0)
            assert dict(accounts.at(look_ms)) == naive(budget, every, look_ms)
        if kind == 0:
            accounts.hold(replace(lease, end_ms=None))
        else:
            accounts.post(lease.id, time_ms)
    assert dict(accounts.at(now_ms)) == naive(budget, every, now_ms)


@settings(max_examples=60, deadline=None)
@given(envelopes(), leases(), st.integers(0, 6), st.integers(0, 60))
def test_free_held_and_spent_are_what_was_granted(
    found: tuple[Envelope, ...], every: list[Lease], cap_gpus: int, cap_hours: int
) -> None:
    """Nothing negative, nothing lost, with demotions and restorations at every hour of trouble."""
    cap = AggregateCap("all", "H100", frozenset(NAMES), cap_gpus, cap_hours * HOUR_MS)
    budget = Budget("b", "b", (), found, (cap,))
    accounts = Accounts()
    accounts.define(budget, T0 - 1)
    steps = history(every, T0 + 2_000 * HOUR_MS)
    stops = sorted(
        {time_ms for time_ms, _, _ in steps} | {T0 + h * HOUR_MS for h in range(0, 900, 50)}
    )
    for now_ms in stops:
        settle_all(budget, accounts, now_ms)
        for time_ms, kind, lease in steps:
            if time_ms == now_ms and kind == 0:
                accounts.hold(replace(lease, end_ms=None))
            elif time_ms == now_ms:
                charge = accounts.post(lease.id, now_ms)
                assert 0 <= charge.overdraft_ms <= charge.used_ms
        settle_all(budget, accounts, now_ms)
        for envelope in found:
            account = accounts.get("b", envelope.name)
            assert account is not None
            statement, usage = account.statement(now_ms), account.usage(now_ms)
            assert min(usage.gpus, usage.used_ms, usage.held_ms, usage.lent_held_ms) >= 0
            assert min(statement.spent_ms, statement.held_ms, statement.overdraft_ms) >= 0
            assert usage.used_ms == statement.spent_ms + statement.overdraft_ms
            if statement.granted_ms is not None:
                assert statement.free_ms is not None
                assert statement.free_ms >= 0
                total = statement.free_ms + statement.held_ms + statement.spent_ms
                assert total == statement.granted_ms
                # Without edits nothing had to be cut: the funded account never passes its cap.
                funded = usage.used_ms - account.overdraft_ms(now_ms)
                assert funded + usage.held_ms <= statement.granted_ms


def settle_all(budget: Budget, accounts: Accounts, now_ms: int) -> None:
    """As the control plane does it: every period that ended on the way is settled at its end."""
    while (end_ms := accounts.rolls_over(now_ms)) is not None:
        settle(budget, accounts, end_ms - 1)
        accounts.advance(end_ms)
        settle(budget, accounts, end_ms)
    settle(budget, accounts, now_ms)


def settle(budget: Budget, accounts: Accounts, now_ms: int) -> None:
    replays(budget, accounts, now_ms)
    lost = demotions(budget, accounts, now_ms)
    for each in lost:
        assert each.at_ms <= now_ms
        accounts.of_lease(each.lease).demote(each.lease, each.at_ms)
    assert demotions(budget, accounts, now_ms) == [], "one pass demotes all there is to demote"
    if not lost:
        for lease in restorations(budget, accounts, now_ms):
            accounts.of_lease(lease).restore(lease, now_ms)
        assert [each for each in demotions(budget, accounts, now_ms) if not each.hours] == []


def replays(budget: Budget, accounts: Accounts, now_ms: int) -> None:
    """What is recorded of the accounts decides what the accounts decide."""
    found = refund_of(budget, accounts, now_ms)
    asked = refund_request(budget, accounts, now_ms)
    assert refund(asked) == found
    if found:
        document = FUND.from_core(asked)
        decided = KINDS["gpu.refund"].run(json.dumps(document).encode()).result
        assert decided == STYLE.from_core(found)


@settings(max_examples=60, deadline=None)
@given(envelopes(), envelopes(), leases(), times)
def test_an_edit_never_changes_what_a_lease_is_charged(
    before: tuple[Envelope, ...], after: tuple[Envelope, ...], every: list[Lease], when: int
) -> None:
    """Any edit of caps, windows and recurrences: the same charges, day by day."""
    plain, edited = Accounts(), Accounts()
    edit_ms = T0 + when * HOUR_MS
    for accounts in (plain, edited):
        accounts.define(Budget("b", "b", (), before), T0 - 1)
    done = False
    for time_ms, kind, lease in history(every, T0 + 2_000 * HOUR_MS):
        if not done and time_ms >= edit_ms:
            edited.define(Budget("b", "b", (), after), edit_ms)
            done = True
        if kind == 0:
            plain.hold(replace(lease, end_ms=None))
            edited.hold(replace(lease, end_ms=None))
        else:
            assert edited.post(lease.id, time_ms) == plain.post(lease.id, time_ms)
    for name in NAMES:
        one, other = plain.get("b", name), edited.get("b", name)
        assert one is not None
        assert other is not None
        assert one.days == other.days


@settings(max_examples=60, deadline=None)
@given(envelopes(), leases(), times)
def test_an_aggregate_is_the_sum_of_its_members(
    found: tuple[Envelope, ...], every: list[Lease], last: int
) -> None:
    """Each in its own period."""
    budget = Budget("b", "b", (), found)
    accounts = Accounts()
    accounts.define(budget, T0 - 1)
    now_ms = T0 + last * HOUR_MS
    for time_ms, kind, lease in history(every, now_ms):
        if kind == 0:
            accounts.hold(replace(lease, end_ms=None))
        else:
            accounts.post(lease.id, time_ms)
    assert aggregate(accounts.at(now_ms), "b", NAMES) == aggregate(
        naive(budget, every, now_ms), "b", NAMES
    )
