"""What every plane promises, of the eBPF plane."""

from collections.abc import Iterator

import pytest

from tests.dataplane.conformance import RealConformance
from tests.dataplane.ebpf.places import Place
from tests.dataplane.ebpf.world import EbpfWorld, inside

pytestmark = pytest.mark.component("ebpf")


@pytest.fixture
def world(place: Place) -> Iterator[EbpfWorld]:
    with inside(place.cgroup):
        made = EbpfWorld(place)
        yield made
        made.close()


class TestEbpf(RealConformance):
    """One suite for all planes."""
