"""Datagrams: sent to a backend, answered as if by the address that was asked."""

import ctypes
import time
from collections import Counter

import pytest

from fairlead.core.traffic.state import AdmissionMode
from fairlead.dataplane.ebpf import EbpfDataplane
from fairlead.dataplane.ebpf.kernel import BpfMap, facts, pinned
from fairlead.ports.dataplane import Proto
from tests.dataplane.ebpf.places import Place, Talker, group, limited
from tests.dataplane.tables import table

pytestmark = pytest.mark.component("ebpf")


@pytest.mark.parametrize("vip", ["127.99.0.1", "fd99::1"])
def test_every_datagram_of_an_unconnected_socket_is_routed(
    plane: EbpfDataplane, place: Place, client: Talker, vip: str
) -> None:
    """Split exactly, and the answer's source is the address that was asked."""
    ports = place.ports6 if ":" in vip else place.ports
    plane.configure([group("names", vip, 53, {"b0": ports[0], "b1": ports[1]}, Proto.UDP)])
    plane.apply(table("names", 1, {"b0": 3, "b1": 1}), decision=1)
    answers = client.do("udp", host=vip, port=53, count=8)
    assert Counter(text.split()[0] for text, _ in answers) == {"0": 6, "1": 2}
    assert {tuple(source) for _, source in answers} == {(vip, 53)}
    seen = plane.read()["names"]
    assert (seen.admitted, seen.backends["b0"].admitted) == (8, 6)
    assert seen.backends["b0"].connect_failures is None


def test_one_socket_may_ask_several_groups_and_others(
    plane: EbpfDataplane, place: Place, client: Talker
) -> None:
    """Each answer has the source that its question was sent to; strangers keep theirs."""
    plane.configure(
        [
            group("a", "127.99.0.1", 53, {"b0": place.ports[0]}, Proto.UDP),
            group("b", "127.99.0.2", 53, {"b1": place.ports[1]}, Proto.UDP),
        ]
    )
    targets = [["127.99.0.1", 53], ["127.99.0.2", 53], ["127.0.0.1", place.ports[2]]]
    answers = client.do("udp_one_socket", targets=targets)
    assert answers == [
        ["0 x", ["127.99.0.1", 53]],
        ["1 x", ["127.99.0.2", 53]],
        ["2 x", ["127.0.0.1", place.ports[2]]],
    ]


@pytest.mark.parametrize("vip", ["127.99.0.1", "fd99::1"])
def test_a_connected_socket_stays_with_its_backend(
    plane: EbpfDataplane, place: Place, client: Talker, vip: str
) -> None:
    ports = place.ports6 if ":" in vip else place.ports
    plane.configure([group("names", vip, 53, {"b0": ports[0], "b1": ports[1]}, Proto.UDP)])
    for _ in range(4):
        told = client.do("udp_connected", host=vip, port=53)
        assert len({answer for answer, _ in told["seen"]}) == 1
        assert {tuple(source) for _, source in told["seen"]} == {(vip, 53)}
        assert told["peer"] == [vip, 53]
    assert plane.read()["names"].admitted == 4


def test_an_ipv4_group_is_found_through_an_ipv6_socket(
    plane: EbpfDataplane, place: Place, client: Talker
) -> None:
    plane.configure([group("names", "127.99.0.1", 53, {"b4": place.ports[4]}, Proto.UDP)])
    assert client.do("udp_mapped", host="127.99.0.1", port=53) == ["4 x", ["::ffff:127.99.0.1", 53]]


def test_datagrams_are_refused_with_an_errno(
    plane: EbpfDataplane, place: Place, client: Talker
) -> None:
    plane.configure([group("names", "127.99.0.1", 53, {"b0": place.ports[0]}, Proto.UDP)])
    plane.apply(table("names", 1, {"b0": 1}, limited(AdmissionMode.SOFT, 0, 1)), decision=1)
    told = [text for text, _ in client.do("udp", host="127.99.0.1", port=53, count=3)]
    assert told == ["0 0", "EAGAIN", "EAGAIN"]
    plane.apply(table("names", 2, {"b0": 1}, limited(AdmissionMode.HARD, 0, 0)), decision=1)
    assert client.do("udp", host="127.99.0.1", port=53)[0][0] == "ECONNREFUSED"


def test_a_backend_of_two_groups_answers_for_the_one_that_was_asked_last(
    plane: EbpfDataplane, place: Place, client: Talker
) -> None:
    plane.configure(
        [
            group(
                name,
                f"127.99.0.{name}",
                53,
                {"b0": place.ports[0], "b1": place.ports[1]},
                Proto.UDP,
            )
            for name in "12"
        ]
    )
    targets = [[f"127.99.0.{name}", 53] for name in "1122121122"]
    answers = client.do("udp_one_socket", targets=targets)
    assert [source for _, source in answers] == targets
    assert {text.split()[0] for text, _ in answers} == {"0", "1"}


def test_thousands_of_sockets_leave_nothing_behind(
    plane: EbpfDataplane, place: Place, client: Talker
) -> None:
    """Each socket's place is free again when it is closed, TCP, UDP, connected or not."""
    plane.configure(
        [
            group("web", "127.99.0.1", 80, {"b0": place.ports[0], "gone": 1}),
            group("names", "127.99.0.1", 53, {"b0": place.ports[0]}, Proto.UDP),
        ]
    )
    client.do("tcp", host="127.99.0.1", port=80, count=500)
    client.do("udp", host="127.99.0.1", port=53, count=500)
    for _ in range(20):
        client.do("udp_connected", host="127.99.0.1", port=53)
    held = pinned(place.pins / "live/map_origins")
    count = int(facts(held)["max_entries"])
    origins = BpfMap("origins", held, Origin)
    deadline = time.monotonic() + 60
    while any(each.cookie for each in origins.first(count)):  # the last FINs are on their way
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Origin(ctypes.Structure):
    """`struct origin`; the agent itself never reads it."""

    _fields_ = [("cookie", ctypes.c_uint64), ("rest", ctypes.c_uint8 * 56)]
