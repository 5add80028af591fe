"""Whether a run without funding starts: an envelope, no funded run that waits, devices."""

import json
from dataclasses import replace

import pytest

from fairlead.core.gpu import (
    Gang,
    Node,
    Overdraw,
    OverdrawRequest,
    OwnEnvelope,
    WaitingGang,
    overdraw,
    place,
)
from fairlead.core.reasons import OverdrawReason
from fairlead.schema.border import BadInput
from fairlead.schema.kinds import KINDS

NODE = Node("n1", "H100", {"region": "west"}, (0, 1))
OWN = (OwnEnvelope("z", "e"), OwnEnvelope("b", "e"))


def asked(*gangs: Gang, waiting: tuple[Gang, ...] = (), own: tuple[OwnEnvelope, ...] = OWN):
    rows = tuple(WaitingGang(f"w{i}", gang) for i, gang in enumerate(waiting))
    return OverdrawRequest("r", gangs or (Gang("H100", 2),), own, (NODE,), rows)


def test_it_starts_at_the_first_width_that_fits() -> None:
    found = overdraw(asked(Gang("H100", 4), Gang("H100", 2)))
    assert (found.starts, found.payer, found.gang) == (True, OWN[1], Gang("H100", 2))
    assert overdraw(asked(Gang("H100", 4))).reason is OverdrawReason.NO_DEVICES
    assert overdraw(asked(own=())).reason is OverdrawReason.NO_ENVELOPE


@pytest.mark.parametrize(
    ("gang", "waits"),
    [
        (Gang("H100", 8), True),
        (Gang("L4", 8), False),
        (Gang("H100", 8, location={"region": "east"}), False),
        (Gang("H100", 8, location={"region": "east"}, elsewhere=True), True),
    ],
)
def test_what_a_funded_run_could_use_is_left_to_it(gang: Gang, waits: bool) -> None:
    found = overdraw(asked(waiting=(gang,)))
    assert (found.waits_for == "w0") is waits
    assert found.starts is not waits


def test_devices_of_a_cordoned_node_are_not_free() -> None:
    """Nor does a funded run wait for them."""
    cordoned = replace(NODE, cordoned=True)
    found = overdraw(replace(asked(waiting=(Gang("H100", 8),)), nodes=(cordoned,)))
    assert found == Overdraw(OverdrawReason.NO_DEVICES)


def test_it_says_which_funded_run_it_waits_for() -> None:
    """The first by name of those that could use what is free."""
    rows = tuple(WaitingGang(name, Gang("H100", 8)) for name in ("c", "b"))
    found = overdraw(replace(asked(), waiting=rows))
    assert found == Overdraw(OverdrawReason.FUNDED_RUN_WAITS, waits_for="b")


def test_it_is_placed_on_what_is_free() -> None:
    found = overdraw(asked())
    assert found.placement == place((NODE,), Gang("H100", 2))


def test_a_node_and_a_waiting_run_are_named_once() -> None:
    rows = (WaitingGang("w", Gang("H100", 8)),) * 2
    faults = replace(asked(), nodes=(NODE, NODE), waiting=rows).faults()
    assert [str(fault) for fault in faults] == [
        "nodes[1].name: repeats another node's name, 'n1'",
        "waiting[1].run: repeats another waiting's run, 'w'",
    ]


def test_no_width_is_bad_input() -> None:
    given = {"run": "r", "gangs": [], "envelopes": [], "nodes": []}
    with pytest.raises(BadInput, match="gangs: must have at least 1 item"):
        KINDS["gpu.overdraw"].run(json.dumps(given).encode())
