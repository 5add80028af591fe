"""Columns are checked like core's values: rubbish stops where it enters, by name and place."""

from dataclasses import replace

import numpy as np
import pytest

from fairlead.core.cpu import Pod, Policy, Snapshot, clear
from fairlead.core.units import OutOfRange
from fairlead.fleet import UNKNOWN, FleetSnapshot, Roster, clear_fleet

ROSTER = Roster.of([["a", "b"], [], ["a"]])


def small(**columns: object) -> FleetSnapshot:
    """Three nodes of two, no and one pod."""
    given = {
        "capacity_millicores": np.array([1000, 500, 300]),
        "min_millicores": np.array([100, 100, 50]),
        "max_millicores": np.array([900, 900, 400]),
        "demand": np.array([0.5, 0.9, 1.0]),
    }
    return FleetSnapshot.of(ROSTER, **(given | columns))  # type: ignore[arg-type]


def test_defaults_are_those_of_core() -> None:
    """Columns left out mean what fields left out mean in core."""
    assert small().to_snapshots() == [
        Snapshot(1000, (Pod("a", 100, 900, 0.5), Pod("b", 100, 900, 0.9))),
        Snapshot(500, ()),
        Snapshot(300, (Pod("a", 50, 400, 1.0),)),
    ]


def test_a_policy_for_all() -> None:
    """`of` puts every node under one policy, and what it builds clears as core clears it."""
    for policy in Policy:
        fleet = small(policy=policy)
        assert [node.policy for node in fleet.to_snapshots()] == [policy] * 3
        assert clear_fleet(fleet).to_plans() == [clear(node) for node in fleet.to_snapshots()]


@pytest.mark.parametrize(
    ("field", "values", "complaint"),
    [
        ("demand", [0.5, float("nan"), 1.0], r"demand\[1\]: must be between 0 and 1"),
        ("demand", [0.5, 1.5, 1.0], r"demand\[1\]"),
        ("demand", [0.5, 1.0], r"demand: must have the shape"),
        ("demand", [True, True, True], r"demand: must be a column of doubles"),
        ("weight", [1.0, -1.0, 1.0], r"weight\[1\]"),
        ("weight", [1.0, 1.0, float("inf")], r"weight\[2\]"),
        ("min_millicores", [1, 2, -1], r"min_millicores\[2\]: must be between 0 and 1000000000000"),
        ("min_millicores", [1.0, 2.0, 3.0], r"min_millicores: must be a column of int64"),
        ("usage_millicores", [UNKNOWN, 0, -2], r"usage_millicores\[2\]"),
        ("upper_millicores", [10**12 + 1, 0, 0], r"upper_millicores\[0\]"),
        ("signal_ok", [1, 0, 1], r"signal_ok: must be a column of booleans"),
        ("previous_mode", [0, 3, -1], r"previous_mode\[1\]"),
        ("hysteresis_band", [0.0, 2.0, 0.0], r"hysteresis_band\[1\]"),
        ("headroom", [[0.1, 0.1, 0.1, 9.0]] * 3, r"headroom\[0\]\[3\]"),
    ],
)
def test_rubbish_is_refused_by_name(field: str, values: list[object], complaint: str) -> None:
    """NaN, infinities, negative sizes, wrong lengths and types never reach a clearing."""
    with pytest.raises(OutOfRange, match=complaint):
        small(**{field: np.array(values)})


def test_unsigned_integers_are_refused() -> None:
    """uint64 would wrap around to a negative size."""
    with pytest.raises(OutOfRange, match="must be a column of int64"):
        small(max_millicores=np.array([2**63, 1, 1], dtype=np.uint64))


def test_columns_cannot_be_written_through_the_snapshot() -> None:
    """A snapshot is frozen; the caller's own array stays the caller's."""
    demand = np.array([0.5, 0.9, 1.0])
    fleet = small(demand=demand)
    with pytest.raises(ValueError, match="read-only"):
        fleet.demand[0] = 2.0
    demand[0] = 0.6


def test_a_column_can_be_replaced() -> None:
    """The next clearing of the same roster: new demands, nothing else."""
    later = replace(small(), demand=np.array([0.0, 0.0, 0.0]))
    assert later.node(2).pods[0].demand == 0


@pytest.mark.parametrize(
    ("uids", "complaint"),
    [
        ([["b", "a"]], r"uids\[1\]: must be above"),
        ([["a", "a"]], r"uids\[1\]: must be above"),
        ([["a"], ["\ud800"]], r"uids\[1\]: must be valid Unicode"),
    ],
)
def test_rosters_ascend(uids: list[list[str]], complaint: str) -> None:
    """Position settles ties, so a roster out of order or with repeats is refused."""
    with pytest.raises(OutOfRange, match=complaint):
        Roster.of(uids)


def test_uids_ascend_by_code_point_within_a_node_only() -> None:
    """Astral characters come after the private use area; every node starts anew."""
    roster = Roster.of([["A", "z", "\ufffd", "\U0001f600"], ["a"]])
    assert roster.counts.tolist() == [4, 1]
    with pytest.raises(OutOfRange, match=r"uids\[1\]: must be a non-empty string"):
        Roster.of([["a"], [""]])


@pytest.mark.parametrize("offsets", [[], [1, 2], [0, 2, 1, 2], [0, 3]])
def test_offsets_cover_the_uids(offsets: list[int]) -> None:
    """They start at 0, never fall and end at the number of uids."""
    with pytest.raises(OutOfRange, match="offsets"):
        Roster(np.array(offsets, dtype=np.int64), ("a", "b"))
