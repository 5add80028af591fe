"""Which leases end: the contract's rows and the pitfalls, one by one."""

from collections import Counter

import pytest

from fairlead.core.canonical import canonical, digest
from fairlead.core.gpu import Conflict, Scope
from fairlead.core.gpu import resolve as core_resolve
from fairlead.core.invariant import InvariantBroken
from tests.core.gpu.conflicts import ELSEWHERE, cuts, decide, document, lease, resolve, run

DROP, SHRINK, DRAWN = "DropSpare", "Shrink", "RandomPreempt"


def trio(deficit: int, *, least: int = 8, step: int = 4) -> dict[str, object]:
    """One run, three groups of 4 active and 4 spare."""
    leases = [lease(f"a{group}", "r", 4, group=group) for group in range(3)]
    leases += [lease(f"s{group}", "r", 4, group=group, spare=True) for group in range(3)]
    return resolve(deficit, [run("r", least=least, step=step)], leases)


# The contract's table.


def test_groups_shrink_in_numeric_order() -> None:
    """Twelve groups of 8, min 72, step 8, deficit 24: groups 11, 10, 9; "10" is after "9"."""
    leases = [lease(f"l{group}", "r", 8, group=group) for group in range(12)]
    result = resolve(24, [run("r", least=72, step=8)], leases)
    assert cuts(result) == [(SHRINK, "l11"), (SHRINK, "l10"), (SHRINK, "l9")]
    assert (result["freed_gpus"], result["draws"], result["withdrawn"]) == (24, [], [])


def test_spares_go_before_active_groups() -> None:
    """Deficit 14: the three spares (12), then group 2; 8 active GPUs are left."""
    result = trio(14)
    assert cuts(result) == [(DROP, "s2"), (DROP, "s1"), (DROP, "s0"), (SHRINK, "a2")]
    assert (result["freed_gpus"], result["draws"]) == (16, [])


def test_spares_are_never_counted_twice() -> None:
    """Deficit 20: spares 12, a step 4, and the only token loses what is left: 24, not more."""
    result = trio(20)
    assert cuts(result) == [
        (DROP, "s2"),
        (DROP, "s1"),
        (DROP, "s0"),
        (SHRINK, "a2"),
        (DRAWN, "a1"),
        (DRAWN, "a0"),
    ]
    assert (result["freed_gpus"], result["withdrawn"]) == (24, [])
    assert result["draws"] == [
        {
            "index": 0,
            "tier": "funded",
            "owners": ["team"],
            "owner": "team",
            "tokens": ["r"],
            "token": "r",
        }
    ]
    assert [each["draw"] for each in result["actions"]] == [None] * 4 + [0, 0]


def test_nothing_is_cut_when_everything_would_not_be_enough() -> None:
    """Deficit 28 of 24: four are missing, and nothing is preempted."""
    result = trio(28)
    assert (result["resolved"], result["freed_gpus"], result["shortfall_gpus"]) == (False, 0, 4)
    assert (result["actions"], result["withdrawn"], result["draws"]) == ([], [], [])


# Scope.


def test_a_lease_is_in_scope_when_flavor_and_every_label_are_equal() -> None:
    """A label that is missing is a mismatch, `*` is a value like any other, {} takes all."""
    runs = [run("r")]
    leases = [
        lease("here", "r", 1),
        lease("there", "r", 2, location=ELSEWHERE),
        lease("nowhere", "r", 4, location={}),
        lease("other", "r", 8, flavor="A100"),
    ]
    shortfalls = {
        name: resolve(100, runs, leases, location=location)["shortfall_gpus"]
        for name, location in {
            "cluster": {"cluster": "a"},
            "both": {"cluster": "a", "region": "us-west"},
            "all": {},
            "star": {"cluster": "*"},
            "more": {"cluster": "a", "domain": "d"},
        }.items()
    }
    assert shortfalls == {"cluster": 99, "both": 99, "all": 93, "star": 100, "more": 100}


def test_under_a_cap_only_what_its_envelopes_pay_is_a_candidate() -> None:
    """Another budget's envelope of the same name is another envelope."""
    leases = [
        lease("west", "r", 1),
        lease("east", "r", 2, envelope="east"),
        lease("other", "r", 4, budget="c"),
    ]
    cap = {"budget": "b", "name": "all", "envelopes": ["west", "north"]}
    assert resolve(10, [run("r")], leases, cap=cap)["shortfall_gpus"] == 9
    drawn = resolve(1, [run("r")], leases, cap=cap)
    assert {each["lease"]: each["in_scope"] for each in drawn["actions"]} == {
        "west": True,
        "east": False,
        "other": False,
    }
    assert drawn["freed_gpus"] == 1


def test_no_deficit_is_resolved_without_a_cut() -> None:
    """Also when there is nothing to cut."""
    for given in (document(0, [run("r")], [lease("l", "r", spare=True)]), document(0, [], [])):
        result = decide(given)
        assert (result["resolved"], result["freed_gpus"], result["actions"]) == (True, 0, [])


# Spares.


def test_spares_go_by_run_then_group_downwards_then_lease() -> None:
    """Ids by code point, groups by number."""
    leases = [
        lease("d", "b", group=1, spare=True),
        lease("c", "a", group=9, spare=True),
        lease("b", "a", group=10, spare=True),
        lease("a", "a", group=9, spare=True),
        lease("e", "B", group=0, spare=True),
    ]
    result = resolve(5, [run("b"), run("a"), run("B")], leases)
    assert [name for _, name in cuts(result)] == ["e", "b", "a", "c", "d"]


def test_spares_stop_where_the_deficit_is_met() -> None:
    """No more than needed."""
    leases = [lease(name, "r", 2, spare=True) for name in "abc"]
    assert cuts(resolve(3, [run("r")], leases)) == [(DROP, "a"), (DROP, "b")]


# Shrinking.


def test_the_run_most_above_its_minimum_shrinks_first_and_is_asked_again() -> None:
    """a is 6 above its minimum and b 4; equal ones go by id."""
    leases = [lease(f"a{i}", "a", 2, group=i) for i in range(4)]
    leases += [lease(f"b{i}", "b", 2, group=i) for i in range(3)]
    runs = [run("b", least=2, step=2), run("a", least=2, step=2)]
    assert [name for _, name in cuts(resolve(10, runs, leases))] == ["a3", "a2", "b2", "a1", "b1"]


def test_width_counts_active_gpus_in_scope_or_not_and_never_spares() -> None:
    """8 here and 4 there over a minimum of 8: one group of 4 can go, and no second."""
    leases = [
        lease("here0", "r", 4, group=0),
        lease("here1", "r", 4, group=1),
        lease("there", "r", 4, group=2, location=ELSEWHERE),
        lease("spare", "r", 4, group=3, spare=True, location=ELSEWHERE),
    ]
    assert cuts(resolve(4, [run("r", least=8)], leases)) == [(SHRINK, "here1")]
    assert cuts(resolve(8, [run("r", least=8)], leases))[0] == (SHRINK, "here1")
    assert cuts(resolve(8, [run("r", least=8)], leases))[1][0] == DRAWN


def test_a_step_takes_as_many_groups_as_make_a_multiple() -> None:
    """Groups of 3, 3, 2 from the top with a step of 4: all three make 8; none is skipped."""
    sizes = {0: 4, 1: 2, 2: 3, 3: 3}
    leases = [lease(f"g{group}", "r", gpus, group=group) for group, gpus in sizes.items()]
    result = resolve(1, [run("r", least=4, step=4)], leases)
    assert cuts(result) == [(SHRINK, "g3"), (SHRINK, "g2"), (SHRINK, "g1")]
    # Over a minimum of 5 that step is too deep, and no other combination is looked for.
    assert cuts(resolve(1, [run("r", least=5, step=4)], leases))[0][0] == DRAWN


def test_groups_partly_or_wholly_out_of_scope_are_passed_over() -> None:
    """The highest group that lies in scope whole goes; spares out of scope do not matter."""
    leases = [
        lease("g0", "r", 2, group=0),
        lease("g1", "r", 2, group=1),
        lease("s1", "r", 2, group=1, spare=True, location=ELSEWHERE),
        lease("g2", "r", 1, group=2),
        lease("g2x", "r", 1, group=2, location=ELSEWHERE),
        lease("g3", "r", 2, group=3, location=ELSEWHERE),
    ]
    result = resolve(2, [run("r", least=1, step=2)], leases)
    assert cuts(result) == [(SHRINK, "g1"), (SHRINK, "s1")]
    assert [each["in_scope"] for each in result["actions"]] == [True, False]
    assert result["freed_gpus"] == 2


def test_a_group_of_spares_alone_is_no_group_to_shrink() -> None:
    """A step takes active GPUs; a spare out of scope stays where no active lease is shrunk."""
    leases = [
        lease("g0", "r", 2, group=0),
        lease("g1", "r", 2, group=1),
        lease("s2", "r", 2, group=2, spare=True, location=ELSEWHERE),
    ]
    assert cuts(resolve(2, [run("r", least=2, step=2)], leases)) == [(SHRINK, "g1")]


def test_inside_a_step_leases_go_by_group_downwards_then_id() -> None:
    """Roles are mixed: an out-of-scope spare is sorted among the active leases of its group."""
    leases = [
        lease("c", "r", 1, group=9),
        lease("a", "r", 1, group=9),
        lease("b", "r", 1, group=9, spare=True, location=ELSEWHERE),
        lease("z", "r", 1, group=10),
        lease("y", "r", 9, group=0),
    ]
    result = resolve(3, [run("r", least=1, step=3)], leases)
    assert [name for _, name in cuts(result)] == ["z", "a", "b", "c"]


def test_a_minimum_above_the_width_is_legal() -> None:
    """That run does not shrink; it can be drawn."""
    assert cuts(resolve(1, [run("r", least=9)], [lease("l", "r", 4)])) == [(DRAWN, "l")]


def test_a_fixed_run_never_shrinks() -> None:
    """It is drawn whole, though one group would have been enough."""
    leases = [lease("g0", "r", group=0), lease("g1", "r", group=1)]
    assert cuts(resolve(1, [run("r")], leases)) == [(DRAWN, "g1"), (DRAWN, "g0")]


# Lottery.


def test_min_equal_to_max_buys_no_immunity() -> None:
    """Of a fixed run and one that cannot shrink, both are drawn about equally often."""
    runs = [run("fixed", "a"), run("rigid", "b", least=4)]
    leases = [lease("f", "fixed", 4), lease("r", "rigid", 4)]
    met = Counter(
        resolve(1, runs, leases, seed=digest(number))["draws"][0]["token"] for number in range(200)
    )
    assert min(met.values()) > 60
    assert met.total() == 200


def test_a_drawn_run_loses_its_leases_out_of_scope_too() -> None:
    """Only those in scope count."""
    leases = [
        lease("here", "r", 2, group=1),
        lease("there", "r", 8, group=2, location=ELSEWHERE),
        lease("spare", "r", 8, group=0, spare=True, location=ELSEWHERE),
    ]
    result = resolve(1, [run("r")], leases)
    assert [(x["lease"], x["kind"], x["in_scope"], x["draw"]) for x in result["actions"]] == [
        ("there", DRAWN, False, 0),
        ("here", DRAWN, True, 0),
        ("spare", DRAWN, False, 0),
    ]
    assert result["freed_gpus"] == 2


def test_runs_without_a_lease_in_scope_are_no_tokens() -> None:
    """Out of scope from the start, or after the structural cuts."""
    leases = [
        lease("far", "out", 4, location=ELSEWHERE),
        lease("s", "bare", 1, spare=True),
        lease("there", "bare", 4, location=ELSEWHERE),
        lease("g0", "thin", 1, location=ELSEWHERE),
        lease("g1", "thin", 1, group=1),
        lease("here", "in", 4),
    ]
    runs = [run("out"), run("bare"), run("thin", least=1), run("in")]
    result = resolve(6, runs, leases)
    assert [draw["tokens"] for draw in result["draws"]] == [["in"]]


def test_owners_and_tokens_are_listed_by_code_point_and_leave_when_drawn() -> None:
    """Three draws take every run; an owner without tokens is not listed again."""
    runs = [run("\uffff", "b"), run("\U0001d11e", "b"), run("x", "A")]
    result = resolve(3, runs, [lease(each["id"], each["id"]) for each in runs])
    assert [draw["index"] for draw in result["draws"]] == [0, 1, 2]
    left = {"A": ["x"], "b": ["\uffff", "\U0001d11e"]}
    for draw in result["draws"]:
        assert draw["owners"] == sorted(left)
        assert draw["tokens"] == left[draw["owner"]]
        left[draw["owner"]].remove(draw["token"])
        left = {owner: tokens for owner, tokens in left.items() if tokens}
    assert left == {}


# Tiers.


def test_unfunded_then_nominated_then_funded() -> None:
    """Each tier is used up before the next is touched; the draw index runs on."""
    runs = [run("a"), run("b", nominated=True), run("c"), run("d", nominated=True)]
    leases = [
        lease("a", "a"),
        lease("b", "b"),
        lease("c1", "c", funded=False),
        lease("c2", "c"),
        lease("d", "d", funded=False),
        lease("s", "a", spare=True),
    ]
    result = resolve(6, runs, leases)
    assert [(x["tier"], x["run"]) for x in result["actions"]][3:] == [
        ("nominated", "b"),
        ("funded", "a"),
        ("funded", "a"),
    ]
    assert {x["run"] for x in result["actions"][:3]} == {"c", "d"}
    assert [(x["index"], x["tier"]) for x in result["draws"]] == [
        (0, "unfunded"),
        (1, "unfunded"),
        (2, "nominated"),
        (3, "funded"),
    ]
    assert result["actions"][4]["kind"] == DROP


def test_an_unfunded_lease_out_of_scope_changes_nothing() -> None:
    """The tier comes from candidates."""
    leases = [lease("l", "r"), lease("x", "r", funded=False, location=ELSEWHERE)]
    assert resolve(1, [run("r")], leases)["actions"][0]["tier"] == "funded"


# Give-back.


def test_a_spare_that_turned_out_unnecessary_comes_back() -> None:
    """1 then 10 for a deficit of 10: the 1 was not needed; order of application in both lists."""
    leases = [lease("a", "r", 1, spare=True), lease("b", "r", 10, spare=True)]
    result = resolve(10, [run("r")], leases)
    assert (cuts(result), cuts(result, "withdrawn")) == ([(DROP, "b")], [(DROP, "a")])
    assert (result["freed_gpus"], result["withdrawn"][0]["draw"]) == (10, None)


def test_a_draw_gives_structural_cuts_back_last_one_first() -> None:
    """A gang of 8 makes the spare and both steps unnecessary for a deficit of 8."""
    leases = [
        lease("s", "m", 1, spare=True, group=1),
        lease("m0", "m", 2, group=0),
        lease("m1", "m", 1, group=1),
        lease("m2", "m", 1, group=2),
        lease("big", "f", 8),
    ]
    runs = [run("m", least=2), run("f")]
    seed = drawing(runs, leases, 8, "f")
    result = resolve(8, runs, leases, seed=seed)
    assert cuts(result) == [(DRAWN, "big")]
    assert cuts(result, "withdrawn") == [(DROP, "s"), (SHRINK, "m2"), (SHRINK, "m1")]
    assert result["freed_gpus"] == 8


def test_cuts_of_a_drawn_run_stay() -> None:
    """The draw ends the rest of that run; its spare and its step keep their kinds."""
    leases = [
        lease("s", "m", 1, spare=True, group=1),
        lease("m0", "m", 8, group=0),
        lease("m1", "m", 1, group=1),
        lease("f", "f", 1),
    ]
    runs = [run("m", least=8), run("f")]
    result = resolve(3, runs, leases, seed=drawing(runs, leases, 3, "m"))
    assert cuts(result) == [(DROP, "s"), (SHRINK, "m1"), (DRAWN, "m0")]
    assert result["withdrawn"] == []


def test_a_step_comes_back_only_after_every_later_step_of_its_run() -> None:
    """Steps of 1 and 4 and a gang of 3 for a deficit of 7: the 1 too many stays cut."""
    leases = [
        lease("m2", "m", 1, group=2),
        lease("m1", "m", 4, group=1),
        lease("m0", "m", 4, group=0),
        lease("f", "f", 3),
    ]
    runs = [run("m", least=4), run("f")]
    result = resolve(7, runs, leases, seed=drawing(runs, leases, 7, "f"))
    # The step of 4 is needed; the step of 1 is not, but without it there would be a hole.
    assert cuts(result) == [(SHRINK, "m2"), (SHRINK, "m1"), (DRAWN, "f")]
    assert (result["freed_gpus"], result["withdrawn"]) == (8, [])


def test_a_spare_does_not_come_back_to_a_group_that_stays_cut() -> None:
    """The spare of the shrunk group stays gone, the other one comes back."""
    leases = [
        lease("s1", "m", 1, group=1, spare=True),
        lease("s0", "m", 1, group=0, spare=True),
        lease("m1", "m", 4, group=1),
        lease("m0", "m", 4, group=0),
    ]
    result = resolve(4, [run("m", least=4)], leases)
    assert cuts(result) == [(DROP, "s1"), (SHRINK, "m1")]
    assert cuts(result, "withdrawn") == [(DROP, "s0")]
    assert result["freed_gpus"] == 5


def test_a_step_comes_back_with_the_spares_it_took_along() -> None:
    """Whole: the spare out of scope is in `withdrawn` beside its group."""
    leases = [
        lease("m1", "m", 1, group=1),
        lease("m0", "m", 1, group=0),
        lease("f", "f", 3),
        lease("s", "m", 1, group=1, spare=True, location=ELSEWHERE),
    ]
    runs = [run("m", least=1), run("f")]
    result = resolve(3, runs, leases, seed=drawing(runs, leases, 3, "f"))
    assert cuts(result, "withdrawn") == [(SHRINK, "m1"), (SHRINK, "s")]


def drawing(
    runs: list[dict[str, object]], leases: list[dict[str, object]], deficit: int, token: str
) -> str:
    """A seed whose first draw is this token."""
    seeds = (digest(number) for number in range(100))
    return next(
        seed
        for seed in seeds
        if resolve(deficit, runs, leases, seed=seed)["draws"][0]["token"] == token
    )


# The digest, and what core requires.


def test_the_digest_is_that_of_the_input_without_seed_defaults_filled_in_sorted() -> None:
    """Written out: every default, runs and leases by id, and no seed."""
    given = document(
        3, [{"id": "z", "owner": "o"}, run("a", least=1)], [lease("2", "z"), lease("1", "a")]
    )
    del given["scope"]["cap"]
    expected = {
        "scope": {"flavor": "H100", "location": {"cluster": "a"}, "cap": None},
        "deficit_gpus": 3,
        "runs": [
            {
                "id": "a",
                "owner": "team",
                "malleable": {"min_gpus": 1, "step_gpus": 1},
                "nominated": False,
            },
            {"id": "z", "owner": "o", "malleable": None, "nominated": False},
        ],
        "leases": [lease("1", "a"), lease("2", "z")],
    }
    assert decide(given)["conflict_digest"] == digest(expected)
    assert decide({**given, "seed": "F" * 64})["conflict_digest"] == digest(expected)
    capped = document(3, [], [], cap={"budget": "b", "name": "n", "envelopes": ["y", "x"]})
    without = {key: value for key, value in capped.items() if key != "seed"}
    assert decide(capped)["conflict_digest"] == digest(without)
    assert b'["y","x"]' in canonical(without)  # members stay as they were written


def test_the_letter_case_of_the_seed_does_not_matter() -> None:
    """It is 32 bytes, however they are written."""
    runs = [run(str(i)) for i in range(50)]
    leases = [lease(str(i), str(i)) for i in range(50)]
    lower, upper = (resolve(9, runs, leases, seed=digit * 64) for digit in "aA")
    assert lower == upper


def test_a_seed_of_another_length_is_a_bug() -> None:
    """Library callers cannot draw from less than 32 bytes."""
    with pytest.raises(InvariantBroken):
        core_resolve(Conflict(Scope("H100"), 0, (), ()), b"short")
