"""Whether a run without funding starts: an envelope, no funded run that waits, devices."""

import json

import pytest

from fairlead.core.gpu import Gang, Node, OverdrawRequest, OwnEnvelope, WaitingGang, overdraw
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


def test_no_width_is_bad_input() -> None:
    given = {"run": "r", "gangs": [], "envelopes": [], "nodes": []}
    with pytest.raises(BadInput, match="gangs: must have at least 1 item"):
        KINDS["gpu.overdraw"].run(json.dumps(given).encode())
