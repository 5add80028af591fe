"""Where connections go: real connects through the kernel to real servers."""

import errno
from collections import Counter

import pytest

from fairlead.dataplane.ebpf import EbpfDataplane
from fairlead.dataplane.ebpf.layout import endpoint
from fairlead.ports.dataplane import Proto
from fairlead.ports.faults import PermanentFault
from tests.dataplane.ebpf.places import Place, Talker, group
from tests.dataplane.tables import table

pytestmark = pytest.mark.component("ebpf")
VIP, VIP6 = "127.99.0.1", "fd99::1"
NUMBERS = {"b0": 0, "b1": 1, "b2": 2, "b3": 3, "b4": 4}


def servers(ports: list[int], *ids: str) -> dict[str, int]:
    """Backend ids to the ports of the servers with that number."""
    return {id: ports[NUMBERS[id]] for id in ids}


def test_connections_are_split_exactly(plane: EbpfDataplane, place: Place, client: Talker) -> None:
    """Any Σ connections in a row have the shares of the slots, to the connection."""
    plane.configure([group("web", VIP, 80, servers(place.ports, "b0", "b1", "b2", "b3"))])
    plane.apply(table("web", 1, {"b0": 150, "b1": 90, "b2": 16, "b3": 0}), decision=1)
    assert Counter(client.do("tcp", host=VIP, port=80, count=256)) == {"0": 150, "1": 90, "2": 16}
    client.do("tcp", host=VIP, port=80, count=77)  # also from the middle
    assert Counter(client.do("tcp", host=VIP, port=80, count=256)) == {"0": 150, "1": 90, "2": 16}
    seen = plane.read()["web"]
    assert seen.admitted == 256 + 77 + 256
    assert sum(each.admitted for each in seen.backends.values()) == seen.admitted
    assert (seen.refused_soft, seen.refused_hard, seen.epoch) == (0, 0, 1)


def test_before_the_first_table_everybody_gets_the_same(
    plane: EbpfDataplane, place: Place, client: Talker
) -> None:
    plane.configure([group("web", VIP, 80, servers(place.ports, "b0", "b1"))])
    assert Counter(client.do("tcp", host=VIP, port=80, count=256)) == {"0": 128, "1": 128}


def test_ipv6(plane: EbpfDataplane, place: Place, client: Talker) -> None:
    plane.configure([group("web", VIP6, 80, servers(place.ports6, "b0", "b1"))])
    plane.apply(table("web", 1, {"b0": 3, "b1": 1}), decision=1)
    assert Counter(client.do("tcp", host=VIP6, port=80, count=8)) == {"0": 6, "1": 2}
    assert client.do("keep", host=VIP6, port=80)["peer"] == [VIP6, 80]
    client.do("let_go")


def test_an_ipv4_group_is_found_through_an_ipv6_socket(
    plane: EbpfDataplane, place: Place, client: Talker
) -> None:
    plane.configure([group("web", VIP, 80, servers(place.ports, "b2"))])
    assert client.do("mapped", host=VIP, port=80) == {"heard": "2", "peer": [f"::ffff:{VIP}", 80]}


def test_the_peer_has_the_name_that_was_asked_for(
    plane: EbpfDataplane, place: Place, client: Talker
) -> None:
    plane.configure([group("web", VIP, 80, servers(place.ports, "b1"))])
    assert client.do("keep", host=VIP, port=80) == {"heard": "1", "peer": [VIP, 80]}
    # The same backend, asked for by its own name, keeps that name.
    direct = client.do("keep", host="127.0.0.1", port=place.ports[1])
    assert direct == {"heard": "1", "peer": ["127.0.0.1", place.ports[1]]}
    client.do("let_go")


def test_other_destinations_are_not_touched(
    plane: EbpfDataplane, place: Place, client: Talker
) -> None:
    """Another port, another address, another protocol, and a process outside the cgroup."""
    outsider = place.talker("tests.dataplane.ebpf.client", str(place.cgroup.parent))
    other = place.ports[4]
    # The groups' own ports are real servers elsewhere, so that a wrong turn would be heard.
    plane.configure(
        [
            group("web", "127.0.0.1", place.ports[0], servers(place.ports, "b3")),
            group("names", "127.99.0.1", other, servers(place.ports, "b3"), Proto.UDP),
        ]
    )
    assert client.do("tcp", host="127.0.0.1", port=place.ports[0]) == ["3"]
    assert client.do("tcp", host="127.0.0.1", port=other) == ["4"]
    assert client.do("tcp", host="127.99.0.1", port=place.ports[0]) == ["ECONNREFUSED"]
    assert client.do("tcp", host="127.99.0.1", port=other) == ["ECONNREFUSED"]
    assert client.do("udp", host="127.0.0.1", port=place.ports[0])[0][0] == "0 0"
    assert outsider.do("tcp", host="127.0.0.1", port=place.ports[0]) == ["0"]
    outsider.kill()
    assert plane.read()["web"].admitted == 1


def test_nothing_is_routed_outside_its_group(
    plane: EbpfDataplane, place: Place, client: Talker
) -> None:
    """Groups that share address, port or backends: each connection stays in its own."""
    plane.configure(
        [
            group("a", VIP, 80, servers(place.ports, "b0", "b1")),
            group("b", VIP, 81, servers(place.ports, "b2")),
            group("c", "127.99.0.2", 80, servers(place.ports, "b3", "b1")),
        ]
    )
    for epoch in range(1, 4):
        plane.apply(table("a", epoch, {"b0": 1, "b1": epoch}), decision=1)
        plane.apply(table("c", epoch, {"b3": epoch, "b1": 1}), decision=1)
    assert set(client.do("tcp", host=VIP, port=80, count=40)) == {"0", "1"}
    assert set(client.do("tcp", host=VIP, port=81, count=40)) == {"2"}
    assert set(client.do("tcp", host="127.99.0.2", port=80, count=40)) == {"3", "1"}
    seen = plane.read()
    assert [seen[name].admitted for name in "abc"] == [40, 40, 40]
    assert seen["a"].backends["b1"].admitted == 30


def test_hundreds_of_addresses_that_differ_in_one_place_are_told_apart(
    plane: EbpfDataplane, place: Place, client: Talker
) -> None:
    """256 entries in 256 hash buckets collide; whole tuples are compared, so nobody notices."""
    groups = [
        group(
            f"g{number}",
            f"127.99.{number // 16}.{number % 16 + 1}",
            80 + number % 3,
            {"x": place.ports[number % 5]},
        )
        for number in range(256)
    ]
    plane.configure(groups)
    heard = [client.do("tcp", host=each.vip, port=each.port)[0] for each in groups]
    assert heard == [str(number % 5) for number in range(256)]


def test_a_place_that_was_given_to_another_group_does_not_match(
    plane: EbpfDataplane, place: Place, client: Talker
) -> None:
    """An address that leads to another group's entry is left alone: the tuple is in the value."""
    plane.configure([group("web", VIP, 80, servers(place.ports, "b0"))])
    maps, registry = plane._open()
    astray = endpoint(VIP, 81, Proto.TCP)
    maps.vips[astray] = maps.vips[registry.placed["web"].vip]
    assert client.do("tcp", host=VIP, port=81) == ["ECONNREFUSED"]  # nobody listens there
    assert plane.read()["web"].admitted == 0


def test_a_backend_of_another_group_is_never_used(
    plane: EbpfDataplane, place: Place, client: Talker
) -> None:
    """A slot that leads to another group's backend lets nobody out: EAGAIN, and it is counted."""
    plane.configure(
        [
            group("a", VIP, 80, servers(place.ports, "b0")),
            group("b", VIP, 81, servers(place.ports, "b1")),
        ]
    )
    maps, registry = plane._open()
    entry = maps.backends[registry.placed["a"].at["b0"]]
    entry.group = registry.placed["b"].index + 1
    maps.backends[registry.placed["a"].at["b0"]] = entry
    assert client.do("tcp", host=VIP, port=80) == ["EAGAIN"]
    assert plane.read()["a"].refused_soft == 1


def test_nobody_to_go_to_is_refused(plane: EbpfDataplane, place: Place, client: Talker) -> None:
    """No backends, or no slots: ECONNREFUSED, counted."""
    plane.configure(
        [group("empty", VIP, 80, {}), group("idle", VIP, 81, servers(place.ports, "b0"))]
    )
    plane.apply(table("idle", 1, {"b0": 0}), decision=1)
    for port, name in ((80, "empty"), (81, "idle")):
        assert client.do("tcp", host=VIP, port=port) == ["ECONNREFUSED"]
        assert plane.read()[name].refused_hard == 1


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"vip": VIP6, "host": "127.0.0.1"}, r"groups\[0\].backends\[0\].host: must be IPv6"),
        ({"name": "x" * 129}, r"groups\[0\].name: must be 1 to 128 bytes, got 129"),
        ({"name": "a\0b"}, r"groups\[0\].name: must be 1 to 128 bytes"),
        ({"to": {"": 80}}, r"groups\[0\].backends\[0\].id: must be 1 to 128 bytes, got 0"),
        ({"vip": "::ffff:10.0.0.1"}, r"groups\[0\].vip: must be a plain address"),
        ({"vip": "web.example"}, r"groups\[0\].vip: must be an IP address"),
    ],
)
def test_bad_groups_are_refused_by_path(plane: EbpfDataplane, change: dict, path: str) -> None:
    arguments = {"name": "web", "vip": VIP, "port": 80, "to": {"b0": 1}, **change}
    with pytest.raises(PermanentFault, match=path):
        plane.configure([group(**arguments)])
    assert plane.read() == {}


def test_bad_tables_are_refused_whole(plane: EbpfDataplane, place: Place, client: Talker) -> None:
    plane.configure([group("web", VIP, 80, servers(place.ports, "b0", "b1"))])
    plane.apply(table("web", 1, {"b0": 1, "b1": 0}), decision=1)
    for bad, path in (
        (table("web", 2, {"b0": 1}), r"slots\['b1'\]"),
        (table("web", 2, {"b0": 1024, "b1": 1}), "slots: at most 1024"),
        (table("web", 2**48, {"b0": 0, "b1": 1}), "epoch: must be between"),
        (table("other", 2, {"b0": 0, "b1": 1}), "'other' is not configured"),
    ):
        with pytest.raises(PermanentFault, match=path):
            plane.apply(bad, decision=2)
    assert client.do("tcp", host=VIP, port=80, count=3) == ["0"] * 3
    assert plane.read()["web"].epoch == 1


def test_a_connection_to_a_dead_backend_fails_as_connections_do(
    plane: EbpfDataplane, place: Place, client: Talker
) -> None:
    assert errno.ECONNREFUSED == 111
    plane.configure([group("web", VIP, 80, {"gone": 1})])
    assert client.do("tcp", host=VIP, port=80) == ["ECONNREFUSED"]
    seen = plane.read()["web"]
    assert (seen.admitted, seen.refused_hard) == (1, 0)
