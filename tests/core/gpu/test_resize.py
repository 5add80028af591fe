"""Which leases end and begin when a run shrinks or loses a node."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.gpu import ResizeRequest, Role, RunLease, Shrink, Swap, resize
from fairlead.core.gpu.resize import EndedLease, NewLease, Resize
from fairlead.core.reasons import ResizeReason
from fairlead.schema.border import BadInput
from fairlead.schema.gpu import STYLE
from fairlead.schema.kinds import KINDS


@st.composite
def gangs(draw: st.DrawFn) -> tuple[RunLease, ...]:
    """Groups with spares on a few nodes, split over leases as payers would; some are leaving."""
    leases, ordinal = [], 0
    for group in range(draw(st.integers(1, 4))):
        ending = draw(st.sampled_from([None, None, "Shrink"]))
        for role, most in ((Role.ACTIVE, 3), (Role.SPARE, 2)):
            for _ in range(draw(st.integers(1 if role is Role.ACTIVE else 0, 2))):
                slots = []
                for _ in range(draw(st.integers(1, most))):
                    slots.append(f"n{draw(st.integers(0, 2))}#{ordinal}")
                    ordinal += 1
                lease = RunLease(f"l{len(leases)}", role, group, tuple(slots), ending)
                leases.append(lease)
    return tuple(leases)


def widths(leases: list[tuple[Role, int, int]]) -> dict[int, int]:
    found: dict[int, int] = {}
    for role, group, gpus in leases:
        found[group] = found.get(group, 0) + (gpus if role is Role.ACTIVE else 0)
    return found


@given(gangs(), st.randoms(use_true_random=False))
def test_spares_replace_a_node_group_by_group(leases: tuple[RunLease, ...], chance: Any) -> None:
    """Every group that stays is as wide as before and off the node; or nothing is done."""
    asked = ResizeRequest(Swap("n0"), leases)
    found, by_id = resize(asked), {lease.id: lease for lease in leases}
    ended = {row.lease for row in found.ended}
    kept = [lease for lease in leases if lease.id not in ended and not lease.ending]
    if found.reason is ResizeReason.NO_SPARES:
        assert (found.ended, found.begun, found.width) == ((), (), asked.width)
    else:
        assert all(slot.split("#")[0] != "n0" for row in found.begun for slot in row.slots)
        assert all(slot.split("#")[0] != "n0" for lease in kept for slot in lease.slots)
        after = [(lease.role, lease.group, len(lease.slots)) for lease in kept]
        after += [(row.role, by_id[row.of].group, len(row.slots)) for row in found.begun]
        staying = [lease for lease in leases if not lease.ending]
        before = [(lease.role, lease.group, len(lease.slots)) for lease in staying]
        assert widths(after) == widths(before)
        assert {row.reason for row in found.ended} <= {"NodeFailed", "DropSpare", "Shrink"}
        given = [slot for row in found.begun for slot in row.slots]
        assert len(given) == len(set(given))
    kind, document = KINDS["gpu.resize"], STYLE.from_core(asked)
    first = kind.run(json.dumps(document).encode())
    chance.shuffle(document["leases"])
    assert first.result == kind.run(json.dumps(document).encode()).result
    assert first.result == STYLE.from_core(found)
    assert first.refused == (found.reason is not ResizeReason.RESIZED)


@given(gangs(), st.integers(1, 24), st.integers(1, 4), st.integers(1, 4))
def test_a_shrink_takes_whole_groups_from_the_highest_number(
    leases: tuple[RunLease, ...], width: int, least: int, step: int
) -> None:
    """To exactly the width, at least the minimum, by whole steps; or it is refused."""
    asked = ResizeRequest(Shrink(width, least, step), leases)
    found = resize(asked)
    if found.reason is not ResizeReason.RESIZED:
        assert found.ended == ()
        return
    assert least <= width == found.width < asked.width
    assert (asked.width - width) % step == 0
    ended = {row.lease for row in found.ended}
    gone = {lease.group for lease in leases if lease.id in ended}
    kept = {lease.group for lease in leases} - gone
    assert max(kept) < min(gone)
    assert ended == {lease.id for lease in leases if lease.group in gone}


@pytest.mark.parametrize(
    ("width", "least", "step", "reason"),
    [
        (2, 4, 2, ResizeReason.WIDTH),
        (8, 2, 2, ResizeReason.WIDTH),
        (5, 2, 2, ResizeReason.STEP),
        (6, 2, 2, ResizeReason.GROUPS),
        (4, 2, 2, ResizeReason.RESIZED),
    ],
)
def test_why_a_shrink_is_refused(width: int, least: int, step: int, reason: ResizeReason) -> None:
    """Two groups of four: to four, and to no other width."""
    leases = tuple(
        RunLease(f"l{group}", Role.ACTIVE, group, tuple(f"n#{4 * group + i}" for i in range(4)))
        for group in range(2)
    )
    found = resize(ResizeRequest(Shrink(width, least, step), leases))
    assert found.reason is reason
    if reason is ResizeReason.GROUPS:
        assert found.width == 4, "the next width that whole groups leave"


def test_repeated_leases_are_refused() -> None:
    lease = {"id": "l", "role": "active", "group": 0, "slots": ["n#0"]}
    document = {"change": {"type": "swap", "node": "n"}, "leases": [lease, lease]}
    with pytest.raises(BadInput, match=r"leases\[1\].id: repeats another lease's id, 'l'"):
        KINDS["gpu.resize"].run(json.dumps(document).encode())


def test_a_swap_leaves_alone_what_is_not_on_the_node() -> None:
    """Spares replace only as many as were lost, and the first of them; the rest stay spares."""
    leases = (
        RunLease("a", Role.ACTIVE, 0, ("n0#0", "n1#0", "n1#1")),
        RunLease("b", Role.SPARE, 0, ("n1#2", "n1#3")),
        RunLease("c", Role.SPARE, 0, ("n2#0",)),
        RunLease("d", Role.ACTIVE, 1, ("n2#1", "n2#2")),
        RunLease("e", Role.SPARE, 1, ("n0#1", "n2#3")),
        RunLease("f", Role.ACTIVE, 2, ("n0#2", "n2#4"), "Shrink"),
        RunLease("g", Role.SPARE, 2, ("n2#5",), "Shrink"),
        RunLease("h", Role.ACTIVE, 3, ("n2#6",), "Shrink"),
    )
    assert resize(ResizeRequest(Swap("n0"), leases)) == Resize(
        ResizeReason.RESIZED,
        6,
        (
            EndedLease("f", "Shrink"),
            EndedLease("g", "Shrink"),
            EndedLease("a", "NodeFailed"),
            EndedLease("b", "DropSpare"),
            EndedLease("e", "DropSpare"),
        ),
        (
            NewLease("a", Role.ACTIVE, ("n1#0", "n1#1")),
            NewLease("b", Role.ACTIVE, ("n1#2",)),
            NewLease("b", Role.SPARE, ("n1#3",)),
            NewLease("e", Role.SPARE, ("n2#3",)),
        ),
    )


def test_all_leases_of_a_group_are_swapped_together() -> None:
    """Behind one that is not on the node; a spare behind one that is not needed is on it."""
    leases = (
        RunLease("a", Role.ACTIVE, 0, ("n1#0",)),
        RunLease("b", Role.ACTIVE, 0, ("n0#0",)),
        RunLease("c", Role.ACTIVE, 0, ("n0#1",)),
        RunLease("d", Role.SPARE, 0, ("n1#1", "n1#2")),
        RunLease("e", Role.SPARE, 0, ("n1#3",)),
        RunLease("f", Role.SPARE, 0, ("n0#2", "n#x#4")),
    )
    found = resize(ResizeRequest(Swap("n0"), leases))
    assert [row.lease for row in found.ended] == ["b", "c", "d", "f"]
    assert found.begun == (
        NewLease("d", Role.ACTIVE, ("n1#1", "n1#2")),
        NewLease("f", Role.SPARE, ("n#x#4",)),
    )
    assert (found.reason, found.width) == (ResizeReason.RESIZED, 3)


def test_a_shrink_counts_no_spares_and_goes_down_to_the_minimum() -> None:
    leases = tuple(
        lease
        for group in range(3)
        for lease in (
            RunLease(f"a{group}", Role.ACTIVE, group, (f"n#{group}0", f"n#{group}1")),
            RunLease(f"s{group}", Role.SPARE, group, (f"n#{group}2",)),
        )
    )
    found = resize(ResizeRequest(Shrink(2, 2, 4), leases))
    assert (found.reason, found.width) == (ResizeReason.RESIZED, 2)
    assert [row.lease for row in found.ended] == ["a2", "s2", "a1", "s1"]
    assert resize(ResizeRequest(Shrink(4, 2, 4), leases)).reason is ResizeReason.STEP
    assert resize(ResizeRequest(Shrink(1, 2, 1), leases)).reason is ResizeReason.WIDTH


def test_steps_are_of_what_is_given_back() -> None:
    """From five to two by three."""
    leases = (
        RunLease("a", Role.ACTIVE, 0, ("n#0", "n#1")),
        RunLease("b", Role.ACTIVE, 1, ("n#2", "n#3", "n#4")),
    )
    found = resize(ResizeRequest(Shrink(2, 1, 3), leases))
    assert (found.reason, found.width) == (ResizeReason.RESIZED, 2)
