"""Owner recall: what helps and no more, in the documented order; any order of the input."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.gpu import (
    Book,
    Budget,
    Envelope,
    Families,
    GangShape,
    LentLease,
    Node,
    RecallRoom,
    Request,
    Usage,
    could_cover,
    cover,
    recall,
    relation_of,
)
from fairlead.core.gpu.model import Lending, Window
from fairlead.core.gpu.recall import Recall, RecalledLease, without
from fairlead.core.reasons import RecallReason
from fairlead.core.units import HOUR_MS
from fairlead.schema.border import BadInput
from fairlead.schema.kinds import KINDS

NOW = 1_767_225_600_000


def book(used: int, lent: int = 0) -> Book:
    own = Budget("a", "a", envelopes=(Envelope("e", "H100", 8),))
    return Book([own], {("a", "e"): Usage(used, lent_gpus=lent)})


def lent(name: str, gpus: int, relation: str = "sibling", age: int = 0) -> LentLease:
    who = RecallReason(relation)
    return LentLease(name, f"run-{name}", "b", who, "a", "e", gpus, NOW - age, 0)


def chosen(asked: int, *leases: LentLease, own: int = 0) -> list[str]:
    used = own + sum(lease.gpus for lease in leases)
    borrowed = sum(row.gpus for row in leases if row.relation is RecallReason.BORROWED)
    found = recall(book(used, borrowed), Request("a", "H100", asked), leases, NOW)
    return [row.lease for row in found.leases]


def test_the_order() -> None:
    rows = [lent(name, 1, name) for name in ("sibling", "child", "cousin", "borrowed")]
    assert chosen(8, *rows) == ["borrowed", "cousin", "child", "sibling"]
    assert chosen(6, *rows) == ["borrowed", "cousin"]
    young, old = lent("young", 1, age=1), lent("old", 1, age=2)
    assert chosen(7, old, young) == ["young"]
    assert chosen(7, lent("y", 1), lent("x", 1)) == ["x"], "ties go to the lower id"


def test_what_is_not_needed_keeps_its_funding() -> None:
    assert chosen(4, lent("a", 1, "borrowed"), lent("b", 3, "borrowed", 1), own=4) == ["a", "b"]
    assert chosen(3, lent("a", 1, "borrowed"), lent("b", 3, "borrowed", 1), own=4) == ["b"]
    assert chosen(1, lent("a", 4), own=3) == [], "it is covered"
    assert chosen(6, lent("a", 4), own=3) == [], "it would not help"


@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from(list(RecallReason)))), st.data())
def test_it_covers_and_each_one_is_needed(
    sizes: list[tuple[int, RecallReason]], data: st.DataObject
) -> None:
    leases = [lent(f"l{i}", gpus, who.value, i) for i, (gpus, who) in enumerate(sizes)]
    if sum(lease.gpus for lease in leases) > 8:
        return
    asked = data.draw(st.integers(1, 9))
    names = chosen(asked, *leases)
    assert chosen(asked, *data.draw(st.permutations(leases))) == names
    free = 8 - sum(lease.gpus for lease in leases)
    freed = {lease.id: lease.gpus for lease in leases if lease.id in names}
    if free >= asked or asked > 8:
        assert names == []
    else:
        assert free + sum(freed.values()) >= asked
        assert all(free + sum(freed.values()) - freed[name] < asked for name in names)


def test_promised_hours_are_freed_and_used_ones_are_not() -> None:
    hour = 3_600_000
    own = Budget("a", "a", envelopes=(Envelope("e", "H100", 8, max_hours_ms=10 * hour),))
    usage = {("a", "e"): Usage(4, 2 * hour, 6 * hour)}
    request = Request("a", "H100", 4, duration_ms=2 * hour)
    assert not cover(Book([own], usage), request, NOW).funded
    held = LentLease("l", "r", "b", RecallReason.SIBLING, "a", "e", 4, NOW, 6 * hour)
    assert recall(Book([own], usage), request, [held], NOW).gpus == 4


def test_relations() -> None:
    families = Families(
        Budget(owner, owner, parents)
        for owner, parents in (("a", ("lab",)), ("b", ("lab",)), ("kid", ("a",)), ("z", ()))
    )
    found = [relation_of(families, who, "a", borrowed=False).value for who in ("b", "kid", "z")]
    assert found == ["sibling", "child", "cousin"]
    assert relation_of(families, "b", "a", borrowed=True) is RecallReason.BORROWED


def test_a_lease_on_another_owners_envelope_is_bad_input() -> None:
    budget = {"name": "b", "owner": "b", "parents": [], "aggregate_caps": []}
    given = {"now": "2026-01-01T00:00:00Z", "usage": [], "budgets": [budget]}
    kind = KINDS["gpu.recall"]
    with pytest.raises(BadInput):
        kind.run(json.dumps(given).encode())


def test_what_could_be_covered_if_no_lease_took_gpus() -> None:
    """Use of GPUs ends with leases; hours that are used stay used."""
    limited = Envelope("e", "H100", 8, max_hours_ms=HOUR_MS)
    own = Budget("a", "a", envelopes=(limited,))
    for gpus, used_ms, could in ((8, 0, True), (9, 0, False), (8, HOUR_MS, False)):
        book = Book([own], {("a", "e"): Usage(8, used_ms)})
        request = Request("a", "H100", gpus)
        assert not cover(book, request, 0).funded
        assert could_cover(book, request, 0) is could
        assert book.used("a", "e").gpus == 8, "the book is as it was"


def test_the_one_recalled_last_is_kept_first_where_it_is_not_needed() -> None:
    rows = [lent("a", 1, "borrowed"), lent("b", 1, "borrowed", 1), lent("c", 3, "borrowed", 2)]
    assert chosen(4, *rows, own=3) == ["a", "c"]


def test_a_recalled_lease_is_named_with_its_run_and_relation() -> None:
    found = recall(book(8), Request("a", "H100", 2), [lent("x", 2, "child"), lent("y", 6)], NOW)
    assert found.leases == (RecalledLease("x", "run-x", 2, RecallReason.CHILD),)
    assert found.gpus == 2


def test_only_a_borrowed_lease_takes_from_what_is_lent() -> None:
    used = Book([], {("a", "e"): Usage(6, 5, 40, 4, 3, 20)})
    held = [replace(lent("x", 2, "borrowed"), held_ms=7), replace(lent("y", 1), held_ms=3)]
    assert without(used, held).used("a", "e") == Usage(3, 5, 30, 2, 3, 13)
    assert used.used("a", "e") == Usage(6, 5, 40, 4, 3, 20), "the book is as it was"


def test_a_window_that_is_over_is_not_recalled_for() -> None:
    own = Budget("a", "a", envelopes=(Envelope("e", "H100", 8, window=Window(0, NOW)),))
    taken = Book([own], {("a", "e"): Usage(8)})
    request = Request("a", "H100", 2)
    assert recall(taken, request, [lent("x", 2)], NOW - 1).gpus == 2
    assert recall(taken, request, [lent("x", 2)], NOW) == Recall()


def rooms(*free: int, group_gpus: int | None = None, spares: int = 0) -> RecallRoom:
    nodes = tuple(
        Node(f"n{i}", "H100", {"domain": f"d{i}"}, tuple(range(gpus)))
        for i, gpus in enumerate(free)
    )
    return RecallRoom(nodes, GangShape(group_gpus, spares))


@pytest.mark.parametrize(
    ("room", "gpus"),
    [
        (None, 8),
        (rooms(8), 8),
        (rooms(4, 4), 8),
        (rooms(7), 0),
        (rooms(), 0),
        (rooms(8, group_gpus=8), 8),
        (rooms(4, 4, group_gpus=8), 0),
        (rooms(4, 4, group_gpus=3, spares=1), 8),
    ],
)
def test_nothing_is_recalled_for_a_request_that_finds_no_room(
    room: RecallRoom | None, gpus: int
) -> None:
    """If every lease had ended; version 1 did not ask. The nodes that decide decide the same."""
    leases = [lent("x", 8)]
    request = Request("a", "H100", 8)
    assert recall(book(8), request, leases, NOW, room).gpus == gpus
    if room is not None:
        narrow = room.deciding(without(book(8), leases), request, NOW)
        assert all(node in room.nodes for node in narrow.nodes)
        assert recall(book(8), request, leases, NOW, narrow).gpus == gpus


def test_a_malleable_request_needs_room_for_its_minimum() -> None:
    leases = [lent("x", 8)]
    request = Request("a", "H100", 8, min_gpus=4, step_gpus=4)
    taken = book(8)
    assert recall(taken, request, leases, NOW, rooms(4)).gpus == 8
    assert recall(taken, request, leases, NOW, rooms(3)) == Recall()


def test_a_room_names_no_node_twice() -> None:
    with open("tests/golden/gpu.recall.jsonl") as file:
        document = json.loads(file.readline())["input"]
    node = {"name": "n", "flavor": "H100", "location": {}, "free": [0]}
    shape = {"group_gpus": None, "spares_per_group": 0}
    document["room"] = {"nodes": [node, node], "shape": shape}
    with pytest.raises(BadInput, match=r"room\.nodes\[1\]\.name: repeats another"):
        KINDS["gpu.recall"].run(json.dumps(document).encode())


def test_what_could_be_covered_if_no_lease_took_a_loan() -> None:
    """What is lent comes back with the leases, to an envelope that is open now."""
    lends = Lending(True, ("*",), max_gpus=2)
    rich = Envelope("e", "H100", 8, window=Window(0, 10), lending=lends)
    book = Book([Budget("s", "s", envelopes=(rich,))], {("s", "e"): Usage(2, lent_gpus=2)})
    request = Request("t", "H100", 2, allow_borrow=True, sponsors=("s",))
    assert not cover(book, request, 5).funded
    assert could_cover(book, request, 5)
    assert not could_cover(book, request, 10)


def test_a_room_is_looked_at_with_what_is_open_then_and_on_the_nodes_that_decide() -> None:
    """Of two nodes that are alike the first; one that is too small decides nothing."""
    own = Budget("a", "a", envelopes=(Envelope("e", "H100", 8, window=Window(0, NOW + 1)),))
    taken, leases = Book([own], {("a", "e"): Usage(8)}), [lent("x", 8)]
    request, room = Request("a", "H100", 8), rooms(8, 8, 4)
    narrow = room.deciding(without(taken, leases), request, NOW)
    assert narrow == replace(room, nodes=room.nodes[:1])
    assert recall(taken, request, leases, NOW, narrow).gpus == 8
