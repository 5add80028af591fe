"""The eBPF plane as a world of the conformance suite: this process is the client, in the cgroup."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fairlead.core.traffic.sighting import Liveness
from fairlead.dataplane.ebpf import EbpfDataplane
from fairlead.ports.dataplane import Dataplane
from tests.dataplane.ebpf.places import Place, grow_old
from tests.dataplane.worlds import AGES, RealWorld


class EbpfWorld(RealWorld):
    """Programs in the kernel."""

    def __init__(self, place: Place) -> None:
        self._place = place
        super().__init__()

    def open(self) -> Dataplane:
        return self._place.plane()

    def opener(self) -> tuple[str, Mapping[str, Any]]:
        # The suite opens a plane in this process first, and an agent has it for itself.
        self.plane.detach()
        return "tests.dataplane.ebpf.world:ebpf", {
            "cgroup": str(self._place.cgroup),
            "pins": str(self._place.pins),
        }

    def age(self, liveness: Liveness) -> None:
        assert isinstance(self.plane, EbpfDataplane)
        grow_old(self.plane, AGES[liveness] / 1000)

    def left(self) -> list[str]:
        there = [str(self._place.pins)] if self._place.pins.exists() else []
        return there + self._listening()


def ebpf(cgroup: str, pins: str) -> Dataplane:
    """Open the eBPF plane."""
    return EbpfDataplane(Path(cgroup), Path(pins))


@contextlib.contextmanager
def inside(cgroup: Path) -> Iterator[None]:
    """This process in a cgroup, and afterwards where it was."""
    fields = (line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines())
    was = next(path for number, _, path in fields if number == "0")
    mount = cgroup.parent
    (cgroup / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield
    finally:
        (mount / was.lstrip("/") / "cgroup.procs").write_text(str(os.getpid()))
