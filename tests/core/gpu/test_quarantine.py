"""Which devices hold memory that no run has."""

import json

from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.gpu import DeviceMemory, QuarantineRequest, quarantine
from fairlead.schema.kinds import KINDS

DEVICES = st.lists(
    st.builds(
        DeviceMemory,
        st.integers(0, 20).map(lambda i: f"n#{i}"),
        st.integers(0, 20),
        st.booleans(),
        st.booleans(),
    ),
    unique_by=lambda device: device.slot,
)


@given(DEVICES)
def test_a_device_is_quarantined_as_long_as_it_holds_what_no_run_has(
    devices: list[DeviceMemory],
) -> None:
    """Never one that is leased; in any order; and what was said is not said again."""
    found = quarantine(QuarantineRequest(tuple(devices), 10))
    for device in devices:
        dirty = device.memory_bytes > 10 and not device.leased
        clean = device.memory_bytes <= 10 and not device.leased
        assert (device.slot in found.quarantined) == (dirty and not device.quarantined)
        assert (device.slot in found.cleared) == (clean and device.quarantined)
    assert quarantine(QuarantineRequest(tuple(reversed(devices)), 10)) == found


def test_a_document_decides_the_same() -> None:
    devices = [{"slot": "n#0", "memory_bytes": 2**30}, {"slot": "n#1", "memory_bytes": 0}]
    found = KINDS["gpu.quarantine"].run(json.dumps({"devices": devices}).encode())
    assert found.result == {"quarantined": ["n#0"], "cleared": []}


def test_a_device_that_is_there_twice_is_refused_with_its_place() -> None:
    twice = QuarantineRequest(
        (DeviceMemory("n#0", 0), DeviceMemory("n#1", 0), DeviceMemory("n#0", 1))
    )
    (fault,) = twice.faults()
    assert str(fault).startswith("devices[2].slot: ")
