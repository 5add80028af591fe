"""Remedies: one change that covers the request, the first kind that does, its smallest value."""

from typing import Any

import pytest

from fairlead.core.gpu import Change
from tests.core.gpu.build import (
    apply_remedy,
    ask,
    budget,
    cap,
    cover,
    decide,
    document,
    envelope,
    lease,
    lend,
    one_less,
    refusal,
    remedy,
)


def loan(asked: int, **lending: Any) -> list[dict[str, Any]]:
    """A request of an owner without a budget to one sponsor with room for 8."""
    rich = budget("rich", envelope("e", 8, lending=lend("*", **lending)))
    return [ask("t", asked, 2, sponsors=["rich"]), rich]


EACH = {
    "envelope-concurrency": (
        [ask("t", 5), budget("t", envelope("e", 4))],
        ("envelope-concurrency", "t", "e", 4, 5),
    ),
    "aggregate-concurrency": (
        [ask("t", 5), budget("t", envelope("e", 8), caps=[cap("all", "e", 4)])],
        ("aggregate-concurrency", "t", "all", 4, 5),
    ),
    "envelope-hours": (
        [ask("t", 5, 2), budget("t", envelope("e", 8, 9))],
        ("envelope-hours", "t", "e", 9, 10),
    ),
    "aggregate-hours": (
        [ask("t", 5, 2), budget("t", envelope("e", 8), caps=[cap("all", "e", None, 9)])],
        ("aggregate-hours", "t", "all", 9, 10),
    ),
    "lending-concurrency": (loan(5, gpus=4), ("lending-concurrency", "rich", "e", 4, 5)),
    "lending-hours": (loan(5, hours=9), ("lending-hours", "rich", "e", 9, 10)),
    "lending-acl": (
        [ask("t", 5, sponsors=["rich"]), budget("rich", envelope("e", 8))],
        ("lending-acl", "rich", "e", [], ["t"]),
    ),
    "borrow-limit": (
        [{**loan(5)[0], "max_borrow_gpus": 4}, loan(5)[1]],
        ("borrow-limit", None, "max_borrow_gpus", 4, 5),
    ),
    "borrow-limit, the switch": (
        [{**loan(5)[0], "allow_borrow": False}, loan(5)[1]],
        ("borrow-limit", None, "allow_borrow", False, True),
    ),
}


@pytest.mark.parametrize("name", EACH)
def test_each_kind_of_change(name: str) -> None:
    """The only cap in the way is raised to the least that covers; one unit less does not."""
    (request, *budgets), expected = EACH[name]
    given = document(request, *budgets)
    result = decide(given)
    assert remedy(result) == expected
    change = refusal(result)["remedy"]
    assert decide(apply_remedy(given, change))["funded"]
    less = one_less(change)
    if less is not None:
        assert not decide(apply_remedy(given, change, less))["funded"]


def test_every_kind_is_met_in_the_order_of_the_contract() -> None:
    """The table above has them all, in the order in which they are tried."""
    assert list(dict.fromkeys(name.partition(",")[0] for name in EACH)) == [c.value for c in Change]


def test_the_first_kind_wins_even_if_another_is_nearer() -> None:
    """The owner's concurrency from 1 to 2 rather than the borrow limit from 7 to 8."""
    own = budget("t", envelope("e", 1))
    request = {**loan(9)[0], "max_borrow_gpus": 7}
    assert remedy(cover(request, own, loan(9)[1])) == ("envelope-concurrency", "t", "e", 1, 2)
    assert remedy(cover({**request, "gpus": 8, "owner": "u"}, own, loan(9)[1])) == (
        "borrow-limit",
        None,
        "max_borrow_gpus",
        7,
        8,
    )


def test_the_smallest_new_value_wins_within_a_kind() -> None:
    """Not the smallest raise: 2 to 4 rather than 5 to 7; every raise is by the shortfall of 2."""
    two = budget("t", envelope("a", 5), envelope("b", 2))
    assert remedy(cover(ask("t", 9), two)) == ("envelope-concurrency", "t", "b", 2, 4)


def test_ties_go_by_budget_then_name() -> None:
    """Four envelopes of 2, any of them would do at 3."""
    budgets = [
        budget("t", envelope("y", 2), envelope("x", 2), name="b2"),
        budget("t", envelope("z", 2), name="b10"),
    ]
    assert remedy(cover(ask("t", 7), *budgets)) == ("envelope-concurrency", "b10", "z", 2, 3)
    assert remedy(cover(ask("t", 7), *budgets[:1], budget("t", envelope("w", 2), name="b3"))) == (
        "envelope-concurrency",
        "b2",
        "x",
        2,
        3,
    )


def test_acl_ties_go_by_budget_then_name() -> None:
    """Not by the order in which the sponsors are listed."""
    rich = [budget(name, envelope("y", 2), envelope("x", 2)) for name in ("b", "a")]
    result = cover(ask("t", 2, sponsors=["b", "a"]), *rich)
    assert remedy(result) == ("lending-acl", "a", "x", [], ["t"])


def test_an_acl_change_keeps_the_entries_and_switches_lending_on() -> None:
    """The new list is the old one and the owner."""
    shut = {**lend("org:*"), "allow": False}
    result = cover(ask("t", 2, sponsors=["rich"]), budget("rich", envelope("e", 2, lending=shut)))
    assert remedy(result) == ("lending-acl", "rich", "e", ["org:*"], ["org:*", "t"])


def test_a_small_raise_may_help_where_a_large_one_harms() -> None:
    """Caps of 5 on {w, x} and {w, y}, x and y 3: with w at 1 there are 7, at 2 8, at 3 again 7."""
    crossed = budget(
        "t",
        *(envelope("w", 1), envelope("x", 3), envelope("y", 3)),
        caps=[cap("wx", "wx", 5), cap("wy", "wy", 5)],
    )
    given = document(ask("t", 8), crossed)
    result = decide(given)
    assert remedy(result) == ("envelope-concurrency", "t", "w", 1, 2)
    change = refusal(result)["remedy"]
    assert decide(apply_remedy(given, change))["funded"]
    assert not decide(apply_remedy(given, change, 3))["funded"]


@pytest.mark.parametrize("w", [1, 2, 3])
def test_no_raise_may_help_at_all(w: int) -> None:
    """Caps of 6, x and y 3, 10 asked: w peaks at 9, x and y stop at their caps, no cap binds
    alone."""
    crossed = budget(
        "t",
        *(envelope("w", w), envelope("x", 3), envelope("y", 3)),
        caps=[cap("wx", "wx", 6), cap("wy", "wy", 6)],
    )
    assert remedy(cover(ask("t", 10), crossed)) is None


def test_a_cut_is_no_remedy() -> None:
    """Caps of 5, w 3, 8 asked: w at 2 would do, but what is offered is more room."""
    crossed = budget(
        "t",
        *(envelope("w", 3), envelope("x", 3), envelope("y", 3)),
        caps=[cap("wx", "wx", 5), cap("wy", "wy", 5)],
    )
    assert remedy(cover(ask("t", 8), crossed)) == ("aggregate-concurrency", "t", "wx", 5, 6)


def test_a_list_opens_all_of_an_envelope() -> None:
    """Two GPUs of w would do; all that the caps let through of it leave x and y without any."""
    lenders = [envelope(name, 3, lending=lend("t")) for name in "xy"]
    caps = [cap("wx", "wx", 5), cap("wy", "wy", 5), cap("x", "x", 3), cap("y", "y", 3)]
    request = ask("t", 8, sponsors=["rich"])
    small = budget("rich", envelope("w", 2), *lenders, caps=caps)
    assert remedy(cover(request, small)) == ("lending-acl", "rich", "w", [], ["t"])
    assert remedy(cover(request, budget("rich", envelope("w", 9), *lenders, caps=caps))) is None


def test_hours_beside_another_envelope_are_raised_to_what_is_left() -> None:
    """a gives 5 of 9, so b gives 4 for 2 h each: 8 h and not 18."""
    two = budget("t", envelope("a", 9, 10), envelope("b", 9, 5))
    assert remedy(cover(ask("t", 9, 2), two)) == ("envelope-hours", "t", "b", 5, 8)


def test_no_single_change() -> None:
    """Envelope 2 under a cap of 3: 5 needs both."""
    assert (
        remedy(cover(ask("t", 5), budget("t", envelope("e", 2), caps=[cap("c", "e", 3)]))) is None
    )
    both = {**loan(5, gpus=4)[0], "max_borrow_gpus": 4}
    assert remedy(cover(both, loan(5, gpus=4)[1])) is None
    switch = {**loan(5)[0], "max_borrow_gpus": 4, "allow_borrow": False}
    assert remedy(cover(switch, loan(5)[1])) is None


def test_raising_counts_what_is_in_use_already() -> None:
    """5 in use of 2, 3 wanted: 8, not 5."""
    mine = budget("t", envelope("e", 2))
    result = cover(ask("t", 3), mine, leases=[lease("t/e", 5, -1)])
    assert remedy(result) == ("envelope-concurrency", "t", "e", 2, 8)


def test_a_malleable_request_is_remedied_at_its_minimum() -> None:
    """4 of 6 to 12 by 3: 6 is enough."""
    mine = budget("t", envelope("e", 4))
    result = cover(ask("t", 12, min_gpus=6, step_gpus=3), mine)
    assert remedy(result) == ("envelope-concurrency", "t", "e", 4, 6)


def test_hours_without_a_duration_need_one_millisecond() -> None:
    """The smallest number of hours that reads as more than what is used."""
    mine = budget("t", envelope("e", 4, 1))
    given = document(ask("t", 2), mine, leases=[lease("t/e", 1, -1, 0)])
    change = refusal(decide(given))["remedy"]
    assert change["change"] == "envelope-hours"
    assert 1 < change["to"] < 1 + 3e-7
    assert decide(apply_remedy(given, change))["funded"]
    assert not decide(apply_remedy(given, change, one_less(change)))["funded"]


def test_hours_that_no_decimal_writes_exactly() -> None:
    """3 GPUs for a third of an hour, rounded up, need 3 600 000 ms: 1 h, and not a bit less."""
    given = document(ask("t", 3, 1 / 3), budget("t", envelope("e", 4, 0.5)))
    change = refusal(decide(given))["remedy"]
    assert change["to"] == 1
    given["request"]["duration_hours"] = 1e-7
    given["budgets"][0]["envelopes"][0]["max_gpu_hours"] = 0
    change = refusal(decide(given))["remedy"]
    assert decide(apply_remedy(given, change))["funded"]
    assert not decide(apply_remedy(given, change, one_less(change)))["funded"]


def test_caps_named_like_the_requests_fields_are_caps() -> None:
    """An envelope may be called allow_borrow; it is raised like any other."""
    mine = budget("t", envelope("allow_borrow", 2), envelope("max_borrow_gpus", 9))
    assert remedy(cover(ask("t", 14), mine)) == ("envelope-concurrency", "t", "allow_borrow", 2, 5)


def test_a_remedy_for_a_trillion_gpus() -> None:
    """The search steps along straight pieces: size does not matter."""
    mine = budget("t", envelope("e", 1), caps=[cap("c", "e", 10**12)])
    result = cover(ask("t", 10**12), mine)
    assert remedy(result) == ("envelope-concurrency", "t", "e", 1, 10**12)


def test_a_raise_is_followed_over_a_bend_between_two_numbers() -> None:
    """Caps of 10 on ab, bc and bd, and of 5 on ac: with a at 2 there are 14, at 3 and at 4 15."""
    caps = [cap("ab", "ab", 10), cap("ac", "ac", 5), cap("bc", "bc", 10), cap("bd", "bd", 10)]
    wide = [envelope(name, 20) for name in "bcd"]
    bent = budget("t", envelope("a", 1), *wide, caps=caps)
    assert remedy(cover(ask("t", 15), bent)) == ("envelope-concurrency", "t", "a", 1, 3)


def test_a_raise_over_two_straight_pieces_is_a_whole_number() -> None:
    """Caps of 8 on ab and of 4 on bd: one more for each of a, from 5 on because d has it."""
    wide = [envelope(name, 20) for name in "bd"]
    bent = budget("t", envelope("a", 1), *wide, caps=[cap("ab", "ab", 8), cap("bd", "bd", 4)])
    found = remedy(cover(ask("t", 9), bent))
    assert found == ("envelope-concurrency", "t", "a", 1, 5)
    assert type(found[-1]) is int
