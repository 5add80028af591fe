"""Families: who is whose sibling, parent or cousin, and circles."""

import pytest

from fairlead.core.gpu import Budget, Families, Tier, cycle_in


def kin(owner: str, graph: dict[str, str], *sponsors: str) -> dict[str, str]:
    """owner -> tier in location; the graph maps each owner to its parents, 'p q'."""
    budgets = [Budget(name, name, tuple(up.split())) for name, up in graph.items()]
    found = Families(budgets).kin(owner, sponsors)
    return {name: each.here.value for name, each in found.items()}


def test_the_nearest_family() -> None:
    """Siblings share a parent; cousins are children of the parents' siblings."""
    graph = {"me": "ma", "sis": "ma", "ma": "gran", "aunt": "gran", "cuz": "aunt", "gran": ""}
    assert kin("me", graph) == {"me": "own", "sis": "sibling", "ma": "parent", "cuz": "cousin"}


def test_an_uncle_without_children_makes_no_cousins() -> None:
    graph = {"me": "ma", "ma": "gran", "uncle": "gran"}
    assert kin("me", graph) == {"me": "own", "ma": "parent"}


def test_grandparents_uncles_and_own_children_are_not_family() -> None:
    """From ma's side: her children, her grandmother and her sister's children are out of reach."""
    graph = {"me": "ma", "ma": "gran", "aunt": "gran", "gran": "old", "cuz": "aunt", "old": ""}
    assert kin("ma", graph) == {"ma": "own", "aunt": "sibling", "gran": "parent"}
    assert kin("gran", graph) == {"gran": "own", "old": "parent"}


def test_several_parents_are_several_families() -> None:
    """Siblings and cousins on both sides."""
    graph = {
        "me": "ma pa",
        "half": "pa",
        "ma": "g1",
        "pa": "g2",
        "u1": "g1",
        "u2": "g2",
        "c1": "u1",
        "c2": "u2 x",
    }
    assert kin("me", graph) == {
        "me": "own",
        "half": "sibling",
        "ma": "parent",
        "pa": "parent",
        "c1": "cousin",
        "c2": "cousin",
    }


def test_an_owner_counts_in_the_first_tier_that_reaches_it() -> None:
    """A parent that is also a sibling (both children of gran) is a sibling; a sponsor stays kin."""
    graph = {"me": "ma gran", "ma": "gran", "aunt": "gran", "cuz": "aunt"}
    found = kin("me", graph, "ma", "cuz", "bank")
    assert found == {
        "me": "own",
        "ma": "sibling",
        "aunt": "sibling",
        "gran": "parent",
        "cuz": "cousin",
        "bank": "sponsor",
    }


def test_no_owner_is_its_own_uncle() -> None:
    """me and ma share gran, so me is ma's sibling; my own children are no cousins for that."""
    graph = {"me": "ma gran", "ma": "gran", "kid": "me"}
    assert "kid" not in kin("me", graph)


def test_a_child_that_is_also_a_cousin_is_a_cousin() -> None:
    """Not reachable as a child, but as what else it is."""
    graph = {"me": "ma", "ma": "gran", "aunt": "gran", "kid": "me aunt"}
    assert kin("me", graph)["kid"] == "cousin"


def test_an_owner_that_only_others_name_makes_siblings_but_no_cousins() -> None:
    """org has no budget, hence no parents, hence no siblings whose children could be cousins."""
    graph = {"me": "org", "sis": "org", "other": "holding", "cuz": "other"}
    assert kin("me", graph) == {"me": "own", "sis": "sibling", "org": "parent"}


def test_parents_are_the_union_over_an_owners_budgets() -> None:
    """Two budgets of one owner, each with its own parent."""
    budgets = [
        Budget("1", "me", ("a",)),
        Budget("2", "me", ("b",)),
        Budget("3", "x", ("a",)),
        Budget("4", "y", ("b",)),
    ]
    found = Families(budgets).kin("me")
    assert {name: each.here for name, each in found.items()} == {
        "me": Tier.OWN,
        "x": Tier.SIBLING,
        "y": Tier.SIBLING,
        "a": Tier.PARENT,
        "b": Tier.PARENT,
    }


def test_an_owner_without_a_budget_is_alone() -> None:
    """It has its sponsors, if any."""
    assert kin("guest", {"me": "ma"}, "me") == {"guest": "own", "me": "sponsor"}


def test_only_sponsors_lend() -> None:
    """Two of the ten tiers are loans."""
    assert [tier for tier in Tier if tier.borrows] == [Tier.SPONSOR, Tier.SPONSOR_ELSEWHERE]


@pytest.mark.parametrize(
    ("graph", "circle"),
    [
        ({}, None),
        ({"a": "b c", "b": "d", "c": "d", "d": ""}, None),  # a diamond is no circle
        ({"a": "a"}, ["a", "a"]),
        ({"a": "b", "b": "a"}, ["a", "b", "a"]),
        ({"a": "x b", "b": "y c", "c": "b"}, ["b", "c", "b"]),  # a leads into it, but is not in it
        ({"z": "y", "y": "x", "x": "z"}, ["x", "z", "y", "x"]),
    ],
)
def test_circles_are_found(graph: dict[str, str], circle: list[str] | None) -> None:
    """The owners in order, the first one repeated at the end."""
    budgets = [Budget(name, name, tuple(up.split())) for name, up in graph.items()]
    assert cycle_in(budgets) == circle
    assert cycle_in(budgets[::-1]) == circle


def test_a_circle_through_two_budgets_of_one_owner() -> None:
    """Parents are the owner's, not the budget's."""
    budgets = [Budget("1", "a"), Budget("2", "a", ("b",)), Budget("3", "b", ("a",))]
    assert cycle_in(budgets) == ["a", "b", "a"]


def test_a_chain_of_ten_thousand_parents() -> None:
    """Depth costs no stack."""
    chain = [Budget(str(i), str(i), (str(i + 1),)) for i in range(10_000)]
    assert cycle_in(chain) is None
    assert cycle_in([*chain, Budget("end", "10000", ("0",))]) is not None
