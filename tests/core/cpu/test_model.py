"""Values of core check themselves: a wrong unit stops where it enters, with the field's name."""

import math

import pytest

from fairlead.core.cpu import Headroom, Pod, Snapshot
from fairlead.core.units import OutOfRange

GOOD = {"uid": "a", "min_millicores": 100, "max_millicores": 900, "demand": 0.5}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("uid", 7),
        ("uid", "\ud800"),
        ("min_millicores", -1),
        ("min_millicores", True),
        ("min_millicores", 1.0),
        ("max_millicores", 10**12 + 1),
        ("max_millicores", None),
        ("headroom_misses", -1),
        ("demand", math.nan),
        ("demand", math.inf),
        ("demand", -0.1),
        ("demand", True),
        ("weight", math.nan),
        ("weight", math.inf),
        ("weight", -1),
        ("weight", 10**400),
        ("signal_ok", 1),
        ("usage_millicores", -1),
        ("current_millicores", 0.5),
        ("lower_millicores", "1"),
        ("upper_millicores", False),
    ],
)
def test_a_pod_refuses_what_its_units_do_not_allow(field: str, value: object) -> None:
    """Each field names itself."""
    with pytest.raises(OutOfRange) as caught:
        Pod(**{**GOOD, field: value})  # type: ignore[arg-type]
    assert caught.value.field == field


def test_a_snapshot_refuses_repeated_uids() -> None:
    """The second one is named, and the first."""
    with pytest.raises(OutOfRange, match=r"pods\[2\].uid: repeats pods\[0\].uid, 'a'"):
        Snapshot(10, (Pod("a", 1, 2, 0.0), Pod("b", 1, 2, 0.0), Pod("a", 1, 2, 0.0)))


@pytest.mark.parametrize("field", ["capacity_millicores", "hysteresis_band"])
def test_a_snapshot_refuses_bad_numbers(field: str) -> None:
    """Capacity and band are checked like everything else."""
    with pytest.raises(OutOfRange, match=field):
        Snapshot(**{"capacity_millicores": 1, "pods": (), field: -1})  # type: ignore[arg-type]


def test_integers_are_welcome_where_numbers_are_meant() -> None:
    """demand=1 and weight=3 become doubles."""
    pod = Pod("a", 1, 2, 1, weight=3)
    assert (pod.demand, pod.weight) == (1.0, 3.0)


def test_a_headroom_refuses_what_is_no_share() -> None:
    with pytest.raises(OutOfRange, match="cap: must be between 0 and 1, got 2"):
        Headroom(cap=2)
