"""What several clients are told while the control plane is killed has one order; and the checker
finds each kind of history that has none."""

import math
from collections.abc import Sequence

import pytest

from tests.e2e.histories import check_leases, check_objects, device, register
from tests.linearizability import Operation, linearizable


def read(begin: float, end: float, answer: int | str | None) -> Operation:
    return Operation(begin, end, "read", None, answer)


def write(begin: float, end: float, value: int) -> Operation:
    return Operation(begin, end, "write", value, end != math.inf)


def swap(begin: float, end: float, expected: int | None, value: int, *, done: bool) -> Operation:
    return Operation(begin, end, "swap", (expected, value), done)


@pytest.mark.parametrize(
    "history",
    [
        pytest.param([write(0, 1, 7), read(2, 3, None)], id="an acknowledged write is gone"),
        pytest.param(
            [write(0, 1, 7), write(2, 3, 8), read(4, 5, 7)], id="a read that is out of date"
        ),
        pytest.param(
            [write(0, 9, 7), read(1, 2, 7), read(3, 4, None)],
            id="a read that is older than an earlier one",
        ),
        pytest.param(
            [write(0, 1, 7), swap(2, 4, 7, 8, done=True), swap(2, 4, 7, 9, done=True)],
            id="two conditional writes on one version",
        ),
        pytest.param(
            [write(0, 1, 7), swap(2, 3, 7, 8, done=False)], id="a conditional write that is refused"
        ),
        pytest.param(
            [write(0, 1, 7), Operation(2, 3, "delete", None, answer=True), read(4, 5, 7)],
            id="a deletion that is undone",
        ),
        pytest.param([read(0, 1, 7), write(2, math.inf, 7)], id="a read before the write"),
        pytest.param(
            [write(0, math.inf, 7), read(1, 2, 7), read(3, 4, None), read(5, 6, 7)],
            id="an unanswered write that happened twice",
        ),
    ],
)
def test_a_history_without_an_order_is_found(history: Sequence[Operation]) -> None:
    assert not linearizable(history, register, None)


@pytest.mark.parametrize(
    "history",
    [
        pytest.param([write(0, 5, 7), write(1, 6, 8), read(7, 8, 7)], id="concurrent writes"),
        pytest.param([write(0, math.inf, 7), read(5, 6, None)], id="no answer, not done"),
        pytest.param(
            [write(0, math.inf, 7), read(5, 6, None), read(7, 8, 7)], id="no answer, done late"
        ),
        pytest.param([write(0, 5, 7), read(1, 2, 7), read(3, 4, 7)], id="seen before the answer"),
    ],
)
def test_a_history_with_an_order_is_accepted(history: Sequence[Operation]) -> None:
    assert linearizable(history, register, None)


def test_devices_are_read_in_the_order_of_the_ledger() -> None:
    order = (None, "l1", None, "l2")
    moves = [Operation(0, math.inf, "move", i) for i in (1, 2, 3)]
    told = [read(1, 2, "l1"), read(3, 4, None), read(5, 6, "l2")]
    assert linearizable([*moves, *told], device(order), 0)
    again = [read(1, 2, "l2"), read(3, 4, "l1")]
    assert not linearizable([*moves, *again], device(order), 0), "a lease that was closed"
    assert not linearizable([*moves, read(1, 2, "l3")], device(order), 0), "one that never was"


def test_objects_are_linearizable_while_the_control_plane_is_killed() -> None:
    """Each operation on an object is one step between its call and its answer."""
    assert check_objects(2, seed=1)["operations"] > 20


def test_reads_of_leases_are_linearizable_while_the_control_plane_is_killed() -> None:
    """A device that was read as free, or as another run's, is never read as the earlier one's."""
    assert check_leases(1, seed=1)["moves"] > 3
