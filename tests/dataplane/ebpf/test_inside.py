"""What is inside, as the kernel counts it: whichever way a connection ends, it is out, once."""

import contextlib
import socket
from collections.abc import Iterator

import pytest

from fairlead.dataplane.ebpf import EbpfDataplane
from tests.dataplane.ebpf.counting import VIP, VIP6, Counts, counts_of, wait, web
from tests.dataplane.ebpf.places import Place, Talker, group, own_cgroup
from tests.dataplane.tables import table

pytestmark = pytest.mark.component("ebpf")


@pytest.fixture
def counts(place: Place, plane: EbpfDataplane) -> Counts:
    return counts_of(place, plane)


@contextlib.contextmanager
def full_listener() -> Iterator[int]:
    """A port whose queue is full: who connects waits."""
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        yield full.getsockname()[1]


@pytest.mark.parametrize("vip", [VIP, VIP6])
def test_kept_and_closed(
    place: Place, plane: EbpfDataplane, client: Talker, counts: Counts, vip: str
) -> None:
    """Closed by the server alone a connection is still there; closed by us it is not."""
    plane.configure([web(place, vip=vip)])
    client.do("hold", host=vip, port=80, count=8)
    assert counts() == (8, [2, 2, 2, 2])
    client.do("tcp", host=vip, port=80, count=40)
    assert counts() == (8, [2, 2, 2, 2])
    client.do("let_go")
    assert counts() == (0, [0, 0, 0, 0])


def test_refused_by_the_backend(
    place: Place, plane: EbpfDataplane, client: Talker, counts: Counts
) -> None:
    """Also while the application keeps the socket, and tries it again and again."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        plane.configure([group("web", VIP, 80, {"bad": closed.getsockname()[1]})])
        plane.apply(table("web", 1, {"bad": 1}, inside_max=1), decision=1)
        assert client.do("tcp", host=VIP, port=80, count=5) == ["ECONNREFUSED"] * 5
        assert client.do("again", host=VIP, port=80, count=3) == ["ECONNREFUSED"] * 3
        assert counts() == (0, [0])
        client.do("let_go")


def test_given_up_while_connecting(plane: EbpfDataplane, client: Talker, counts: Counts) -> None:
    with full_listener() as port:
        plane.configure([group("web", VIP, 80, {"full": port})])
        for _ in range(3):
            client.do("begin", host=VIP, port=80)
        assert counts() == (3, [3])
        client.do("let_go")
        assert counts() == (0, [0])


def test_failed_before_it_began(plane: EbpfDataplane, client: Talker, counts: Counts) -> None:
    """The kernel does not connect TCP to a broadcast address, and sockops does not hear of it. A
    socket that tries again is one, and not in its own way."""
    plane.configure([group("web", VIP, 80, {"nowhere": 80}, host="255.255.255.255")])
    plane.apply(table("web", 1, {"nowhere": 1}, inside_max=1), decision=1)
    assert client.do("tcp", host=VIP, port=80, count=3) == ["ENETUNREACH"] * 3
    assert counts() == (0, [0])
    assert client.do("again", host=VIP, port=80, count=3) == ["ENETUNREACH"] * 3
    assert counts() == (1, [1])
    assert client.do("tcp", host=VIP, port=80) == ["EAGAIN"]
    client.do("let_go")
    assert counts() == (0, [0])


def test_a_socket_that_goes_elsewhere_is_not_inside(
    place: Place, plane: EbpfDataplane, counts: Counts
) -> None:
    """It failed at a backend and is then used for another destination."""
    plane.configure([group("web", VIP, 80, {"nowhere": 80}, host="255.255.255.255")])
    client = place.client()
    assert client.do("again", host=VIP, port=80, count=1) == ["ENETUNREACH"]
    assert counts() == (1, [1])
    client.do("last_goes_to", host="127.0.0.1", port=place.ports[0])
    assert counts() == (0, [0])
    client.kill()
    assert counts() == (0, [0])


def test_a_killed_client(place: Place, plane: EbpfDataplane, counts: Counts) -> None:
    """kill -9, with connections that stand and some that were being made."""
    with full_listener() as port:
        plane.configure([group("web", VIP, 80, {"a": place.ports[0], "full": port})])
        client = place.client()
        plane.apply(table("web", 1, {"a": 1, "full": 0}), decision=1)
        client.do("hold", host=VIP, port=80, count=4)
        plane.apply(table("web", 2, {"a": 0, "full": 1}), decision=1)
        client.do("begin", host=VIP, port=80)
        assert counts() == (5, [4, 1])
        client.kill()
        wait(counts, 0)


def test_a_backend_that_left_and_came_back(
    place: Place, plane: EbpfDataplane, client: Talker, counts: Counts
) -> None:
    """Its connections leave the group with it, and their end is nobody's when it is back."""
    plane.configure([web(place, ("a", "b"))])
    client.do("hold", host=VIP, port=80, count=6)
    assert counts() == (6, [3, 3])
    plane.configure([web(place, ("b",))])
    assert counts() == (3, [3])
    plane.configure([web(place, ("a", "b"))])
    plane.apply(table("web", 1, {"a": 1, "b": 0}), decision=1)
    assert sorted(counts()[1]) == [0, 3]
    other = place.client()
    assert other.do("hold", host=VIP, port=80, count=2) == ["0"] * 2
    assert counts()[0] == 5
    client.do("let_go")
    assert counts() == (2, [2, 0])
    other.kill()
    wait(counts, 0)


def test_a_group_that_left_and_came_back(
    place: Place, plane: EbpfDataplane, client: Talker, counts: Counts
) -> None:
    plane.configure([web(place)])
    client.do("hold", host=VIP, port=80, count=6)
    plane.configure([])
    plane.configure([web(place)])
    assert counts() == (0, [0, 0, 0, 0])
    client.do("let_go")
    assert counts() == (0, [0, 0, 0, 0])


def test_without_a_place_to_remember_it_a_connection_does_not_count(
    place: Place, client: Talker
) -> None:
    """Nobody would see its end. One place, so only the first counts."""
    plane = place.plane(capacity={"connections": 1})
    plane.configure([web(place)])
    counts = counts_of(place, plane)
    assert "EAGAIN" not in client.do("hold", host=VIP, port=80, count=5)
    assert (counts()[0], sum(counts()[1])) == (1, 1)
    client.do("let_go")
    assert (counts()[0], sum(counts()[1])) == (0, 0)


def test_a_plane_that_moves_to_another_cgroup_leaves_its_connections(
    place: Place, client: Talker
) -> None:
    """Where no program hangs nobody sees them end; they must not close the door for ever."""
    plane = place.plane()
    plane.configure([web(place, ("a",))])
    plane.apply(table("web", 1, {"a": 1}, inside_max=2), decision=1)
    client.do("hold", host=VIP, port=80, count=2)
    assert client.do("tcp", host=VIP, port=80) == ["EAGAIN"]
    plane.detach()
    with own_cgroup() as cgroup:
        moved = EbpfDataplane(cgroup, place.pins)
        assert moved.read()["web"].backends["a"].open == 0
        client.do("let_go")
        assert moved.read()["web"].backends["a"].open == 0
        moved.detach()
    back = place.plane()
    assert client.do("hold", host=VIP, port=80, count=3) == ["0", "0", "EAGAIN"]
    assert back.read()["web"].backends["a"].open == 2
    client.do("let_go")
