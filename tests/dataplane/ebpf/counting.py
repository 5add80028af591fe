"""A group of four and what the kernel counts inside it, for the tests of counts and bounds."""

import ctypes
import time
from collections.abc import Callable

from fairlead.dataplane.ebpf import EbpfDataplane
from fairlead.dataplane.ebpf.kernel import BpfMap, pinned
from fairlead.ports.dataplane import RouteGroup
from tests.dataplane.ebpf.places import Place, group

VIP, VIP6 = "127.99.0.1", "fd99::1"
IDS = ("a", "b", "c", "d")
Counts = Callable[[], tuple[int, list[int]]]


def web(place: Place, ids: tuple[str, ...] = IDS, vip: str = VIP) -> RouteGroup:
    """Servers 0 to 3 by letter, or some of them."""
    ports = dict(zip(IDS, place.ports6 if ":" in vip else place.ports, strict=False))
    return group("web", vip, 80, {id: ports[id] for id in ids})


def counts_of(place: Place, plane: EbpfDataplane) -> Counts:
    """Reads what is inside `web`, and in each of its backends."""
    insides = BpfMap("insides", pinned(place.pins / "live/map_insides"), ctypes.c_int64)

    def read() -> tuple[int, list[int]]:
        _, registry = plane._open()
        seen = plane.read()["web"].backends.values()
        return insides[registry.placed["web"].index].value, [each.open or 0 for each in seen]

    return read


def wait(counts: Counts, inside: int) -> None:
    """The kernel follows a killed process by an instant."""
    deadline = time.monotonic() + 60
    while (found := counts()) and (found[0], sum(found[1])) != (inside, inside):
        assert time.monotonic() < deadline, found
        time.sleep(0.01)
