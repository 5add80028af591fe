"""Free devices: a few nodes of a large fleet decide a placement as all of them do."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.gpu import FreeDevices
from fairlead.core.gpu.place import Gang, Node, place

SIZES = (0, 1, 2, 2, 4, 4, 8, 8, 8)


@st.composite
def fleets(draw: st.DrawFn) -> list[Node]:
    """Many nodes with the same number of free devices, in a few domains and regions."""
    count = draw(st.integers(0, 40))
    sizes = draw(st.sampled_from([SIZES, (8,), (0, 4), (1, 2)]))
    domains = draw(st.sampled_from([("d1",), ("d1", "d2"), ("d1", "d2", "d3", "d4")]))
    random = draw(st.randoms(use_true_random=False))

    def one(number: int) -> Node:
        location = {"domain": random.choice(domains), "rack": random.choice("ab")}
        location["region"] = random.choice(("w", "w", "e"))
        free = tuple(sorted(random.sample(range(8), random.choice(sizes))))
        flavor = random.choice(("H100", "H100", "H100", "A100"))
        return Node(f"n{number}", flavor, location, free, random.randrange(12) == 0)

    return [one(number) for number in range(count)]


gangs = st.builds(
    Gang,
    st.just("H100"),
    st.integers(1, 24),
    st.none() | st.integers(1, 9),
    st.integers(0, 3),
    st.sampled_from([{}, {"region": "w"}, {"region": "*", "rack": "a"}]),
    st.booleans(),
)


@settings(max_examples=300, deadline=None)
@given(fleets(), gangs)
def test_candidates_decide_a_placement_as_all_nodes_do(nodes: list[Node], gang: Gang) -> None:
    """The same devices, or the same number of GPUs without a place."""
    devices = FreeDevices(nodes)
    few = devices.candidates(gang)
    assert place(few, gang) == place(nodes, gang) == devices.place(gang)
    assert [node.name for node in few] == sorted(node.name for node in few)
    assert {node.name for node in few} <= {node.name for node in nodes if node.free}


@settings(max_examples=60, deadline=None)
@given(fleets(), fleets(), gangs)
def test_nodes_that_change_are_as_if_they_had_always_been_so(
    before: list[Node], after: list[Node], gang: Gang
) -> None:
    devices = FreeDevices(before)
    devices.place(gang)
    for node in after:
        devices.put(node)
    for node in before[len(after) :]:
        devices.drop(node.name)
    fresh = FreeDevices(after)
    assert devices.nodes == fresh.nodes == sorted(after, key=lambda node: node.name)
    assert devices.candidates(gang) == fresh.candidates(gang)
    assert devices.place(gang) == fresh.place(gang)
    assert devices.gpus("H100") == fresh.gpus("H100")
    devices.drop("none of them")
    assert devices.place(gang) == fresh.place(gang)


def test_candidates_do_not_grow_with_the_fleet() -> None:
    """One GPU, four groups, four groups with spares: so many of each number of free devices."""
    domain = {"domain": "d"}
    fleet = [Node(f"n{i:04}", "H100", domain, tuple(range(1 + i % 8))) for i in range(4_000)]
    devices = FreeDevices(fleet)
    assert len(devices.candidates(Gang("H100", 1))) == 8
    assert len(devices.candidates(Gang("H100", 6))) == 3
    assert len(devices.candidates(Gang("H100", 32, group_gpus=8))) == 4
    assert len(devices.candidates(Gang("H100", 32, group_gpus=8, spares_per_group=1))) == 64


def test_where_a_group_spans_nodes_all_of_them_decide() -> None:
    """The domain is chosen by all the room that it has."""
    fleet = [Node(f"n{i}", "H100", {"domain": f"d{i % 3}"}, (0, 1)) for i in range(9)]
    assert FreeDevices(fleet).candidates(Gang("H100", 4)) == fleet
    away = [replace(node, location={"domain": "x", "region": "e"}) for node in fleet]
    assert FreeDevices(away).candidates(Gang("H100", 4, location={"region": "w"})) == []
    elsewhere = Gang("H100", 4, location={"region": "w"}, elsewhere=True)
    assert FreeDevices(away).candidates(elsewhere) == away


def test_all_nodes_are_by_name_also_after_a_change() -> None:
    late, early = (Node(name, "H100", {}, (0,)) for name in ("b", "a"))
    devices = FreeDevices([late])
    assert devices.nodes == devices.nodes == [late]
    devices.put(early)
    assert devices.nodes == [early, late]


def test_devices_that_are_given_back_are_free_beside_the_others() -> None:
    """On nodes that are named, whatever the names have in them; none changes nothing."""
    nodes = [Node("a#b", "H100", {}, (3,)), Node("c", "H100", {}, (1,))]
    devices = FreeDevices(nodes)
    assert devices.after([]) is devices
    found = devices.after(["a#b#1", "a#b#0"])
    assert [node.free for node in found.nodes] == [(0, 1, 3), (1,)]
    assert (found.gpus("H100"), found.gpus("A100")) == (4, 0)


def test_without_spares_nodes_of_all_domains_count_together() -> None:
    """Two groups of 4 go to two nodes of 4, wherever these are."""
    fleet = [Node(f"n{i}", "H100", {"domain": f"d{i}"}, (0, 1, 2, 3)) for i in range(3)]
    assert FreeDevices(fleet).candidates(Gang("H100", 8, group_gpus=4)) == fleet[:2]
