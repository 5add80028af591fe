"""Cover: the check table and every settled detail of the specification, one by one."""

from typing import Any

import pytest

from tests.core.gpu.build import (
    NO_LOANS,
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
)

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
        ("me", ["mother"]),
        ("sister", ["mother"]),
        ("mother", ["granny"]),
        ("aunt", ["granny"]),
        ("cousin", ["aunt"]),
        ("granny", []),
        ("friend", []),
        ("stranger", []),
    )
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
        ("own", "mother/here", 1),
        ("sibling", "aunt/here", 1),
        ("parent", "granny/here", 1),
    ]
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
        "t",
        envelope("w", 4),
        envelope("x", 4),
        envelope("y", 4),
        caps=[cap("wx", "wx", 4), cap("wy", "wy", 4)],
    )
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
        "sister", envelope("e", 4, lending={**NO_LOANS, "max_concurrency": 0}), parents=["org"]
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
        (["org:b*"], True, False),
    ],
)
def test_lending_acls(to: list[str], allow: bool, lends: bool) -> None:
    """Exact, prefix or `*`; an empty list lends to no owner; `allow` is needed too."""
    rich = budget("rich", envelope("e", 1, lending={**lend(*to), "allow": allow}))
    result = cover(ask("org:a", 1, sponsors=["rich"]), rich)
    assert result["funded"] is lends
    if not lends:
        assert refusal(result)["code"] == "ACLDenied"
        assert binding(result) == {("acl", "rich", "e", None, 0)}
        assert remedy(result) == ("lending-acl", "rich", "e", sorted(to), [*sorted(to), "org:a"])


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
        rich = budget(
            "rich", envelope("e", gpus, lending=lend("*", gpus=lent)), caps=[cap("all", "e", whole)]
        )
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
def test_location_selectors(selector: dict[str, str], here: bool) -> None:
    """Every key must be met; `*` needs the key to be present in the request."""
    mine = budget("t", envelope("e", 1, location=selector))
    result = cover(ask("t", 1, location={"region": "west", "cluster": "a"}), mine)
    assert lines(result)[0][0] == ("own" if here else "own-elsewhere")


@pytest.mark.parametrize(
    ("start", "end", "opened"),
    [(-1, 1, True), (0, 1, True), (-1, 0, False), (1, 2, False), (-1, 1e-6, True)],
)
def test_a_window_gates_at_now_and_is_half_open(start: float, end: float, opened: bool) -> None:
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
    """Even one that lends to no owner, to a run that may not borrow."""
    rich = budget("rich", envelope("e", 9))
    result = cover(ask("t", 1, sponsors=["rich"], allow_borrow=False), rich)
    assert refusal(result)["code"] == "ConcurrencyCapExceeded"  # no single relaxation is enough
    assert binding(result) == {
        ("borrow", None, "allow_borrow", 0, 0),
        ("acl", "rich", "e", None, 0),
    }
