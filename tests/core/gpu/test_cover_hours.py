"""`gpu.cover`: hours, and the codes of refusals."""

from typing import Any

import pytest

from fairlead.core.gpu import Book, Budget, Envelope, Request
from fairlead.core.gpu import cover as core_cover
from fairlead.core.gpu.cover import find_route
from fairlead.schema.border import BadInput
from tests.core.gpu.build import (
    ask,
    at,
    binding,
    budget,
    cap,
    cover,
    envelope,
    lease,
    lend,
    lines,
    refusal,
    remedy,
)

MS = 1 / 3_600_000
"""In hours."""


@pytest.mark.parametrize(("gpus", "funded"), [(4, True), (5, False)])
def test_a_request_needs_its_gpus_times_its_duration(gpus: int, funded: bool) -> None:
    """9.2 h pay 4 GPUs for 2.3 h to the millisecond, not 5: decimals, not the doubles beside."""
    result = cover(ask("t", gpus, 2.3), budget("t", envelope("e", 8, 9.2)))
    assert result["funded"] is funded
    if not funded:
        assert refusal(result)["code"] == "IntegralCapExceeded"
        assert binding(result) == {("envelope", "t", "e", 9.2, 0)}
        assert remedy(result) == ("envelope-hours", "t", "e", 9.2, 11.5)


def test_an_open_lease_holds_what_it_expects_to_use() -> None:
    """2 GPUs since 1 h for 3 h more: 2 h used and 6 h held leave 2 of 10 h."""
    mine, running = budget("t", envelope("e", 8, 10)), [lease("t/e", 2, -1, expected=3)]
    assert cover(ask("t", 2, 1), mine, leases=running)["funded"]
    result = cover(ask("t", 3, 1), mine, leases=running)
    assert binding(result) == {("envelope", "t", "e", 10, 8)}


def test_a_lease_past_its_expected_end_holds_nothing() -> None:
    """max(0, expected_end - now), and a closed lease holds nothing either."""
    mine = budget("t", envelope("e", 8, 10))
    late = [lease("t/e", 2, -4, expected=-1), lease("t/e", 1, -2, -1, expected=5)]
    assert cover(ask("t", 1, 1), mine, leases=late)["funded"]
    assert not cover(ask("t", 1, 1.000001), mine, leases=late)["funded"]


def test_holds_and_requests_are_not_clipped_to_the_period_or_window() -> None:
    """An hour before the day, and the window, end, 5 h are needed in full."""
    window = {"start": at(-24), "end": at(24)}
    mine = budget("t", envelope("e", 8, 4, window=window, recurrence="daily"))
    assert not cover(ask("t", 1, 5), mine, now=at(23))["funded"]
    holding = [{**lease("t/e", 1, 20), "expected_end": at(27)}]
    result = cover(ask("t", 1, 1), mine, leases=holding, now=at(23))
    assert binding(result) == {("envelope", "t", "e", 4, 7)}


@pytest.mark.parametrize(("used", "to"), [(9, None), (10, 10 + MS), (11, 11 + MS)])
def test_without_a_duration_something_must_be_left(used: int, to: float | None) -> None:
    """A run without a duration holds nothing and needs remaining > 0, whatever its width."""
    mine = budget("t", envelope("e", 8, 10))
    result = cover(ask("t", 8), mine, leases=[lease("t/e", 1, -used, 0)])
    assert result["funded"] is (to is None)
    if to is not None:
        assert refusal(result)["code"] == "IntegralCapExceeded"
        assert remedy(result) == ("envelope-hours", "t", "e", 10, to)


def test_caps_round_down_and_durations_up_to_the_millisecond() -> None:
    """A cap of 1e-7 h is 0 ms; a duration of 1e-9 h is 1 ms."""
    assert not cover(ask("t", 1, 1e-9), budget("t", envelope("e", 1, 1e-7)))["funded"]
    assert cover(ask("t", 1, 1e-9), budget("t", envelope("e", 1, 2.8e-7)))["funded"]
    assert not cover(ask("t", 2, 1e-9), budget("t", envelope("e", 2, 5e-7)))["funded"]


def test_a_duration_of_nothing_needs_nothing() -> None:
    """Not even hours left; an overdrawn envelope still lets no request in."""
    mine = budget("t", envelope("e", 2, 1))
    assert cover(ask("t", 2, 0), mine, leases=[lease("t/e", 1, -1, 0)])["funded"]
    result = cover(ask("t", 2, 0), mine, leases=[lease("t/e", 1, -2, 0)])
    assert remedy(result) == ("envelope-hours", "t", "e", 1, 2)


def test_use_beyond_an_envelope_counts_in_full_against_its_caps() -> None:
    """20 h used of an envelope of 10 h: an aggregate cap of 25 h has 5 left, not 15."""
    both = budget("t", envelope("x", 8, 10), envelope("y", 8), caps=[cap("all", "xy", None, 25)])
    over = [lease("t/x", 2, -10, 0)]
    assert cover(ask("t", 5, 1), both, leases=over)["funded"]
    result = cover(ask("t", 6, 1), both, leases=over)
    assert ("aggregate", "t", "all", 25, 20) in binding(result)


def test_an_aggregate_cap_counts_members_each_in_its_own_period() -> None:
    """Yesterday's hours of a daily member are gone; a closed member's stay with its window."""
    shut = {"start": at(-48), "end": at(-24)}
    members = [
        envelope("daily", 8, recurrence="daily"),
        envelope("shut", 8, window=shut),
        envelope("plain", 8),
    ]
    mine = budget("t", *members, caps=[cap("all", ["daily", "shut", "plain"], None, 100)])
    past = [
        lease("t/daily", 1, -12, -2),  # yesterday: 0 h now
        lease("t/shut", 1, -30, -20),  # 6 h inside the window
        lease("t/plain", 1, -50, -40),  # 10 h
    ]
    result = cover(ask("t", 1, 85), mine, leases=past)
    assert binding(result) == {("aggregate", "t", "all", 100, 16)}
    assert cover(ask("t", 1, 84), mine, leases=past)["funded"]


def test_lending_hours_count_lent_leases_used_and_held() -> None:
    """3 h lent and used, 2 h lent and held, 5 h own: 1 of 6 h is left to lend."""
    rich = budget("rich", envelope("e", 8, lending=lend("*", hours=6)))
    past = [
        lease("rich/e", 1, -3, 0, borrowed=True),
        lease("rich/e", 1, 0, expected=2, borrowed=True),
        lease("rich/e", 1, -5, 0),
    ]
    assert cover(ask("t", 1, 1, sponsors=["rich"]), rich, leases=past)["funded"]
    result = cover(ask("t", 2, 1, sponsors=["rich"]), rich, leases=past)
    assert binding(result) == {("lending", "rich", "e", 6, 5)}
    assert remedy(result) == ("lending-hours", "rich", "e", 6, 7)


def test_hours_are_shared_within_the_plan_too() -> None:
    """An aggregate cap of 10 h over two envelopes pays 10 GPUs for an hour, not 16."""
    both = budget("t", envelope("x", 8), envelope("y", 8), caps=[cap("all", "xy", None, 10)])
    assert [gpus for _, _, gpus in lines(cover(ask("t", 10, 1), both))] == [8, 2]
    assert refusal(cover(ask("t", 11, 1), both))["code"] == "IntegralCapExceeded"


def test_a_cap_over_envelopes_of_another_flavor_is_refused() -> None:
    """It would look like a cap, and cap nothing."""
    fine, other = cap("fine", "e", 1), cap("old", "e", 1, flavor="A100")
    mine = budget("t", envelope("e", 8), caps=[fine, other])
    with pytest.raises(BadInput) as refused:
        cover(ask("t", 8), mine)
    path = "budgets[0].aggregate_caps[1].envelopes[0]"
    assert str(refused.value) == f"{path}: is an envelope of H100, not of A100"


def test_what_binds_is_named_in_the_same_order_whatever_the_documents() -> None:
    """Aggregate caps by name, and the entries of an ACL too."""
    caps = [cap("b", "e", 2), cap("a", "e", 2)]
    for given in (caps, caps[::-1]):
        result = cover(ask("t", 8), budget("t", envelope("e", 8), caps=given))
        names = [row["name"] for row in refusal(result)["binding"]]
        assert names == ["a", "b"]


# --- codes ----------------------------------------------------------------------------------


def test_the_first_relaxation_that_would_help_names_the_refusal() -> None:
    """Borrowing before ACLs before hours, each alone; else concurrency."""
    rich = budget("rich", envelope("e", 8, lending=lend("*")))
    closed = budget("closed", envelope("e", 8))
    mine = budget("t", envelope("e", 8, 2))
    asked = ask("t", 4, 1, sponsors=["rich", "closed"])

    def code(**fields: Any) -> str:
        found: str = refusal(cover({**asked, **fields}, mine, rich, closed))["code"]
        return found

    assert code(max_borrow_gpus=1) == "BorrowLimitExceeded"  # hours would help as well
    assert code(gpus=12) == "ACLDenied"  # 2 + 8, and 8 more behind the ACL
    assert code(allow_borrow=False, sponsors=["closed"]) == "IntegralCapExceeded"
    assert code(gpus=17, max_borrow_gpus=12) == "ConcurrencyCapExceeded"  # needs two of them


def test_integral_relaxes_all_hour_caps_at_once() -> None:
    """Envelope, aggregate and lending hours all at 0: still IntegralCapExceeded, no one remedy."""
    rich = budget(
        "rich", envelope("e", 8, 0, lending=lend("*", hours=0)), caps=[cap("all", "e", None, 0)]
    )
    result = cover(ask("t", 1, 1, sponsors=["rich"]), rich)
    assert refusal(result)["code"] == "IntegralCapExceeded"
    assert remedy(result) is None
    assert {kind for kind, *_ in binding(result)} == {"envelope", "aggregate", "lending"}


def test_a_refusal_quotes_hour_caps_as_written_and_speaks_in_a_sentence() -> None:
    """A third of an hour stays 0.333…, though it counts as 1 199 999 ms."""
    result = cover(ask("t", 1, 1), budget("t", envelope("e", 1, 1 / 3)))
    assert binding(result) == {("envelope", "t", "e", 1 / 3, 0)}
    assert remedy(result) == ("envelope-hours", "t", "e", 1 / 3, 1)
    assert refusal(result)["message"] == (
        "1 GPUs short: GPUs are free, but their hours are used up or promised; "
        "envelope-hours of t/e from 0.3333333333333333 to 1.0 would do"
    )


def test_more_in_use_than_a_cap_allows_leaves_nothing_and_no_debt() -> None:
    """An overcommitted envelope gives 0; the next one is not charged for it."""
    mine = budget("t", envelope("a", 2), envelope("b", 4))
    assert lines(cover(ask("t", 4), mine, leases=[lease("t/a", 5, -1)])) == [("own", "t/b", 4)]
    result = cover(ask("t", 5), mine, leases=[lease("t/a", 5, -1)])
    assert ("envelope", "t", "a", 2, 5) in binding(result)
    assert remedy(result) == ("envelope-concurrency", "t", "b", 4, 5)


def test_an_envelope_without_a_usage_entry_has_used_nothing() -> None:
    """Running totals need no entry for every envelope."""
    book = Book([Budget("t", "t", envelopes=(Envelope("e", "H100", 4),))], {})
    plan = core_cover(book, Request("t", "H100", 4), now_ms=0)
    assert plan.funded
    assert plan.lines[0].borrowed is False


def test_a_closed_list_hides_no_limit_behind_it() -> None:
    """To open the list alone would lend 2 of 4."""
    rich = budget("rich", envelope("e", 8, lending=lend("other", gpus=2)))
    result = cover(ask("t", 4, sponsors=["rich"]), rich)
    assert refusal(result)["code"] == "ConcurrencyCapExceeded"


@pytest.mark.parametrize(("left_ms", "funded"), [(1, True), (0, False)])
def test_a_millisecond_is_something(left_ms: int, funded: bool) -> None:
    """A run without a duration needs no more of it."""
    own = Envelope("e", "H100", 4, max_hours_ms=left_ms)
    book = Book([Budget("t", "t", envelopes=(own,))], {})
    assert core_cover(book, Request("t", "H100", 4), now_ms=0).funded is funded


def test_a_route_ends_where_the_request_is_covered_unless_it_is_asked_for_whole() -> None:
    envelopes = tuple(Envelope(name, "H100", 4) for name in "ab")
    book, request = Book([Budget("t", "t", envelopes=envelopes)], {}), Request("t", "H100", 4)
    for asked, names in (({}, ["a"]), ({"whole": False}, ["a"]), ({"whole": True}, ["a", "b"])):
        route, walk = find_route(book, request, 0, **asked)
        assert [candidate.envelope.name for candidate in route.candidates] == names
        assert [line.envelope for line in walk.lines] == ["a"]
