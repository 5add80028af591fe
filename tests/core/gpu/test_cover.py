"""Cover: the check table and every settled detail of the specification, one by one."""

from typing import Any

import pytest

from fairlead.core.gpu import Book, Budget, Envelope, Request
from fairlead.core.gpu import cover as core_cover
from tests.core.gpu.build import (
    NOBODY,
    ask,
    at,
    binding,
    budget,
    cap,
    cover,
    decide,
    document,
    envelope,
    lease,
    lend,
    lines,
    refusal,
    remedy,
)  # fmt: skip

# --- the check table ------------------------------------------------------------------------


def test_a_sibling_helps_without_lending() -> None:
    """Child 2, sibling 10, ask 4: own 2, sibling 2, not borrowed."""
    child = budget("child", envelope("e", 2), parents=["org"])
    sibling = budget("sibling", envelope("e", 10), parents=["org"])
    result = cover(ask("child", 4), child, sibling)
    assert lines(result) == [("own", "child/e", 2), ("sibling", "sibling/e", 2)]
    assert [line["borrowed"] for line in result["plan"]] == [False, False]
    assert [line["owner"] for line in result["plan"]] == ["child", "sibling"]
    assert (result["gpus"], result["refusal"]) == (4, None)


def sponsored(**fields: Any) -> list[dict[str, Any]]:
    sponsor = budget("rich", envelope("e", 64, lending=lend("*", gpus=32)))
    return [
        ask("team", 128, sponsors=["rich"], **fields),
        budget("team", envelope("e", 96)),
        sponsor,
    ]


def test_a_sponsor_lends_up_to_its_sub_cap() -> None:
    """Own 96, sponsor 64 lending at most 32, ask 128: 96 + 32 borrowed."""
    result = cover(*sponsored())
    assert lines(result) == [("own", "team/e", 96), ("sponsor", "rich/e", 32)]
    assert [line["borrowed"] for line in result["plan"]] == [False, True]


def test_a_borrow_limit_refuses_the_whole_request() -> None:
    """The same with max_borrow_gpus 16: BorrowLimitExceeded, nothing granted."""
    result = cover(*sponsored(max_borrow_gpus=16))
    assert refusal(result)["code"] == "BorrowLimitExceeded"
    assert refusal(result)["shortfall_gpus"] == 16
    assert binding(result) == {("borrow", None, "max_borrow_gpus", 16, 0)}


@pytest.mark.parametrize(("gpus", "plan"), [(10, [8, 2]), (12, None)])
def test_a_cap_counts_what_the_same_plan_took(gpus: int, plan: list[int] | None) -> None:
    """Envelopes 8 + 8 under a cap of 10: ask 10 gives 8 + 2, ask 12 ConcurrencyCapExceeded."""
    both = budget("t", envelope("x", 8), envelope("y", 8), caps=[cap("all", "xy", 10)])
    result = cover(ask("t", gpus), both)
    if plan:
        assert [line["gpus"] for line in result["plan"]] == plan
    else:
        assert refusal(result)["code"] == "ConcurrencyCapExceeded"
        assert refusal(result)["shortfall_gpus"] == 2
        assert binding(result) == {("envelope", "t", "x", 8, 0), ("aggregate", "t", "all", 10, 0)}
        assert remedy(result) == ("aggregate-concurrency", "t", "all", 10, 12)


def test_the_contract_example() -> None:
    """12 asked of an envelope of 8 with 4 in use: 8 short of 12; 16 would do, under a cap of 10."""
    west = envelope("west", 8, location={"region": "us-west"}, lending=lend("org:*", gpus=2))
    given = document(
        ask("team-a", 12, location={"region": "us-west"}),
        budget("team-a", west, name="a", parents=["org"], caps=[cap("all", ["west"], 10)]),
        leases=[lease("a/west", 4, -2)],
    )
    result = decide(given)
    assert refusal(result)["code"] == "ConcurrencyCapExceeded"
    assert refusal(result)["shortfall_gpus"] == 8
    assert binding(result) == {("envelope", "a", "west", 8, 4)}
    assert remedy(result) is None  # neither cap alone


# --- the order ------------------------------------------------------------------------------


def everyone(gpus: int, **fields: Any) -> list[dict[str, Any]]:
    """One envelope of 1 GPU here and one in the east for every relation there is."""
    here, east = envelope("here", 1), envelope("east", 1, location={"region": "east"})
    open_ = {"lending": lend("*")}
    people: tuple[tuple[str, list[str]], ...] = (
        ("me", ["mother"]), ("sister", ["mother"]), ("mother", ["granny"]), ("aunt", ["granny"]),
        ("cousin", ["aunt"]), ("granny", []), ("friend", []), ("stranger", []),
    )  # fmt: skip
    budgets = [
        budget(name, {**here, **open_}, {**east, **open_}, parents=up) for name, up in people
    ]
    return [ask("me", gpus, sponsors=["stranger", "friend"], **fields), *budgets]


def test_the_cover_order() -> None:
    """Own, siblings, parents here, the same three elsewhere, cousins, then sponsors as listed."""
    assert lines(cover(*everyone(12))) == [
        ("own", "me/here", 1),
        ("sibling", "sister/here", 1),
        ("parent", "mother/here", 1),
        ("own-elsewhere", "me/east", 1),
        ("sibling-elsewhere", "sister/east", 1),
        ("parent-elsewhere", "mother/east", 1),
        ("cousin", "cousin/here", 1),
        ("cousin-elsewhere", "cousin/east", 1),
        ("sponsor", "stranger/here", 1),
        ("sponsor", "friend/here", 1),
        ("sponsor-elsewhere", "stranger/east", 1),
        ("sponsor-elsewhere", "friend/east", 1),
    ]


def test_grandparents_uncles_and_own_children_are_not_reachable() -> None:
    """All the family and all sponsors have 12; granny and the aunt have 4 more."""
    assert refusal(cover(*everyone(13)))["shortfall_gpus"] == 1
    mother = cover(ask("mother", 3), *everyone(1)[1:])
    assert lines(mother) == [
        ("own", "mother/here", 1), ("sibling", "aunt/here", 1), ("parent", "granny/here", 1),
    ]  # fmt: skip
    assert refusal(cover(ask("granny", 3), *everyone(1)[1:]))["shortfall_gpus"] == 1


def test_ties_go_by_owner_then_budget_then_envelope() -> None:
    """By code point, whatever the order of the document."""
    siblings = [
        budget("b", envelope("e", 1), name="1", parents=["org"]),
        budget("a", envelope("y", 1), envelope("x", 1), name="9", parents=["org"]),
        budget("a", envelope("z", 1), name="10", parents=["org"]),
        budget("Z", envelope("e", 1), name="3", parents=["org"]),
    ]
    result = cover(ask("me", 5), *siblings, budget("me", name="0", parents=["org"]))
    assert [where for _, where, _ in lines(result)] == ["3/e", "10/z", "9/x", "9/y", "1/e"]


def test_without_allow_borrow_sponsors_are_not_asked() -> None:
    """They count as reachable all the same: the refusal is about borrowing."""
    result = cover(*everyone(9, allow_borrow=False))
    assert refusal(result)["code"] == "BorrowLimitExceeded"
    assert binding(result) == {("borrow", None, "allow_borrow", 0, 0)}


def test_one_line_per_envelope_and_none_that_gives_nothing() -> None:
    """Lines are positive; the walk stops when the request is covered."""
    result = cover(
        ask("t", 3),
        budget("t", envelope("a", 2), envelope("b", 1), envelope("c", 5), envelope("d", 5)),
        leases=[lease("t/b", 1, -1)],
    )
    assert lines(result) == [("own", "t/a", 2), ("own", "t/c", 1)]


def test_no_backtracking() -> None:
    """The greedy walk lets w fill both caps, though x and y together would give more."""
    crossed = budget(
        "t", envelope("w", 4), envelope("x", 4), envelope("y", 4),
        caps=[cap("wx", "wx", 4), cap("wy", "wy", 4)],
    )  # fmt: skip
    assert lines(cover(ask("t", 4), crossed)) == [("own", "t/w", 4)]
    assert refusal(cover(ask("t", 8), crossed))["shortfall_gpus"] == 4


# --- malleable requests ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("have", "width"), [(16, 14), (14, 14), (13, 11), (11, 11), (5, 5), (7, 5), (4, None)]
)
def test_a_malleable_request_gets_the_largest_aligned_width(have: int, width: int | None) -> None:
    """min 5, step 3, asked 14: 5, 8, 11 or 14, or nothing."""
    result = cover(ask("t", 14, min_gpus=5, step_gpus=3), budget("t", envelope("e", have)))
    if width is None:
        assert refusal(result)["shortfall_gpus"] == 1
        assert remedy(result) == ("envelope-concurrency", "t", "e", 4, 5)  # funded at min_gpus
    else:
        assert (result["gpus"], lines(result)) == (width, [("own", "t/e", width)])


def test_a_malleable_width_counts_loans() -> None:
    """Own 4 and a loan of 3 make 7, which step 2 cuts to 6."""
    rich = budget("rich", envelope("e", 3, lending=lend("t")))
    request = ask("t", 10, min_gpus=2, step_gpus=2, sponsors=["rich"])
    result = cover(request, budget("t", envelope("e", 4)), rich)
    assert lines(result) == [("own", "t/e", 4), ("sponsor", "rich/e", 2)]


def test_a_line_cut_to_nothing_by_the_step_is_left_out() -> None:
    """4 + 1 cut to 4: the second envelope gives nothing and has no line."""
    two = budget("t", envelope("a", 4), envelope("b", 1))
    assert lines(cover(ask("t", 6, min_gpus=2, step_gpus=2), two)) == [("own", "t/a", 4)]


# --- sponsors and lending -------------------------------------------------------------------


def test_a_sponsor_who_is_family_stays_family() -> None:
    """No loan, no ACL; and `sharing: none` shuts it out even though it would lend."""
    me = budget("me", envelope("e", 1), parents=["org"])
    open_ = budget("sister", envelope("e", 4), parents=["org"])
    assert lines(cover(ask("me", 3, sponsors=["sister"]), me, open_))[1][0] == "sibling"
    shut = budget("sister", envelope("e", 4, sharing="none", lending=lend("*")), parents=["org"])
    result = cover(ask("me", 3, sponsors=["sister"]), me, shut)
    assert refusal(result)["code"] == "ConcurrencyCapExceeded"
    assert refusal(result)["shortfall_gpus"] == 2


def test_sponsoring_oneself_is_own_use() -> None:
    """The owner in its own list stays the owner."""
    result = cover(ask("t", 2, sponsors=["t"], max_borrow_gpus=0), budget("t", envelope("e", 2)))
    assert lines(result) == [("own", "t/e", 2)]


def test_own_envelopes_need_no_sharing_and_sponsors_neither() -> None:
    """`sharing: none` is about the family."""
    mine = budget("t", envelope("e", 1, sharing="none"))
    rich = budget("rich", envelope("e", 1, sharing="none", lending=lend("*")))
    assert len(lines(cover(ask("t", 2, sponsors=["rich"]), mine, rich))) == 2


def test_family_is_not_asked_for_lending_acls_or_sub_caps() -> None:
    """Lending says no and 0 GPUs; a sibling uses it all the same."""
    me = budget("me", parents=["org"])
    sister = budget(
        "sister", envelope("e", 4, lending={**NOBODY, "max_concurrency": 0}), parents=["org"]
    )
    assert lines(cover(ask("me", 4), me, sister)) == [("sibling", "sister/e", 4)]


@pytest.mark.parametrize(
    ("to", "allow", "lends"),
    [
        (["org:a"], True, True),
        (["org:*"], True, True),
        (["*"], True, True),
        (["other", "org:*"], True, True),
        ([], True, False),
        (["*"], False, False),
        (["org"], True, False),
        (["org:ab", "org:", "rg:*"], True, False),
        (["*:a"], True, False),
    ],
)
def test_lending_acls(to: list[str], allow: bool, lends: bool) -> None:  # noqa: FBT001
    """Exact, prefix or everybody; an empty list lends to nobody; `allow` is needed too."""
    rich = budget("rich", envelope("e", 1, lending={**lend(*to), "allow": allow}))
    result = cover(ask("org:a", 1, sponsors=["rich"]), rich)
    assert result["funded"] is lends
    if not lends:
        assert refusal(result)["code"] == "ACLDenied"
        assert binding(result) == {("acl", "rich", "e", None, 0)}
        assert remedy(result) == ("lending-acl", "rich", "e", to, [*to, "org:a"])


def test_lent_use_counts_by_the_borrowed_flag() -> None:
    """3 lent of a sub-cap of 4 leaves 1; use by the owner's own leases leaves it alone."""
    rich = budget("rich", envelope("e", 20, lending=lend("*", gpus=4)))
    request = ask("t", 2, sponsors=["rich"])
    assert cover(request, rich, leases=[lease("rich/e", 3, -1)])["funded"]
    result = cover(request, rich, leases=[lease("rich/e", 3, -1, borrowed=True)])
    assert binding(result) == {("lending", "rich", "e", 4, 3)}


def test_lent_use_counts_against_envelope_cap_and_sub_cap() -> None:
    """A loan of 5 is stopped by whichever is least: envelope 3, cap 2, sub-cap 1."""
    for gpus, whole, lent in ((3, 9, 9), (9, 3, 9), (9, 9, 3)):
        rich = budget("rich", envelope("e", gpus, lending=lend("*", gpus=lent)),
                      caps=[cap("all", "e", whole)])  # fmt: skip
        assert cover(ask("t", 3, sponsors=["rich"]), rich)["funded"]
        assert refusal(cover(ask("t", 4, sponsors=["rich"]), rich))["shortfall_gpus"] == 1


def test_the_borrow_limit_is_over_all_sponsors_together() -> None:
    """Two sponsors of 4 with a limit of 5: 4 + 1."""
    rich = [budget(name, envelope("e", 4, lending=lend("*"))) for name in ("b", "a")]
    request = ask("t", 5, sponsors=["b", "a"], max_borrow_gpus=5)
    assert lines(cover(request, *rich)) == [("sponsor", "b/e", 4), ("sponsor", "a/e", 1)]
    assert not cover({**request, "gpus": 6}, *rich)["funded"]


def test_unknown_and_repeated_sponsors_do_no_harm() -> None:
    """The first mention counts."""
    rich = [budget(name, envelope("e", 1, lending=lend("*"))) for name in ("b", "a")]
    result = cover(ask("t", 2, sponsors=["nobody", "b", "a", "b"]), *rich)
    assert [where for _, where, _ in lines(result)] == ["b/e", "a/e"]


# --- location, window, flavor ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("selector", "here"),
    [
        ({}, True),
        ({"region": "west"}, True),
        ({"region": "*"}, True),
        ({"region": "west", "cluster": "a"}, True),
        ({"region": "east"}, False),
        ({"region": "west", "cluster": "b"}, False),
        ({"rack": "*"}, False),
        ({"region": "west", "rack": "7"}, False),
    ],
)
def test_location_selectors(selector: dict[str, str], here: bool) -> None:  # noqa: FBT001
    """Every key must be met; `*` needs the key to be present in the request."""
    mine = budget("t", envelope("e", 1, location=selector))
    result = cover(ask("t", 1, location={"region": "west", "cluster": "a"}), mine)
    assert lines(result)[0][0] == ("own" if here else "own-elsewhere")


@pytest.mark.parametrize(
    ("start", "end", "opened"),
    [(-1, 1, True), (0, 1, True), (-1, 0, False), (1, 2, False), (-1, 1e-6, True)],
)
def test_a_window_gates_at_now_and_is_half_open(start: float, end: float, opened: bool) -> None:  # noqa: FBT001
    """Open from its start up to, not at, its end; a plan may outlast it."""
    mine = budget("t", envelope("e", 1, window={"start": at(start), "end": at(end)}))
    result = cover(ask("t", 1, 100), mine)
    assert result["funded"] is opened
    if not opened:
        assert refusal(result)["code"] == "NoEnvelope"


@pytest.mark.parametrize(
    "budgets",
    [
        [],
        [budget("t", envelope("e", 9, flavor="A100"))],
        [budget("stranger", envelope("e", 9, lending=lend("*")))],
        [budget("t", parents=["o"]), budget("s", envelope("e", 9, sharing="none"), parents=["o"])],
    ],
)
def test_no_envelope(budgets: list[dict[str, Any]]) -> None:
    """Nothing of the flavor is reachable: no cap binds and no change of one helps."""
    result = cover(ask("t", 4, min_gpus=2, step_gpus=1), *budgets)
    assert refusal(result)["code"] == "NoEnvelope"
    assert refusal(result)["shortfall_gpus"] == 2
    assert (refusal(result)["binding"], refusal(result)["remedy"]) == ([], None)


def test_listed_sponsors_count_as_reachable() -> None:
    """Even one that lends to nobody, to a run that may not borrow."""
    rich = budget("rich", envelope("e", 9))
    result = cover(ask("t", 1, sponsors=["rich"], allow_borrow=False), rich)
    assert refusal(result)["code"] == "ConcurrencyCapExceeded"  # no single relaxation is enough
    assert binding(result) == {
        ("borrow", None, "allow_borrow", 0, 0), ("acl", "rich", "e", None, 0),
    }  # fmt: skip


# --- hours ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("gpus", "funded"), [(4, True), (5, False)])
def test_a_request_needs_its_gpus_times_its_duration(gpus: int, funded: bool) -> None:  # noqa: FBT001
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


@pytest.mark.parametrize(("used", "funded"), [(9, True), (10, False), (11, False)])
def test_without_a_duration_something_must_be_left(used: int, funded: bool) -> None:  # noqa: FBT001
    """A run without a duration holds nothing and needs remaining > 0, whatever its width."""
    mine = budget("t", envelope("e", 8, 10))
    result = cover(ask("t", 8), mine, leases=[lease("t/e", 1, -used, 0)])
    assert result["funded"] is funded
    if not funded:
        assert refusal(result)["code"] == "IntegralCapExceeded"
        assert remedy(result)[:4] == ("envelope-hours", "t", "e", 10)  # type: ignore[index]


def test_caps_round_down_and_durations_up_to_the_millisecond() -> None:
    """A cap of 1e-7 h is 0 ms; a duration of 1e-9 h is 1 ms."""
    assert not cover(ask("t", 1, 1e-9), budget("t", envelope("e", 1, 1e-7)))["funded"]
    assert cover(ask("t", 1, 1e-9), budget("t", envelope("e", 1, 2.8e-7)))["funded"]
    assert not cover(ask("t", 2, 1e-9), budget("t", envelope("e", 2, 5e-7)))["funded"]


def test_a_duration_of_nothing_needs_nothing() -> None:
    """Not even hours left; an overdrawn envelope still lets nobody in."""
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


def test_a_cap_of_another_flavor_is_not_asked() -> None:
    """An aggregate cap is about its own flavor."""
    mine = budget("t", envelope("e", 8), caps=[cap("old", "e", 1, flavor="A100")])
    assert cover(ask("t", 8), mine)["funded"]


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
