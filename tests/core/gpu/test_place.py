"""Placement: best fit, domains, spares, location, ties."""

import pytest

from fairlead.core.gpu.place import Gang, Node, place


def node(name: str, free: int, *, flavor: str = "H100", cordoned: bool = False, **location: str):
    return Node(name, flavor, location, tuple(range(free)), cordoned)


def slots(nodes: list[Node], gang: Gang) -> list[list[str]]:
    found = place(nodes, gang)
    assert found.placed
    return [[*group.active, *group.spares] for group in found.groups]


def test_the_node_that_is_filled_best() -> None:
    """A small gang leaves the large hole for a large gang."""
    assert slots([node("n1", 8), node("n2", 3)], Gang("H100", 3)) == [["n2#0", "n2#1", "n2#2"]]


def test_ties_go_by_name_whatever_the_order() -> None:
    """The order of the nodes does not matter."""
    nodes = [node("n2", 2), node("n1", 2)]
    assert (
        slots(nodes, Gang("H100", 2)) == slots(nodes[::-1], Gang("H100", 2)) == [["n1#0", "n1#1"]]
    )


def test_a_group_stays_in_one_domain() -> None:
    """Two groups of four, a domain with six and one with four: one each."""
    nodes = [
        node("n1", 3, domain="d1"),
        node("n2", 3, domain="d1"),
        node("n3", 2, domain="d2"),
        node("n4", 2, domain="d2"),
    ]
    found = place(nodes, Gang("H100", 8, group_gpus=4))
    domains = {each.name: each.location["domain"] for each in nodes}
    used = [{domains[slot.partition("#")[0]] for slot in group.active} for group in found.groups]
    assert used == [{"d2"}, {"d1"}]


def test_the_last_group_may_be_smaller() -> None:
    """Ten in groups of four."""
    assert Gang("H100", 10, group_gpus=4).groups() == [4, 4, 2]
    assert [len(each) for each in slots([node("n1", 10)], Gang("H100", 10, group_gpus=4))] == [
        4,
        4,
        2,
    ]


def test_no_domain_with_room_is_a_shortfall_of_whole_groups() -> None:
    """Whole or not at all; the shortfall counts what found no place, spares included."""
    nodes = [node("n1", 3, domain="d1"), node("n2", 3, domain="d2")]
    found = place(nodes, Gang("H100", 4, group_gpus=2, spares_per_group=2))
    assert (found.placed, found.groups, found.shortfall_gpus) == (False, (), 8)
    assert place(nodes, Gang("H100", 7)).shortfall_gpus == 7


def test_without_groups_a_gang_may_be_spread() -> None:
    """Nothing asked for one domain."""
    nodes = [node("n1", 2, domain="d1"), node("n2", 2, domain="d2")]
    assert slots(nodes, Gang("H100", 3)) == [["n1#0", "n1#1", "n2#0"]]


def test_spares_keep_off_their_groups_nodes() -> None:
    """A spare that dies with its group is no spare; where there is no other node it must."""
    nodes = [node("n1", 4), node("n2", 2)]
    (group,) = place(nodes, Gang("H100", 2, group_gpus=2, spares_per_group=1)).groups
    assert ({slot.partition("#")[0] for slot in group.active}, group.spares) == ({"n2"}, ("n1#0",))
    (alone,) = place([node("n1", 4)], Gang("H100", 2, spares_per_group=1)).groups
    assert alone.spares == ("n1#2",)


@pytest.mark.parametrize(
    ("elsewhere", "expected"), [(False, None), (True, ["n1#0", "n2#0", "n2#1"])]
)
def test_elsewhere_is_used_only_when_the_plan_is_paid_there(elsewhere, expected) -> None:
    """In location first."""
    nodes = [node("n1", 1, region="west"), node("n2", 2, region="east"), node("n3", 4)]
    gang = Gang("H100", 3, location={"region": "west"}, elsewhere=elsewhere)
    if expected is None:
        assert place(nodes, gang).shortfall_gpus == 3
    else:
        assert slots(nodes[:2], gang) == [expected]
        # A node that fits the whole gang is better than three devices of two places.
        assert slots(nodes, gang) == [["n3#0", "n3#1", "n3#2"]]


def test_a_star_takes_any_value_of_a_label_that_is_there() -> None:
    """As in envelopes."""
    assert node("n", 1, region="west").is_in({"region": "*"})
    assert not node("n", 1).is_in({"region": "*"})


def test_cordoned_nodes_and_other_flavors_are_left_alone() -> None:
    """Neither is there for this gang."""
    nodes = [node("n1", 8, cordoned=True), node("n2", 8, flavor="A100")]
    assert place(nodes, Gang("H100", 1)).shortfall_gpus == 1


def test_spares_are_on_other_nodes_where_there_are_some() -> None:
    """A node that is lost takes no spare of its own group with it."""
    nodes = [node("n1", 4, domain="d"), node("n2", 4, domain="d")]
    assert slots(nodes, Gang("H100", 2, group_gpus=2, spares_per_group=1)) == [
        ["n1#0", "n1#1", "n2#0"]
    ]
    assert slots(nodes[:1], Gang("H100", 2, group_gpus=2, spares_per_group=1)) == [
        ["n1#0", "n1#1", "n1#2"]
    ]


def test_the_fullest_node_comes_before_the_fullest_domain() -> None:
    """Of all domains that have room, just enough included, for the spares as well."""
    nodes = [node("a", 3, domain="d1"), node("b", 5, domain="d1"), node("c", 4, domain="d2")]
    assert slots(nodes, Gang("H100", 3)) == [["a#0", "a#1", "a#2"]]
    spared = Gang("H100", 3, group_gpus=3, spares_per_group=1)
    assert slots(nodes, spared) == [["a#0", "a#1", "a#2", "b#0"]]
    assert slots(nodes[2:], spared) == [["c#0", "c#1", "c#2", "c#3"]]


def test_a_gang_without_groups_is_scattered_over_few_nodes() -> None:
    """In its location first, as far as there is room, and the rest wherever it fits."""
    nodes = [
        node("a", 1, region="w", domain="d1"),
        node("b", 3, region="w", domain="d2"),
        node("c", 2, region="e", domain="d3"),
        node("d", 4, region="e", domain="d4"),
    ]
    gang = Gang("H100", 7, location={"region": "w"}, elsewhere=True)
    assert slots(nodes, gang) == [["b#0", "b#1", "b#2", "a#0", "d#0", "d#1", "d#2"]]


def test_a_domain_with_just_enough_room_is_filled() -> None:
    """Its spare included."""
    nodes = [node("x", 4, domain="d1"), node("y", 5, domain="d2")]
    assert slots(nodes, Gang("H100", 3, group_gpus=3, spares_per_group=1)) == [
        ["x#0", "x#1", "x#2", "x#3"]
    ]


def test_a_spare_keeps_off_a_node_whatever_its_name_has_in_it() -> None:
    nodes = [node("a#b", 3), node("c", 4)]
    assert slots(nodes, Gang("H100", 2, group_gpus=2, spares_per_group=1)) == [
        ["a#b#0", "a#b#1", "c#0"]
    ]
