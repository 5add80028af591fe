"""Properties of placement."""

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.gpu.place import Gang, Node, place


@st.composite
def fleets(draw: st.DrawFn) -> list[Node]:
    return [
        Node(
            f"n{i}",
            draw(st.sampled_from(["H100", "H100", "A100"])),
            {
                "domain": draw(st.sampled_from(["d1", "d2", "d3"])),
                "region": draw(st.sampled_from(["w", "e"])),
            },
            tuple(sorted(draw(st.sets(st.integers(0, 7))))),
            draw(st.integers(0, 9)) == 0,
        )
        for i in range(draw(st.integers(0, 8)))
    ]


gangs = st.builds(
    Gang,
    st.just("H100"),
    st.integers(1, 24),
    st.none() | st.integers(1, 8),
    st.integers(0, 2),
    st.sampled_from([{}, {"region": "w"}]),
    st.booleans(),
)


@settings(max_examples=150, deadline=None)
@given(fleets(), gangs, st.randoms())
def test_what_is_placed_is_free_whole_and_the_same_in_any_order(nodes, gang, random) -> None:
    """Every device was free and given once; groups keep to a domain; order does not matter."""
    found = place(nodes, gang)
    shuffled = list(nodes)
    random.shuffle(shuffled)
    assert place(shuffled, gang) == found
    if not found.placed:
        assert not found.groups
        return
    by_name = {node.name: node for node in nodes}
    given_out = [slot for group in found.groups for slot in (*group.active, *group.spares)]
    assert len(set(given_out)) == len(given_out)
    for slot in given_out:
        name, _, ordinal = slot.partition("#")
        node = by_name[name]
        assert int(ordinal) in node.free
        assert node.flavor == "H100"
        assert not node.cordoned
        assert gang.elsewhere or node.is_in(gang.location)
    assert [len(group.active) for group in found.groups] == gang.groups()
    assert all(len(group.spares) == gang.spares_per_group for group in found.groups)
    if gang.group_gpus is not None:
        for group in found.groups:
            assert (
                len(
                    {
                        by_name[slot.partition("#")[0]].domain
                        for slot in (*group.active, *group.spares)
                    }
                )
                == 1
            )


@settings(max_examples=100, deadline=None)
@given(fleets(), st.integers(1, 6), st.integers(1, 6))
def test_equal_groups_are_placed_whenever_they_fit_into_domains(nodes, size, count) -> None:
    """Greedy is never wrong about whole domains."""
    rooms: dict[tuple[str, ...], int] = {}
    for node in nodes:
        if node.flavor == "H100" and not node.cordoned:
            rooms[node.domain] = rooms.get(node.domain, 0) + len(node.free)
    fits = sum(room // size for room in rooms.values()) >= count
    assert place(nodes, Gang("H100", size * count, group_gpus=size)).placed == fits
