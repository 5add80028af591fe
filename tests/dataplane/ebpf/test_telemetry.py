"""What sockops sees: failures, successes, live connections, round trips, retransmissions."""

import contextlib
import socket
import time
from collections.abc import Callable

import pytest

from fairlead.core.traffic.sighting import BackendSeen
from fairlead.dataplane.ebpf import EbpfDataplane
from fairlead.ports.faults import PermanentFault
from tests.dataplane.ebpf.places import Place, Talker, group
from tests.dataplane.tables import table

pytestmark = pytest.mark.component("ebpf")
VIP = "127.99.0.1"


def wait(plane: EbpfDataplane, backend: str, until: Callable[[BackendSeen], bool]) -> BackendSeen:
    """What the kernel sees of a socket follows the application by an instant."""
    deadline = time.monotonic() + 60
    while True:
        seen = plane.read()["web"].backends[backend]
        if until(seen) or time.monotonic() > deadline:
            return seen
        time.sleep(0.01)


def test_failures_are_counted_and_a_success_ends_the_run(
    place: Place, plane: EbpfDataplane, client: Talker
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: refused
        port = closed.getsockname()[1]
        plane.configure([group("web", VIP, 80, {"b0": place.ports[0], "bad": port})])
        plane.apply(table("web", 1, {"b0": 0, "bad": 1}), decision=1)
        assert client.do("tcp", host=VIP, port=80, count=6) == ["ECONNREFUSED"] * 6
        bad = wait(plane, "bad", lambda seen: seen.connect_failures == 6)
        assert (bad.admitted, bad.connect_failures, bad.errors) == (6, 6, 6)
        assert (bad.consecutive_failures, bad.successes, bad.open) == (6, 0, 0)
        assert plane.read()["web"].refused_hard == 0  # the backend refused, not we
        closed.listen(16)
        client.do("begin", host=VIP, port=80)
        bad = wait(plane, "bad", lambda seen: seen.successes == 1)
        assert (bad.connect_failures, bad.consecutive_failures) == (6, 0)
        client.do("let_go")


def test_live_connections_and_round_trips(
    place: Place, plane: EbpfDataplane, client: Talker
) -> None:
    plane.configure([group("web", VIP, 80, {"b0": place.ports[0]})])
    seen = plane.read()["web"].backends["b0"]
    assert (seen.rtt_ms, seen.jitter_ms) == (None, None)
    for _ in range(3):
        client.do("keep", host=VIP, port=80)
    seen = wait(plane, "b0", lambda seen: seen.open == 3)
    assert (seen.open, seen.successes) == (3, 3)
    assert seen.rtt_ms is not None
    assert 0 < seen.rtt_ms < 5_000
    assert seen.jitter_ms is not None
    assert 0 < seen.jitter_ms < 5_000
    assert (seen.queue, seen.p95_ms) == (None, None)  # the kernel cannot know
    client.do("let_go")
    seen = wait(plane, "b0", lambda seen: seen.open == 0)
    assert (seen.open, seen.successes, seen.retransmits) == (0, 3, 0)


def test_retransmissions(place: Place, plane: EbpfDataplane, client: Talker) -> None:
    """A listener whose queue is full lets SYNs fall: they are sent again, and seen."""
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        plane.configure([group("web", VIP, 80, {"full": full.getsockname()[1]})])
        client.do("begin", host=VIP, port=80)
        seen = wait(plane, "full", lambda seen: bool(seen.retransmits))
        assert (seen.retransmits or 0) >= 1
        assert (seen.successes, seen.open) == (0, 1)  # on its way is in it
        client.do("let_go")  # gives up while connecting: a failed connect
        seen = wait(plane, "full", lambda seen: seen.connect_failures == 1)
        assert (seen.connect_failures, seen.open) == (1, 0)


def test_a_connection_of_a_backend_that_left_counts_for_nobody(
    place: Place, plane: EbpfDataplane, client: Talker
) -> None:
    """It lives on, and when it ends, whoever has the place by then does not notice."""
    plane.configure([group("web", VIP, 80, {"b0": place.ports[0]})])
    client.do("keep", host=VIP, port=80)
    wait(plane, "b0", lambda seen: seen.open == 1)
    plane.configure([])
    plane.configure([group("web", VIP, 80, {"b1": place.ports[1]})])
    client.do("keep", host=VIP, port=80)
    wait(plane, "b1", lambda seen: seen.open == 1)
    client.do("let_go")
    seen = wait(plane, "b1", lambda seen: seen.open == 0)
    assert (seen.admitted, seen.successes, seen.open, seen.connect_failures) == (1, 1, 0, 0)


def test_sources_say_where_every_signal_comes_from(plane: EbpfDataplane) -> None:
    assert plane.sources.keys() == {"requests", "queue", "latency", "errors"}
    assert "scrape" in plane.sources["latency"]


def test_drain_knows_its_names(place: Place, plane: EbpfDataplane) -> None:
    plane.configure([group("web", VIP, 80, {"b0": place.ports[0]})])
    plane.drain("web", "b0", decision=1)
    for name, backend in (("web", "b1"), ("other", "b0")):
        with pytest.raises(PermanentFault, match="is not"):
            plane.drain(name, backend, decision=1)
